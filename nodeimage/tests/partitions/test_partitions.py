"""Partitions in memory: loaded once their container serves, and forgotten with it."""

import asyncio

import msgspec
import pytest

from headrace.base.errors import Code, KafkaError
from headrace.base.ids import Position
from headrace.catalog.rows import Replaced
from headrace.log.frames import FrameType
from headrace.node.parts import NodeParts
from headrace.partitions import partitions
from headrace.wire.api_keys import ApiKey
from kit.three_nodes import (
    ask,
    batch,
    held,
    led_by,
    result,
    send,
    session,
    until,
)


async def test_what_another_node_leads_is_refused_as_that_and_not_as_unknown(
    brokers: list[NodeParts], topic: str
) -> None:
    here, there = brokers[0], brokers[1]
    (index, *_) = await led_by(there)
    refused = await result(send(here, session(here), index, batch(b"a")))
    assert (refused.error, refused.base_offset) == (Code.NOT_LEADER_OR_FOLLOWER, -1)
    asked = {"partition_index": index, "current_leader_epoch": -1, "timestamp": -1}
    listed = await ask(
        here,
        ApiKey.LIST_OFFSETS,
        7,
        replica_id=-1,
        isolation_level=0,
        topics=[{"name": topic, "partitions": [asked]}],
    )
    assert listed.topics[0].partitions[0].error_code == Code.NOT_LEADER_OR_FOLLOWER
    epochs = await ask(
        here,
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        3,
        replica_id=-1,
        topics=[{"topic": topic, "partitions": [{"partition": index, "current_leader_epoch": -1, "leader_epoch": 0}]}],
    )
    assert epochs.topics[0].partitions[0].error_code == Code.NOT_LEADER_OR_FOLLOWER
    deleted = await ask(
        here,
        ApiKey.DELETE_RECORDS,
        2,
        topics=[{"name": topic, "partitions": [{"partition_index": index, "offset": 0}]}],
        timeout=5_000,
    )
    assert deleted.topics[0].partitions[0].error_code == Code.NOT_LEADER_OR_FOLLOWER

    async def stored() -> bool:
        found = await result(send(there, session(there), index, batch(b"a")))
        assert found.error in (0, Code.NOT_ENOUGH_REPLICAS)  # the new container's followers may not be up yet
        return found.error == 0

    await until(stored)


async def test_partitions_leave_memory_with_their_container(brokers: list[NodeParts], topic: str) -> None:
    broker = brokers[0]
    (index, *_) = await led_by(broker)
    partition = await held(broker, index)
    woken: list[bool] = []

    class Fetching:
        def wake(self) -> None:
            woken.append(partition.left)

    partition.watch(Fetching())
    partition.container.lose()
    broker.container_left(partition.container)
    assert woken == [True]
    (found,) = await broker.topics.resolve([topic])
    assert not isinstance(found, KafkaError)
    assert index not in found.partitions


async def test_nothing_is_loaded_before_the_container_serves(
    brokers: list[NodeParts], topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = brokers[0]
    (index, *_) = await led_by(broker)
    assert (await result(send(broker, session(broker), index, batch(b"a")))).error == 0
    partition = await held(broker, index)
    container = partition.container
    (found,) = await broker.topics.resolve([topic])
    assert not isinstance(found, KafkaError)
    broker.partitions.moved_away(found, index)
    container.state.epoch_start = Position(container.log.end + 1)  # as after a promotion
    monkeypatch.setattr(partitions, "SERVES_S", 0.0)
    with pytest.raises(KafkaError) as refused:
        await broker.partitions.leader(found, index)
    assert refused.value.code is Code.LEADER_NOT_AVAILABLE
    monkeypatch.setattr(partitions, "SERVES_S", 3600.0)
    loading = asyncio.create_task(broker.partitions.leader(found, index))
    await asyncio.sleep(0)
    assert not loading.done()
    await container.append_control(FrameType.PRODUCERS, msgspec.msgpack.encode([]))
    assert (await loading).high_watermark == 1


async def test_rows_that_were_replaced_are_looked_up_again(brokers: list[NodeParts], topic: str) -> None:
    broker = brokers[0]
    (busy, quiet, *_) = await led_by(broker)
    assert (await result(send(broker, session(broker), busy, batch(b"a")))).error == 0
    partition = await held(broker, busy)
    woken = asyncio.Event()

    class Fetching:
        def wake(self) -> None:
            woken.set()

    partition.watch(Fetching())
    partition.chain = (partition.chain[-1]._replace(first=0, leader_epoch=-5),)
    broker.applied_changes.applied([(Replaced(Position(0)), None)])
    async with asyncio.timeout(10):
        await woken.wait()
    assert partition.chain[-1].leader_epoch >= 0
    assert await held(broker, busy) is partition
    assert (await result(send(broker, session(broker), quiet, batch(b"a")))).error == 0
