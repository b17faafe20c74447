"""The counters of the catalog: the next numbers, and what the log has come to."""

import sqlite3

from headrace.tables.row_checksums import Tables
from headrace.tables.sqlite_errors import TablesDamaged


def level_of(connection: sqlite3.Connection) -> int:
    """The feature level that the log has come to by what is applied."""
    return counter(connection, "level") or 0


def counter(connection: sqlite3.Connection, name: str) -> int | None:
    """A counter; None: there is none. Reads, and so checks, all of the few: one whose name has changed is none that
    is not there."""
    return dict(connection.execute("SELECT name, value FROM counters")).get(name)


def needed_counter(connection: sqlite3.Connection, name: str) -> int:
    """A counter that there always is. Raises TablesDamaged."""
    found = counter(connection, name)
    if found is None:
        raise TablesDamaged(f"counters: there is no {name}")
    return found


def take_numbers(connection: Tables, name: str, count: int) -> int:
    """The first of `count` numbers that were never given out."""
    first = needed_counter(connection, name)
    connection.update("counters", {"value": "?1"}, "name = ?2", first + count, name)
    return first


def raise_counter(connection: Tables, name: str, by: int) -> None:
    """Pass over that many numbers."""
    connection.update("counters", {"value": "value + ?1"}, "name = ?2", by, name)
