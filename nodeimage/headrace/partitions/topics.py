"""Cache of the topics in use, by the names under which clients use them.

Resolves names to topics: interprets the forms of names, looks topics up in the catalog in a reader
thread, and keeps the cache up to date as commands are applied (called by applied_changes.py). auto_create.py creates
topics on first use. The cache is bounded: the oldest idle topics are forgotten, with their partitions' state, and
looked up again when needed.

The meaning of a bare name depends on the client's listener (`Caller.default_stream`), so names are kept by default
stream: clients of one listener never get a topic that was found under the same name, with another meaning, for clients
of another listener.
"""

import itertools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from headrace.base.errors import Code, KafkaError
from headrace.base.ids import Home
from headrace.catalog.catalog import Catalog
from headrace.catalog.command import CatalogCommand
from headrace.catalog.homes import SetHome
from headrace.catalog.names import DEFAULT_STREAM, TopicName, split
from headrace.catalog.policy import StreamPolicy
from headrace.catalog.reader import Reader
from headrace.catalog.rows import StreamRow, TopicRow
from headrace.catalog.streams import AlterStream, DeleteStream
from headrace.catalog.topics import AlterTopic, CreatePartitions, DeleteTopics
from headrace.metrics.traffic import Traffic
from headrace.partitions.auto_create import make_topics
from headrace.partitions.caller import Caller
from headrace.partitions.placement import Placement
from headrace.partitions.topic import Topic, rows_by_id, rows_by_name
from headrace.partitions.topic_configs import EffectivePolicy, effective

__all__ = ["Topic", "Topics"]

MAX_TOPICS = 120_000
"""Limit of topics kept in memory; some 1 KiB each with one partition in use."""
_ALL_ROWS = ""
"""Marks, among the changes during a look-up, that all rows have changed. No stream has this path."""


