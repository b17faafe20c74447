"""Queries of partitionlets: by partition, by container, by id."""

import itertools
import sqlite3
from collections.abc import Collection, Iterable

from headrace.base.ids import ContainerId, Offset, PartitionletId, StreamNumber, partitionlet_id, serial_of, stream_of
from headrace.catalog.absence import NEVER
from headrace.catalog.counters import needed_counter
from headrace.catalog.queries.pages import PAGE, most
from headrace.catalog.queries.proofs import Proofs
from headrace.catalog.rows import INTENDED, OPEN, SEALED, Owner, PartitionletRow
from headrace.catalog.selects import PARTITIONLET, json_list, partitionlet_row, select_going, select_open
from headrace.tables.sqlite_errors import TablesDamaged

_CHAINS = ("topic", "state", "partition")
"""The columns of the index `chains`."""


class ChainQueries:
    """Queries of partitionlets on one connection; used by one thread at a time."""

    def __init__(self, connection: sqlite3.Connection, proofs: Proofs) -> None:
        self._connection = connection
        self._proofs = proofs

    def open_of(self, topics: Iterable[int]) -> dict[int, list[PartitionletRow]]:
        """By topic number, the open partitionlet of each partition, in order of partition."""
        topics = set(topics)
        found: dict[int, list[PartitionletRow]] = {}
        for row in select_open(self._connection, topics):
            if row.state != OPEN:
                raise TablesDamaged(f"partitionlets: those of topic {row.topic} are missing or in the wrong place")
            found.setdefault(row.topic, []).append(row)
        if self._proofs.checks:
            rows = self._connection.execute(
                "SELECT number, partitions FROM topics WHERE number IN (SELECT value FROM json_each(?))",
                (json_list(topics),),
            )
            partitions: dict[int, int] = dict(rows.fetchall())
            for topic in topics:
                count = len(found.get(topic, ()))
                # Each partition has one open partitionlet; the count differs only while a topic's rows are deleted.
                if count != partitions.get(topic):
                    self._proofs.count(count, "partitionlets", _CHAINS, (topic, OPEN, 0), (topic, OPEN, NEVER), "id")
        return found

    def chain(self, topic: int, partition: int | None = None) -> list[PartitionletRow]:
        """The partitionlets of a topic (by number), or of one partition, in order of (partition, id), including
        intended ones."""
        where = "p.topic = ?" if partition is None else "p.topic = ? AND p.state IN (0, 1, 2) AND p.partition = ?"
        rows = self._connection.execute(
            f"{PARTITIONLET} WHERE {where} ORDER BY p.partition, p.id",
            (topic,) if partition is None else (topic, partition),
        )
        found = list(map(partitionlet_row, rows))
        if any(row.topic != topic or partition not in (None, row.partition) for row in found):
            raise TablesDamaged(f"partitionlets: rows among those of topic {topic} are missing or in the wrong place")
        if self._proofs.checks and partition is None:
            places = [(topic, row.state, row.partition, row.id) for row in found]
            self._proofs.absence.prove_start("partitionlets", _CHAINS[:1], (topic,))
            self._proofs.absence.prove_last("partitionlets", (*_CHAINS, "id"), topic, max(places, default=None))
        elif self._proofs.checks and partition is not None and not _is_complete(found):
            # Intended partitionlets hold no records, so their absence needs no proof.
            states = (SEALED,) if any(row.state == OPEN for row in found) else (SEALED, OPEN)
            for state in states:
                self._prove_chain((topic, state, partition), [row.id for row in found if row.state == state])
        return found

    def _prove_chain(self, place: tuple[int, int, int], ids: list[PartitionletId]) -> None:
        """Prove that these are all partitionlets of a partition in one state; `place`: topic, state, partition."""
        last = self._connection.execute(
            "SELECT id FROM partitionlets WHERE topic = ? AND state = ? AND partition = ? ORDER BY id DESC LIMIT 1",
            place,
        ).fetchone()
        if last != ((ids[-1],) if ids else None) or len({*ids}) < len(ids):
            raise TablesDamaged(f"partitionlets: those of partition {place[2]} of topic {place[0]} are not in place")
        self._proofs.absence.prove_start("partitionlets", _CHAINS, place)
        self._proofs.absence.prove_end("partitionlets", _CHAINS, place)

    def of_stream(self, stream: StreamNumber, *, after: PartitionletId, limit: int = PAGE) -> list[PartitionletRow]:
        """A page of a stream's partitionlets with ids above `after`, in order of id, including intended ones."""
        first = partitionlet_id(stream=stream, serial=0)
        end = partitionlet_id(stream=StreamNumber(stream + 1), serial=0)
        start = max(first - 1, after)
        rows = self._connection.execute(
            f"{PARTITIONLET} WHERE p.id > ? AND p.id < ? ORDER BY p.id LIMIT ?", (start, end, limit)
        )
        found = list(map(partitionlet_row, rows))
        if self._proofs.checks:
            self._proofs.absence.read_around("partitionlets", ("id",), (start,), (start,))
            if not 0 <= limit <= len(found):
                last = found[-1].id if found else start
                behind = self._proofs.absence.read_around("partitionlets", ("id",), (last + 1,), (end - 1,))
                self._proofs.none_left("partitionlets", behind)
        return found

    def log_starts(self, topics: Iterable[int]) -> dict[tuple[int, int], Offset]:
        """(topic number, partition) -> log start, for those of these topics' partitions whose log start is above 0."""
        topics = set(topics)
        self._proofs.of_topics("log_starts", topics)
        rows = self._connection.execute(
            'SELECT topic, partition, "offset" FROM log_starts WHERE topic IN (SELECT value FROM json_each(?))',
            (json_list(topics),),
        )
        return {(topic, partition): Offset(offset) for topic, partition, offset in rows}

    def intended(self) -> list[PartitionletRow]:
        """The intended partitionlets of all rolls that are not over."""
        # There is an index of these alone, by their missing first offset.
        rows = self._connection.execute(f"{PARTITIONLET} WHERE p.first < 0 ORDER BY p.id")
        found = list(map(partitionlet_row, rows))
        if any(row.first >= 0 for row in found) or len({row.id for row in found}) < len(found):
            raise TablesDamaged("partitionlets: a row that is not in its place is among the intended")
        going = select_going(self._connection)
        return [row for row in found if row.state == INTENDED and stream_of(row.id) not in going]

    def open_in(
        self, container: ContainerId, *, before: int = NEVER, after: int = 0, limit: int = PAGE
    ) -> list[PartitionletRow]:
        """A page of the open partitionlets of a container, in order of id. `before`: only those that were opened before
        that epoch of the container."""
        return self._in_container(container, OPEN, after, limit, before=before)

    def sealed_in(self, container: ContainerId, *, after: int = 0, limit: int = PAGE) -> list[PartitionletRow]:
        """A page of the sealed partitionlets of a container, in order of id."""
        return self._in_container(container, SEALED, after, limit, before=NEVER)

    def _in_container(
        self, container: ContainerId, state: int, after: int, limit: int, *, before: int
    ) -> list[PartitionletRow]:
        limit = most(limit)
        going = select_going(self._connection)
        kept: list[PartitionletRow] = []
        place = (container, state)
        if self._proofs.checks:
            self._proofs.absence.prove_start("partitionlets", ("container", "state", "id"), (*place, after))
        while len(kept) < limit:
            wanted = limit - len(kept) + 1
            # The search begins at `after` itself, which exists or existed: if it is found, the search was not misled.
            rows = self._connection.execute(
                f"{PARTITIONLET} WHERE p.container = ? AND p.state = ? AND p.id >= ? ORDER BY p.id LIMIT ?",
                (*place, after, wanted),
            )
            found = list(map(partitionlet_row, rows))
            if any((row.container, row.state) != place for row in found) or any(
                row.id >= following.id for row, following in itertools.pairwise(found)
            ):
                raise TablesDamaged(f"partitionlets: those of container {container} are missing or in the wrong place")
            if self._proofs.checks and (len(found) < wanted or (after and found[0].id != after)):
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
        """Prove that these are the first of a container's partitionlets in one state from `after` on, or all of them
        (`is_last`); `place`: container, state."""
        rows = self._connection.execute(
            "SELECT container, state, id FROM partitionlets WHERE container >= ? ORDER BY container, state, id",
            place[:1],
        )
        there: list[int] = []
        at: tuple[int, ...] = ()
        for row in rows:
            if None in row or row <= at:
                raise TablesDamaged(f"partitionlets: the row {row} is in the wrong place")
            if row[:2] > place:
                break
            at = row
            if row[:2] == place and row[2] >= after:
                there.append(row[2])
        if there[: None if is_last else len(found)] != found:
            raise TablesDamaged(f"partitionlets: those of container {place[0]} are missing or in the wrong place")

    def containers(self) -> set[ContainerId]:
        """The containers that have partitionlets; takes one look-up per container."""
        found: set[ContainerId] = set()
        last = -1
        while last is not None:
            if self._proofs.checks:
                self._proofs.absence.prove_start("partitionlets", ("container",), (last + 1,))
            (last,) = self._connection.execute(
                "SELECT min(container) FROM partitionlets WHERE container > ?", (last,)
            ).fetchone()
            if last is not None:
                found.add(ContainerId(last))
        return found

    def live(self, partitionlets: Iterable[PartitionletId]) -> dict[PartitionletId, Offset]:
        """By id, the first offset that is kept of each of these partitionlets; missing ones, and their bytes, are
        dead."""
        return {id_: max(Offset(0), owner.first, owner.log_start) for id_, owner in self.owners(partitionlets).items()}

    def owners(self, partitionlets: Iterable[PartitionletId]) -> dict[PartitionletId, Owner]:
        """By id, the partition that each of these partitionlets belongs to; missing ones are dead."""
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
        if self._proofs.checks:
            for id_ in set(partitionlets) - owners.keys():
                self._prove_dead(id_)
            for topic, parts in unmoved.items():
                first, last = (topic, min(parts)), (topic, max(parts))
                there = self._proofs.absence.read_around("log_starts", ("topic", "partition"), first, last)
                if not parts.isdisjoint(partition for _, partition in there):
                    raise TablesDamaged(f"log_starts: those of topic {topic} are missing or in the wrong place")
        return owners

    def _prove_dead(self, partitionlet: PartitionletId) -> None:
        """Prove that a partitionlet is dead, since its bytes will be freed."""
        topic = self._connection.execute("SELECT topic FROM partitionlets WHERE id = ?", (partitionlet,)).fetchone()
        if topic is None:
            self._proofs.prove_absent("partitionlets", ("id",), [(partitionlet,)])
        else:
            self._proofs.prove_absent("topics", ("number",), [topic])

    def not_yet_made(self, partitionlets: Iterable[PartitionletId]) -> list[PartitionletId]:
        """Those of these partitionlets whose ids are not assigned yet in the state that this reader sees, which lags
        behind the containers that hold them."""
        wanted = list(partitionlets)
        counts = self._next_serials({stream_of(id_) for id_ in wanted})
        next_stream = needed_counter(self._connection, "next_stream")
        return [
            id_
            for id_ in wanted
            if stream_of(id_) >= next_stream or serial_of(id_) >= counts.get(stream_of(id_), serial_of(id_) + 1)
        ]

    def _next_serials(self, streams: Collection[StreamNumber]) -> dict[int, int]:
        """By stream number, the next serial of existing and deleted streams, and of numbers that are free again."""
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
            self._proofs.prove_absent(table, ("number",), [(number,) for number in missing])
        for number in missing:
            self._proofs.page_start("free_streams", ("first",), (number,))
            free = self._connection.execute(
                "SELECT max(next_serial) FROM (SELECT next_serial, first, count FROM free_streams "
                "WHERE first <= ? ORDER BY first DESC LIMIT 1) WHERE ? < first + count",
                (number, number),
            ).fetchone()
            if free[0] is not None:
                found[number] = free[0]
        return found


def _is_complete(chain: list[PartitionletRow]) -> bool:
    """Whether a chain begins at offset 0, and continues without a gap to an open partitionlet."""
    begun = [row for row in chain if row.state != INTENDED]
    if not begun or begun[-1].state != OPEN or begun[0].first != 0:
        return False
    return all(row.end == following.first for row, following in itertools.pairwise(begun))
