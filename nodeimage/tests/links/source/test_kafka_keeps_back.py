"""A Kafka cluster that does not return what it has: records that do not arrive in time, topics without read access."""

from collections.abc import AsyncIterator

import pytest

from headrace.base.addresses import Address
from headrace.base.errors import Code
from headrace.base.ids import NodeId, Offset
from headrace.kafka_client.client import Client
from headrace.links.source import kafka_feed
from headrace.links.source.kafka_source import KafkaSource
from headrace.links.source.source import NO_EPOCH, NO_OFFSET, Fetched, TopicPartition, Wanted
from headrace.security.client_security import security_of
from headrace.wire.api_keys import ApiKey
from kit.fake_kafka import FakeKafka
from kit.played_kafka import AT, ID, OTHER, PlayedKafka, played_topic

ONE = NodeId(1)


@pytest.fixture
def kafka() -> PlayedKafka:
    return PlayedKafka()


@pytest.fixture
async def server(kafka: PlayedKafka) -> AsyncIterator[FakeKafka]:
    async with FakeKafka(kafka.answer, topics=[played_topic("t", ID), played_topic("other", OTHER)]) as server:
        yield server


@pytest.fixture
async def source(server: FakeKafka) -> AsyncIterator[KafkaSource]:
    source = KafkaSource(Client([Address("127.0.0.1", server.port)], security=security_of({})))
    await source.hello()
    yield source
    await source.close()


async def fetched(source: KafkaSource, offset: int) -> Fetched:
    """The answer for `t` from `offset` on."""
    await source.meet(ONE, [AT])
    (came,) = await source.fetch(ONE, [Wanted(AT, Offset(offset), NO_EPOCH, 1 << 20)], max_bytes=8 << 20)
    assert came.code is Code.NONE
    return came


# --- records that do not arrive


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


# --- topics without read access


async def test_a_topic_that_may_be_described_and_not_read_ends_no_poll_before_its_time(
    kafka: PlayedKafka, source: KafkaSource
) -> None:
    kafka.codes[OTHER] = Code.TOPIC_AUTHORIZATION_FAILED
    place = None
    for _ in range(20):
        place = (await source.changes(ONE, place, topics=False, committed_offsets=False, wait_ms=10, limit=100)).place
    assert kafka.asked[ApiKey.LIST_OFFSETS] == 1


async def test_a_topic_that_may_be_read_by_now_is_told_of(
    kafka: PlayedKafka, source: KafkaSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_feed, "REFUSED_S", 0.0)
    kafka.codes[OTHER] = Code.TOPIC_AUTHORIZATION_FAILED
    place = None
    for _ in range(3):
        place = (await source.changes(ONE, place, topics=False, committed_offsets=False, wait_ms=0, limit=100)).place
    kafka.codes.clear()
    kafka.end = kafka.last = 200
    told: dict[TopicPartition, Offset] = {}
    while told.get(TopicPartition(OTHER, 0)) != 200:
        said = await source.changes(ONE, place, topics=False, committed_offsets=False, wait_ms=0, limit=100)
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
