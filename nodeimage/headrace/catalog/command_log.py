"""What the catalog asks of its container, and the replay of the container's log when the catalog opens."""

import asyncio
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import structlog

from headrace.catalog import snapshots
from headrace.catalog.commands import Command, decode
from headrace.catalog.tables import applied, apply_all, set_back
from headrace.errors import StorageFull
from headrace.ids import Position

log = structlog.get_logger(__name__)

AT_ONCE = 1024
"""Commands in one transaction at most, so that the first submitter does not wait for all."""

_REPLAY_BYTES = 1 << 20
"""Of payloads in one transaction of a replay: decoded they are many times larger."""


class CommandLog(Protocol):
    """What the catalog asks of its container."""

    @property
    def end(self) -> int:
        """Where the log ends."""

    def append_command(self, payload: bytes) -> asyncio.Future[Position]:
        """Resolves when committed, in the order of the calls, with the position after the frame."""

    def commands(self, after: Position) -> Iterator[tuple[Position, bytes]]:
        """[blocking] Committed commands in order, from the frame at `after`: (position after the frame, payload).

        Must raise, rather than leave out commands, where those after `after` have been trimmed.
        """

    def trim(self, until: Position) -> None:
        """Commands below `until` are no longer needed."""


def open_and_replay(folder: Path, command_log: CommandLog) -> sqlite3.Connection:
    """[blocking] The tables with all committed commands applied; from a snapshot if they are missing or damaged.

    Raises FolderRefused for a newer format, StorageFull.
    """
    try:
        snapshots.drop_above(folder, Position(command_log.end))
        connection = snapshots.open_newest(folder)
        try:
            return _replay(connection, command_log)
        except sqlite3.DatabaseError as error:
            if not snapshots.is_damage(error):
                raise
            log.error("catalog_damaged", folder=str(folder), error=str(error))
        return _replay(snapshots.restore(folder), command_log)
    except sqlite3.Error as error:
        if snapshots.is_full(error):
            raise StorageFull(f"no room for the catalog in {folder}; free some, then start again") from error
        raise


def _replay(connection: sqlite3.Connection, command_log: CommandLog) -> sqlite3.Connection:
    """Apply the committed commands above the applied position; what they come to is nobody's concern any more."""
    batch: list[tuple[Position, Command]] = []
    size = 0
    try:
        if applied(connection) > command_log.end:
            # Without fsync a machine that lost its power may have lost commands whose outcome the tables still have.
            log.error("catalog_log_shortened", applied=applied(connection), end=command_log.end)
            set_back(connection, Position(command_log.end))
        for position, payload in command_log.commands(applied(connection)):
            batch.append((position, decode(payload)))
            size += len(payload)
            if len(batch) >= AT_ONCE or size >= _REPLAY_BYTES:
                apply_all(connection, batch)
                batch, size = [], 0
        if batch:
            apply_all(connection, batch)
    except BaseException:
        connection.close()
        raise
    return connection
