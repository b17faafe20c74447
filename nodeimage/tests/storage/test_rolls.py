"""Rolls: load and readers while partitions roll, and a crash at every step of one."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from headrace.base.errors import Code, KafkaError, StorageFull
from headrace.base.ids import Millis
from headrace.catalog.chains import RollIntent, RollTarget
from headrace.log.container_log import ContainerLog
from headrace.storage.disk_room import DiskRoom
from kit.replaced_methods import replace_method
from kit.storage import MIB, Running, until

NewNode = Callable[..., Awaitable[Running]]
TOPIC = "/default:rolled"


async def test_a_forced_roll_keeps_offsets_records_and_producers(new_node: NewNode) -> None:
    node = await new_node()
    producer = await node.call("producer_id")
    for sequence in range(3):
        await node.call("put", TOPIC, b"a%d" % sequence, producer=(producer, 0, sequence))
    before = await node.call("admin", "topic.show", topic=TOPIC)
    rolled = await node.call("admin", "roll", topic=TOPIC)
    assert (rolled["first"], rolled["partitionlets"]) == (3, 2)
    assert rolled["leader_epoch"] > before["partitions"][0]["leader_epoch"]
    again = await node.call("produce", TOPIC, [b"a2"], producer=(producer, 0, 2))
    assert (again.error, again.base_offset) == (0, 2), "the repeated batch is known after the roll"
    assert await node.call("put", TOPIC, b"a3", producer=(producer, 0, 3)) == 3
    await node.restart()
    again = await node.call("produce", TOPIC, [b"a3"], producer=(producer, 0, 3))
    assert (again.error, again.base_offset) == (0, 3)
    gap = await node.call("produce", TOPIC, [b"a9"], producer=(producer, 0, 9))
    assert gap.error == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert await node.call("read", TOPIC) == [(index, b"a%d" % index) for index in range(4)]


async def test_partitions_roll_under_load_while_they_are_read(new_node: NewNode) -> None:
    node = await new_node(partitionlet_bytes=MIB)
    await node.call("create", TOPIC, partitions=2)
    writer, reader = [await asyncio.to_thread(type(node.client), node.port) for _ in range(2)]
    count = 400

    def write() -> None:
        for serial in range(count):
            base = writer.put(TOPIC, b"%06d" % serial + bytes(20_000), partition=serial % 2)
            assert base == serial // 2

    def follow() -> list[bytes]:
        seen: list[bytes] = []
        while len(seen) < count // 2:
            seen = [value[:6] for _, value in reader.read(TOPIC, 0)]
        return seen

    _, seen = await asyncio.gather(asyncio.to_thread(write), asyncio.to_thread(follow))
    assert seen == [b"%06d" % serial for serial in range(0, count, 2)]
    chain = await node.call("admin", "chain", topic=TOPIC, partition=0)
    assert len(chain) >= 4
    assert [each["first"] for each in chain[1:]] == [each["end"] for each in chain[:-1]]
    epochs = [each["leader_epoch"] for each in chain]
    assert epochs == sorted(set(epochs)), "leader epochs rise at every roll"
    await node.restart()
    for partition in range(2):
        read = await node.call("read", TOPIC, partition)
        assert [value[:6] for _, value in read] == [b"%06d" % serial for serial in range(partition, count, 2)]
    writer.close()
    reader.close()


async def test_a_crash_at_any_step_of_a_roll_loses_nothing(new_node: NewNode, monkeypatch: pytest.MonkeyPatch) -> None:
    node = await new_node(fsync=True)
    producer = await node.call("producer_id")
    for sequence in range(5):
        await node.call("put", TOPIC, b"v%d" % sequence, producer=(producer, 0, sequence))
    photos: list[tuple[str, Path]] = []
    _photograph_each_step(node, photos, monkeypatch)
    await node.call("admin", "roll", topic=TOPIC)
    assert len(photos) >= 6, [name for name, _ in photos]
    counts = set()
    for name, photo in photos:
        crashed = await new_node(folder=photo)
        assert await crashed.call("read", TOPIC) == [(index, b"v%d" % index) for index in range(5)], name
        again = await crashed.call("produce", TOPIC, [b"v4"], producer=(producer, 0, 4))
        assert (again.error, again.base_offset) == (0, 4), name
        assert await crashed.call("put", TOPIC, b"v5", producer=(producer, 0, 5)) == 5, name
        chain = await crashed.call("admin", "chain", topic=TOPIC)
        assert all(each["state"] in ("sealed", "open") for each in chain), name
        counts.add(len(chain))
        await crashed.restart()
        assert await crashed.call("read", TOPIC) == [(index, b"v%d" % index) for index in range(6)], name
        await crashed.stop()
    assert counts == {1, 2}, "some crashes come before the intent, the others are finished"


async def test_partitions_that_cannot_roll_for_want_of_room_say_so_once(
    new_node: NewNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their producers keep retrying, and each attempt used to be logged with a traceback."""
    node = await new_node(partitionlet_bytes=1000)
    await node.call("create", TOPIC)
    assert await node.call("put", TOPIC, bytes(2000)) == 0
    full = [StorageFull("no room on the disk")] * 8
    submit = node.parts.catalog.submit

    async def submitted(command: Any) -> Any:
        if isinstance(command, RollIntent) and full:
            raise full.pop()
        return await submit(command)

    monkeypatch.setattr(node.parts.catalog, "submit", submitted)
    with capture_logs() as logged:
        while full:
            assert (await node.call("produce", TOPIC, [b"more"])).error == Code.KAFKA_STORAGE_ERROR
        assert await node.call("put", TOPIC, b"more") == 1
        full += [StorageFull("no room on the disk")]
        await node.call("put", TOPIC, bytes(2000))
        assert (await node.call("produce", TOPIC, [b"more"])).error == Code.KAFKA_STORAGE_ERROR
    # A loop that is held up on a busy machine says so.
    told = [
        each["event"]
        for each in logged
        if each["log_level"] in ("warning", "error") and each["event"] != "this process stood still"
    ]
    assert told == ["partitions cannot be rolled, as there is too little room on the disk"] * 2


