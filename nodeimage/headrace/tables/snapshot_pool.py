"""The snapshots of one node's tables while it runs: written one at a time, checked once, shared by all readers.

A reader of a snapshot holds its open file. Two newer snapshots may be written meanwhile, and its name removed: its disk
space is freed when the last reader has closed it, or the process has ended.

The log is trimmed to the older of the two snapshots that are kept, or to an even older one while a follower catches up
from that: a follower that found its commands trimmed would begin again, and with a large catalog never finish.

Failures:

- The caller goes away: work that was begun is finished, for the next caller.
- Full disk: existing snapshots stay, and callers within the next seconds get the same error without another attempt.
- The node stops: a snapshot that is being written is given up.
- A follower has not caught up within an hour: the log is trimmed without regard to it.
"""

import asyncio
import os
import sqlite3
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import structlog

from headrace.base.errors import HeadraceError, NewerFormat, StorageFull
from headrace.base.ids import Position
from headrace.log.files import OpenFile, full_disk_as_storage_full, is_lost
from headrace.tables import snapshots
from headrace.tables.live_copy import Room
from headrace.tables.sqlite_errors import is_damage, is_full

log = structlog.get_logger(__name__)

T = TypeVar("T")

HOLD_S: Final = 3600.0
"""Seconds for which the log is kept for a follower that catches up from a snapshot; then the log is trimmed
nevertheless."""
AGAIN_S: Final = 5.0
"""Seconds between two attempts to write a snapshot that was requested."""


class _Checked(NamedTuple):
    """A file that was checked and found undamaged, identified by its inode, time of change (ns) and size."""

    inode: int
    changed: int
    size: int
    crc: int


class SharedSnapshot:
    """A snapshot that is held open. Created by `SnapshotPool.newest`, and to be closed."""

    def __init__(
        self,
        *,
        position: Position,
        size: int,
        crc: int,
        file: OpenFile,
        let_go: Callable[["SharedSnapshot"], None],
        drop: Callable[["SharedSnapshot"], None],
    ) -> None:
        self.position = position
        self.size = size
        """Size of the file in bytes."""
        self.crc = crc
        """CRC-32C of the whole file."""
        self.inode = os.fstat(file.fd).st_ino
        self._file: OpenFile | None = file
        self._release = let_go
        self._drop = drop

    def reader(self) -> Callable[[int, int], bytes]:
        """A function, to be run in a thread, that reads a given number of bytes from an offset on. It raises
        OSError."""
        file = self._open_file()
        return lambda at, length: os.pread(file.fd, length, at)

    def summed(self) -> Callable[[], tuple[int, int]]:
        """A function, to be run in a thread, that reads the whole file and returns its length and its CRC-32C. It
        raises OSError."""
        file = self._open_file()
        return lambda: snapshots.summed(file)

    def damaged(self) -> None:
        """Report that the file's bytes have changed: it is removed, and no further reader gets it."""
        self._drop(self)

    def _open_file(self) -> OpenFile:
        if self._file is None:
            raise HeadraceError(f"the snapshot at {self.position} is closed; request it again")
        return self._file

    def sent(self) -> None:
        """Close the file, as nothing more is read from it. The log after the snapshot is kept until `close`."""
        self._file = None

    def close(self) -> None:
        """Release the file, and the log after the snapshot. May be called again."""
        self._file = None
        self._release(self)


