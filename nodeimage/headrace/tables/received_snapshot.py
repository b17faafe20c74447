"""A snapshot being received from another node: its bytes are written to a file, which finally replaces the tables.

The file lies in the catalog's folder under a unique name; a start removes files left by a killed process. Each piece is
written before the next one is accepted, so that only one is in memory, and only some MiB are unsynced when the last one
has arrived.

Until `install` the tables stay as they were. A snapshot with a wrong length or checksum is never installed. A full disk
ends the transfer, at once if the whole file will not fit, and another one begins later.
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
"""Limit of bytes that are written but not synced, so that the syncs of others do not wait for the whole file."""


class ReceivedSnapshot:
    """A snapshot being received. Created by `begin`, used by one caller at a time, and to be closed."""

    def __init__(
        self, path: Path, *, position: Position, size: int, executor: Executor, room: Room,
        install: Callable[[Path, Position], Awaitable[None]],
    ) -> None:  # fmt: skip
        self.position = position
        self.size = size
        """The expected size of the whole snapshot in bytes."""
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
        """Begin to receive a snapshot of `size` bytes with the applied position `position`; `install` is called with
        the complete file.

        Raises StorageFull if the disk has no room for the file and its installation, HeadraceError for an impossible
        size, OSError.
        """
        if size <= 0:
            raise HeadraceError(f"a snapshot of the catalog cannot have {size} bytes")
        path = await asyncio.get_running_loop().run_in_executor(executor, _create_file, folder, size, room)
        return cls(path, position=position, size=size, executor=executor, room=room, install=install)

    @property
    def length(self) -> int:
        """The number of bytes received."""
        return self._length

    async def write(self, piece: bytes | memoryview) -> None:
        """Write the next bytes. Raises HeadraceError for more bytes than expected, StorageFull, OSError."""
        if self._length + len(piece) > self.size:
            raise CorruptLog(f"the snapshot of the catalog is longer than the {self.size} bytes that it should have")
        if not piece:
            return  # a sign of life from the sender
        at, self._length = self._length, self._length + len(piece)
        sync = self._length - self._synced >= SYNC_BYTES
        if sync:
            self._synced = self._length
        self._crc = await self._loop.run_in_executor(self._executor, partial(self._write, piece, at, sync=sync))

    async def check(self, crc: int | None) -> None:
        """Check the complete file and sync it. `crc`: the sender's CRC-32C; None if it is not known.

        Raises CorruptLog for a wrong length or checksum, StorageFull, OSError.
        """
        if self._length != self.size:
            raise CorruptLog(f"the snapshot of the catalog ends after {self._length} of {self.size} bytes")
        if crc is not None and crc != self._crc:
            raise CorruptLog(f"the snapshot of the catalog was damaged on its way: CRC {self._crc:#x}, not {crc:#x}")
        await self._loop.run_in_executor(self._executor, partial(self._write, b"", self._length, sync=True))

    async def install(self) -> None:
        """Replace the tables by the snapshot, which was checked. Raises what the `install` given to `begin` raises."""
        self._installing = asyncio.ensure_future(self._install(self._path, self.position))
        self._installing.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.shield(self._installing)

    def close(self) -> None:
        """Remove the file, after an installation under way. Does not wait for that."""
        if self._installing is not None and not self._installing.done():
            self._installing.add_done_callback(lambda _: self._remove())
        else:
            self._remove()

    def _remove(self) -> None:
        self._loop.run_in_executor(self._executor, _remove, self._path)

    def _write(self, piece: bytes | memoryview, at: int, *, sync: bool) -> int:
        """[blocking] Write a piece; returns the CRC-32C of everything up to its end.

        The file is opened each time, since a cancelled caller does not wait for the write, and could close the file
        meanwhile.
        """
        with full_disk_as_storage_full(self._path), self._path.open("r+b", buffering=0) as file:
            left = memoryview(piece)
            while left:
                written = os.pwrite(file.fileno(), left, at)
                at, left = at + written, left[written:]
            if sync:
                self._room(0)  # checked again, since others write, too, and must not be deprived of the reserve
                os.fdatasync(file.fileno())
        return crc32c(piece, self._crc)


def _create_file(folder: Path, size: int, room: Room) -> Path:
    """[blocking] Create the file, if there is room for it and its installation."""
    room(size + room_to_install(folder, size))
    with full_disk_as_storage_full(folder):
        descriptor, name = tempfile.mkstemp(dir=folder, prefix="received-", suffix=".tmp")
    os.close(descriptor)
    return Path(name)


def _remove(path: Path) -> None:
    """[blocking] Remove the file, ignoring errors."""
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
