"""The client against a real socket, with a scripted server at the other end."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import Code, KafkaError, MalformedRequest
from headrace.kafka_client.blocking_client import Access, BrokerConnection, Unanswered
from headrace.kafka_client.errors import SourceRefuses
from headrace.security.client_security import security_of
from headrace.wire import generic_codec
from headrace.wire.admin_call import decode_admin_request, encode_admin_request, encode_admin_response
from headrace.wire.api_keys import ApiKey
from headrace.wire.header import RequestHeader, read_request_header, response_header
from kit.certificates import Certificates
from kit.client_calls import WITH_SASL, sasl, server_context
from kit.client_calls import echo as answering
from kit.fake_kafka import HANG_UP, FakeKafka

Answer = Callable[[RequestHeader, bytes], bytes]


@contextmanager
def server(answer: Answer) -> Iterator[int]:
    """Serve connections one after the other; `answer` returns the bytes to send, or none to close the connection."""
    listener = socket.create_server(("127.0.0.1", 0))

    def exactly(peer: socket.socket, count: int) -> bytes:
        got = b""
        while len(got) < count and (more := peer.recv(count - len(got))):
            got += more
        return got

    def serve() -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            with peer, suppress(ConnectionError):  # the client may close the connection first
                while length := exactly(peer, 4):
                    request = exactly(peer, int.from_bytes(length, "big"))
                    header = read_request_header(request)
                    reply = answer(header, request[header.body :])
                    if not reply:
                        break
                    for byte in range(0, len(reply), 7):  # in small pieces, as a network may
                        peer.sendall(reply[byte : byte + 7])

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def framed(raw: bytes) -> bytes:
    return len(raw).to_bytes(4, "big") + raw


def heartbeat(header: RequestHeader, body: bytes) -> bytes:
    asked = generic_codec.decode_request(header.api_key, header.api_version, body)
    answer = generic_codec.encode_response(header.api_key, header.api_version, {"error_code": asked.generation_id})
    return framed(response_header(header.api_key, header.api_version, header.correlation_id) + answer)


@pytest.mark.parametrize("version", [0, 4])
def test_calls_are_answered_one_after_the_other(version: int) -> None:
    with server(heartbeat) as port, BrokerConnection("127.0.0.1", port, "test", 10.0) as conn:
        for code in (5, 25):
            body = generic_codec.encode_request(ApiKey.HEARTBEAT, version, {"group_id": "g", "generation_id": code})
            answer = conn.call(ApiKey.HEARTBEAT, version, body)
            assert generic_codec.decode_response(ApiKey.HEARTBEAT, version, answer).error_code == code


def test_an_admin_call_brings_the_result_or_the_nodes_error() -> None:
    def answer(header: RequestHeader, body: bytes) -> bytes:
        method, params = decode_admin_request(body)
        refused = {"error": 3, "message": "no such stream"} if method == "stream.drop" else {}
        reply = encode_admin_response({"method": method, **params}, **refused)
        return framed(response_header(header.api_key, header.api_version, header.correlation_id) + reply)

    with server(answer) as port, BrokerConnection("127.0.0.1", port) as conn:
        with pytest.raises(KafkaError, match="no such stream") as raised:
            conn.admin("stream.drop", {"path": "/x"})
        assert raised.value.code == Code.UNKNOWN_TOPIC_OR_PARTITION
        found = conn.admin("stream.show", {"path": "/x", "depth": 2})
        assert found == {"method": "stream.show", "path": "/x", "depth": 2}


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (b"", "closed by the other side"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "is it a Kafka port"),
        (framed(b"\x00\x00"), "end early"),
        (framed(b"\x00\x00\x00\x63"), "answered request 99"),
    ],
)
def test_an_answer_that_is_none_is_a_connection_error_and_closes(reply: bytes, why: str) -> None:
    with server(lambda *_: reply) as port, BrokerConnection("127.0.0.1", port) as conn:
        with pytest.raises(ConnectionError, match=why):
            conn.call(ApiKey.HEARTBEAT, 0, b"")
        with pytest.raises(ConnectionError):
            conn.call(ApiKey.HEARTBEAT, 0, b"")


def test_another_kafkas_answer_to_an_admin_call_is_a_connection_error() -> None:
    def answer(header: RequestHeader, _: bytes) -> bytes:
        return framed(response_header(header.api_key, header.api_version, header.correlation_id) + b"\x00\x23")

    with (
        server(answer) as port,
        BrokerConnection("127.0.0.1", port) as conn,
        pytest.raises(ConnectionError, match="no admin answer"),
    ):
        conn.admin("status")


def echo(header: RequestHeader, body: bytes) -> bytes:
    return framed(response_header(header.api_key, header.api_version, header.correlation_id) + body)


def test_answers_come_in_the_order_of_the_requests() -> None:
    with server(echo) as port, BrokerConnection("127.0.0.1", port) as conn:
        for body in (b"one", b"two", b"three"):
            conn.send(ApiKey.METADATA, 1, body)
        assert [bytes(conn.receive()) for _ in range(3)] == [b"one", b"two", b"three"]


def test_only_the_next_passing_answer_overwrites_a_passing_one() -> None:
    large, plain = bytes(100_000), b"p" * 100_000
    with server(echo) as port, BrokerConnection("127.0.0.1", port) as conn:
        conn.send(ApiKey.METADATA, 1, large)
        passing = conn.receive(passing=True)
        kept = conn.call(ApiKey.METADATA, 1, plain)
        assert bytes(passing) == large
        conn.send(ApiKey.METADATA, 1, large.replace(b"\0", b"n"))
        conn.receive(passing=True)
        assert bytes(kept) == plain
        assert bytes(passing[:1]) == b"n", "its memory is used again"


def test_an_answer_longer_than_the_limit_is_a_connection_error() -> None:
    with (
        server(echo) as port,
        BrokerConnection("127.0.0.1", port, answer_bytes=1000) as conn,
        pytest.raises(ConnectionError, match="1000 is the limit"),
    ):
        conn.call(ApiKey.METADATA, 1, bytes(1000))


def test_silence_is_a_timeout_that_names_the_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with BrokerConnection("127.0.0.1", port, timeout_s=0.05) as conn, pytest.raises(TimeoutError, match=str(port)):
            conn.call(ApiKey.HEARTBEAT, 0, b"")


def test_a_port_where_nobody_listens_is_a_connection_error_that_names_the_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(ConnectionError, match=f"127.0.0.1:{port}"):
        BrokerConnection("127.0.0.1", port, timeout_s=5.0)


def test_a_host_without_an_address_is_a_connection_error() -> None:
    with pytest.raises(ConnectionError, match="cannot be reached"):
        BrokerConnection("no.such.host.invalid", 9092, timeout_s=5.0)


@given(st.text(max_size=9), st.dictionaries(st.text(max_size=5), st.none() | st.integers(0, 9) | st.text(max_size=5)))
def test_an_admin_request_comes_back(method: str, params: dict[str, object]) -> None:
    assert decode_admin_request(encode_admin_request(method, params)) == (method, params)
    assert decode_admin_request(memoryview(encode_admin_request(method, params))) == (method, params)


@given(
    st.binary(max_size=40) | st.binary(max_size=40).map(lambda raw: b"\x00" + raw) | st.just(b"\x00" + b"\x91" * 9999)
)
def test_any_other_bytes_are_a_malformed_admin_request(raw: bytes) -> None:
    try:
        method, params = decode_admin_request(raw)
    except MalformedRequest:
        return
    assert isinstance(method, str)
    assert isinstance(params, dict)


# --- TLS and SASL

PATIENT_S = 20.0
LOGIN = {"sasl.username": "alice", "sasl.password": "s3cret"}


async def asked(server: FakeKafka, **properties: str) -> object:
    """The node's answer to a client with these properties."""

    def ask() -> object:
        access = Access(security_of({name.replace("_", "."): value for name, value in properties.items()}))
        with BrokerConnection("127.0.0.1", server.port, timeout_s=PATIENT_S, access=access) as connection:
            return connection.admin("test.echo", {"text": "x" * 200_000})["text"]

    return await asyncio.to_thread(ask)


