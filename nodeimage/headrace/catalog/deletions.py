"""What is left to do of deleted streams and topics, in pieces. Functions are called inside a transaction.

From feature level 1 on a deletion is two things. What is deleted is gone at once for everybody: the row of a stream
moves from `streams` to `going`, and topics are looked up by way of their stream's row; topics that are deleted while
their stream stays get the stream 0, which has no row, and stands in `going` too. Then their rows go, `ForgetDeleted`
after `ForgetDeleted`, of a bounded number each, so that no step holds up the commands behind it for long. Partitionlets
live until their own rows go: what looks for dead bytes finds them then, and not before.

A stream's number is free once nothing of it is left. It is given again when there are no fresh ones, with serials
behind all that it had, so that no partitionlet has the id of an earlier one.
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
"""Rows that one command deletes, about: some 15 ms. The same for ever, as it belongs to the commands."""
LOOSE: Final = StreamNumber(0)
"""The stream of deleted topics whose own stream stays."""
_PARTS: Final[Mapping[str, str]] = {
    "partitionlets": "topic, state, partition, id",
    "log_starts": "topic, partition",
    "home_starts": "topic, partition, counter, cluster",
    "settled_homes": "topic, partition",
    "pending_homes": "topic",
    "cursors": 'topic, "group", partition',
    "topic_access": "topic, permission",
}
"""Tables with rows of topics, and the order in which these go: of an index, and on each node the same, though their
versions of SQLite may choose other plans. Else tables would differ where only some of the rows went."""


class Forgotten(NamedTuple):
    """So many rows of what was deleted are gone. `ended`: with them a stream is, or all topics that were deleted
    singly; `more`: there are others."""

    rows: int
    ended: bool
    more: bool


class ForgetDeleted(CatalogCommand[Forgotten], frozen=True):
    """Delete the next rows, a bounded number, of streams and topics that were deleted."""

    since: ClassVar[Level] = Level.FENCED

    def apply(self, connection: Tables) -> Forgotten:
        found = connection.execute("SELECT number FROM going ORDER BY number LIMIT 1").fetchone()
        if found is None:
            return Forgotten(rows=0, ended=False, more=False)
        rows, ended = forget_some_of_stream(connection, StreamNumber(found[0]))
        more = not ended or connection.execute("SELECT 1 FROM going LIMIT 1").fetchone() is not None
        return Forgotten(rows, ended, more)


def forget_some_of_stream(connection: Tables, number: StreamNumber) -> tuple[int, bool]:
    """Delete rows of a stream that is going; (how many, whether nothing is left of it)."""
    rows = 0
    while rows < AT_ONCE:
        topics = connection.rows("topics", "stream = ? ORDER BY name LIMIT ?", number, (AT_ONCE - rows + 1) // 2)
        if not topics:
            _end(connection, number)
            return rows, True
        deleted, _ = _forget(connection, topics, AT_ONCE - rows)
        rows += deleted
    return rows, False


def forget_topics(connection: Tables, numbers: Collection[int], *, most: int) -> tuple[int, bool]:
    """Delete rows of these topics, `most` or one more for each; (how many, whether that was all). Not counts."""
    listed = json_list(sorted(numbers))
    return _forget(connection, connection.rows("topics", "number IN (SELECT value FROM json_each(?))", listed), most)


def _forget(connection: Tables, topics: Sequence[tuple[Any, ...]], most: int) -> tuple[int, bool]:
    """As `forget_topics`, given the rows of the topics."""
    listed = json_list(sorted(topic[0] for topic in topics))
    rows = 0
    for table, order in _PARTS.items():
        where = f"topic IN (SELECT value FROM json_each(?)) ORDER BY {order} LIMIT ?"
        found = connection.rows(table, where, listed, most - rows)
        connection.delete_rows(table, found)
        rows += len(found)
        if rows >= most:
            return rows, False
    connection.delete_rows("topics", topics)
    return rows + len(topics), True


def forget_whole_topics(connection: Tables, numbers: Iterable[int]) -> None:
    """Remove everything of the topics with these numbers, but not their stream's counts."""
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
    """Have topics be gone for everybody who looks for them; their rows go later."""
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
    """Have a stream be gone for everybody, with all its topics; their rows go later."""
    (serial,) = connection.execute("SELECT next_serial FROM streams WHERE number = ?", (number,)).fetchone()
    connection.insert("going", [(number, serial)])
    connection.delete("streams", "number = ?1", number)


def ids_still_held(connection: Tables, topic_ids: Sequence[bytes]) -> set[bytes]:
    """Those ids that deleted topics have still, after an attempt to delete these first: a copy that is made again has
    its source's id, as the one before."""
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
    """A number that was free for the longest time, and the first serial of its next life; None: there is none."""
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
    """Nothing is left of these numbers."""
    last = connection.execute("SELECT turn FROM free_streams ORDER BY turn DESC LIMIT 1").fetchone()
    connection.insert("free_streams", [(1 if last is None else last[0] + 1, first, count, next_serial)])


def in_pieces(connection: sqlite3.Connection) -> bool:
    """Whether the log has come to the level from which on all replicas delete in pieces."""
    return level_of(connection) >= Level.FENCED


def _end(connection: Tables, number: StreamNumber) -> None:
    (serial,) = connection.execute("SELECT next_serial FROM going WHERE number = ?", (number,)).fetchone()
    connection.delete("going", "number = ?1", number)
    if number != LOOSE:
        free_streams(connection, number, 1, serial)
