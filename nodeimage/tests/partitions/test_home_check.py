"""Copies: records at their own offsets, with gaps, through all kinds of reads; and where writes are accepted."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.base.errors import Code, KafkaError, StorageFull
from headrace.base.ids import Home, Millis, Offset
from headrace.catalog.homes import HomeChange, SetHome
from headrace.catalog.topics import CreateTopics, NewTopic
from headrace.kafka.connection import Connection
from headrace.links.failover.home_apply import HomeApplier, Unsettled
from headrace.node import Node, Options
from headrace.node.parts import NodeParts
from headrace.partitions.cluster_layout import NodeSettings
from headrace.partitions.partition import Partition
from headrace.partitions.topics import Topic
from headrace.wire import fetch as fetch_wire
from headrace.wire import produce as wire
from headrace.wire.api_keys import ApiKey
from headrace.wire.batch import BatchHeader, build_batch, iter_batches, iter_records, read_batch, stamp
from headrace.wire.header import read_request_header, request_header

THERE = "another-cluster"
ID = b"copied-topic-id!"
T0 = 1_700_000_000_000


@pytest.fixture(autouse=True)
def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the tests settle partitions, rather than the node."""

    async def nothing(home_applier: HomeApplier, wanted: Unsettled) -> None:
        pass

    monkeypatch.setattr(HomeApplier, "_apply_home", nothing)


class Committed:
    def __init__(self) -> None:
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def committed(self) -> None:
        self.future.set_result(None)

    def lost(self) -> None:
        self.future.set_exception(AssertionError("the node ceased to lead"))


def batch_at(offset: int, *values: bytes, time: int = T0, producer: int = -1, sequence: int = -1) -> memoryview:
    """A batch as its home has it, with the home's leader epoch."""
    records = [(time + index, None, value, []) for index, value in enumerate(values)]
    epoch = 0 if producer != -1 else -1
    batch = build_batch(records, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)
    stamp(batch, offset, 4711)
    return memoryview(bytearray(batch))


def header_of(batch: memoryview) -> BatchHeader:
    return read_batch(batch, from_client=False)


async def copied(
    broker: NodeParts, *, home: tuple[int, str] = (0, THERE), configs: dict[str, str] | None = None
) -> Topic:
    """A topic whose home is another cluster."""
    ((container, epoch),) = broker.placement.place(1, "default")
    item = NewTopic("/default", "c", ID, 1, configs or {}, [container], [epoch], home, THERE)
    (outcome,) = await broker.catalog.submit(CreateTopics([item], Millis(1)))
    assert outcome.code is Code.NONE
    return await topic_of(broker)


async def topic_of(broker: NodeParts, name: str = "c") -> Topic:
    (topic,) = await broker.topics.resolve([name])
    assert isinstance(topic, Topic)
    return topic


async def partition_of(broker: NodeParts, name: str = "c") -> Partition:
    return await broker.partitions.leader(await topic_of(broker, name), 0)


async def reloaded(broker: NodeParts, name: str = "c") -> Partition:
    """The partition, loaded from the log again."""
    topic = await topic_of(broker, name)
    broker.topics.forgot = True
    topic.partitions.clear()
    return await broker.partitions.leader(topic, 0)


async def copy(broker: NodeParts, *batches: memoryview) -> Partition:
    topic, partition = await topic_of(broker), await partition_of(broker)
    for batch in batches:
        if not partition.container.has_room(len(batch)):
            await partition.container.make_room()
        waiting = Committed()
        assert broker.home_check.copy_append(topic, partition, batch, header_of(batch), waiting=waiting)
        await waiting.future
    return partition


async def set_home(broker: NodeParts, counter: int, cluster: str, lists: Any = None, topic_id: bytes = ID) -> None:
    assert await broker.catalog.submit(SetHome([HomeChange(topic_id, counter, cluster, lists)])) == [Code.NONE]


