"""Snapshots being received into a file: neither a damaged one, nor a lack of room, nor a crash changes anything."""

import asyncio
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import CorruptLog, HeadraceError, StorageFull
from headrace.base.ids import Position
from headrace.catalog.policy import StreamPolicy
from headrace.catalog.streams import CreateStream
from headrace.catalog.tables import SCHEMA, open_tables
from headrace.tables import received_snapshot, snapshots
from headrace.tables.received_snapshot import ReceivedSnapshot
from headrace.tables.transactions import applied, apply_all
from kit.catalog import NOW, until

STEPS = {"open", "os.link", "os.rename", "os.remove", "os.truncate", "sqlite3.connect"}
"""Operations on files, by the names of CPython's audit events; a process may die at each of them."""


class Target:
    """The target of received snapshots, with its events."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.free = 1 << 30
        self.asked: list[int] = []
        self.installed: list[tuple[bytes, Position]] = []

    def room(self, length: int) -> None:
        self.asked.append(length)
        if length > self.free:
            raise StorageFull("there is no room")

    async def install(self, path: Path, position: Position) -> None:
        self.installed.append((await asyncio.to_thread(path.read_bytes), position))

    async def begin(self, size: int, executor: ThreadPoolExecutor) -> ReceivedSnapshot:
        return await ReceivedSnapshot.begin(
            self.folder, position=Position(7), size=size, executor=executor, room=self.room, install=self.install
        )


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return Target(tmp_path)


@pytest.fixture
def executor() -> Any:
    with ThreadPoolExecutor(2) as executor:
        yield executor


async def nothing_left(target: Target) -> None:
    await until(lambda: not list(target.folder.iterdir()))


async def test_it_is_handed_over_whole_and_leaves_no_file(
    target: Target, executor: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(received_snapshot, "SYNC_BYTES", 4)
    received = await target.begin(10, executor)
    for piece in (b"123", b"", b"456789", b"0"):
        await received.write(memoryview(piece))
    await received.check(received._crc)
    await received.install()
    received.close()
    assert target.installed == [(b"1234567890", 7)]
    assert target.asked[0] == 30, "the file, the WAL, and the tables"
    await nothing_left(target)


@pytest.mark.parametrize("size", [0, -1])
async def test_a_size_that_no_snapshot_has_is_refused(target: Target, executor: ThreadPoolExecutor, size: int) -> None:
    with pytest.raises(HeadraceError, match="cannot have"):
        await target.begin(size, executor)
    await nothing_left(target)


async def test_what_is_too_long_too_short_or_altered_is_refused(target: Target, executor: ThreadPoolExecutor) -> None:
    received = await target.begin(4, executor)
    await received.write(b"123")
    with pytest.raises(CorruptLog, match="longer than the 4"):
        await received.write(b"45")
    with pytest.raises(CorruptLog, match="ends after 3 of 4"):
        await received.check(None)
    await received.write(b"4")
    with pytest.raises(CorruptLog, match="damaged on its way"):
        await received.check(1)
    received.close()
    assert not target.installed
    await nothing_left(target)


async def test_what_will_not_fit_is_not_begun(target: Target, executor: ThreadPoolExecutor) -> None:
    target.free = 1 << 20
    with pytest.raises(StorageFull):
        await target.begin(1 << 50, executor)
    await nothing_left(target)


async def test_a_disk_that_is_full_half_way_ends_it(
    target: Target, executor: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwrite, full = os.pwrite, False

    def once_full(descriptor: int, piece: Any, at: int) -> int:
        if full and at:
            raise OSError(28, "No space left on device")
        return pwrite(descriptor, piece, at)

    monkeypatch.setattr(received_snapshot.os, "pwrite", once_full)
    monkeypatch.setattr(received_snapshot, "SYNC_BYTES", 2)
    received = await target.begin(4, executor)
    await received.write(b"1")
    full = True
    with pytest.raises(StorageFull):
        await received.write(b"23")
    received.close()
    await nothing_left(target)
    full = False
    received = await target.begin(4, executor)
    target.free = -1  # others have used up the room
    with pytest.raises(StorageFull):
        await received.write(b"1234")
    received.close()
    await nothing_left(target)


async def test_a_file_that_is_being_installed_goes_when_that_is_over(
    target: Target, executor: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = asyncio.Event()

    async def slowly(path: Path, _position: Position) -> None:
        await go_on.wait()
        target.installed.append((await asyncio.to_thread(path.read_bytes), Position(0)))

    monkeypatch.setattr(target, "install", slowly)
    received = await target.begin(1, executor)
    await received.write(b"1")
    installing = asyncio.create_task(received.install())
    await asyncio.sleep(0)
    installing.cancel()
    await asyncio.wait([installing])
    received.close()
    assert len(list(target.folder.iterdir())) == 1
    go_on.set()
    await nothing_left(target)
    assert target.installed == [(b"1", 0)]


# --- crashes


def tables(folder: Path, paths: list[str]) -> Position:
    """A live file of a folder, with these streams; returns its applied position."""
    folder.mkdir(exist_ok=True)
    connection = open_tables(snapshots.live_file(folder))
    for path in paths:
        at = Position(applied(connection) + 100)
        apply_all(connection, [(at, CreateStream(path, StreamPolicy(), NOW))], SCHEMA)
    try:
        return applied(connection)
    finally:
        connection.close()


def streams(folder: Path) -> list[str]:
    """The streams that a start finds, after all that it does to the files."""
    connection = snapshots.open_newest(folder, SCHEMA)
    try:
        return [path for (path,) in connection.execute("SELECT path FROM streams ORDER BY path")]
    finally:
        connection.close()


def dies_at(step: int, work: Callable[[], None]) -> bool:
    """Run `work` in a process that ends before its step of that number; returns whether it got that far."""
    pid = os.fork()
    if pid == 0:
        left = step

        def count(event: str, _args: Any) -> None:
            nonlocal left
            if event in STEPS:
                if not left:
                    os._exit(9)
                left -= 1

        try:
            sys.addaudithook(count)
            work()
            os._exit(0)
        except BaseException:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, 9), code
    return code == 9


def every_step(tmp_path: Path, made: Callable[[Path], Callable[[], None]]) -> list[list[str]]:
    """What a start finds after a crash at each step of the work that `made` returns for a folder."""
    found: list[list[str]] = []
    for step in range(100):
        folder = tmp_path / f"step-{step}"
        died = dies_at(step, made(folder))
        found.append(streams(folder))
        assert not list(folder.glob("*.tmp")), "a start removes what was on its way"
        assert streams(folder) == found[-1]
        if not died:
            return found
    raise AssertionError("it does not end")


def test_a_crash_at_any_step_of_an_install_leaves_the_old_tables_or_the_new_ones(tmp_path: Path) -> None:
    leader = tmp_path / "primary"
    position = tables(leader, ["/new", "/new-too", "/newest"])
    assert snapshots.write_snapshot(leader) == position
    raw = snapshots.path_of(leader, position).read_bytes()

    def made(folder: Path) -> Callable[[], None]:
        tables(folder, ["/old"])
        snapshots.write_snapshot(folder)
        received = folder / "received-1.tmp"
        received.write_bytes(raw)

        def install() -> None:
            connection = open_tables(snapshots.live_file(folder))
            snapshots.install(folder, connection, received, position, SCHEMA)
            received.unlink()
            connection.close()

        return install

    found = every_step(tmp_path, made)
    assert len(found) > 8
    old, new = ["/old"], ["/new", "/new-too", "/newest"]
    assert found == sorted(found, key=[old, new].index), "once new, always new"
    assert (found[0], found[-1]) == (old, new)


def test_a_crash_at_any_step_of_a_snapshot_or_a_restore_loses_nothing(tmp_path: Path) -> None:
    def written(folder: Path) -> Callable[[], None]:
        tables(folder, ["/a"])
        snapshots.write_snapshot(folder)
        tables(folder, ["/b"])
        return lambda: [snapshots.write_snapshot(folder) for _ in range(1)].clear()

    def restored(folder: Path) -> Callable[[], None]:
        written(folder)()
        return lambda: snapshots.restore(folder, SCHEMA).close()

    for number, made in enumerate((written, restored)):
        folder = tmp_path / str(number)
        folder.mkdir()
        found = every_step(folder, made)
        assert len(found) > 4
        assert all(each == ["/a", "/b"] for each in found)


def test_a_file_system_without_links_gets_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_source: Path, _target: Path) -> None:
        raise PermissionError(1, "Operation not permitted")

    position = tables(tmp_path / "primary", ["/new", "/newer"])
    snapshots.write_snapshot(tmp_path / "primary")
    tables(tmp_path / "follower", ["/old"])
    monkeypatch.setattr(snapshots.os, "link", none)
    connection = open_tables(snapshots.live_file(tmp_path / "follower"))
    source = snapshots.path_of(tmp_path / "primary", position)
    snapshots.install(tmp_path / "follower", connection, source, position, SCHEMA)
    assert connection.execute("SELECT COUNT(*) FROM streams").fetchone() == (2,)
    connection.close()
    kept = snapshots.path_of(tmp_path / "follower", position)
    assert kept.stat().st_ino != source.stat().st_ino
    assert kept.read_bytes() == source.read_bytes()


def test_an_install_that_has_no_room_for_what_goes_through_the_wal_changes_nothing(tmp_path: Path) -> None:
    position = tables(tmp_path / "primary", ["/new", "/newer"])
    snapshots.write_snapshot(tmp_path / "primary")
    tables(tmp_path / "follower", ["/old"])
    connection = open_tables(snapshots.live_file(tmp_path / "follower"))

    def none(_length: int) -> None:
        raise StorageFull("there is no room")

    source = snapshots.path_of(tmp_path / "primary", position)
    with pytest.raises(StorageFull):
        snapshots.install(tmp_path / "follower", connection, source, position, SCHEMA, room=none)
    assert connection.execute("SELECT path FROM streams").fetchall() == [("/old",)]
    connection.close()
    assert not snapshots.snapshots(tmp_path / "follower")
