"""Replication between the replicas of several nodes: real logs and connections, without catalog and broker."""

import asyncio
import shutil
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from headrace.base.errors import KafkaError
from headrace.base.ids import ContainerId, Epoch, Position
from headrace.container import follower_feed, replica_folder
from headrace.container.leader_state import LET_GO_S, Member
from headrace.container.replicas import SUPERSEDED_S
from headrace.store import container_records
from headrace.store.compare_and_set import change
from headrace.store.protocol import ClusterStore, StoreUnavailable
from headrace.store.records import CATALOG_ID, DELETED_KEY, ContainerRecord, DeletedContainers
from kit.several_replicas import OneNode, Several, handed_to, until


async def test_what_is_committed_is_on_every_replica(three: Several) -> None:
    container_id = await three.create(replicas=3, min_in_sync=2)
    container = await three.led(container_id)
    await container.append_command(b"written perhaps before a follower is there, and not timed then")
    times = container.log.options.times
    timed = times.commit.count
    for number in range(20):
        position = await container.append_command(f"{number}".encode())
        for each in (1, 2):
            assert three.replica(each, container_id).log.synced >= position
    assert three.payloads(1, container_id) == three.payloads(2, container_id) == three.payloads(0, container_id)
    assert times.commit.count - timed >= 20
    assert times.sync.count >= times.commit.count


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
    """From the moment `away` is set, the first node does not reach the cluster store."""
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
    """Otherwise it would keep what it is sent, and tell clients that it leads, while the store is unavailable."""
    container_id = await three.create(replicas=3, min_in_sync=2)
    container = await three.led(container_id)
    await until(lambda: len(container.feeds) == 2 or None)  # a node that does not follow yet cannot report it
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
    """Nothing is committed until one of them is back; requests must not wait for that."""
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
    """Suspend the whole process, with all of its nodes."""
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


async def test_after_an_unclean_recovery_within_a_gap_a_replica_counts_for_nothing_that_it_lacks(
    three: Several, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariants 1, 7: a recreated replica has a gap where another one had dropped a chunk; the next leader's log ends
    in it."""
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
        lambda record: structs.replace(record, leader=alone[0][0], epoch=Epoch(record.epoch + 1), in_sync=alone),
    )
    second = await until(lambda: three.nodes[2].replicas.led.get(container_id))
    assert second.log.end == ends
    await three.nodes[1].start()
    position = await asyncio.wait_for(second.append_command(b"acknowledged"), 100)
    assert three.payloads(1, container_id) == [b"first", b"acknowledged"]
    assert three.replica(1, container_id).log.end == position


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


async def test_a_leader_that_hands_over_is_out_of_touch_at_once(three: Several) -> None:
    container = await three.led(await three.create(replicas=3, min_in_sync=2))
    await until(lambda: container.in_touch or None)
    container.handing_over = True
    assert not container.in_touch


async def last_word(nodes: Several, container_id: ContainerId) -> Position:
    """A command that is committed by whichever node leads in the end."""
    while True:
        try:
            return await (await nodes.led(container_id)).append_command(b"end")
        except KafkaError:
            continue


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
    """A follower that was removed and added again returns with its former data, some of which others never had."""
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
    """A node that is drained and back at once still has its replica, and commits have been waiting for it."""
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
    """All that was acknowledged is in all logs, in order, while the container is handed over again and again."""
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
    """Set once the state file of a folder is being written. The write hangs until another one begins, or for a
    moment."""
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
    """Seed 170299: the disk hung while the folder was created, and the others continued; the folder stayed until the
    next start."""
    last = three.nodes[2].replicas
    taken = await three.nodes[0].store(lambda store: container_records.take_container_id(store, "data"))
    folder = three.nodes[2].folder / str(taken)
    if when in ("before", "never seen"):
        await last.prepare(taken)
        assert folder.exists()
    if when == "never seen":  # the store was away all the while
        last._slots.clear()
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
    """It was removed while it was being written, and the writer got an error about a missing file."""
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
    """Invariant 5: a caller gives up after a while and asks again, and the record names the last answer."""
    node = three.nodes[0]
    write_slowly(node.folder / "7", monkeypatch)
    one, other = await asyncio.gather(*(node.replicas.prepare(ContainerId(7)) for _ in range(2)))
    state = replica_folder.read(node.folder / "7")
    assert state is not None
    assert one == other == state.format


async def test_a_folder_that_is_made_while_its_container_is_opened_is_made_once(
    three: Several, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two nodes create the catalog at the same time, and one of them has finished."""
    node = three.nodes[2]
    writing = write_slowly(node.folder / str(CATALOG_ID), monkeypatch)
    preparing = asyncio.create_task(node.replicas.prepare(CATALOG_ID))
    assert await asyncio.to_thread(writing.wait, 10)
    await three.create(replicas=1, min_in_sync=1, kind="catalog", container_id=CATALOG_ID)
    replica = await until(lambda: node.replicas.replica(CATALOG_ID))
    assert await preparing == replica.incarnation