async def test_tls_serves_answers_of_many_records(certificates: Certificates) -> None:
    async with FakeKafka(answering, context=server_context(certificates)) as server:
        trusting = {"security_protocol": "SSL", "ssl_ca_location": certificates.path("ca.pem")}
        assert await asked(server, **trusting) == "x" * 200_000
        with pytest.raises(SourceRefuses, match=r"certificate that is not trusted: .*\(ssl.ca.location\)"):
            await asked(server, security_protocol="SSL", ssl_ca_location=certificates.path("other-ca.pem"))


async def test_a_certificate_for_another_host_is_refused_unless_told_not_to_look(certificates: Certificates) -> None:
    async with FakeKafka(answering, context=server_context(certificates, name="stranger")) as server:
        trusting = {"security_protocol": "SSL", "ssl_ca_location": certificates.path("ca.pem")}
        with pytest.raises(SourceRefuses, match="not trusted: IP address mismatch"):
            await asked(server, **trusting)
        assert await asked(server, **trusting, ssl_endpoint_identification_algorithm="none")


@pytest.mark.parametrize("kind", ["files", "texts", "one line each", "one file"])
async def test_a_client_shows_its_certificate(certificates: Certificates, tmp_path: Path, kind: str) -> None:
    both = tmp_path / "client.pem"
    both.write_text(certificates.text("client.key") + certificates.text("client.pem"))
    own = {
        "files": {
            "ssl_certificate_location": certificates.path("client.pem"),
            "ssl_key_location": certificates.path("client.key"),
        },
        "texts": {
            "ssl_keystore_certificate_chain": certificates.text("client.pem"),
            "ssl_keystore_key": certificates.text("client.key"),
        },
        "one line each": {
            "ssl_keystore_certificate_chain": " ".join(certificates.text("client.pem").split()),
            "ssl_keystore_key": certificates.text("client.key").strip().replace("\n", "\\n"),
        },
        "one file": {"ssl_keystore_type": "PEM", "ssl_keystore_location": str(both)},
    }[kind]
    trusting = {"security_protocol": "SSL", "ssl_ca_location": certificates.path("ca.pem")}
    async with FakeKafka(answering, context=server_context(certificates, client_authority="ca.pem")) as server:
        assert await asked(server, **trusting, **own)
        # The server may close the connection before its alert about the certificate was read.
        with pytest.raises(
            (SourceRefuses, Unanswered), match=r"(wants|require) a (user, or a )?certificate of the client"
        ):
            await asked(server, **trusting)


