"""Copies of a SQLite file that is in use: made while others write to it, with pauses, and cancellable."""

import contextlib
import os
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from headrace.base.errors import StorageFull

_STEP: Final = 50_000
"""Instructions of SQLite's virtual machine between two pauses: about 2 ms of the CPU."""
_PAUSE_S: Final = 0.0005
"""Seconds of a pause."""
_STEPS_PER_SYNC: Final = 128
"""Number of pauses between two syncs: some 40 MiB. With more unsynced data the final sync would delay the syncs that
producers wait for."""

Room = Callable[[int], None]
"""[blocking] Raises StorageFull if the disk has no room for the given number of further bytes."""


def plenty(_length: int) -> None:
    """A `Room` without any limit."""


def copy_live(live: Path, copy: Path, *, room: Room, stop: threading.Event | None) -> None:
    """[blocking] Write the present state of the file `live` to `copy`, without free pages.

    Ends early, with an error, if `stop` is set; after an error no file is left. Raises StorageFull as `room` does,
    OSError, sqlite3.Error.
    """
    unlink_all(copy)
    try:
        source = sqlite3.connect(live, isolation_level=None, timeout=30)
        try:
            source.execute("PRAGMA cache_size=-2048")
            room(_packed_bytes(source))
            rests = _Pauses(copy, room, threading.Event() if stop is None else stop)
            source.set_progress_handler(rests, _STEP)
            try:
                source.execute("VACUUM INTO ?", (str(copy),))
            except sqlite3.OperationalError:
                if rests.failure is not None:
                    raise rests.failure from None
                raise
        finally:
            source.close()
    except BaseException:
        with contextlib.suppress(OSError):
            unlink_all(copy)
        raise


def unlink_all(path: Path) -> None:
    """Remove a SQLite file that is not open, with the files that SQLite keeps beside it."""
    for part in ("", "-journal", "-wal", "-shm"):
        path.with_name(path.name + part).unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Sync a file or a folder to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class _Pauses:
    """SQLite's progress handler while it writes a file: pauses, so that others get the CPU and the disk. Returns
    whether SQLite is to abort."""

    def __init__(self, writes: Path, room: Room, stop: threading.Event) -> None:
        self.failure: StorageFull | OSError | None = None
        self._file = writes
        self._room = room
        self._stop = stop
        self._steps = 0

    def __call__(self) -> bool:
        self._steps += 1
        if self._steps % _STEPS_PER_SYNC == 0:
            try:
                self._room(0)  # checked again, since others write, too
                sync(self._file)
            except (StorageFull, OSError) as error:  # kept, since SQLite only reports an interruption
                self.failure = error
                return True
        return self._stop.wait(_PAUSE_S)


def _packed_bytes(connection: sqlite3.Connection) -> int:
    """The upper limit of a copy's size: all pages except the free ones."""
    pages, free, size = (
        connection.execute(f"PRAGMA {each}").fetchone()[0] for each in ("page_count", "freelist_count", "page_size")
    )
    return int((pages - free) * size)
