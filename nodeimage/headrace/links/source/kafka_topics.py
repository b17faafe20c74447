"""The topics of an Apache Kafka cluster as a link sees them: names, ids, leaders, configs, offsets.

Kafka does not report changed topics, so a table of all of them is kept in memory, and reloaded when it is older than
its reader allows. `refresh_at_pace` bounds the cost: the more rows a table has, the less often it is reloaded.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from headrace.base.errors import Code, KafkaError, code_of
from headrace.base.ids import NodeId, Offset
from headrace.kafka_client.client import ANY, Client
from headrace.links.source.source import TopicPartition
from headrace.partitions.topic_config_table import DEFINITIONS
from headrace.wire.api_keys import ApiKey, Versions
from headrace.wire.primitives import NO_UUID

EARLIEST: Final = -2
LATEST: Final = -1
EARLIEST_LOCAL: Final = -4
"""Timestamp in ListOffsets for the first offset on the node's own disks; earlier ones are in remote storage (KIP-405,
Kafka 3.4 and above)."""
READ_UNCOMMITTED: Final = 0
READ_COMMITTED: Final = 1
MIN_SCAN_S: Final = 5.0
"""Shortest time between two background scans, in seconds."""
ROWS_PER_SECOND: Final = 2000
"""The maximum number of topics, or committed offsets, that background scans read in a second: about half a percent of a
core."""
DESCRIBED: Final = 500
"""The maximum number of topics in one DescribeConfigs request."""
_DESCRIBE_CONFIGS: Final = Versions(1, 4)
_LIST_OFFSETS: Final = Versions(2, 9)
_LIST_OFFSETS_LOCAL: Final = Versions(8, 9)
"""Versions of ListOffsets that know `EARLIEST_LOCAL`."""
_TOPIC: Final = 2
"""Resource type of a topic in DescribeConfigs."""
_OF_TOPIC: Final = 1
"""Config source in DescribeConfigs of a config that was set on the topic itself."""


@dataclass(frozen=True, slots=True)
class KafkaTopic:
    """A topic, without its configs."""

    name: str
    topic_id: bytes
    leaders: tuple[NodeId, ...]
    """By partition; -1 where there is no leader at present."""


class KafkaTopics:
    """The table of topics, by id and by name, without internal topics."""

    def __init__(self, client: Client) -> None:
        self.by_id: Mapping[bytes, KafkaTopic] = {}
        self.by_name: Mapping[str, KafkaTopic] = {}
        self.serial = 0
        """Incremented with each reload."""
        self._client = client
        self._lock = asyncio.Lock()
        self._asked_at = float("-inf")
        self._wrong = False

    def mark_outdated(self) -> None:
        """Mark the table as wrong, so that the next `refresh_at_pace` reloads it sooner."""
        self._wrong = True

    async def refresh_at_pace(self) -> None:
        """Reload the table if the pace allows it."""
        await self.refresh_if_older(1.0 if self._wrong else pace_s(len(self.by_id)))

    async def refresh_if_older(self, seconds: float) -> None:
        """Reload the table if it is older than `seconds`."""
        loop = asyncio.get_running_loop()
        wanted = loop.time() - seconds
        async with self._lock:
            if self._asked_at >= wanted:
                return
            began = loop.time()
            response = await self._client.metadata(None)
            found = [
                KafkaTopic(
                    topic.name, topic.topic_id, _leaders({each.partition: each.leader for each in topic.partitions})
                )
                for topic in response.topics
                if topic.name is not None and not topic.error and not topic.internal and topic.topic_id != NO_UUID
            ]
            self.by_id = {topic.topic_id: topic for topic in found}
            self.by_name = {topic.name: topic for topic in found}
            self.serial += 1
            self._asked_at = began
            self._wrong = False

    def led_by(self, node: NodeId) -> set[TopicPartition]:
        """The partitions that the node leads."""
        return {
            TopicPartition(topic.topic_id, index)
            for topic in self.by_id.values()
            for index, leader in enumerate(topic.leaders)
            if leader == node
        }

    async def configs(self, names: Sequence[str]) -> Mapping[str, Mapping[str, str] | None]:
        """By topic: the configs set on the topic itself, of those that Headrace has. Deleted topics are left out.

        None for a topic whose configs Kafka may not show: the right to read and describe a topic does not include the
        right to describe its configs. Raises KafkaError where Kafka cannot show them for now."""
        found: dict[str, Mapping[str, str] | None] = dict.fromkeys(names)
        keys = sorted(DEFINITIONS)
        for begin in range(0, len(names), DESCRIBED):
            resources = [
                {"resource_type": _TOPIC, "resource_name": name, "configuration_keys": keys}
                for name in names[begin : begin + DESCRIBED]
            ]
            answer = await self._client.ask(ANY, ApiKey.DESCRIBE_CONFIGS, _DESCRIBE_CONFIGS, {"resources": resources})
            for result in answer.results:
                code = code_of(result.error_code)
                if code is Code.UNKNOWN_TOPIC_OR_PARTITION:
                    found.pop(result.resource_name, None)
                elif code not in (Code.NONE, Code.TOPIC_AUTHORIZATION_FAILED, Code.CLUSTER_AUTHORIZATION_FAILED):
                    raise KafkaError(code, f"Kafka cannot describe the configs of {result.resource_name} now")
                elif code is Code.NONE:
                    found[result.resource_name] = {
                        each.name: each.value
                        for each in result.configs
                        if each.config_source == _OF_TOPIC and each.value is not None and each.name in DEFINITIONS
                    }
        return found

    async def offsets(
        self, node: NodeId, partitions: Iterable[TopicPartition], which: int, isolation: int = READ_COMMITTED
    ) -> Mapping[TopicPartition, tuple[Code, Offset]]:
        """The offset `which` (`EARLIEST`, `EARLIEST_LOCAL` or `LATEST`) of partitions that the node leads; unknown
        partitions are left out. Raises KafkaError UNSUPPORTED_VERSION if Kafka is too old for `EARLIEST_LOCAL`."""
        by_topic: dict[bytes, list[int]] = {}
        for topic_id, index in partitions:
            if topic_id in self.by_id:
                by_topic.setdefault(topic_id, []).append(index)
        if not by_topic:
            return {}
        ids = {self.by_id[topic_id].name: topic_id for topic_id in by_topic}
        request = {
            "replica_id": -1,
            "isolation_level": isolation,
            "topics": [
                {
                    "name": self.by_id[topic_id].name,
                    "partitions": [
                        {"partition_index": index, "current_leader_epoch": -1, "timestamp": which} for index in indexes
                    ],
                }
                for topic_id, indexes in by_topic.items()
            ],
        }
        versions = _LIST_OFFSETS_LOCAL if which == EARLIEST_LOCAL else _LIST_OFFSETS
        answer = await self._client.ask(node, ApiKey.LIST_OFFSETS, versions, request)
        return {
            TopicPartition(ids[topic.name], each.partition_index): (code_of(each.error_code), Offset(each.offset))
            for topic in answer.topics
            if topic.name in ids
            for each in topic.partitions
        }


def pace_s(rows: int) -> float:
    """How many seconds to leave between two scans of `rows` rows."""
    return max(MIN_SCAN_S, rows / ROWS_PER_SECOND)


def _leaders(leaders: Mapping[int, int]) -> tuple[NodeId, ...]:
    return tuple(NodeId(leaders.get(index, -1)) for index in range(max(leaders, default=-1) + 1))
