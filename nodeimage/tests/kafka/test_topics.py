"""DeleteTopics and DeleteRecords, through the bytes of the APIs, on a node with a real catalog and log."""

import asyncio
import uuid

import pytest

from headrace.base.errors import Code, KafkaError
from headrace.catalog.chains import SetLogStart
from headrace.catalog.policy import StreamPolicy
from headrace.catalog.streams import CreateStream
from headrace.partitions.lookups import submit_within
from headrace.wire.api_keys import ApiKey
from kit.replaced_methods import replace_method


async def create(ask, *names, partitions=1):
    topics = [{"name": name, "num_partitions": partitions, "replication_factor": -1} for name in names]
    made = (await ask(ApiKey.CREATE_TOPICS, 7, {"topics": topics, "timeout": 5_000})).topics
    assert {topic.error_code for topic in made} == {0}
    return [topic.topic_id for topic in made]


async def topic_names(broker, stream="/default"):
    return [row.name for row in await broker.catalog.query(lambda reader: reader.topics.page(stream))]


class TestDeleteTopics:
    @pytest.mark.parametrize("version", range(1, 6))
    async def test_by_name(self, ask, broker, version):
        await create(ask, "a", "b")
        deleted = await ask(ApiKey.DELETE_TOPICS, version, {"topic_names": ["a", "none"], "timeout": 5_000})
        codes = {each.name: each.error_code for each in deleted.responses}
        assert codes == {"a": 0, "none": Code.UNKNOWN_TOPIC_OR_PARTITION}
        assert await topic_names(broker) == ["b"]

    async def test_by_id_or_name_in_version_6(self, ask, broker):
        first, _ = await create(ask, "a", "b")
        stranger = uuid.uuid4()
        asked = [
            {"name": None, "topic_id": first},
            {"name": "b", "topic_id": None},
            {"name": None, "topic_id": stranger},
            {"name": None, "topic_id": None},
            {"name": "c", "topic_id": stranger},
        ]
        deleted = (await ask(ApiKey.DELETE_TOPICS, 6, {"topics": asked, "timeout": 5_000})).responses
        assert [each.error_code for each in deleted] == [
            0,
            0,
            Code.UNKNOWN_TOPIC_ID,
            Code.INVALID_REQUEST,
            Code.INVALID_REQUEST,
        ]
        assert (deleted[0].name, deleted[0].topic_id) == ("a", first)
        assert await topic_names(broker) == []

    async def test_a_topic_named_twice_in_any_form_is_kept(self, ask, broker):
        (topic_id,) = await create(ask, "a")
        asked = [{"name": "a", "topic_id": None}, {"name": None, "topic_id": topic_id}]
        deleted = (await ask(ApiKey.DELETE_TOPICS, 6, {"topics": asked, "timeout": 5_000})).responses
        assert [each.error_code for each in deleted] == [Code.INVALID_REQUEST] * 2
        assert await topic_names(broker) == ["a"]

    async def test_every_form_of_a_name_deletes(self, ask, broker):
        await broker.catalog.submit(CreateStream(path="/plant/one", policy=StreamPolicy(), now=1))
        await create(ask, "/plant/one:a", "plant.one..b")
        asked = {"topic_names": ["plant.one..a", "/plant/one:b"], "timeout": 5_000}
        deleted = (await ask(ApiKey.DELETE_TOPICS, 5, asked)).responses
        assert [(each.name, each.error_code) for each in deleted] == [("plant.one..a", 0), ("/plant/one:b", 0)]
        assert await topic_names(broker, "/plant/one") == []

    async def test_a_topic_made_again_is_another_topic(self, ask, broker, append):
        (first,) = await create(ask, "a")
        assert await append("a", b"1", b"2") == 2
        await ask(ApiKey.DELETE_TOPICS, 5, {"topic_names": ["a"], "timeout": 5_000})
        (second,) = await create(ask, "a")
        assert first != second
        assert await append("a", b"3") == 1


