"""Which partitionlets had records that commands made dead, as this node applies them, whichever command it was.

Temporary triggers of the writing connection tell of each: its row went, or its partition's log start moved behind its
first record. What a transaction tells counts once that is committed. So that a later start knows whether somebody has
heard of all, `deaths` in the file counts what was told; the count moves with the rows. It is this node's own: no
command depends on it, and it is in no total. An older version leaves it as it is.
"""

import sqlite3
from array import array
from typing import Final, NamedTuple

import structlog

from headrace.tables.sqlite_errors import is_damage

log = structlog.get_logger(__name__)

UNKNOWN: Final = -1
"""A count where there is none: what died before it was opened is not known."""
_MAKE: Final = """
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS main.deaths(id INTEGER PRIMARY KEY, count INTEGER NOT NULL);
INSERT OR IGNORE INTO main.deaths VALUES (1, 0);
COMMIT;
"""
_WENT: Final = """
CREATE TEMP TRIGGER IF NOT EXISTS partitionlets_died AFTER DELETE ON main.partitionlets
BEGIN SELECT partitionlet_died(OLD.container, OLD.id); END
"""
_STARTED_LATER: Final = """
CREATE TEMP TRIGGER IF NOT EXISTS log_starts_{event} AFTER {event} ON main.log_starts
BEGIN SELECT partitionlet_died(container, id) FROM main.partitionlets
WHERE topic = NEW.topic AND state IN (1, 2) AND partition = NEW.partition AND first < NEW."offset"; END
"""
"""States 1 and 2: open and sealed, those that have begun."""
_TRIGGERS: Final = (_WENT, *(_STARTED_LATER.format(event=event) for event in ("INSERT", "UPDATE")))


class Died(NamedTuple):
    """What was told since it was asked for last. `pairs`: container and partitionlet, in turns; `total`: the count of
    the file, with these."""

    pairs: "array[int]"
    total: int


class Deaths:
    """Of one writing connection. Its thread's own."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._under_way: array[int] = array("q")
        self._told: array[int] = array("q")
        self.count = UNKNOWN
        """As committed."""
        self.count_at_open = UNKNOWN
        """As it was when the file was opened, before anything was applied."""
        self._begun = False

    def begin(self) -> None:
        """The file is there, or is another."""
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
        """How much the transaction under way has told; for `cut`."""
        return len(self._under_way)

    def cut(self, length: int) -> None:
        """What was told behind that has not happened."""
        del self._under_way[length:]

    def keep(self) -> None:
        """Before a COMMIT."""
        if self._under_way and self.count != UNKNOWN:
            self._connection.execute(
                "UPDATE main.deaths SET count = ? WHERE id = 1", (self.count + len(self._under_way) // 2,)
            )

    def committed(self) -> None:
        """After a COMMIT."""
        if self._under_way:
            if self.count != UNKNOWN:
                self.count += len(self._under_way) // 2
            self._told += self._under_way
            del self._under_way[:]

    def rolled_back(self) -> None:
        """After a ROLLBACK."""
        del self._under_way[:]

    def take(self) -> Died:
        """What was told and committed since this was asked last."""
        told, self._told = self._told, array("q")
        return Died(told, self.count)

    def _died(self, container: int, partitionlet: int) -> None:
        self._under_way.extend((container, partitionlet))


def make(connection: sqlite3.Connection) -> None:
    """Make the count in a file that has none. Without room for it there is none until the next start."""
    try:
        connection.executescript(_MAKE)
    except sqlite3.OperationalError as error:
        if is_damage(error):
            raise
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        log.warning("catalog_deaths_not_counted", error=str(error))
