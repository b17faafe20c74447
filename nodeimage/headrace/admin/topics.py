"""Headrace's own admin calls on topics, their chains of partitionlets, and rolls.

Any node answers them, except for a roll, which only the partition's leader carries out: others refuse with
NOT_LEADER_OR_FOLLOWER.
"""

import asyncio
import base64
from typing import Final

import msgspec

from headrace.admin.streams import stream_of
from headrace.base.errors import Code, KafkaError
from headrace.base.ids import ContainerId, NodeId
from headrace.catalog.catalog import Catalog
from headrace.catalog.reader import Reader
from headrace.catalog.rows import INTENDED, OPEN, TopicRow
from headrace.partitions.admin_params import Method, Methods, Params
from headrace.partitions.admin_rights import ADMIN, ANY, Anybody, on_topic
from headrace.partitions.authorizer import Authorizer
from headrace.partitions.caller import Caller
from headrace.partitions.cluster_client import ClusterClient
from headrace.partitions.home_check import HomeCheck
from headrace.partitions.lookups import topic_rows
from headrace.partitions.partition_states import STATES, PartitionStates
from headrace.partitions.partitions import Partitions
from headrace.partitions.reads.remote_reads import RemoteReads
from headrace.partitions.rolls.rolls import Rolls
from headrace.partitions.topic_configs import MAX_PARTITIONS, effective
from headrace.partitions.topics import Topics
from headrace.security.access_rules import Kind

MAX_PAGE: Final = 10_000


class TopicPage(Params, frozen=True):
    stream: str
    prefix: str = ""
    after: str = ""
    limit: int = 1000


class OneTopic(Params, frozen=True):
    topic: str


class OnePartition(Params, frozen=True):
    topic: str
    partition: int | None = None


TAKEN: Final = (TopicPage, OneTopic, OnePartition)
_DECODERS: Final = [msgspec.msgpack.Decoder(params) for params in TAKEN]
"""Decoders built as this module is loaded; see admin_api."""