class TestDeleteRecords:
    @staticmethod
    async def delete(ask, offset, *, topic="t", partition=0, version=2):
        wanted = {"name": topic, "partitions": [{"partition_index": partition, "offset": offset}]}
        answer = await ask(ApiKey.DELETE_RECORDS, version, {"topics": [wanted], "timeout": 5_000})
        [[result]] = [each.partitions for each in answer.topics]
        return result

    @pytest.mark.parametrize("version", range(3))
    async def test_the_log_start_moves_to_the_offset(self, ask, broker, append, version):
        await create(ask, "t")
        await append("t", b"a", b"b", b"c")
        result = await self.delete(ask, 2, version=version)
        assert (result.error_code, result.low_watermark) == (0, 2)
        (topic,) = await broker.topics.resolve(["t"])
        assert topic.partitions[0].log_start == 2

    async def test_minus_one_is_the_high_watermark(self, ask, append):
        await create(ask, "t")
        await append("t", b"a", b"b", b"c")
        assert (await self.delete(ask, -1)).low_watermark == 3

    async def test_it_never_moves_back(self, ask, append):
        await create(ask, "t")
        await append("t", b"a", b"b", b"c")
        await self.delete(ask, 2)
        result = await self.delete(ask, 1)
        assert (result.error_code, result.low_watermark) == (0, 2)

    @pytest.mark.parametrize("offset", [4, 2**63 - 1, -2])
    async def test_an_offset_that_the_partition_has_not_reached_is_refused(self, ask, append, offset):
        await create(ask, "t")
        await append("t", b"a", b"b", b"c")
        result = await self.delete(ask, offset)
        assert (result.error_code, result.low_watermark) == (Code.OFFSET_OUT_OF_RANGE, -1)

    @pytest.mark.parametrize(("topic", "partition"), [("none", 0), ("t", 1), ("t", -1)])
    async def test_an_unknown_partition_is_unknown(self, ask, topic, partition):
        await create(ask, "t")
        result = await self.delete(ask, 0, topic=topic, partition=partition)
        assert result.error_code == Code.UNKNOWN_TOPIC_OR_PARTITION

    async def test_it_makes_no_topic(self, ask, broker):
        await self.delete(ask, 0, topic="none")
        assert await topic_names(broker) == []

    async def test_partitions_are_answered_in_the_order_asked_for(self, ask, append):
        await create(ask, "t", "u", partitions=2)
        await append("u", b"a", partition=1)
        wanted = [
            {"name": "u", "partitions": [{"partition_index": index, "offset": -1} for index in (1, 7, 0)]},
            {"name": "t", "partitions": [{"partition_index": 1, "offset": 1}]},
        ]
        answer = await ask(ApiKey.DELETE_RECORDS, 2, {"topics": wanted, "timeout": 5_000})
        found = [
            (topic.name, each.partition_index, each.low_watermark, each.error_code)
            for topic in answer.topics
            for each in topic.partitions
        ]
        assert found == [
            ("u", 1, 1, 0),
            ("u", 7, -1, Code.UNKNOWN_TOPIC_OR_PARTITION),
            ("u", 0, 0, 0),
            ("t", 1, -1, Code.OFFSET_OUT_OF_RANGE),
        ]


async def test_a_command_that_is_not_committed_in_time_is_a_timeout(broker, monkeypatch):
    never = asyncio.get_running_loop().create_future()
    container = broker.containers[broker.maintenance.catalog_id]
    replace_method(monkeypatch, container, "append_command", lambda payload: never)
    with pytest.raises(KafkaError, match="may still happen") as timed_out:
        await submit_within(broker.catalog, SetLogStart(items=[]), timeout_ms=20)
    assert timed_out.value.code is Code.REQUEST_TIMED_OUT


async def test_a_command_over_the_limit_is_refused_before_it_is_written(broker):
    position = broker.catalog.applied
    policy = StreamPolicy(description="x" * (9 << 20))
    with pytest.raises(KafkaError) as refused:
        await submit_within(broker.catalog, CreateStream(path="/big", policy=policy, now=1), timeout_ms=0)
    assert refused.value.code is Code.POLICY_VIOLATION
    assert broker.catalog.applied == position
