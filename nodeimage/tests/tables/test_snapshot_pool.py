"""Snapshots with several readers at a time, while others are written, while the disk is full, and after callers have
gone."""

import asyncio
import contextlib
import os
import sqlite3
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import HeadraceError, StorageFull
from headrace.base.ids import Position
from headrace.catalog.catalog import Catalog
from headrace.tables import live_copy, snapshot_pool, snapshots
from headrace.tables.snapshot_pool import SharedSnapshot
from kit.catalog import MemoryLog, paths, stream, topics, until


class Disk:
    """The room on the node's disk."""

    def __init__(self) -> None:
        self.free = 1 << 40
        self.asked: list[int] = []

    def room(self, length: int) -> None:
        self.asked.append(length)
        if length > self.free:
            raise StorageFull(f"{self.free} bytes are free")


class Held:
    """A catalog with its log and disk."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log, self.disk = folder, MemoryLog(), Disk()

    async def open(self) -> None:
        self.catalog = await Catalog.open(self.folder, self.log, room=self.disk.room)
        await self.catalog.submit(stream("/s"))
        await self.catalog.submit(topics(200))

    async def grow(self) -> Position:
        """Write a snapshot at a new position."""
        await self.catalog.submit(stream(f"/at-{self.log.end}"))
        return await self.catalog.snapshot()

    async def newest(self, least: int = 0, *, keeps_log: bool = True) -> SharedSnapshot:
        return await self.catalog.newest_snapshot(Position(least), keeps_log=keeps_log)

    def files(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir() if not path.name.startswith("catalog."))


@pytest.fixture
async def held(tmp_path: Path) -> AsyncIterator[Held]:
    held = Held(tmp_path / "catalog")
    await held.open()
    yield held
    await held.catalog.close()


def content(shared: SharedSnapshot, step: int = 10_000) -> bytes:
    read = shared.reader()
    return b"".join(read(at, step) for at in range(0, shared.size, step))


def rows(tmp_path: Path, raw: bytes) -> list[Any]:
    copy = tmp_path / "copy.sqlite"
    copy.write_bytes(raw)
    connection = sqlite3.connect(copy)
    try:
        return [path for (path,) in connection.execute("SELECT path FROM streams ORDER BY path")]
    finally:
        connection.close()


async def test_all_who_ask_at_a_time_get_one_snapshot_that_is_written_and_checked_once(
    held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, checked = [], []
    write, check = snapshots.write_snapshot, snapshots.check

    def writes(*args: Any, **how: Any) -> Position:
        written.append(args)
        return write(*args, **how)

    def checks(*args: Any, **how: Any) -> None:
        checked.append(args)
        check(*args, **how)

    monkeypatch.setattr(snapshots, "write_snapshot", writes)
    monkeypatch.setattr(snapshots, "check", checks)
    all_of_them = await asyncio.gather(*(held.newest() for _ in range(6)))
    assert (len(written), len(checked)) == (1, 1)
    assert {(each.position, each.size) for each in all_of_them} == {(held.catalog.applied, all_of_them[0].size)}
    assert len({each.crc for each in all_of_them}) == 1
    assert {content(each) for each in all_of_them} == {snapshots.snapshots(held.folder)[0].read_bytes()}


async def test_a_snapshot_that_is_read_stays_readable_though_newer_ones_take_its_place(
    held: Held, tmp_path: Path
) -> None:
    shared = await held.newest()
    name = snapshots.path_of(held.folder, shared.position)
    for _ in range(3):
        await held.grow()
    assert not name.exists()
    assert rows(tmp_path, content(shared)) == ["/s"]


async def test_its_room_on_the_disk_comes_back_with_the_last_who_reads(held: Held) -> None:
    one, other = await held.newest(), await held.newest()
    inode = one.inode

    def is_open() -> bool:
        found = set()
        for each in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):  # it may be closed already
                found.add(os.stat(f"/proc/self/fd/{each}").st_ino)
        return inode in found

    assert is_open()
    one.sent()
    assert is_open()
    other.close()
    await until(lambda: not is_open())  # the thread that opened it may hold its result for a moment


async def test_the_log_is_kept_for_as_long_as_somebody_is_brought_up_from_an_older_snapshot(held: Held) -> None:
    first = await held.newest()
    second = await held.grow()
    other = await held.newest()
    assert held.log.trimmed == first.position
    await held.grow()
    await held.grow()
    assert held.log.trimmed == first.position
    first.sent()
    await held.grow()
    assert held.log.trimmed == first.position, "it is read no more, and what came after it still is"
    first.close()
    await held.grow()
    assert held.log.trimmed == second == other.position
    other.close()
    other.close()
    third = snapshots.positions(held.folder)[-1]
    await held.grow()
    assert held.log.trimmed == third


async def test_no_log_is_kept_for_those_who_have_it_nor_for_ever(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    await held.newest(keeps_log=False)
    late = await held.newest()
    await held.grow()
    await held.grow()
    assert held.log.trimmed == late.position
    monkeypatch.setattr(snapshot_pool, "HOLD_S", -1.0)
    before = snapshots.positions(held.folder)[-1]
    await held.grow()
    assert held.log.trimmed == before > late.position
    assert content(late)
    late.close()


async def test_a_full_disk_puts_a_snapshot_off_and_takes_nothing_of_the_reserve(held: Held) -> None:
    held.disk.free = 1000
    with pytest.raises(StorageFull, match="1000 bytes are free"):
        await held.newest()
    assert held.files() == []
    assert held.disk.asked[-1] > 20_000, "what the tables take is asked for, before a byte of it is written"
    held.disk.free = 1 << 40
    with pytest.raises(StorageFull):
        await held.newest()  # a caller that retries at once does not cause another attempt
    held.catalog._snapshots._again_at = 0.0
    (await held.newest()).close()
    assert (await held.catalog.submit(stream("/goes-on"))).changed


async def test_room_that_goes_while_a_snapshot_is_written_ends_it(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_copy, "_STEP", 10)
    monkeypatch.setattr(live_copy, "_STEPS_PER_SYNC", 2)
    before = await held.grow()

    def less_and_less(length: int) -> None:
        if not length:
            raise StorageFull("others have taken the rest")

    monkeypatch.setattr(held.catalog._snapshots, "_room", less_and_less)
    await held.catalog.submit(stream("/more"))
    with pytest.raises(StorageFull, match="others have taken"):
        await held.catalog.snapshot()
    assert held.files() == [snapshots.path_of(held.folder, before).name]


async def test_who_goes_away_leaves_nothing_held_and_what_was_begun_to_the_next(
    held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, at_once, most = threading.Event(), 0, 0
    write = snapshots.write_snapshot

    def slowly(*args: Any, **how: Any) -> Position:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        assert go_on.wait(20)
        at_once -= 1
        return write(*args, **how)

    monkeypatch.setattr(snapshots, "write_snapshot", slowly)
    impatient = asyncio.create_task(held.newest())
    await until(lambda: at_once == 1)
    impatient.cancel()
    await asyncio.wait([impatient])
    patient = asyncio.create_task(held.newest())
    await asyncio.sleep(0.05)
    go_on.set()
    shared = await patient
    assert most == 1
    await until(lambda: list(held.catalog._snapshots._held) == [shared])
    shared.close()
    assert not held.catalog._snapshots._held


async def test_a_node_that_stops_gives_up_what_it_writes(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_copy, "_STEP", 10)
    monkeypatch.setattr(live_copy, "_PAUSE_S", 0.2)
    writing = asyncio.create_task(held.catalog.snapshot())
    await until(lambda: (held.folder / "snapshot.tmp").exists())
    await held.catalog.close()
    with pytest.raises(sqlite3.OperationalError, match="interrupted"):
        await writing
    assert held.files() == []


async def test_bytes_that_change_after_they_were_checked_are_given_to_nobody_else(held: Held) -> None:
    before = await held.grow()
    newest = await held.grow()
    shared = await held.newest()
    assert shared.position == newest
    with snapshots.path_of(held.folder, newest).open("r+b") as file:
        file.seek(30_000)
        file.write(b"\x7f")
    shared.damaged()
    await until(lambda: snapshots.positions(held.folder) == [before])
    assert (await held.newest()).position == before
    assert await paths(held.catalog)


async def test_who_has_no_descriptor_left_has_no_damage(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each snapshot that could not be opened was removed as damaged."""
    await held.grow()
    before = held.files()

    def none_left(*_args: Any, **_how: Any) -> Any:
        error = sqlite3.OperationalError("unable to open database file")
        error.sqlite_errorname = "SQLITE_CANTOPEN"
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(snapshots, "_open_read_only", none_left)
        with pytest.raises(sqlite3.OperationalError):
            await held.newest()
    assert held.files() == before
    with pytest.raises(HeadraceError, match="no intact snapshot"):
        await held.newest(least=held.log.end + 1)
