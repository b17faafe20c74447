"""The read side of the catalog: blocking queries on a read-only connection, one connection per thread.

Used through `Catalog.query`, which runs a function with a Reader in a thread, in one read transaction, so that all of
its reads are consistent. Lists of names, ids and numbers may be of any length.
"""

import sqlite3
from pathlib import Path

from headrace.base.ids import Position
from headrace.catalog.counters import level_of
from headrace.catalog.queries.access import AccessQueries
from headrace.catalog.queries.chains import ChainQueries
from headrace.catalog.queries.groups import GroupQueries
from headrace.catalog.queries.homes import HomeQueries
from headrace.catalog.queries.links import LinkQueries
from headrace.catalog.queries.pages import PAGE
from headrace.catalog.queries.proofs import Proofs
from headrace.catalog.queries.streams import StreamQueries
from headrace.catalog.queries.topics import TopicQueries
from headrace.catalog.queries.users import UserQueries
from headrace.tables.row_checksums import COLUMNS, KEYS
from headrace.tables.transactions import applied


class Reader:
    """The catalog's queries on one connection; used by one thread at a time."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None, check_same_thread=False, timeout=30
        )
        self._connection.execute("PRAGMA cache_size=-2048")
        proofs = Proofs(self._connection)
        self.checks = proofs.checks
        """Whether the file has checksums, so that rows are checked when read (row_checksums.py) and absences proven."""
        self.streams = StreamQueries(self._connection, proofs)
        self.topics = TopicQueries(self._connection, proofs, self.streams)
        self.chains = ChainQueries(self._connection, proofs)
        self.links = LinkQueries(self._connection, proofs)
        self.homes = HomeQueries(self._connection, proofs, self.streams)
        self.groups = GroupQueries(self._connection, proofs)
        self.users = UserQueries(self._connection, proofs)
        self.access = AccessQueries(self._connection, proofs, self.streams)

    def begin(self) -> None:
        """Begin a read transaction: all queries see the state at the first of them."""
        self._connection.execute("BEGIN")

    def end(self) -> None:
        """End the read transaction, if there is one."""
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def applied(self) -> Position:
        """The position below which all commands are applied in the state that this reader sees."""
        return applied(self._connection)

    def level(self) -> int:
        """The feature level that the applied commands have reached."""
        return level_of(self._connection)

    def is_forgetting(self) -> bool:
        """Whether any rows of deleted streams or topics are left."""
        return self._connection.execute("SELECT 1 FROM going LIMIT 1").fetchone() is not None

    def check_rows(self, table: str, *, after: tuple[object, ...] = (), limit: int = PAGE) -> tuple[object, ...]:
        """Check the next `limit` rows of a table after the key `after`; returns the last one's key, () at the end.

        Raises sqlite3.DatabaseError for a damaged row.
        """
        count = KEYS.get(table, 1)
        keys = ", ".join(f'"{column}"' for column in COLUMNS[table][:count])
        where = f"WHERE ({keys}) > ({', '.join('?' * count)}) " if after else ""
        rows = self._connection.execute(f"SELECT {keys} FROM {table} {where}ORDER BY {keys} LIMIT ?", (*after, limit))
        found = rows.fetchall()
        return found[-1] if len(found) == limit else ()
