"""The client against a server of this process that misbehaves: every fault is a plain error, and nothing waits on."""

import asyncio
import base64
import hashlib
import hmac
import re
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest

from headrace.base.addresses import Address
from headrace.base.errors import Code, KafkaError
from headrace.base.ids import NodeId
from headrace.kafka_client.client import ANY, Client, Lane
from headrace.kafka_client.connection import Limits
from headrace.kafka_client.errors import SourceRefuses, SourceUnreachable
from headrace.security.client_security import Security, security_of
from headrace.wire import fetch
from headrace.wire.admin_call import decode_admin_request, encode_admin_response
from headrace.wire.api_keys import ApiKey, Versions
from headrace.wire.batch import build_batch, iter_records
from headrace.wire.fetch import FetchPartition, FetchRequest, FetchResult, FetchTopic, FetchTopicResult
from headrace.wire.header import RequestHeader
from kit.certificates import Certificates
from kit.fake_kafka import HANG_UP, SILENCE, Act, Answer, FakeKafka, framed, until

ONE = NodeId(1)
DICT = msgspec.msgpack.Decoder(dict)
QUICK = Limits(connect_s=5.0, silence_s=0.3, answer_bytes=1 << 20, under_way=8)
PATIENT = Limits(connect_s=20.0, silence_s=20.0, answer_bytes=64 << 20)

