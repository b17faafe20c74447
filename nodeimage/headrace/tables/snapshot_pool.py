"""The snapshots of one node's tables while it runs: written one at a time, checked once, shared by all who read them.

Who reads one holds its open file. Two newer ones may be written meanwhile, and its name be gone: the disk has its room
back when the last reader has let go of it, or the process has ended.

The log is trimmed to the older of the two snapshots that are kept; but for as long as a follower is brought up from an
older one, to that: a follower that found its commands trimmed would begin again, and with a large catalog never end.

What happens when: who asked goes away: what was begun goes on to its end, for the next one. The disk is full: what was
there stays, and those who ask within the next seconds hear the same, without another try. The node stops: a snapshot
that is being written is given up. A follower has not caught up within an hour: the log is trimmed without it.
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
"""A follower that has not caught up by then with what came after its snapshot has the log trimmed nevertheless."""
AGAIN_S: Final = 5.0
"""Between two tries to write a snapshot that somebody waits for."""


class _Whole(NamedTuple):
    """A file that was checked."""

    inode: int
    changed: int
    size: int
    crc: int


class SharedSnapshot:
    """A snapshot that is held open. Made by `SnapshotPool.newest`, and to be closed."""

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
        """Bytes."""
        self.crc = crc
        """CRC-32C of all."""
        self.inode = os.fstat(file.fd).st_ino
        self._file: OpenFile | None = file
        self._let_go = let_go
        self._drop = drop

    def reader(self) -> Callable[[int, int], bytes]:
        """What reads, in a thread, up to so many bytes from an offset on. Raises OSError."""
        file = self._open_file()
        return lambda at, length: os.pread(file.fd, length, at)

    def summed(self) -> Callable[[], tuple[int, int]]:
        """What reads all of it, in a thread: its length and its CRC-32C. Raises OSError."""
        file = self._open_file()
        return lambda: snapshots.summed(file)

    def damaged(self) -> None:
        """Its bytes are not what they were: nobody is to get it any more."""
        self._drop(self)

    def _open_file(self) -> OpenFile:
        if self._file is None:
            raise HeadraceError(f"the snapshot at {self.position} was let go of; ask anew")
        return self._file

    def sent(self) -> None:
        """Nothing more of it is read. The log behind it is kept until `close`."""
        self._file = None

    def close(self) -> None:
        """Let go of it, and of the log behind it. May be called again."""
        self._file = None
        self._let_go(self)


class SnapshotPool:
    """One catalog's. The loop thread's own."""

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
        """`written` hears of each new snapshot; `trim` lets go of the log below a position. `damaged` hears what
        writing one finds in the tables. `stop`: the node stops."""
        self.turn = asyncio.Lock()
        """Held by whoever makes, checks or replaces files."""
        self._folder = folder
        self._executor = executor
        self._room = room
        self._stop = stop
        self._written = written
        self._trim = trim
        self._damaged = damaged
        self._loop = asyncio.get_running_loop()
        self._checked: dict[str, _Whole] = {}
        """By name."""
        self._held: dict[SharedSnapshot, float] = {}
        """Those behind which the log is kept, since when."""
        self._failure: HeadraceError | None = None
        self._again_at = 0.0
        self._tasks: set[asyncio.Task[Any]] = set()

    async def write(self) -> Position:
        """Write a snapshot; the position that it holds. Raises StorageFull, OSError or sqlite3.Error; nothing is lost.

        The log is trimmed to the older of the two that are kept, so that one damaged snapshot is not the end.
        """
        return await asyncio.shield(self._begun(self._write_in_turn()))

    async def newest(self, least: Position, *, keeps_log: bool) -> SharedSnapshot:
        """The newest snapshot that is whole; written now if there is none at `least` or behind.

        `keeps_log`: until it is closed, or for an hour, the log is not trimmed beyond its position. Raises
        HeadraceError, with StorageFull among them, OSError, and sqlite3.Error.
        """
        opening = self._begun(self._newest(least, keeps_log=keeps_log))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_unwanted)
            raise

    async def newest_kept(self) -> tuple[Path, Position] | None:
        """The newest snapshot of those that are there, if one is whole: it is checked anew. Raises as `newest`."""
        return await asyncio.shield(self._begun(self._newest_kept()))

    async def close(self) -> None:
        """Return when nothing more is being written or read here; `stop` is set."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    # --- inside

    def _begun(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """To its end, though who asked may go away: files that a thread works on are nobody else's meanwhile."""
        task = self._loop.create_task(work, name="catalog-snapshots")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # there may be nobody to tell
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
            self._trim(self._kept_from(held[0]))
        return position

    async def _newest(self, least: Position, *, keeps_log: bool) -> SharedSnapshot:
        async with self.turn:
            found = await self._loop.run_in_executor(self._executor, self._open_newest)
            if found is None or found[0] < least:
                await self._write_for_another()
                found = await self._loop.run_in_executor(self._executor, self._open_newest)
            if found is None or found[0] < least:
                raise HeadraceError(f"there is no whole snapshot of the catalog at {least} or behind; ask again")
            position, whole, file = found
            shared = SharedSnapshot(
                position=position, size=whole.size, crc=whole.crc, file=file, let_go=self._let_go, drop=self._drop
            )
            if keeps_log:
                self._held[shared] = self._loop.time()
            return shared

    async def _newest_kept(self) -> tuple[Path, Position] | None:
        async with self.turn:
            self._checked.clear()
            found = await self._loop.run_in_executor(self._executor, self._open_newest)
            return None if found is None else (snapshots.path_of(self._folder, found[0]), found[0])

    async def _write_for_another(self) -> None:
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

    def _open_newest(self) -> tuple[Position, _Whole, OpenFile] | None:
        """[blocking] Those that are damaged are removed. Raises NewerFormat where a newer version wrote one."""
        for path in reversed(snapshots.snapshots(self._folder)):
            position = snapshots.position_of(path)
            try:
                file = OpenFile.open(path, os.O_RDONLY)
                known, now = self._checked.get(path.name), os.fstat(file.fd)
                if known is None or known[:3] != (now.st_ino, now.st_mtime_ns, now.st_size):
                    snapshots.check(path, position, stop=self._stop)
                    known = _Whole(now.st_ino, now.st_mtime_ns, *snapshots.summed(file))
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

        self._begun(drop_in_turn())

    def _let_go(self, shared: SharedSnapshot) -> None:
        self._held.pop(shared, None)

    def _kept_from(self, until: Position) -> Position:
        """Where the log is to begin that may be trimmed until there."""
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
