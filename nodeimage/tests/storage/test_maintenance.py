"""Followers free disk space on their own, without losing what only they have."""

import asyncio
import contextlib
import uuid

import pytest

from headrace.base.errors import Code, KafkaError
from headrace.base.ids import ContainerId, Offset
from headrace.catalog.chains import LogStart, SetLogStart
from headrace.catalog.topics import AlterTopic
from headrace.container.local_replica import LocalReplica
from headrace.log.frames import FrameType
from headrace.node.parts import NodeParts
from headrace.partitions.partition import Partition
from headrace.storage import maintenance
from kit.pair import Pair, Start, append, read, until


async def filled(pair: Pair, name: str, *, mib: int) -> Partition:
    """A partition of the first node with the given number of chunks; its first batches are from an idempotent
    producer."""
    partition = await pair.create(name)
    for sequence in range(3):
        await append(partition, b"from a producer", producer=77, sequence=sequence)
    for _ in range(mib * 10):
        await append(partition, bytes(110_000))
    return partition


def replica(broker: NodeParts, container: ContainerId) -> LocalReplica:
    found = broker.cluster.replicas.replica(container)
    assert found is not None
    return found


def in_sync(broker: NodeParts, follower: LocalReplica, container: ContainerId) -> bool:
    record = broker.cluster.record(container)
    return record is not None and uuid.UUID(follower.incarnation) in {each for _, each in record.in_sync}


async def same(pair: Pair, partition: Partition) -> None:
    """Check that both nodes have the same records and state."""
    leader, follower = partition.container, replica(pair.second, partition.container.id)
    leader.kick()
    await until(lambda: follower.committed == leader.committed == leader.log.end)
    await pair.second.catalog.wait_applied(pair.first.catalog.applied)


async def expire(pair: Pair, partition: Partition, offset: int) -> None:
    await pair.first.catalog.submit(SetLogStart(items=[LogStart(partition.topic_id, 0, Offset(offset))]))
    await same(pair, partition)


async def test_a_follower_closes_chunks_and_gives_back_what_is_dead_on_its_own(start: Start) -> None:
    pair = await start(2)
    partition = await filled(pair, "space", mib=4)
    await same(pair, partition)
    follower = replica(pair.second, partition.container.id)
    await pair.second.maintenance.pass_now()
    assert len(follower.log.closed_chunks()) >= 3
    await expire(pair, partition, partition.high_watermark - 1)
    await pair.first.maintenance.pass_now()
    await same(pair, partition)
    await pair.second.maintenance.pass_now()
    assert pair.second.maintenance.freed_bytes > 2 << 20
    assert len(follower.log.closed_chunks()) <= 1
    assert len(await read(pair.first, partition, partition.log_start)) == 1


