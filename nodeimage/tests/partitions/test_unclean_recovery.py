"""Containers that an operator let continue with less than was acknowledged (invariant 15): no client gets stuck or gets
the records of others, and damage does not count as a gap."""

import asyncio
import time
from typing import Any

import msgspec
import pytest
from confluent_kafka import Consumer, Producer

from headrace.base.errors import Code, CorruptLog, KafkaError
from headrace.base.ids import ContainerId, Home, LeaderEpoch, Millis, Offset
from headrace.catalog.chains import RollIntent, RollTarget
from headrace.catalog.committed_offsets import CommitOffsets, CommittedOffset
from headrace.catalog.homes import HomeChange, SetHome
from headrace.catalog.rows import OPEN, SEALED, PartitionletRow
from headrace.container.leader import Leader
from headrace.kafka import list_offsets
from headrace.log.frames import FrameType
from headrace.node.parts import NodeParts
from headrace.partitions.partition import Partition
from headrace.partitions.reads import local_reads
from headrace.partitions.rolls.frames import Open
from kit.asking import ask, values
from kit.pair import Pair, Start, append, read, until

Shape = list[tuple[int, int, int]]


async def fetched(broker: NodeParts, name: str, offset: int) -> list[bytes | None]:
    """The records that a consumer gets when it fetches until there are some."""
    async with asyncio.timeout(10):
        while True:
            found = values(await ask(broker, {name: offset}, wait_ms=100).response())
            if found:
                return found
            await asyncio.sleep(0.02)


async def error_at(broker: NodeParts, name: str, offset: int) -> int:
    ((part,),) = [topic.partitions for topic in (await ask(broker, {name: offset}).response()).topics]
    return part.error


def shape(rows: list[PartitionletRow]) -> Shape:
    return [(row.state, row.first, row.end) for row in rows]


async def chain_is(pair: Pair, broker: NodeParts, name: str, wanted: Shape) -> None:
    async with asyncio.timeout(10):
        rows = await pair.chain(broker, name)
        while shape(rows) != wanted:
            await asyncio.sleep(0.02)
            rows = await pair.chain(broker, name)
        topic = await pair.topic(broker, name)
        partition = topic.partitions.get(0)
        while partition is not None and partition.rolling:  # the partition gets the new chain when its roll is over
            await asyncio.sleep(0.02)
            partition = topic.partitions.get(0)
    assert partition is None or list(partition.chain) == rows


def next_batch(partition: Partition, *, sequence: int) -> None:
    """Produce the next batch of producer 77; raises if it is refused."""
    refused = partition.producers.check(producer_id=77, epoch=0, base_sequence=sequence, records=1, timestamp=None)
    assert refused is None, "it is taken for a repeat"


async def rolled_with_its_end_lost(pair: Pair, name: str) -> Partition:
    """A rolled partition that lost offsets 2 and 3 below its seal at 4; the second node leads both containers."""
    partition = await pair.create(name)
    async with pair.lagging(partition.container.id):
        await append(partition, b"c", b"d")
        await pair.first.rolls.roll(partition, to=pair.led(pair.second).id)
        await pair.partition(pair.second, name)
    return await pair.partition(pair.second, name)


# --- a container of records


async def test_a_consumer_goes_on_behind_the_lost_end_of_a_sealed_partitionlet(start: Start) -> None:
    pair = await start(2)
    moved = await rolled_with_its_end_lost(pair, "sealed")
    await append(moved, b"e")
    assert await fetched(pair.second, "sealed", 0) == [b"a", b"b"]
    for lost in (2, 3, 4):
        assert await fetched(pair.second, "sealed", lost) == [b"e"]
    await chain_is(pair, pair.second, "sealed", [(SEALED, 0, 2), (OPEN, 4, -1)])
    assert await read(pair.second, moved) == [(0, b"a"), (1, b"b"), (4, b"e")]
    far = int(time.time() * 1000)
    offset, _, _ = await pair.second.list_offsets._find(moved, far - 60_000)
    assert offset == 0
    newest, _, _ = await pair.second.list_offsets._find(moved, -3)
    assert newest in (0, 4)
    assert list_offsets._end_of_epoch(moved, moved.leader_epoch) == (moved.leader_epoch, 5)


