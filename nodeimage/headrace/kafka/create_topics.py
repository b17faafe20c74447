"""CreateTopics and CreatePartitions.

However many topics a request names, it becomes one catalog command, so a request for 10,000 topics costs one sync and
one transaction. What can be refused by looking at the request alone is refused here; whether a topic exists is decided
when the command is applied, so two requests for the same topic cannot both create it. A crash before the commit leaves
nothing, a crash after it leaves everything: the client sees a lost connection and retries, as with Kafka.

Knows nothing of the placement of partitions, beyond requesting containers for new ones.
"""

import asyncio
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from headrace.base.errors import Code, HeadraceError, KafkaError
from headrace.base.ids import ContainerId, Epoch
from headrace.catalog.catalog import Catalog
from headrace.catalog.names import TopicName, render, split
from headrace.catalog.policy import StreamPolicy
from headrace.catalog.rows import StreamRow, TopicRow
from headrace.catalog.topics import CreateTopics, NewTopic, TopicOutcome
from headrace.kafka.api import Api
from headrace.kafka.authorization import Authorization
from headrace.kafka.connection import Connection
from headrace.kafka.throttle import Throttle
from headrace.partitions.cluster_client import ClusterClient
from headrace.partitions.cluster_layout import NodeIdentity
from headrace.partitions.home_check import HomeCheck
from headrace.partitions.lookups import (
    create_partitions_command,
    now,
    refusal,
    replicas,
    rows_by_name,
    stream_rows,
    submit_within,
    topic_rows,
    volume_of,
    yield_to_loop,
)
from headrace.partitions.placement import Placement
from headrace.partitions.topic_configs import MAX_PARTITIONS, checked_all, described
from headrace.security.kafka_acls import AclOperation
from headrace.wire.api_keys import ApiKey, Versions
from headrace.wire.generic_codec import field

MAX_PARTITIONS_PER_REQUEST: Final = 100_000
"""Kafka's own limit per request is 10,000; a command has to fit into one frame of the catalog's log."""
MAX_TOPICS_WITH_CONFIGS: Final = 100
"""Topics in a request up to which the answer to CreateTopics 5 and above has all configs of each topic. In answers to
larger requests a topic has only the configs that it was given: for 10,000 topics there would be 360,000 entries."""


STRICT_TOPICS: Final = 6
STRICT_PARTITIONS: Final = 3
"""The first version of CreatePartitions in which clients know THROTTLING_QUOTA_EXCEEDED; for CreateTopics it is
`STRICT_TOPICS`."""


# --- CreateTopics


