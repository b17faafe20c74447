"""A node that joins gets the catalog's snapshot piece by piece, whatever happens meanwhile to the connection, the
disks, the roles and the versions; and neither side holds more than a few pieces of it."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from headrace.base.errors import CorruptLog, HeadraceError
from headrace.base.ids import Position
from headrace.container import follower, follower_feed, snapshot_transfer
from headrace.container.follower_feed import FollowerFeed
from headrace.node.snapshot_sending import GivenSnapshot, Pacer
from headrace.peer.messages import Commit, SnapshotPiece
from headrace.store.records import CATALOG_ID
from headrace.tables.received_snapshot import ReceivedSnapshot
from kit.catalog_nodes import CHUNK_BYTES, WithTables
from kit.several_replicas import until

PIECE = 16_384


@pytest.fixture
async def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[WithTables]:
    """The log begins after what a new node lacks; a snapshot has about ten pieces."""
    monkeypatch.setattr(snapshot_transfer, "PIECE_BYTES", PIECE)
    monkeypatch.setattr(follower, "FULL_RETRY_S", 0.05)
    nodes = WithTables(tmp_path)
    for node in nodes.several.nodes:
        node.chunk_bytes = CHUNK_BYTES
    await nodes.several.start()
    await nodes.several.create(replicas=2, min_in_sync=1, kind="catalog", container_id=CATALOG_ID)
    await nodes.several.led(CATALOG_ID)
    for number in range(3):
        await nodes.open(number)
    await nodes.trim()
    yield nodes
    for number in range(3):
        await nodes.stop(number)


def sends(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The positions of the pieces that are read from now on."""
    found: list[int] = []
    read = GivenSnapshot.read

    async def reads(given: GivenSnapshot, at: int, length: int) -> bytes:
        found.append(at)
        return await read(given, at, length)

    monkeypatch.setattr(GivenSnapshot, "read", reads)
    return found


async def joined(nodes: WithTables) -> None:
    """Node 2 has what node 0 has, continues with it, and no part of the snapshot is held or left."""
    await nodes.write(0, "/after", applied_by=(1, 2))
    assert await nodes.paths(2) == await nodes.paths(0)
    await until(lambda: nodes.several.replica(2, CATALOG_ID).log.start > 0 or None)
    await until(lambda: not nodes.tables(0)._snapshots._held or None)
    folder = nodes.node(2).folder.parent / "catalog"
    await until(lambda: not list(folder.glob("*.tmp")) or None)


