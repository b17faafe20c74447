"""Admin calls on access expressions: set, list, show with what is inherited, explain."""

from typing import Any

import pytest

from headrace.admin import access
from headrace.base.errors import Code
from headrace.node.parts import NodeParts
from kit.access import AuditTold, principal
from kit.admin_calls import create
from kit.callers import PASSWORD, Callers
from kit.parts import Ask


@pytest.fixture
async def callers(broker: NodeParts, ask: Ask) -> Callers:
    callers = Callers(broker)
    await callers.call("", "stream.create", path="/plant/flow")
    await create(ask, "/plant/flow:t")
    await callers.secure()
    return callers


async def test_set_listed_and_removed(callers: Callers) -> None:
    set_ = await callers.access("root", {"/plant/flow": {"produce": " u:root|g:x ", "consume": ""}})
    assert set_["items"] == [
        {"object": "/plant/flow", "kind": "stream", "permission": "produce", "expression": "u:root | g:x"},
        {"object": "/plant/flow", "kind": "stream", "permission": "consume", "expression": ""},
    ]
    assert set_["not_applied"] == []
    assert ["group x" in each for each in set_["warnings"]] == [True]
    await callers.access("root", {"/plant/flow": {"consume": None}})
    listed = await callers.call("root", "access.list")
    assert [(each["object"], each["permission"]) for each in listed] == [
        ("cluster", "admin"),
        ("/plant/flow", "produce"),
    ]


async def test_an_object_is_written_in_eight_ways_and_a_topics_alias_is_the_topic(callers: Callers) -> None:
    names = ["cluster", "/plant/*", "/plant/flow", "/plant/flow:t"]
    names += ["group:team-*", "group:team-", "transactional-id:*", "transactional-id:x"]
    await callers.access("root", {name: {"produce": "u:root"} for name in names})
    assert {each["object"] for each in await callers.call("root", "access.list")} == set(names)
    by_alias = await callers.access("root", {"plant.flow..t": {"consume": "u:root"}})
    assert by_alias["items"][0]["object"] == "/plant/flow:t"
    shown = await callers.call("root", "access.show", object="plant.flow..t")
    assert {each["permission"]: (each["from"], each["inherited"]) for each in shown["permissions"]} == {
        "produce": ("/plant/flow:t", False),
        "consume": ("/plant/flow:t", False),
        "topic": (None, False),
        "copy": (None, False),
        "admin": ("cluster", True),
    }


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("plant", "write /stream"),
        ("/*", "write `cluster`"),
        ("group:", "write group:NAME, group:PREFIX*"),
        ("group:a*b*", "group:PREFIX*"),
        ("/plant//flow", "no path for a stream"),
        ("/plant/flow:", "the topic is missing"),
        ("/nowhere", "write /nowhere/*"),
        ("/plant/flow:nothing", "there is no topic"),
        ("x" * 2_000, "write /stream"),
    ],
)
async def test_what_is_no_object_is_refused(callers: Callers, name: str, says: str) -> None:
    error = await callers.fails("root", "access.set", items=[{"object": name, "permission": "produce"}])
    assert says in str(error)
    assert not error.is_forbidden


async def test_an_illegal_expression_is_refused_with_the_place_and_nothing_is_set(callers: Callers) -> None:
    given: dict[str, dict[str, str | None]] = {
        "/plant/flow": {"produce": "u:a"},
        "/plant/*": {"consume": "u:a & alice"},
    }
    items = [
        {"object": name, "permission": each, "expression": text}
        for name, of in given.items()
        for each, text in of.items()
    ]
    error = await callers.fails("root", "access.set", items=items)
    assert str(error).startswith("the expression for consume on /plant/* cannot be read: at character 7: found")
    assert len(await callers.call("root", "access.list")) == 1
    long = await callers.fails(
        "root", "access.set", items=[{"object": "cluster", "permission": "copy", "expression": "u:a|" * 20_000 + "p"}]
    )
    assert "64 KiB" in str(long) or "65536" in str(long) or "65,536" in str(long)


