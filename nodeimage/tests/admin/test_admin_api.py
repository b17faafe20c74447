"""Headrace's own admin calls, through their bytes, on a node with a real catalog and log."""

import asyncio
import base64
import time

import msgspec
import pytest

from headrace.admin import stream_metrics
from headrace.base.errors import Code, MalformedRequest
from headrace.catalog.committed_offsets import CommitCursors, Cursor
from headrace.kafka.connection import Connection
from headrace.wire.admin_call import encode_admin_request
from headrace.wire.api_keys import ApiKey


@pytest.fixture
def raw_call(broker):
    async def called(method, params=None):
        body = encode_admin_request(method, params or {})
        return msgspec.msgpack.decode(await broker.admin.handle(body, Connection(broker)))

    return called


@pytest.fixture
def call(raw_call):
    """The result of a call that succeeds."""

    async def called(method, **params):
        answer = await raw_call(method, params)
        assert answer["error"] == 0, answer["message"]
        return answer["result"]

    return called


@pytest.fixture
def refused(raw_call):
    """The code and message of a call that does not."""

    async def called(method, **params):
        answer = await raw_call(method, params)
        assert answer["result"] is None
        assert "\n" not in answer["message"]
        return answer["error"], answer["message"]

    return called


async def create(ask, name, partitions=1):
    topics = [{"name": name, "num_partitions": partitions, "replication_factor": -1}]
    [made] = (await ask(ApiKey.CREATE_TOPICS, 7, {"topics": topics, "timeout": 5_000})).topics
    assert made.error_code == 0, made.error_message
    return made.topic_id.bytes


class TestEnvelope:
    @pytest.mark.parametrize("body", [b"", b"\x01", b"\x00", b"\x00\xc1", b"\x00\x90", b"\x00\x91\xa1x"])
    async def test_bytes_that_are_no_request_end_the_connection(self, broker, body):
        with pytest.raises(MalformedRequest):
            await broker.admin.handle(body, Connection(broker))

    async def test_an_unknown_method_is_answered_with_the_known_ones(self, refused):
        code, message = await refused("stream.destroy")
        assert code == Code.INVALID_REQUEST
        assert "stream.delete" in message

    @pytest.mark.parametrize(
        ("method", "params", "says"),
        [
            ("stream.show", {}, "path"),
            ("stream.show", {"path": 7}, "path"),
            ("stream.show", {"path": "/default", "colour": "red"}, "colour"),
            ("stream.create", {"path": "/a", "policy": {"tll_ms": 1}}, "tll_ms"),
            ("stream.create", {"path": "/a", "policy": {"ttl_ms": "1d"}}, "ttl_ms"),
            ("topic.list", {"stream": "/default", "limit": 0}, "limit"),
            ("topic.list", {"stream": "/default", "limit": 10**9}, "limit"),
        ],
    )
    async def test_bad_parameters_are_named(self, refused, method, params, says):
        code, message = await refused(method, **params)
        assert code == Code.INVALID_REQUEST
        assert says in message

    async def test_a_fault_inside_is_an_answer_not_a_lost_connection(self, raw_call, broker, monkeypatch):
        monkeypatch.setattr(broker.catalog, "query", None)
        answer = await raw_call("stream.list")
        assert answer["error"] == Code.UNKNOWN_SERVER_ERROR