class TopicCalls:
    """The admin calls on topics."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        cluster: ClusterClient,
        topics: Topics,
        partitions: Partitions,
        rolls: Rolls,
        states: PartitionStates,
        remote_reads: RemoteReads,
        home_check: HomeCheck,
        authorizer: Authorizer,
    ) -> None:
        self._authorizer = authorizer
        self._catalog = catalog
        self._cluster = cluster
        self._topics = topics
        self._partitions = partitions
        self._rolls = rolls
        self._states = states
        self._remote_reads = remote_reads
        self._home_check = home_check

    def methods(self) -> Methods:
        """By method name: its parameters, its handler, and the right that it requires."""
        listed = Anybody("lists the topics on which the caller has any permission")
        return {
            "topic.list": Method(
                TopicPage,
                self._list,
                listed,
                of_caller=True,
            ),
            "topic.show": Method(OneTopic, self._show, on_topic(ANY), of_caller=True),
            "chain": Method(OnePartition, self._chain, on_topic(ANY), of_caller=True),
            "roll": Method(OnePartition, self._roll, on_topic(ADMIN), of_caller=True),
        }

    async def _list(self, params: TopicPage, caller: Caller) -> list[dict[str, object]]:
        """A page of a stream's topics in order of name, without those that the caller may not see."""
        if not 1 <= params.limit <= MAX_PAGE:
            raise KafkaError(Code.INVALID_REQUEST, f"limit is {params.limit}; allowed are 1 to {MAX_PAGE}")
        if self._authorizer.sees_stream(caller, params.stream):
            await stream_of(self._catalog, params.stream)  # others must not learn whether it exists
        rows = await self._seen(params, caller)
        return [
            {
                "name": row.name,
                "topic": row.full_name,
                "topic_id": shown_id(row.topic_id),
                "partitions": row.partitions,
                "configs": dict(row.configs),
            }
            for row in rows
        ]

    async def _seen(self, params: TopicPage, caller: Caller) -> list[TopicRow]:
        found: list[TopicRow] = []
        while True:
            asked = params
            rows = await self._catalog.query(lambda reader, asked=asked: _with_prefix(reader, asked))  # type: ignore[misc]
            found += [row for row in rows if self._authorizer.sees(caller, ANY, Kind.TOPIC, row.full_name)]
            if len(found) >= params.limit or len(rows) < params.limit:
                return found[: params.limit]
            params = msgspec.structs.replace(params, after=rows[-1].name)
            await asyncio.sleep(0)

    async def _show(self, params: OneTopic, caller: Caller) -> dict[str, object]:
        """A topic: its effective policy, and each partition's leader, offsets and size."""
        row = await self._topic(params.topic, caller)
        stream = await stream_of(self._catalog, row.stream)
        policy = effective(stream.policy, row.configs)
        partitions = await self._states.of_topic(row)
        opened = await self._catalog.query(lambda reader: reader.chains.open_of([row.number]))
        containers = {each.partition: each.container for each in opened.get(row.number, [])}
        return {
            "topic": row.full_name,
            "topic_id": shown_id(row.topic_id),
            **({} if row.home is None else {"home": self._home_check.shown(row.home)}),
            "created_ms": row.created,
            "retention_ms": policy.retention_ms,
            "retention_bytes": policy.retention_bytes,
            "max_message_bytes": policy.max_message_bytes,
            "timestamp_type": "LogAppendTime" if policy.append_time else "CreateTime",
            "configs": dict(row.configs),
            "bytes": sum(each.size for each in partitions),
            "partitions": [
                {
                    "partition": each.partition,
                    "leader": self._leader(containers.get(each.partition)),
                    "leader_epoch": each.leader_epoch,
                    "first": each.log_start,
                    "end": each.end,
                    "bytes": each.size,
                    "partitionlets": each.partitionlets,
                }
                for each in partitions
            ],
        }

    async def _chain(self, params: OnePartition, caller: Caller) -> list[dict[str, object]]:
        """The partitionlets of a topic or of one partition, in order: their offsets, places and sizes."""
        row = await self._topic(params.topic, caller, partition=params.partition)
        rows = await self._catalog.query(lambda reader: reader.chains.chain(row.number, params.partition))
        stored = await self._remote_reads.extents(rows)
        shown: list[dict[str, object]] = []
        for each in rows:
            extent = stored.get(each.id)
            end: int | None = each.end
            if each.state == OPEN:
                end = self._states.committed_end(row.topic_id, each.partition)
                end = end if end is not None or extent is None else extent.end
            shown.append(
                {
                    "partition": each.partition,
                    "id": each.id,
                    "state": STATES[each.state],
                    "first": each.first,
                    "end": end,
                    "bytes": extent.size if extent is not None else None,
                    "container": each.container,
                    "node": self._leader(each.container),
                    "leader_epoch": self._states.leader_epoch_now(each),
                }
            )
        return shown

    def _leader(self, container: ContainerId | None) -> NodeId | None:
        """The node that leads a container, or None."""
        found = None if container is None else self._cluster.leader(container)
        return None if found is None else found[0]

    async def _roll(self, params: OnePartition, caller: Caller) -> dict[str, object]:
        """Roll a partition (0 by default), and return its new partitionlet."""
        index = params.partition or 0
        row = await self._topic(params.topic, caller, partition=index)
        (topic,) = await self._topics.resolve_ids([row.topic_id])
        if isinstance(topic, KafkaError):
            raise topic
        partition = await self._partitions.leader(topic, index)
        opened = await self._rolls.roll(partition)
        rows = await self._catalog.query(lambda reader: reader.chains.chain(row.number, index))
        return {
            "topic": row.full_name,
            "partition": index,
            "id": opened.id,
            "first": opened.first,
            "container": opened.container,
            "leader_epoch": self._states.leader_epoch_now(opened),
            "partitionlets": sum(each.state != INTENDED for each in rows),
        }

    async def _topic(self, name: str, caller: Caller, *, partition: int | None = None) -> TopicRow:
        """The topic of that name, with that partition. Raises KafkaError for an unknown topic or partition."""
        (row,) = await topic_rows(self._catalog, [name], default_stream=caller.default_stream)
        if isinstance(row, KafkaError):
            raise row
        if partition is not None and not 0 <= partition < min(row.partitions, MAX_PARTITIONS):
            raise KafkaError(
                Code.UNKNOWN_TOPIC_OR_PARTITION,
                f"{name} has no partition {partition}: it has {row.partitions}, numbered from 0",
            )
        return row


def _with_prefix(reader: Reader, params: TopicPage) -> list[TopicRow]:
    """[blocking] A page of topics with the prefix. They are contiguous, since names are in order."""
    first: list[TopicRow] = []
    after = params.after
    if after < params.prefix:
        itself = reader.topics.at(params.stream, params.prefix)
        first = [] if itself is None else [itself]
        after = params.prefix
    rows = first + reader.topics.page(params.stream, after=after, limit=params.limit)
    return [row for row in rows[: params.limit] if row.name.startswith(params.prefix)]


def shown_id(topic_id: bytes) -> str:
    """A topic id as Kafka's tools print it: base64 of the 16 bytes, for URLs, without padding."""
    return base64.urlsafe_b64encode(topic_id).decode().rstrip("=")