async def test_a_consumer_in_a_gap_at_the_end_waits_for_the_next_record(start: Start) -> None:
    """Rather than fetch again and again."""
    pair = await start(2)
    moved = await rolled_with_its_end_lost(pair, "waits")
    await chain_is(pair, pair.second, "waits", [(SEALED, 0, 2), (OPEN, 4, -1)])
    waiting = ask(pair.second, {"waits": 2}, wait_ms=15_000)
    await asyncio.sleep(0.3)
    assert not waiting.future.done()
    await append(moved, b"e")
    assert values(await waiting.response()) == [b"e"]


async def test_a_partitionlet_of_which_nothing_is_left_leaves_the_chain_and_the_log_starts_behind_it(
    start: Start,
) -> None:
    pair = await start(2)
    async with pair.lagging(pair.led(pair.first).id):
        partition = await pair.create("nothing")
        await pair.first.rolls.roll(partition, to=pair.led(pair.second).id)
        moved = await pair.partition(pair.second, "nothing")
        await append(moved, b"c")
    await chain_is(pair, pair.second, "nothing", [(OPEN, 2, -1)])
    await until(lambda: moved.log_start == 2)  # the catalog has it already; the partition is updated one step later
    assert await error_at(pair.second, "nothing", 0) == Code.OFFSET_OUT_OF_RANGE
    assert (await pair.second.list_offsets._find(moved, list_offsets.EARLIEST))[0] == 2
    assert await fetched(pair.second, "nothing", 2) == [b"c"]


