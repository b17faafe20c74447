"""The client against a real socket, whose other end is a script of this file."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import Code, KafkaError, MalformedRequest
from headrace.kafka_client.blocking_client import BrokerConnection
from headrace.wire import generic_codec
from headrace.wire.admin_call import decode_admin_request, encode_admin_request, encode_admin_response
from headrace.wire.api_keys import ApiKey
from headrace.wire.header import RequestHeader, read_request_header, response_header

Answer = Callable[[RequestHeader, bytes], bytes]


@contextmanager
def server(answer: Answer) -> Iterator[int]:
    """Serve connections one after the other; `answer` gives the bytes to send, none to hang up."""
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
            with peer, suppress(ConnectionResetError):  # the client may hang up first
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
