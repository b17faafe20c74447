"""The topics that clients use now, in memory, by the names under which they use them.

Responsible for name → topic: forms of names (DESIGN section 7), look-up in the catalog in a reader thread, and for
staying true as commands are applied (applied_changes.py tells of them). Topics that are made on first use come from
auto_create.py. Bounded: topics that nobody has asked for in a while are forgotten, with their partitions' state, and
looked up again when needed.

What a bare name means depends on the client's listener (`Caller.default_stream`), so names are kept by default stream:
nothing that was found for one listener is ever given to the clients of another by a name that means something else
there.
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

MOST_TOPICS = 120_000
"""Topics kept in memory; some 1 KiB each with one partition in use."""
_EVERYTHING = ""
"""Among what changed during a look-up: all of it. No stream has this path."""


class Topics:
    """The cache, and the way to the catalog behind it."""

    def __init__(self, *, catalog: Catalog, placement: Placement, traffic: Traffic | None = None) -> None:
        self._traffic = Traffic() if traffic is None else traffic
        self._catalog = catalog
        self._placement = placement
        self._by_name: defaultdict[str, dict[str, Topic]] = defaultdict(dict)
        """By default stream, and by the name under which its clients use a topic."""
        self._by_full_name = self._by_name[DEFAULT_STREAM]
        """Where every topic is by its full name, which is the same for all clients."""
        self._by_id: dict[bytes, Topic] = {}
        self._policies: dict[int, StreamPolicy] = {}
        self._plain: dict[int, tuple[StreamPolicy, EffectivePolicy]] = {}
        self._look_ups: list[set[bytes | str]] = []
        """Of each look-up under way, what changed meanwhile: topic ids, and paths of streams."""
        self.forgot = False
        """True once a topic that may have been written to in this run has left memory."""

    def __len__(self) -> int:
        return len(self._by_id)

    def all(self) -> list[Topic]:
        """Every topic that is in memory."""
        return list(self._by_id.values())

    def by_name(self, default_stream: str) -> Mapping[str, Topic]:
        """The topics that are in memory, by what clients call them whose bare names are of `default_stream`. It stays
        true as topics come and go."""
        return self._by_name[default_stream]

    def cached_id(self, topic_id: bytes) -> Topic | None:
        """The topic of that id, if it is in memory."""
        return self._by_id.get(topic_id)

    async def resolve(
        self,
        names: Sequence[str],
        caller: Caller | None = None,
        *,
        create: bool = False,
        may_create: Callable[[str], bool] | None = None,
    ) -> list[Topic | KafkaError]:
        """Each name's topic, or why there is none. `caller`: who uses the names; None: this node itself. `create`: make
        those missing, where their stream allows it, and `may_create` does of the topic's full name; None: it always
        does."""
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
                if isinstance(topic, Topic) and self._by_id.get(topic.topic_id) is topic:  # it may have gone since
                    self._call(topic, names[index], known)
        return found  # type: ignore[return-value]  # every None has been replaced

    async def resolve_ids(self, topic_ids: Sequence[bytes]) -> list[Topic | KafkaError]:
        """Each id's topic, or UNKNOWN_TOPIC_ID."""
        missing = [topic_id for topic_id in topic_ids if topic_id not in self._by_id]
        if missing:
            await self._look_up_rows(lambda reader: rows_by_id(reader, missing))
        return [
            self._by_id.get(topic_id) or KafkaError(Code.UNKNOWN_TOPIC_ID, f"no topic has the id {topic_id.hex()}")
            for topic_id in topic_ids
        ]

    def policy(self, topic: Topic) -> EffectivePolicy:
        """What holds for `topic`."""
        return topic.policy

    def volume(self, topic_id: bytes) -> str | None:
        """Where what a topic's partitions write from their next roll on belongs; None for one that is not in memory."""
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
        """Topics read from the catalog, in memory from now on."""
        return [self._keep(row, stream.policy) for row, stream in await self._read_rows(look)]

    async def _read_rows(
        self, look: Callable[[Reader], list[tuple[TopicRow, StreamRow]]]
    ) -> list[tuple[TopicRow, StreamRow]]:
        """Rows that are true at this moment. What changed while it was read is read again."""
        while True:
            changed: set[bytes | str] = set()
            self._look_ups.append(changed)
            try:
                rows = await self._catalog.query(look)
            finally:
                self._look_ups = [each for each in self._look_ups if each is not changed]
            if _EVERYTHING not in changed and not any(
                row.topic_id in changed or row.stream in changed for row, _ in rows
            ):
                return rows

    async def _create(
        self, names: list[TopicName], may_create: Callable[[str], bool] | None
    ) -> dict[str, Topic | KafkaError]:
        """Topics made on first use, in memory from now on, or why they were not made."""
        outcomes = await make_topics(names, catalog=self._catalog, placement=self._placement, may_create=may_create)
        refused = {name: error for name, error in outcomes.items() if error is not None}
        # Looked up like any other: others may have deleted, or altered, what was made before we hear that it was.
        made = {name.full: name for name in names if name.full in outcomes and name.full not in refused}
        return refused | await self._look_up(made)

    def _keep(self, row: TopicRow, policy: StreamPolicy) -> Topic:
        self._policies[row.stream_number] = policy
        topic = self._by_id.get(row.topic_id)
        if topic is None:
            self._make_room()
            topic = Topic(row, self._effective(row, policy), self._traffic.of(row.stream, row.name))
            self._by_id[row.topic_id] = topic
        self._call(topic, row.full_name, self._by_full_name)
        return topic

    def _call(self, topic: Topic, name: str, by_name: dict[str, Topic]) -> None:
        """Clients of these names know `topic` by `name`."""
        if by_name.get(name) is not topic:
            by_name[name] = topic
            topic.names.append(name)

    def _effective(self, row: TopicRow, policy: StreamPolicy) -> EffectivePolicy:
        """What holds for a topic; one object for all topics of a stream that have no configs of their own."""
        if row.configs:
            return effective(policy, row.configs)
        known = self._plain.get(row.stream_number)
        if known is None or (known[0] is not policy and known[0] != policy):
            known = self._plain[row.stream_number] = (policy, effective(policy, {}))
        return known[1]

    def _make_room(self) -> None:
        """Forget the topics that came first and are idle now, a tenth at a time."""
        if len(self._by_id) < MOST_TOPICS:
            return
        self.forgot = True
        idle = itertools.islice((topic for topic in self._by_id.values() if topic.idle), MOST_TOPICS // 10)
        for topic in list(idle):
            self._forget(topic)

    def _forget(self, topic: Topic) -> None:
        self._by_id.pop(topic.topic_id, None)
        for by_name in self._by_name.values():
            for name in topic.names:
                if by_name.get(name) is topic:
                    del by_name[name]

    # --- staying true (see applied_changes.py)

    def rows_replaced(self) -> None:
        """All rows may be other ones: what can be is forgotten; what is in use is to be looked up again."""
        self.forgot = True
        self._plain.clear()
        for changed in self._look_ups:
            changed.add(_EVERYTHING)
        for topic in [topic for topic in self._by_id.values() if topic.idle]:
            self._forget(topic)

    async def look_again(self, topics: Sequence[Topic]) -> None:
        """Make what is in memory of these topics true again, after the catalog's rows were replaced."""
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
        """What is being looked up may have been read before `command`."""
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
        """A topic is deleted."""
        topic = self._by_id.get(topic_id)
        if topic is None:
            return
        topic.deleted = True
        self._forget(topic)
        for partition in topic.partitions.values():
            partition.deleted = True
            partition.wake_all()

    def changed(self, row: TopicRow) -> None:
        """A topic has another row."""
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
        """A stream is deleted, with all of its topics."""
        for topic in [topic for topic in self._by_id.values() if topic.stream == path]:
            self.gone(topic.topic_id)

    def stream_changed(self, stream: StreamRow) -> None:
        """A stream has another policy."""
        self._policies[stream.number] = stream.policy
        for topic in self._by_id.values():
            if topic.stream_number == stream.number:
                topic.policy = self._effective(topic.row, stream.policy)

    def home_moved(self, topic_id: bytes, home: Home) -> None:
        """A topic has another home, for which its partitions are not settled yet."""
        topic = self._by_id.get(topic_id)
        if topic is not None and (topic.home or home) <= home:
            topic.take(topic.row._replace(home=home))
