"""Classification of SQLite's errors: damage of the file, no room, or no file descriptors."""

import sqlite3
from typing import Final

from headrace.log import descriptors

_DAMAGE: Final = (
    "SQLITE_CORRUPT",
    "SQLITE_NOTADB",
    "SQLITE_IOERR_CORRUPTFS",
    "SQLITE_IOERR_READ",
    "SQLITE_IOERR_SHORT_READ",
)
"""Names of errors that mean damaged contents of a file. CORRUPTFS is a sector that the disk cannot read (EIO)."""
_CANNOT_OPEN: Final = ("SQLITE_CANTOPEN", "SQLITE_IOERR_SHMOPEN")
_DAMAGE_TEXTS: Final = (
    "user-defined function raised exception",  # a row's sum does not fit (row_checksums.py)
    "Could not decode to UTF-8",
    "unable to build parameters",  # such a function cannot get text that is not valid UTF-8
    "no such table",
    "no such column",
    "no such index",
    "has no column named",
)
"""Beginnings of the messages of errors that correct statements raise because of damaged rows or a damaged schema."""


NO_TEXT: Final = "the schema contains invalid text"
"""The message for a schema with invalid text: the sqlite3 module then cannot decode SQLite's own message, and raises
UnicodeDecodeError."""


class TablesDamaged(sqlite3.DatabaseError):
    """The contents of a file of the tables are not what was written."""


def is_damage(error: sqlite3.Error) -> bool:
    """Whether an error means that the file itself is damaged, rather than, say, a full disk or a locked file."""
    name = getattr(error, "sqlite_errorname", "")
    return (
        name.startswith(_DAMAGE)
        or type(error) in (sqlite3.DatabaseError, TablesDamaged)
        or (isinstance(error, sqlite3.OperationalError) and str(error).startswith(_DAMAGE_TEXTS))
    )


def cannot_open(error: sqlite3.Error) -> bool:
    """Whether an error means that SQLite could not open a file, for any reason."""
    return getattr(error, "sqlite_errorname", "").startswith(_CANNOT_OPEN)


def is_full(error: sqlite3.Error) -> bool:
    """[blocking] Whether an error means that there is no room on the disk, or no file descriptor."""
    name = getattr(error, "sqlite_errorname", "")
    if cannot_open(error):
        return descriptors.are_lacking()
    return name.startswith("SQLITE_FULL") or (
        # SQLite reports a full disk as a failed write when it extends the WAL or the shared-memory index.
        name in ("SQLITE_IOERR_WRITE", "SQLITE_IOERR_SHMSIZE", "SQLITE_IOERR_TRUNCATE")
    )
