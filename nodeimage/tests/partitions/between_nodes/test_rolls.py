"""Partitions that roll from node to node, with crashes at all steps: each roll is finished once."""

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from confluent_kafka import Producer
from msgspec import structs

from headrace.base.errors import Code, KafkaError
from headrace.base.ids import ContainerId, Epoch, Home, Millis, Offset, Position
from headrace.catalog.chains import RollDone, Rolled, RollIntent, RollTarget
from headrace.catalog.homes import HomeChange, SetHome
from headrace.catalog.rows import OPEN, SEALED, PartitionletRow
from headrace.container.leader import Leader
from headrace.kafka.connection import Connection
from headrace.links.failover.home_apply import HomeApplier, Unsettled
from headrace.log.frames import FrameType
from headrace.node.parts import NodeParts
from headrace.partitions.home_check import is_settled
from headrace.partitions.partition import Partition
from headrace.partitions.rolls.frames import Open, Seal
from headrace.peer.messages import OpenPartitionlet, RollAway
from headrace.store import container_records
from headrace.wire.batch import build_batch, read_batch, stamp
from kit.pair import Committed, Pair, Start, append, read, until
from kit.replaced_methods import replace_method


async def all_is_rolled(pair: Pair) -> None:
    """Wait until no roll is under way or intended, as each node sees it: a node's catalog may lag behind the
    driver's."""
    async with asyncio.timeout(30):
        for broker in (pair.first, pair.second):
            while broker.rolls._under_way or await broker.catalog.query(lambda reader: reader.chains.intended()):  # noqa: ASYNC110
                await asyncio.sleep(0.005)


@pytest.mark.parametrize("replicas", [1, 2])
async def test_a_partition_goes_on_at_another_node_with_its_offsets_records_and_producers(
    start: Start, replicas: int
) -> None:
    pair = await start(replicas)
    partition = await pair.create("moved")
    await append(partition, b"c", producer=77, sequence=0)
    epoch = partition.leader_epoch
    row = await pair.first.rolls.roll(partition, to=pair.led(pair.second).id)
    assert partition.left
    assert row.first == 3
    moved = await pair.partition(pair.second, "moved")
    assert (moved.next_offset, moved.high_watermark) == (3, 3)
    assert moved.leader_epoch > epoch
    assert [producer for producer, _ in moved.producers.items()] == [77]
    await append(moved, b"d", producer=77, sequence=1)
    assert await read(pair.second, moved) == [(0, b"a"), (1, b"b"), (2, b"c"), (3, b"d")]
    with pytest.raises(KafkaError) as refused:
        await pair.first.partitions.leader(await pair.topic(pair.first, "moved"), 0)
    assert refused.value.code == Code.NOT_LEADER_OR_FOLLOWER


async def test_a_producer_without_acks_follows_its_partition_to_another_node(start: Start) -> None:
    """The producer gets no refusal, and would send to the former leader until it requests Metadata by itself."""
    pair = await start(1)
    partition = await pair.create("moved")
    producer = Producer({"bootstrap.servers": f"127.0.0.1:{pair.first.node.port}", "acks": 0, "linger.ms": 0})
    over = threading.Event()

    def produce() -> None:
        while not over.wait(0.01):
            producer.produce("moved", b"x")
            producer.poll(0)

    producing = asyncio.create_task(asyncio.to_thread(produce))
    try:
        await until(lambda: partition.high_watermark > 10)
        row = await pair.first.rolls.roll(partition, to=pair.led(pair.second).id)
        moved = await pair.partition(pair.second, "moved")
        await until(lambda: moved.high_watermark > row.first + 10)
    finally:
        over.set()
        await producing
        await asyncio.to_thread(producer.flush, 10)