async def read(broker: NodeParts, partition: Partition, offset: int = 0) -> list[tuple[int, bytes]]:
    """All records from `offset` on, from disk, as a fetch finds them."""
    found: list[tuple[int, bytes]] = []
    while offset < partition.high_watermark:
        where = broker.fetch_planner.locate(partition, offset)
        if where.offset >= where.limit:
            return found
        (batches,) = (await broker.fetch_planner.read_all([(("", 0), where, 1 << 20)], 1 << 20)).values()
        assert isinstance(batches, list), batches
        assert batches, f"nothing at {offset}"
        for batch in batches:
            found += [(each.offset, bytes(each.value or b"")) for each in iter_records(memoryview(batch))]
        offset = found[-1][0] + 1
    return found


async def produced(broker: NodeParts, *parts: tuple[str, memoryview]) -> list[wire.ProduceResult]:
    """The outcome of a client's request."""
    future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    slot = SimpleNamespace(
        answer=lambda body: future.set_result(b"".join(map(bytes, body))),
        is_followed=False,
        throttle_ms=0,
        timed=None,
        failed=lambda code: None,
        lose=lambda: future.set_exception(AssertionError("lost")),
    )
    records = [wire.PartitionRecords(name, 0, batch) for name, batch in parts]
    body = wire.encode_request(9, wire.ProduceRequest(None, -1, 6_000, records))
    request = memoryview(bytearray(request_header(ApiKey.PRODUCE, 9, 1, "test") + body))
    connection = Connection(broker.dispatcher)
    broker.produce.handle(connection, read_request_header(request), request, slot)  # type: ignore[arg-type]
    async with asyncio.timeout(20):
        results, _ = wire.decode_response(await future, 0, 9)
    return results


def from_client(value: bytes = b"x") -> memoryview:
    return memoryview(build_batch([(T0, None, value, [])]))


async def test_batches_keep_their_offsets_and_times_and_get_our_leader_epoch(broker: NodeParts) -> None:
    await copied(broker, configs={"message.timestamp.type": "LogAppendTime"})
    partition = await copy(broker, batch_at(0, b"a", b"b"), batch_at(7, b"h"), batch_at(8, b"i"))
    assert (partition.next_offset, partition.high_watermark) == (9, 9)
    expected = [(0, b"a"), (1, b"b"), (7, b"h"), (8, b"i")]
    for each in (partition, await reloaded(broker)):
        assert (each.next_offset, each.high_watermark) == (9, 9)
        assert await read(broker, each) == expected
        for offset in range(2, 8):
            assert await read(broker, each, offset) == expected[2:]
        tail = each.container.read_tail(each.open, 3, limit=9, max_bytes=1 << 20)
        assert tail is not None
        assert [header_of(batch).base_offset for batch in tail] == [7, 8]
        (first,) = each.container.log.read(each.open, Offset(0), limit=Offset(2), max_bytes=1)
        (header,) = [found for found, _ in iter_batches(first)]
        assert (header.leader_epoch, header.max_timestamp, header.append_time) == (0, T0 + 1, False)


async def test_what_is_here_already_is_dropped_and_what_overlaps_is_refused(broker: NodeParts) -> None:
    topic = await copied(broker)
    partition = await copy(broker, batch_at(5, b"a", b"b"))
    for batch in (batch_at(5, b"a", b"b"), batch_at(0, b"z"), batch_at(6, b"b")):
        assert not broker.home_check.copy_append(topic, partition, batch, header_of(batch), waiting=Committed())
    batch = batch_at(6, b"b", b"c")
    with pytest.raises(KafkaError, match="other batches than this copy") as refused:
        broker.home_check.copy_append(topic, partition, batch, header_of(batch), waiting=Committed())
    assert refused.value.code is Code.INVALID_RECORD
    assert partition.next_offset == 7


