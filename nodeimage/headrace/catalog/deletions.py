"""Deletion of the rows of deleted streams and topics, in pieces. Functions are called inside a transaction.

From feature level 1 on a deletion has two parts. First the deleted object disappears for everybody at once: the row of
a stream moves from `streams` to `going`, and topics are looked up through their stream's row; topics that are deleted
while their stream remains get the stream 0, which has no row in `streams`, but has one in `going`. Then their rows are
deleted by a series of `ForgetDeleted`, a bounded number each, so that no step delays the commands behind it for long.
Partitionlets are alive until their own rows are deleted: their bytes count as dead only from then on.

A stream's number becomes free once nothing of the stream is left. It is assigned again when there are no fresh numbers,
with serials above all earlier ones, so that no partitionlet gets the id of an earlier one.
"""

import sqlite3
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, NamedTuple

from headrace.base.ids import StreamNumber
from headrace.base.levels import Level
from headrace.catalog.command import CatalogCommand
from headrace.catalog.counters import level_of
from headrace.catalog.selects import json_list
from headrace.tables.row_checksums import Tables

AT_ONCE: Final = 1000
"""Number of rows that one command deletes, approximately: some 15 ms. Must never change, as it is part of the meaning
of the commands."""
LOOSE: Final = StreamNumber(0)
"""The stream number given to deleted topics whose own stream remains."""
_TOPIC_TABLES: Final[Mapping[str, str]] = {
    "partitionlets": "topic, state, partition, id",
    "log_starts": "topic, partition",
    "home_starts": "topic, partition, counter, cluster",
    "settled_homes": "topic, partition",
    "pending_homes": "topic",
    "cursors": 'topic, "group", partition',
    "topic_access": "topic, permission",
}
"""Tables with rows of topics, and the order in which the rows of each are deleted: that of an index. The order must be
the same on all nodes, although their versions of SQLite may choose different plans, or tables would differ after only
some of the rows were deleted."""


class Forgotten(NamedTuple):
    """The result of a ForgetDeleted: the number of deleted `rows`; `ended`: whether nothing is left of a stream, or of
    all topics that were deleted singly; `more`: whether other rows are left to delete."""

    rows: int
    ended: bool
    more: bool


class ForgetDeleted(CatalogCommand[Forgotten], frozen=True):
    """Delete the next rows of deleted streams and topics, a bounded number."""

    since: ClassVar[Level] = Level.FENCED

    def apply(self, connection: Tables) -> Forgotten:
        found = connection.execute("SELECT number FROM going ORDER BY number LIMIT 1").fetchone()
        if found is None:
            return Forgotten(rows=0, ended=False, more=False)
        rows, ended = forget_some_of_stream(connection, StreamNumber(found[0]))
        more = not ended or connection.execute("SELECT 1 FROM going LIMIT 1").fetchone() is not None
        return Forgotten(rows, ended, more)


