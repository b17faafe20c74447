"""The client against a misbehaving in-process server: every fault raises a clear error, and nothing waits forever."""

import asyncio
import re
import struct

import msgspec
import pytest

from headrace.base.errors import Code, KafkaError
from headrace.base.ids import NodeId
from headrace.kafka_client.client import Lane
from headrace.kafka_client.connection import Limits
from headrace.kafka_client.errors import SourceUnreachable
from headrace.wire.admin_call import decode_admin_request, encode_admin_response
from headrace.wire.api_keys import ApiKey
from headrace.wire.header import RequestHeader
from kit.client_calls import DICT, ONE, QUICK, Connect, ask, echo
from kit.fake_kafka import HANG_UP, SILENCE, Act, Answer, FakeKafka, framed, until

# --- calls


async def test_lanes_do_not_stand_in_each_others_way(connect: Connect) -> None:
    released = asyncio.Event()

    async def answer(header: RequestHeader, body: memoryview) -> bytes | Act:
        _method, params = decode_admin_request(body)
        if params.get("poll"):
            await released.wait()
        return encode_admin_response(params)

    async with FakeKafka(answer) as server:
        client = connect(server)
        polling = asyncio.ensure_future(client.admin(ONE, "test.poll", {"poll": True}, DICT, lane=Lane.POLLS))
        assert await ask(client, a=1) == {"a": 1}
        assert not polling.done()
        released.set()
        assert await polling == {"poll": True}


async def test_an_error_answer_is_an_error_with_its_code_and_message(connect: Connect) -> None:
    said = [encode_admin_response(None, error=44, message="its home is b"), encode_admin_response(None, error=9999)]
    async with FakeKafka(lambda header, body: said.pop(0)) as server:
        client = connect(server)
        with pytest.raises(KafkaError, match="its home is b") as policy:
            await ask(client)
        assert policy.value.code is Code.POLICY_VIOLATION
        with pytest.raises(KafkaError) as unknown:
            await ask(client)
        assert unknown.value.code is Code.UNKNOWN_SERVER_ERROR


@pytest.mark.parametrize("said", [b"", b"\xc1", msgspec.msgpack.encode([1]), encode_admin_response([1, 2])])
async def test_an_admin_answer_that_is_none_is_an_unreachable_source(connect: Connect, said: bytes) -> None:
    async with FakeKafka(lambda header, body: said) as server:
        with pytest.raises(SourceUnreachable, match=r"test\.echo"):
            await ask(connect(server))


# --- faults


def wrong_number(header: RequestHeader, body: memoryview) -> Act:
    return Act(framed(header, echo(header, body), correlation_id=4711))


def truncated(header: RequestHeader, body: memoryview) -> Act:
    return Act(framed(header, echo(header, body))[:-3], hang_up=True)


def two_gigabytes(header: RequestHeader, body: memoryview) -> Act:
    return Act(struct.pack(">i", 0x7FFFFFFF) + b"x" * 100)


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (wrong_number, "answered request 4711"),
        (truncated, "closed by the other side"),
        (two_gigabytes, "a response of 2147483647 bytes"),
        (lambda header, body: HANG_UP, "closed by the other side"),
        (lambda header, body: Act(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "is it a Kafka port"),
        (lambda header, body: SILENCE, "did not answer within 0.[3-9] s"),
        (lambda header, body: Act(b"\x00\x00\x00\x02\x00\x00"), "end early"),
    ],
)
async def test_a_fault_ends_all_calls_of_its_connection_and_the_next_one_finds_a_new_one(
    connect: Connect, fault: Answer, why: str
) -> None:
    async with FakeKafka(fault) as server:
        client = connect(server, limits=QUICK)
        failed = await asyncio.gather(*(ask(client, number=number) for number in range(3)), return_exceptions=True)
        assert all(isinstance(each, SourceUnreachable) for each in failed), failed
        assert any(re.search(why, str(each)) for each in failed), failed
        assert all(f"127.0.0.1:{server.port}" in str(each) for each in failed)
        server.answer = echo
        assert await ask(client, number=5) == {"method": "test.echo", "number": 5}


async def test_silence_is_told_from_refusal(connect: Connect) -> None:
    async with FakeKafka(lambda header, body: SILENCE) as server:
        client = connect(server, limits=QUICK)
        with pytest.raises(SourceUnreachable) as silent:
            await ask(client)
        assert silent.value.timed_out
    with pytest.raises(SourceUnreachable, match="cannot be reached") as refused:
        await ask(client)
    assert not refused.value.timed_out


async def test_one_connection_that_falls_silent_ends_those_to_the_same_node_that_are_as_silent(
    connect: Connect,
) -> None:
    """As after a firewall has dropped them all: the next call need not find that out again."""
    async with FakeKafka(echo) as server:
        client = connect(server, limits=Limits(silence_s=1.0))
        await ask(client, a=1)
        await client.admin(ONE, "test.echo", {"a": 2}, DICT, lane=Lane.FETCHES)
        silent = list(server.writers)
        server.answer = lambda header, body: SILENCE
        began = asyncio.get_running_loop().time()
        with pytest.raises(SourceUnreachable) as given_up:
            await client.admin(ONE, "test.echo", {"a": 3}, DICT, lane=Lane.POLLS)
        assert given_up.value.timed_out
        server.answer = echo
        assert await ask(client, a=4) == {"method": "test.echo", "a": 4}
        assert await client.admin(ONE, "test.echo", {"a": 5}, DICT, lane=Lane.FETCHES)
        assert asyncio.get_running_loop().time() - began < 60
        await until(lambda: all(each.is_closing() for each in silent))


