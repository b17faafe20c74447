"""Queries of consumer groups and their committed offsets."""

import sqlite3
from collections.abc import Iterable
from typing import Any

from headrace.catalog.absence import NEVER
from headrace.catalog.queries.pages import most
from headrace.catalog.queries.proofs import Proofs
from headrace.catalog.rows import CommittedOffsetRow, GroupRow
from headrace.catalog.selects import GROUP, group_row, json_list

_KEY = ("group", "topic", "partition")


class GroupQueries:
    """Queries of groups and committed offsets on one connection; used by one thread at a time."""

    def __init__(self, connection: sqlite3.Connection, proofs: Proofs) -> None:
        self._connection = connection
        self._proofs = proofs

    def named(self, group: str) -> GroupRow | None:
        """The stored consumer group of that name; None if there is none."""
        row = self._connection.execute(f"{GROUP} WHERE name = ?", (group,)).fetchone()
        if row is None:
            self._proofs.prove_absent("groups", ("name",), [(group,)])
        return None if row is None else group_row(row)

    def page(self, *, after: str = "", limit: int = -1) -> list[GroupRow]:
        """A page of groups after the name `after`, in order of name; `limit` -1 for all."""
        self._proofs.page_start("groups", ("name",), (after,))
        rows = self._connection.execute(f"{GROUP} WHERE name > ? ORDER BY name LIMIT ?", (after, limit))
        return list(map(group_row, rows))

    def committed_offsets(self, group: str, topics: Iterable[int] | None = None) -> list[CommittedOffsetRow]:
        """A group's committed offsets, of these topic numbers or of all, in order of (topic number, partition)."""
        topics = None if topics is None else set(topics)
        some = "" if topics is None else "AND c.topic IN (SELECT value FROM json_each(?)) "
        parameters = (group,) if topics is None else (group, json_list(sorted(topics)))
        rows = self._connection.execute(
            'SELECT t.topic_id, s.path, t.name, c.partition, c."offset", c.leader_epoch, c.metadata, c.committed_at '
            "FROM cursors c JOIN topics t ON t.number = c.topic JOIN streams s ON s.number = t.stream "
            f'WHERE c."group" = ? {some}ORDER BY c.topic, c.partition',
            parameters,
        )
        found = list(map(CommittedOffsetRow._make, rows))
        if self._proofs.checks and self._count_committed_offsets(group, topics) > len(found):
            listed = f'SELECT DISTINCT c.topic FROM cursors c WHERE c."group" = ? {some}'
            self._proofs.topics_gone(
                "number", (topic for (topic,) in self._connection.execute(listed, parameters).fetchall())
            )
        return found

    def committed_offsets_after(
        self, after: tuple[str, int, int], *, limit: int
    ) -> list[tuple[str, CommittedOffsetRow]]:
        """Committed offsets with their groups, that follow `after` (group, topic number, partition), in that order."""
        limit = most(limit)
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
        found: list[tuple[str, CommittedOffsetRow]] = []
        for group, topic, *row in rows:
            committed_offset = CommittedOffsetRow._make(row)
            places.append((group, topic, committed_offset.partition))
            found.append((group, committed_offset))
        if self._proofs.checks:
            last = places[-1] if len(found) == limit else None
            group, topic, partition = after
            self._proofs.absence.prove_start("cursors", _KEY, (group, topic, partition + 1))
            self._proofs.absence.prove_start("cursors", _KEY[:2], (group, topic + 1))
            self._proofs.absence.prove_start("cursors", _KEY[:1], (f"{group}\0",))
            there = self._proofs.absence.read_around("cursors", _KEY, after, last)
            self._proofs.topics_gone("number", {place[1] for place in {*there} - {*places, after}})
        return found

    def _count_committed_offsets(self, group: str, topics: Iterable[int] | None) -> int:
        """The number of a group's committed offsets, proven: a missing one makes a consumer start over."""
        if topics is None:
            self._proofs.absence.prove_start("cursors", ("group",), (group,))
            found = self._connection.execute(
                'SELECT "group", topic, partition FROM cursors WHERE "group" = ? ORDER BY topic, partition', (group,)
            ).fetchall()
            self._proofs.absence.prove_last("cursors", _KEY, group, found[-1] if found else None)
            return len(found)
        return sum(
            len(self._proofs.absence.read_around("cursors", _KEY, (group, topic, 0), (group, topic, NEVER)))
            for topic in topics
        )