async def test_a_copy_knows_the_producers_and_tokens_of_its_home(broker: NodeParts) -> None:
    await copied(broker)
    await copy(
        broker,
        batch_at(0, b"a", b"b", producer=7, sequence=40),
        batch_at(9, b"c", producer=7, sequence=42),
        batch_at(20, b"d", producer=-99, sequence=3),
        batch_at(30, b"e", producer=8, sequence=0),
        batch_at(31, b"f", producer=8, sequence=9),  # as the home let it begin there
    )
    await set_home(broker, 1, broker.node.cluster_id)
    await broker.rolls.apply_home(await partition_of(broker), Home(1, broker.node.cluster_id))
    for partition in (await partition_of(broker), await reloaded(broker)):
        known = {producer: [batch[:3] for batch in each.batches] for producer, each in partition.producers.items()}
        assert known == {
            7: [(40, 41, 0), (42, 42, 9)],
            -99: [(3, 3, 20)],
            8: [(0, 0, 30), (9, 9, 31)],
        }


async def test_nothing_is_copied_while_the_partition_rolls_or_is_not_settled_or_without_room(
    broker: NodeParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await copied(broker)
    partition = await copy(broker, batch_at(0, b"a"))
    batch = batch_at(1, b"b")

    def refusal() -> Code:
        with pytest.raises((KafkaError, StorageFull)) as refused:
            broker.home_check.copy_append(topic, partition, batch, header_of(batch), waiting=Committed())
        assert partition.next_offset == 1
        return refused.value.code

    partition.rolling = True
    assert refusal() is Code.LEADER_NOT_AVAILABLE
    partition.rolling = False
    with monkeypatch.context() as full:
        full.setattr(type(partition.container), "has_room", lambda *_: False)
        assert refusal() is Code.KAFKA_STORAGE_ERROR
    await set_home(broker, 1, THERE)
    assert refusal() is Code.FENCED_LEADER_EPOCH
    await broker.rolls.apply_home(partition, Home(1, THERE))
    await copy(broker, batch)
    await set_home(broker, 2, broker.node.cluster_id)
    assert topic.home == Home(2, broker.node.cluster_id)
    await broker.rolls.apply_home(partition, Home(2, broker.node.cluster_id))
    late = batch_at(2, b"c")
    with pytest.raises(KafkaError, match="at home here") as at_home:
        broker.home_check.copy_append(topic, partition, late, header_of(late), waiting=Committed())
    assert at_home.value.code is Code.FENCED_LEADER_EPOCH


async def test_offsets_by_time_and_by_epoch_and_deletion_are_right_around_gaps(broker: NodeParts, ask: Any) -> None:
    await copied(broker)
    partition = await copy(broker, batch_at(10, b"a", b"b", time=T0), batch_at(50, b"c", time=T0 + 100))
    await broker.rolls.apply_home(partition, Home(0, THERE), 100)
    partition = await copy(broker, batch_at(120, b"d", time=T0 + 200))
    assert [(row.first, row.end) for row in partition.chain] == [(0, 51), (100, -1)]
    assert await read(broker, partition) == [(10, b"a"), (11, b"b"), (50, b"c"), (120, b"d")]
    for offset in (51, 99, 100, 119):
        assert await read(broker, partition, offset) == [(120, b"d")]

    async def by_time(timestamp: int) -> int:
        part = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp}
        fields = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": "c", "partitions": [part]}]}
        answer = await ask(ApiKey.LIST_OFFSETS, 7, fields)
        return int(answer.topics[0].partitions[0].offset)

    assert [await by_time(T0 + delta) for delta in (-5, 1, 2, 100, 101, 200, 201)] == [10, 11, 50, 50, 120, 120, -1]
    assert [await by_time(kind) for kind in (-1, -2, -3)] == [121, 0, 120]

    async def end_of(epoch: int) -> tuple[int, int]:
        part = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": epoch}
        fields = {"replica_id": -1, "topics": [{"topic": "c", "partitions": [part]}]}
        answer = (await ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, 3, fields)).topics[0].partitions[0]
        return answer.leader_epoch, answer.end_offset

    assert await end_of(partition.leader_epoch) == (partition.leader_epoch, 121)
    assert (await end_of(0))[1] == 120, "the next epoch's first record"

    async def delete(offset: int) -> tuple[int, int]:
        part = {"partition_index": 0, "offset": offset}
        fields = {"topics": [{"name": "c", "partitions": [part]}], "timeout_ms": 5000}
        answer = (await ask(ApiKey.DELETE_RECORDS, 2, fields)).topics[0].partitions[0]
        return answer.error_code, answer.low_watermark

    assert await delete(30) == (0, 30)
    assert await read(broker, partition, 30) == [(50, b"c"), (120, b"d")]
    assert await delete(60) == (0, 100), "nothing lies in the gap"
    assert [row.first for row in (await partition_of(broker)).chain] == [100]
    partition = await reloaded(broker)
    assert (partition.log_start, partition.next_offset) == (100, 121)
    assert await read(broker, partition, 100) == [(120, b"d")]


