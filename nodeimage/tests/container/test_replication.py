"""Replication between several nodes' replicas: real logs and connections, without catalog and broker."""

import asyncio
import shutil
import threading
import time
import uuid
import weakref
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs

from headrace.base.errors import Code, KafkaError
from headrace.base.ids import ContainerId, Epoch, Position
from headrace.container import follower_feed, replica_folder, sync_cycle
from headrace.container.damaged_replica import Damage
from headrace.container.leader import Leader
from headrace.container.leader_state import LET_GO_S, Member
from headrace.container.replicas import SUPERSEDED_S
from headrace.log import frame_reading
from headrace.log.container_log import ContainerLog, WriteJob
from headrace.log.files import FILE_HEAD_BYTES
from headrace.log.frames import MOST_PAYLOAD_BYTES
from headrace.log.regroup import rewrite
from headrace.peer.messages import Acked
from headrace.store import container_records, records
from headrace.store.compare_and_set import change
from headrace.store.protocol import ClusterStore, StoreUnavailable
from headrace.store.records import CATALOG_ID, DELETED_KEY, ContainerRecord, DeletedContainers
from kit.several_replicas import OneNode, Several, until


@pytest.fixture
async def three(tmp_path: Path) -> AsyncIterator[Several]:
    nodes = Several(tmp_path, 3)
    await nodes.start()
    try:
        yield nodes
    finally:
        await nodes.stop()


def handed_to(number: int, nodes: Several, *, without: tuple[int, ...] = ()) -> object:
    """A record's change: the next epoch, another leader, an in-sync set without some nodes."""
    gone = {nodes.nodes[each].node_id for each in without}

    def decide(record: ContainerRecord) -> ContainerRecord:
        return structs.replace(
            record,
            primary=nodes.nodes[number].node_id,
            epoch=Epoch(record.epoch + 1),
            in_sync=tuple(each for each in record.in_sync if each[0] not in gone),
        )

    return decide


async def ended(primary: OneNode, alone: list["asyncio.Future[Position]"]) -> None:
    """The node ends; what it appended alone is committed by nobody."""
    await primary.stop()
    for each in alone:
        with pytest.raises(KafkaError):
            await each


async def led_by_the_others(three: Several, container_id: ContainerId) -> Leader:
    """The first node is down; the others come back, and the second leads."""
    await three.nodes[1].start()
    await three.nodes[2].start()
    await three.change(container_id, handed_to(1, three, without=(0,)))  # type: ignore[arg-type]
    return await three.led(container_id, by=three.nodes[1])


async def test_what_is_committed_is_on_every_replica(three: Several) -> None:
    container_id = await three.create(replicas=3, min_in_sync=2)
    container = await three.led(container_id)
    for number in range(20):
        position = await container.append_command(f"{number}".encode())
        for each in (1, 2):
            assert three.replica(each, container_id).log.synced >= position
    assert three.payloads(1, container_id) == three.payloads(2, container_id) == three.payloads(0, container_id)


async def test_a_silent_follower_is_let_go_and_comes_back(three: Several) -> None:
    container_id = await three.create(replicas=3, min_in_sync=2)
    container = await three.led(container_id)
    await container.append_command(b"with three")
    await three.nodes[2].stop()
    await asyncio.wait_for(container.append_command(b"with two"), 100)
    assert {member.node for member in container.state.in_sync} == {three.nodes[0].node_id, three.nodes[1].node_id}
    await three.nodes[2].start()
    await until(lambda: len(container.state.in_sync) == 3 or None)
    await container.append_command(b"with three again")
    assert three.payloads(2, container_id) == [b"with three", b"with two", b"with three again"]


async def test_the_longest_frame_reaches_all_replicas(three: Several) -> None:
    """One that is longer could be sent to no follower: nobody may append it."""
    container_id = await three.create(replicas=3, min_in_sync=2)
    container = await three.led(container_id)
    for payload in (bytes(MOST_PAYLOAD_BYTES), b"next"):
        await asyncio.wait_for(container.append_command(payload), 100)
    await three.same(container_id, [0, 1, 2], end=container.end)


async def test_a_follower_that_cannot_be_sent_to_keeps_nobody_waiting(
    three: Several, monkeypatch: pytest.MonkeyPatch
) -> None:
    container_id = await three.create(replicas=3, min_in_sync=2)
    container = await three.led(container_id)
    await container.append_command(b"before")
    failing = container.feeds[0]
    tried = []

    def fails(buffers: object, end: int) -> None:
        tried.append(end)
        raise KafkaError(Code.MESSAGE_TOO_LARGE)

    monkeypatch.setattr(failing, "_send", fails)
    await until(lambda: getattr(failing, "_live", None) or None)
    await asyncio.wait_for(container.append_command(b"meanwhile"), 100)
    assert tried
    assert failing not in container.feeds
    await three.same(container_id, [0, 1, 2], end=container.end)  # it asked again


