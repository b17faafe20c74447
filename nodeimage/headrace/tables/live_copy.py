"""A copy of a SQLite file that is in use: made beside whoever writes to it, with rests, and given up at a word."""

import contextlib
import os
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from headrace.base.errors import StorageFull

_STEP: Final = 50_000
"""Instructions of SQLite's machine between two rests: about 2 ms of the CPU."""
_REST_S: Final = 0.0005
_STEPS_A_SYNC: Final = 128
"""Some 40 MiB. More would keep the disk from syncing what producers wait for when the whole file is synced at the end.
"""

Room = Callable[[int], None]
"""[blocking] Raises StorageFull where the disk has no room for so many bytes more."""


def plenty(_length: int) -> None:
    """The `Room` of a disk that nobody looks after."""


def copy_live(live: Path, copy: Path, *, room: Room, stop: threading.Event | None) -> None:
    """[blocking] Write the file `live`, as it is now, to `copy`, without the pages that are free.

    Ends early where `stop` is set; leaves nothing where it does not come to its end. Raises StorageFull where `room`
    says so, OSError, sqlite3.Error.
    """
    unlink_all(copy)
    try:
        source = sqlite3.connect(live, isolation_level=None, timeout=30)
        try:
            source.execute("PRAGMA cache_size=-2048")
            room(_packed_bytes(source))
            rests = _Rests(copy, room, threading.Event() if stop is None else stop)
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
    """Remove a SQLite file that nobody has open, with what SQLite keeps beside it."""
    for part in ("", "-journal", "-wal", "-shm"):
        path.with_name(path.name + part).unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Have a file, or a folder, on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class _Rests:
    """Called by SQLite while it writes a file: leaves the CPU and the disk to others; whether it is to end."""

    def __init__(self, writes: Path, room: Room, stop: threading.Event) -> None:
        self.failure: StorageFull | OSError | None = None
        self._writes = writes
        self._room = room
        self._stop = stop
        self._steps = 0

    def __call__(self) -> bool:
        self._steps += 1
        if self._steps % _STEPS_A_SYNC == 0:
            try:
                self._room(0)  # others write too
                sync(self._writes)
            except (StorageFull, OSError) as error:  # SQLite would say no more than that it was interrupted
                self.failure = error
                return True
        return self._stop.wait(_REST_S)


def _packed_bytes(connection: sqlite3.Connection) -> int:
    """What the copy takes at most: the pages without those that are free."""
    pages, free, size = (
        connection.execute(f"PRAGMA {each}").fetchone()[0] for each in ("page_count", "freelist_count", "page_size")
    )
    return int((pages - free) * size)
