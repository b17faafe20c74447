"""Stored records that are read and counted, whichever node leads their container."""

from typing import Any

import pytest

from headrace.base.errors import Code, CorruptLog, KafkaError
from headrace.base.ids import ContainerId
from headrace.partitions.reads import local_reads
from headrace.store.records import NodeRecord
from headrace.wire.batch import iter_records
from kit.pair import Start, append, read, until


@pytest.mark.parametrize("replicas", [1, 2])
async def test_old_records_are_found_by_time_and_counted_wherever_they_lie(start: Start, replicas: int) -> None:
    pair = await start(replicas)
    partition = await pair.create("old")
    await pair.first.rolls.roll(partition, to=pair.led(pair.second).id)
    moved = await pair.partition(pair.second, "old")
    await append(moved, b"c")
    old = moved.chain[0]
    batch = await pair.second.remote_reads.find_time(old, 1, old.end)
    assert batch is not None
    assert [record.offset for record in iter_records(memoryview(batch))] == [0, 1]
    assert await pair.second.remote_reads.find_time(old, -1, old.end) == batch
    assert await pair.second.remote_reads.find_time(old, 1 << 60, old.end) is None
    for broker in (pair.first, pair.second):
        rows = await pair.chain(broker, "old")
        extents = await broker.remote_reads.extents(rows)
        assert [extents[row.id].end for row in rows] == [2, 3]
        assert all(extent.size > 0 for extent in extents.values())
        topic = await pair.topic(broker, "old")
        assert await broker.partition_states.ends([(topic.topic_id, 0)]) == {(topic.topic_id, 0): 3}


async def test_sizes_of_a_node_that_is_away_are_left_out_and_its_records_are_not_available(start: Start) -> None:
    pair = await start(1)
    partition = await pair.create("away")
    await pair.first.rolls.roll(partition, to=pair.led(pair.second).id)
    moved = await pair.partition(pair.second, "away")
    await append(moved, b"c")
    await pair.nodes[0]._peer_server.close()
    rows = await pair.chain(pair.second, "away")
    extents = await pair.second.remote_reads.extents(rows)
    assert set(extents) == {rows[-1].id}
    answer = await pair.second.fetch_planner.read_all(
        [(("", 0), pair.second.fetch_planner.locate(moved, 0), 1 << 20)], 1 << 20
    )
    refused = answer[("", 0)]
    assert isinstance(refused, KafkaError)
    assert refused.code == Code.REPLICA_NOT_AVAILABLE
    assert await read(pair.second, moved, 2) == [(2, b"c")]


async def test_sizes_of_a_damaged_container_are_left_out_and_the_damage_is_reported(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = await start(1)
    partition = await pair.create("damaged")
    await pair.first.rolls.roll(partition, to=pair.led(pair.second).id)
    await append(await pair.partition(pair.second, "damaged"), b"c")
    rows = await pair.chain(pair.first, "damaged")
    here, there = pair.led(pair.first).id, pair.led(pair.second).id
    assert [row.container for row in rows] == [here, there]
    error = CorruptLog("a bad footer")
    reported: list[tuple[Exception, ContainerId]] = []

    measure = local_reads.extent

    def fails_here(replica: local_reads.Replica, *args: Any, **options: Any) -> local_reads.Extent:
        if replica.container == here:
            raise error
        return measure(replica, *args, **options)

    reads = pair.first.remote_reads
    monkeypatch.setattr(reads, "_read_failed", lambda *what: reported.append(what))
    with monkeypatch.context() as damaged:
        damaged.setattr(local_reads, "extent", fails_here)
        assert set(await reads.extents(rows)) == {rows[1].id}
    assert reported == [(error, here)]
    assert set(await reads.extents(rows)) == {row.id for row in rows}


async def test_old_records_are_read_from_the_own_replica_without_asking_anybody(start: Start) -> None:
    pair = await start(2)
    partition = await pair.create("here")
    old = partition.chain[-1]
    await pair.first.rolls.roll(partition, to=pair.led(pair.second).id)
    moved = await pair.partition(pair.second, "here")
    replica = pair.second.cluster.replicas.replica(old.container)
    assert replica is not None
    await until(lambda: replica.committed >= partition.container.committed)
    await pair.nodes[0]._peer_server.close()
    assert await read(pair.second, moved) == [(0, b"a"), (1, b"b")]
    batch = await pair.second.remote_reads.find_time(moved.chain[0], 1, 2)
    assert batch is not None


async def test_what_is_damaged_on_its_way_from_another_node_is_asked_for_again(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = await start(1)
    partition = await pair.create("flip")
    await pair.first.rolls.roll(partition, to=pair.led(pair.second).id)
    moved = await pair.partition(pair.second, "flip")
    old = moved.chain[0]
    ask = pair.second.cluster.ask
    damaged = 0

    async def ask_noisily(node: NodeRecord, message: Any, **options: Any) -> tuple[Any, memoryview]:
        nonlocal damaged
        answer, payload = await ask(node, message, **options)
        if damaged < 2:
            damaged += 1
            changed = bytearray(payload)
            changed[0 if damaged == 1 else -1] ^= 1  # the base offset, which no batch's checksum covers
            payload = memoryview(changed)
        return answer, payload

    monkeypatch.setattr(pair.second.cluster, "ask", ask_noisily)
    for _ in range(2):
        with pytest.raises(KafkaError, match="arrived damaged") as refused:
            await pair.second.remote_reads.find_time(old, 1, old.end)
        assert refused.value.code == Code.REPLICA_NOT_AVAILABLE
    assert damaged == 2
    batch = await pair.second.remote_reads.find_time(old, 1, old.end)
    assert batch is not None
    assert await read(pair.second, moved) == [(0, b"a"), (1, b"b")]
    damaged = 0
    with pytest.raises(KafkaError, match="arrived damaged"):
        await pair.second.remote_reads.read(old, offset=0, limit=2, max_bytes=1 << 20)