async def test_a_roll_waits_for_a_target_that_is_away_and_opens_it_once(start: Start) -> None:
    pair = await start(1)
    partition = await pair.create("waits")
    target = pair.led(pair.second)
    ask = pair.first.cluster.ask_leader
    answers: list[str] = []

    async def lossy(container: ContainerId, message: object, *args: object, **more: object) -> object:
        """A transport that loses the first call, and the answer to the second."""
        if not isinstance(message, OpenPartitionlet):
            return await ask(container, message, *args, **more)  # type: ignore[arg-type]
        answers.append("called")
        if len(answers) == 1:
            raise KafkaError(Code.BROKER_NOT_AVAILABLE, "lost on the way")
        answer = await ask(container, message, *args, **more)  # type: ignore[arg-type]
        if len(answers) == 2:
            raise KafkaError(Code.BROKER_NOT_AVAILABLE, "the answer is lost")
        return answer

    pair.first.cluster.ask_leader = lossy  # type: ignore[method-assign, assignment]
    row = await pair.first.rolls.roll(partition, to=target.id)
    assert len(answers) == 3
    frames = await asyncio.to_thread(lambda: [frame.type for frame in target.log.controls_of(row.id)])
    assert frames == [FrameType.OPEN]
    moved = await pair.partition(pair.second, "waits")
    await append(moved, b"c")
    assert [value for _, value in await read(pair.second, moved)] == [b"a", b"b", b"c"]


async def test_an_open_that_comes_late_changes_nothing(start: Start) -> None:
    pair = await start(1)
    partition = await pair.create("late")
    row = await pair.first.rolls.roll(partition, to=pair.led(pair.second).id)
    moved = await pair.partition(pair.second, "late")
    await append(moved, b"c")
    opening = Open(row.id, "", "", partition.topic_id, 0, row.first, row.leader_epoch, -1)
    asked = OpenPartitionlet(row.container, row.id, row.first, Offset(row.first - 1))
    payload = [msgspec.msgpack.encode([opening])]
    again, _ = await pair.first.cluster.ask_leader(row.container, asked, payload)
    assert again.epoch == row.container_epoch
    await pair.second.rolls.roll(moved, to=pair.led(pair.first).id)
    with pytest.raises(KafkaError) as refused:
        await pair.first.cluster.ask_leader(row.container, asked, payload)
    assert refused.value.code == Code.INVALID_REQUEST
    target = pair.led(pair.second)
    frames = await asyncio.to_thread(lambda: [frame.type for frame in target.log.controls_of(row.id)])
    assert frames == [FrameType.OPEN, FrameType.SEAL]


async def test_a_seal_that_an_earlier_leader_left_is_the_partitions_end(start: Start) -> None:
    pair = await start(1)
    partition = await pair.create("broken-off")
    source, old = partition.container, partition.chain[-1]
    seal = Seal(partition.topic_id, 0, old.first, 2, [(partition.leader_epoch, 0)], [])
    await source.append_control(
        FrameType.SEAL, msgspec.msgpack.encode(seal), partitionlet=old.id, first=old.first, last=1
    )
    topic = await pair.topic(pair.first, "broken-off")
    pair.first.topics.forgot = True
    topic.partitions.clear()  # as on a node that has just taken over
    target = RollTarget(partition.topic_id, 0, old.id, pair.led(pair.second).id)
    await pair.second.catalog.submit(RollIntent(items=[target], now=Millis(1)))  # submitted by any node
    moved = await pair.partition(pair.second, "broken-off")
    assert moved.next_offset == 2
    frames = await asyncio.to_thread(lambda: [frame.type for frame in source.log.controls_of(old.id)])
    assert frames.count(FrameType.SEAL) == 1
    await append(moved, b"c")
    assert [value for _, value in await read(pair.second, moved)] == [b"a", b"b", b"c"]
    await all_is_rolled(pair)