def forget_some_of_stream(connection: Tables, number: StreamNumber) -> tuple[int, bool]:
    """Delete some rows of a deleted stream; returns their number, and whether nothing of the stream is left."""
    rows = 0
    while rows < AT_ONCE:
        topics = connection.rows("topics", "stream = ? ORDER BY name LIMIT ?", number, (AT_ONCE - rows + 1) // 2)
        if not topics:
            _finish(connection, number)
            return rows, True
        deleted, _ = _forget(connection, topics, AT_ONCE - rows)
        rows += deleted
    return rows, False


def forget_topics(connection: Tables, numbers: Collection[int], *, most: int) -> tuple[int, bool]:
    """Delete rows of these topics, `most` rows or one more per topic; returns their number, and whether that was all.
    Does not change the counts of streams."""
    listed = json_list(sorted(numbers))
    return _forget(connection, connection.rows("topics", "number IN (SELECT value FROM json_each(?))", listed), most)


def _forget(connection: Tables, topics: Sequence[tuple[Any, ...]], most: int) -> tuple[int, bool]:
    """As `forget_topics`, given the rows of the topics."""
    listed = json_list(sorted(topic[0] for topic in topics))
    rows = 0
    for table, order in _TOPIC_TABLES.items():
        where = f"topic IN (SELECT value FROM json_each(?)) ORDER BY {order} LIMIT ?"
        found = connection.rows(table, where, listed, most - rows)
        connection.delete_rows(table, found)
        rows += len(found)
        if rows >= most:
            return rows, False
    connection.delete_rows("topics", topics)
    return rows + len(topics), True


def forget_whole_topics(connection: Tables, numbers: Iterable[int]) -> None:
    """Delete all rows of the topics with these numbers. Does not change the counts of their stream."""
    listed = json_list(sorted(numbers))
    for table, column in (
        ("partitionlets", "topic"),
        ("log_starts", "topic"),
        ("home_starts", "topic"),
        ("settled_homes", "topic"),
        ("pending_homes", "topic"),
        ("cursors", "topic"),
        ("topic_access", "topic"),
        ("topics", "number"),
    ):
        connection.delete(table, f"{column} IN (SELECT value FROM json_each(?1))", listed)


def hide_topics(connection: Tables, topics: Iterable[int]) -> None:
    """Make topics disappear from all look-ups; their rows are deleted later."""
    hidden = {
        "stream": "?1",
        "name": "lower(hex(topic_id))",
        "own_retention": "0",
        "home_counter": "NULL",
        "home_cluster": "NULL",
        "home_origin": "NULL",
    }
    for number in topics:
        connection.update("topics", hidden, "number = ?2", LOOSE, number)
    connection.insert("going", [(LOOSE, 0)], ignore=True)


def hide_stream(connection: Tables, number: StreamNumber) -> None:
    """Make a stream disappear from all look-ups, with all its topics; their rows are deleted later."""
    (serial,) = connection.execute("SELECT next_serial FROM streams WHERE number = ?", (number,)).fetchone()
    connection.insert("going", [(number, serial)])
    connection.delete("streams", "number = ?1", number)


def ids_still_held(connection: Tables, topic_ids: Sequence[bytes]) -> set[bytes]:
    """Those of these ids that deleted topics still occupy, after an attempt to delete the rest of those topics: a copy
    that is recreated has its source's id, like the copy before it."""
    if connection.execute("SELECT 1 FROM going LIMIT 1").fetchone() is None:
        return set()
    held: set[bytes] = set()
    for topic_id in topic_ids:
        found = connection.execute(
            "SELECT t.number FROM topics t WHERE t.topic_id = ? "
            "AND NOT EXISTS (SELECT 1 FROM streams s WHERE s.number = t.stream)",
            (topic_id,),
        ).fetchone()
        if found is not None:
            _, all_gone = forget_topics(connection, [found[0]], most=AT_ONCE)
            if not all_gone:
                held.add(topic_id)
    return held


def take_free_stream(connection: Tables) -> tuple[StreamNumber, int] | None:
    """Take the number that has been free for longest, with the first serial that its new stream may use; None if no
    number is free."""
    found = connection.execute(
        "SELECT turn, first, count, next_serial FROM free_streams ORDER BY turn LIMIT 1"
    ).fetchone()
    if found is None:
        return None
    turn, first, count, serial = found
    if count == 1:
        connection.delete("free_streams", "turn = ?1", turn)
    else:
        connection.update("free_streams", {"first": "first + 1", "count": "count - 1"}, "turn = ?1", turn)
    return StreamNumber(first), int(serial)


def free_streams(connection: Tables, first: int, count: int, next_serial: int) -> None:
    """Make `count` stream numbers from `first` on free, to be used again with serials from `next_serial` on."""
    last = connection.execute("SELECT turn FROM free_streams ORDER BY turn DESC LIMIT 1").fetchone()
    connection.insert("free_streams", [(1 if last is None else last[0] + 1, first, count, next_serial)])


def in_pieces(connection: sqlite3.Connection) -> bool:
    """Whether the applied commands have reached the feature level from which on all replicas delete in pieces."""
    return level_of(connection) >= Level.FENCED


def _finish(connection: Tables, number: StreamNumber) -> None:
    (serial,) = connection.execute("SELECT next_serial FROM going WHERE number = ?", (number,)).fetchone()
    connection.delete("going", "number = ?1", number)
    if number != LOOSE:
        free_streams(connection, number, 1, serial)
