"""Queries of topics. A row that is not found is proven to be absent, not hidden by damage (absence.py); otherwise
TablesDamaged is raised."""

import sqlite3
from collections.abc import Collection, Iterable

from headrace.base.ids import StreamNumber
from headrace.catalog.absence import NEVER
from headrace.catalog.queries.pages import PAGE, most
from headrace.catalog.queries.proofs import Proofs
from headrace.catalog.queries.streams import StreamQueries
from headrace.catalog.rows import TopicRow
from headrace.catalog.selects import (
    TOPIC,
    select_last_topic,
    select_retired,
    select_topics_by_id,
    select_topics_by_name,
    topic_row,
)
from headrace.catalog.topics import NewTopic, TopicOutcome, check_new_topics


class TopicQueries:
    """Queries of topics on one connection; used by one thread at a time. Lists of names and ids may be of any
    length."""

    def __init__(self, connection: sqlite3.Connection, proofs: Proofs, streams: StreamQueries) -> None:
        self._connection = connection
        self._proofs = proofs
        self._streams = streams

    def at(self, stream: str, name: str) -> TopicRow | None:
        """The topic of that name in the stream at path `stream`; None if there is none."""
        return self.named(stream, [name]).get(name)

    def named(self, stream: str, names: Iterable[str]) -> dict[str, TopicRow]:
        """By name, the existing ones of these topics in the stream at path `stream`."""
        found = self._streams.at(stream)
        if found is None:
            return {}
        wanted = set(names)
        topics = select_topics_by_name(self._connection, found.number, wanted)
        missing = wanted - topics.keys()
        self._proofs.prove_absent("topics", ("stream", "name"), [(found.number, name) for name in missing])
        return topics

    def page(self, stream: str, *, after: str = "", limit: int = -1) -> list[TopicRow]:
        """A page of a stream's topics after the name `after`, in order of name; `limit` -1 for all."""
        found = self._streams.at(stream)
        if found is None:
            return []
        rows = self._connection.execute(
            f"{TOPIC} WHERE t.stream = ? AND t.name > ? ORDER BY t.name LIMIT ?", (found.number, after, limit)
        )
        topics = list(map(topic_row, rows))
        self._prove_topics(found.number, after, [topic.name for topic in topics], limit)
        return topics

    def by_ids(self, topic_ids: Collection[bytes]) -> dict[bytes, TopicRow]:
        """By topic id, the existing ones of these topics."""
        found = select_topics_by_id(self._connection, topic_ids)
        if self._proofs.checks:
            self._proofs.topics_gone("topic_id", set(topic_ids) - found.keys())
        return found

    def by_id(self, topic_id: bytes) -> TopicRow | None:
        """The topic with this id; None if there is none."""
        return self.by_ids([topic_id]).get(topic_id)

    def of_all_streams(self, *, after: tuple[int, str] = (0, ""), limit: int = PAGE) -> list[TopicRow]:
        """A page of all topics that follow `after`, in order of (stream number, name)."""
        limit = most(limit)
        stream, name = after
        rows = self._connection.execute(
            f"{TOPIC} WHERE t.stream = ? AND t.name > ? ORDER BY t.name LIMIT ?", (stream, name, limit)
        ).fetchall()
        if len(rows) < limit:
            others = f"{TOPIC} WHERE t.stream > ? ORDER BY t.stream, t.name LIMIT ?"
            rows += self._connection.execute(others, (stream, limit - len(rows))).fetchall()
        topics = list(map(topic_row, rows))
        if self._proofs.checks:
            self._proofs.absence.prove_start("topics", ("stream", "name"), (stream, f"{name}\0"))
            self._proofs.absence.prove_start("topics", ("stream",), (stream + 1,))
            last = (topics[-1].stream_number, topics[-1].name) if len(topics) == limit else (NEVER, "")
            self._proofs.of_streams_gone(after, last, len(topics))
        return topics

    def check_new(self, items: list[NewTopic]) -> list[TopicOutcome | None]:
        """Per item the refusal that CreateTopics would return now, None for a topic that it would create
        (validate_only)."""
        # Called for their proofs only: check_new_topics looks the same rows up again.
        names: dict[str, list[str]] = {}
        for item in items:
            names.setdefault(item.stream, []).append(item.name)
        for stream, wanted in names.items():
            self.named(stream, wanted)
        self.by_ids({item.topic_id for item in items})
        containers = {container for item in items for container in item.container_ids}
        missing = containers - select_retired(self._connection, containers)
        self._proofs.prove_absent("retired", ("container",), [(container,) for container in missing])
        return check_new_topics(self._connection, items)

    def _prove_topics(self, stream: StreamNumber, after: str, names: list[str], limit: int) -> None:
        """Prove that these names are the next ones of a stream's topics that follow `after`."""
        if not self._proofs.checks:
            return
        key = ("stream", "name")
        self._proofs.absence.prove_start("topics", key, (stream, f"{after}\0"))
        if not 0 <= limit <= len(names):
            self._proofs.last_topic(
                stream, names[-1] if names else select_last_topic(self._connection, stream, after, ""), ""
            )