@pytest.mark.parametrize("others", [0, 1], ids=["alone", "beside another"])
async def test_a_producer_is_told_the_home_of_a_copy(broker: NodeParts, others: int) -> None:
    topic = await copied(broker)
    partition = await copy(broker, batch_at(0, b"a"))
    await broker.topics.resolve(["own"], create=True)
    beside = [("own", from_client())] * others
    broker.home_addresses.replace({THERE: "far:9092"})
    first, *rest = await produced(broker, ("c", from_client()), *beside)
    assert first.error == Code.POLICY_VIOLATION
    assert f"its home is cluster {THERE} (far:9092)" in (first.message or "")
    assert all(result.error == 0 for result in rest)

    own = Home(1, broker.node.cluster_id)
    await set_home(broker, *own, {0: [(*own, Offset(3))]})
    assert topic.home == own
    (first, *_) = await produced(broker, ("c", from_client()), *beside)
    assert (first.error, partition.next_offset) == (Code.LEADER_NOT_AVAILABLE, 1)
    await broker.rolls.apply_home(partition, own)
    (first, *_) = await produced(broker, ("c", from_client()), *beside)
    assert first.error == Code.LEADER_NOT_AVAILABLE
    assert "offsets 1 to 3" in (first.message or "")
    too_far = batch_at(2, b"c", b"d")
    with pytest.raises(KafkaError, match="at home here from 3 on"):
        broker.home_check.copy_append(topic, partition, too_far, header_of(too_far), waiting=Committed())
    await copy(broker, batch_at(1, b"b", b"c"))
    (first, *_) = await produced(broker, ("c", from_client()), *beside)
    assert (first.error, first.base_offset) == (0, 3)


async def test_partitions_are_added_at_home_only(broker: NodeParts, ask: Any) -> None:
    await copied(broker)
    for validate in (True, False):
        fields = {
            "topics": [{"name": "c", "count": 3, "assignments": None}],
            "timeout_ms": 5000,
            "validate_only": validate,
        }
        (result,) = (await ask(ApiKey.CREATE_PARTITIONS, 3, fields)).results
        assert result.error_code == Code.POLICY_VIOLATION
        assert THERE in result.error_message


