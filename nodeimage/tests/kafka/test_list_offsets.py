"""ListOffsets and OffsetForLeaderEpoch at the edges of what a node knows."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headrace.kafka import list_offsets
from headrace.node.parts import NodeParts
from headrace.partitions.partition import Partition
from headrace.partitions.rolls.frames import Seal
from headrace.partitions.topics import Topic
from headrace.wire.api_keys import ApiKey

Append = Callable[..., Awaitable[int]]
Ask = Callable[..., Awaitable[Any]]


async def made(broker: NodeParts, name: str) -> Partition:
    (topic,) = await broker.topics.resolve([name], create=True)
    assert isinstance(topic, Topic)
    return await broker.partitions.leader(topic, 0)


async def rolled(broker: NodeParts, name: str) -> Partition:
    """The partition, after a roll to a higher leader epoch."""
    before = await made(broker, name)
    await broker.rolls.roll(before)
    after = await made(broker, name)
    assert after.leader_epoch > before.leader_epoch or after is before
    return after


async def end_of(ask: Ask, name: str, epoch: int) -> tuple[int, int, int]:
    part = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": epoch}
    fields = {"replica_id": -1, "topics": [{"topic": name, "partitions": [part]}]}
    answer = (await ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, 3, fields)).topics[0].partitions[0]
    return answer.error_code, answer.leader_epoch, answer.end_offset


async def delete_all(ask: Ask, name: str, offset: int) -> None:
    fields = {
        "topics": [{"name": name, "partitions": [{"partition_index": 0, "offset": offset}]}],
        "timeout_ms": 5000,
    }
    answer = (await ask(ApiKey.DELETE_RECORDS, 2, fields)).topics[0].partitions[0]
    assert (answer.error_code, answer.low_watermark) == (0, offset)


async def test_an_epoch_whose_records_have_expired_ends_where_the_known_ones_begin(
    broker: NodeParts, append: Append, ask: Ask
) -> None:
    """Without an end, a consumer takes its position for truncated, and continues at the latest offset."""
    old = (await made(broker, "t")).leader_epoch
    assert await append("t", b"a", b"b") == 2
    await delete_all(ask, "t", 2)
    partition = await rolled(broker, "t")
    assert partition.leader_epoch > old
    assert await end_of(ask, "t", old) == (0, old, 2), "before the first record of the new epoch"
    assert await append("t", b"c", b"d") == 4
    assert [row.first for row in partition.chain] == [2], "nothing is left that tells of the old epoch"
    assert await end_of(ask, "t", old) == (0, old, 2)
    assert await end_of(ask, "t", partition.leader_epoch) == (0, partition.leader_epoch, 4)


async def test_an_epoch_without_any_record_ends_where_the_first_record_lies(
    broker: NodeParts, append: Append, ask: Ask
) -> None:
    old = (await made(broker, "new")).leader_epoch
    partition = await rolled(broker, "new")
    assert partition.leader_epoch > old
    assert await append("new", b"a") == 1
    assert await end_of(ask, "new", old) == (0, old, 0)


async def test_what_is_no_epoch_or_one_to_come_has_no_end(broker: NodeParts, append: Append, ask: Ask) -> None:
    partition = await made(broker, "t")
    await append("t", b"a")
    assert await end_of(ask, "t", -1) == (0, -1, -1)
    assert await end_of(ask, "t", partition.leader_epoch + 1) == (0, -1, -1)


async def test_partitions_that_are_being_rolled_are_waited_for_at_the_same_time(
    broker: NodeParts, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = {"name": "t", "num_partitions": 3, "replication_factor": -1, "assignments": [], "configs": []}
    await ask(ApiKey.CREATE_TOPICS, 5, {"topics": [made], "timeout_ms": 5000, "validate_only": False})
    (topic,) = await broker.topics.resolve(["t"])
    assert isinstance(topic, Topic)
    sealed = [await broker.partitions.leader(topic, index) for index in (0, 2)]
    for each in sealed:
        each.seal = Seal(topic.topic_id, each.index, 0, 0, [], [])
    both = asyncio.Barrier(2)

    async def roll(partition: Partition) -> None:
        await both.wait()
        partition.seal = None

    monkeypatch.setattr(broker.rolls, "roll", roll)
    parts = [{"partition_index": index, "current_leader_epoch": -1, "timestamp": -1} for index in range(3)]
    fields = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": "t", "partitions": parts}]}
    answer = (await ask(ApiKey.LIST_OFFSETS, 7, fields)).topics[0].partitions
    assert [(part.partition_index, part.error_code, part.offset) for part in answer] == [
        (0, 0, 0),
        (1, 0, 0),
        (2, 0, 0),
    ]


@pytest.mark.parametrize("is_sealed", [False, True])
@pytest.mark.parametrize(
    ("start", "newest"), [(0, (0, 900)), (1, (1, 500)), (2, (4, 400)), (3, (4, 400)), (5, (5, 200)), (6, (-1, -1))]
)
async def test_the_record_with_the_largest_timestamp_is_none_below_the_log_start(
    broker: NodeParts, append: Append, ask: Ask, start: int, newest: tuple[int, int], is_sealed: bool
) -> None:
    """The log start may lie in the middle of a batch, and what is below it is freed only later."""
    await made(broker, "t")
    await append("t", b"a", b"b", b"c", times=[900, 500, 300])
    await append("t", b"d", b"e", times=[100, 400])
    await append("t", b"f", times=[200])
    if start:
        await delete_all(ask, "t", start)
    if is_sealed:
        await rolled(broker, "t")
    part = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": list_offsets.MAX_TIMESTAMP}
    fields = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": "t", "partitions": [part]}]}
    answer = (await ask(ApiKey.LIST_OFFSETS, 7, fields)).topics[0].partitions[0]
    assert (answer.error_code, answer.offset, answer.timestamp) == (0, *newest)


@pytest.mark.parametrize(("timestamp", "looks"), [(-3, "find_max_time"), (1, "find_by_time")])
async def test_batches_are_never_taken_apart_on_the_loop(
    broker: NodeParts, append: Append, ask: Ask, monkeypatch: pytest.MonkeyPatch, timestamp: int, looks: str
) -> None:
    """A batch may hold any number of records, and all other clients wait for the loop."""
    await made(broker, "t")
    await append("t", b"a", b"b")
    look = getattr(list_offsets, looks)
    threads = []

    def found(*args: Any) -> Any:
        threads.append(threading.current_thread())
        return look(*args)

    monkeypatch.setattr(list_offsets, looks, found)
    part = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp}
    fields = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": "t", "partitions": [part]}]}
    answer = (await ask(ApiKey.LIST_OFFSETS, 7, fields)).topics[0].partitions[0]
    assert (answer.error_code, answer.offset) == (0, 0)
    assert threads
    assert threading.main_thread() not in threads