async def test_damage_is_not_taken_for_a_gap(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = []

    def damaged(*_: object) -> Offset:
        looked.append(True)
        raise CorruptLog("a checksum does not match")

    monkeypatch.setattr("headrace.partitions.unclean_recovery.stored_end", damaged)
    pair = await start(2)
    moved = await rolled_with_its_end_lost(pair, "damaged")
    await append(moved, b"e")
    await until(lambda: len(looked) > 1)
    assert shape(await pair.chain(pair.second, "damaged")) == [(SEALED, 0, 4), (OPEN, 4, -1)]
    assert values(await ask(pair.second, {"damaged": 2}).response()) == []


async def test_batches_beyond_a_sealed_end_do_not_count(start: Start) -> None:
    """Batches of another leader that were never acknowledged."""
    pair = await start(1)
    partition = await pair.create("beyond")
    await append(partition, b"c", b"d")
    (row,) = partition.chain
    ends = [
        await asyncio.to_thread(local_reads.stored_end, partition.container.log, row._replace(end=Offset(end)))
        for end in range(6)
    ]
    assert ends == [0, 0, 2, 2, 4, 4]


async def test_an_open_partitionlet_ends_where_its_log_does(start: Start) -> None:
    pair = await start(2)
    partition = await pair.create("open")
    async with pair.lagging(partition.container.id):
        await append(partition, b"c", b"d")
    there = await pair.partition(pair.second, "open")
    assert there.high_watermark == 2
    assert there.leader_epoch > partition.leader_epoch
    assert list_offsets._end_of_epoch(there, partition.leader_epoch) == (partition.leader_epoch, 2)
    assert await error_at(pair.second, "open", 3) == Code.OFFSET_OUT_OF_RANGE
    await append(there, b"f")
    assert await read(pair.second, there) == [(0, b"a"), (1, b"b"), (2, b"f")]
    assert list_offsets._end_of_epoch(there, partition.leader_epoch) == (partition.leader_epoch, 2)


async def test_a_partitionlet_whose_open_frame_was_lost_is_empty_and_takes_records(start: Start) -> None:
    pair = await start(2)
    partition = await pair.create("frame")
    await pair.first.rolls.roll(partition, to=pair.led(pair.second).id)
    back = await pair.partition(pair.second, "frame")
    to = pair.led(pair.first).id
    async with pair.lagging(to):
        await pair.second.rolls.roll(back, to=to)
        here = await pair.partition(pair.first, "frame")
        await append(here, b"d")
    there = await pair.partition(pair.second, "frame")
    assert (there.chain[-1].first, there.high_watermark) == (2, 2)
    assert there.leader_epoch > here.leader_epoch
    await append(there, b"f")
    assert await read(pair.second, there) == [(0, b"a"), (1, b"b"), (2, b"f")]
    row = await pair.second.rolls.roll(there)
    assert row.first == 3


async def test_a_producer_goes_on_whose_newest_batches_were_lost(start: Start) -> None:
    """librdkafka treats a refusal of its next sequence as a fatal error."""
    pair = await start(2)
    partition = await pair.create("producer")
    await append(partition, b"c", producer=77, sequence=0)
    async with pair.lagging(partition.container.id):
        await append(partition, b"d", producer=77, sequence=1)
    there = await pair.partition(pair.second, "producer")
    next_batch(there, sequence=2)
    repeat = there.producers.check(producer_id=77, epoch=0, base_sequence=0, records=1, timestamp=None)
    assert repeat is not None, "what is left is known still"
    await pair.second.rolls.roll(there, to=pair.led(pair.second).id)
    there = await pair.partition(pair.second, "producer")
    next_batch(there, sequence=2)
    await append(there, b"e", producer=77, sequence=2)
    with pytest.raises(KafkaError) as refused:
        next_batch(there, sequence=4)
    assert refused.value.code == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    (await pair.topic(pair.second, "producer")).partitions.clear()
    again = await pair.partition(pair.second, "producer")
    with pytest.raises(KafkaError):
        next_batch(again, sequence=4)


async def test_nothing_is_appended_behind_a_lost_seal_by_a_node_whose_catalog_is_behind(start: Start) -> None:
    pair = await start(2)
    partition = await pair.create("behind")
    second = pair.second
    topic = await pair.topic(second, "behind")
    async with pair.lagging(partition.container.id):
        await append(partition, b"c", b"d")
        held = second.catalog._applier._turn
        await held.acquire()
        row = await pair.first.rolls.roll(partition, to=pair.led(second).id)
    loading = asyncio.ensure_future(second.partitions.leader(topic, 0))
    try:
        await asyncio.sleep(0.5)
        assert not loading.done(), loading
    finally:
        held.release()
    assert (await loading).open == row.id
    moved = await pair.partition(second, "behind")
    await append(moved, b"e")
    assert await fetched(second, "behind", 2) == [b"e"]


async def test_a_roll_whose_seal_was_lost_begins_its_target_where_it_ends_now(start: Start) -> None:
    pair = await start(2)
    partition = await pair.create("intended")
    await append(partition, b"c", producer=77, sequence=0)
    target = pair.led(pair.second)
    submit = pair.first.catalog.submit
    opened = asyncio.Event()

    async def submitted(command: Any, **more: Any) -> Any:
        if type(command).__name__ == "RollDone":
            opened.set()
            await asyncio.Event().wait()
        return await submit(command, **more)

    pair.first.catalog.submit = submitted  # type: ignore[method-assign]
    async with pair.lagging(partition.container.id):
        await append(partition, b"d", producer=77, sequence=1)
        rolling = asyncio.ensure_future(pair.first.rolls.roll(partition, to=target.id))
        await opened.wait()
        (intended,) = await pair.first.catalog.query(lambda reader: reader.chains.intended())
    rolling.cancel()
    pair.first.catalog.submit = submit  # type: ignore[method-assign]
    moved = await pair.partition(pair.second, "intended")
    async with asyncio.timeout(10):
        while moved.home != Home(1, pair.first.node.cluster_id):  # it rolls once more, as its home is renewed
            moved = await pair.partition(pair.second, "intended")
            await asyncio.sleep(0.005)
    await chain_is(pair, pair.second, "intended", [(SEALED, 0, 3), (OPEN, 3, -1)])
    assert [known.batches[-1].last_sequence for _, known in moved.producers.items()] == [0]
    next_batch(moved, sequence=2)
    frames = await asyncio.to_thread(lambda: list(target.log.controls_of(intended.id)))
    opens = [each for each in frames if each.type == FrameType.OPEN]  # without the seal of the second roll
    payloads = [msgspec.msgpack.decode(each.payload, type=list[Open])[0] for each in opens]
    assert [each.first for each in payloads] == [4, 3]
    await append(moved, b"e", producer=77, sequence=2)
    assert await read(pair.second, moved) == [(0, b"a"), (1, b"b"), (2, b"c"), (3, b"e")]


async def test_clients_go_on_when_what_they_wrote_and_committed_was_lost(start: Start) -> None:
    """With librdkafka's idempotent producer, and a group whose committed offset lies above the end."""
    pair = await start(2)
    partition = await pair.create("clients")
    await pair.second.catalog.wait_applied(pair.first.catalog.applied)
    common = {"bootstrap.servers": ",".join(f"127.0.0.1:{broker.node.port}" for broker in (pair.first, pair.second))}
    producer = await asyncio.to_thread(Producer, {**common, "enable.idempotence": True, "linger.ms": 0})

    def send(*values: bytes) -> None:
        for value in values:
            producer.produce("clients", value, partition=0)
            assert producer.flush(20) == 0

    def consume(until_value: bytes) -> list[bytes | None]:
        consumer = Consumer({**common, "group.id": "g", "auto.offset.reset": "earliest", "enable.auto.commit": False})
        consumer.subscribe(["clients"])
        got: list[bytes | None] = []
        deadline = time.monotonic() + 20
        while until_value not in got and time.monotonic() < deadline:
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                got.append(message.value())
        consumer.commit(asynchronous=False)
        consumer.close()
        return got

    await asyncio.to_thread(send, b"c", b"d")
    async with pair.lagging(partition.container.id):
        await asyncio.to_thread(send, b"lost", b"too")
        assert await asyncio.to_thread(consume, b"too") == [b"a", b"b", b"c", b"d", b"lost", b"too"]
    await asyncio.to_thread(send, b"e")
    assert await asyncio.to_thread(consume, b"e") == [b"e"], "it goes on where what it had read was lost"


async def test_a_home_that_may_have_lost_records_is_taken_anew_once(start: Start) -> None:
    """From the end on, the records written here are another history than the records of copies in other clusters."""
    pair = await start(2)
    partition = await pair.create("lost")
    own = pair.first.node.cluster_id
    foreign = await pair.create("copy")
    home = Home(1, "elsewhere")
    await pair.first.catalog.submit(SetHome([HomeChange(foreign.topic_id, *home)]))
    whole = await pair.create("whole")
    await pair.first.rolls.roll(whole, to=pair.led(pair.second).id)
    async with pair.lagging(partition.container.id):
        await append(partition, b"c", b"d")
        committed_offset = CommittedOffset(partition.topic_id, 0, Offset(4), LeaderEpoch(-1), "")
        await pair.first.catalog.submit(CommitOffsets("g", -1, "", [committed_offset], Millis(1)))

    async def homes(broker: NodeParts) -> list[Home | None]:
        rows = [await pair.topic(broker, name) for name in ("lost", "copy", "whole")]
        return [each.row.home for each in rows]

    moved = await pair.partition(pair.second, "lost")
    await until(lambda: moved.home == Home(1, own))
    assert await homes(pair.second) == [Home(1, own), home, None]
    moved = await pair.partition(pair.second, "lost")
    assert moved.home_start == 2
    (committed_offset_row,) = await pair.second.catalog.query(lambda reader: reader.groups.committed_offsets("g"))
    assert committed_offset_row.offset == 2, "the group has not read what comes there now"
    await append(moved, b"e")
    assert await read(pair.second, moved) == [(0, b"a"), (1, b"b"), (2, b"e")]
    await chain_is(pair, pair.second, "lost", [(SEALED, 0, 2), (OPEN, 2, -1)])
    for broker in (pair.first, pair.second):  # the next leader checks again
        await until(lambda: all(len(record.in_sync) == 2 for record in pair.first.cluster.open_data()))
        await pair.hand_over(partition.container.id, broker)
        led = broker.containers[partition.container.id]
        await broker.unclean._repair(led)
        assert await homes(broker) == [Home(1, own), home, None]


# --- the catalog


async def all_at_the_catalogs_leader(pair: Pair) -> tuple[NodeParts, list[Leader]]:
    """Let one node lead all containers, so that the other one lags behind in the catalog only."""
    catalog = pair.first.maintenance.catalog_id
    leader, other = sorted((pair.first, pair.second), key=lambda broker: catalog not in broker.containers)
    for container in list(other.containers):
        await until(lambda container=container: _is_whole(leader, container))  # type: ignore[misc]
        await pair.hand_over(container, leader)
    return leader, [container for id_, container in sorted(leader.containers.items()) if id_ != catalog]


def _is_whole(broker: NodeParts, container: ContainerId) -> bool:
    record = broker.cluster.record(container)
    return record is not None and len(record.in_sync) == 2


def place(broker: NodeParts, container: Leader) -> None:
    """Have new partitionlets placed in that container."""
    broker.placement.place = lambda count, *_, **__: [(container.id, container.epoch)] * count  # type: ignore[method-assign]


async def made(pair: Pair, broker: NodeParts, name: str, container: Leader) -> Partition:
    place(broker, container)
    await broker.topics.resolve([name], create=True)
    partition = await pair.partition(broker, name)
    assert partition.container is container
    return partition


async def intend(broker: NodeParts, partition: Partition, to: Leader) -> None:
    """Intend a roll without carrying it out."""
    for callback in [each for each in broker.catalog._callbacks if each == broker.rolls.applied]:
        broker.catalog._callbacks.remove(callback)
    target = RollTarget(partition.topic_id, 0, partition.open, to.id)
    await broker.catalog.submit(RollIntent(items=[target], now=Millis(1)))


async def test_a_roll_that_only_the_catalog_lost_is_recorded_again(start: Start) -> None:
    pair = await start(2)
    leader, (one, two) = await all_at_the_catalogs_leader(pair)
    partition = await made(pair, leader, "done", one)
    await append(partition, b"a")
    await intend(leader, partition, two)
    async with pair.lagging(leader.maintenance.catalog_id):
        await leader.rolls.roll(partition, to=two.id)
        moved = await pair.partition(leader, "done")
        await append(moved, b"b")
    assert shape(await pair.chain(leader, "done"))[0] == (OPEN, 0, -1)
    again = await pair.partition(leader, "done")
    assert again.leader_epoch == moved.leader_epoch
    assert await read(leader, again) == [(0, b"a"), (1, b"b")]


async def test_of_several_rolls_that_the_catalog_lost_what_it_can_find_is_recorded_again(start: Start) -> None:
    """The intent of the second roll is lost, and with it the location of its records."""
    pair = await start(2)
    leader, (one, two) = await all_at_the_catalogs_leader(pair)
    partition = await made(pair, leader, "several", one)
    await append(partition, b"a")
    await intend(leader, partition, two)
    async with pair.lagging(leader.maintenance.catalog_id):
        await leader.rolls.roll(partition, to=two.id)
        moved = await pair.partition(leader, "several")
        await append(moved, b"b")
        await leader.rolls.roll(moved, to=one.id)
        newest = await pair.partition(leader, "several")
        await append(newest, b"lost")
    async with asyncio.timeout(20):
        again = await pair.partition(leader, "several")
    assert again.open != newest.open
    assert again.leader_epoch > newest.leader_epoch
    assert again.high_watermark == 2
    await append(again, b"c")
    assert await read(leader, again) == [(0, b"a"), (1, b"b"), (2, b"c")]


async def test_a_partition_goes_on_whose_roll_the_catalog_lost_with_its_intent(start: Start) -> None:
    pair = await start(2)
    leader, (one, two) = await all_at_the_catalogs_leader(pair)
    partition = await made(pair, leader, "all", one)
    await append(partition, b"a")
    async with pair.lagging(leader.maintenance.catalog_id):
        await leader.rolls.roll(partition, to=two.id)
        moved = await pair.partition(leader, "all")
        await append(moved, b"lost")
    place(leader, two)
    again = await pair.partition(leader, "all")
    assert again.container is two
    assert again.open != moved.open
    assert again.leader_epoch > moved.leader_epoch, "clients hear that what they read is gone"
    assert again.high_watermark == 1
    await append(again, b"b")
    assert await read(leader, again) == [(0, b"a"), (1, b"b")]


async def test_a_new_topic_does_not_begin_with_the_records_of_one_that_the_catalog_lost(start: Start) -> None:
    pair = await start(2)
    leader, (one, _) = await all_at_the_catalogs_leader(pair)
    await made(pair, leader, "before", one)
    async with pair.lagging(leader.maintenance.catalog_id):
        lost = await made(pair, leader, "lost", one)
        await append(lost, b"of the lost one")
    later = await made(pair, leader, "later", one)
    assert later.open != lost.open
    await append(later, b"its own")
    assert await read(leader, later) == [(0, b"its own")]


async def test_what_left_the_catalog_and_is_back_in_it_without_its_bytes_holds_up_nobody(start: Start) -> None:
    pair = await start(2)
    leader, (one, two) = await all_at_the_catalogs_leader(pair)
    partition = await made(pair, leader, "back", one)
    await append(partition, b"a")
    await leader.rolls.roll(partition, to=two.id)
    moved = await pair.partition(leader, "back")
    await append(moved, b"b")
    async with pair.lagging(leader.maintenance.catalog_id):
        # As if its records had expired: the catalog has forgotten their location, and the container was freed.
        node = next(each for each in pair.nodes if each.parts is leader)
        await node.containers.delete(one)
        await until(lambda: (record := leader.cluster.record(one.id)) is not None and record.state == "deleted")
    await chain_is(pair, leader, "back", [(OPEN, 1, -1)])
    assert await fetched(leader, "back", 1) == [b"b"]
