"""Headrace's own admin calls, through bytes, on a node with a real catalog and log."""

import tracemalloc

import msgspec
import pytest

from headrace.base.errors import Code, MalformedRequest
from headrace.kafka.connection import Connection


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


async def test_parameters_become_no_objects_that_their_method_does_not_take(broker):
    """A million empty lists would take 64 MB, and nodes accept requests of 100 MiB."""
    given = b"\x81\xa4path\xdd\x00\x0f\x42\x40" + b"\x90" * 1_000_000
    body = b"\x00\x92\xabstream.show" + given
    tracemalloc.start()
    try:
        answer = msgspec.msgpack.decode(await broker.admin.handle(body, Connection(broker.dispatcher)))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (answer["error"], "path" in answer["message"]) == (Code.INVALID_REQUEST, True)
    assert peak < 8 << 20


async def test_parameters_that_are_no_msgpack_are_answered(broker):
    for given in (b"\x81\xa4path\xa2\xff\xfe", b"\x81\xa4path" + b"\x91" * 100_000 + b"\xc0", b"\x90", b"\x81\x01\x02"):
        try:
            answer = await broker.admin.handle(b"\x00\x92\xabstream.show" + given, Connection(broker.dispatcher))
        except MalformedRequest:
            continue
        assert msgspec.msgpack.decode(answer)["error"] == Code.INVALID_REQUEST
