"""An operator's changes to the file of an SQLite store in use."""

import sqlite3
from contextlib import closing
from pathlib import Path

from headrace.store.sqlite import SqliteStore


def checkpointed(path: Path) -> bytes:
    """The file's bytes, once everything written is in it and nothing in the log beside it."""
    with closing(sqlite3.connect(path, isolation_level=None, timeout=20)) as connection:
        assert connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0
    return path.read_bytes()


def overwrite(path: Path, content: bytes, store: SqliteStore) -> None:
    """Overwrite the file in place: every process that has it open reads the new content, including `store`. Otherwise
    pages that it has read since the log was emptied would stay in its cache until somebody writes.
    """
    with store._lock:
        store._connection.execute("PRAGMA shrink_memory")
        with path.open("r+b") as file:
            file.write(content)
            file.truncate(len(content))
