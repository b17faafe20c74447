"""The interface of the catalog's log, which is this node's replica of its container, and its replay at a start."""

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import structlog

from headrace.base.errors import StorageFull, TrimmedLog
from headrace.base.ids import Position
from headrace.log.descriptors import put_off_without_descriptors
from headrace.tables import snapshots
from headrace.tables.row_checksums import Tables
from headrace.tables.schema import Schema
from headrace.tables.sqlite_errors import is_damage, is_full
from headrace.tables.transactions import applied, apply_all, set_back

log = structlog.get_logger(__name__)

AT_ONCE = 1024
"""Limit of commands in one transaction, so that the first submitter does not wait for all of them."""

BYTES_AT_ONCE = 1 << 20
"""Bytes of payloads above which a transaction takes no further command: decoded they are many times larger."""

Written = tuple[Position, bytes]
"""The position after a command's frame, and the command's payload."""


class CommandLog(Protocol):
    """The log of the catalog's container in the replica on this node, whichever node leads the container.

    Everything runs on the loop thread, unless marked [blocking]. `committed` never falls, except when the log is cut,
    or emptied to begin at a snapshot.
    """

    @property
    def leads(self) -> bool:
        """Whether this node leads the container, so that it may append, and its log is authoritative."""

    @property
    def end(self) -> Position:
        """The position after the last frame, committed or not."""

    @property
    def committed(self) -> Position:
        """The position below which everything is committed and in this log."""

    def append_command(self, payload: bytes) -> asyncio.Future[Position]:
        """Append a command. The future is done when it is committed, in the order of the calls, with the position after
        the frame.

        Fails with KafkaError(NOT_CONTROLLER) if this node does not lead, or ceases to lead before the commit (then the
        command may be committed nevertheless); with StorageFull if there is no room.
        """

    def recent(self, after: Position) -> list[Written] | None:
        """The committed commands beyond `after`, in order; None if some are not in memory: then call `commands`."""

    def commands(self, after: Position, until: Position) -> Iterator[Written]:
        """[blocking] The commands beyond `after` that end at or below `until`, a committed position, in order.

        Must raise, rather than leave out commands, if those after `after` have been trimmed.
        """

    def on_committed(self, callback: Callable[[], None]) -> None:
        """Call `callback`, on the loop, whenever `committed` has moved."""

    def trim(self, until: Position) -> None:
        """Permit the log to drop commands below `until`, which are no longer needed here."""


def open_and_replay(
    folder: Path, command_log: CommandLog, schema: Schema, *, sums: bool = True
) -> tuple[Tables, Position]:
    """[blocking] Open the tables and apply the log's committed commands; returns them with their applied position.

    Missing or damaged tables are restored from a snapshot. If this node leads, tables ahead of the log
    mean that the log has lost its end; a follower's log may be about to restart at the tables' position.
    Raises FolderRefused for a newer format, StorageFull, OutOfDescriptors.
    """
    try:
        with put_off_without_descriptors(folder):
            return _open_and_replay(folder, command_log, schema, sums=sums)
    except sqlite3.Error as error:
        if is_full(error):
            raise StorageFull(f"no room for the catalog in {folder}; free some, then start again") from error
        raise


def _open_and_replay(folder: Path, command_log: CommandLog, schema: Schema, *, sums: bool) -> tuple[Tables, Position]:
    leads, end, committed = command_log.leads, command_log.end, command_log.committed
    if leads:
        snapshots.drop_above(folder, end)
    connection = snapshots.open_newest(folder, schema, sums=sums)
    try:
        return connection, _replay(connection, command_log, schema, committed, end if leads else None)
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
        log.error("catalog_damaged", folder=str(folder), error=str(error))
        reason = str(error)
    connection = snapshots.restore(folder, schema, sums=sums, reason=reason)
    return connection, _replay(connection, command_log, schema, committed, end if leads else None)


def next_batch(commands: Iterator[Written]) -> tuple[list[Written], bool]:
    """[blocking, if `commands` is] The commands of the next transaction, and whether they are the last ones."""
    batch: list[Written] = []
    size = 0
    for each in commands:
        batch.append(each)
        size += len(each[1])
        if len(batch) >= AT_ONCE or size >= BYTES_AT_ONCE:
            return batch, False
    return batch, True


def shortened(connection: Tables, end: Position) -> None:
    """[blocking] Continue with the rows as they are, although the log that this node leads ends before their position.

    Without fsync a machine that lost its power may have lost commands whose outcome is still in the tables.
    """
    log.error("catalog_log_shortened", applied=applied(connection), end=end)
    set_back(connection, end)


def _replay(
    connection: Tables, command_log: CommandLog, schema: Schema, committed: Position, end: Position | None
) -> Position:
    """Apply the committed commands above the applied position, if the log has them, and drop their outcomes; returns
    the position up to which commands are applied then."""
    try:
        if end is not None and applied(connection) > end:
            shortened(connection, end)
        at = applied(connection)
        if at >= committed:
            return at
        replay(connection, command_log.commands(at, committed), schema)
    except TrimmedLog as error:
        # The applier meets the trimmed log again, at a time when other tables can be fetched.
        log.warning("catalog_log_trimmed", applied=applied(connection), error=str(error))
        return applied(connection)
    except BaseException:
        connection.close()
        raise
    return committed


def replay(connection: Tables, commands: Iterator[Written], schema: Schema) -> None:
    """[blocking] Apply commands, and drop their outcomes."""
    last = False
    while not last:
        batch, last = next_batch(commands)
        if batch:
            apply_all(connection, [(position, schema.decode(payload)) for position, payload in batch], schema)