async def test_a_follower_ends_its_open_chunk_early_where_it_is_dead(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.storage.chunk_closing.WORTH_CLOSING", 100_000)
    pair = await start(2)
    partition = await pair.create("early")
    for _ in range(4):
        await append(partition, bytes(110_000))
    await same(pair, partition)
    follower = replica(pair.second, partition.container.id)
    (opened,) = follower.log.chunks()
    assert not opened.body.closed
    await expire(pair, partition, partition.high_watermark)
    await until(lambda: opened not in follower.log.chunks())
    assert opened.body.closed
    await append(partition, b"next")
    await same(pair, partition)


async def test_a_follower_keeps_a_chunk_until_its_leader_has_carried_the_producers_on(start: Start) -> None:
    pair = await start(2)
    partition = await filled(pair, "producers", mib=3)
    await same(pair, partition)
    follower = replica(pair.second, partition.container.id)
    await pair.second.maintenance.pass_now()
    first = follower.log.closed_chunks()[0]
    task = pair.first.maintenance._task
    assert task is not None
    task.cancel()  # the leader is slow
    await asyncio.gather(task, return_exceptions=True)
    await expire(pair, partition, partition.high_watermark - 1)
    await pair.second.maintenance.pass_now()
    assert first in follower.log.closed_chunks(), "the producer's state lies nowhere else on this node"
    await pair.first.maintenance.pass_now()
    await same(pair, partition)
    controls = await asyncio.to_thread(lambda: [each.type for each in follower.log.controls_of(partition.open)])
    assert controls.count(FrameType.PRODUCERS) >= 1
    pair.second.maintenance._chunk_gc._postponed = dict.fromkeys(pair.second.maintenance._chunk_gc._postponed, 0.0)
    await pair.second.maintenance.pass_now()
    assert first not in follower.log.closed_chunks()


async def test_a_producer_is_known_to_the_next_leader_whatever_was_given_back(start: Start) -> None:
    pair = await start(2)
    partition = await filled(pair, "promoted", mib=3)
    await expire(pair, partition, partition.high_watermark - 1)
    for _ in range(2):
        for broker in (pair.first, pair.second):
            await broker.maintenance.pass_now()
        await same(pair, partition)
        pair.second.maintenance._chunk_gc._postponed = dict.fromkeys(pair.second.maintenance._chunk_gc._postponed, 0.0)
    container = partition.container.id
    await pair.hand_over(container, pair.second)
    promoted = await pair.partition(pair.second, "promoted")
    (known,) = [producer for producer_id, producer in promoted.producers.items() if producer_id == 77]
    assert [batch.base_sequence for batch in known.batches] == [0, 1, 2]
    assert promoted.high_watermark == partition.high_watermark
    await append(promoted, b"next", producer=77, sequence=3)


async def test_a_size_limit_counts_what_other_nodes_hold(start: Start) -> None:
    pair = await start(1)
    partition = await filled(pair, "sized", mib=3)
    here = partition.high_watermark
    await pair.first.rolls.roll(partition, to=pair.led(pair.second).id)
    moved = await pair.partition(pair.second, "sized")
    for _ in range(30):
        await append(moved, bytes(110_000))
    topic = await pair.topic(pair.first, "sized")
    await pair.first.catalog.submit(
        AlterTopic(topic_id=topic.topic_id, set={"retention.bytes": str(4 << 20)}, remove=[])
    )
    pair.first.maintenance._expiry._elsewhere_due = 0.0
    for _ in range(3):
        pair.first.containers[partition.container.id].log.close_open_chunk()
        pair.first.containers[partition.container.id].kick()
        await pair.first.maintenance.pass_now()
    starts = await pair.first.catalog.query(lambda reader: reader.chains.log_starts([topic.row.number]))
    assert 0 < starts[topic.row.number, 0] <= here


async def test_scrub_reads_the_replicas_that_follow_too(start: Start) -> None:
    pair = await start(2)
    partition = await filled(pair, "scrubbed", mib=2)
    await same(pair, partition)
    await pair.second.maintenance.pass_now()
    follower = replica(pair.second, partition.container.id)
    chunk = follower.log.closed_chunks()[0]

    def damage() -> None:
        with chunk.path.open("r+b") as file:
            file.seek(500_000)
            file.write(b"damage")

    await asyncio.to_thread(damage)
    pair.second.scrub.start()
    await until(lambda: pair.second.scrub.status()["state"] == "ended")
    status = pair.second.scrub.status()
    assert status["containers_done"] == 3
    (finding,) = status["findings"]  # type: ignore[misc]
    assert finding.startswith(f"container {partition.container.id}:")


@pytest.mark.parametrize("lost", ["all", "the end"])
async def test_no_offset_is_given_again_where_records_have_expired_and_the_next_leader_is_behind_the_catalog(
    start: Start, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    monkeypatch.setattr("headrace.storage.chunk_closing.WORTH_CLOSING", 100_000)
    monkeypatch.setattr("headrace.partitions.partitions.SERVES_S", 0.5)
    monkeypatch.setattr("headrace.container.follower_feed.KEPT_BYTES", 0)  # fetched records come from the files
    pair = await start(2)
    kept = await pair.create("kept")
    partition = await pair.create("again")
    for _ in range(12):
        await append(partition, bytes(110_000))
    await append(kept, b"a record that stays")
    await same(pair, partition)
    container = partition.container
    topic = await pair.topic(pair.second, "again")
    follower = replica(pair.second, container.id)
    async with pair.second.catalog._applier._turn:  # commits from now on are applied there later
        async with pair.follows_nothing(container.id) if lost == "the end" else contextlib.nullcontext():
            for _ in range(12):
                await append(partition, bytes(110_000))
            end = partition.high_watermark
            await pair.first.catalog.submit(SetLogStart(items=[LogStart(partition.topic_id, 0, end)]))
            await until(lambda: container.log.load(partition.open).next_offset is None)
            await until(lambda: pair.first.maintenance.freed_bytes > 2 << 20)
        incarnation_before = follower.incarnation
        if lost == "all":
            pair.second.cluster.replicas.damaged(container.id)  # refetched from what the leader still has
            await until(lambda: follower.incarnation != incarnation_before)
        await until(lambda: in_sync(pair.first, follower, container.id))
        assert (follower.log.load(partition.open).next_offset or 0) < end
        await pair.hand_over(container.id, pair.second)
        with pytest.raises(KafkaError) as behind:
            await pair.second.partitions.leader(topic, 0)
        assert behind.value.code == Code.LEADER_NOT_AVAILABLE
    promoted = await pair.partition(pair.second, "again")
    assert (promoted.next_offset, promoted.log_start) == (end, end)
    await append(promoted, b"next")
    assert await read(pair.second, promoted, end) == [(end, b"next")]


async def test_who_has_followed_without_a_gap_need_not_wait_for_the_catalog(start: Start) -> None:
    pair = await start(2)
    partition = await pair.create("certain")
    await pair.create("other")
    await same(pair, partition)
    topic, other = [await pair.topic(pair.second, name) for name in ("certain", "other")]
    async with pair.second.catalog._applier._turn:
        await pair.hand_over(partition.container.id, pair.second)
        promoted = await pair.second.partitions.leader(topic, 0)
        # Except rows that were replaced since, as when a catalog is fetched again: they may be older than before.
        pair.second.partitions.rows_replaced()
        with pytest.raises(KafkaError) as behind:
            await pair.second.partitions.leader(other, 0)
        assert behind.value.code == Code.LEADER_NOT_AVAILABLE
    assert promoted.high_watermark == 2
    assert (await pair.partition(pair.second, "other")).high_watermark == 2


async def test_with_many_replicas_rounds_that_nothing_asks_for_come_less_often(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "EVERY_S", 0.02)
    pair = await start(2)
    maintains = pair.first.maintenance
    steps: list[str] = []

    async def step(*each: tuple[str, object]) -> None:
        steps.append("round" if len(each) > 1 else each[0][0])

    monkeypatch.setattr(maintains, "_steps", step)
    count = pair.first.cluster.replicas.count
    monkeypatch.setattr(maintenance, "REPLICAS_A_ROUND", count / 3)  # so every third time
    maintains._wake.set()
    await until(lambda: steps.count("round") >= 2)
    steps.clear()
    await until(lambda: steps.count("round") >= 3)
    between = " ".join(steps).split("round")[1:3]
    assert between == [" check volume limits check volume limits "] * 2
    monkeypatch.setattr(maintenance, "REPLICAS_A_ROUND", 0.001)
    await until(lambda: steps[-10:] == ["check volume limits"] * 10)
    maintains._wake.set()
    await until(lambda: steps[-1:] == ["round"] or "round" in steps[-5:])