Connect = Callable[..., Client]


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Makes clients; closed after the test."""
    made: list[Client] = []

    def client(*servers: FakeKafka, limits: Limits = PATIENT, **properties: str) -> Client:
        security = security_of({name.replace("_", "."): value for name, value in properties.items()})
        one = Client([Address("127.0.0.1", server.port) for server in servers], security=security, limits=limits)
        made.append(one)
        return one

    yield client
    for each in made:
        await each.close()


def echo(header: RequestHeader, body: memoryview) -> bytes:
    method, params = decode_admin_request(body)
    return encode_admin_response({"method": method, **params})


async def ask(client: Client, node: NodeId = ONE, **params: Any) -> Any:
    return await client.admin(node, "test.echo", params, DICT)


# --- calls


async def test_calls_are_pipelined_and_each_gets_its_own_answer(connect: Connect) -> None:
    async with FakeKafka(echo) as server:
        client = connect(server)
        answers = await asyncio.gather(*(ask(client, number=number) for number in range(200)))
        assert [answer["number"] for answer in answers] == list(range(200))
        assert server.connections == 2  # one to ask who is there, one to the node


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


async def test_batches_of_a_fetch_come_as_views_of_the_answers_own_memory(connect: Connect) -> None:
    batch = bytes(build_batch([(1, None, b"x" * 3_000_000, []), (2, b"k", b"v", [])]))
    topic_id = bytes(range(16))

    def answer(header: RequestHeader, body: memoryview) -> bytes:
        asked = fetch.decode_request(body, 0, header.api_version)
        assert asked.topics == [FetchTopic(None, topic_id, [FetchPartition(0, 7, 5, -1, -1, 1 << 20)])]
        result = FetchResult(0, 0, 2, 2, 0, [batch])
        response = fetch.encode_response(header.api_version, topics=[FetchTopicResult(None, topic_id, [result])])
        return b"".join(response)

    async with FakeKafka(answer) as server:
        request = FetchRequest(
            0, 1, 1 << 20, 0, 0, -1, [FetchTopic(None, topic_id, [FetchPartition(0, 7, 5, -1, -1, 1 << 20)])], [], ""
        )
        response = await connect(server).fetch(ONE, request)
        ((records,),) = [each.records for each in response.topics[0].partitions]
        assert isinstance(records, memoryview)
        assert not records.readonly
        assert records.obj is not None
        assert records == batch
        assert [record.key for record in iter_records(records)] == [None, b"k"]


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


async def test_a_server_that_lacks_an_api_says_so(connect: Connect) -> None:
    async with FakeKafka(echo, versions={int(ApiKey.METADATA): (0, 12), int(ApiKey.FETCH): (4, 11)}) as server:
        client = connect(server)
        with pytest.raises(KafkaError, match="speaks FETCH in versions 4 to 11; 13 or later is needed"):
            await client.fetch(ONE, FetchRequest(0, 1, 1, 0, 0, -1, [], [], ""))
        with pytest.raises(KafkaError, match="speaks LIST_GROUPS not at all"):
            await client.ask(ANY, ApiKey.LIST_GROUPS, Versions(0, 5), {})


# --- faults


def wrong_number(header: RequestHeader, body: memoryview) -> Act:
    return Act(framed(header, echo(header, body), correlation_id=4711))


def truncated(header: RequestHeader, body: memoryview) -> Act:
    return Act(framed(header, echo(header, body))[:-3], hang_up=True)


def two_gigabytes(header: RequestHeader, body: memoryview) -> Act:
    return Act(struct.pack(">i", 0x7FFFFFFF) + b"x" * 100)


def twice(header: RequestHeader, body: memoryview) -> Act:
    return Act(framed(header, echo(header, body)) * 2)


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


async def test_an_answer_that_nobody_asked_for_ends_the_connection(connect: Connect) -> None:
    async with FakeKafka(twice) as server:
        client = connect(server)
        assert await ask(client, a=1)
        before = server.connections
        server.answer = echo
        await until(lambda: any("nobody asked for" in str(each.error()) for each in client._connections))
        assert await ask(client, a=2)
        assert server.connections == before + 1


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
    """As where a firewall has forgotten them all: the next call need not find that out anew."""
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


async def test_a_slow_network_that_brings_bytes_is_not_taken_for_silence(connect: Connect) -> None:
    """Each piece comes after half of the silence that is allowed, the whole after several times that."""
    limits = Limits(silence_s=4.0)
    async with FakeKafka(echo) as server:
        client = connect(server, limits=limits)
        await ask(client)
        whole = asyncio.Event()

        async def drip(header: RequestHeader, body: memoryview) -> Act:
            (writer,) = [each for each in server.writers if not each.is_closing()][-1:]
            raw = framed(header, echo(header, body))
            for index in range(3):
                writer.write(raw[index : index + 1])
                await asyncio.sleep(limits.silence_s / 2)
            whole.set()
            return Act(raw[3:])

        server.answer = drip
        began = asyncio.get_running_loop().time()
        assert await ask(client, a=2) == {"method": "test.echo", "a": 2}
        assert whole.is_set()
        assert asyncio.get_running_loop().time() - began > limits.silence_s


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


async def test_no_more_calls_are_under_way_than_the_limit(connect: Connect) -> None:
    async with FakeKafka(echo) as server:
        client = connect(server, limits=QUICK)
        await ask(client)
        held = asyncio.Event()

        async def answer(header: RequestHeader, body: memoryview) -> bytes:
            await held.wait()
            return echo(header, body)

        server.answer = answer
        calls = [asyncio.ensure_future(ask(client, number=number)) for number in range(50)]
        await until(lambda: any(each._exchange.under_way >= QUICK.under_way for each in client._connections))
        assert max(each._exchange.under_way for each in client._connections) == QUICK.under_way
        held.set()
        assert [answer["number"] for answer in await asyncio.gather(*calls)] == list(range(50))


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
        if any(isinstance(each, SourceUnreachable) for each in answers):  # they used the connection as it ended
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


# --- TLS


def server_context(
    certificates: Certificates, *, name: str = "server", client_authority: str | None = None
) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificates.path(f"{name}.pem"), certificates.path(f"{name}.key"))
    if client_authority:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(certificates.path(client_authority))
    return context


async def test_tls_with_a_known_authority_serves_large_answers_too(
    connect: Connect, certificates: Certificates
) -> None:
    async with FakeKafka(echo, context=server_context(certificates)) as server:
        client = connect(server, security_protocol="SSL", ssl_ca_pem=certificates.text("ca.pem"))
        assert (await ask(client, text="x" * 3_000_000))["text"] == "x" * 3_000_000


async def test_a_certificate_of_an_unknown_authority_is_refused(connect: Connect, certificates: Certificates) -> None:
    async with FakeKafka(echo, context=server_context(certificates)) as server:
        client = connect(server, security_protocol="SSL", ssl_ca_location=certificates.path("other-ca.pem"))
        with pytest.raises(SourceRefuses, match=f"127.0.0.1:{server.port} has a certificate that is not trusted"):
            await ask(client)


async def test_a_host_that_the_certificate_does_not_name_is_refused_unless_told_not_to_look(
    connect: Connect, certificates: Certificates
) -> None:
    async with FakeKafka(echo, context=server_context(certificates, name="stranger")) as server:
        trusting = {"security_protocol": "SSL", "ssl_ca_pem": certificates.text("ca.pem")}
        with pytest.raises(SourceRefuses, match="certificate that is not trusted: IP address mismatch"):
            await ask(connect(server, **trusting))
        assert await ask(connect(server, **trusting, ssl_endpoint_identification_algorithm=""), a=1)


async def test_a_client_without_a_certificate_is_refused_where_one_is_due(
    connect: Connect, certificates: Certificates
) -> None:
    async with FakeKafka(echo, context=server_context(certificates, client_authority="ca.pem")) as server:
        client = connect(server, security_protocol="SSL", ssl_ca_pem=certificates.text("ca.pem"))
        with pytest.raises((SourceRefuses, SourceUnreachable)) as refused:
            await ask(client)
        assert f"127.0.0.1:{server.port}" in str(refused.value)
        client = connect(
            server,
            security_protocol="SSL",
            ssl_ca_pem=certificates.text("ca.pem"),
            ssl_certificate_pem=certificates.text("client.pem"),
            ssl_key_pem=certificates.text("client.key"),
        )
        assert await ask(client, a=1)


async def test_tls_where_the_server_speaks_none_and_none_where_it_does(
    connect: Connect, certificates: Certificates
) -> None:
    async with FakeKafka(echo) as server:
        with pytest.raises((SourceRefuses, SourceUnreachable), match="TLS"):
            await connect(server, limits=QUICK, security_protocol="SSL").nodes()
    async with FakeKafka(echo, context=server_context(certificates)) as server:
        with pytest.raises(SourceUnreachable, match="TLS"):
            await connect(server, limits=QUICK).nodes()


# --- SASL


def sasl(mechanism: str, password: str, *, lifetime_ms: int = 0) -> Answer:
    """A server that authenticates alice, in Kafka's words."""
    nonce = ""
    first = ""

    def step(auth: bytes) -> bytes:
        nonlocal nonce, first
        if mechanism == "PLAIN":
            return b"" if auth == f"\0alice\0{password}".encode() else b"!"
        salt = b"salt" * 4
        if not nonce:
            first = auth.decode().removeprefix("n,,")
            nonce = first.split("r=")[1] + "server"
            return f"r={nonce},s={base64.b64encode(salt).decode()},i=4096".encode()
        salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, 4096)
        said = f"{first},r={nonce},s={base64.b64encode(salt).decode()},i=4096,c=biws,r={nonce}".encode()
        client_key = hmac.digest(salted, b"Client Key", "sha256")
        proof = base64.b64decode(auth.decode().split("p=")[1])
        wanted = hmac.digest(hashlib.sha256(client_key).digest(), said, "sha256")
        nonce = ""
        if bytes(a ^ b for a, b in zip(proof, wanted, strict=True)) != client_key:
            return b"!"
        server_key = hmac.digest(salted, b"Server Key", "sha256")
        return b"v=" + base64.b64encode(hmac.digest(server_key, said, "sha256"))

    def answer(header: RequestHeader, body: memoryview) -> bytes:
        if header.api_key == 17:
            known = bytes(body[2:]).decode() == mechanism
            return struct.pack(">hih", 0 if known else 33, 1, len(mechanism)) + mechanism.encode()
        if header.api_key == 36:
            said = step(bytes(body[4:]))
            if said == b"!":
                return struct.pack(">hh", 58, 11) + b"bad secrets" + struct.pack(">iq", 0, 0)
            return struct.pack(">hhi", 0, -1, len(said)) + said + struct.pack(">q", lifetime_ms)
        return echo(header, body)

    return answer


