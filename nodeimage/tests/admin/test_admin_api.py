"""Headrace's own admin calls, through bytes, on a node with a real catalog and log."""

import tracemalloc

import msgspec
import pytest

from headrace.admin import cluster_rules
from headrace.base.errors import Code, MalformedRequest
from headrace.base.ids import ContainerId, NodeId
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


async def test_a_status_of_many_containers_below_their_minimum_compares_none_with_another(call, monkeypatch):
    """Comparing each with all others took seconds on the loop with tens of thousands of them."""
    compared = []

    def lacking(number: int, in_sync: int) -> cluster_rules.Lack:
        return cluster_rules.Lack(ContainerId(number), "data", "v", NodeId(1), in_sync, 3, 2, "down", None, True)

    found = [lacking(number, in_sync=1 + number // 100) for number in range(300)]
    monkeypatch.setattr(cluster_rules, "lacks", lambda *_, **__: found)
    monkeypatch.setattr(cluster_rules.Lack, "__eq__", lambda *each: compared.append(each))
    redundancy = (await call("cluster.status"))["redundancy"]
    assert (redundancy["lacking"], redundancy["below_minimum"], redundancy["stalled"]) == (300, 100, 200)
    assert compared == []