async def test_an_epoch_that_was_another_nodes_is_refused_by_all(three: Several) -> None:
    """A store that was put back to an old copy, and has gone on since: it gives an epoch for the second time."""
    container_id = await three.create(replicas=3, min_in_sync=2)
    await (await three.led(container_id)).append_command(b"early")
    record = await three.change(container_id, handed_to(1, three))
    container = await three.led(container_id, by=three.nodes[1])
    await container.append_command(b"acknowledged")
    await until(lambda: all(three.replica(n, container_id).known_record == record for n in range(3)) or None)
    key = f"{records.CONTAINER_PREFIX}{container_id}"
    for epoch in (record.epoch, record.epoch - 1):
        impostor = structs.replace(record, primary=three.nodes[2].node_id, epoch=Epoch(epoch))

        def put_back(store: ClusterStore, impostor: ContainerRecord = impostor) -> None:
            found = store.get(key)
            assert found is not None
            store.put(key, msgspec.json.encode(impostor), found.version)

        await three.nodes[0].store(put_back)
        told = f"lead epoch {epoch}, but"
        for node in three.nodes:
            await until(lambda node=node, told=told: told in node.replicas.problem(container_id) or None)
        assert container_id not in three.nodes[2].replicas.led
    for number in range(3):
        assert three.replica(number, container_id).known_record == record
        assert three.payloads(number, container_id) == [b"early", b"acknowledged"]


async def test_the_set_never_shrinks_below_the_minimum(three: Several) -> None:
    """Invariant 6."""
    container_id = await three.create(replicas=3, min_in_sync=2)
    container = await three.led(container_id)
    await container.append_command(b"safe")
    await three.nodes[1].stop()
    await three.nodes[2].stop()
    waiting = container.append_command(b"waits")
    await until(lambda: container.state.stalled or None)
    assert not waiting.done()
    await three.nodes[1].start()
    await asyncio.wait_for(waiting, 100)


