"""Keeps the write-ahead log of a SQLite file below a bound.

SQLite starts a WAL again from its beginning only when a writer comes while no reader reads from it. While
readers overlap all the time there is no such moment, however short each is, and the file grows for as long as they go
on, whatever is checkpointed meanwhile.

So who has written looks at the file's size, and above the bound does a checkpoint that waits for the readers
(`wal_checkpoint(TRUNCATE)`). It keeps other writers out meanwhile, so that all that was written gets into the main
file; readers that begin from then on read that alone, and the longest of those that read before is all that is waited
for. Where one reads on for longer than it may hold up writing, the next attempt comes once the WAL is half as large
again, and waits twice as long.
"""

import os
import sqlite3
from pathlib import Path
from typing import Final

import structlog

log = structlog.get_logger(__name__)

FIRST_WAIT_MS: Final = 50
MOST_WAIT_MS: Final = 5_000
_GROWTH: Final = 1.5


class WalBound:
    """Of one connection that writes. Of its thread."""

    def __init__(self, connection: sqlite3.Connection, path: Path, *, most_bytes: int, busy_ms: int) -> None:
        """`path`: the main file. `most_bytes`: the WAL's size from which on it is cut. `busy_ms`: as the connection has
        it for other work."""
        self._connection = connection
        self._path = Path(f"{path}-wal")
        self._most = most_bytes
        self._busy_ms = busy_ms
        self._next = most_bytes
        self._wait_ms = FIRST_WAIT_MS

    def written(self) -> None:
        """To be called behind a commit, outside of any transaction. What goes wrong is left to the next write."""
        size = self._size()
        if size < self._most:
            self._next, self._wait_ms = self._most, FIRST_WAIT_MS  # another connection may have cut it
        elif size >= self._next:
            self._cut(size)

    def _size(self) -> int:
        try:
            return os.stat(self._path).st_size
        except OSError:
            return 0

    def _cut(self, size: int) -> None:
        cut = False
        try:
            self._connection.execute(f"PRAGMA busy_timeout={self._wait_ms}")
            (busy, _, _) = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            cut = not busy
        except sqlite3.Error as error:  # what was committed is; a full disk, or damage, is met by what is written next
            log.warning("wal_not_cut", file=str(self._path), error=str(error))
        finally:
            self._connection.execute(f"PRAGMA busy_timeout={self._busy_ms}")
        if cut:
            self._next, self._wait_ms = self._most, FIRST_WAIT_MS
        else:
            self._next = int(size * _GROWTH)
            self._wait_ms = min(2 * self._wait_ms, MOST_WAIT_MS)