class SnapshotPool:
    """The snapshots of one catalog. All methods run on the loop thread, unless marked [blocking]."""

    def __init__(
        self,
        folder: Path,
        *,
        executor: Executor,
        room: Room,
        stop: threading.Event,
        written: Callable[[Position], None],
        trim: Callable[[Position], None],
        damaged: Callable[[str], None],
    ) -> None:
        """`written` is called with the position of each new snapshot; `trim` permits the log to drop commands below a
        position. `damaged` is called with damage found in the tables while writing. `stop` is set when the node
        stops."""
        self.turn = asyncio.Lock()
        """Held while files are created, checked or replaced."""
        self._folder = folder
        self._executor = executor
        self._room = room
        self._stop = stop
        self._written = written
        self._trim = trim
        self._damaged = damaged
        self._loop = asyncio.get_running_loop()
        self._checked: dict[str, _Checked] = {}
        """The newest checked file, by name."""
        self._held: dict[SharedSnapshot, float] = {}
        """Snapshots after which the log is kept, each with the loop time of its opening."""
        self._failure: HeadraceError | None = None
        self._again_at = 0.0
        self._tasks: set[asyncio.Task[Any]] = set()

    async def write(self) -> Position:
        """Write a snapshot and return its position. Raises StorageFull, OSError or sqlite3.Error, with nothing lost.

        The log is trimmed to the older of the two snapshots that are kept, so that one damaged snapshot is not fatal.
        """
        return await asyncio.shield(self._start(self._write_in_turn()))

    async def newest(self, least: Position, *, keeps_log: bool) -> SharedSnapshot:
        """The newest undamaged snapshot; a new one is written if there is none at position `least` or above.

        `keeps_log`: the log is not trimmed beyond the snapshot's position before it is closed, for an hour at most.
        Raises HeadraceError (including StorageFull), OSError, and sqlite3.Error.
        """
        opening = self._start(self._newest(least, keeps_log=keeps_log))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_unwanted)
            raise

    async def newest_kept(self) -> tuple[Path, Position] | None:
        """The newest existing snapshot that is undamaged, checked again, with its position; None if there is none.
        Raises as `newest`."""
        return await asyncio.shield(self._start(self._newest_kept()))

    async def close(self) -> None:
        """Wait until nothing is being written or checked any more; `stop` must be set before."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    # --- inside

    def _start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start work that runs to its end even if the caller goes away, so that no other work meets files that a thread
        still uses."""
        task = self._loop.create_task(work, name="catalog-snapshots")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # the caller may be gone
        return task

    async def _write_in_turn(self) -> Position:
        async with self.turn:
            return await self._write()

    async def _write(self) -> Position:
        def write() -> tuple[Position, list[Position]]:
            position = snapshots.write_snapshot(self._folder, room=self._room, stop=self._stop)
            return position, snapshots.positions(self._folder)

        try:
            position, held = await self._loop.run_in_executor(self._executor, write)
        except sqlite3.DatabaseError as error:
            if is_damage(error):
                self._damaged(str(error))
            raise
        self._written(position)
        if len(held) >= snapshots.KEPT:
            self._trim(self._trim_position(held[0]))
        return position

    async def _newest(self, least: Position, *, keeps_log: bool) -> SharedSnapshot:
        async with self.turn:
            found = await self._loop.run_in_executor(self._executor, self._open_newest)
            if found is None or found[0] < least:
                await self._write_on_demand()
                found = await self._loop.run_in_executor(self._executor, self._open_newest)
            if found is None or found[0] < least:
                raise HeadraceError(f"there is no intact snapshot of the catalog at {least} or later; ask again")
            position, whole, file = found
            shared = SharedSnapshot(
                position=position, size=whole.size, crc=whole.crc, file=file, let_go=self._release, drop=self._drop
            )
            if keeps_log:
                self._held[shared] = self._loop.time()
            return shared

    async def _newest_kept(self) -> tuple[Path, Position] | None:
        async with self.turn:
            self._checked.clear()
            found = await self._loop.run_in_executor(self._executor, self._open_newest)
            return None if found is None else (snapshots.path_of(self._folder, found[0]), found[0])

    async def _write_on_demand(self) -> None:
        if self._failure is not None and self._loop.time() < self._again_at:
            raise type(self._failure)(str(self._failure))
        self._failure = None
        try:
            with full_disk_as_storage_full(self._folder):
                await self._write()
        except (HeadraceError, OSError, sqlite3.Error) as error:
            kind = StorageFull if isinstance(error, sqlite3.Error) and is_full(error) else type(error)
            self._failure = (kind if issubclass(kind, StorageFull) else HeadraceError)(
                f"no snapshot of the catalog can be written: {error}"
            )
            self._again_at = self._loop.time() + AGAIN_S
            log.error("catalog_snapshot_failed", folder=str(self._folder), error=repr(error))
            raise self._failure from error

    def _open_newest(self) -> tuple[Position, _Checked, OpenFile] | None:
        """[blocking] Open the newest undamaged snapshot, if there is one; damaged ones are removed. Raises NewerFormat
        if a newer version wrote one."""
        for path in reversed(snapshots.snapshots(self._folder)):
            position = snapshots.position_of(path)
            try:
                file = OpenFile.open(path, os.O_RDONLY)
                known, now = self._checked.get(path.name), os.fstat(file.fd)
                if known is None or known[:3] != (now.st_ino, now.st_mtime_ns, now.st_size):
                    snapshots.check(path, position, stop=self._stop)
                    known = _Checked(now.st_ino, now.st_mtime_ns, *snapshots.summed(file))
                    self._checked = {path.name: known}
                return position, known, file
            except NewerFormat:
                raise
            except (HeadraceError, OSError) as error:
                if self._stop.is_set() or (isinstance(error, OSError) and not is_lost(error)):
                    raise
                log.error("catalog_snapshot_damaged", snapshot=path.name, error=str(error))
                path.unlink()
        return None

    def _drop(self, shared: SharedSnapshot) -> None:
        path = snapshots.path_of(self._folder, shared.position)
        log.error("catalog_snapshot_damaged", snapshot=path.name, error="its bytes have changed since it was checked")

        def drop() -> None:
            if path.exists() and path.stat().st_ino == shared.inode:
                path.unlink()

        async def drop_in_turn() -> None:
            async with self.turn:
                await self._loop.run_in_executor(self._executor, drop)

        self._start(drop_in_turn())

    def _release(self, shared: SharedSnapshot) -> None:
        self._held.pop(shared, None)

    def _trim_position(self, until: Position) -> Position:
        """The position to which the log is trimmed, given that it may be trimmed to `until`: lower if a follower still
        needs the log."""
        now, kept, late = self._loop.time(), until, []
        for shared, since in self._held.items():
            if shared.position < until:
                if now - since > HOLD_S:
                    late.append(shared)
                else:
                    kept = min(kept, shared.position)
        for shared in late:
            del self._held[shared]
            log.error("catalog_log_let_go", snapshot=shared.position, after_s=HOLD_S, trimmed_to=until)
        if kept < until:
            log.warning("catalog_log_kept", snapshot=kept, would_be_trimmed_to=until, followers=len(self._held))
        return kept


def _close_unwanted(opening: "asyncio.Task[SharedSnapshot]") -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