async def test_a_topic_that_was_written_to_here_follows_another_home_from_where_they_part(
    broker: NodeParts, append: Callable[..., Awaitable[int]], ask: Any
) -> None:
    await broker.topics.resolve(["c"], create=True)
    for value in (b"a", b"b"):
        await append("c", value)
    topic, partition = await topic_of(broker), await partition_of(broker)
    await broker.rolls.roll(partition)
    for value in (b"c", b"d"):
        await append("c", value)
    old_epoch = partition.leader_epoch
    await set_home(broker, 1, THERE, {0: [(1, THERE, Offset(1))]}, topic.topic_id)
    (result,) = await produced(broker, ("c", from_client()))
    assert result.error == Code.POLICY_VIOLATION
    await broker.rolls.apply_home(partition, Home(1, THERE), 1)
    assert (partition.next_offset, partition.high_watermark, partition.home_start) == (1, 1, 1)
    assert partition.home == Home(1, THERE)
    assert partition.leader_epoch > old_epoch
    assert [(row.first, row.end) for row in partition.chain] == [(0, 1), (1, -1)]
    assert await read(broker, partition) == [(0, b"a")]
    part = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": old_epoch}
    fields = {"replica_id": -1, "topics": [{"topic": "c", "partitions": [part]}]}
    answer = (await ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, 3, fields)).topics[0].partitions[0]
    assert answer.end_offset == 1, "who read what was cut is told where it parts"
    await copy(broker, batch_at(1, b"B", b"C"))
    for each in (partition, await reloaded(broker)):
        assert await read(broker, each) == [(0, b"a"), (1, b"B"), (2, b"C")]
        assert (each.home, each.home_start) == (Home(1, THERE), 1)


async def test_a_copy_cut_to_nothing_begins_anew(broker: NodeParts) -> None:
    await copied(broker)
    partition = await copy(broker, batch_at(0, b"a", producer=7, sequence=0))
    await set_home(broker, 1, THERE)
    await broker.rolls.apply_home(partition, Home(1, THERE), 0)
    assert (partition.next_offset, len(partition.producers)) == (0, 0)
    for each in (partition, await reloaded(broker)):
        assert (each.next_offset, each.high_watermark, len(each.producers)) == (0, 0, 0)
    assert await read(broker, await copy(broker, batch_at(0, b"A"))) == [(0, b"A")]


async def test_a_copy_that_begins_behind_raises_its_log_start(broker: NodeParts) -> None:
    await copied(broker)
    partition = await partition_of(broker)
    await broker.rolls.apply_home(partition, Home(0, THERE), 1000)
    for each in (partition, await reloaded(broker)):
        assert (each.log_start, each.next_offset, each.high_watermark) == (1000, 1000, 1000)
    partition = await copy(broker, batch_at(1005, b"a"))
    assert await read(broker, partition, 1000) == [(1005, b"a")]


@pytest.fixture
async def restarted(tmp_path: Path) -> AsyncIterator[Callable[[], Awaitable[NodeParts]]]:
    running: list[Node] = []
    chosen = Options(
        data=tmp_path / "node-1",
        store=tmp_path / "cluster.sqlite",
        host="127.0.0.1",
        port=0,
        ready_file=None,
        settings=NodeSettings(chunk_bytes=1 << 20, disk_reserve=0, fsync=False),
    )

    async def start() -> NodeParts:
        while running:
            await running.pop().stop()
        node = Node(chosen)
        running.append(node)
        await node.start()
        return node.parts

    yield start
    while running:
        await running.pop().stop()


async def test_gaps_and_cuts_outlive_a_restart(restarted: Callable[[], Awaitable[NodeParts]]) -> None:
    broker = await restarted()
    await copied(broker)
    partition = await copy(broker, batch_at(3, b"a", producer=7, sequence=0), batch_at(9, b"b", producer=7, sequence=1))
    await set_home(broker, 1, THERE, {0: [(1, THERE, Offset(9))]})
    await broker.rolls.apply_home(partition, Home(1, THERE), 9)
    await copy(broker, batch_at(15, b"c"))
    broker = await restarted()
    partition = await partition_of(broker)
    assert (partition.next_offset, partition.high_watermark) == (16, 16)
    assert (partition.home, partition.home_start) == (Home(1, THERE), 9)
    assert (await topic_of(broker)).home == Home(1, THERE)
    ((producer, known),) = partition.producers.items()
    assert (producer, [batch.base_offset for batch in known.batches], known.torn) == (7, [3], True)
    assert await read(broker, partition) == [(3, b"a"), (15, b"c")]


