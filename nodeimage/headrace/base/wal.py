"""Keeps the write-ahead log (WAL) of a SQLite file below a bound.

SQLite restarts a WAL from its beginning only when something is written while no reader uses the WAL. If readers overlap
all the time, there is no such moment, however short each of them is, and the file grows as long as they continue, even
if checkpoints run.

So after each write the writer checks the WAL's size, and above the bound runs a checkpoint that waits for the readers
(`wal_checkpoint(TRUNCATE)`). The checkpoint blocks other writers meanwhile, so that everything written gets into the
main file; readers that start later read only the main file, so the wait ends with the longest earlier reader. If a
reader takes longer than writes may be blocked, the next attempt follows once the WAL has grown by half, and waits twice
as long.
"""

import os
import sqlite3
from pathlib import Path
from typing import Final

import structlog

log = structlog.get_logger(__name__)

FIRST_WAIT_MS: Final = 50
MAX_WAIT_MS: Final = 5_000
_GROWTH: Final = 1.5


class WalBound:
    """Bounds the WAL of one connection that writes. For the connection's thread only."""

    def __init__(self, connection: sqlite3.Connection, path: Path, *, most_bytes: int, busy_ms: int) -> None:
        """`path`: the main file. `most_bytes`: the size from which on the WAL is truncated. `busy_ms`: the connection's
        busy timeout for other work, in milliseconds."""
        self._connection = connection
        self._path = Path(f"{path}-wal")
        self._most = most_bytes
        self._busy_ms = busy_ms
        self._next = most_bytes
        self._wait_ms = FIRST_WAIT_MS

    def written(self) -> None:
        """Checks the WAL's size. Call it after a commit, outside of any transaction. Errors are logged, not raised."""
        size = self._size()
        if size < self._most:
            self._next, self._wait_ms = self._most, FIRST_WAIT_MS  # another connection may have truncated it
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
        except sqlite3.Error as error:  # the commit is done; the next write meets the full disk or the damage
            log.warning("wal_not_cut", file=str(self._path), error=str(error))
        finally:
            self._connection.execute(f"PRAGMA busy_timeout={self._busy_ms}")
        if cut:
            self._next, self._wait_ms = self._most, FIRST_WAIT_MS
        else:
            self._next = int(size * _GROWTH)
            self._wait_ms = min(2 * self._wait_ms, MAX_WAIT_MS)
