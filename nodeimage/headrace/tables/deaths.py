"""Records which partitionlets lose records through the commands that this node applies.

Temporary triggers of the writing connection report a partitionlet when its row is deleted, or when its partition's log
start moves past its first record. Reports of a transaction count once the transaction is committed. The table
`deaths` in the file counts the reports, in the transaction that changes the rows, so that a later start knows whether
all of them have been processed. The count is this node's own: no command depends on it, and it is part of no total. An
older version leaves it as it is.
"""

import sqlite3
from array import array
from typing import Final, NamedTuple

import structlog

from headrace.tables.sqlite_errors import is_damage

log = structlog.get_logger(__name__)

UNKNOWN: Final = -1
"""The value of a missing count: earlier deaths are not known."""
_MAKE: Final = """
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS main.deaths(id INTEGER PRIMARY KEY, count INTEGER NOT NULL);
INSERT OR IGNORE INTO main.deaths VALUES (1, 0);
COMMIT;
"""
_ON_DELETE: Final = """
CREATE TEMP TRIGGER IF NOT EXISTS partitionlets_died AFTER DELETE ON main.partitionlets
BEGIN SELECT partitionlet_died(OLD.container, OLD.id); END
"""
_ON_LOG_START: Final = """
CREATE TEMP TRIGGER IF NOT EXISTS log_starts_{event} AFTER {event} ON main.log_starts
BEGIN SELECT partitionlet_died(container, id) FROM main.partitionlets
WHERE topic = NEW.topic AND state IN (1, 2) AND partition = NEW.partition AND first < NEW."offset"; END
"""
"""Trigger on log starts; states 1 and 2 are open and sealed partitionlets, which may hold records."""
_TRIGGERS: Final = (_ON_DELETE, *(_ON_LOG_START.format(event=event) for event in ("INSERT", "UPDATE")))


class DeathReport(NamedTuple):
    """Reports since the last call of `Deaths.take`. `pairs`: container and partitionlet, alternating; `total`: the
    file's count, including these."""

    pairs: "array[int]"
    total: int


class Deaths:
    """The reports of one writing connection; used by the connection's thread only."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._under_way: array[int] = array("q")
        self._reports: array[int] = array("q")
        self.count = UNKNOWN
        """The file's count, as committed."""
        self.count_at_open = UNKNOWN
        """The file's count when it was opened, before anything was applied."""
        self._begun = False

    def begin(self) -> None:
        """Create the triggers and read the count, after the file was opened or replaced."""
        connection = self._connection
        connection.create_function("partitionlet_died", 2, self._died)
        for trigger in _TRIGGERS:
            connection.execute(trigger)
        there = connection.execute(
            "SELECT count(*) FROM main.sqlite_master WHERE type = 'table' AND name = 'deaths'"
        ).fetchone()
        found = (
            connection.execute("SELECT max(count) FROM main.deaths WHERE id = 1").fetchone()
            if there != (0,)
            else (None,)
        )
        self.count = found[0] if isinstance(found[0], int) else UNKNOWN
        if not self._begun:
            self.count_at_open = self.count
        self._begun = True

    def under_way(self) -> int:
        """The length of the reports of the transaction under way, for `cut`."""
        return len(self._under_way)

    def cut(self, length: int) -> None:
        """Drop the reports after the first `length`, as their changes were rolled back."""
        del self._under_way[length:]

    def keep(self) -> None:
        """Write the new count; to be called before a COMMIT."""
        if self._under_way and self.count != UNKNOWN:
            self._connection.execute(
                "UPDATE main.deaths SET count = ? WHERE id = 1", (self.count + len(self._under_way) // 2,)
            )

    def committed(self) -> None:
        """Confirm the reports of the transaction; to be called after a COMMIT."""
        if self._under_way:
            if self.count != UNKNOWN:
                self.count += len(self._under_way) // 2
            self._reports += self._under_way
            del self._under_way[:]

    def rolled_back(self) -> None:
        """Drop the reports of the transaction; to be called after a ROLLBACK."""
        del self._under_way[:]

    def take(self) -> DeathReport:
        """Take the committed reports since the last call."""
        reports, self._reports = self._reports, array("q")
        return DeathReport(reports, self.count)

    def _died(self, container: int, partitionlet: int) -> None:
        self._under_way.extend((container, partitionlet))


def make(connection: sqlite3.Connection) -> None:
    """Create the count in a file that has none. If there is no room, deaths are not counted until the next start."""
    try:
        connection.executescript(_MAKE)
    except sqlite3.OperationalError as error:
        if is_damage(error):
            raise
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        log.warning("catalog_deaths_not_counted", error=str(error))