async def test_two_drivers_of_one_roll_come_to_the_same(start: Start) -> None:
    pair = await start(1)
    partition = await pair.create("twice")
    row = await pair.first.rolls.roll(partition, to=pair.led(pair.second).id)
    stale = partition  # as a driver holds it that another one has overtaken
    stale.left = False
    again = await pair.first.rolls.roll(stale, to=pair.led(pair.first).id)
    assert again.id == row.id
    assert [each.id for each in await pair.chain(pair.first, "twice")][-1] == row.id


async def test_a_target_whose_container_is_deleted_is_given_up_for_another(start: Start) -> None:
    pair = await start(1)
    partition = await pair.create("nowhere")
    doomed = pair.led(pair.second)
    old = partition.chain[-1]
    second = pair.nodes[1]
    # The intent is recorded, and its container is deleted before anything is opened in it.
    original = pair.first.rolls.applied
    target = RollTarget(partition.topic_id, 0, old.id, doomed.id)
    pair.first.rolls.applied = lambda changes: None  # type: ignore[method-assign]
    pair.first.catalog._callbacks.remove(original)
    (outcome,) = await pair.second.catalog.submit(RollIntent(items=[target], now=Millis(1)))
    await second.containers.delete(doomed)
    await until(lambda: (record := pair.first.cluster.record(doomed.id)) is not None and record.state == "deleted")
    await pair.first.catalog.wait_applied(pair.second.catalog.applied)
    row = await pair.first.rolls.roll(partition)
    assert row.container != doomed.id
    assert row.first == 2
    assert outcome.partitionlet is not None
    assert row.id != outcome.partitionlet.id


@pytest.mark.parametrize("has_heard", [True, False])
async def test_an_open_that_arrives_after_another_target_was_chosen_changes_nothing(
    start: Start, has_heard: bool
) -> None:
    """The target's container is deleted; the node that led it may not know yet, and still writes the open frame."""
    pair = await start(1)
    partition = await pair.create("overtaken")
    doomed = pair.led(pair.second)
    old = partition.chain[-1]
    original = pair.first.rolls.applied
    target = RollTarget(partition.topic_id, 0, old.id, doomed.id)
    pair.first.rolls.applied = lambda changes: None  # type: ignore[method-assign]
    pair.first.catalog._callbacks.remove(original)
    (outcome,) = await pair.second.catalog.submit(RollIntent(items=[target], now=Millis(1)))
    abandoned = outcome.partitionlet
    assert abandoned is not None
    second = pair.nodes[1]
    if not has_heard:
        second.replicas.records_changed = lambda containers: None  # type: ignore[method-assign]
    await second.containers.delete(doomed)
    await until(lambda: (record := pair.first.cluster.record(doomed.id)) is not None and record.state == "deleted")
    await until(lambda: doomed.lost == has_heard)
    await pair.first.catalog.wait_applied(pair.second.catalog.applied)
    row = await pair.first.rolls.roll(partition)
    assert row.container != doomed.id
    chain = await pair.chain(pair.first, "overtaken")

    opening = Open(abandoned.id, "", "", partition.topic_id, 0, row.first, row.leader_epoch, -1)
    late = OpenPartitionlet(doomed.id, abandoned.id, row.first, Offset(row.first - 1))
    record = pair.first.cluster.node(pair.second.node.node_id)
    assert record is not None
    await pair.second.catalog.wait_applied(pair.first.catalog.applied)
    payload = [msgspec.msgpack.encode([opening])]
    if has_heard:
        with pytest.raises(KafkaError) as refused:
            await pair.first.cluster.ask(record, late, payload)
        assert refused.value.code == Code.NOT_LEADER_OR_FOLLOWER
    else:  # the frame is written in vain, into a deleted container
        await pair.first.cluster.ask(record, late, payload)
    # The sender of the request goes on to record the roll: another target is intended by then.
    item = Rolled(partition.topic_id, 0, old.id, row.first, [], abandoned.id, Epoch(1))
    (recorded,) = await pair.second.catalog.submit(RollDone(items=[item], now=Millis(2)))
    assert recorded.code == Code.INVALID_REQUEST
    assert await pair.chain(pair.first, "overtaken") == chain
    moved = await pair.partition(pair.first, "overtaken")
    await append(moved, b"c")
    assert [value for _, value in await read(pair.first, moved)] == [b"a", b"b", b"c"]


