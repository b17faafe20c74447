"""A simulated node of a one-node Kafka cluster with the topics `t` and `other`, of one partition each."""

import asyncio
from collections import Counter

from headrace.base.errors import Code
from headrace.links.source.kafka_topics import EARLIEST, EARLIEST_LOCAL
from headrace.links.source.source import TopicPartition
from headrace.wire import fetch, generic_codec
from headrace.wire.api_keys import ApiKey
from headrace.wire.batch import build_batch
from headrace.wire.fetch import FetchResult, FetchTopicResult
from headrace.wire.header import RequestHeader
from headrace.wire.metadata import PartitionMeta, TopicMeta

ID, OTHER = bytes(range(16)), bytes(range(1, 17))
AT = TopicPartition(ID, 0)


def played_topic(name: str, topic_id: bytes) -> TopicMeta:
    """A topic of one partition as Metadata describes it."""
    return TopicMeta(0, name, topic_id, False, [PartitionMeta(0, 0, 1, 0, [1], [1], [])])


class PlayedKafka:
    """Answers as the one node of a Kafka cluster with the topics `t` and `other`, of one partition each."""

    def __init__(self) -> None:
        self.end = 100
        self.last = 100
        """The end of the last record: compaction left nothing from there to `end`."""
        self.local_start = 0
        self.remote_ms = 1 << 30
        """Milliseconds that records before `local_start` take to arrive."""
        self.codes: dict[bytes, Code] = {}
        """By topic, the error code of its fetches."""
        self.described: dict[str, Code] = {}
        """By topic, the error code of DescribeConfigs."""
        self.committed: dict[str, int] = {}
        """By group, its committed offset on `t`."""
        self.busy = False
        """Whether something is written to every partition before each Fetch."""
        self.asked: Counter[ApiKey] = Counter()

    async def answer(self, header: RequestHeader, body: memoryview) -> bytes:
        key, version = ApiKey(header.api_key), header.api_version
        self.asked[key] += 1
        if key is ApiKey.FETCH:
            return await self._fetched(version, body)
        generic_codec.prepare(key, version)
        asked = generic_codec.decode_request(key, version, body)
        said: dict[str, object]
        match key:
            case ApiKey.DESCRIBE_CONFIGS:
                said = {"results": [self._described(each.resource_name) for each in asked.resources]}
            case ApiKey.LIST_GROUPS:
                said = {"groups": [{"group_id": each, "protocol_type": "consumer"} for each in self.committed]}
            case ApiKey.OFFSET_FETCH:
                said = {"groups": [self._committed_offsets(each.group_id) for each in asked.groups]}
            case _:
                assert key is ApiKey.LIST_OFFSETS
                said = {
                    "topics": [
                        {"name": topic.name, "partitions": [self._offset(each.timestamp) for each in topic.partitions]}
                        for topic in asked.topics
                    ]
                }
        return generic_codec.encode_response(key, version, said)

    async def _fetched(self, version: int, body: memoryview) -> bytes:
        if self.busy:
            self.end = self.last = self.end + 1
        asked = fetch.decode_request(body, 0, version)
        topics = [
            FetchTopicResult(
                None,
                topic.topic_id,
                [self._result(topic.topic_id or b"", each.offset, asked.max_wait_ms) for each in topic.partitions],
            )
            for topic in asked.topics
        ]
        results = [each for topic in topics for each in topic.partitions]
        if not any(each.error or each.records for each in results):
            await asyncio.sleep(asked.max_wait_ms / 1000)
        session = 7 if asked.session_epoch >= 0 else 0
        return b"".join(map(bytes, fetch.encode_response(version, session_id=session, topics=topics)))

    def _result(self, topic_id: bytes, offset: int, wait_ms: int) -> FetchResult:
        code = self.codes.get(topic_id, Code.NONE)
        if code is not Code.NONE:
            return FetchResult(0, int(code))
        comes = offset >= self.local_start or wait_ms >= self.remote_ms
        records = [build_batch([(1, None, b"x", [])], base_offset=offset)] if comes and offset < self.last else []
        return FetchResult(0, 0, self.end, self.end, 0, list(map(bytes, records)))

    def _offset(self, timestamp: int) -> dict[str, int]:
        offset = {EARLIEST: 0, EARLIEST_LOCAL: self.local_start}.get(timestamp, self.end)
        return {"partition_index": 0, "error_code": 0, "timestamp": -1, "offset": offset, "leader_epoch": 0}

    def _committed_offsets(self, group: str) -> dict[str, object]:
        partition = {"partition_index": 0, "committed_offset": self.committed[group], "metadata": ""}
        return {"group_id": group, "error_code": 0, "topics": [{"name": "t", "partitions": [partition]}]}

    def _described(self, name: str) -> dict[str, object]:
        code = self.described.get(name, Code.NONE)
        config = {"name": "cleanup.policy", "value": "compact", "read_only": False, "config_source": 1}
        configs = [{**config, "is_sensitive": False, "synonyms": []}] if code is Code.NONE else []
        return {"error_code": int(code), "resource_type": 2, "resource_name": name, "configs": configs}
