"""Queries of access expressions."""

import sqlite3

from headrace.base.ids import StreamNumber
from headrace.catalog.access import STREAM, TOPIC
from headrace.catalog.counters import counter
from headrace.catalog.queries.proofs import Proofs
from headrace.catalog.queries.streams import StreamQueries
from headrace.catalog.rows import AccessRow
from headrace.catalog.selects import json_list


class AccessQueries:
    """Queries of access expressions on one connection; used by one thread at a time."""

    def __init__(self, connection: sqlite3.Connection, proofs: Proofs, streams: StreamQueries) -> None:
        self._connection = connection
        self._proofs = proofs
        self._streams = streams

    def is_secured(self) -> bool:
        """Whether security is on."""
        return bool(counter(self._connection, "secured"))

    def all(self) -> list[AccessRow]:
        """All expressions, those on topics last."""
        found: list[AccessRow] = []
        for row in self._connection.execute("SELECT kind, object, permission, expression FROM access").fetchall():
            kind, named, permission, expression = row
            if kind == STREAM:
                stream = self._streams.by_number(StreamNumber(int(named)))
                if stream is None:  # never happens: the absence is proven, and a deleted stream has no expressions
                    continue
                named = stream.path
            found.append(AccessRow(kind, named, permission, expression))
        return found + self._of_topics()

    def _of_topics(self) -> list[AccessRow]:
        rows = self._connection.execute("SELECT topic, permission, expression FROM topic_access").fetchall()
        numbers = {topic for topic, _, _ in rows}
        found = self._connection.execute(
            "SELECT t.number, t.topic_id, s.path, t.name FROM topics t JOIN streams s ON s.number = t.stream "
            "WHERE t.number IN (SELECT value FROM json_each(?))",
            (json_list(sorted(numbers)),),
        )
        named = {number: (f"{path}:{name}", topic_id) for number, topic_id, path, name in found}
        if self._proofs.checks:
            self._proofs.topics_gone("number", numbers - named.keys())
        return [
            AccessRow(TOPIC, named[topic][0], permission, each, named[topic][1])
            for topic, permission, each in rows
            if topic in named
        ]