async def test_a_connection_that_hears_something_outlives_the_silence_of_another(connect: Connect) -> None:
    async with FakeKafka(echo) as server:
        client = connect(server, limits=Limits(silence_s=1.0))
        await ask(client, a=1)

        def answer(header: RequestHeader, body: memoryview) -> bytes | Act:
            method, params = decode_admin_request(body)
            return SILENCE if params.get("poll") else encode_admin_response({"method": method, **params})

        server.answer = answer
        await ask(client, a=1)
        polling = asyncio.ensure_future(client.admin(ONE, "test.echo", {"poll": True}, DICT, lane=Lane.POLLS))
        await until(lambda: len(server.seen) > 0 and server.connections >= 3)
        before = server.connections
        while not polling.done():
            await ask(client, a=2)
            await asyncio.sleep(0.01)
        with pytest.raises(SourceUnreachable):
            await polling
        await ask(client, a=3)
        assert server.connections == before


async def test_a_caller_that_goes_away_costs_the_others_nothing(connect: Connect) -> None:
    released = asyncio.Event()

    async def answer(header: RequestHeader, body: memoryview) -> bytes | Act:
        await released.wait()
        return echo(header, body)

    async with FakeKafka(answer) as server:
        client = connect(server)
        calls = [asyncio.ensure_future(ask(client, number=number)) for number in range(3)]
        await until(lambda: any(header.api_key == ApiKey.HEADRACE_ADMIN for header in server.seen))
        calls[1].cancel()
        released.set()
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert answers[0] == {"method": "test.echo", "number": 0}
        assert isinstance(answers[1], asyncio.CancelledError)
        assert answers[2] == {"method": "test.echo", "number": 2}


async def test_closing_ends_calls_connections_and_further_calls(connect: Connect) -> None:
    async with FakeKafka(lambda header, body: SILENCE) as server:
        client = connect(server)
        call = asyncio.ensure_future(ask(client))
        await until(lambda: any(header.api_key == ApiKey.HEADRACE_ADMIN for header in server.seen))
        await client.close()
        with pytest.raises(SourceUnreachable, match="closed on this side"):
            await call
        with pytest.raises(SourceUnreachable, match="closed on this side"):
            await ask(client)
        await client.close()


# --- where nodes are


async def test_the_first_bootstrap_address_that_answers_will_do(connect: Connect) -> None:
    async with FakeKafka(echo) as gone, FakeKafka(echo) as server:
        await gone.stop()
        client = connect(gone, server)
        assert await ask(client, a=1)
        assert client.cluster_id == "fake"


async def test_all_bootstrap_addresses_are_in_the_error(connect: Connect) -> None:
    async with FakeKafka(echo) as one, FakeKafka(echo) as other:
        pass
    with pytest.raises(SourceUnreachable) as error:
        await connect(one, other).nodes()
    assert f"127.0.0.1:{one.port} cannot be reached" in str(error.value)
    assert f"127.0.0.1:{other.port} cannot be reached" in str(error.value)


async def test_a_node_that_moved_is_found_at_its_new_address(connect: Connect) -> None:
    async with FakeKafka(echo) as stays, FakeKafka(echo) as old, FakeKafka(echo) as new:
        stays.nodes = {1: ("127.0.0.1", stays.port), 2: ("127.0.0.1", old.port)}
        client = connect(stays)
        assert await ask(client, NodeId(2))
        stays.nodes = {1: ("127.0.0.1", stays.port), 2: ("127.0.0.1", new.port)}
        await old.stop()
        client._learnt_at = -10.0
        answers = await asyncio.gather(ask(client, NodeId(2)), ask(client, NodeId(2)), return_exceptions=True)
        if any(isinstance(each, SourceUnreachable) for each in answers):  # they used the connection while it ended
            client._learnt_at = -10.0
            await ask(client, NodeId(2))
        assert new.connections == 1


async def test_a_node_that_the_cluster_does_not_have_is_unreachable(connect: Connect) -> None:
    async with FakeKafka(echo) as server:
        with pytest.raises(SourceUnreachable, match="has no node 7"):
            await ask(connect(server), NodeId(7))


async def test_metadata_that_name_no_nodes_are_no_answer_and_forget_nobody(connect: Connect) -> None:
    async with FakeKafka(echo) as server:
        client = connect(server)
        await client.metadata()
        server.nodes = {}
        with pytest.raises(SourceUnreachable, match="names no nodes yet"):
            await client.metadata(None)
        assert (await client.admin(ONE, "m", {}, DICT))["method"] == "m"


async def test_an_address_that_has_become_another_clusters_is_not_used(connect: Connect) -> None:
    async with FakeKafka(echo) as server:
        client = connect(server)
        await ask(client)
        server.cluster_id = "other"
        with pytest.raises(SourceUnreachable, match="belongs to cluster 'other' now, not to 'fake'"):
            await client.nodes()


async def test_callers_share_an_attempt_that_fails(connect: Connect) -> None:
    async with FakeKafka(echo) as server:
        server.versions = {}
        server.nodes = {}
        attempts = server.connections
        client = connect(server, limits=QUICK)
        failed = await asyncio.gather(*(client.nodes() for _ in range(20)), return_exceptions=True)
        assert all(isinstance(each, KafkaError) for each in failed), failed
        assert server.connections - attempts == 1
