"""What changes of rules have in common: expressions that are read first, and warnings of unknown names."""

import pytest

from headrace.admin.access_changes import NAMED, AccessChanges, read_expressions
from headrace.base.errors import Code, KafkaError
from headrace.node.parts import NodeParts
from headrace.security.access_expression import expression_of, parse
from headrace.security.access_rules import Permission
from kit.callers import Callers


@pytest.fixture
def changes(broker: NodeParts) -> AccessChanges:
    return AccessChanges(catalog=broker.catalog, access=broker.access, applied=None)  # type: ignore[arg-type]


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