async def write_during(rolling: asyncio.Future[Any], *partitions: Partition) -> None:
    """Write to partitions that have not begun to roll, until all rolls are over."""
    while not rolling.done():
        for each in partitions:
            if not each.rolling and not each.left:
                await append(each, bytes(1000))
        await asyncio.sleep(0.01)


async def test_the_partitions_that_are_written_to_most_roll_away(start: Start) -> None:
    pair = await start(1)
    idle = await pair.create("idle")
    busy = await pair.create("busy")
    await append(busy, bytes(10_000))
    await append(idle, bytes(20_000))
    asked = RollAway(busy.container.id, most=1, to=pair.led(pair.second).id, reason="a test")
    rolling = asyncio.ensure_future(pair.second.cluster.ask_leader(busy.container.id, asked, timeout_s=20.0))
    await write_during(rolling, busy)
    answer, _ = await rolling
    assert answer.count == 1
    assert busy.left
    assert not idle.left


async def test_orders_that_come_together_each_get_their_part_of_what_is_written(start: Start) -> None:
    pair = await start(1)
    busy = [await pair.create(f"busy-{number}") for number in range(4)]
    (container,) = {each.container for each in busy}
    asked = RollAway(container.id, most=9, to=pair.led(pair.second).id, reason="a test", share=0.2, limit=0.3)
    ask = [pair.second.cluster.ask_leader(container.id, asked, timeout_s=20.0) for _ in range(2)]
    rolling = asyncio.gather(*ask)
    await write_during(rolling, *busy)
    assert [answer.count for answer, _ in await rolling] == [1, 1]
    assert sum(each.left for each in busy) == 2


async def test_a_partition_goes_on_in_the_volume_that_its_stream_has_by_then(start: Start) -> None:
    """For any kind of roll; the partition stays in its own volume if the stream's has no container."""
    pair = await start(1)
    broker = pair.first
    rolled, busy, left = [await pair.create(name) for name in ("rolled", "busy", "left")]

    def volume(row: PartitionletRow) -> str:
        record = broker.cluster.record(row.container)
        assert record is not None
        return record.volume

    assert volume(await broker.rolls.roll(rolled, to=rolled.container.id)) == "default"
    await broker.admin.call("volume.create", {"name": "plain", "replicas": 1}, Connection(broker.dispatcher))
    await broker.admin.call(
        "stream.alter", {"path": "/default", "changes": {"volume": "plain"}}, Connection(broker.dispatcher)
    )
    await until(lambda: broker.topics.volume(rolled.topic_id) == "plain")
    assert volume(await broker.rolls.roll(rolled)) == "plain"

    asked = RollAway(busy.container.id, most=1, to=pair.led(pair.second).id, reason="a test")
    rolling = asyncio.ensure_future(pair.second.cluster.ask_leader(busy.container.id, asked, timeout_s=20.0))
    await write_during(rolling, busy)
    assert volume((await pair.chain(broker, "busy"))[-1]) == "plain"

    for record in broker.cluster.open_data(volume="plain"):
        await pair.nodes[0].store(
            lambda store, record=record: container_records.change_container(  # type: ignore[misc]
                store, record.container_id, lambda now: structs.replace(now, state="closed")
            )
        )
    pair.nodes[0].view.refresh()
    await until(lambda: not broker.cluster.open_data(volume="plain"))
    assert volume(await broker.rolls.roll(left)) == "default"


STEPS = ("RollIntent", "intended", "SEAL", "sealed", "OpenPartitionlet", "opened", "RollDone", "done")