class Topics:
    """The cache of topics, with look-ups in the catalog."""

    def __init__(self, *, catalog: Catalog, placement: Placement, traffic: Traffic | None = None) -> None:
        self._traffic = Traffic() if traffic is None else traffic
        self._catalog = catalog
        self._placement = placement
        self._by_name: defaultdict[str, dict[str, Topic]] = defaultdict(dict)
        """Topics by default stream, and by the name under which clients with that default stream use a topic."""
        self._by_full_name = self._by_name[DEFAULT_STREAM]
        """All topics by full name, which is the same for all clients."""
        self._by_id: dict[bytes, Topic] = {}
        self._policies: dict[int, StreamPolicy] = {}
        self._inherited: dict[int, tuple[StreamPolicy, EffectivePolicy]] = {}
        self._look_ups: list[set[bytes | str]] = []
        """For each look-up under way, the topic ids and stream paths that have changed since it began."""
        self.forgot = False
        """True once a topic has left memory that may have been written to since this process started."""

    def __len__(self) -> int:
        return len(self._by_id)

    def all(self) -> list[Topic]:
        """All topics in memory."""
        return list(self._by_id.values())

    def by_name(self, default_stream: str) -> Mapping[str, Topic]:
        """A live view of the topics in memory, by the names that clients with that default stream use."""
        return self._by_name[default_stream]

    def cached_id(self, topic_id: bytes) -> Topic | None:
        """The topic of that id; None if it is not in memory."""
        return self._by_id.get(topic_id)

    async def resolve(
        self,
        names: Sequence[str],
        caller: Caller | None = None,
        *,
        create: bool = False,
        may_create: Callable[[str], bool] | None = None,
    ) -> list[Topic | KafkaError]:
        """Each name's topic, or the error for a name without one. `caller`: the client that uses the names; None: this
        node itself. `create`: create missing topics if their stream allows it, and `may_create` is None or allows their
        full name."""
        default_stream = DEFAULT_STREAM if caller is None else caller.default_stream
        known = self._by_name[default_stream]
        found: list[Topic | KafkaError | None] = [known.get(name) for name in names]
        missing = [index for index, topic in enumerate(found) if topic is None]
        if not missing:
            return found  # type: ignore[return-value]  # no None is left
        parsed: dict[int, TopicName] = {}
        for index in missing:
            try:
                parsed[index] = split(names[index], default_stream)
            except KafkaError as error:
                found[index] = error
        topics = await self._look_up({name.full: name for name in parsed.values()})
        if create:
            absent = {name.full: name for name in parsed.values() if name.full not in topics}
            topics.update(await self._create(list(absent.values()), may_create))
        for index, name in parsed.items():
            topic = topics.get(name.full)
            if topic is None:
                found[index] = KafkaError(Code.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {names[index]}")
            else:
                found[index] = topic
                if isinstance(topic, Topic) and self._by_id.get(topic.topic_id) is topic:  # not forgotten meanwhile
                    self._add_name(topic, names[index], known)
        return found  # type: ignore[return-value]  # every None has been replaced

    async def resolve_ids(self, topic_ids: Sequence[bytes]) -> list[Topic | KafkaError]:
        """Each id's topic, or the error UNKNOWN_TOPIC_ID."""
        missing = [topic_id for topic_id in topic_ids if topic_id not in self._by_id]
        if missing:
            await self._look_up_rows(lambda reader: rows_by_id(reader, missing))
        return [
            self._by_id.get(topic_id) or KafkaError(Code.UNKNOWN_TOPIC_ID, f"no topic has the id {topic_id.hex()}")
            for topic_id in topic_ids
        ]

    def policy(self, topic: Topic) -> EffectivePolicy:
        """The effective policy of `topic`."""
        return topic.policy

    def volume(self, topic_id: bytes) -> str | None:
        """The volume that a topic's partitions use from their next roll on; None for a topic that is not in memory."""
        topic = self._by_id.get(topic_id)
        policy = None if topic is None else self._policies.get(topic.stream_number)
        return None if policy is None else policy.volume

    # --- catalog

    async def _look_up(self, names: dict[str, TopicName]) -> dict[str, Topic | KafkaError]:
        by_stream: dict[str, list[str]] = {}
        found: dict[str, Topic | KafkaError] = {}
        for full, name in names.items():
            topic = self._by_full_name.get(full)
            if topic is not None:
                found[full] = topic
            else:
                by_stream.setdefault(name.stream, []).append(name.topic)
        if by_stream:
            for topic in await self._look_up_rows(lambda reader: rows_by_name(reader, by_stream)):
                found[topic.row.full_name] = topic
        return found

    async def _look_up_rows(self, look: Callable[[Reader], list[tuple[TopicRow, StreamRow]]]) -> list[Topic]:
        """Read topics from the catalog and keep them in memory."""
        return [self._add(row, stream.policy) for row, stream in await self._read_rows(look)]

    async def _read_rows(
        self, look: Callable[[Reader], list[tuple[TopicRow, StreamRow]]]
    ) -> list[tuple[TopicRow, StreamRow]]:
        """Read rows that are up to date on return: the read is repeated if they changed during it."""
        while True:
            changed: set[bytes | str] = set()
            self._look_ups.append(changed)
            try:
                rows = await self._catalog.query(look)
            finally:
                self._look_ups = [each for each in self._look_ups if each is not changed]
            if _ALL_ROWS not in changed and not any(
                row.topic_id in changed or row.stream in changed for row, _ in rows
            ):
                return rows

    async def _create(
        self, names: list[TopicName], may_create: Callable[[str], bool] | None
    ) -> dict[str, Topic | KafkaError]:
        """Create topics and keep them in memory; an error for each topic that is not created."""
        outcomes = await make_topics(names, catalog=self._catalog, placement=self._placement, may_create=may_create)
        refused = {name: error for name, error in outcomes.items() if error is not None}
        # Created topics are looked up like any other: they may have been altered or deleted before this node heard of
        # their creation.
        made = {name.full: name for name in names if name.full in outcomes and name.full not in refused}
        return refused | await self._look_up(made)

    def _add(self, row: TopicRow, policy: StreamPolicy) -> Topic:
        self._policies[row.stream_number] = policy
        topic = self._by_id.get(row.topic_id)
        if topic is None:
            self._make_room()
            topic = Topic(row, self._effective(row, policy), self._traffic.of(row.stream, row.name))
            self._by_id[row.topic_id] = topic
        self._add_name(topic, row.full_name, self._by_full_name)
        return topic

    def _add_name(self, topic: Topic, name: str, by_name: dict[str, Topic]) -> None:
        """Add `name` to a name table and to the topic's own names."""
        if by_name.get(name) is not topic:
            by_name[name] = topic
            topic.names.append(name)

    def _effective(self, row: TopicRow, policy: StreamPolicy) -> EffectivePolicy:
        """A topic's effective policy; all topics of a stream without configs of their own share one object."""
        if row.configs:
            return effective(policy, row.configs)
        known = self._inherited.get(row.stream_number)
        if known is None or (known[0] is not policy and known[0] != policy):
            known = self._inherited[row.stream_number] = (policy, effective(policy, {}))
        return known[1]

    def _make_room(self) -> None:
        """When the cache is full, forget the oldest idle topics, a tenth of the limit at a time."""
        if len(self._by_id) < MAX_TOPICS:
            return
        self.forgot = True
        idle = itertools.islice((topic for topic in self._by_id.values() if topic.idle), MAX_TOPICS // 10)
        for topic in list(idle):
            self._forget(topic)

    def _forget(self, topic: Topic) -> None:
        self._by_id.pop(topic.topic_id, None)
        for by_name in self._by_name.values():
            for name in topic.names:
                if by_name.get(name) is topic:
                    del by_name[name]

    # --- keeping up to date (see applied_changes.py)

    def rows_replaced(self) -> None:
        """All rows were replaced: forget the idle topics; the caller has the others updated by `look_again`."""
        self.forgot = True
        self._inherited.clear()
        for changed in self._look_ups:
            changed.add(_ALL_ROWS)
        for topic in [topic for topic in self._by_id.values() if topic.idle]:
            self._forget(topic)

    async def look_again(self, topics: Sequence[Topic]) -> None:
        """Update these topics in memory, after the catalog's rows were replaced."""
        ids = [topic.topic_id for topic in topics]
        found = {
            row.topic_id: (row, stream) for row, stream in await self._read_rows(lambda reader: rows_by_id(reader, ids))
        }
        for topic in topics:
            if topic.topic_id not in found:
                self.gone(topic.topic_id)
                continue
            row, stream = found[topic.topic_id]
            self._policies[stream.number] = stream.policy
            self.changed(row)

    def command_applied(self, command: CatalogCommand[object]) -> None:
        """Note what `command` changes: look-ups under way may have read the rows before it."""
        if not self._look_ups:
            return
        touched: Sequence[bytes | str] = ()
        match command:
            case DeleteTopics():
                touched = command.topic_ids
            case DeleteStream() | AlterStream():
                touched = (command.path,)
            case AlterTopic() | CreatePartitions():
                touched = (command.topic_id,)
            case SetHome():
                touched = [item.topic_id for item in command.items]
        for changed in self._look_ups:
            changed.update(touched)

    def gone(self, topic_id: bytes) -> None:
        """A topic was deleted."""
        topic = self._by_id.get(topic_id)
        if topic is None:
            return
        topic.deleted = True
        self._forget(topic)
        for partition in topic.partitions.values():
            partition.deleted = True
            partition.wake_all()

    def changed(self, row: TopicRow) -> None:
        """A topic's row has changed."""
        topic = self._by_id.get(row.topic_id)
        if topic is not None:
            stream_policy = self._policies.get(row.stream_number)
            topic.take(row)
            topic.encoded = None
            if stream_policy is not None:
                topic.policy = self._effective(row, stream_policy)
            else:
                self._forget(topic)

    def stream_gone(self, path: str) -> None:
        """A stream was deleted, with all of its topics."""
        for topic in [topic for topic in self._by_id.values() if topic.stream == path]:
            self.gone(topic.topic_id)

    def stream_changed(self, stream: StreamRow) -> None:
        """A stream's policy has changed."""
        self._policies[stream.number] = stream.policy
        for topic in self._by_id.values():
            if topic.stream_number == stream.number:
                topic.policy = self._effective(topic.row, stream.policy)

    def home_moved(self, topic_id: bytes, home: Home) -> None:
        """A topic's home has changed; its partitions are not settled for the new home yet."""
        topic = self._by_id.get(topic_id)
        if topic is not None and (topic.home or home) <= home:
            topic.take(topic.row._replace(home=home))
