"""Queries of the homes of topics and partitions."""

import sqlite3
from collections.abc import Iterable

from headrace.base.ids import Home, Offset
from headrace.catalog.homes import decode_lists
from headrace.catalog.queries.pages import PAGE, most
from headrace.catalog.queries.proofs import Proofs
from headrace.catalog.queries.streams import StreamQueries
from headrace.catalog.rows import HomeStart, TopicRow
from headrace.catalog.selects import TOPIC, json_list, select_going, select_last_topic, topic_row

_STARTS = ("topic", "partition", "counter", "cluster")


class HomeQueries:
    """Queries of homes on one connection; used by one thread at a time."""

    def __init__(self, connection: sqlite3.Connection, proofs: Proofs, streams: StreamQueries) -> None:
        self._connection = connection
        self._proofs = proofs
        self._streams = streams

    def copies(self, stream: str, own_cluster: str, *, after: str = "", limit: int = PAGE) -> list[TopicRow]:
        """A page of a stream's topics whose home is another cluster than `own_cluster`, in order of name."""
        found = self._streams.at(stream)
        if found is None:
            return []
        has_home, key, number = "home_cluster IS NOT NULL", ("stream", "name"), found.number
        limit = most(limit)
        topics: list[TopicRow] = []
        while (wanted := limit - len(topics)) > 0:
            if self._proofs.checks:
                self._proofs.absence.prove_start("topics", key, (number, f"{after}\0"), where=has_home)
            # The home is compared only after the row has been checked.
            rows = self._connection.execute(
                f"{TOPIC} WHERE t.stream = ? AND t.{has_home} AND t.name > ? ORDER BY t.name LIMIT ?",
                (number, after, wanted),
            )
            page = list(map(topic_row, rows))
            topics += [topic for topic in page if topic.home is not None and topic.home.cluster != own_cluster]
            if len(page) < wanted:
                if self._proofs.checks:
                    last = (
                        page[-1].name
                        if page
                        else select_last_topic(self._connection, number, after, f"{has_home} AND ")
                    )
                    self._proofs.last_topic(number, last, has_home)
                break
            after = page[-1].name
        return topics

    def histories(self, topics: Iterable[int]) -> dict[tuple[int, int], list[HomeStart]]:
        """(topic number, partition) -> where each home begins, in rising order; missing ones have their first home
        only."""
        topics = set(topics)
        self._proofs.of_topics("home_starts", topics)
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
        """(topic number, partition) -> the home that the partition was last rolled for; for missing ones their topic's
        first home."""
        topics = set(topics)
        self._proofs.of_topics("settled_homes", topics)
        rows = self._connection.execute(
            "SELECT topic, partition, counter, cluster FROM settled_homes "
            "WHERE topic IN (SELECT value FROM json_each(?))",
            (json_list(topics),),
        )
        return {(topic, partition): Home(counter, cluster) for topic, partition, counter, cluster in rows}

    def settled_at(self, topic: int, partition: int) -> HomeStart | None:
        """The home that a partition was last rolled for, with its first offset; None: its topic's first home."""
        row = self._connection.execute(
            'SELECT s.counter, s.cluster, h."offset" FROM settled_homes s LEFT JOIN home_starts h '
            "ON h.topic = s.topic AND h.partition = s.partition AND h.counter = s.counter AND h.cluster = s.cluster "
            "WHERE s.topic = ? AND s.partition = ?",
            (topic, partition),
        ).fetchone()
        if row is None:
            self._proofs.prove_absent("settled_homes", ("topic", "partition"), [(topic, partition)])
            return None
        counter, cluster, offset = row
        if offset is None:
            self._proofs.prove_absent("home_starts", _STARTS, [(topic, partition, counter, cluster)])
        return HomeStart(counter, cluster, offset or Offset(0))

    def pending(self, topics: Iterable[int]) -> dict[int, dict[int, list[HomeStart]]]:
        """Topic number -> partition -> the history that the partition gets when it is settled for its topic's home."""
        topics = set(topics)
        self._proofs.of_topics("pending_homes", topics)
        rows = self._connection.execute(
            "SELECT topic, lists FROM pending_homes WHERE topic IN (SELECT value FROM json_each(?))",
            (json_list(topics),),
        )
        return {topic: decode_lists(lists) for topic, lists in rows}

    def unsettled(self, *, after: int = 0, limit: int = PAGE) -> list[TopicRow]:
        """A page of the topics with partitions that still have to roll for their topic's home, in order of number.
        Scans all topics whose home was moved."""
        limit = most(limit)
        listed = json_list(select_going(self._connection))
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
        self._proofs.of_topics("settled_homes", numbers)
        found = self._connection.execute(
            f"{TOPIC} WHERE t.number IN (SELECT value FROM json_each(?)) ORDER BY t.number", (json_list(numbers),)
        )
        topics = list(map(topic_row, found))
        if self._proofs.checks:
            self._proofs.topics_gone("number", set(numbers) - {topic.number for topic in topics})
        return topics

    def _moved(self, after: int, limit: int) -> list[int]:
        """The numbers of the next topics above `after` whose home was moved."""
        where = "home_counter > 0"
        if self._proofs.checks:
            rows = self._proofs.absence.read_around(
                "topics", ("number",), (after,), None, id_column="home_counter", where=where, most=limit + 1
            )
            return [number for number, _ in rows if number > after][:limit]
        found = self._connection.execute(
            f"SELECT number FROM topics WHERE {where} AND number > ? ORDER BY number LIMIT ?", (after, limit)
        )
        return [number for (number,) in found]
