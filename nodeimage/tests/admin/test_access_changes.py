"""What changes of rules have in common: expressions are parsed first, and unknown names cause warnings."""

from collections.abc import Mapping

import pytest

from headrace.admin.access_changes import NAMED, AccessChanges, read_expressions
from headrace.base.errors import Code, KafkaError
from headrace.node.parts import NodeParts
from headrace.security.access_expression import expression_of, parse
from headrace.security.access_rules import Permission
from kit.callers import Callers


@pytest.fixture
def changes(broker: NodeParts) -> AccessChanges:
    return AccessChanges(catalog=broker.catalog, access=broker.access, authorizer=broker.authorizer, applied=None)  # type: ignore[arg-type]


def test_expressions_are_read_before_anything_is_written() -> None:
    read = read_expressions({Permission.PRODUCE: "u:a|u:b"}, where="/s")
    assert read[Permission.PRODUCE].text == "u:a | u:b"
    with pytest.raises(KafkaError, match="the expression for copy on /s cannot be read: at character 3") as caught:
        read_expressions({Permission.COPY: "u:"}, where="/s")
    assert caught.value.code is Code.INVALID_REQUEST


async def test_names_that_the_cluster_does_not_have_are_warned_of(changes: AccessChanges, broker: NodeParts) -> None:
    await Callers(broker).call("", "user.create", name="alice", groups=["ops"])
    assert await changes.warnings([parse("u:alice | g:ops & !u:ANONYMOUS | p"), parse("")]) == []
    users, groups = await changes.warnings([parse("u:bob | u:alice"), parse("g:dev | g:test")])
    assert users.startswith("the cluster has no user bob: ")
    assert groups.startswith("the cluster has no groups dev, test: ")


async def test_a_warning_has_some_of_many_names(changes: AccessChanges) -> None:
    (warning,) = await changes.warnings([expression_of(users=[f"u{number:03}" for number in range(NAMED + 5)])])
    assert " and 5 more" in warning


async def test_each_change_is_told_to_the_audit_with_who_made_it_and_without_a_secret(broker: NodeParts) -> None:
    callers = Callers(broker)
    logs: list[Mapping[str, object]] = []
    broker.audit._sinks.append(logs.append)
    await callers.call("", "user.create", name="root", password="open sesame 1", groups=["ops", "dev"])
    await callers.call("", "access.set", items=[{"object": "cluster", "permission": "admin", "expression": "u:root"}])
    await callers.call("", "security.on")
    await callers.call("root", "user.passwd", name="root", password="open sesame 2")
    await callers.call("root", "user.alter", name="root", groups=[])
    await callers.call("root", "stream.create", path="/s", access={"produce": "u:root|u:bob"})
    await callers.call("root", "user.create", name="bob")
    await callers.call("root", "user.delete", name="bob")
    await callers.call("root", "security.off", open_everything=True)
    told = [
        (each["api"], each["user"], each["action"], each["kind"], each["name"], each["reason"])
        for each in logs
        if each["allowed"]
    ]
    assert told == [
        ("user.create", "ANONYMOUS", "users", "user", "root", "made, of the groups dev, ops"),
        ("access.set", "ANONYMOUS", "access", "cluster", "", "admin is 'u:root'"),
        ("security.on", "ANONYMOUS", "security", "cluster", "", "on"),
        ("user.passwd", "root", "users", "user", "root", "another password"),
        ("user.alter", "root", "users", "user", "root", "of no group"),
        ("stream.create", "root", "access", "stream", "/s", "produce is 'u:root | u:bob'"),
        ("user.create", "root", "users", "user", "bob", "made, of no group"),
        ("user.delete", "root", "users", "user", "bob", "deleted"),
        ("security.off", "root", "security", "cluster", "", "off: everybody may do everything"),
    ]
    assert "sesame" not in str(logs)
