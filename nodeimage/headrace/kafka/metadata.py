"""Metadata: the brokers, the topics, and the leaders of their partitions.

Topics in use are answered from memory; others are looked up in one go. A partition's leader is the leader of the
container of its open partitionlet, as this node last saw it; a node that does not lead it says so when it is asked for
records. A topic that a client names is created if the request, the client's permissions and the stream's policy allow
it. A listing of all topics (`topics` null) shows those that the client may describe: topics of its listener's default
stream by their bare names, all others by their full names.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from headrace.base.errors import Code, KafkaError
from headrace.base.runtime import Runtime
from headrace.catalog.catalog import Catalog
from headrace.catalog.names import shown as shown_name
from headrace.catalog.reader import Reader
from headrace.catalog.rows import PartitionletRow, TopicRow
from headrace.kafka.api import RawApi
from headrace.kafka.authorization import Authorization, TopicView
from headrace.kafka.authorized_operations import NOT_ASKED
from headrace.kafka.connection import Connection, Slot
from headrace.partitions.cluster_layout import Layout, NodeIdentity
from headrace.partitions.lookups import yield_to_loop
from headrace.partitions.partitions import Partitions
from headrace.partitions.topic import EntryKey, Topic
from headrace.partitions.topics import Topics
from headrace.security.access_rules import Kind
from headrace.security.kafka_acls import AclOperation
from headrace.wire.api_keys import ApiKey, Versions
from headrace.wire.header import RequestHeader
from headrace.wire.metadata import Broker as BrokerMeta
from headrace.wire.metadata import (
    MetadataRequest,
    PartitionMeta,
    TopicMeta,
    decode_request,
    encode_response,
    encode_topic,
)

_PAGE = 2000
MANY: Final = 10_000
"""Topics above which an answer is encoded in an executor thread."""
NO_TOPIC_ID = bytes(16)


class MetadataApi:
    """Answers Metadata."""

    def __init__(
        self,
        *,
        topics: Topics,
        partitions: Partitions,
        catalog: Catalog,
        layout: Layout,
        node: NodeIdentity,
        runtime: Runtime,
        look_around: Callable[[], None],
        authorization: Authorization,
    ) -> None:
        self._topics = topics
        self._partitions = partitions
        self._catalog = catalog
        self._layout = layout
        self._node = node
        self._runtime = runtime
        self._look_around = look_around
        self._authorization = authorization

    @property
    def apis(self) -> Sequence[RawApi]:
        """The APIs that this module answers."""
        return (RawApi(ApiKey.METADATA, Versions(0, 12), self.handle),)

    def handle(self, session: Connection, header: RequestHeader, request: memoryview, slot: Slot) -> None:
        """Start to answer a Metadata request. Raises `MalformedRequest`."""
        asked = decode_request(request, header.body, header.api_version)
        session.park(self._answer(session, asked, header.api_version, slot))

    async def _answer(self, session: Connection, asked: MetadataRequest, version: int, slot: Slot) -> None:
        self._look_around()
        view = self._authorization.topics_of(session)
        topics = (
            await self._all(session, version, view, with_operations=asked.topic_operations)
            if asked.topics is None
            else await self._named(session, asked, version, view)
        )
        if asked.topics is not None:
            for each in topics:
                if isinstance(each, TopicMeta) and each.error:
                    slot.failed(each.error)
        encode = partial(
            encode_response,
            version,
            throttle_ms=slot.throttle_ms,
            brokers=[BrokerMeta(*address) for address in self._layout.addresses(session.listener)],
            cluster_id=self._node.cluster_id,
            controller_id=self._node.node_id,
            topics=topics,
            operations=(
                self._authorization.operations(session, Kind.CLUSTER) if asked.cluster_operations else NOT_ASKED
            ),
        )
        many = len(topics) > MANY
        slot.answer([await self._runtime.loop.run_in_executor(self._runtime.executor, encode) if many else encode()])

    async def _named(
        self, session: Connection, asked: MetadataRequest, version: int, view: TopicView
    ) -> list[TopicMeta | bytes]:
        assert asked.topics is not None
        found = await self._found(session, asked.topics, create=asked.allow_auto_create)
        operations = {
            topic.row.number: view.operations(topic.row) if asked.topic_operations else NOT_ASKED
            for _, _, topic in found
            if isinstance(topic, Topic)
        }
        shown = [
            (topic, name if name is not None else shown_name(topic.stream, topic.name, session.default_stream))
            for name, _, topic in found
            if isinstance(topic, Topic)
        ]
        kept = {topic.row.number: self._cached_entries(topic) for topic, _ in shown}
        leaders = await self._leaders(
            [
                topic
                for topic, name in shown
                if (version, name, operations[topic.row.number]) not in kept[topic.row.number]
            ]
        )
        entries: list[TopicMeta | bytes] = []
        named = iter(shown)
        for name, topic_id, topic in found:
            if isinstance(topic, KafkaError):
                entries.append(TopicMeta(topic.code, name, topic_id or NO_TOPIC_ID, False, []))
            else:
                number = topic.row.number
                key = version, next(named)[1], operations[number]
                entries.append(_entry(topic, key, leaders, kept[number]))
        return entries

    async def _found(
        self, session: Connection, asked: Sequence[tuple[str | None, bytes | None]], *, create: bool
    ) -> list[tuple[str | None, bytes | None, Topic | KafkaError]]:
        """The topics that a client names, by name or by id, or why it may not see them."""
        names = [name for name, _ in asked if name is not None]
        refused = await self._authorization.refused_topics(session, AclOperation.DESCRIBE, names, api="Metadata")
        resolved = iter(
            await self._topics.resolve(
                names if not refused else [name for name in names if name not in refused],
                session,
                create=create,
                may_create=None if self._authorization.rules_version is None else partial(self._may_create, session),
            )
        )
        by_id = iter(
            await self._topics.resolve_ids(
                [topic_id for name, topic_id in asked if name is None and topic_id is not None]
            )
        )
        found: list[tuple[str | None, bytes | None, Topic | KafkaError]] = []
        for name, topic_id in asked:
            if name is not None:
                found.append((name, None, refused.get(name) or next(resolved)))
            elif topic_id is not None:
                found.append((None, topic_id, self._by_id(session, topic_id, next(by_id))))
        return found

    def _may_create(self, session: Connection, full_name: str) -> bool:
        return self._authorization.may(session, AclOperation.CREATE, Kind.TOPIC, full_name, api="Metadata")

    def _by_id(self, session: Connection, topic_id: bytes, topic: Topic | KafkaError) -> Topic | KafkaError:
        """The topic that a client names by its id, or the error if it may not describe the topic."""
        if isinstance(topic, KafkaError):
            return topic
        describe = AclOperation.DESCRIBE
        refused = self._authorization.refused_id(session, describe, topic_id, topic.full_name, api="Metadata")
        return refused or topic

    def _cached_entries(self, topic: Topic) -> dict[EntryKey, bytes]:
        """A topic's encoded entries, valid since the last change of leaders.

        A change replaces the dict, so an entry from an older look-up is not cached.
        """
        if topic.encoded is None or topic.encoded_at != self._layout.version:
            topic.encoded, topic.encoded_at = {}, self._layout.version
        return topic.encoded

    async def _leaders(self, topics: list[Topic]) -> dict[int, list[PartitionMeta]]:
        """By topic number, the leader of each partition: from memory, or from the catalog's open partitionlets."""
        found: dict[int, list[PartitionMeta]] = {}
        missing: list[int] = []
        for topic in topics:
            if len(topic.partitions) == topic.partition_count:
                found[topic.row.number] = [
                    self._meta(topic.partitions[index].chain[-1]) for index in range(topic.partition_count)
                ]
            else:
                missing.append(topic.row.number)
        if missing:
            rows = await self._catalog.query(lambda reader: reader.chains.open_of(missing))
            for topic in topics:
                if topic.row.number in found:
                    continue
                open_rows = rows.get(topic.row.number, [])
                found[topic.row.number] = [self._meta(row) for row in open_rows]
                for row in open_rows:
                    self._partitions.add_fresh(topic, row)
        return found

    async def _all(
        self, session: Connection, version: int, view: TopicView, *, with_operations: bool
    ) -> list[TopicMeta | bytes]:
        """All topics that the client may describe; with a million of them, other requests get their turns meanwhile."""
        entries: list[TopicMeta | bytes] = []
        after = (0, "")
        while True:
            page, open_rows = await self._catalog.query(lambda reader, after=after: _page(reader, after))  # type: ignore[misc]
            for index, row in enumerate(page):
                await yield_to_loop(index)
                if not view.sees(row):
                    continue
                operations = view.operations(row) if with_operations else NOT_ASKED
                partitions = [self._meta(one) for one in open_rows.get(row.number, [])]
                name = shown_name(row.stream, row.name, session.default_stream)
                meta = TopicMeta(0, name, row.topic_id, False, partitions, operations)
                entries.append(encode_topic(version, meta))
            if len(page) < _PAGE:
                return entries
            after = (page[-1].stream_number, page[-1].name)

    def _meta(self, row: PartitionletRow) -> PartitionMeta:
        shown = self._layout.placed(row.container)
        if shown is None:
            return PartitionMeta(Code.LEADER_NOT_AVAILABLE, row.partition, -1, -1, [], [], [])
        return PartitionMeta(
            0,
            row.partition,
            shown.leader,
            row.current_leader_epoch(shown.epoch),
            shown.replicas,
            shown.in_sync,
            shown.away,
        )


def _entry(topic: Topic, key: EntryKey, leaders: dict[int, list[PartitionMeta]], kept: dict[EntryKey, bytes]) -> bytes:
    """A topic's encoded entry, cached for later requests unless a leader is missing."""
    entry = kept.get(key)
    if entry is None:
        version, name, operations = key
        partitions = leaders[topic.row.number]
        entry = encode_topic(version, TopicMeta(0, name, topic.topic_id, False, partitions, operations))
        if all(partition.error == 0 for partition in partitions):
            kept[key] = entry
    return entry


def _page(reader: Reader, after: tuple[int, str]) -> tuple[list[TopicRow], dict[int, list[PartitionletRow]]]:
    """[blocking] The next topics after `after`, at most `_PAGE`, with their open partitionlets by topic number."""
    page = reader.topics.of_all_streams(after=after, limit=_PAGE)
    return page, reader.chains.open_of([row.number for row in page])
