"""Commands that create, alter and delete streams."""

import sqlite3
from typing import ClassVar, NamedTuple

import msgspec

from headrace.base.errors import Code, KafkaError
from headrace.base.ids import PARTITIONLET_BITS, Millis, StreamNumber
from headrace.base.levels import Level
from headrace.catalog.access import forget_stream_access, put_stream_access
from headrace.catalog.command import CatalogCommand
from headrace.catalog.counters import counter, needed_counter, take_numbers
from headrace.catalog.deletions import (
    forget_some_of_stream,
    forget_whole_topics,
    hide_stream,
    in_pieces,
    take_free_stream,
)
from headrace.catalog.names import check_stream
from headrace.catalog.policy import PolicyChanges, StreamPolicy
from headrace.catalog.rows import StreamRow
from headrace.catalog.selects import encode_policy, select_stream
from headrace.tables.row_checksums import Tables

MAX_STREAM_NUMBER = 2**23 - 1
MAX_SERIAL = 1 << PARTITIONLET_BITS


class StreamOutcome(NamedTuple):
    """The stream's row, for a deleted stream as it was. `changed` is false if there was nothing to do."""

    stream: StreamRow
    changed: bool


class CreateStream(CatalogCommand[StreamOutcome], frozen=True):
    """Create a stream. An existing stream is left as it is, with `changed` false."""

    path: str
    policy: StreamPolicy
    now: Millis

    def apply(self, connection: Tables) -> StreamOutcome:
        check_stream(self.path)
        existing = select_stream(connection, self.path)
        if existing is not None:
            return StreamOutcome(existing, changed=False)
        number, serial = _take_stream(connection)
        connection.insert("streams", [(number, self.path, encode_policy(self.policy), self.now, serial, 0, 0)])
        return StreamOutcome(StreamRow(StreamNumber(number), self.path, self.policy, self.now, 0, 0), changed=True)


class CreateOwnedStream(CatalogCommand[StreamOutcome], frozen=True):
    """Create a stream as CreateStream does, with its creator's access expressions in place from the first moment on."""

    path: str
    policy: StreamPolicy
    access: list[tuple[str, str]]
    """Pairs of (permission, expression)."""
    now: Millis

    since: ClassVar[Level] = Level.SECURED

    def apply(self, connection: Tables) -> StreamOutcome:
        outcome = CreateStream(self.path, self.policy, self.now).apply(connection)
        if outcome.changed:
            for permission, expression in self.access:
                put_stream_access(connection, outcome.stream.number, permission, expression)
        return outcome


class AlterStream(CatalogCommand[StreamOutcome], frozen=True):
    """Change those fields of a stream's policy that are given."""

    path: str
    changes: PolicyChanges

    def apply(self, connection: Tables) -> StreamOutcome:
        stream = require_stream(connection, self.path)
        changes = {name: value for name, value in msgspec.structs.asdict(self.changes).items() if value is not None}
        policy = msgspec.structs.replace(stream.policy, **changes)
        if policy == stream.policy:
            return StreamOutcome(stream, changed=False)
        connection.update("streams", {"policy": "?1"}, "number = ?2", encode_policy(policy), stream.number)
        return StreamOutcome(stream._replace(policy=policy), changed=True)


class DeleteStream(CatalogCommand[StreamOutcome], frozen=True):
    """Delete a stream; with `force` also its topics and links.

    Refused with POLICY_VIOLATION while the stream has topics or links, unless `force` is set. From level 1 on the rows
    of its topics are deleted by `ForgetDeleted`.
    """

    path: str
    now: Millis
    force: bool = False

    def apply(self, connection: Tables) -> StreamOutcome:
        stream = require_stream(connection, self.path)
        if stream.topics and not self.force:
            raise KafkaError(
                Code.POLICY_VIOLATION,
                f"stream {stream.path} holds {stream.topics} topics; delete them first, or delete all with --force",
            )
        links = [name for (name,) in connection.execute("SELECT name FROM links WHERE stream = ?", (stream.number,))]
        if links and not self.force:
            raise KafkaError(
                Code.POLICY_VIOLATION,
                f"stream {stream.path} has the links {', '.join(sorted(links))}; "
                "delete them first, or all with --force",
            )
        connection.delete("links", "stream = ?1", stream.number)
        forget_stream_access(connection, stream.number)
        if in_pieces(connection):
            hide_stream(connection, stream.number)
            forget_some_of_stream(connection, stream.number)  # which is all of a small stream
        else:
            numbers = [
                row[0] for row in connection.execute("SELECT number FROM topics WHERE stream = ?", (stream.number,))
            ]
            forget_whole_topics(connection, numbers)
            connection.delete("streams", "number = ?1", stream.number)
        return StreamOutcome(stream, changed=True)


def require_stream(connection: sqlite3.Connection, path: str) -> StreamRow:
    """The stream at `path`. Raises KafkaError(UNKNOWN_TOPIC_OR_PARTITION) if there is none."""
    stream = select_stream(connection, path)
    if stream is None:
        raise KafkaError(Code.UNKNOWN_TOPIC_OR_PARTITION, f"there is no stream {path}")
    return stream


def _take_stream(connection: Tables) -> tuple[int, int]:
    """Take a number that no stream has, with the first serial for its partitionlets. Raises KafkaError."""
    least_serial = counter(connection, "first_serial") or 1  # above the serials of streams that a recovery lost
    if needed_counter(connection, "next_stream") <= MAX_STREAM_NUMBER:
        return take_numbers(connection, "next_stream", 1), least_serial
    free = take_free_stream(connection)
    if free is None:
        raise KafkaError(Code.POLICY_VIOLATION, f"a catalog has at most {MAX_STREAM_NUMBER} streams; delete some")
    number, serial = free
    return number, max(serial, least_serial)


def take_serials(connection: Tables, stream: StreamNumber, count: int, *, topics: int = 0, partitions: int = 0) -> int:
    """Take `count` new partitionlet serials of a stream, and add to its counts of topics and partitions; returns the
    first serial. Raises KafkaError(POLICY_VIOLATION) if the stream's serials are used up."""
    (first,) = connection.execute("SELECT next_serial FROM streams WHERE number = ?", (stream,)).fetchone()
    if first + count > MAX_SERIAL:
        raise KafkaError(
            Code.POLICY_VIOLATION,
            f"a stream has at most {MAX_SERIAL} partitionlets in its lifetime; use another stream",
        )
    more = {"next_serial": "?1", "topics": "topics + ?2", "partitions": "partitions + ?3"}
    connection.update("streams", more, "number = ?4", first + count, topics, partitions, stream)
    return int(first)