async def test_an_expression_that_lets_in_the_unknown_by_a_negation_is_warned_of(callers: Callers) -> None:
    (warning,) = (await callers.access("root", {"/plant/flow": {"produce": "!u:root"}}))["warnings"]
    assert "proved nothing" in warning
    assert (await callers.access("root", {"/plant/flow": {"produce": "p"}}))["warnings"] == []


async def test_what_is_set_beside_an_object_that_is_deleted_meanwhile_is_in_the_audit(
    callers: Callers, monkeypatch: pytest.MonkeyPatch
) -> None:
    await callers.call("root", "stream.create", path="/gone")
    submit = access.submit_within

    async def late(*arguments: Any, **options: Any) -> Any:
        await callers.call("root", "stream.delete", path="/gone")
        return await submit(*arguments, **options)

    audit = AuditTold(callers.parts)
    monkeypatch.setattr(access, "submit_within", late)
    names = ("/plant/*", "/gone", "/plant/flow")
    items = [{"object": name, "permission": "produce", "expression": "u:root"} for name in names]
    error = await callers.fails("root", "access.set", items=items)
    assert error.code == Code.UNKNOWN_TOPIC_OR_PARTITION
    assert str(error) == "/gone is gone: its produce was not set; 2 of 3 expressions were"
    told = [(each["kind"], each["name"], each["reason"]) for each in audit.events if each["action"] == "access"]
    assert told == [("prefix", "/plant", "produce is 'u:root'"), ("stream", "/plant/flow", "produce is 'u:root'")]


async def test_explained_with_the_groups_of_catalog_and_token(callers: Callers) -> None:
    await callers.call("root", "user.create", name="bob", password=PASSWORD, groups=["ops"])
    await callers.access("root", {"/plant/*": {"produce": "g:ops & !u:bob | g:guests"}})
    (told,) = await callers.call("root", "access.explain", user="bob", object="/plant/flow:t", permission="produce")
    assert (told["allowed"], told["from"], told["groups"]) == (False, "/plant/*", ["ops"])
    (told,) = await callers.call(
        "root", "access.explain", user="bob", object="/plant/flow:t", permission="produce", groups=["guests"]
    )
    assert (told["allowed"], told["groups"]) == (True, ["guests", "ops"])
    (root,) = await callers.call("root", "access.explain", user="root", object="/plant/flow", permission="copy")
    assert (root["from"], root["by"]) == ("cluster", "admin")
    every = await callers.call("root", "access.explain", user="ANONYMOUS", object="group:x*")
    assert [each["allowed"] for each in every] == [False] * 5


async def test_who_has_admin_on_a_stream_sets_and_sees_it_alone(callers: Callers) -> None:
    await callers.access("root", {"/plant/flow": {"admin": "u:ann"}})
    await callers.access("ann", {"/plant/flow": {"produce": "p"}, "/plant/flow:t": {"consume": "u:ann"}})
    assert {each["object"] for each in await callers.call("ann", "access.list")} == {"/plant/flow", "/plant/flow:t"}
    for other in ("/plant/*", "/plant/flow/*", "cluster", "group:*", "/default"):
        await callers.refused("ann", "access.set", items=[{"object": other, "permission": "produce"}])
        await callers.refused("ann", "access.show", object=other)
        await callers.refused("ann", "access.explain", user="ann", object=other)


async def test_who_would_lose_the_cluster_is_asked_to_say_so(callers: Callers) -> None:
    items = [{"object": "cluster", "permission": "admin", "expression": "u:ann"}]
    error = await callers.fails("root", "access.set", items=items)
    assert (error.code, "force" in str(error)) == (Code.POLICY_VIOLATION, True)
    await callers.call("root", "user.create", name="ann", password=PASSWORD)
    await callers.call("root", "access.set", items=items, force=True)
    await callers.refused("root", "access.set", items=items)
    await callers.call(principal("ann"), "access.list")