def interrupt_at(
    step: str,
    broker: NodeParts,
    source: Leader,
    interrupt: Callable[[], Awaitable[None]],
    patched: pytest.MonkeyPatch,
) -> None:
    """Run `interrupt` before or after one of the steps in which a node rolls from a container."""
    submit, append_control, ask = broker.catalog.submit, source.append_control, broker.cluster.ask_leader
    names = dict(zip(STEPS[::2], STEPS[1::2], strict=True))

    async def submitted(command: Any, **more: Any) -> Any:
        name = type(command).__name__
        if name == step:
            await interrupt()
        outcome = await submit(command, **more)
        if names.get(name) == step:
            await interrupt()
        return outcome

    def appended(frame_type: FrameType, *args: Any, **more: Any) -> Any:
        async def slow() -> Position:
            if frame_type.name == step:
                await interrupt()
            position = await append_control(frame_type, *args, **more)
            if names.get(frame_type.name) == step:
                await interrupt()
            return position

        return slow() if frame_type is FrameType.SEAL else append_control(frame_type, *args, **more)

    async def asked(container: ContainerId, message: Any, *args: Any, **more: Any) -> Any:
        name = type(message).__name__
        if name == step:
            await interrupt()
        answer = await ask(container, message, *args, **more)
        if names.get(name) == step:
            await interrupt()
        return answer

    broker.catalog.submit = submitted  # type: ignore[method-assign]
    replace_method(patched, source, "append_control", appended)
    broker.cluster.ask_leader = asked  # type: ignore[method-assign]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("target_moves", [False, True])
async def test_a_roll_whose_source_changes_hands_at_any_step_is_finished_once(
    start: Start, monkeypatch: pytest.MonkeyPatch, step: str, target_moves: bool
) -> None:
    pair = await start(2)
    partition = await pair.create("handed-over")
    await append(partition, b"c", producer=77, sequence=0)
    source, target = partition.container, pair.led(pair.second)
    await until(lambda: all(len(record.in_sync) == 2 for record in pair.first.cluster.open_data()))

    async def interrupt() -> None:
        if target_moves:
            await pair.hand_over(target.id, pair.first)
        await pair.hand_over(source.id, pair.second)

    interrupt_at(step, pair.first, source, interrupt, monkeypatch)
    (driver,) = await asyncio.gather(pair.first.rolls.roll(partition, to=target.id), return_exceptions=True)
    assert isinstance(driver, PartitionletRow | KafkaError), driver
    leads = pair.first if target_moves else pair.second
    rows = await pair.chain(leads, "handed-over")
    async with asyncio.timeout(30):
        while [row.state for row in rows] != [SEALED, OPEN]:
            if step == "RollIntent" and len(rows) == 1:  # no roll has begun yet: the next step begins one
                with contextlib.suppress(KafkaError):
                    await pair.second.rolls.roll(await pair.partition(pair.second, "handed-over"), to=target.id)
            await asyncio.sleep(0.005)
            rows = await pair.chain(leads, "handed-over")
    assert rows[-1].first == 3
    assert rows[-1].container == target.id
    moved = await pair.partition(leads, "handed-over")
    await append(moved, b"d", producer=77, sequence=1)
    assert [value for _, value in await read(leads, moved)] == [b"a", b"b", b"c", b"d"]
    log = pair.second.containers[source.id].log
    seals = await asyncio.to_thread(lambda: [frame.type for frame in log.controls_of(rows[0].id)].count(FrameType.SEAL))
    assert seals == 1
    await all_is_rolled(pair)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("resume", [2, 7], ids=["cut", "jump"])