@pytest.fixture
async def cut_off(three: Several, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[OneNode]:
    """The first node does not reach the cluster store from when `away` is set on."""
    node = three.nodes[0]
    reaches, looks = node.store, node._store.watch

    async def store(change: Callable[[ClusterStore], Any]) -> Any:
        if away.is_set():
            raise StoreUnavailable("away")
        return await reaches(change)

    def watch(prefix: str, *, since: int, timeout_s: float) -> Any:
        if away.is_set():
            raise StoreUnavailable("away")
        return looks(prefix, since=since, timeout_s=timeout_s)

    away = threading.Event()
    monkeypatch.setattr(node, "store", store)
    monkeypatch.setattr(node._store, "watch", watch)
    monkeypatch.setattr(node, "away", away, raising=False)
    yield node
    away.clear()


def away(node: OneNode) -> threading.Event:
    return node.away  # type: ignore[attr-defined, no-any-return]


async def test_a_leader_without_the_store_learns_from_its_followers_that_another_leads(
    three: Several, cut_off: OneNode
) -> None:
    """Else it would hold what it is sent, and tell clients that it leads, for as long as the store is away."""
    container_id = await three.create(replicas=3, min_in_sync=2)
    container = await three.led(container_id)
    await until(lambda: len(container.feeds) == 2 or None)  # who does not follow yet cannot tell it
    away(cut_off).set()
    await three.nodes[1].store(lambda store: handed_over(store, container_id, handed_to(1, three)))
    await until(lambda: container.lost or None)
    assert container_id not in cut_off.replicas.led
    second = await three.led(container_id, by=three.nodes[1])
    await until(lambda: not second.stalled or None)
    await asyncio.sleep(2 * SUPERSEDED_S)
    assert container_id not in cut_off.replicas.led, "it claims no epoch that it cannot put"
    away(cut_off).clear()
    await until(lambda: len(second.state.in_sync) == 3 or None)
    await second.append_command(b"on all")


def handed_over(store: ClusterStore, container_id: ContainerId, decide: Any) -> ContainerRecord:
    return container_records.change_container(store, container_id, decide)


async def test_a_leader_without_store_and_follower_says_that_it_may_not_lead(three: Several, cut_off: OneNode) -> None:
    """Nothing is committed until one of them is back; who asks is not to wait for that."""
    container_id = await three.create(replicas=2, min_in_sync=1)
    container = await three.led(container_id)
    await until(lambda: container.in_touch or None)
    away(cut_off).set()
    await until(lambda: container.cut_off or None)
    await container.append_command(b"all in sync are here")
    assert not container.outcast
    await three.nodes[1].stop()
    waiting = container.append_command(b"waits")
    await until(lambda: container.outcast or None)
    await until(lambda: "cannot be put" in container.stalled or None)
    assert not waiting.done()
    await three.nodes[1].start()
    await asyncio.wait_for(waiting, 100)
    await until(lambda: (not container.outcast and not container.stalled) or None)
    await three.nodes[1].stop()
    waiting = container.append_command(b"waits again")
    await until(lambda: container.outcast or None)
    away(cut_off).clear()
    await asyncio.wait_for(waiting, 100)
    await until(lambda: (not container.outcast and not container.stalled) or None)


def stand_still(seconds: float) -> None:
    """The whole process, with all of its nodes."""
    time.sleep(seconds)


async def test_a_leader_that_stood_still_lets_no_follower_go(three: Several) -> None:
    container_id = await three.create(replicas=3, min_in_sync=1)
    container = await three.led(container_id)
    await until(lambda: container.in_touch or None)
    stand_still(LET_GO_S + 0.5)
    await until(lambda: container.in_touch or None)
    found = await three.nodes[0].store(lambda store: container_records.get_container(store, container_id))
    assert found is not None
    assert len(found.in_sync) == 3
    assert container.state.waits_for == container.state.in_sync


async def test_the_next_leader_goes_on_with_what_was_committed(three: Several) -> None:
    container_id = await three.create(replicas=3, min_in_sync=2)
    container = await three.led(container_id)
    for number in range(5):
        await container.append_command(f"{number}".encode())
    await three.nodes[0].stop()
    await three.change(container_id, handed_to(1, three, without=(0,)))  # type: ignore[arg-type]
    second = await three.led(container_id)
    assert second.epoch == container.epoch + 1
    await second.append_command(b"next")
    assert three.payloads(2, container_id) == [b"0", b"1", b"2", b"3", b"4", b"next"]
    await three.nodes[0].start()
    await until(lambda: len(second.state.in_sync) == 3 or None)
    assert three.payloads(0, container_id) == [b"0", b"1", b"2", b"3", b"4", b"next"]


async def test_what_an_old_leader_alone_had_is_cut(three: Several) -> None:
    """Invariant 7: the frames that it wrote and never committed go, although its log is longer."""
    container_id = await three.create(replicas=3, min_in_sync=2)
    container = await three.led(container_id)
    await container.append_command(b"committed")
    await three.nodes[1].stop()
    await three.nodes[2].stop()
    alone = [container.append_command(f"alone {number}".encode()) for number in range(10)]
    await three.replica(0, container_id).cycle.flush()
    await ended(three.nodes[0], alone)
    second = await led_by_the_others(three, container_id)
    await second.append_command(b"after")
    await three.nodes[0].start()
    await until(lambda: len(second.state.in_sync) == 3 or None)
    for number in range(3):
        assert three.payloads(number, container_id) == [b"committed", b"after"]


async def test_what_a_lost_leader_had_committed_behind_a_followers_end_says_nothing_of_the_next_ones_frames(
    three: Several,
) -> None:
    """Invariant 2: after an unclean recovery others may come there, which the new leader alone may have."""
    container_id = await three.create(replicas=3, min_in_sync=3)
    end = await (await three.led(container_id)).append_command(b"on all")
    behind = three.replica(2, container_id)
    await three.same(container_id, [2], end=end)
    behind.learn_committed(Position(end + (1 << 20)))
    await three.nodes[0].stop()  # it stays in the in-sync set, so nothing is committed any more
    await three.change(container_id, handed_to(1, three))  # type: ignore[arg-type]
    second = await until(lambda: three.nodes[1].replicas.led.get(container_id))
    waiting = second.append_command(b"on two")
    await three.same(container_id, [2], end=second.end)
    assert not waiting.done()
    assert behind.committed == end
    waiting.cancel()


async def test_an_old_leader_begins_anew_where_the_others_dropped_what_parts_them(three: Several) -> None:
    """Invariant 7: the others' log begins within what it wrote alone, at the end of a frame of the same length."""
    container_id = await three.create(replicas=3, min_in_sync=2)
    container = await three.led(container_id)
    await container.append_command(b"committed")
    await three.nodes[1].stop()
    await three.nodes[2].stop()
    alone = [container.append_command(b"alone".ljust(64 << 10)) for _ in range(40)]
    await until(lambda: container.end > 40 * (64 << 10) or None)
    await three.replica(0, container_id).cycle.flush()
    await ended(three.nodes[0], alone)
    second = await led_by_the_others(three, container_id)
    for _ in range(20):
        await second.append_command(b"others".ljust(64 << 10))
    for number in (1, 2):
        log = three.replica(number, container_id).log
        await until(lambda log=log: log.chunks_to_close(second.committed) or None)  # type: ignore[misc]
        for chunk in log.chunks_to_close(second.committed):
            log.close_chunk(chunk)
        log.trim(log.end)
    assert 0 < second.log.start < 40 * (64 << 10)
    await three.nodes[0].start()
    await until(lambda: len(second.state.in_sync) == 3 or None)
    assert three.replica(0, container_id).log.start == second.log.start
    assert three.payloads(0, container_id) == three.payloads(1, container_id)
    assert {payload.strip() for payload in three.payloads(0, container_id)} == {b"others"}


async def test_after_an_unclean_recovery_within_a_gap_a_replica_counts_for_nothing_that_it_lacks(
    three: Several, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariants 1, 7: a replica made anew has a gap where another had dropped a chunk; the next leader ends in it."""
    monkeypatch.setattr(follower_feed, "KEPT_BYTES", 0)  # it gets what is on the disk
    container_id = await three.create(replicas=3, min_in_sync=2)
    container = await three.led(container_id)
    await until(lambda: len(container.state.in_sync) == 3 or None)
    await container.append_command(b"first")
    container.log.close_open_chunk()
    ends = await container.append_command(b"kept by the one that lags")
    await three.same(container_id, [0, 1, 2], end=ends)
    await three.nodes[2].stop()
    for _ in range(10):
        await asyncio.wait_for(container.append_command(b"dropped".ljust(300)), 100)
    container.log.close_open_chunk()
    await container.append_command(b"last")
    for chunk in container.log.chunks_to_close():
        container.log.close_chunk(chunk)
    container.log.drop_chunk(container.log.closed_chunks()[1])
    await three.nodes[1].stop()
    shutil.rmtree(three.nodes[1].folder / str(container_id))
    await three.nodes[1].start()
    await three.same(container_id, [0, 1], end=container.end)
    assert three.payloads(1, container_id) == [b"first", b"last"]
    await three.nodes[0].stop()
    await three.nodes[1].stop()
    await three.nodes[2].start()
    lags = await until(lambda: three.nodes[2].replicas.replica(container_id))
    alone = ((lags.member.node, uuid.UUID(lags.incarnation)),)
    await three.change(
        container_id,
        lambda record: structs.replace(record, primary=alone[0][0], epoch=Epoch(record.epoch + 1), in_sync=alone),
    )
    second = await until(lambda: three.nodes[2].replicas.led.get(container_id))
    assert second.log.end == ends
    await three.nodes[1].start()
    position = await asyncio.wait_for(second.append_command(b"acknowledged"), 100)
    assert three.payloads(1, container_id) == [b"first", b"acknowledged"]
    assert three.replica(1, container_id).log.end == position


async def test_a_replica_whose_log_is_not_cut_where_it_must_be_is_fetched_anew(
    three: Several, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariant 7: whatever a cut comes to, what it leaves behind the match point counts for nothing."""
    container_id = await three.create(replicas=3, min_in_sync=2)
    container = await three.led(container_id)
    await container.append_command(b"committed")
    await three.nodes[1].stop()
    await three.nodes[2].stop()
    alone = [container.append_command(b"alone") for _ in range(3)]
    await three.replica(0, container_id).cycle.flush()
    incarnation = three.replica(0, container_id).incarnation
    await ended(three.nodes[0], alone)
    second = await led_by_the_others(three, container_id)
    monkeypatch.setattr(ContainerLog, "cut", lambda *_: None)
    await three.nodes[0].start()
    await until(lambda: len(second.state.in_sync) == 3 or None)
    assert three.replica(0, container_id).incarnation != incarnation
    assert three.payloads(0, container_id) == three.payloads(1, container_id)


async def test_a_follower_that_says_that_it_has_more_than_there_is_counts_for_nothing(
    three: Several, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariant 1."""
    container_id = await three.create(replicas=2, min_in_sync=2)
    container = await three.led(container_id)
    await container.append_command(b"before")
    before = dict(container.state.positions())
    (fed,) = container.feeds
    fed.message_received(Acked(position=container.end + 1, epoch=container.epoch), memoryview(b""))  # type: ignore[attr-defined]
    assert container.state.positions() == before
    await until(lambda: fed not in container.feeds or None)
    await asyncio.wait_for(container.append_command(b"after"), 100)  # it asked again
    assert three.payloads(1, container_id) == [b"before", b"after"]


async def test_a_replica_that_cannot_be_cut_for_what_is_damaged_is_fetched_anew(three: Several) -> None:
    """Invariant 14: without the damaged frame its log would end before what the others have."""
    container_id = await three.create(replicas=3, min_in_sync=2)
    container = await three.led(container_id)
    for _ in range(10):
        damaged = await container.append_command(b"committed".ljust(64 << 10))
    await three.nodes[1].stop()
    await three.nodes[2].stop()
    alone = [container.append_command(b"alone".ljust(64 << 10)) for _ in range(10)]  # on into another chunk
    log = three.replica(0, container_id).log
    await until(lambda: log.end > 20 * (64 << 10) or None)
    await three.replica(0, container_id).cycle.flush()
    chunk, _ = log.chunks()
    end = log.end
    incarnation = three.replica(0, container_id).incarnation
    await ended(three.nodes[0], alone)
    with chunk.path.open("r+b") as file:
        file.seek(FILE_HEAD_BYTES + damaged - 10)
        file.write(b"x")
    second = await led_by_the_others(three, container_id)
    await second.append_command(b"after")
    assert second.log.end < end
    await three.nodes[0].start()
    await until(lambda: len(second.state.in_sync) == 3 or None)
    assert three.replica(0, container_id).incarnation != incarnation
    assert three.payloads(0, container_id) == three.payloads(1, container_id)


async def test_a_leader_that_starts_again_takes_a_new_epoch(three: Several) -> None:
    container_id = await three.create(replicas=3, min_in_sync=2)
    container = await three.led(container_id)
    await container.append_command(b"one")
    await three.nodes[0].stop()
    await three.nodes[0].start()
    again = await three.led(container_id, by=three.nodes[0])
    assert again.epoch > container.epoch
    await again.append_command(b"two")
    for number in range(3):
        assert three.payloads(number, container_id) == [b"one", b"two"]


async def test_a_lost_folder_is_another_incarnation_and_is_filled_again(three: Several) -> None:
    """Invariants 5 and 14."""
    container_id = await three.create(replicas=3, min_in_sync=2)
    container = await three.led(container_id)
    await container.append_command(b"one")
    before = three.replica(2, container_id).incarnation
    await three.nodes[2].stop()
    shutil.rmtree(three.nodes[2].folder)
    await container.append_command(b"two")
    await three.nodes[2].start()
    await until(lambda: len(container.state.in_sync) == 3 or None)
    assert three.replica(2, container_id).incarnation != before
    assert three.payloads(2, container_id) == [b"one", b"two"]


async def test_a_node_whose_replica_was_lost_does_not_lead(three: Several) -> None:
    container_id = await three.create(replicas=3, min_in_sync=2)
    container = await three.led(container_id)
    await container.append_command(b"one")
    await three.nodes[0].stop()
    shutil.rmtree(three.nodes[0].folder)
    await three.nodes[0].start()
    await until(lambda: three.nodes[0].replicas.replica(container_id))
    await asyncio.sleep(0.5)
    assert container_id not in three.nodes[0].replicas.led
    await three.change(container_id, handed_to(1, three, without=(0,)))  # type: ignore[arg-type]
    second = await three.led(container_id)
    await until(lambda: len(second.state.in_sync) == 3 or None)
    assert three.payloads(0, container_id) == [b"one"]


async def test_a_replica_that_is_added_gets_all(three: Several) -> None:
    container_id = await three.create(replicas=2, min_in_sync=1)
    container = await three.led(container_id)
    expected = []
    for number in range(50):
        expected.append(bytes([number]) * 60_000)  # over several chunks, read from the disk
        await container.append_command(expected[-1])
    third = three.nodes[2].node_id
    await three.change(container_id, lambda record: structs.replace(record, replicas=(*record.replicas, third)))
    await until(lambda: len(container.state.in_sync) == 3 or None)
    assert three.payloads(2, container_id) == expected


async def test_regrouped_chunks_are_laid_out_once_for_who_is_fed_from_them_and_forgotten_then(
    three: Several, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With small frames a layout is large, and a node may feed a rebuilt peer from many containers."""
    monkeypatch.setattr(follower_feed, "KEPT_BYTES", 0)  # it is fed from the disk
    monkeypatch.setattr(follower_feed, "PIECE_BYTES", 100_000)
    container_id = await three.create(replicas=3, min_in_sync=2)
    container = await three.led(container_id)
    await three.nodes[2].stop()
    while not (full := container.log.chunks_to_close()):
        await container.append_command(bytes(50_000))
    container.log.close_chunk(full[0])
    rewrite(full[0].path)
    container.log.reopen_chunk(full[0])
    built: list[weakref.ref[frame_reading.Layout]] = []

    def counted(*chunk: Any) -> frame_reading.Layout:
        layout = lay_out(*chunk)
        built.append(weakref.ref(layout))
        return layout

    lay_out = frame_reading._frames_layout
    monkeypatch.setattr(frame_reading, "_frames_layout", counted)
    await three.nodes[2].start()
    await three.same(container_id, [0, 1, 2], end=container.end)
    assert len(built) == 1
    await until(lambda: built[0]() is None or None)


async def test_a_node_that_reads_along_becomes_a_replica(three: Several) -> None:
    """Every node follows the catalog; one that did so as an observer begins to count when it is named."""
    container_id = await three.create(replicas=2, min_in_sync=1, kind="catalog")
    container = await three.led(container_id)
    end = await container.append_command(b"one")
    await three.same(container_id, [2], end=end)
    third = three.nodes[2].node_id
    assert third not in {member.node for member in container.state.waits_for}
    await three.change(container_id, lambda record: structs.replace(record, replicas=(*record.replicas, third)))
    await until(lambda: third in {member.node for member in container.state.in_sync} or None)


async def test_who_waits_for_room_in_a_replica_that_is_removed_is_sent_elsewhere(three: Several) -> None:
    """It was told of a file that is not there (seed 142618)."""
    container_id = await three.create(replicas=3, min_in_sync=2)
    await three.led(container_id)
    replica = three.replica(0, container_id)
    await replica.close()
    shutil.rmtree(replica.folder)
    with pytest.raises(KafkaError, match="closed") as refused:
        await replica.cycle.make_room()
    assert refused.value.code is Code.NOT_LEADER_OR_FOLLOWER


async def test_who_leads_no_more_keeps_no_frames_in_memory_for_followers(three: Several) -> None:
    container_id = await three.create(replicas=3, min_in_sync=2)
    container = await three.led(container_id)
    await until(lambda: len(container.feeds) == 2 or None)
    await container.append_command(bytes(100_000))
    replica = three.replica(0, container_id)
    assert replica.recent.nbytes > 100_000
    successor = three.nodes[1].node_id
    await three.change(
        container_id, lambda record: structs.replace(record, primary=successor, epoch=Epoch(record.epoch + 1))
    )
    await until(lambda: replica.follower)
    assert replica.recent.nbytes == 0


async def test_a_leader_that_hands_over_is_out_of_touch_at_once(three: Several) -> None:
    container = await three.led(await three.create(replicas=3, min_in_sync=2))
    await until(lambda: container.in_touch or None)
    container.handing_over = True
    assert not container.in_touch


async def test_a_damaged_leader_that_could_not_say_so_is_in_touch_again_once_it_is_alone(
    three: Several, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariant 16: not before, as what the store did not answer may still have another lead."""
    container_id = await three.create(replicas=2, min_in_sync=1)
    container = await three.led(container_id)
    await until(lambda: container.in_touch or None)
    node, store, failed = three.nodes[0], three.nodes[0].store, asyncio.Event()

    async def away(_change: Callable[[ClusterStore], Any]) -> Any:
        failed.set()
        raise StoreUnavailable("no answer")

    monkeypatch.setattr(node, "store", away)
    node.replicas.damaged(container_id)
    await failed.wait()
    assert container.handing_over
    await three.nodes[1].stop()
    loop = asyncio.get_running_loop()
    await until(lambda: None if container.state.near(loop.time()) else True)
    damage = Damage()
    damage.found(container.member.incarnation)
    assert not await damage.leave(away, container_id, node.node_id, container, known=None)
    assert container.handing_over
    monkeypatch.setattr(node, "store", store)
    await until(lambda: container.in_touch or None)
    assert not container.lost


async def last_word(nodes: Several, container_id: ContainerId) -> Position:
    """A command that is committed by whoever leads in the end."""
    while True:
        try:
            return await (await nodes.led(container_id)).append_command(b"end")
        except KafkaError:
            continue


async def test_a_leader_whose_disk_hangs_says_so_and_another_leads_while_it_does(
    three: Several, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waits is told at once, and what the node does besides its disk goes on; once it writes, it follows."""
    monkeypatch.setattr(sync_cycle, "HANGS_S", 0.3)
    first, threads = three.nodes[0], 3
    containers = [await three.create(replicas=3, min_in_sync=2) for _ in range(threads + 1)]
    led = [await three.led(container_id) for container_id in containers]
    for container in led:
        await container.append_command(b"before")
        await until(lambda container=container: len(container.state.in_sync) == 3 or None)  # type: ignore[misc]
    goes_on = threading.Event()

    def hang_if_first(path: Path) -> None:
        if path.is_relative_to(first.folder):
            assert goes_on.wait(30)

    write_job, write = ContainerLog.write_job, replica_folder.write

    def writes_job(log: ContainerLog, job: WriteJob) -> None:
        hang_if_first(log.folder)
        write_job(log, job)

    def writes(folder: Path, state: replica_folder.ReplicaFile) -> None:
        hang_if_first(folder)
        write(folder, state)

    monkeypatch.setattr(ContainerLog, "write_job", writes_job)
    monkeypatch.setattr(replica_folder, "write", writes)
    try:
        waiting = led[0].append_command(b"under way")
        stuck = await until(lambda: [each.container for each in first.replicas.states() if each.stuck] or None)
        assert stuck == containers[:1]
        for container_id in containers:
            await three.change(container_id, handed_to(1, three))  # type: ignore[arg-type]
        with pytest.raises(KafkaError):
            await asyncio.wait_for(waiting, 100)
        for container_id in containers:
            second = await three.led(container_id, by=three.nodes[1])
            await asyncio.wait_for(second.append_command(b"after"), 100)
        assert not first.replicas.led
        async with asyncio.timeout(5):
            assert await asyncio.get_running_loop().run_in_executor(first.executor, lambda: "a thread")
    finally:
        goes_on.set()
    for container_id in containers:
        second = await three.led(container_id, by=three.nodes[1])
        await until(lambda second=second: len(second.state.in_sync) == 3 or None)  # type: ignore[misc]
        await three.same(container_id, [0, 1, 2], end=second.end)
        assert three.payloads(0, container_id)[-1] == b"after"
    assert not any(each.stuck for each in first.replicas.states())


async def test_a_replica_that_is_given_back_while_it_is_removed_is_made_again(
    three: Several, monkeypatch: pytest.MonkeyPatch
) -> None:
    container_id = await three.create(replicas=3, min_in_sync=1)
    container = await three.led(container_id)
    await container.append_command(b"one")
    third = three.nodes[2].node_id
    removing, may_go_on = threading.Event(), threading.Event()
    remove = replica_folder.remove

    def slowly(folder: Path) -> None:
        removing.set()
        assert may_go_on.wait(10)
        remove(folder)

    monkeypatch.setattr(replica_folder, "remove", slowly)
    await three.change(
        container_id,
        lambda record: structs.replace(
            record,
            replicas=tuple(each for each in record.replicas if each != third),
            in_sync=tuple(each for each in record.in_sync if each[0] != third),
        ),
    )
    assert await asyncio.to_thread(removing.wait, 10)
    back = await three.change(container_id, lambda record: structs.replace(record, replicas=(*record.replicas, third)))
    await until(lambda: third in three.nodes[2].view.containers[container_id].replicas or None)
    may_go_on.set()
    assert len(back.in_sync) == 2

    def is_there() -> bool | None:
        made = three.nodes[2].replicas.replica(container_id)
        return (made is not None and three.payloads(2, container_id) == [b"one"]) or None

    await until(is_there)


async def test_a_replica_that_others_got_while_its_node_was_down_goes_when_it_is_back(three: Several) -> None:
    container_id = await three.create(replicas=3, min_in_sync=1)
    kept = await three.create(replicas=3, min_in_sync=1)
    for each in (container_id, kept):
        await (await three.led(each)).append_command(b"one")
    down = three.nodes[2]
    folder = down.folder / str(container_id)
    await until(lambda: (folder.exists() and (down.folder / str(kept)).exists()) or None)
    await down.stop()
    await three.change(
        container_id,
        lambda record: structs.replace(
            record,
            replicas=tuple(each for each in record.replicas if each != down.node_id),
            in_sync=tuple(each for each in record.in_sync if each[0] != down.node_id),
        ),
    )
    (down.folder / "99").mkdir()
    await down.start()
    await until(lambda: not folder.exists() or None)
    await until(lambda: down.replicas.replica(kept))
    assert (down.folder / "99").exists(), "of what the store does not know nothing goes"


@pytest.mark.parametrize("alone", [0, 10])
async def test_a_replica_taken_away_and_given_back_while_its_node_was_down_counts_once_it_has_what_others_have(
    three: Several, alone: int
) -> None:
    """A follower that was removed and added again comes back with its former data, some of which others never had."""
    container_id = await three.create(replicas=3, min_in_sync=2)
    container = await three.led(container_id)
    await container.append_command(b"committed")
    if alone:
        await three.nodes[1].stop()
        await three.nodes[2].stop()
    waiting = [container.append_command(b"alone") for _ in range(alone)]
    await three.replica(0, container_id).cycle.flush()
    former = three.replica(0, container_id).incarnation
    end = three.replica(0, container_id).log.synced
    down = three.nodes[0]
    await down.stop()
    await asyncio.gather(*waiting, return_exceptions=True)
    for node in three.nodes[1:]:
        if not node.running:
            await node.start()
    await three.change(
        container_id,
        lambda record: structs.replace(
            handed_to(1, three, without=(0,))(record),  # type: ignore[operator]
            replicas=tuple(each for each in record.replicas if each != down.node_id),
        ),
    )
    second = await three.led(container_id, by=three.nodes[1])
    expected = [b"committed"]
    while second.log.end <= end:  # where the former data end, these logs have something else
        expected.append(b"of the others %d" % len(expected))
        await second.append_command(expected[-1])
    await three.change(container_id, lambda record: structs.replace(record, replicas=(*record.replicas, down.node_id)))
    await down.start()
    back = Member(down.node_id, former)

    def is_in_sync() -> bool | None:
        if back not in second.state.waits_for:
            return None
        assert second.state.positions()[back] <= three.replica(0, container_id).log.synced
        return True

    await until(is_in_sync)
    expected.append(b"all three")
    await second.append_command(b"all three")
    for number in range(3):
        assert three.payloads(number, container_id) == expected
    assert three.replica(0, container_id).incarnation == former


async def test_a_member_that_the_record_left_out_for_a_moment_is_named_again(three: Several) -> None:
    """A node that is drained and back at once has the replica that it had, and commits have waited for it."""
    container_id = await three.create(replicas=3, min_in_sync=2)
    container = await three.led(container_id)
    await container.append_command(b"one")
    third = three.nodes[2].node_id
    left_out = await three.change(
        container_id,
        lambda record: structs.replace(record, in_sync=tuple(each for each in record.in_sync if each[0] != third)),
    )
    assert len(left_out.in_sync) == 2
    await until(lambda: len(three.nodes[0].view.containers[container_id].in_sync) == 2 or None)
    await until(lambda: len(three.nodes[0].view.containers[container_id].in_sync) == 3 or None)
    await container.append_command(b"two")
    assert three.payloads(2, container_id) == [b"one", b"two"]


async def test_appends_go_on_while_leaders_change(three: Several) -> None:
    """What was acknowledged is in all logs, in order; the leader is handed over again and again."""
    container_id = await three.create(replicas=3, min_in_sync=2)
    acknowledged: list[bytes] = []
    stop = asyncio.Event()

    async def append() -> None:
        number = 0
        while not stop.is_set():
            container = await three.led(container_id)
            number += 1
            payload = f"{number}".encode()
            try:
                await asyncio.wait_for(container.append_command(payload), 100)
            except KafkaError:
                continue
            acknowledged.append(payload)

    appending = asyncio.create_task(append())
    for turn in range(8):
        before = len(acknowledged)
        await until(lambda before=before: len(acknowledged) > before + 20 or None)  # type: ignore[misc]
        await three.change(container_id, handed_to((turn + 1) % 3, three))  # type: ignore[arg-type]
    stop.set()
    await appending
    end = await last_word(three, container_id)
    await three.same(container_id, [0, 1, 2], end=end)
    logs = [three.payloads(number, container_id) for number in range(3)]
    assert logs[0] == logs[1] == logs[2]
    kept = [payload for payload in logs[0] if payload in set(acknowledged)]
    assert kept == acknowledged


def write_slowly(slow: Path, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set once somebody writes what the folder says. That hangs until somebody else does, or for a moment."""
    write = replica_folder.write
    writing, another = threading.Event(), threading.Event()

    def slowly(folder: Path, state: replica_folder.ReplicaFile) -> None:
        if folder == slow and writing.is_set():
            another.set()
        elif folder == slow:
            writing.set()
            another.wait(1)
        write(folder, state)

    monkeypatch.setattr(replica_folder, "write", slowly)
    return writing


@pytest.mark.parametrize("when", ["before", "after", "forgotten", "never seen"])
async def test_a_folder_goes_again_where_its_container_was_made_without_it(three: Several, when: str) -> None:
    """Seed 170299: the disk hung while it was made, and others went on; it stayed until the next start."""
    last = three.nodes[2].replicas
    taken = await three.nodes[0].store(lambda store: container_records.take_container_id(store, "data"))
    folder = three.nodes[2].folder / str(taken)
    if when in ("before", "never seen"):
        await last.prepare(taken)
        assert folder.exists()
    if when == "never seen":  # the store was away all the while
        last._kept.clear()
        deleted = DeletedContainers().and_these([taken])
        await three.nodes[0].store(lambda store: change(store, DELETED_KEY, DeletedContainers, lambda _: deleted))
        await until(lambda: not folder.exists() or None)
        return
    await three.create(replicas=2, min_in_sync=1, container_id=taken)
    await three.led(taken)
    if when == "forgotten":
        await three.change(taken, lambda record: structs.replace(record, state="deleted"))
        await three.nodes[0].store(lambda store: container_records.forget_deleted(store, [taken]))
        await until(lambda: taken not in three.nodes[2].view.containers or None)
    if when != "before":
        await until(lambda: taken in three.nodes[2].view.containers or when == "forgotten" or None)
        await last.prepare(taken)
    await until(lambda: not folder.exists() or None)


async def test_a_folder_that_is_made_while_its_container_is_forgotten_is_made_and_goes(
    three: Several, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was taken away from under who wrote it, who was told of a file that is not there."""
    node = three.nodes[2]
    taken = await three.nodes[0].store(lambda store: container_records.take_container_id(store, "data"))
    folder = node.folder / str(taken)
    writing = write_slowly(folder, monkeypatch)
    preparing = asyncio.create_task(node.replicas.prepare(taken))
    assert await asyncio.to_thread(writing.wait, 10)
    deleted = DeletedContainers().and_these([taken])
    await three.nodes[0].store(lambda store: change(store, DELETED_KEY, DeletedContainers, lambda _: deleted))
    await until(lambda: node.view.is_deleted(taken) or None)
    node.replicas.records_changed({taken})
    assert await preparing
    await until(lambda: not folder.exists() or None)


async def test_a_folder_that_is_asked_for_again_while_it_is_made_is_made_once(
    three: Several, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariant 5: who asks gives up after a while and asks again, and the record names what it is told last."""
    node = three.nodes[0]
    write_slowly(node.folder / "7", monkeypatch)
    one, other = await asyncio.gather(*(node.replicas.prepare(ContainerId(7)) for _ in range(2)))
    state = replica_folder.read(node.folder / "7")
    assert state is not None
    assert one == other == state.format


async def test_a_folder_that_is_made_while_its_container_is_opened_is_made_once(
    three: Several, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two make the catalog at a time, and one of them is through."""
    node = three.nodes[2]
    writing = write_slowly(node.folder / str(CATALOG_ID), monkeypatch)
    preparing = asyncio.create_task(node.replicas.prepare(CATALOG_ID))
    assert await asyncio.to_thread(writing.wait, 10)
    await three.create(replicas=1, min_in_sync=1, kind="catalog", container_id=CATALOG_ID)
    replica = await until(lambda: node.replicas.replica(CATALOG_ID))
    assert await preparing == replica.incarnation


async def test_a_frame_of_an_unknown_type_ends_a_follower_and_is_not_taken_for_damage(three: Several) -> None:
    """It asked for the same frames again and again, and said so to nobody."""
    container_id = await three.create(replicas=3, min_in_sync=1)
    container = await three.led(container_id)
    position = await container.append_command(b"known to both")
    unknown = container.append_control(99, b"of a later version")  # type: ignore[arg-type]
    followers = three.nodes[1:]
    await until(lambda: all(node.refused for node in followers) or None)
    for node in followers:
        assert "a frame of type 99 is of a newer version" in node.refused[0]
        replica = node.replicas.replica(container_id)
        assert replica is not None
        assert replica.log.end == position
    unknown.cancel()
