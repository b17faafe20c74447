"""What an operator does to the file of an SQLite store that is in use."""

import sqlite3
from contextlib import closing
from pathlib import Path


def checkpointed(path: Path) -> bytes:
    """The file's bytes, once all that was written is in it and nothing in the log beside it."""
    with closing(sqlite3.connect(path, isolation_level=None, timeout=20)) as connection:
        assert connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0
    return path.read_bytes()


def overwrite(path: Path, content: bytes) -> None:
    """In place: who has the file open reads the new content."""
    with path.open("r+b") as file:
        file.write(content)
        file.truncate(len(content))