_Places = Iterator[tuple[ContainerId, Epoch]]


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A topic that can be created: its place in the request, and its properties."""

    place: int
    name: TopicName
    policy: StreamPolicy
    partitions: int
    configs: Mapping[str, str]


class CreateTopicsApis:
    """Answers CreateTopics and CreatePartitions."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        cluster: ClusterClient,
        node: NodeIdentity,
        home_check: HomeCheck,
        placement: Placement,
        authorization: Authorization,
        throttle: Throttle,
    ) -> None:
        self._catalog = catalog
        self._cluster = cluster
        self._node = node
        self._home_check = home_check
        self._placement = placement
        self._authorization = authorization
        self._throttle = throttle

    @property
    def apis(self) -> Sequence[Api]:
        """The APIs that this module answers."""
        return (
            Api(ApiKey.CREATE_TOPICS, Versions(2, 7), self.create_topics),
            Api(ApiKey.CREATE_PARTITIONS, Versions(0, 3), self.create_partitions),
        )

    async def create_topics(self, request: Any, session: Connection) -> Mapping[str, object]:
        """CreateTopics."""
        topics = request.topics
        results: list[dict[str, object]] = [{} for _ in topics]
        refused = await self._authorization.refused_topics(
            session, AclOperation.CREATE, (topic.name for topic in topics), api="CreateTopics"
        )
        wanted = await self._wanted_topics(topics, results, refused, default_stream=session.default_stream)
        if not request.validate_only:
            wanted = self._within_quota(wanted, results, session, version=request.__version__)
        timeout_ms = field(request, "timeout", 0)
        try:
            if request.validate_only:
                outcomes: Sequence[TopicOutcome] = await self._dry_run(wanted)
            else:
                outcomes = await self._create(wanted, results, timeout_ms=timeout_ms)
        except HeadraceError as error:
            outcomes = [TopicOutcome(Code(error.code), str(error))] * len(wanted)
        whole = len(topics) <= MAX_TOPICS_WITH_CONFIGS
        for index, (topic, outcome) in enumerate(zip(wanted, outcomes, strict=True)):
            if not results[topic.place]:
                results[topic.place] = self._created(topic, outcome, whole=whole)
            await yield_to_loop(index)
        return {
            "topics": [{"name": topic.name, **result} for topic, result in zip(topics, results, strict=True)],
        }

    async def _wanted_topics(
        self,
        topics: Sequence[Any],
        results: list[dict[str, object]],
        refused: Mapping[str, KafkaError],
        *,
        default_stream: str,
    ) -> list[_Wanted]:
        """The topics that can be created, in the request's order; the others are answered in `results`."""
        names: list[TopicName | None] = []
        for place, topic in enumerate(topics):
            try:
                if topic.name in refused:
                    raise refused[topic.name]
                names.append(split(topic.name, default_stream))
            except KafkaError as error:
                names.append(None)
                results[place] = refusal(error)
            await yield_to_loop(place)
        times = Counter(name.full for name in names if name is not None)
        streams = await stream_rows(self._catalog, {name.stream for name in names if name is not None})
        wanted: list[_Wanted] = []
        room = MAX_PARTITIONS_PER_REQUEST
        for place, (topic, name) in enumerate(zip(topics, names, strict=True)):
            if name is None:
                continue
            try:
                if times[name.full] > 1:
                    raise KafkaError(Code.INVALID_REQUEST, f"{topic.name} is named more than once in this request")
                one = _wanted_topic(topic, name=name, place=place, streams=streams, nodes=self._cluster.node_count)
                if one.partitions > room:
                    raise KafkaError(
                        Code.POLICY_VIOLATION,
                        f"more than {MAX_PARTITIONS_PER_REQUEST} partitions in one request; use several requests",
                    )
                room -= one.partitions
                wanted.append(one)
            except KafkaError as error:
                results[place] = refusal(error)
            await yield_to_loop(place)
        return wanted

    def _within_quota(
        self, wanted: Sequence[_Wanted], results: list[dict[str, object]], session: Connection, *, version: int
    ) -> list[_Wanted]:
        """The topics that the client's quota allows; the others are answered in `results`."""
        counts = [topic.partitions for topic in wanted]
        refused = self._throttle.charge_mutations(session, counts, strict=version >= STRICT_TOPICS)
        for topic, error in zip(wanted, refused, strict=True):
            if error is not None:
                results[topic.place] = refusal(error)
        return [topic for topic, error in zip(wanted, refused, strict=True) if error is None]

    async def _dry_run(self, wanted: Sequence[_Wanted]) -> list[TopicOutcome]:
        """The outcomes that the request would have (`validate_only`)."""
        streams: dict[str, set[str]] = {}
        for topic in wanted:
            streams.setdefault(topic.name.stream, set()).add(topic.name.topic)
        existing = await self._catalog.query(lambda reader: rows_by_name(reader, streams))
        return [
            TopicOutcome(Code.TOPIC_ALREADY_EXISTS if topic.name.full in existing else Code.NONE) for topic in wanted
        ]

    async def _create(
        self, wanted: Sequence[_Wanted], results: list[dict[str, object]], *, timeout_ms: int
    ) -> list[TopicOutcome]:
        """Create all topics by one command; returns one outcome per wanted topic. Where no container is available,
        `results` has the error."""
        await self._placement.learn_of({each.policy.volume for each in wanted}, timeout_s=timeout_ms / 1e3)
        free = self._places(wanted)
        items: list[NewTopic] = []
        for index, topic in enumerate(wanted):
            places = free[topic.name.stream]
            if isinstance(places, HeadraceError):
                results[topic.place] = refusal(places)
                continue
            assigned = list(islice(places, topic.partitions))
            items.append(
                NewTopic(
                    stream=topic.name.stream,
                    name=topic.name.topic,
                    topic_id=uuid.uuid4().bytes,
                    partitions=topic.partitions,
                    configs=dict(topic.configs),
                    container_ids=[container for container, _ in assigned],
                    container_epochs=[epoch for _, epoch in assigned],
                )
            )
            await yield_to_loop(index)
        made = iter(
            await submit_within(self._catalog, CreateTopics(items=items, now=now()), timeout_ms=timeout_ms)
            if items
            else ()
        )
        return [TopicOutcome(Code.UNKNOWN_SERVER_ERROR) if results[topic.place] else next(made) for topic in wanted]

    def _places(self, wanted: Sequence[_Wanted]) -> dict[str, _Places | HeadraceError]:
        """By stream, containers for all of its new partitions, or why there are none."""
        partitions: Counter[str] = Counter()
        volumes: dict[str, str] = {}
        for topic in wanted:
            partitions[topic.name.stream] += topic.partitions
            volumes[topic.name.stream] = topic.policy.volume
        found: dict[str, _Places | HeadraceError] = {}
        for stream, count in partitions.items():
            try:
                found[stream] = iter(self._placement.place(count, volumes[stream]))
            except HeadraceError as error:
                found[stream] = error
        return found

    def _created(self, topic: _Wanted, outcome: TopicOutcome, *, whole: bool) -> dict[str, object]:
        if outcome.code is Code.TOPIC_ALREADY_EXISTS:
            return refusal(KafkaError(outcome.code, f"topic {render(topic.name)} already exists"))
        if outcome.code is not Code.NONE:
            return refusal(KafkaError(outcome.code, outcome.message))
        names = None if whole else sorted(topic.configs)
        return {
            "error_code": 0,
            "error_message": None,
            "topic_id": outcome.topic.topic_id if outcome.topic is not None else bytes(16),
            "num_partitions": topic.partitions,
            "replication_factor": replicas(self._cluster, topic.policy.volume),
            "configs": described(topic.policy, volume_of(self._cluster, topic.policy), topic.configs, names=names),
        }

    # --- CreatePartitions

    async def create_partitions(self, request: Any, session: Connection) -> Mapping[str, object]:
        """CreatePartitions. The number of partitions only grows."""
        asked = request.topics
        names = [topic.name for topic in asked]
        refused = await self._authorization.refused_topics(session, AclOperation.ALTER, names, api="CreatePartitions")
        rows = await topic_rows(self._catalog, names, default_stream=session.default_stream, refused=refused)
        times = Counter(row.full_name for row in rows if isinstance(row, TopicRow))
        timeout_ms = field(request, "timeout", 0)

        async def result(topic: Any, row: TopicRow | KafkaError) -> dict[str, object]:
            try:
                if isinstance(row, KafkaError):
                    raise row
                if times[row.full_name] > 1:
                    raise KafkaError(Code.INVALID_REQUEST, f"{topic.name} is named more than once in this request")
                if row.home is not None and row.home.cluster != self._node.cluster_id:
                    raise self._home_check.elsewhere(topic.name, row.home)
                _check_growth(topic, row, nodes=self._cluster.node_count)
                if not request.validate_only:
                    (over,) = self._throttle.charge_mutations(
                        session, [topic.count - row.partitions], strict=request.__version__ >= STRICT_PARTITIONS
                    )
                    if over is not None:
                        raise over
                    await self._grow(row, name=topic.name, count=topic.count, timeout_ms=timeout_ms)
            except HeadraceError as error:
                return {"name": topic.name, **refusal(error)}
            return {"name": topic.name, "error_code": 0, "error_message": None}

        # Concurrently, so that all of the commands share a sync.
        return {"results": await asyncio.gather(*map(result, asked, rows))}

    async def _grow(self, row: TopicRow, *, name: str, count: int, timeout_ms: int) -> None:
        """Grow a topic to `count` partitions. `name`: the topic's name as the client wrote it. Raises HeadraceError."""
        stream = await self._catalog.query(lambda reader: reader.streams.at(row.stream))
        if stream is None:
            raise KafkaError(Code.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
        volume = stream.policy.volume
        await self._placement.learn_of((volume,), timeout_s=timeout_ms / 1e3)
        command = create_partitions_command(self._placement, row, count=count, volume=volume)
        outcome: TopicOutcome = await submit_within(self._catalog, command, timeout_ms=timeout_ms)
        if outcome.code is not Code.NONE:
            raise KafkaError(outcome.code, outcome.message.replace(row.full_name, name))


def _wanted_topic(
    topic: Any, *, name: TopicName, place: int, streams: Mapping[str, StreamRow | KafkaError], nodes: int
) -> _Wanted:
    stream = streams.get(name.stream)
    if isinstance(stream, KafkaError):
        raise stream
    if stream is None:
        # Not UNKNOWN_TOPIC_OR_PARTITION: clients would repeat the request until their timeout.
        raise KafkaError(
            Code.INVALID_TOPIC_EXCEPTION,
            f"there is no stream {name.stream}; create it first: headrace stream create {name.stream}",
        )
    return _Wanted(
        place=place,
        name=name,
        policy=stream.policy,
        partitions=_partition_count(topic, default=stream.policy.default_partitions, nodes=nodes),
        configs=checked_all((config.name, config.value) for config in topic.configs) if topic.configs else {},
    )


def _partition_count(topic: Any, *, default: int, nodes: int) -> int:
    """The number of partitions that a CreatableTopic requests. Raises KafkaError with Kafka's code for what is
    wrong."""
    count, replicas = topic.num_partitions, topic.replication_factor
    if topic.assignments:
        if count != -1 or replicas != -1:
            raise KafkaError(
                Code.INVALID_REQUEST, "with a manual assignment, partitions and replication factor must be -1"
            )
        return _assigned_count(topic.assignments, nodes=nodes)
    if replicas != -1:
        _check_replicas(replicas, nodes=nodes)
    if count == -1:
        return default
    if not 1 <= count <= MAX_PARTITIONS:
        raise KafkaError(
            Code.INVALID_PARTITIONS,
            f"{count} partitions; allowed are 1 to {MAX_PARTITIONS}, or -1 for the stream's default",
        )
    return int(count)


def _assigned_count(assignments: Sequence[Any], *, nodes: int) -> int:
    """The number of partitions in a manual assignment. Its brokers are only checked for consistency; Headrace places
    partitions itself."""
    indexes = sorted(assignment.partition_index for assignment in assignments)
    if indexes != list(range(len(indexes))):
        raise KafkaError(
            Code.INVALID_REPLICA_ASSIGNMENT,
            "assigned partitions must be numbered 0, 1, 2, … without gaps or duplicates",
        )
    if len(indexes) > MAX_PARTITIONS:
        raise KafkaError(Code.INVALID_PARTITIONS, f"{len(indexes)} partitions; allowed are 1 to {MAX_PARTITIONS}")
    _check_broker_lists([assignment.broker_ids for assignment in assignments], nodes=nodes)
    return len(indexes)


def _check_broker_lists(lists: Sequence[Sequence[int]], *, nodes: int) -> None:
    for brokers in lists:
        if not brokers or len(set(brokers)) != len(brokers) or len(brokers) != len(lists[0]):
            raise KafkaError(
                Code.INVALID_REPLICA_ASSIGNMENT, "every partition needs the same number of brokers, none of them twice"
            )
    if lists:
        _check_replicas(len(lists[0]), nodes=nodes)


def _check_replicas(replicas: int, *, nodes: int) -> None:
    if not 1 <= replicas <= nodes:
        raise KafkaError(
            Code.INVALID_REPLICATION_FACTOR,
            f"a replication factor of {replicas}; the cluster has {nodes} node{'s' if nodes != 1 else ''},"
            " and -1 takes the number from the stream's volume",
        )


def _check_growth(topic: Any, row: TopicRow, *, nodes: int) -> None:
    if topic.count <= row.partitions:
        raise KafkaError(
            Code.INVALID_PARTITIONS,
            f"{topic.name} has {row.partitions} partitions; {topic.count} would not be an increase",
        )
    if topic.count > MAX_PARTITIONS:
        raise KafkaError(Code.INVALID_PARTITIONS, f"{topic.count} partitions; at most {MAX_PARTITIONS} are allowed")
    if topic.assignments is not None:
        if len(topic.assignments) != topic.count - row.partitions:
            raise KafkaError(
                Code.INVALID_REPLICA_ASSIGNMENT,
                f"{topic.count - row.partitions} new partitions, but {len(topic.assignments)} assignments",
            )
        _check_broker_lists([assignment.broker_ids for assignment in topic.assignments], nodes=nodes)