class TestStreams:
    async def test_made_shown_altered_and_deleted(self, call, refused):
        made = await call("stream.create", path="/factory/sensors", policy={"ttl_ms": 86_400_000})
        assert (made["path"], made["ttl_ms"], made["topics"]) == ("/factory/sensors", 86_400_000, 0)
        assert await call("stream.show", path="/factory/sensors") == made | {"problem": None}
        altered = await call("stream.alter", path="/factory/sensors", changes={"default_partitions": 3})
        assert altered == made | {"default_partitions": 3}
        listed = await call("stream.list")
        assert [stream["path"] for stream in listed] == ["/default", "/factory/sensors"]
        await call("stream.delete", path="/factory/sensors")
        code, message = await refused("stream.show", path="/factory/sensors")
        assert code == Code.UNKNOWN_TOPIC_OR_PARTITION
        assert "headrace stream create /factory/sensors" in message

    async def test_how_much_is_in_it(self, call, ask, append):
        await call("stream.create", path="/a")
        none = await call("stream.show", path="/a", figures=True)
        assert (none["messages"], none["bytes"], none["oldest_ms"]) == (0, 0, None)
        await call("stream.create", path="/b")
        await create(ask, "/b:t", 2)
        await create(ask, "/a:t")
        begun = int(time.time() * 1000)
        await append("/b:t", b"x" * 1_000, b"y")
        await call("roll", topic="/b:t", partition=0)
        await append("/b:t", b"z")
        after = int(time.time() * 1000)
        await append("/b:t", b"z", partition=1)
        wanted = {"name": "/b:t", "partitions": [{"partition_index": 0, "offset": 1}]}
        await ask(ApiKey.DELETE_RECORDS, 2, {"topics": [wanted], "timeout": 5_000})
        shown = await call("stream.show", path="/b", figures=True)
        assert shown["messages"] == 3
        assert shown["bytes"] > 1_000
        assert begun <= shown["oldest_ms"] <= after
        await append("/b:t", b"z")
        assert (await call("stream.show", path="/b", figures=True))["messages"] == 3, "looked at again at once"
        assert "messages" not in await call("stream.show", path="/b")

    async def test_a_large_stream_is_gone_through_in_several_calls(self, call, ask, append, monkeypatch):
        monkeypatch.setattr(stream_metrics, "AT_ONCE", 2)
        monkeypatch.setattr(stream_metrics, "WORK_S", 0.0)
        await call("stream.create", path="/a")
        await create(ask, "/a:t", 5)
        for partition in range(5):
            await append("/a:t", b"x", partition=partition)
        told = [(await call("stream.show", path="/a", figures=True))["messages"] for _ in range(4)]
        assert told == [None, None, 5, 5]

    async def test_one_that_exists_is_left_as_it_is(self, call, refused):
        await call("stream.create", path="/a", policy={"ttl_ms": 5})
        code, message = await refused("stream.create", path="/a", policy={"ttl_ms": 6})
        assert code == Code.TOPIC_ALREADY_EXISTS
        assert "stream alter" in message
        kept = await call("stream.create", path="/a", policy={"ttl_ms": 6}, if_not_exists=True)
        assert kept["ttl_ms"] == 5

    async def test_one_with_topics_is_deleted_only_by_force(self, call, refused, ask):
        await call("stream.create", path="/a")
        await create(ask, "/a:t", 2)
        assert (await refused("stream.delete", path="/a"))[0] == Code.POLICY_VIOLATION
        gone = await call("stream.delete", path="/a", force=True)
        assert (gone["topics"], gone["partitions"]) == (1, 2)

    async def test_the_default_stream_stays(self, refused):
        assert (await refused("stream.delete", path="/default", force=True))[0] == Code.POLICY_VIOLATION

    @pytest.mark.parametrize(
        "policy",
        [
            {"ttl_ms": -1},
            {"ttl_ms": 2**63},
            {"retention_bytes": 0},
            {"default_partitions": 0},
            {"default_partitions": 10**6},
            {"max_message_bytes": -1},
            {"timestamp_type": "Never"},
            {"compression": "rar"},
            {"description": "x" * 1001},
        ],
    )
    async def test_a_bad_policy_is_refused_with_the_fields_name(self, call, refused, policy):
        (name,) = policy
        for method, fields in (("stream.create", "policy"), ("stream.alter", "changes")):
            path = "/new" if method == "stream.create" else "/default"
            code, message = await refused(method, path=path, **{fields: policy})
            assert code in (Code.INVALID_CONFIG, Code.INVALID_REQUEST)
            assert name in message
        assert [stream["path"] for stream in await call("stream.list")] == ["/default"]

    @pytest.mark.parametrize("path", ["", "a", "/", "/a/", "/a.b", "/" + "x" * 300])
    async def test_a_bad_path_is_refused(self, refused, path):
        assert (await refused("stream.create", path=path))[0] == Code.INVALID_TOPIC_EXCEPTION


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


