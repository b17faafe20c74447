"""Three nodes of one cluster in the test's own loop: who leads what, what each reports, and what it refuses."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec import structs

from headrace.base.errors import Code, KafkaError
from headrace.catalog.names import DEFAULT_STREAM
from headrace.container.leader import Leader
from headrace.node import Node
from headrace.node.parts import NodeParts
from headrace.partitions.placement import Placement
from headrace.partitions.rolls.steps import RollSteps
from headrace.store.records import VolumeRecord
from headrace.wire.api_keys import ApiKey
from headrace.wire.batch import build_batch
from kit.three_nodes import (
    ask,
    batch,
    coordinator,
    described,
    each_leads,
    held,
    led_by,
    result,
    send,
    session,
    until,
)


async def test_no_latest_offset_and_no_group_out_of_touch_with_the_followers(
    brokers: list[NodeParts], topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await coordinator(brokers)
    (index, *_) = await led_by(broker)
    await held(broker, index)
    monkeypatch.setattr("headrace.container.commit_wait.OUT_OF_TOUCH_S", 0.0)
    monkeypatch.setattr(Leader, "in_touch", property(lambda _: False))

    async def listed(timestamp: int) -> int:
        asked = {"partition_index": index, "current_leader_epoch": -1, "timestamp": timestamp}
        topics = [{"name": topic, "partitions": [asked]}]
        answer = await ask(broker, ApiKey.LIST_OFFSETS, 7, replica_id=-1, isolation_level=0, topics=topics)
        return int(answer.topics[0].partitions[0].error_code)

    assert await listed(-1) == Code.LEADER_NOT_AVAILABLE
    assert await listed(-2) == 0
    beat = await ask(broker, ApiKey.HEARTBEAT, 4, group_id="g", generation_id=1, member_id="m")
    assert beat.error_code == Code.COORDINATOR_NOT_AVAILABLE


async def test_no_latest_offset_while_the_partition_may_go_on_elsewhere(
    unmoved: list[NodeParts], topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next leader may have acknowledged more records before this node hears of the change."""
    first, second = unmoved[0], unmoved[1]
    (index, *_) = await led_by(first)
    partition = await held(first, index)
    target = next(each for each in second.containers.values() if each.id != second.maintenance.catalog_id)
    recording, heard = asyncio.Event(), asyncio.Event()
    record = RollSteps._record

    async def recorded(steps: RollSteps, *of: Any) -> bool:
        recording.set()
        await heard.wait()
        return await record(steps, *of)

    monkeypatch.setattr(RollSteps, "_record", recorded)

    async def latest() -> int:
        asked = {"partition_index": index, "current_leader_epoch": -1, "timestamp": -1}
        topics = [{"name": topic, "partitions": [asked]}]
        answer = await ask(first, ApiKey.LIST_OFFSETS, 7, replica_id=-1, isolation_level=0, topics=topics)
        return int(answer.topics[0].partitions[0].error_code)

    assert await latest() == 0
    rolling = asyncio.create_task(first.rolls.roll(partition, to=target.id))
    await recording.wait()
    asked = asyncio.create_task(latest())
    await asyncio.wait([asked], timeout=0.2)
    assert not asked.done()
    heard.set()
    assert await asked == Code.NOT_LEADER_OR_FOLLOWER
    await rolling


async def test_offsets_by_time_are_found_in_partitionlets_that_other_nodes_lead(
    unmoved: list[NodeParts], topic: str
) -> None:
    first, second = unmoved[0], unmoved[1]
    (index, *_) = await led_by(first)
    for times in ((1_000, 2_000), (3_000, 4_000)):
        records = [(each, None, b"value", []) for each in times]
        assert (await result(send(first, session(first), index, memoryview(build_batch(records))))).error == 0
    target = next(each for each in second.containers.values() if each.id != second.maintenance.catalog_id)
    await first.rolls.roll(await held(first, index), to=target.id)

    async def led() -> bool:
        return index in await led_by(second)

    await until(led)
    late = memoryview(build_batch([(5_000, None, b"value", [])]))
    assert (await result(send(second, session(second), index, late))).base_offset == 4

    async def found(timestamp: int) -> tuple[int, int, int]:
        asked = {"partition_index": index, "current_leader_epoch": -1, "timestamp": timestamp}
        topics = [{"name": topic, "partitions": [asked]}]
        answer = await ask(second, ApiKey.LIST_OFFSETS, 7, replica_id=-1, isolation_level=0, topics=topics)
        (part,) = answer.topics[0].partitions
        return part.error_code, part.offset, part.timestamp

    assert [(await found(at))[:2] for at in (0, 2_000, 2_001, 4_500, 6_000)] == [
        (0, 0),
        (0, 1),
        (0, 2),
        (0, 4),
        (0, -1),
    ]
    assert await found(-3) == (0, 4, 5_000)
    deleted = await ask(
        second,
        ApiKey.DELETE_RECORDS,
        2,
        topics=[{"name": topic, "partitions": [{"partition_index": index, "offset": 1}]}],
        timeout=5_000,
    )
    assert deleted.topics[0].partitions[0].error_code == 0
    assert (await found(0))[:2] == (0, 1)  # the log start lies inside a batch of a partitionlet on the other node


# --- groups


