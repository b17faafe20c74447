"""The read side of the catalog: blocking queries on a read-only connection, one connection per thread.

Used through `Catalog.query`, which runs a function of a Reader in a thread, in one read transaction, so that all it
reads is of one moment. Lists of names, ids and numbers may be of any length.
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
    """Queries on one connection; of one thread at a time."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None, check_same_thread=False, timeout=30
        )
        self._connection.execute("PRAGMA cache_size=-2048")
        proofs = Proofs(self._connection)
        self.checks = proofs.checks
        """Rows are checked as they are read (row_checksums.py), and absences proven: the file has their sums."""
        self.streams = StreamQueries(self._connection, proofs)
        self.topics = TopicQueries(self._connection, proofs, self.streams)
        self.chains = ChainQueries(self._connection, proofs)
        self.links = LinkQueries(self._connection, proofs)
        self.homes = HomeQueries(self._connection, proofs, self.streams)
        self.groups = GroupQueries(self._connection, proofs)
        self.users = UserQueries(self._connection, proofs)
        self.access = AccessQueries(self._connection, proofs, self.streams)

    def begin(self) -> None:
        """Fix the moment that queries see, from the first of them on."""
        self._connection.execute("BEGIN")

    def end(self) -> None:
        """Let go of that moment."""
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def applied(self) -> Position:
        """The position below which everything is applied in what this sees."""
        return applied(self._connection)

    def level(self) -> int:
        """The feature level that the log has come to by what is applied."""
        return level_of(self._connection)

    def is_forgetting(self) -> bool:
        """Whether rows of deleted streams or topics are left."""
        return self._connection.execute("SELECT 1 FROM going LIMIT 1").fetchone() is not None

    def check_rows(self, table: str, *, after: tuple[object, ...] = (), limit: int = PAGE) -> tuple[object, ...]:
        """Check the next rows of a table behind a key, in its order; the last one's key, () if there are no more.

        Raises sqlite3.DatabaseError where one is damaged.
        """
        count = KEYS.get(table, 1)
        keys = ", ".join(f'"{column}"' for column in COLUMNS[table][:count])
        where = f"WHERE ({keys}) > ({', '.join('?' * count)}) " if after else ""
        rows = self._connection.execute(f"SELECT {keys} FROM {table} {where}ORDER BY {keys} LIMIT ?", (*after, limit))
        found = rows.fetchall()
        return found[-1] if len(found) == limit else ()
