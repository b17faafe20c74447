"""Finalizers wait for what is to be deleted, and never for what cannot happen any longer."""

import asyncio

import pytest
from structlog.testing import capture_logs

from headrace.store.kubernetes.api import ApiError
from headrace_operator import specs
from headrace_operator.kinds import finalizers, kind
from headrace_operator.specs import FINALIZER

from ..fake_api import NOW
from ..fake_cluster import NS, World
from .declared import STREAM, ended


async def test_the_finalizer_gives_up_when_the_cluster_is_gone(world: World) -> None:
    key = await ended(world)
    world.api.remove("StreamCluster", "c")
    await world.once(key)
    assert not world.api.find("Stream")
    assert "/plant" in world.cluster.streams


async def test_the_finalizer_waits_for_an_answer_but_not_in_a_namespace_that_ends(world: World) -> None:
    key = await ended(world)
    world.cluster.away = True
    assert await world.once(key) == 5.0
    assert world.condition("Stream", "plant")[1] == "NotDeleted"
    world.api.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NS, "deletionTimestamp": NOW}})
    await world.once(key)
    assert not world.api.find("Stream")


@pytest.mark.parametrize("away", [False, True])
async def test_in_a_namespace_that_ends_finalizers_go_before_anything_is_deleted(world: World, away: bool) -> None:
    """The operator's rights there may be among the first objects to be deleted."""
    deleting = {"reclaimPolicy": "Delete"}
    key = world.declare("Stream", "plant", STREAM | deleting)
    await world.run(key)
    cluster = world.declare("StreamCluster", "c", {"nodes": 3, **deleting})
    await world.run(cluster)
    world.cluster.away = away
    world.api.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NS, "deletionTimestamp": NOW}})
    for each in (key, cluster, key, cluster):
        await world.once(each)
        assert not world.api.one(each.kind, each.name)["metadata"].get("finalizers")
    assert ("/plant" in world.cluster.streams) is away
    assert ("NotDeleted" in world.events()) is away


async def test_a_cluster_that_answers_too_late_holds_no_finalizer_in_a_namespace_that_ends(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = await ended(world)
    monkeypatch.setattr(kind, "ENDING_S", 0.01)
    monkeypatch.setattr(world.cluster, "call", lambda *_, **__: asyncio.sleep(60))
    world.api.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NS, "deletionTimestamp": NOW}})
    await world.once(key)
    assert not world.api.find("Stream")


async def test_a_finalizer_that_may_not_be_taken_off_any_more_is_logged_and_fails_nothing(world: World) -> None:
    key = await ended(world)
    world.api.refuse = lambda method, path: ApiError(403, "forbidden") if method == "PATCH" else None
    with capture_logs() as logged:
        assert await world.once(key) is None
    (line,) = [each for each in logged if "finalizer" in each["event"]]
    assert (line["of"], line["finalizer"]) == (f"{NS}/plant", FINALIZER)


async def test_when_the_operators_own_namespace_ends_no_finalizer_is_left(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = world.declare("Stream", "plant", STREAM | {"reclaimPolicy": "Delete"})
    await world.run(key)
    monkeypatch.setattr(finalizers, "OWN_NAMESPACE", "ops")
    world.api.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ops", "deletionTimestamp": NOW}})
    await world.once(key)
    assert not world.api.one("Stream", "plant")["metadata"].get("finalizers")
    assert "/plant" in world.cluster.streams
    assert specs.FINALIZER == FINALIZER


async def test_a_policy_that_changes_takes_the_finalizer_off(world: World) -> None:
    key = world.declare("Stream", "plant", STREAM | {"reclaimPolicy": "Delete"})
    await world.run(key)
    world.declare("Stream", "plant", STREAM)
    await world.run(key)
    assert not world.api.one("Stream", "plant")["metadata"].get("finalizers")


async def test_a_conflict_on_a_finalizer_is_raised_and_the_next_try_works(world: World) -> None:
    key = world.declare("Stream", "plant", STREAM | {"reclaimPolicy": "Delete"})
    world.watch()
    body = world.cache.get(key)
    world.declare("Stream", "plant", STREAM | {"reclaimPolicy": "Delete", "ttl": "2h"})
    with pytest.raises(ApiError, match="modified"):
        await world.reconcilers["Stream"](key, body)
    await world.run(key)
    assert world.condition("Stream", "plant")[0] == "True"
