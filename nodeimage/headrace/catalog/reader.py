"""The read side of the catalog: blocking queries on a read-only connection, one connection per thread.

Used through `Catalog.query`, which runs a function of a Reader in a thread, in one read transaction, so that all it
reads is of one moment. Lists of names, ids and numbers may be of any length.
"""

import itertools
import sqlite3
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from headrace.base.ids import (
    ContainerId,
    Home,
    Offset,
    PartitionletId,
    Position,
    StreamNumber,
    partitionlet_id,
    serial_of,
    stream_of,
)
from headrace.catalog.absence import NEVER, Absence, Values
from headrace.catalog.apply_topics import check_new_topics
from headrace.catalog.commands import NewTopic
from headrace.catalog.homes import decode_lists
from headrace.catalog.retention import retention
from headrace.catalog.rows import (
    INTENDED,
    OPEN,
    SEALED,
    CursorRow,
    GroupRow,
    HomeStart,
    LinkRow,
    Owner,
    PartitionletRow,
    Retention,
    StreamRetention,
    StreamRow,
    TopicOutcome,
    TopicRow,
)
from headrace.catalog.selects import (
    GROUP,
    LINK,
    PARTITIONLET,
    STREAM,
    TOPIC,
    group_row,
    json_list,
    level_of,
    link_row,
    needed_counter,
    partitionlet_row,
    select_link,
    select_open,
    select_retired,
    select_stream,
    select_topics_by_id,
    select_topics_by_name,
    stream_row,
    topic_row,
)
from headrace.tables.row_checksums import COLUMNS, KEYS, prepare
from headrace.tables.sqlite_errors import TablesDamaged
from headrace.tables.transactions import applied

_PAGE = 1000
_CHAINS = ("topic", "state", "partition")
"""Of the index of that name."""
_STARTS = ("topic", "partition", "counter", "cluster")
_CURSORS = ("group", "topic", "partition")


