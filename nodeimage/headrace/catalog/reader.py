"""The read side of the catalog: blocking queries on a read-only connection, one connection per thread.

Used through `Catalog.query`, which runs a function of a Reader in a thread, in one read transaction, so that all it
reads is of one moment. Lists of names, ids and numbers may be of any length.
"""

import sqlite3
from collections.abc import Collection, Iterable
from functools import cache
from pathlib import Path

from headrace.base.ids import (
    PARTITIONLET_BITS,
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
    select_stream,
    select_topics_by_id,
    select_topics_by_name,
    stream_row,
    topic_row,
)
from headrace.catalog.tables import applied
from headrace.tables.row_checksums import COLUMNS, KEYS, prepare
from headrace.tables.sqlite_errors import TablesDamaged

_PAGE = 1000
_NEVER = 1 << 62
_CHAINS = ("topic", "state", "partition")
"""Of the index of that name."""
Values = tuple[int | str | bytes, ...]
"""Of the columns of a key."""
_STAYS = f"NOT EXISTS (SELECT 1 FROM going g WHERE g.number = p.id >> {PARTITIONLET_BITS})"
"""Its stream was not deleted: of one that was, rows may be left for a while."""


class Reader:
    """Queries on one connection; of one thread at a time."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None, check_same_thread=False, timeout=30
        )
        self._connection.execute("PRAGMA cache_size=-2048")
        self.checks = prepare(self._connection)
        """Rows are checked as they are read (row_sums.py): the file has their sums."""

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
        return list(map(topic_row, rows))

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
        rows = self._connection.execute(
            f"{TOPIC} WHERE (t.stream, t.name) > (?, ?) ORDER BY t.stream, t.name LIMIT ?", (*after, limit)
        )
        return list(map(topic_row, rows))

    def check_new_topics(self, items: list[NewTopic]) -> list[TopicOutcome | None]:
        """What CreateTopics would refuse now, per item; None for one that it would make (validate_only)."""
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
        found: dict[int, list[PartitionletRow]] = {}
        for row in select_open(self._connection, topics):
            found.setdefault(row.topic, []).append(row)
        return found

    def chain(self, topic: int, partition: int | None = None) -> list[PartitionletRow]:
        """Partitionlets of a topic's number in order of (partition, id), the intended ones too."""
        where = "p.topic = ?" if partition is None else "p.topic = ? AND p.state IN (0, 1, 2) AND p.partition = ?"
        rows = self._connection.execute(
            f"{PARTITIONLET} WHERE {where} ORDER BY p.partition, p.id",
            (topic,) if partition is None else (topic, partition),
        )
        found = list(map(partitionlet_row, rows))
        if self.checks and partition is None:
            self._read_around("partitionlets", _CHAINS, (topic, 0, 0), (topic, _NEVER, 0))
        elif self.checks and partition is not None:
            # What has not begun holds nothing.
            states = (SEALED,) if any(row.state == OPEN for row in found) else (SEALED, OPEN)
            for state in states:
                self._read_around("partitionlets", _CHAINS, (topic, state, partition), (topic, state, partition))
        return found

    def partitionlets(
        self, stream: StreamNumber, *, after: PartitionletId, limit: int = _PAGE
    ) -> list[PartitionletRow]:
        """A page of a stream's partitionlets, those behind `after`, in order of id, the intended ones too."""
        first = partitionlet_id(stream=stream, serial=0)
        rows = self._connection.execute(
            f"{PARTITIONLET} WHERE p.id >= ? AND p.id > ? AND p.id < ? ORDER BY p.id LIMIT ?",
            (first, after, partitionlet_id(stream=StreamNumber(stream + 1), serial=0), limit),
        )
        return list(map(partitionlet_row, rows))

    def log_starts(self, topics: Iterable[int]) -> dict[tuple[int, int], Offset]:
        """(topic number, partition) -> log start, of these topics' partitions where it is above 0."""
        topics = set(topics)
        for topic in topics if self.checks else ():
            self._read_around("log_starts", ("topic", "partition"), (topic, 0), (topic, _NEVER))
        rows = self._connection.execute(
            'SELECT topic, partition, "offset" FROM log_starts WHERE topic IN (SELECT value FROM json_each(?))',
            (json_list(topics),),
        )
        return {(topic, partition): Offset(offset) for topic, partition, offset in rows}

    def intended(self) -> list[PartitionletRow]:
        """Every partitionlet of a roll that is not over."""
        # An index is of these alone: they have not begun, so they have no first offset.
        rows = self._connection.execute(
            f"{PARTITIONLET} WHERE p.first < 0 AND p.state = ? AND {_STAYS} ORDER BY p.id", (INTENDED,)
        )
        return list(map(partitionlet_row, rows))

    def open_in(
        self, container: ContainerId, *, before: int = _NEVER, after: int = 0, limit: int = _PAGE
    ) -> list[PartitionletRow]:
        """A page of the open partitionlets of a container, by id. `before`: those alone that were opened before that
        epoch of the container."""
        rows = self._connection.execute(
            f"{PARTITIONLET} WHERE p.id > ? AND p.container = ? AND p.state = ? AND p.container_epoch < ? "
            f"AND {_STAYS} ORDER BY p.id LIMIT ?",
            (after, container, OPEN, before, limit),
        )
        return list(map(partitionlet_row, rows))

    def containers(self) -> set[ContainerId]:
        """Those that have partitionlets: a look-up for each."""
        found: set[ContainerId] = set()
        last = -1
        while last is not None:
            (last,) = self._connection.execute(
                "SELECT min(container) FROM partitionlets WHERE container > ?", (last,)
            ).fetchone()
            if last is not None:
                found.add(ContainerId(last))
        return found

    def sealed_in(self, container: ContainerId, *, after: int = 0, limit: int = _PAGE) -> list[PartitionletRow]:
        """A page of the sealed partitionlets of a container, by id."""
        rows = self._connection.execute(
            f"{PARTITIONLET} WHERE p.id > ? AND p.container = ? AND p.state = ? AND {_STAYS} ORDER BY p.id LIMIT ?",
            (after, container, SEALED, limit),
        )
        return list(map(partitionlet_row, rows))

    # Retention

    def live(self, partitionlets: Iterable[PartitionletId]) -> dict[PartitionletId, Offset]:
        """By id, the first offset that is kept of each; those missing are dead, and so are their bytes."""
        return {id_: max(Offset(0), owner.first, owner.log_start) for id_, owner in self.owners(partitionlets).items()}

    def owners(self, partitionlets: Iterable[PartitionletId]) -> dict[PartitionletId, Owner]:
        """By id, the partition that each belongs to; those missing are dead."""
        partitionlets = list(partitionlets)
        rows = self._connection.execute(
            'SELECT p.id, p.topic, t.topic_id, p.partition, p.first, p."end", coalesce(l."offset", 0) '
            "FROM json_each(?) j CROSS JOIN partitionlets p ON p.id = j.value JOIN topics t ON t.number = p.topic "
            "LEFT JOIN log_starts l ON l.topic = p.topic AND l.partition = p.partition",
            (json_list(partitionlets),),
        )
        owners = {row[0]: Owner._make(row[1:]) for row in rows}
        for id_ in set(partitionlets) - owners.keys() if self.checks else ():
            self._prove_dead(id_)
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
        for values_of_one in values if self.checks else ():
            if self._read_around(table, key, values_of_one, values_of_one):
                raise TablesDamaged(f"{table}: the row {values_of_one} is not in its place")

    def _read_around(self, table: str, key: tuple[str, ...], first: Values, last: Values) -> int:
        """Read, and so check, all from the row before `first` to the row behind `last`, in the order of an index whose
        first columns are `key`; how many there are from one to the other.

        A row whose key has changed where it lies is found by no look-up, and leads those for other rows astray; but
        each of these ends beside it, so it is one of the rows that are read here, damaged or out of order. Raises
        TablesDamaged.
        """
        the_one_before, from_there, from_the_first = _around(table, key)
        before = self._connection.execute(the_one_before, first).fetchone()
        # From the row before on, or from the very first: no condition is in the way of what lies in between.
        count, at = 0, before or ()
        for row in self._connection.execute(from_there if at else from_the_first, at):
            if None in row or row < at:
                raise TablesDamaged(f"{table}: the row {row} is not in its place")
            if row > last:
                break
            count, at = count + (row >= first), row
        if before is not None and before >= first:
            raise TablesDamaged(f"{table}: the row {before} is not in its place")
        return count

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
        for number in set(streams) - found.keys():
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
        return {
            number: StreamRetention(Retention(row.policy.ttl_ms, row.policy.retention_bytes), overrides[number])
            for number, row in held.items()
        }

    # Links and homes

    def links(self, stream: str | None = None) -> list[LinkRow]:
        """Links in order of name: all, or those of the stream at a path."""
        where, parameters = ("", ()) if stream is None else ("WHERE s.path = ? ", (stream,))
        return list(map(link_row, self._connection.execute(f"{LINK} {where}ORDER BY l.name", parameters)))

    def link(self, name: str) -> LinkRow | None:
        """The link of that name."""
        return select_link(self._connection, name)

    def copies(self, stream: str, own_cluster: str, *, after: str = "", limit: int = _PAGE) -> list[TopicRow]:
        """A page of a stream's topics whose home is another cluster than `own_cluster`, in order of name."""
        found = self.stream(stream)
        if found is None:
            return []
        rows = self._connection.execute(
            f"{TOPIC} WHERE t.stream = ? AND t.home_cluster IS NOT NULL AND t.home_cluster <> ? AND t.name > ? "
            "ORDER BY t.name LIMIT ?",
            (found.number, own_cluster, after, limit),
        )
        return list(map(topic_row, rows))

    def histories(self, topics: Iterable[int]) -> dict[tuple[int, int], list[HomeStart]]:
        """(topic number, partition) -> where each home begins, in rising order; those missing know only the first."""
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
        rows = self._connection.execute(
            "SELECT topic, partition, counter, cluster FROM settled_homes "
            "WHERE topic IN (SELECT value FROM json_each(?))",
            (json_list(topics),),
        )
        return {(topic, partition): Home(counter, cluster) for topic, partition, counter, cluster in rows}

    def settled_at(self, topic: int, partition: int) -> HomeStart | None:
        """The home that one partition was last rolled for, and where that begins in it; None: its topic's first."""
        row = self._connection.execute(
            'SELECT s.counter, s.cluster, coalesce(h."offset", 0) FROM settled_homes s LEFT JOIN home_starts h '
            "ON h.topic = s.topic AND h.partition = s.partition AND h.counter = s.counter AND h.cluster = s.cluster "
            "WHERE s.topic = ? AND s.partition = ?",
            (topic, partition),
        ).fetchone()
        return None if row is None else HomeStart(*row)

    def pending(self, topics: Iterable[int]) -> dict[int, dict[int, list[HomeStart]]]:
        """Topic number -> partition -> the history that it gets when it is settled for its topic's home."""
        rows = self._connection.execute(
            "SELECT topic, lists FROM pending_homes WHERE topic IN (SELECT value FROM json_each(?))",
            (json_list(topics),),
        )
        return {topic: decode_lists(lists) for topic, lists in rows}

    def unsettled(self, *, after: int = 0, limit: int = _PAGE) -> list[TopicRow]:
        """A page of the topics that have partitions still to be rolled for their home, by number; scans those moved."""
        rows = self._connection.execute(
            f"{TOPIC} WHERE t.number IN (SELECT m.number FROM topics m WHERE m.number > ? AND m.home_counter > 0 AND "
            "m.home_cluster IS NOT NULL AND m.partitions > (SELECT count(*) FROM settled_homes h "
            "WHERE h.topic = m.number AND h.counter = m.home_counter AND h.cluster = m.home_cluster) "
            "AND EXISTS (SELECT 1 FROM streams s WHERE s.number = m.stream) "
            "ORDER BY m.number LIMIT ?) ORDER BY t.number",
            (after, limit),
        )
        return list(map(topic_row, rows))

    # Groups

    def group(self, group: str) -> GroupRow | None:
        """One consumer group as stored."""
        row = self._connection.execute(f"{GROUP} WHERE name = ?", (group,)).fetchone()
        if row is None:
            self._prove_absent("groups", ("name",), [(group,)])
        return None if row is None else group_row(row)

    def groups(self, *, after: str = "", limit: int = -1) -> list[GroupRow]:
        """Groups in order of name, those after `after`; `limit` -1 for all."""
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
        rows = self._connection.execute(
            'SELECT c."group", t.topic_id, s.path, t.name, c.partition, c."offset", c.leader_epoch, c.metadata, '
            "c.committed_at FROM cursors c CROSS JOIN topics t ON t.number = c.topic JOIN streams s ON "
            's.number = t.stream WHERE (c."group", c.topic, c.partition) > (?, ?, ?) '
            'ORDER BY c."group", c.topic, c.partition LIMIT ?',
            (*after, limit),
        )
        return [(row[0], CursorRow._make(row[1:])) for row in rows]

    def _count_cursors(self, group: str, topics: Iterable[int] | None) -> int:
        """How many there are, each proven: one that is not there has a consumer begin anew."""
        return sum(
            self._read_around("cursors", ("group", "topic", "partition"), (group, first, 0), (group, last, _NEVER))
            for first, last in (((0, _NEVER),) if topics is None else ((topic, topic) for topic in topics))
        )

    def _prove_gone(self, key: str, topics: Iterable[int | bytes]) -> None:
        """Of the topics with these values of a column each is there, or was deleted, or was deleted with its stream."""
        for topic in topics:
            row = self._connection.execute(f"SELECT stream FROM topics WHERE {key} = ?", (topic,)).fetchone()
            if row is None:
                self._prove_absent("topics", (key,), [(topic,)])
            else:
                self.stream_by_number(row[0])


@cache
def _around(table: str, key: tuple[str, ...]) -> tuple[str, str, str]:
    """SELECTs of the row before one, of all from one on, and of all."""
    names = ", ".join(f'"{each}"' for each in key)
    backwards = ", ".join(f'"{each}" DESC' for each in key)
    marks = ", ".join("?" * len(key))
    every = f"SELECT {names} FROM {table}"
    return (
        f"{every} WHERE ({names}) < ({marks}) ORDER BY {backwards} LIMIT 1",
        f"{every} WHERE ({names}) >= ({marks}) ORDER BY {names}",
        f"{every} ORDER BY {names}",
    )
