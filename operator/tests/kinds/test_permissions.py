"""Access expressions of streams and topics, as their resources declare them."""

from typing import Any

import pytest

from headrace_operator.engine import Key
from headrace_operator.kinds.permissions import PAGE, wanted_items

from ..fake_cluster import World
from .declared import STREAM, TOPIC


async def permitted(world: World, kind: str, spec: dict[str, Any], **permissions: str) -> Key:
    key = world.declare(kind, "plant", {**spec, "permissions": permissions})
    await world.run(key)
    return key


def expressions(world: World, of: str) -> dict[str, str]:
    return {permission: text for (each, permission), text in world.cluster.expressions.items() if each == of}


async def test_a_stream_has_the_expressions_of_its_resource_and_no_others(secure: World) -> None:
    secure.cluster.users["alice"] = {"groups": ["sensors"], "password": None}
    secure.cluster.expressions["/plant", "copy"] = "u:somebody"
    key = await permitted(secure, "Stream", STREAM, produce="g:sensors|u:alice", consume="")
    assert expressions(secure, "/plant") == {"produce": "u:alice | g:sensors", "consume": ""} or expressions(
        secure, "/plant"
    ) == {"produce": "g:sensors | u:alice", "consume": ""}
    assert secure.condition("Stream", "plant", "Permitted")[:2] == ("True", "AsAsked")
    secure.cluster.expressions["/plant", "produce"] = "p"  # by another client
    await secure.run(key)
    assert expressions(secure, "/plant")["produce"] != "p"
    await permitted(secure, "Stream", STREAM)
    assert expressions(secure, "/plant") == {}


async def test_nothing_is_sent_while_nothing_changes(secure: World) -> None:
    key = await permitted(secure, "Topic", TOPIC, produce="u:alice")
    before = len(secure.cluster.calls)
    await secure.once(key)
    assert len(secure.cluster.calls) == before
    assert expressions(secure, "/plant:plant") == {"produce": "u:alice"}


@pytest.mark.parametrize(("kind", "spec"), [("Stream", STREAM), ("Topic", TOPIC)])
async def test_an_expression_that_cannot_be_read_is_a_condition(secure: World, kind: str, spec: dict[str, Any]) -> None:
    await permitted(secure, kind, spec, admin="u:alice |")
    state, reason, message = secure.condition(kind, "plant")
    assert (state, reason) == ("False", "BadExpression")
    assert message.startswith("permissions.admin cannot be read")
    assert not secure.cluster.streams
    assert not secure.cluster.topics


async def test_names_that_nobody_has_are_told_and_keep_nothing_back(secure: World) -> None:
    secure.cluster.users["bob"] = {"groups": ["ops"], "password": None}
    await permitted(secure, "Stream", STREAM, produce="u:alice | u:bob & !u:ANONYMOUS", admin="g:ops | g:opps")
    state, reason, message = secure.condition("Stream", "plant", "Permitted")
    assert (state, reason) == ("False", "UnknownNames")
    assert message.startswith("there is no user alice, there is no group opps")
    assert secure.condition("Stream", "plant")[0] == "True"
    assert expressions(secure, "/plant")["admin"]


async def test_with_very_many_users_nobody_looks(secure: World, monkeypatch: pytest.MonkeyPatch) -> None:
    page = [{"user": "x", "groups": []}] * PAGE
    monkeypatch.setattr(secure.cluster, "user_list", lambda **_: page)
    await permitted(secure, "Stream", STREAM, produce="u:alice")
    assert secure.condition("Stream", "plant", "Permitted")[:2] == ("True", "AsAsked")


async def test_without_security_nobody_asks_for_them_and_that_is_told(world: World) -> None:
    await permitted(world, "Stream", STREAM, produce="u:alice")
    assert world.condition("Stream", "plant", "Permitted")[:2] == ("False", "NotChecked")
    assert world.condition("Stream", "plant")[0] == "True"
    assert not world.cluster.expressions
    await permitted(world, "Stream", STREAM)
    assert world.condition("Stream", "plant", "Permitted")[:2] == ("True", "AsAsked")


def test_what_is_to_be_set_is_what_differs() -> None:
    present = {"produce": "u:a", "consume": "u:b", "topic": None, "copy": None, "admin": "u:c"}
    assert wanted_items("/s", {"produce": "u:a", "topic": ""}, present) == [
        {"object": "/s", "permission": "consume", "expression": None},
        {"object": "/s", "permission": "topic", "expression": ""},
        {"object": "/s", "permission": "admin", "expression": None},
    ]
