"""A snapshot that comes from another node, on its way into a file: bytes in, in order, and at the end the tables.

The file lies in the catalog's folder under a name of its own; a start removes what a process left that was killed. Each
piece is written before the next one is taken, so that no more than that is in memory, and some MiB at most are not on
the disk when the last one has come.

Until `install` the tables are as they were. What does not check, by length or sum, is never installed. A full disk ends
it, at once where the whole will not fit, and another one begins later.
"""

import asyncio
import contextlib
import os
import tempfile
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from typing import Final

from crc32c import crc32c

from headrace.base.errors import CorruptLog, HeadraceError
from headrace.base.ids import Position
from headrace.log.files import full_disk_as_storage_full
from headrace.tables.live_copy import Room
from headrace.tables.snapshots import room_to_install

SYNC_BYTES: Final = 32 << 20
"""Written and not synced at most, so that the syncs of others do not wait for all of it."""


class ReceivedSnapshot:
    """Made by `begin`. One caller at a time; to be closed."""

    def __init__(
        self, path: Path, *, position: Position, size: int, executor: Executor, room: Room,
        install: Callable[[Path, Position], Awaitable[None]],
    ) -> None:  # fmt: skip
        self.position = position
        self.size = size
        """Bytes that it is to have."""
        self._path = path
        self._executor = executor
        self._room = room
        self._install = install
        self._loop = asyncio.get_running_loop()
        self._length = 0
        self._crc = 0
        self._synced = 0
        self._installing: asyncio.Future[None] | None = None

    @classmethod
    async def begin(
        cls,
        folder: Path,
        *,
        position: Position,
        size: int,
        executor: Executor,
        room: Room,
        install: Callable[[Path, Position], Awaitable[None]],
    ) -> "ReceivedSnapshot":
        """One of `size` bytes, of which `position` is the applied position; `install` takes the whole file over.

        Raises StorageFull where the disk has no room for the file and for what installing takes, HeadraceError for a
        size that no snapshot has, OSError.
        """
        if size <= 0:
            raise HeadraceError(f"a snapshot of the catalog of {size} bytes is none")
        path = await asyncio.get_running_loop().run_in_executor(executor, _make, folder, size, room)
        return cls(path, position=position, size=size, executor=executor, room=room, install=install)

    @property
    def length(self) -> int:
        """Bytes that have come."""
        return self._length

    async def write(self, piece: bytes | memoryview) -> None:
        """The next bytes. Raises HeadraceError for more than there should be, StorageFull, OSError."""
        if self._length + len(piece) > self.size:
            raise CorruptLog(f"the snapshot of the catalog is longer than the {self.size} bytes that it should have")
        if not piece:
            return  # the other side says that it lives
        at, self._length = self._length, self._length + len(piece)
        sync = self._length - self._synced >= SYNC_BYTES
        if sync:
            self._synced = self._length
        self._crc = await self._loop.run_in_executor(self._executor, partial(self._write, piece, at, sync=sync))

    async def check(self, crc: int | None) -> None:
        """All has come: it is on the disk, and what was sent. `crc`: None where the sum is not known.

        Raises CorruptLog for a length or a sum that is not right, StorageFull, OSError.
        """
        if self._length != self.size:
            raise CorruptLog(f"the snapshot of the catalog ends after {self._length} of {self.size} bytes")
        if crc is not None and crc != self._crc:
            raise CorruptLog(f"the snapshot of the catalog was damaged on its way: CRC {self._crc:#x}, not {crc:#x}")
        await self._loop.run_in_executor(self._executor, partial(self._write, b"", self._length, sync=True))

    async def install(self) -> None:
        """Have the tables be those of the snapshot, which was checked. Raises as `install` of `begin`."""
        self._installing = asyncio.ensure_future(self._install(self._path, self.position))
        self._installing.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.shield(self._installing)

    def close(self) -> None:
        """The file goes, once nobody installs it any more. Does not wait for that."""
        if self._installing is not None and not self._installing.done():
            self._installing.add_done_callback(lambda _: self._remove())
        else:
            self._remove()

    def _remove(self) -> None:
        self._loop.run_in_executor(self._executor, _remove, self._path)

    def _write(self, piece: bytes | memoryview, at: int, *, sync: bool) -> int:
        """[blocking] The CRC-32C of all up to the end of the piece.

        The file is opened each time: who cancels the call may not wait for its end, and close what it writes to.
        """
        with full_disk_as_storage_full(self._path), self._path.open("r+b", buffering=0) as file:
            left = memoryview(piece)
            while left:
                written = os.pwrite(file.fileno(), left, at)
                at, left = at + written, left[written:]
            if sync:
                self._room(0)  # others write too, and the reserve is for what they cannot do without
                os.fdatasync(file.fileno())
        return crc32c(piece, self._crc)


def _make(folder: Path, size: int, room: Room) -> Path:
    """[blocking]"""
    room(size + room_to_install(folder, size))
    with full_disk_as_storage_full(folder):
        descriptor, name = tempfile.mkstemp(dir=folder, prefix="received-", suffix=".tmp")
    os.close(descriptor)
    return Path(name)


def _remove(path: Path) -> None:
    """[blocking]"""
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