async def test_a_fetch_in_a_gap_at_the_end_waits_and_goes_on_behind_it(broker: NodeParts) -> None:
    await copied(broker)
    await copy(broker, batch_at(3, b"a"), batch_at(9, b"b"))
    await set_home(broker, 1, THERE, {0: [(1, THERE, Offset(9))]})
    await broker.rolls.apply_home(await partition_of(broker), Home(1, THERE), 9)
    partition = await reloaded(broker)
    assert (await fetched(broker, 0))[-1] == (3, b"a")
    assert await fetched(broker, 5) == []
    waiting = asyncio.create_task(fetched(broker, 5, wait_ms=20_000))
    await asyncio.sleep(0)
    assert partition.watchers, "it waits instead of being answered at once, again and again"
    await copy(broker, batch_at(15, b"c"))
    assert await waiting == [(15, b"c")]
    assert await fetched(broker, 5) == [(15, b"c")]
    assert await fetched(broker, 3) == [(3, b"a")]


async def fetched(broker: NodeParts, offset: int, *, wait_ms: int = 0) -> list[tuple[int, bytes]]:
    """The result of a client's fetch from the copy."""
    future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    slot = SimpleNamespace(
        answer=lambda body: future.set_result(b"".join(map(bytes, body))),
        is_followed=False,
        throttle_ms=0,
        timed=None,
        failed=lambda code: None,
    )
    topics = [fetch_wire.FetchTopic("c", None, [fetch_wire.FetchPartition(0, -1, offset, -1, -1, 1 << 20)])]
    asked = fetch_wire.FetchRequest(wait_ms, 1, 1 << 20, 0, 0, -1, topics, [], "")
    request = memoryview(request_header(ApiKey.FETCH, 12, 1, "test") + fetch_wire.encode_request(12, asked))
    connection = Connection(broker.dispatcher)
    broker.fetch.handle(connection, read_request_header(request), request, slot)  # type: ignore[arg-type]
    async with asyncio.timeout(20):
        answer = fetch_wire.decode_response(memoryview(await future), 0, 12)
    return [
        (record.offset, bytes(record.value or b""))
        for batch in answer.topics[0].partitions[0].records
        for record in iter_records(memoryview(batch))
    ]


async def test_a_gap_that_was_cut_and_filled_again_is_none(broker: NodeParts) -> None:
    await copied(broker)
    partition = await copy(broker, batch_at(0, b"a", b"b", b"c", b"d"))
    partition.gap = (2, 4)  # as a fetch had set it
    assert (partition.ends_in_gap(2), partition.empty_from) == (True, 2)
    await set_home(broker, 1, THERE, {0: [(1, THERE, Offset(2))]})
    await broker.rolls.apply_home(partition, Home(1, THERE), 2)
    await copy(broker, batch_at(2, b"C", b"D"))
    assert (partition.ends_in_gap(2), partition.empty_from) == (False, 4)


async def test_a_repeat_of_what_is_here_is_told_where_it_is_whoever_is_home(broker: NodeParts) -> None:
    await broker.topics.resolve(["c"], create=True)
    topic = await topic_of(broker)
    first, second = (batch_at(0, b"a", producer=77, sequence=at) for at in (0, 1))
    (stored,) = await produced(broker, ("c", memoryview(bytearray(first))))
    assert (stored.error, stored.base_offset) == (0, 0)
    await set_home(broker, 1, THERE, None, topic.topic_id)  # the answer to the first one was lost
    for batch in (first, second):
        (result,) = await produced(broker, ("c", memoryview(bytearray(batch))))
        wanted = Code.LEADER_NOT_AVAILABLE if batch is first else Code.POLICY_VIOLATION
        assert result.error == wanted, "it is not decided yet what stays here"
    await broker.rolls.apply_home(await partition_of(broker), Home(1, THERE))
    (result,) = await produced(broker, ("c", memoryview(bytearray(first))))
    assert (result.error, result.base_offset) == (0, 0)
    (result,) = await produced(broker, ("c", memoryview(bytearray(second))))
    assert result.error == Code.POLICY_VIOLATION
