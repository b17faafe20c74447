"""Admin calls on topics, and on the partitionlets of their partitions."""

import base64

import pytest

from headrace.base.errors import Code
from headrace.wire.api_keys import ApiKey
from kit.admin_calls import create


class TestTopics:
    async def test_a_listing_in_pages_by_prefix(self, call, ask):
        for name in ("a", "ab", "ab1", "ab2", "ab3", "b"):
            await create(ask, name)
        whole = await call("topic.list", stream="/default")
        assert [topic["name"] for topic in whole] == ["a", "ab", "ab1", "ab2", "ab3", "b"]
        first = await call("topic.list", stream="/default", prefix="ab", limit=3)
        assert [topic["name"] for topic in first] == ["ab", "ab1", "ab2"]
        rest = await call("topic.list", stream="/default", prefix="ab", after="ab2", limit=3)
        assert [topic["name"] for topic in rest] == ["ab3"]

    async def test_a_topic_with_its_partitions(self, call, ask, append):
        topic_id = await create(ask, "t", 2)
        await append("t", b"x" * 1_000, b"y", partition=1)
        wanted = {"name": "t", "partitions": [{"partition_index": 1, "offset": 1}]}
        await ask(ApiKey.DELETE_RECORDS, 2, {"topics": [wanted], "timeout": 5_000})
        shown = await call("topic.show", topic="t")
        assert shown["topic"] == "/default:t"
        assert base64.urlsafe_b64decode(shown["topic_id"] + "==") == topic_id
        empty, used = shown["partitions"]
        assert (empty["first"], empty["end"], empty["bytes"]) == (0, 0, 0)
        assert (used["first"], used["end"], used["partitionlets"]) == (1, 2, 1)
        assert shown["bytes"] == used["bytes"] > 1_000

    async def test_an_unknown_topic_is_unknown_and_not_made(self, call, refused):
        for method in ("topic.show", "chain", "roll"):
            code, message = await refused(method, topic="none")
            assert code == Code.UNKNOWN_TOPIC_OR_PARTITION
            assert message == "there is no topic none"
        assert await call("topic.list", stream="/default") == []


class TestChains:
    async def test_a_roll_adds_a_partitionlet_and_no_offset_is_lost(self, call, ask, append):
        await create(ask, "t", 2)
        await append("t", b"a", b"b", b"c")
        rolled = await call("roll", topic="t", partition=0)
        assert (rolled["first"], rolled["partitionlets"]) == (3, 2)
        assert await append("t", b"d") == 4
        chain = await call("chain", topic="t", partition=0)
        assert [(each["state"], each["first"], each["end"]) for each in chain] == [("sealed", 0, 3), ("open", 3, 4)]
        assert chain[0]["leader_epoch"] < chain[1]["leader_epoch"]
        assert chain[1]["id"] == rolled["id"]
        assert all(each["bytes"] > 0 and each["node"] == 1 for each in chain)
        everything = await call("chain", topic="t", partition=None)
        assert [each["partition"] for each in everything] == [0, 0, 1]

    async def test_what_nobody_uses_is_shown_from_the_log(self, call, ask, append, broker):
        await create(ask, "t")
        await append("t", b"a", b"b")
        (topic,) = await broker.topics.resolve(["t"])
        topic.partitions.clear()
        [only] = await call("chain", topic="t")
        assert (only["end"], topic.partitions) == (2, {})

    @pytest.mark.parametrize("partition", [2, -1, 10**9])
    async def test_an_unknown_partition_is_unknown(self, refused, ask, partition):
        await create(ask, "t", 2)
        for method in ("chain", "roll"):
            assert (await refused(method, topic="t", partition=partition))[0] == Code.UNKNOWN_TOPIC_OR_PARTITION