class Reader:
    """Queries on one connection; of one thread at a time."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None, check_same_thread=False, timeout=30
        )
        self._connection.execute("PRAGMA cache_size=-2048")
        self.checks = prepare(self._connection)
        """Rows are checked as they are read (row_checksums.py), and absences proven: the file has their sums."""
        self._absence = Absence(self._connection)

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

    # Streams

    def streams(self, *, after: str = "", limit: int = -1) -> list[StreamRow]:
        """Streams in order of path, those after `after`; `limit` -1 for all."""
        self._prove_start("streams", ("path",), (after,))
        rows = self._connection.execute(f"{STREAM} WHERE path > ? ORDER BY path LIMIT ?", (after, limit))
        return list(map(stream_row, rows))

    def stream(self, path: str) -> StreamRow | None:
        """The stream at `path`."""
        found = select_stream(self._connection, path)
        if found is None:
            self._prove_absent("streams", ("path",), [(path,)])
        return found

    def stream_by_number(self, number: StreamNumber) -> StreamRow | None:
        """The stream with this number."""
        row = self._connection.execute(f"{STREAM} WHERE number = ?", (number,)).fetchone()
        if row is None:
            self._prove_absent("streams", ("number",), [(number,)])
        return None if row is None else stream_row(row)

    def totals(self) -> tuple[int, int, int]:
        """(streams, topics, partitions) of the catalog."""
        row = self._connection.execute(
            "SELECT count(*), coalesce(sum(topics), 0), coalesce(sum(partitions), 0) FROM streams"
        ).fetchone()
        return int(row[0]), int(row[1]), int(row[2])

    # Topics

    def topic(self, stream: str, name: str) -> TopicRow | None:
        """One topic of the stream at path `stream`."""
        return self.topics_named(stream, [name]).get(name)

    def topics_named(self, stream: str, names: Iterable[str]) -> dict[str, TopicRow]:
        """By name, those of these topics that the stream at path `stream` has."""
        found = self.stream(stream)
        if found is None:
            return {}
        wanted = set(names)
        topics = select_topics_by_name(self._connection, found.number, wanted)
        missing = wanted - topics.keys()
        self._prove_absent("topics", ("stream", "name"), [(found.number, name) for name in missing])
        return topics

    def topics(self, stream: str, *, after: str = "", limit: int = -1) -> list[TopicRow]:
        """A page of a stream's topics in order of name, those after `after`; `limit` -1 for all."""
        found = self.stream(stream)
        if found is None:
            return []
        rows = self._connection.execute(
            f"{TOPIC} WHERE t.stream = ? AND t.name > ? ORDER BY t.name LIMIT ?", (found.number, after, limit)
        )
        topics = list(map(topic_row, rows))
        self._prove_topics(found.number, after, [topic.name for topic in topics], limit)
        return topics

    def topics_by_id(self, topic_ids: Collection[bytes]) -> dict[bytes, TopicRow]:
        """By topic id, those of these topics that exist."""
        found = select_topics_by_id(self._connection, topic_ids)
        if self.checks:
            self._prove_gone("topic_id", set(topic_ids) - found.keys())
        return found

    def topic_by_id(self, topic_id: bytes) -> TopicRow | None:
        """The topic with this id."""
        return self.topics_by_id([topic_id]).get(topic_id)

    def all_topics(self, *, after: tuple[int, str] = (0, ""), limit: int = _PAGE) -> list[TopicRow]:
        """A page of the catalog's topics in order of (stream number, name), those after `after`."""
        limit = _most(limit)
        stream, name = after
        rows = self._connection.execute(
            f"{TOPIC} WHERE t.stream = ? AND t.name > ? ORDER BY t.name LIMIT ?", (stream, name, limit)
        ).fetchall()
        if len(rows) < limit:
            others = f"{TOPIC} WHERE t.stream > ? ORDER BY t.stream, t.name LIMIT ?"
            rows += self._connection.execute(others, (stream, limit - len(rows))).fetchall()
        topics = list(map(topic_row, rows))
        if self.checks:
            self._absence.prove_start("topics", ("stream", "name"), (stream, f"{name}\0"))
            self._absence.prove_start("topics", ("stream",), (stream + 1,))
            last = (topics[-1].stream_number, topics[-1].name) if len(topics) == limit else (NEVER, "")
            self._prove_streams_gone(after, last, len(topics))
        return topics

    def check_new_topics(self, items: list[NewTopic]) -> list[TopicOutcome | None]:
        """What CreateTopics would refuse now, per item; None for one that it would make (validate_only)."""
        names: dict[str, list[str]] = {}
        for item in items:
            names.setdefault(item.stream, []).append(item.name)
        for stream, wanted in names.items():
            self.topics_named(stream, wanted)
        self.topics_by_id({item.topic_id for item in items})
        containers = {container for item in items for container in item.container_ids}
        missing = containers - select_retired(self._connection, containers)
        self._prove_absent("retired", ("container",), [(container,) for container in missing])
        return check_new_topics(self._connection, items)

    def check_rows(self, table: str, *, after: tuple[object, ...] = (), limit: int = _PAGE) -> tuple[object, ...]:
        """Check the next rows of a table behind a key, in its order; the last one's key, () if there are no more.

        Raises sqlite3.DatabaseError where one is damaged.
        """
        count = KEYS.get(table, 1)
        keys = ", ".join(f'"{column}"' for column in COLUMNS[table][:count])
        where = f"WHERE ({keys}) > ({', '.join('?' * count)}) " if after else ""
        rows = self._connection.execute(f"SELECT {keys} FROM {table} {where}ORDER BY {keys} LIMIT ?", (*after, limit))
        found = rows.fetchall()
        return found[-1] if len(found) == limit else ()

    # Chains

    def open_partitionlets(self, topics: Iterable[int]) -> dict[int, list[PartitionletRow]]:
        """By topic number, the open partitionlet of each partition, in order of partition."""
        topics = set(topics)
        found: dict[int, list[PartitionletRow]] = {}
        for row in select_open(self._connection, topics):
            if row.state != OPEN:
                raise TablesDamaged(f"partitionlets: those of topic {row.topic} are not in their places")
            found.setdefault(row.topic, []).append(row)
        if self.checks:
            rows = self._connection.execute(
                "SELECT number, partitions FROM topics WHERE number IN (SELECT value FROM json_each(?))",
                (json_list(topics),),
            )
            partitions: dict[int, int] = dict(rows.fetchall())
            for topic in topics:
                count = len(found.get(topic, ()))
                # Each partition has one; others have those alone whose rows are being deleted.
                if count != partitions.get(topic):
                    self._prove_count(count, "partitionlets", _CHAINS, (topic, OPEN, 0), (topic, OPEN, NEVER), "id")
        return found

    def chain(self, topic: int, partition: int | None = None) -> list[PartitionletRow]:
        """Partitionlets of a topic's number in order of (partition, id), the intended ones too."""
        where = "p.topic = ?" if partition is None else "p.topic = ? AND p.state IN (0, 1, 2) AND p.partition = ?"
        rows = self._connection.execute(
            f"{PARTITIONLET} WHERE {where} ORDER BY p.partition, p.id",
            (topic,) if partition is None else (topic, partition),
        )
        found = list(map(partitionlet_row, rows))
        if any(row.topic != topic or partition not in (None, row.partition) for row in found):
            raise TablesDamaged(f"partitionlets: rows among those of topic {topic} are not in their places")
        if self.checks and partition is None:
            places = [(topic, row.state, row.partition, row.id) for row in found]
            self._absence.prove_start("partitionlets", _CHAINS[:1], (topic,))
            self._absence.prove_last("partitionlets", (*_CHAINS, "id"), topic, max(places, default=None))
        elif self.checks and partition is not None and not _is_complete(found):
            # What has not begun holds nothing.
            states = (SEALED,) if any(row.state == OPEN for row in found) else (SEALED, OPEN)
            for state in states:
                self._prove_chain((topic, state, partition), [row.id for row in found if row.state == state])
        return found

    def _prove_chain(self, place: tuple[int, int, int], ids: list[PartitionletId]) -> None:
        """These are a partition's partitionlets in a state."""
        last = self._connection.execute(
            "SELECT id FROM partitionlets WHERE topic = ? AND state = ? AND partition = ? ORDER BY id DESC LIMIT 1",
            place,
        ).fetchone()
        if last != ((ids[-1],) if ids else None) or len({*ids}) < len(ids):
            raise TablesDamaged(f"partitionlets: those of partition {place[2]} of topic {place[0]} are not in place")
        self._absence.prove_start("partitionlets", _CHAINS, place)
        self._absence.prove_end("partitionlets", _CHAINS, place)

    def partitionlets(
        self, stream: StreamNumber, *, after: PartitionletId, limit: int = _PAGE
    ) -> list[PartitionletRow]:
        """A page of a stream's partitionlets, those behind `after`, in order of id, the intended ones too."""
        first = partitionlet_id(stream=stream, serial=0)
        end = partitionlet_id(stream=StreamNumber(stream + 1), serial=0)
        start = max(first - 1, after)
        rows = self._connection.execute(
            f"{PARTITIONLET} WHERE p.id > ? AND p.id < ? ORDER BY p.id LIMIT ?", (start, end, limit)
        )
        found = list(map(partitionlet_row, rows))
        if self.checks:
            self._absence.read_around("partitionlets", ("id",), (start,), (start,))
            if not 0 <= limit <= len(found):
                last = found[-1].id if found else start
                behind = self._absence.read_around("partitionlets", ("id",), (last + 1,), (end - 1,))
                self._none_left("partitionlets", behind)
        return found

    def log_starts(self, topics: Iterable[int]) -> dict[tuple[int, int], Offset]:
        """(topic number, partition) -> log start, of these topics' partitions where it is above 0."""
        topics = set(topics)
        self._prove_of_topics("log_starts", topics)
        rows = self._connection.execute(
            'SELECT topic, partition, "offset" FROM log_starts WHERE topic IN (SELECT value FROM json_each(?))',
            (json_list(topics),),
        )
        return {(topic, partition): Offset(offset) for topic, partition, offset in rows}

    def intended(self) -> list[PartitionletRow]:
        """Every partitionlet of a roll that is not over."""
        # An index is of these alone: they have not begun, so they have no first offset.
        rows = self._connection.execute(f"{PARTITIONLET} WHERE p.first < 0 ORDER BY p.id")
        found = list(map(partitionlet_row, rows))
        if any(row.first >= 0 for row in found) or len({row.id for row in found}) < len(found):
            raise TablesDamaged("partitionlets: a row that is not in its place is among the intended")
        going = self._going()
        return [row for row in found if row.state == INTENDED and stream_of(row.id) not in going]

    def open_in(
        self, container: ContainerId, *, before: int = NEVER, after: int = 0, limit: int = _PAGE
    ) -> list[PartitionletRow]:
        """A page of the open partitionlets of a container, by id. `before`: those alone that were opened before that
        epoch of the container."""
        return self._in_container(container, OPEN, after, limit, before=before)

    def sealed_in(self, container: ContainerId, *, after: int = 0, limit: int = _PAGE) -> list[PartitionletRow]:
        """A page of the sealed partitionlets of a container, by id."""
        return self._in_container(container, SEALED, after, limit, before=NEVER)

    def _in_container(
        self, container: ContainerId, state: int, after: int, limit: int, *, before: int
    ) -> list[PartitionletRow]:
        limit = _most(limit)
        going = self._going()
        kept: list[PartitionletRow] = []
        place = (container, state)
        if self.checks:
            self._absence.prove_start("partitionlets", ("container", "state", "id"), (*place, after))
        while len(kept) < limit:
            wanted = limit - len(kept) + 1
            # From `after` itself on, which is there, or was: a search that finds it was not led astray.
            rows = self._connection.execute(
                f"{PARTITIONLET} WHERE p.container = ? AND p.state = ? AND p.id >= ? ORDER BY p.id LIMIT ?",
                (*place, after, wanted),
            )
            found = list(map(partitionlet_row, rows))
            if any((row.container, row.state) != place for row in found) or any(
                row.id >= following.id for row, following in itertools.pairwise(found)
            ):
                raise TablesDamaged(f"partitionlets: those of container {container} are not in their places")
            if self.checks and (len(found) < wanted or (after and found[0].id != after)):
                self._prove_in_container(place, after, [row.id for row in found], is_last=len(found) < wanted)
            kept += [
                row
                for row in found
                if row.id != after and row.container_epoch < before and stream_of(row.id) not in going
            ]
            if len(found) < wanted:
                break
            after = found[-1].id
        return kept[:limit]

    def _prove_in_container(self, place: tuple[int, int], after: int, found: list[int], *, is_last: bool) -> None:
        """These are the first of the container's partitionlets in that state from `after` on, or all of them."""
        rows = self._connection.execute(
            "SELECT container, state, id FROM partitionlets WHERE container >= ? ORDER BY container, state, id",
            place[:1],
        )
        there: list[int] = []
        at: tuple[int, ...] = ()
        for row in rows:
            if None in row or row <= at:
                raise TablesDamaged(f"partitionlets: the row {row} is not in its place")
            if row[:2] > place:
                break
            at = row
            if row[:2] == place and row[2] >= after:
                there.append(row[2])
        if there[: None if is_last else len(found)] != found:
            raise TablesDamaged(f"partitionlets: those of container {place[0]} are not in their places")

    def containers(self) -> set[ContainerId]:
        """Those that have partitionlets: a look-up for each."""
        found: set[ContainerId] = set()
        last = -1
        while last is not None:
            if self.checks:
                self._absence.prove_start("partitionlets", ("container",), (last + 1,))
            (last,) = self._connection.execute(
                "SELECT min(container) FROM partitionlets WHERE container > ?", (last,)
            ).fetchone()
            if last is not None:
                found.add(ContainerId(last))
        return found

    # Retention

    def live(self, partitionlets: Iterable[PartitionletId]) -> dict[PartitionletId, Offset]:
        """By id, the first offset that is kept of each; those missing are dead, and so are their bytes."""
        return {id_: max(Offset(0), owner.first, owner.log_start) for id_, owner in self.owners(partitionlets).items()}

    def owners(self, partitionlets: Iterable[PartitionletId]) -> dict[PartitionletId, Owner]:
        """By id, the partition that each belongs to; those missing are dead."""
        partitionlets = list(partitionlets)
        rows = self._connection.execute(
            'SELECT p.id, p.topic, t.topic_id, p.partition, p.first, p."end", l."offset" '
            "FROM json_each(?) j CROSS JOIN partitionlets p ON p.id = j.value JOIN topics t ON t.number = p.topic "
            "LEFT JOIN log_starts l ON l.topic = p.topic AND l.partition = p.partition",
            (json_list(partitionlets),),
        )
        owners: dict[PartitionletId, Owner] = {}
        unmoved: dict[int, set[int]] = {}
        for id_, topic, topic_id, partition, first, end, log_start in rows:
            if log_start is None:
                unmoved.setdefault(topic, set()).add(partition)
            owners[id_] = Owner(topic, topic_id, partition, first, end, log_start or Offset(0))
        if self.checks:
            for id_ in set(partitionlets) - owners.keys():
                self._prove_dead(id_)
            for topic, parts in unmoved.items():
                first, last = (topic, min(parts)), (topic, max(parts))
                there = self._absence.read_around("log_starts", ("topic", "partition"), first, last)
                if not parts.isdisjoint(partition for _, partition in there):
                    raise TablesDamaged(f"log_starts: those of topic {topic} are not in their places")
        return owners

    def _prove_dead(self, partitionlet: PartitionletId) -> None:
        """What is dead loses its bytes."""
        topic = self._connection.execute("SELECT topic FROM partitionlets WHERE id = ?", (partitionlet,)).fetchone()
        if topic is None:
            self._prove_absent("partitionlets", ("id",), [(partitionlet,)])
        else:
            self._prove_absent("topics", ("number",), [topic])

    def _prove_absent(self, table: str, key: tuple[str, ...], values: Iterable[Values]) -> None:
        """There are no rows with these values, in the order of an index. Raises TablesDamaged where they may only look
        as if they were not there."""
        if self.checks:
            self._absence.prove(table, key, values)

    def _prove_start(self, table: str, key: tuple[str, ...], after: Values) -> None:
        """A page begins behind `after`. It has no end but that of the index."""
        if self.checks:
            self._absence.read_around(table, key, after, after)

    def _prove_count(
        self, count: int, table: str, key: tuple[str, ...], first: Values, last: Values, id_column: str = ""
    ) -> None:
        """There are that many rows from `first` to `last`."""
        if len(self._absence.read_around(table, key, first, last, id_column=id_column)) != count:
            raise TablesDamaged(f"{table}: rows from {first} to {last} are not in their places")

    def _none_left(self, table: str, rows: Collection[object]) -> None:
        if rows:
            raise TablesDamaged(f"{table}: rows behind the last one are not in their places")

    def _prove_of_topics(self, table: str, topics: Iterable[int]) -> None:
        """All rows of these topics are where they are looked for."""
        for topic in topics if self.checks else ():
            self._absence.read_around(table, ("topic",), (topic,), (topic,))

    def _prove_topics(self, stream: StreamNumber, after: str, names: list[str], limit: int) -> None:
        """These names are the next of the stream's topics behind `after`."""
        if not self.checks:
            return
        key = ("stream", "name")
        self._absence.prove_start("topics", key, (stream, f"{after}\0"))
        if not 0 <= limit <= len(names):
            self._prove_last_topic(stream, names[-1] if names else self._last_topic(stream, after, ""), "")

    def _prove_last_topic(self, stream: StreamNumber, name: str | None, where: str) -> None:
        last = None if name is None else (stream, name)
        self._absence.prove_last("topics", ("stream", "name"), stream, last, where=where)

    def _last_topic(self, stream: StreamNumber, name: str, where: str) -> str | None:
        """The name of the last topic up to `name`."""
        row = self._connection.execute(
            f"SELECT name FROM topics WHERE {where}stream = ? AND name <= ? ORDER BY name DESC LIMIT 1", (stream, name)
        ).fetchone()
        return None if row is None else row[0]

    def _prove_streams_gone(self, after: tuple[int, str], last: tuple[int, str], count: int) -> None:
        """Of the topics behind `after` up to `last` all but `count` are of streams that are not there."""
        listed = json_list(self._going())
        between = "FROM main.topics WHERE (stream, name) > (?, ?) AND (stream, name) <= (?, ?) AND stream NOT IN "
        others = f"{between}(SELECT value FROM json_each(?))"
        (there,) = self._connection.execute(f"SELECT count(*) {others}", (*after, *last, listed)).fetchone()
        if there != count:
            found = self._connection.execute(f"SELECT DISTINCT stream {others}", (*after, *last, listed)).fetchall()
            self._prove_none(stream for (stream,) in found)

    def _prove_none(self, streams: Iterable[int]) -> None:
        """One of these streams, at least, is not there."""
        if all(self.stream_by_number(StreamNumber(number)) is not None for number in streams):
            raise TablesDamaged("streams: rows are not in their places")

    def _going(self) -> set[int]:
        """The streams of which rows are left. Reads, and so checks, all of the few."""
        return {number for (number,) in self._connection.execute("SELECT number FROM going")}

    def not_yet_made(self, partitionlets: Iterable[PartitionletId]) -> list[PartitionletId]:
        """Those whose ids nobody has been given in what this sees: it lags behind the containers that hold them."""
        wanted = list(partitionlets)
        counts = self._next_serials({stream_of(id_) for id_ in wanted})
        next_stream = needed_counter(self._connection, "next_stream")
        return [
            id_
            for id_ in wanted
            if stream_of(id_) >= next_stream or serial_of(id_) >= counts.get(stream_of(id_), serial_of(id_) + 1)
        ]

    def _next_serials(self, streams: Collection[StreamNumber]) -> dict[int, int]:
        """By number, of streams that there are, that go, and whose numbers are free to be given again."""
        listed = json_list(streams)
        found: dict[int, int] = {}
        for table in ("going", "streams"):
            found.update(
                self._connection.execute(
                    f"SELECT number, next_serial FROM {table} WHERE number IN (SELECT value FROM json_each(?))",
                    (listed,),
                )
            )
        missing = set(streams) - found.keys()
        for table in ("going", "streams"):
            self._prove_absent(table, ("number",), [(number,) for number in missing])
        for number in missing:
            self._prove_start("free_streams", ("first",), (number,))
            free = self._connection.execute(
                "SELECT max(next_serial) FROM (SELECT next_serial, first, count FROM free_streams "
                "WHERE first <= ? ORDER BY first DESC LIMIT 1) WHERE ? < first + count",
                (number, number),
            ).fetchone()
            if free[0] is not None:
                found[number] = free[0]
        return found

    def level(self) -> int:
        """The feature level that the log has come to by what is applied."""
        return level_of(self._connection)

    def is_forgetting(self) -> bool:
        """Whether rows of deleted streams or topics are left."""
        return self._connection.execute("SELECT 1 FROM going LIMIT 1").fetchone() is not None

    def retention(self, streams: Iterable[StreamNumber]) -> dict[StreamNumber, StreamRetention]:
        """By stream number, how long and how much it keeps, and its topics that differ; those missing are deleted."""
        streams = set(streams)
        wanted = json_list(sorted(streams))
        held = {
            row.number: row
            for row in map(
                stream_row,
                self._connection.execute(f"{STREAM} WHERE number IN (SELECT value FROM json_each(?))", (wanted,)),
            )
        }
        self._prove_absent("streams", ("number",), [(number,) for number in streams - held.keys()])
        overrides: dict[StreamNumber, dict[int, Retention]] = {number: {} for number in held}
        rows = self._connection.execute(
            f"{TOPIC} WHERE t.own_retention = 1 AND t.stream IN (SELECT value FROM json_each(?))", (wanted,)
        )
        for topic in map(topic_row, rows):
            rule = retention(held[topic.stream_number].policy, topic.configs)
            overrides[topic.stream_number][topic.number] = rule
        for number in held if self.checks else ():
            there = self._absence.read_around(
                "topics", ("stream",), (number,), (number,), id_column="number", where="own_retention = 1"
            )
            if {topic for _, topic in there} != overrides[number].keys():
                raise TablesDamaged(
                    f"topics: those of stream {number} with their own retention are not in their places"
                )
        return {
            number: StreamRetention(Retention(row.policy.ttl_ms, row.policy.retention_bytes), overrides[number])
            for number, row in held.items()
        }

    # Links and homes

    def links(self, stream: str | None = None) -> list[LinkRow]:
        """Links in order of name: all, or those of the stream at a path."""
        found = list(map(link_row, self._connection.execute(f"{LINK} ORDER BY l.name")))
        if self.checks:
            streams = [number for (number,) in self._connection.execute("SELECT stream FROM links")]
            if len(streams) != len(found):  # a deleted stream leaves none
                self._prove_none(set(streams))
        return found if stream is None else [link for link in found if link.stream == stream]

    def link(self, name: str) -> LinkRow | None:
        """The link of that name."""
        found = select_link(self._connection, name)
        if found is None and self.checks:
            row = self._connection.execute("SELECT stream FROM links WHERE name = ?", (name,)).fetchone()
            if row is None:
                self._prove_absent("links", ("name",), [(name,)])
            else:
                self.stream_by_number(row[0])
        return found

    def copies(self, stream: str, own_cluster: str, *, after: str = "", limit: int = _PAGE) -> list[TopicRow]:
        """A page of a stream's topics whose home is another cluster than `own_cluster`, in order of name."""
        found = self.stream(stream)
        if found is None:
            return []
        has_home, key, number = "home_cluster IS NOT NULL", ("stream", "name"), found.number
        limit = _most(limit)
        topics: list[TopicRow] = []
        while (wanted := limit - len(topics)) > 0:
            if self.checks:
                self._absence.prove_start("topics", key, (number, f"{after}\0"), where=has_home)
            # Which home it is cannot be asked before the row is checked.
            rows = self._connection.execute(
                f"{TOPIC} WHERE t.stream = ? AND t.{has_home} AND t.name > ? ORDER BY t.name LIMIT ?",
                (number, after, wanted),
            )
            page = list(map(topic_row, rows))
            topics += [topic for topic in page if topic.home is not None and topic.home.cluster != own_cluster]
            if len(page) < wanted:
                if self.checks:
                    last = page[-1].name if page else self._last_topic(number, after, f"{has_home} AND ")
                    self._prove_last_topic(number, last, has_home)
                break
            after = page[-1].name
        return topics

    def histories(self, topics: Iterable[int]) -> dict[tuple[int, int], list[HomeStart]]:
        """(topic number, partition) -> where each home begins, in rising order; those missing know only the first."""
        topics = set(topics)
        self._prove_of_topics("home_starts", topics)
        found: dict[tuple[int, int], list[HomeStart]] = {}
        rows = self._connection.execute(
            'SELECT topic, partition, counter, cluster, "offset" FROM home_starts '
            "WHERE topic IN (SELECT value FROM json_each(?)) ORDER BY topic, partition, counter, cluster",
            (json_list(topics),),
        )
        for topic, partition, *start in rows:
            found.setdefault((topic, partition), []).append(HomeStart(*start))
        return found

    def settled(self, topics: Iterable[int]) -> dict[tuple[int, int], Home]:
        """(topic number, partition) -> the home that it was last rolled for; those missing: their topic's first."""
        topics = set(topics)
        self._prove_of_topics("settled_homes", topics)
        rows = self._connection.execute(
            "SELECT topic, partition, counter, cluster FROM settled_homes "
            "WHERE topic IN (SELECT value FROM json_each(?))",
            (json_list(topics),),
        )
        return {(topic, partition): Home(counter, cluster) for topic, partition, counter, cluster in rows}

    def settled_at(self, topic: int, partition: int) -> HomeStart | None:
        """The home that one partition was last rolled for, and where that begins in it; None: its topic's first."""
        row = self._connection.execute(
            'SELECT s.counter, s.cluster, h."offset" FROM settled_homes s LEFT JOIN home_starts h '
            "ON h.topic = s.topic AND h.partition = s.partition AND h.counter = s.counter AND h.cluster = s.cluster "
            "WHERE s.topic = ? AND s.partition = ?",
            (topic, partition),
        ).fetchone()
        if row is None:
            self._prove_absent("settled_homes", ("topic", "partition"), [(topic, partition)])
            return None
        counter, cluster, offset = row
        if offset is None:
            self._prove_absent("home_starts", _STARTS, [(topic, partition, counter, cluster)])
        return HomeStart(counter, cluster, offset or Offset(0))

    def pending(self, topics: Iterable[int]) -> dict[int, dict[int, list[HomeStart]]]:
        """Topic number -> partition -> the history that it gets when it is settled for its topic's home."""
        topics = set(topics)
        self._prove_of_topics("pending_homes", topics)
        rows = self._connection.execute(
            "SELECT topic, lists FROM pending_homes WHERE topic IN (SELECT value FROM json_each(?))",
            (json_list(topics),),
        )
        return {topic: decode_lists(lists) for topic, lists in rows}

    def unsettled(self, *, after: int = 0, limit: int = _PAGE) -> list[TopicRow]:
        """A page of the topics that have partitions still to be rolled for their home, by number; scans those moved."""
        limit = _most(limit)
        listed = json_list(self._going())
        numbers: list[int] = []
        while len(numbers) < limit:
            moved = self._moved(after, limit)
            rows = self._connection.execute(
                "SELECT m.number FROM topics m WHERE m.number IN (SELECT value FROM json_each(?)) "
                "AND m.partitions > (SELECT count(*) FROM settled_homes h "
                "WHERE h.topic = m.number AND h.counter = m.home_counter AND h.cluster = m.home_cluster) "
                "AND (SELECT m.stream) NOT IN (SELECT value FROM json_each(?)) ORDER BY m.number LIMIT ?",
                (json_list(moved), listed, limit - len(numbers)),
            )
            numbers += [number for (number,) in rows]
            if len(moved) < limit:
                break
            after = moved[-1]
        self._prove_of_topics("settled_homes", numbers)
        found = self._connection.execute(
            f"{TOPIC} WHERE t.number IN (SELECT value FROM json_each(?)) ORDER BY t.number", (json_list(numbers),)
        )
        topics = list(map(topic_row, found))
        if self.checks:
            self._prove_gone("number", set(numbers) - {topic.number for topic in topics})
        return topics

    def _moved(self, after: int, limit: int) -> list[int]:
        """The numbers of the next topics that were moved, behind `after`."""
        where = "home_counter > 0"
        if self.checks:
            rows = self._absence.read_around(
                "topics", ("number",), (after,), None, id_column="home_counter", where=where, most=limit + 1
            )
            return [number for number, _ in rows if number > after][:limit]
        found = self._connection.execute(
            f"SELECT number FROM topics WHERE {where} AND number > ? ORDER BY number LIMIT ?", (after, limit)
        )
        return [number for (number,) in found]

    # Groups

    def group(self, group: str) -> GroupRow | None:
        """One consumer group as stored."""
        row = self._connection.execute(f"{GROUP} WHERE name = ?", (group,)).fetchone()
        if row is None:
            self._prove_absent("groups", ("name",), [(group,)])
        return None if row is None else group_row(row)

    def groups(self, *, after: str = "", limit: int = -1) -> list[GroupRow]:
        """Groups in order of name, those after `after`; `limit` -1 for all."""
        self._prove_start("groups", ("name",), (after,))
        rows = self._connection.execute(f"{GROUP} WHERE name > ? ORDER BY name LIMIT ?", (after, limit))
        return list(map(group_row, rows))

    def cursors(self, group: str, topics: Iterable[int] | None = None) -> list[CursorRow]:
        """A group's cursors, of these topic numbers or of all, in order of (topic number, partition)."""
        topics = None if topics is None else set(topics)
        some = "" if topics is None else "AND c.topic IN (SELECT value FROM json_each(?)) "
        parameters = (group,) if topics is None else (group, json_list(sorted(topics)))
        rows = self._connection.execute(
            'SELECT t.topic_id, s.path, t.name, c.partition, c."offset", c.leader_epoch, c.metadata, c.committed_at '
            "FROM cursors c JOIN topics t ON t.number = c.topic JOIN streams s ON s.number = t.stream "
            f'WHERE c."group" = ? {some}ORDER BY c.topic, c.partition',
            parameters,
        )
        found = list(map(CursorRow._make, rows))
        if self.checks and self._count_cursors(group, topics) > len(found):
            listed = f'SELECT DISTINCT c.topic FROM cursors c WHERE c."group" = ? {some}'
            self._prove_gone("number", (topic for (topic,) in self._connection.execute(listed, parameters).fetchall()))
        return found

    def cursors_after(self, after: tuple[str, int, int], *, limit: int) -> list[tuple[str, CursorRow]]:
        """Cursors with their groups, those after (group, topic number, partition), in that order."""
        limit = _most(limit)
        group, topic, partition = after
        rows: list[tuple[Any, ...]] = []
        for where, values in (
            ('c."group" = ? AND c.topic = ? AND c.partition > ?', (group, topic, partition)),
            ('c."group" = ? AND c.topic > ?', (group, topic)),
            ('c."group" > ?', (group,)),
        ):
            rows += self._connection.execute(
                'SELECT c."group", c.topic, t.topic_id, s.path, t.name, c.partition, c."offset", c.leader_epoch, '
                "c.metadata, c.committed_at FROM cursors c CROSS JOIN topics t ON t.number = c.topic JOIN streams s ON "
                f's.number = t.stream WHERE {where} ORDER BY c."group", c.topic, c.partition LIMIT ?',
                (*values, limit - len(rows)),
            )
        places: list[tuple[str, int, int]] = []
        found: list[tuple[str, CursorRow]] = []
        for group, topic, *row in rows:
            cursor = CursorRow._make(row)
            places.append((group, topic, cursor.partition))
            found.append((group, cursor))
        if self.checks:
            last = places[-1] if len(found) == limit else None
            group, topic, partition = after
            self._absence.prove_start("cursors", _CURSORS, (group, topic, partition + 1))
            self._absence.prove_start("cursors", _CURSORS[:2], (group, topic + 1))
            self._absence.prove_start("cursors", _CURSORS[:1], (f"{group}\0",))
            there = self._absence.read_around("cursors", _CURSORS, after, last)
            self._prove_gone("number", {place[1] for place in {*there} - {*places, after}})
        return found

    def _count_cursors(self, group: str, topics: Iterable[int] | None) -> int:
        """How many there are, each proven: one that is not there has a consumer begin anew."""
        if topics is None:
            self._absence.prove_start("cursors", ("group",), (group,))
            found = self._connection.execute(
                'SELECT "group", topic, partition FROM cursors WHERE "group" = ? ORDER BY topic, partition', (group,)
            ).fetchall()
            self._absence.prove_last("cursors", _CURSORS, group, found[-1] if found else None)
            return len(found)
        return sum(
            len(self._absence.read_around("cursors", _CURSORS, (group, topic, 0), (group, topic, NEVER)))
            for topic in topics
        )

    def _prove_gone(self, key: str, topics: Iterable[int | bytes]) -> None:
        """Of the topics with these values of a column each is there, or was deleted, or was deleted with its stream."""
        for topic in topics:
            row = self._connection.execute(f"SELECT stream FROM topics WHERE {key} = ?", (topic,)).fetchone()
            if row is None:
                self._prove_absent("topics", (key,), [(topic,)])
            else:
                self.stream_by_number(row[0])


def _most(limit: int) -> int:
    """`limit`, of which -1 is none."""
    return NEVER if limit < 0 else limit


def _is_complete(chain: list[PartitionletRow]) -> bool:
    """Whether it begins with a partition's first record, and goes on without a gap to the partitionlet that is open."""
    begun = [row for row in chain if row.state != INTENDED]
    if not begun or begun[-1].state != OPEN or begun[0].first != 0:
        return False
    return all(row.end == following.first for row, following in itertools.pairwise(begun))