async def test_a_roll_for_a_home_that_breaks_off_at_any_step_applies_it_once_and_resumes_there(
    start: Start, monkeypatch: pytest.MonkeyPatch, step: str, resume: int
) -> None:
    async def nothing(home_applier: HomeApplier, wanted: Unsettled) -> None:
        pass

    monkeypatch.setattr(HomeApplier, "_apply_home", nothing)
    pair = await start(2)
    partition = await pair.create("settled")
    await append(partition, b"c", producer=77, sequence=0)
    home = Home(1, "elsewhere")
    lists = {0: [(*home, Offset(2))]}
    assert await pair.first.catalog.submit(SetHome([HomeChange(partition.topic_id, *home, lists)])) == [Code.NONE]
    source, target = partition.container, pair.led(pair.second)
    await until(lambda: all(len(record.in_sync) == 2 for record in pair.first.cluster.open_data()))

    async def interrupt() -> None:
        await pair.hand_over(source.id, pair.second)

    interrupt_at(step, pair.first, source, interrupt, monkeypatch)
    (driver,) = await asyncio.gather(
        pair.first.rolls.apply_home(partition, home, resume, to=target.id), return_exceptions=True
    )
    assert isinstance(driver, PartitionletRow | KafkaError), driver
    async with asyncio.timeout(30):
        while True:  # as the home applier does: check, and try again
            topic = await pair.topic(pair.second, "settled")
            held = await pair.partition(pair.second, "settled")
            if topic.home == home and is_settled(topic, held):
                break
            assert held.next_offset == 3, "a roll that applies no home cuts nothing"
            with contextlib.suppress(KafkaError):
                await pair.second.rolls.apply_home(held, home, resume, to=target.id)
    assert (held.next_offset, held.high_watermark) == (resume, resume)
    assert (held.home, held.home_start) == (home, 2)
    assert [producer for producer, _ in held.producers.items()] == ([77] if resume == 7 else [])
    kept = [(0, b"a"), (1, b"b"), (2, b"c")][: min(resume, 3)]
    waiting = Committed()
    batch = memoryview(build_batch([(1, None, b"d", [])]))
    stamp(batch, 9, 0)
    header = read_batch(batch, from_client=False)
    assert pair.second.home_check.copy_append(topic, held, batch, header, waiting=waiting)
    await waiting.future
    assert await read(pair.second, held) == [*kept, (9, b"d")]
    await all_is_rolled(pair)
    rows = [row for row in await pair.chain(pair.second, "settled") if row.state == SEALED]
    assert [(row.first, row.end) for row in rows][-1] == (0, min(resume, 3))


async def test_who_appends_does_not_wait_for_ever_for_a_target_that_is_away(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.partitions.rolls.rolls.ROLL_WAIT_S", 0.2)
    pair = await start(1)
    partition = await pair.create("hangs")
    ask = pair.first.cluster.ask_leader
    away = True

    async def asked(container: ContainerId, message: Any, *args: Any, **more: Any) -> Any:
        if away:
            raise KafkaError(Code.BROKER_NOT_AVAILABLE, "away")
        return await ask(container, message, *args, **more)

    monkeypatch.setattr(pair.first.cluster, "ask_leader", asked)
    rolling = asyncio.ensure_future(pair.first.rolls.roll(partition, to=pair.led(pair.second).id))
    await until(lambda: partition.seal is not None)
    with pytest.raises(KafkaError) as refused:
        await pair.first.rolls.wait_for_roll(partition)
    assert refused.value.code == Code.LEADER_NOT_AVAILABLE
    assert await read(pair.first, partition) == [(0, b"a"), (1, b"b")], "reads go on"
    away = False
    assert (await rolling).first == 2
    assert partition.left


async def test_an_admin_is_told_of_a_partition_that_rolled_to_another_node(start: Start) -> None:
    pair = await start(1)
    partition = await pair.create("told")
    partition.container.closing = True  # so that the container chosen is another one
    answer: Any = await pair.first.admin.call(
        "roll", {"topic": "told", "partition": 0}, Connection(pair.first.dispatcher)
    )
    moved = await pair.partition(pair.second, "told")
    assert (answer["container"], answer["first"], answer["partitionlets"]) == (moved.container.id, 2, 2)
    assert answer["leader_epoch"] == moved.leader_epoch
