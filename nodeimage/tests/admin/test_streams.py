"""Admin calls on streams: create, show, alter, list and delete."""

import time

import pytest

from headrace.admin import stream_metrics
from headrace.base.errors import Code
from headrace.wire.api_keys import ApiKey
from kit.admin_calls import create


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