WITH_SASL = {17: (0, 1), 36: (0, 2), int(ApiKey.METADATA): (0, 12)}


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
async def test_sasl_lets_in_who_knows_the_password_and_names_who_does_not(connect: Connect, mechanism: str) -> None:
    async with FakeKafka(sasl(mechanism, "s3cret"), versions=WITH_SASL) as server:
        known = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": mechanism, "sasl_username": "alice"}
        assert await ask(connect(server, sasl_password="s3cret", **known), a=1)
        with pytest.raises(SourceRefuses, match="'alice' is refused: bad secrets") as refused:
            await ask(connect(server, sasl_password="gue55", **known))
        assert "gue55" not in str(refused.value)


async def test_a_mechanism_that_the_server_lacks_is_answered_with_what_it_has(connect: Connect) -> None:
    async with FakeKafka(sasl("SCRAM-SHA-256", "x"), versions=WITH_SASL) as server:
        client = connect(
            server,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="PLAIN",
            sasl_username="alice",
            sasl_password="x",
        )
        with pytest.raises(SourceRefuses, match="does not take PLAIN: it offers SCRAM-SHA-256"):
            await ask(client)


async def test_a_connection_whose_session_ends_is_replaced_before(connect: Connect) -> None:
    async with FakeKafka(sasl("PLAIN", "x", lifetime_ms=200), versions=WITH_SASL) as server:
        client = connect(
            server,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="PLAIN",
            sasl_username="alice",
            sasl_password="x",
        )
        await ask(client)
        first = set(client._connections)
        await until(lambda: not any(each.is_usable for each in first))
        assert await ask(client, a=1)


def test_the_default_limits_refuse_a_hostile_length() -> None:
    assert Limits().answer_bytes < 1 << 30
    assert Security().protocol == "PLAINTEXT"
