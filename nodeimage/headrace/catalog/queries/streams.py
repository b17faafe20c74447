"""Queries of streams."""

import sqlite3
from collections.abc import Iterable

from headrace.base.ids import StreamNumber
from headrace.catalog.queries.proofs import Proofs
from headrace.catalog.retention import retention
from headrace.catalog.rows import Retention, StreamRetention, StreamRow
from headrace.catalog.selects import STREAM, TOPIC, json_list, select_stream, stream_row, topic_row
from headrace.tables.sqlite_errors import TablesDamaged


class StreamQueries:
    """Queries of streams on one connection; used by one thread at a time."""

    def __init__(self, connection: sqlite3.Connection, proofs: Proofs) -> None:
        self._connection = connection
        self._proofs = proofs

    def page(self, *, after: str = "", limit: int = -1) -> list[StreamRow]:
        """A page of streams after the path `after`, in order of path; `limit` -1 for all."""
        self._proofs.page_start("streams", ("path",), (after,))
        rows = self._connection.execute(f"{STREAM} WHERE path > ? ORDER BY path LIMIT ?", (after, limit))
        return list(map(stream_row, rows))

    def at(self, path: str) -> StreamRow | None:
        """The stream at `path`; None if there is none."""
        found = select_stream(self._connection, path)
        if found is None:
            self._proofs.prove_absent("streams", ("path",), [(path,)])
        return found

    def by_number(self, number: StreamNumber) -> StreamRow | None:
        """The stream with this number; None if there is none."""
        row = self._connection.execute(f"{STREAM} WHERE number = ?", (number,)).fetchone()
        if row is None:
            self._proofs.prove_absent("streams", ("number",), [(number,)])
        return None if row is None else stream_row(row)

    def totals(self) -> tuple[int, int, int]:
        """The numbers of streams, topics and partitions in the catalog."""
        row = self._connection.execute(
            "SELECT count(*), coalesce(sum(topics), 0), coalesce(sum(partitions), 0) FROM streams"
        ).fetchone()
        return int(row[0]), int(row[1]), int(row[2])

    def retention_of(self, streams: Iterable[StreamNumber]) -> dict[StreamNumber, StreamRetention]:
        """By stream number, the retention of these streams and of their topics that override it; missing streams are
        deleted."""
        streams = set(streams)
        wanted = json_list(sorted(streams))
        held = {
            row.number: row
            for row in map(
                stream_row,
                self._connection.execute(f"{STREAM} WHERE number IN (SELECT value FROM json_each(?))", (wanted,)),
            )
        }
        self._proofs.prove_absent("streams", ("number",), [(number,) for number in streams - held.keys()])
        overrides: dict[StreamNumber, dict[int, Retention]] = {number: {} for number in held}
        rows = self._connection.execute(
            f"{TOPIC} WHERE t.own_retention = 1 AND t.stream IN (SELECT value FROM json_each(?))", (wanted,)
        )
        for topic in map(topic_row, rows):
            rule = retention(held[topic.stream_number].policy, topic.configs)
            overrides[topic.stream_number][topic.number] = rule
        for number in held if self._proofs.checks else ():
            there = self._proofs.absence.read_around(
                "topics", ("stream",), (number,), (number,), id_column="number", where="own_retention = 1"
            )
            if {topic for _, topic in there} != overrides[number].keys():
                raise TablesDamaged(
                    f"topics: those of stream {number} with their own retention are missing or in the wrong place"
                )
        return {
            number: StreamRetention(Retention(row.policy.ttl_ms, row.policy.retention_bytes), overrides[number])
            for number, row in held.items()
        }
