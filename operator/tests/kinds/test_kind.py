"""The common reconcile of Volumes, Streams and Topics: retries, deletion by policy, and crashes."""

import pytest

from headrace.base.errors import Code, KafkaError
from headrace.store.kubernetes.api import ApiSilent

from ..fake_cluster import World
from .declared import REF, STREAM, TOPIC, ended


async def test_a_change_that_comes_with_the_answer_to_a_write_of_ours_is_looked_at(world: World) -> None:
    key = world.declare("Stream", "plant", STREAM)
    engine = world.engine()
    world.watch()
    heard = []
    world.cache.on_learnt(lambda key, _body: heard.append(key))
    world.declare("Stream", "plant", STREAM | {"ttl": "1h"})  # no watch has reported it
    await world.reconcilers["Stream"](key, world.cache.get(key))
    assert heard == [key]
    assert engine.queued == 1
    assert world.cache.get(key)["spec"]["ttl"] == "1h"
    world.declare("Stream", "plant", STREAM | {"reclaimPolicy": "Delete", "ttl": "1h"})
    await world.once(key)
    assert heard == [key], "our own finalizer and status are no change of somebody else's"
    assert engine.queued == 1


async def test_no_answer_is_a_condition_and_is_tried_again(world: World) -> None:
    world.cluster.away = True
    key = world.declare("Topic", "pumps", TOPIC)
    again = await world.once(key)
    assert again is not None
    assert 10 < again < 20
    assert world.condition("Topic", "pumps")[:2] == ("False", "NoAnswer")


# --- deletion


async def test_retain_leaves_the_data_and_has_no_finalizer(world: World) -> None:
    key = world.declare("Stream", "plant", STREAM)
    await world.run(key)
    assert not world.api.one("Stream", "plant")["metadata"].get("finalizers")
    world.api.remove("Stream", "plant")
    await world.once(key)
    assert "/plant" in world.cluster.streams


async def test_delete_takes_the_data_with_it(world: World) -> None:
    await world.once(await ended(world))
    assert "/plant" not in world.cluster.streams
    assert not world.api.find("Stream")


async def test_what_is_gone_already_is_no_reason_to_wait(world: World) -> None:
    key = await ended(world)
    world.cluster.streams.clear()
    await world.once(key)
    assert not world.api.find("Stream")


async def test_what_may_not_be_deleted_is_left_with_an_event(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    key = await ended(world)

    def refuse(**_: object) -> None:
        raise KafkaError(Code.POLICY_VIOLATION, "it takes topics that are named without a stream")

    monkeypatch.setattr(world.cluster, "stream_delete", refuse)
    await world.once(key)
    assert not world.api.find("Stream")
    assert "NotDeleted" in world.events()


# --- interruptions


async def test_a_crash_after_any_write_comes_to_the_same() -> None:
    for fail_at in range(1, 12):
        world = World()
        await world.run(world.declare("StreamCluster", "c", {"nodes": 1}))
        keys = [
            world.declare("Stream", "plant", STREAM | {"reclaimPolicy": "Delete"}),
            world.declare("Topic", "pumps", TOPIC | {"reclaimPolicy": "Delete"}),
            world.declare("StreamUser", "alice", REF),
        ]
        world.api.fail_after = fail_at
        for end in (False, True):
            if end:
                for kind, name in (("Topic", "pumps"), ("Stream", "plant"), ("StreamUser", "alice")):
                    world.api.remove(kind, name)
            for key in keys * 2:
                try:
                    await world.run(key)
                except ApiSilent:
                    world.start_operator()
                    await world.run(key)
            assert bool(world.cluster.streams) is bool(world.cluster.topics) is not end
            assert bool(world.api.find("StreamUser")) is not end


async def test_a_resource_that_vanishes_before_its_status_is_written_is_forgotten(world: World) -> None:
    key = world.declare("Stream", "plant", STREAM)
    world.watch()
    body = world.cache.get(key)
    world.api.remove("Stream", "plant")
    await world.reconcilers["Stream"](key, body)
    assert world.cache.get(key) is None


async def test_two_thousand_topics_at_rest_cost_no_write_and_are_looked_at_seldom() -> None:
    world = World()
    await world.run(world.declare("StreamCluster", "c", {"nodes": 1}))
    keys = [world.declare("Topic", f"t{number}", TOPIC) for number in range(2000)]
    world.watch()
    for key in keys:
        await world.reconcilers["Topic"](key, world.cache.get(key))
    writes = len(world.api.writes)
    again = [await world.reconcilers["Topic"](key, world.cache.get(key)) for key in keys]
    assert len(world.api.writes) == writes
    assert min(each for each in again if each is not None) > 500