class TestGroups:
    @staticmethod
    async def commit(broker, topic_id, offset, *, group="g", partition=0):
        cursor = Cursor(topic_id=topic_id, partition=partition, offset=offset, leader_epoch=-1)
        codes = await broker.catalog.submit(
            CommitCursors(group=group, generation=-1, member_id="", items=[cursor], now=broker.runtime.now())
        )
        assert codes == [Code.NONE]

    async def test_lag_is_what_stands_between_cursor_and_end(self, call, ask, append, broker):
        topic_id = await create(ask, "t", 2)
        await append("t", b"a", b"b", b"c")
        await append("t", b"d", partition=1)
        await self.commit(broker, topic_id, 1)
        await self.commit(broker, topic_id, 1, partition=1)
        [listed] = await call("groups.list")
        assert (listed["group"], listed["state"], listed["partitions"], listed["lag"]) == ("g", "Empty", 2, 2)
        shown = await call("groups.show", group="g")
        found = [(each["partition"], each["cursor"], each["end"], each["lag"]) for each in shown["partitions"]]
        assert found == [(0, 1, 3, 2), (1, 1, 1, 0)]
        assert shown["members"] == []

    async def test_lag_of_partitions_that_nobody_uses(self, call, ask, append, broker):
        topic_id = await create(ask, "t")
        await append("t", b"a", b"b", b"c")
        await self.commit(broker, topic_id, 1)
        (topic,) = await broker.topics.resolve(["t"])
        topic.partitions.clear()
        [listed] = await call("groups.list")
        assert (listed["lag"], topic.partitions) == (2, {})

    async def test_a_cursor_ahead_of_the_end_is_no_negative_lag(self, call, ask, broker):
        await self.commit(broker, await create(ask, "t"), 9)
        [listed] = await call("groups.list")
        assert listed["lag"] == 0

    async def test_an_unknown_group_is_unknown(self, refused):
        code, message = await refused("groups.show", group="none")
        assert code == Code.GROUP_ID_NOT_FOUND
        assert "none" in message


class TestNode:
    async def test_status(self, call, ask, append, broker):
        await create(ask, "t", 3)
        await append("t", b"x" * 10_000)
        status = await call("status")
        assert (status["streams"], status["topics"], status["partitions"]) == (1, 1, 3)
        assert status["cluster"] == broker.node.cluster_id
        assert status["memory"]["resident_bytes"] > 1_000_000
        assert status["disk"]["free_bytes"] > 0
        containers = status["containers"]
        assert [each["kind"] for each in containers] == ["catalog", "data"]
        for each in containers:
            assert each["start"] <= each["committed"] <= each["end"]
            assert each["on_disk_bytes"] > 0
            assert each["chunks"] >= 1
            assert each["in_sync"] == str(broker.node.node_id)

    async def test_a_scrub_runs_to_its_end_and_finds_no_fault(self, call, ask, append):
        await create(ask, "t")
        for _ in range(3):
            await append("t", b"x" * 600_000)  # three chunks of 1 MiB
        assert (await call("scrub.status"))["state"] == "never"
        state = await call("scrub.start")
        while state["running"]:
            await asyncio.sleep(0.01)
            state = await call("scrub.status")
        assert (state["state"], state["errors"]) == ("ended", [])
        assert state["containers_done"] == state["containers"] == 2
        assert state["read_bytes"] > 600_000

    async def test_settings(self, call, broker):
        assert (await call("node.settings"))["chunk_bytes"] == broker.node.settings.chunk_bytes

    async def test_every_method_answers_without_parameters_or_says_which_it_wants(self, raw_call, broker):
        for method in broker.admin.names:
            answer = await raw_call(method)
            assert answer["error"] in (0, Code.INVALID_REQUEST), (method, answer)
