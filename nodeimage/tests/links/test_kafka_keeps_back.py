"""A Kafka cluster that gives nothing of what it has: records that do not come in time, topics that may not be read."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import pytest
from fake_kafka import FakeKafka

from headrace.errors import Code
from headrace.ids import NodeId, Offset
from headrace.links import kafka_feed
from headrace.links.addresses import Address
from headrace.links.client import Client
from headrace.links.kafka_source import KafkaSource
from headrace.links.kafka_topics import EARLIEST, EARLIEST_LOCAL
from headrace.links.security import security_of
from headrace.links.source import NO_EPOCH, NO_OFFSET, Fetched, TopicPartition, Wanted
from headrace.wire import cold, fetch
from headrace.wire.api_keys import ApiKey
from headrace.wire.batch import build_batch
from headrace.wire.fetch import FetchResult, FetchTopicResult
from headrace.wire.header import RequestHeader
from headrace.wire.metadata import PartitionMeta, TopicMeta

ONE = NodeId(1)
ID, OTHER = bytes(range(16)), bytes(range(1, 17))
AT = TopicPartition(ID, 0)


class PlayedKafka:
    """Answers as the one node of a Kafka cluster with the topics `t` and `other`, of one partition each."""

    def __init__(self) -> None:
        self.end = 100
        self.last = 100
        """The end of the last record: from there to `end` compaction left nothing."""
        self.local_start = 0
        self.remote_ms = 1 << 30
        """How long what is before `local_start` takes to come."""
        self.codes: dict[bytes, Code] = {}
        """By topic, what its fetches are answered with."""
        self.described: dict[str, Code] = {}
        """By topic, what DescribeConfigs answers."""
        self.asked: Counter[ApiKey] = Counter()

    async def answer(self, header: RequestHeader, body: memoryview) -> bytes:
        key, version = ApiKey(header.api_key), header.api_version
        self.asked[key] += 1
        if key is ApiKey.FETCH:
            return await self._fetched(version, body)
        cold.prepare(key, version)
        asked = cold.decode_request(key, version, body)
        said: dict[str, object]
        if key is ApiKey.DESCRIBE_CONFIGS:
            said = {"results": [self._described(each.resource_name) for each in asked.resources]}
        else:
            assert key is ApiKey.LIST_OFFSETS
            said = {
                "topics": [
                    {"name": topic.name, "partitions": [self._offset(each.timestamp) for each in topic.partitions]}
                    for topic in asked.topics
                ]
            }
        return cold.encode_response(key, version, said)

    async def _fetched(self, version: int, body: memoryview) -> bytes:
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

    def _described(self, name: str) -> dict[str, object]:
        code = self.described.get(name, Code.NONE)
        config = {"name": "cleanup.policy", "value": "compact", "read_only": False, "config_source": 1}
        configs = [{**config, "is_sensitive": False, "synonyms": []}] if code is Code.NONE else []
        return {"error_code": int(code), "resource_type": 2, "resource_name": name, "configs": configs}


@pytest.fixture
def kafka() -> PlayedKafka:
    return PlayedKafka()


@pytest.fixture
async def server(kafka: PlayedKafka) -> AsyncIterator[FakeKafka]:
    partition = PartitionMeta(0, 0, 1, 0, [1], [1], [])
    topics = [TopicMeta(0, name, id_, False, [partition]) for name, id_ in (("t", ID), ("other", OTHER))]
    async with FakeKafka(kafka.answer, topics=topics) as server:
        yield server


@pytest.fixture
async def source(server: FakeKafka) -> AsyncIterator[KafkaSource]:
    source = KafkaSource(Client([Address("127.0.0.1", server.port)], security=security_of({})))
    await source.hello()
    yield source
    await source.close()


async def fetched(source: KafkaSource, offset: int) -> Fetched:
    """What comes of `t` from there on."""
    await source.meet(ONE, [AT])
    (came,) = await source.fetch(ONE, [Wanted(AT, Offset(offset), NO_EPOCH, 1 << 20)], max_bytes=8 << 20)
    assert came.code is Code.NONE
    return came


# --- records that do not come


async def test_nothing_of_what_is_in_remote_storage_is_not_taken_for_its_end(
    kafka: PlayedKafka, source: KafkaSource
) -> None:
    kafka.local_start = 50
    came = await fetched(source, 49)
    assert (came.records, came.resume, came.high_watermark) == ([], NO_OFFSET, 100)
    assert (await fetched(source, 50)).records


async def test_what_is_in_remote_storage_is_given_the_time_to_come(kafka: PlayedKafka, source: KafkaSource) -> None:
    kafka.local_start, kafka.remote_ms = 50, 300
    assert (await fetched(source, 0)).records


async def test_behind_a_tail_that_compaction_emptied_it_goes_on_at_the_end(
    kafka: PlayedKafka, source: KafkaSource
) -> None:
    kafka.last, kafka.local_start = 60, 10
    came = await fetched(source, 60)
    assert (came.records, came.resume) == ([], 100)


async def test_a_kafka_that_does_not_tell_what_it_has_itself_is_not_believed_to_have_nothing(
    kafka: PlayedKafka, server: FakeKafka, source: KafkaSource
) -> None:
    server.versions[int(ApiKey.LIST_OFFSETS)] = (1, 7)  # as of Kafka 3.3
    await source.close()
    source = KafkaSource(Client([Address("127.0.0.1", server.port)], security=security_of({})))
    kafka.last = 60
    came = await fetched(source, 60)
    await source.close()
    assert (came.records, came.resume) == ([], NO_OFFSET)


# --- topics that may not be read


async def test_a_topic_that_may_be_described_and_not_read_ends_no_poll_before_its_time(
    kafka: PlayedKafka, source: KafkaSource
) -> None:
    kafka.codes[OTHER] = Code.TOPIC_AUTHORIZATION_FAILED
    place = None
    for _ in range(20):
        place = (await source.changes(ONE, place, topics=False, cursors=False, wait_ms=10, limit=100)).place
    assert kafka.asked[ApiKey.LIST_OFFSETS] == 1


async def test_a_topic_that_may_be_read_by_now_is_told_of(
    kafka: PlayedKafka, source: KafkaSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_feed, "REFUSED_S", 0.0)
    kafka.codes[OTHER] = Code.TOPIC_AUTHORIZATION_FAILED
    place = None
    for _ in range(3):
        place = (await source.changes(ONE, place, topics=False, cursors=False, wait_ms=0, limit=100)).place
    kafka.codes.clear()
    kafka.end = kafka.last = 200
    told: dict[TopicPartition, Offset] = {}
    while told.get(TopicPartition(OTHER, 0)) != 200:
        said = await source.changes(ONE, place, topics=False, cursors=False, wait_ms=0, limit=100)
        place = said.place
        told |= said.partitions


async def test_a_topic_whose_configs_may_not_be_described_is_there_without_them(
    kafka: PlayedKafka, source: KafkaSource
) -> None:
    kafka.described = {"t": Code.TOPIC_AUTHORIZATION_FAILED}
    topics = (await source.topics(after=None, limit=10)).topics
    assert [(each.name, each.configs) for each in topics] == [("other", {"cleanup.policy": "compact"}), ("t", None)]
    assert [each.name for each in await source.topics_by_id([ID])] == ["t"]
    kafka.described = {"t": Code.UNKNOWN_TOPIC_OR_PARTITION}
    assert await source.topics_by_id([ID]) == [], "deleted a moment ago"
