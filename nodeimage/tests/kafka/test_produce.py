"""Produce requests that are large in number of partitions, or whose partition is not ready."""

import asyncio
import time

import pytest

from headrace.base.errors import Code
from headrace.kafka import produce
from headrace.kafka.connection import Connection
from headrace.node.parts import NodeParts
from headrace.partitions.partition import Partition
from headrace.partitions.topics import Topic
from headrace.wire import produce as wire
from headrace.wire.api_keys import ApiKey
from headrace.wire.batch import build_batch
from headrace.wire.header import read_request_header, request_header


class Answered:
    """A slot whose answer can be waited for."""

    throttle_ms = 0

    def __init__(self) -> None:
        self.future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def answer(self, body: list[bytes]) -> None:
        self.future.set_result(b"".join(body))


async def test_a_request_for_very_many_partitions_lets_others_have_their_turn(broker: NodeParts) -> None:
    (topic,) = await broker.topics.resolve(["t"], create=True)
    assert isinstance(topic, Topic)
    await broker.partitions.leader(topic, 0)  # nothing has to be waited for
    count, stored = 20_000, (0, 7_000, 19_999)
    batch = build_batch([(int(time.time() * 1000), None, b"x", [])])
    parts = [
        wire.PartitionRecords("t", 0, memoryview(batch)) if row in stored else wire.PartitionRecords("t", row, None)
        for row in range(count)
    ]
    body = wire.encode_request(9, wire.ProduceRequest(None, -1, 1000, parts))
    request = memoryview(bytearray(request_header(ApiKey.PRODUCE, 9, 1, "test") + body))
    slot, connection, turns = Answered(), Connection(broker.dispatcher), 0
    broker.produce.handle(connection, read_request_header(request), request, slot)  # type: ignore[arg-type]
    while connection.parked:
        turns += 1
        await asyncio.sleep(0)
    assert turns >= count // produce.MANY
    async with asyncio.timeout(20):
        results, _ = wire.decode_response(await slot.future, 0, 9)
    assert [(row, each.base_offset) for row, each in enumerate(results) if not each.error] == [
        (row, offset) for offset, row in enumerate(stored)
    ]
    assert len(results) == count
    assert {each.error for each in results if each.error} == {Code.UNKNOWN_TOPIC_OR_PARTITION}


async def test_a_producer_is_told_what_its_partition_waits_for(
    broker: NodeParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    (topic,) = await broker.topics.resolve(["t"], create=True)
    assert isinstance(topic, Topic)
    partition = await broker.partitions.leader(topic, 0)

    async def never(_partition: Partition) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(partition, "rolling", True)
    monkeypatch.setattr(broker.rolls, "wait_for_roll", never)
    monkeypatch.setattr(produce, "MOST_WAIT_S", 0.01)
    batch = build_batch([(int(time.time() * 1000), None, b"x", [])])
    parts = [wire.PartitionRecords("t", 0, memoryview(batch))]
    body = wire.encode_request(9, wire.ProduceRequest(None, -1, 1000, parts))
    request = memoryview(bytearray(request_header(ApiKey.PRODUCE, 9, 1, "test") + body))
    slot = Answered()
    broker.produce.handle(Connection(broker.dispatcher), read_request_header(request), request, slot)  # type: ignore[arg-type]
    async with asyncio.timeout(20):
        ((result,), _) = wire.decode_response(await slot.future, 0, 9)
    assert result.error == Code.LEADER_NOT_AVAILABLE
    assert result.message == "the partition is not ready to be written to: it is about to go on elsewhere; try again"
