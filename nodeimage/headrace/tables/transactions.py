"""Transactions on the tables: commands and the applied position change together, so that each command is applied once.

A command that is refused, or that fails on a value, leaves no trace, and the commands around it are applied.
"""

import sqlite3
from collections.abc import Sequence
from pathlib import Path

import structlog

from headrace.base.errors import Code, KafkaError
from headrace.base.ids import Position
from headrace.tables.row_checksums import GRID, Tables
from headrace.tables.schema import Command, Decided, Schema
from headrace.tables.sqlite_errors import NO_TEXT, TablesDamaged, is_damage
from headrace.tables.table_check import damage_in

log = structlog.get_logger(__name__)


def applied(connection: sqlite3.Connection) -> Position:
    """The position below which every command is applied."""
    row = connection.execute("SELECT value FROM counters WHERE name = 'applied'").fetchone()
    if row is None:
        raise sqlite3.DatabaseError("the catalog has no applied position")
    return Position(row[0])


def set_back(connection: Tables, position: Position) -> None:
    """Set the applied position back to `position`, where the log ends now, and keep the rows as they are."""
    with connection.transaction():
        connection.keep(position)
    connection.committed(position)
    connection.marks.clear()
    connection.execute("PRAGMA wal_checkpoint(FULL)")  # durable before the log grows past where it was


def apply_all(connection: Tables, commands: Sequence[tuple[Position, Command]], schema: Schema) -> list[Decided]:
    """Apply commands, each with the position after its frame, in one transaction; returns each outcome or refusal.

    Commands at or below the applied position are rejected (AssertionError), as a replay starts above it. After a
    sqlite3.Error (full disk, damage) nothing is applied.
    """
    decided: list[Decided] = []
    last = connection.applied
    with connection.transaction():
        for position, command in commands:
            assert position > last, f"a command at {position} after {last}: the log went backwards"
            crosses = position // GRID > last // GRID
            last = position
            decided.append(_apply_one(connection, command, schema))
            if crosses and connection.summed:
                connection.mark(position)
        connection.keep(last)
    connection.committed(last)
    connection.wal.written()
    return decided


def _apply_one(connection: Tables, command: Command, schema: Schema) -> Decided:
    """Apply one command; returns its outcome or refusal. A command that is refused, or fails on a value, leaves no
    trace."""
    connection.execute("SAVEPOINT command")
    moved = dict(connection.moved)
    died = connection.deaths.under_way()
    refusal: KafkaError
    try:
        outcome = schema.apply(connection, command)
    except KafkaError as error:
        refusal = error
    except UnicodeDecodeError as error:
        if not connection.tolerates:
            raise TablesDamaged(NO_TEXT) from error
        refusal = KafkaError(Code.KAFKA_STORAGE_ERROR, f"the catalog's data on this is damaged: {NO_TEXT}")
    except (sqlite3.IntegrityError, sqlite3.DataError, OverflowError, ValueError, TypeError) as error:
        if isinstance(error, TypeError) and not connection.tolerates:
            _raise_damage(connection)
        # The error is the same on every replica, as it depends on the command and the rows only; a full disk raises
        # another one.
        log.error("catalog_command_failed", command=type(command).__name__, error=repr(error))
        refusal = KafkaError(Code.UNKNOWN_SERVER_ERROR, f"the catalog cannot apply {type(command).__name__}: {error}")
    except sqlite3.DatabaseError as error:
        if not connection.tolerates or not is_damage(error):
            raise
        refusal = KafkaError(Code.KAFKA_STORAGE_ERROR, f"the catalog's data on this is damaged: {error}")
    else:
        connection.execute("RELEASE command")
        return outcome
    connection.execute("ROLLBACK TO command")
    connection.execute("RELEASE command")
    connection.moved = moved
    connection.deaths.cut(died)
    return refusal


def _raise_damage(connection: Tables) -> None:
    """Raise TablesDamaged if the file is damaged: a row that must exist may be missing here because its key was
    damaged, while the command succeeds on other nodes."""
    (_, _, path) = connection.execute("PRAGMA database_list").fetchone()
    if found := damage_in(Path(path)):
        raise TablesDamaged("; ".join(found))