def _photograph_each_step(node: Running, photos: list[tuple[str, Path]], patched: pytest.MonkeyPatch) -> None:
    """Save the state of the disk before and after each command and each control frame."""
    catalog = node.parts.catalog
    submit = catalog.submit

    async def submitted(command: Any) -> Any:
        photos.append((f"before {type(command).__name__}", node.photograph()))
        outcome = await submit(command)
        photos.append((f"after {type(command).__name__}", node.photograph()))
        return outcome

    catalog.submit = submitted  # type: ignore[method-assign]
    for container in node.parts.containers.values():
        if container.id == node.parts.maintenance.catalog_id:
            continue
        append = container.append_control

        def appended(*args: Any, append: Any = append, **more: Any) -> Any:
            future = append(*args, **more)
            future.add_done_callback(lambda _: photos.append((f"after frame {args[0]}", node.photograph())))
            return future

        replace_method(patched, container, "append_control", appended)


async def test_a_roll_that_waits_for_room_refuses_producers_and_ends_when_there_is_some(
    new_node: NewNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await new_node()
    await node.call("put", TOPIC, b"first")
    (container,) = [each for each in node.parts.containers.values() if each.id != node.parts.maintenance.catalog_id]
    append = container.append_control
    full = [True]

    def refused(frame_type: Any, *args: Any, **more: Any) -> Any:
        if full[0] and frame_type.name == "OPEN":
            future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            future.set_exception(StorageFull("no room on the disk"))
            return future
        return append(frame_type, *args, **more)

    replace_method(monkeypatch, container, "append_control", refused)
    monkeypatch.setattr("headrace.partitions.rolls.steps.RETRY_FULL_S", 0.05)
    answer = await asyncio.to_thread(_roll_error, node)
    assert answer == Code.KAFKA_STORAGE_ERROR
    refused_batch = await node.call("produce", TOPIC, [b"second"])
    assert refused_batch.error == Code.KAFKA_STORAGE_ERROR
    assert await node.call("read", TOPIC) == [(0, b"first")], "reads go on"
    full[0] = False
    (topic,) = await node.parts.topics.resolve([TOPIC])
    await until(lambda: not topic.partitions[0].rolling)
    assert await node.call("put", TOPIC, b"third") == 1
    assert len(await node.call("admin", "chain", topic=TOPIC)) == 2


async def test_a_target_that_has_become_full_is_opened_all_the_same(
    new_node: NewNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the partition could not continue anywhere: no other target may be chosen."""
    node = await new_node()
    await node.call("put", TOPIC, b"first")
    (topic,) = await node.parts.topics.resolve([TOPIC])
    other = await node.node.containers.new()
    room, make_spare = other.log.room, ContainerLog.make_spare
    made: list[ContainerLog] = []

    def needs_a_chunk(length: int, *, to_the_end: bool = True) -> bool:
        return other.log in made and room(length, to_the_end=to_the_end)

    def make(log: ContainerLog) -> None:
        make_spare(log)
        made.append(log)

    def is_full(_: DiskRoom, length: int, *, from_reserve: bool = False) -> None:
        if not from_reserve:
            raise StorageFull(f"no room for {length} bytes")

    monkeypatch.setattr(other.log, "room", needs_a_chunk)
    monkeypatch.setattr(ContainerLog, "make_spare", make)
    monkeypatch.setattr(DiskRoom, "check", is_full)
    topic.partitions[0].container.closing = True  # all rolls choose the other container
    rolled = await node.call("admin", "roll", topic=TOPIC)
    assert rolled["container"] == other.id
    assert made == [other.log]


def _roll_error(node: Running, name: str = TOPIC) -> int:
    try:
        node.client.connection.admin("roll", {"topic": name})
    except KafkaError as error:
        return error.code
    return Code.NONE


async def test_an_intent_for_another_container_is_carried_out_where_it_was_meant(new_node: NewNode) -> None:
    node = await new_node()
    await node.call("put", TOPIC, b"first")
    (topic,) = await node.parts.topics.resolve([TOPIC])
    other = await node.node.containers.new()
    partition = topic.partitions[0]
    target = RollTarget(
        topic_id=partition.topic_id, partition=0, expected_open=partition.open, container=partition.container.id
    )
    await node.parts.catalog.submit(RollIntent(items=[target], now=Millis(0)))
    partition.container.closing = True  # now all rolls choose the other container
    intended = partition.container.id
    rolled = await node.call("admin", "roll", topic=TOPIC)
    assert rolled["container"] == intended
    assert await node.call("put", TOPIC, b"second") == 1
    chain = await node.call("admin", "chain", topic=TOPIC)
    assert chain[-1]["container"] == other.id, "its container is closing, so the next batch rolled it once more"
    assert await node.call("read", TOPIC) == [(0, b"first"), (1, b"second")]


async def test_leader_epochs_rise_at_a_roll_after_very_many_restarts(new_node: NewNode) -> None:
    node = await new_node()
    await node.call("put", TOPIC, b"first")
    await node.stop()
    from msgspec import structs

    from headrace.base.ids import Epoch
    from headrace.store import container_records
    from headrace.store.sqlite import SqliteStore

    store = SqliteStore(node.folder / "cluster.sqlite")
    for record in container_records.containers(store):  # as after a thousand starts
        container_records.change_container(
            store, record.container_id, lambda now: structs.replace(now, epoch=Epoch(now.epoch + 1000))
        )
    store.close()
    await node.start()
    before = (await node.call("admin", "topic.show", topic=TOPIC))["partitions"][0]["leader_epoch"]
    rolled = await node.call("admin", "roll", topic=TOPIC)
    assert rolled["leader_epoch"] > before >= 1000
    await node.call("put", TOPIC, b"second")
    await node.restart()
    assert (await node.call("admin", "topic.show", topic=TOPIC))["partitions"][0]["leader_epoch"] > rolled[
        "leader_epoch"
    ]


async def test_a_roll_of_a_topic_that_is_deleted_meanwhile_leaves_nothing_behind(new_node: NewNode) -> None:
    node = await new_node()
    serial = itertools.count()
    for _ in range(5):
        name = f"{TOPIC}-{next(serial)}"
        await node.call("put", name, b"first")
        other = await asyncio.to_thread(type(node.client), node.port)
        await asyncio.gather(
            asyncio.to_thread(lambda name=name: _roll_or_gone(node, name)),
            asyncio.to_thread(other.delete, name),
        )
        other.close()
    assert await node.parts.catalog.query(lambda reader: reader.chains.intended()) == []
    assert not node.parts.rolls._under_way
    await node.restart()


def _roll_or_gone(node: Running, name: str) -> None:
    assert _roll_error(node, name) in (Code.NONE, Code.UNKNOWN_TOPIC_OR_PARTITION, Code.UNKNOWN_TOPIC_ID)