async def test_what_a_node_led_is_led_elsewhere_after_it_stopped(nodes: list[Node], topic: str) -> None:
    leaving, *staying = nodes
    moved = await led_by(leaving.parts)
    before = (await described(staying[0].parts, topic)).topics[0].partitions
    first = await result(send(leaving.parts, session(leaving.parts), moved[0], batch(b"a", b"b")))
    assert (first.error, first.base_offset) == (0, 0)
    await leaving.stop()
    gone = leaving.parts.node.node_id

    async def heard() -> Any:
        return (await described(staying[0].parts, topic)).topics[0].partitions

    after = await heard()
    async with asyncio.timeout(20):
        while any(each.leader == gone for each in after):
            await asyncio.sleep(0.01)
            after = await heard()
    for old, new in zip(before, after, strict=True):
        if old.partition in moved:
            assert new.leader != leaving.parts.node.node_id
            assert new.leader_epoch > old.leader_epoch
        else:
            assert (new.leader, new.leader_epoch) == (old.leader, old.leader_epoch)
    (candidate,) = [node.parts for node in staying if node.parts.node.node_id == after[moved[0]].leader]
    found = await held(candidate, moved[0])
    assert (found.high_watermark, found.next_offset) == (2, 2)
    assert leaving.parts.node.node_id not in [each.node_id for each in (await described(candidate)).brokers]


# --- leadership that goes while something waits


async def test_a_producer_whose_batch_is_in_doubt_is_cut_off(brokers: list[NodeParts], topic: str) -> None:
    broker = brokers[0]
    (index, *_) = await led_by(broker)
    container = (await held(broker, index)).container
    slot = send(broker, session(broker), index, batch(b"in doubt"))
    container.lose()
    broker.container_left(container)
    with pytest.raises(ConnectionError):
        await slot.future


# --- order


async def test_a_client_to_which_too_much_is_refused_is_cut_off(
    brokers: list[NodeParts], topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each refusal is remembered for a minute."""
    monkeypatch.setattr("headrace.partitions.refusals.MAX_REMEMBERED", 5)
    broker = brokers[0]
    (index, *_) = await led_by(broker)
    state = (await held(broker, index)).container.state
    connection = session(broker)
    for producer in range(7):
        state.stalled = True
        answer = send(broker, connection, index, batch(b"a", producer=producer, epoch=0, sequence=0))
        if producer < 6:
            assert (await result(answer)).error == Code.NOT_ENOUGH_REPLICAS
    state.stalled = False
    with pytest.raises(ConnectionError):
        await result(answer)


async def test_a_batch_that_waited_shares_the_refusal_that_stood_when_it_came(
    brokers: list[NodeParts], topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic could not be looked up for the first batch; for the second the look-up took longer than the refusal
    lasts."""
    monkeypatch.setattr("headrace.partitions.refusals.REMEMBERED_OF_ANOTHER_LIFE_S", 0.05)
    broker = brokers[0]
    (index, *_) = await led_by(broker)
    names = broker.topics._by_name[DEFAULT_STREAM]
    known = names.pop(topic)
    resolve = broker.topics.resolve
    fails = True

    async def resolved(names: Sequence[str], *rest: Any, **more: Any) -> Any:
        if fails:
            raise KafkaError(Code.COORDINATOR_NOT_AVAILABLE, "the catalog is away")
        await asyncio.sleep(0.1)
        return await resolve(names, *rest, **more)

    monkeypatch.setattr(broker.topics, "resolve", resolved)
    connection = session(broker)
    first = await result(send(broker, connection, index, batch(b"a", producer=9, epoch=0, sequence=0)))
    assert first.error == Code.LEADER_NOT_AVAILABLE
    fails = False
    waits = send(broker, connection, index, batch(b"b", producer=9, epoch=0, sequence=1))
    await asyncio.sleep(0.05)
    names[topic] = known
    assert (await result(waits)).error == Code.LEADER_NOT_AVAILABLE  # by itself it would be stored
    for value, sequence in ((b"a", 0), (b"b", 1)):
        stored = await result(send(broker, connection, index, batch(value, producer=9, epoch=0, sequence=sequence)))
        assert (stored.error, stored.base_offset) == (0, sequence)


# --- placing


async def test_new_partitions_avoid_nodes_that_leave(brokers: list[NodeParts]) -> None:
    view = brokers[0].cluster.view
    await each_leads(brokers)
    draining = next(node for node in view.nodes.values() if node.node_id == brokers[1].node.node_id)
    view.nodes[draining.node_id] = structs.replace(draining, draining=True)
    places = Placement(brokers[0].cluster).place(300, "default")
    led = [view.containers[container].leader for container, _ in places]
    assert {led.count(broker.node.node_id) for broker in brokers} == {0, 150}
    assert all(epoch == view.containers[container].epoch for container, epoch in places)


async def test_without_a_container_of_the_volume_nothing_is_placed(brokers: list[NodeParts]) -> None:
    with pytest.raises(KafkaError) as refused:
        brokers[0].placement.place(1, "another")
    assert refused.value.code is Code.LEADER_NOT_AVAILABLE


async def test_topics_of_a_volume_that_asks_for_more_nodes_than_there_are_are_refused(brokers: list[NodeParts]) -> None:
    broker = brokers[0]
    broker.cluster.view.volumes["wide"] = VolumeRecord("wide", replicas=5, min_in_sync=4)
    with pytest.raises(KafkaError, match="asks for 4 in sync at least") as refused:
        broker.placement.place(1, "wide")
    assert refused.value.code is Code.INVALID_REPLICATION_FACTOR