async def test_tls_where_there_is_none_and_none_where_there_is(certificates: Certificates) -> None:
    async with FakeKafka(answering) as server:
        with pytest.raises((SourceRefuses, OSError), match="TLS"):
            await asked(server, security_protocol="SSL", ssl_ca_location=certificates.path("ca.pem"))
    async with FakeKafka(answering, context=server_context(certificates)) as server:
        with pytest.raises(Unanswered, match="does it require TLS or a user"):
            await asked(server)


async def test_a_port_that_wants_a_user_is_named_as_such(certificates: Certificates) -> None:
    async with FakeKafka(lambda *_: HANG_UP) as server:
        with pytest.raises(Unanswered, match=r"security\.protocol is SSL, SASL_SSL or SASL_PLAINTEXT"):
            await asked(server)
    async with FakeKafka(lambda *_: HANG_UP, context=server_context(certificates)) as server:
        with pytest.raises(Unanswered, match=r"Then security\.protocol is SASL_SSL"):
            await asked(server, security_protocol="SSL", ssl_ca_location=certificates.path("ca.pem"))


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
async def test_sasl_lets_in_who_knows_the_password(certificates: Certificates, mechanism: str) -> None:
    known = {"security_protocol": "SASL_SSL", "sasl_mechanism": mechanism, "sasl_username": "alice"}
    known["ssl_ca_location"] = certificates.path("ca.pem")
    context = server_context(certificates)
    async with FakeKafka(sasl(mechanism, "s3cret"), versions=WITH_SASL, context=context) as server:
        assert await asked(server, **known, sasl_password="s3cret")
        with pytest.raises(SourceRefuses, match="'alice' is refused: bad secrets"):
            await asked(server, **known, sasl_password="gue55")


async def test_a_session_whose_time_is_over_is_stale() -> None:
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", **LOGIN}

    def stale(port: int) -> bool:
        with BrokerConnection("127.0.0.1", port, timeout_s=PATIENT_S, access=Access(security_of(login))) as connection:
            before = connection.is_stale
            deadline = time.monotonic() + PATIENT_S
            while not connection.is_stale:
                assert time.monotonic() < deadline
            return not before

    async with FakeKafka(sasl("PLAIN", "s3cret", lifetime_ms=1), versions=WITH_SASL) as server:
        assert await asyncio.to_thread(stale, server.port)


def test_no_secret_is_in_what_is_shown() -> None:
    access = Access(security_of({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", **LOGIN}))
    assert "s3cret" not in repr(access)
