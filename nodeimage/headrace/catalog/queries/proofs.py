"""Proofs of missing rows for queries, which checksums of rows cannot provide (absence.py)."""

import sqlite3
from collections.abc import Collection, Iterable

from headrace.base.ids import StreamNumber
from headrace.catalog.absence import Absence, Values
from headrace.catalog.selects import json_list, select_going
from headrace.tables.row_checksums import prepare
from headrace.tables.sqlite_errors import TablesDamaged


class Proofs:
    """Proofs on one connection. Each raises TablesDamaged, or the sqlite3.DatabaseError of a damaged row.

    If the file has no checksums (`checks` is false), `prove_absent`, `page_start` and `of_topics` do nothing; the other
    methods must be called only if it has them.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.checks = prepare(connection)
        """Whether the file has checksums, so that rows are checked when read, and absences proven."""
        self.absence = Absence(connection)

    def prove_absent(self, table: str, key: tuple[str, ...], values: Iterable[Values]) -> None:
        """Prove that there are no rows with these values of `key`, the first columns of an index."""
        if self.checks:
            self.absence.prove(table, key, values)

    def page_start(self, table: str, key: tuple[str, ...], after: Values) -> None:
        """Prove that a page that follows `after` begins with the next row. Such a page ends only with the index."""
        if self.checks:
            self.absence.read_around(table, key, after, after)

    def count(
        self, count: int, table: str, key: tuple[str, ...], first: Values, last: Values, id_column: str = ""
    ) -> None:
        """Prove that there are `count` rows from `first` to `last`."""
        if len(self.absence.read_around(table, key, first, last, id_column=id_column)) != count:
            raise TablesDamaged(f"{table}: rows from {first} to {last} are missing or in the wrong place")

    def none_left(self, table: str, rows: Collection[object]) -> None:
        """Prove that there are no rows after the last one that was found; `rows` are the ones that were read there."""
        if rows:
            raise TablesDamaged(f"{table}: rows after the last one are missing or in the wrong place")

    def of_topics(self, table: str, topics: Iterable[int]) -> None:
        """Prove that look-ups find all rows of these topics."""
        for topic in topics if self.checks else ():
            self.absence.read_around(table, ("topic",), (topic,), (topic,))

    def last_topic(self, stream: StreamNumber, name: str | None, where: str) -> None:
        """Prove that the last of a stream's topics, in the partial index with the condition `where`, has this name;
        None: that there is none."""
        last = None if name is None else (stream, name)
        self.absence.prove_last("topics", ("stream", "name"), stream, last, where=where)

    def of_streams_gone(self, after: tuple[int, str], last: tuple[int, str], count: int) -> None:
        """Prove that all except `count` of the topics that follow `after`, up to `last`, belong to deleted streams."""
        listed = json_list(select_going(self._connection))
        between = "FROM main.topics WHERE (stream, name) > (?, ?) AND (stream, name) <= (?, ?) AND stream NOT IN "
        others = f"{between}(SELECT value FROM json_each(?))"
        (there,) = self._connection.execute(f"SELECT count(*) {others}", (*after, *last, listed)).fetchone()
        if there != count:
            found = self._connection.execute(f"SELECT DISTINCT stream {others}", (*after, *last, listed)).fetchall()
            self.stream_gone(stream for (stream,) in found)

    def stream_gone(self, streams: Iterable[int]) -> None:
        """Prove that at least one of these streams does not exist."""
        if all(self.stream(StreamNumber(number)) for number in streams):
            raise TablesDamaged("streams: rows are missing or in the wrong place")

    def topics_gone(self, key: str, topics: Iterable[int | bytes]) -> None:
        """Prove that each of the topics with these values of the column `key`, which a query did not find, was deleted,
        by itself or with its stream. A topic that is found here together with its stream raises no error."""
        for topic in topics:
            row = self._connection.execute(f"SELECT stream FROM topics WHERE {key} = ?", (topic,)).fetchone()
            if row is None:
                self.prove_absent("topics", (key,), [(topic,)])
            else:
                self.stream(row[0])

    def stream(self, number: StreamNumber) -> bool:
        """Whether there is a stream with this number; its absence is proven."""
        found = self._connection.execute("SELECT number FROM streams WHERE number = ?", (number,)).fetchone()
        if found is None:
            self.prove_absent("streams", ("number",), [(number,)])
        return found is not None
