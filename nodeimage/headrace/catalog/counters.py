"""The counters of the catalog: next numbers to assign, and states such as the feature level."""

import sqlite3

from headrace.tables.row_checksums import Tables
from headrace.tables.sqlite_errors import TablesDamaged


def level_of(connection: sqlite3.Connection) -> int:
    """The feature level that the applied commands have reached."""
    return counter(connection, "level") or 0


def counter(connection: sqlite3.Connection, name: str) -> int | None:
    """A counter's value; None if there is none. Reads, and thereby checks, all of the few counters, so that one with a
    damaged name is not mistaken for a missing one."""
    return dict(connection.execute("SELECT name, value FROM counters")).get(name)


def needed_counter(connection: sqlite3.Connection, name: str) -> int:
    """The value of a counter that always exists. Raises TablesDamaged if it does not."""
    found = counter(connection, name)
    if found is None:
        raise TablesDamaged(f"counters: there is no {name}")
    return found


def take_numbers(connection: Tables, name: str, count: int) -> int:
    """Assign `count` numbers that were never assigned before; returns the first."""
    first = needed_counter(connection, name)
    connection.update("counters", {"value": "?1"}, "name = ?2", first + count, name)
    return first


def raise_counter(connection: Tables, name: str, by: int) -> None:
    """Skip `by` numbers."""
    connection.update("counters", {"value": "value + ?1"}, "name = ?2", by, name)