async def test_a_node_that_joins_gets_a_snapshot_piece_by_piece(
    nodes: WithTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, written = sends(monkeypatch), []
    write = ReceivedSnapshot.write

    async def writes(received: ReceivedSnapshot, piece: Any) -> None:
        written.append(len(piece))
        await write(received, piece)

    monkeypatch.setattr(ReceivedSnapshot, "write", writes)
    await nodes.begin_empty(2)
    await joined(nodes)
    assert len(read) > 5
    assert max(written) == PIECE
    assert sum(written) == nodes.tables(2)._snapshots._folder.joinpath(newest(nodes, 2)).stat().st_size


def newest(nodes: WithTables, number: int) -> str:
    return max(path.name for path in (nodes.node(number).folder.parent / "catalog").glob("snapshot-*"))


async def test_a_connection_that_breaks_at_any_piece_begins_again(
    nodes: WithTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, cuts, at = ReceivedSnapshot.write, itertools.count(), 0

    async def cut(received: ReceivedSnapshot, piece: Any) -> None:
        nonlocal at
        if piece and received.length == at * PIECE:
            at = next(cuts) + 1
            session = nodes.several.replica(2, CATALOG_ID).follower._session  # type: ignore[union-attr]
            assert session is not None
            session.abort("cut")
        await write(received, piece)

    monkeypatch.setattr(ReceivedSnapshot, "write", cut)
    monkeypatch.setattr(follower, "RETRY_S", (0.0,))
    await nodes.begin_empty(2)
    await joined(nodes)
    assert at > 5


async def test_a_follower_that_goes_away_ends_the_sending_at_once(
    nodes: WithTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, never = asyncio.Event(), asyncio.Event()

    async def hangs(*_args: Any) -> bytes:
        reading.set()
        await never.wait()
        return b""

    with monkeypatch.context() as patched:
        patched.setattr(GivenSnapshot, "read", hangs)
        starting = asyncio.create_task(nodes.begin_empty(2))
        await reading.wait()
        await starting
        assert nodes.tables(0)._snapshots._held
        await nodes.stop(2)
        await until(lambda: not nodes.tables(0)._snapshots._held or None)
        assert not [each for each in nodes.node(0).replicas.led[CATALOG_ID].feeds if each._sends_snapshot]  # type: ignore[attr-defined]
    await nodes.start(2)
    await joined(nodes)


async def test_a_leader_that_leads_no_more_ends_the_sending_at_once(
    nodes: WithTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, never = asyncio.Event(), asyncio.Event()
    read = GivenSnapshot.read

    async def hangs(given: GivenSnapshot, at: int, length: int) -> bytes:
        if at and given.position == first:
            reading.set()
            await never.wait()
        return await read(given, at, length)

    given = await nodes.catalog(0).snapshot(Position(0))
    first = given.position
    given.close()
    await nodes.write(1 if nodes.leads_in(1) else 0, "/later", applied_by=(0, 1))
    await nodes.tables(1).snapshot()
    monkeypatch.setattr(GivenSnapshot, "read", hangs)
    await nodes.begin_empty(2)
    await reading.wait()
    await nodes.led_uncleanly(1)
    await until(lambda: not nodes.tables(0)._snapshots._held or None)
    end = await nodes.write(1, "/of-the-next", applied_by=())
    await nodes.tables(2).wait_applied(end)
    assert await nodes.paths(2) == await nodes.paths(1)


async def old_send(snapshot: Any, session: Any) -> None:
    """Sends the snapshot as in commit 523cdbc."""
    piece = memoryview(await snapshot.read(0, snapshot.size))
    for at in range(0, len(piece), 50_000):
        session.send(SnapshotPiece(last=at + 50_000 >= len(piece)), [piece[at : at + 50_000]])


async def old_receive(incoming: Any, next_message: Any) -> None:
    """Receives the snapshot as in commit 523cdbc."""
    received = bytearray()
    while True:
        message, payload = await next_message()
        if not isinstance(message, SnapshotPiece):
            raise HeadraceError("the primary broke off its snapshot")
        received += payload
        if message.last:
            break
    await incoming.write(memoryview(received))


@pytest.mark.parametrize("old", ["primary", "follower"])
async def test_versions_that_hold_all_of_it_in_memory_give_it_and_get_it(
    nodes: WithTables, monkeypatch: pytest.MonkeyPatch, old: str
) -> None:
    replaced, by = ("send", old_send) if old == "primary" else ("receive", old_receive)
    used = mock.AsyncMock(side_effect=by)
    monkeypatch.setattr(snapshot_transfer, replaced, used)
    read = GivenSnapshot.read

    async def with_beats(given: GivenSnapshot, at: int, length: int) -> bytes:
        for each in nodes.node(0).replicas.led[CATALOG_ID].feeds:
            each.beat()
        return await read(given, at, length)

    monkeypatch.setattr(GivenSnapshot, "read", with_beats)
    await nodes.begin_empty(2)
    await joined(nodes)
    used.assert_awaited()


@pytest.mark.parametrize("number", [0, 2], ids=["of the primary", "of the follower"])
async def test_a_full_disk_puts_it_off_and_stops_nothing_else(nodes: WithTables, number: int) -> None:
    for snapshot in (nodes.node(0).folder.parent / "catalog").glob("snapshot-*"):
        snapshot.unlink()  # one has to be written
    nodes.free[number] = 10_000
    await nodes.begin_empty(2)
    replica = nodes.several.replica(2, CATALOG_ID)
    await until(lambda: (replica.follower is not None and replica.follower._full_reported) or None)
    await nodes.write(0, "/while-it-is-full", applied_by=(1,))
    assert await nodes.paths(2) == []
    nodes.free[number] = 1 << 40
    nodes.tables(0)._snapshots._again_at = 0.0
    await joined(nodes)


async def test_what_was_damaged_on_its_way_is_asked_for_again(
    nodes: WithTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, flipped = ReceivedSnapshot.write, 0

    async def flips(received: ReceivedSnapshot, piece: Any) -> None:
        nonlocal flipped
        if received.length == 3 * PIECE and not flipped:
            flipped += 1
            piece = bytes([*piece[:100], piece[100] ^ 1, *piece[101:]])
        await write(received, piece)

    monkeypatch.setattr(ReceivedSnapshot, "write", flips)
    await nodes.begin_empty(2)
    await joined(nodes)
    assert flipped


async def test_what_has_changed_on_the_disk_is_never_sent_to_its_end(
    nodes: WithTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, position = GivenSnapshot.read, 0

    async def flipped(given: GivenSnapshot, at: int, length: int) -> bytes:
        nonlocal position
        position = position or given.position
        piece = await read(given, at, length)
        return bytes(len(piece)) if at and given.position == position else piece

    monkeypatch.setattr(GivenSnapshot, "read", flipped)
    await nodes.begin_empty(2)
    await joined(nodes)
    assert not nodes.tables(0)._snapshots._folder.joinpath(f"snapshot-{position:020d}.sqlite").exists()


# --- the sender alone


class Wire:
    """A session whose other side takes nothing until it is allowed to."""

    def __init__(self) -> None:
        self.sent: list[tuple[Any, int]] = []
        self.free = asyncio.Event()
        self.closed = False

    def send(self, message: Any, buffers: Any = ()) -> None:
        self.sent.append((message, sum(map(len, buffers))))

    async def drained(self) -> None:
        await self.free.wait()

    def close(self) -> None:
        self.closed = True


class Given:
    """An outgoing snapshot of zeros."""

    def __init__(self, size: int) -> None:
        self.position, self.size, self.crc = Position(5), size, snapshot_transfer.crc32c(bytes(size))
        self.reads = 0
        self.done: list[str] = []

    async def read(self, _at: int, length: int) -> bytes:
        self.reads += 1
        return bytes(length)

    def damaged(self) -> None:
        self.done.append("damaged")

    def sent(self) -> None:
        self.done.append("sent")

    def close(self) -> None:
        self.done.append("closed")


async def test_no_more_is_read_than_the_follower_takes() -> None:
    wire, given = Wire(), Given(snapshot_transfer.PIECE_BYTES * 3 + 1)
    sending = asyncio.create_task(snapshot_transfer.send(given, wire))
    for _ in range(20):
        await asyncio.sleep(0)
    assert (given.reads, len(wire.sent)) == (1, 1)
    wire.free.set()
    await sending
    assert [length for _, length in wire.sent] == [snapshot_transfer.PIECE_BYTES] * 3 + [1]
    assert [(message.last, message.crc) for message, _ in wire.sent] == [(False, None)] * 3 + [(True, given.crc)]
    assert given.done == ["sent"]


async def test_a_follower_that_takes_nothing_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_transfer, "STALLED_S", 0.01)
    with pytest.raises(TimeoutError):
        await snapshot_transfer.send(Given(10), Wire())


async def test_a_file_that_has_become_shorter_is_damaged() -> None:
    wire, given = Wire(), Given(10)
    wire.free.set()
    given.size = 20
    given.read = lambda at, _length: _some(b"" if at else bytes(10))  # type: ignore[method-assign]
    with pytest.raises(HeadraceError, match="has changed on the disk"):
        await snapshot_transfer.send(given, wire)
    assert given.done == ["damaged"]
    assert not any(message.last for message, _ in wire.sent)


async def _some(piece: bytes) -> bytes:
    return piece


async def test_another_message_within_a_snapshot_is_refused() -> None:
    async def next_message() -> tuple[object, memoryview]:
        return Commit(committed=Position(1)), memoryview(b"")

    incoming: Any = None
    with pytest.raises(CorruptLog, match="sent a Commit within"):
        await snapshot_transfer.receive(incoming, next_message)


async def test_while_a_snapshot_is_sent_the_leader_says_that_it_lives_in_a_way_that_every_version_takes(
    nodes: WithTables,
) -> None:
    wire, given, container = Wire(), Given(10), nodes.node(0).replicas.led[CATALOG_ID]
    member = container.member
    sending: Any = FollowerFeed(
        leader=container,
        member=member,
        session=wire,
        begin=Position(5),
        recent=nodes.several.replica(0, CATALOG_ID).recent,
        executor=nodes.node(0).executor,
        observer=True,
        snapshot=given,
    )
    sending.beat()
    assert wire.sent == [(SnapshotPiece(last=False), 0)]
    sending.start()
    await until(lambda: len(wire.sent) == 2 or None)
    sending.beat()
    assert wire.sent[-1] == (SnapshotPiece(last=False), 0)
    sending.close()
    assert (wire.closed, given.done) == (True, ["closed"])


# --- the pace


def turns(rate: int, lengths: list[int]) -> Iterator[float]:
    """Seconds after which each of several concurrent callers may continue."""
    loop, slept = asyncio.get_running_loop(), 0.0

    async def sleep(seconds: float) -> None:
        nonlocal slept
        slept = seconds

    pacer = Pacer(rate)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(asyncio, "sleep", sleep)
        patched.setattr(loop, "time", lambda: 100.0)
        for length in lengths:
            slept = 0.0
            with contextlib.suppress(StopIteration):
                pacer.take(length).send(None)
            yield slept


async def test_all_who_are_sent_snapshots_share_one_pace_in_turn() -> None:
    assert list(turns(1000, [500, 500, 1000, 10])) == pytest.approx([0.0, 0.5, 1.0, 2.0])
    assert list(turns(0, [500, 500])) == [0.0, 0.0]
    assert follower_feed.PREPARING_S < follower.SILENCE_S
