"""What followers are sent: how much, from where, and how long a follower that does not take it is waited for."""

import asyncio
import shutil
import weakref
from typing import Any

import pytest
from msgspec import structs

from headrace.base.errors import Code, KafkaError
from headrace.base.ids import Epoch
from headrace.container import follower_feed
from headrace.container.follower_feed import Piece, Recent
from headrace.log import frame_reading
from headrace.log.frames import MAX_PAYLOAD_BYTES
from headrace.log.regroup import rewrite
from headrace.peer.messages import Acked, Frames, Message
from kit.replaced_methods import replace_method
from kit.several_replicas import Several, until


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
    """A longer frame could be sent to no follower, so it must not be appended."""
    container_id = await three.create(replicas=3, min_in_sync=2)
    container = await three.led(container_id)
    for payload in (bytes(MAX_PAYLOAD_BYTES), b"next"):
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
    send = failing._session.send

    def fails(message: Message, *more: Any) -> None:
        if not isinstance(message, Frames):
            send(message, *more)
            return
        tried.append(message)
        raise KafkaError(Code.MESSAGE_TOO_LARGE)

    replace_method(monkeypatch, failing._session, "send", fails)
    await until(lambda: getattr(failing, "_live", None) or None)
    await asyncio.wait_for(container.append_command(b"meanwhile"), 100)
    assert tried
    assert failing not in container.feeds
    await three.same(container_id, [0, 1, 2], end=container.end)  # it asked again


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


async def test_who_waits_for_room_in_a_replica_that_is_removed_is_sent_elsewhere(three: Several) -> None:
    """The caller got an error about a missing file (seed 142618)."""
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
        container_id, lambda record: structs.replace(record, leader=successor, epoch=Epoch(record.epoch + 1))
    )
    await until(lambda: replica.follower)
    assert replica.recent.nbytes == 0


def piece(start: int, end: int) -> Piece:
    return Piece(start, end, (bytes(end - start),))


def test_frames_in_memory_are_the_newest_without_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower_feed, "KEPT_BYTES", 30)
    recent = Recent()
    for each in (piece(0, 10), piece(10, 20), piece(20, 30)):
        recent.keep(each)
    assert [found.start for found in recent.since(10) or ()] == [10, 20]
    assert recent.since(15) is None, "no piece begins there"
    assert recent.since(30) is None
    recent.keep(piece(30, 40))
    assert recent.since(0) is None, "the oldest has left"
    assert recent.nbytes == 30
    recent.keep(piece(50, 55))
    assert recent.since(30) is None, "what lies before a gap is of no use to a follower"
    assert [found.start for found in recent.since(50) or ()] == [50]
    recent.keep(piece(55, 200))
    assert [found.start for found in recent.since(55) or ()] == [55], "the newest stays, however long"
    recent.clear()
    assert (recent.since(55), recent.nbytes) == (None, 0)
