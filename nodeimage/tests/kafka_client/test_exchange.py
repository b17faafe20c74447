"""Framing of requests and matching of answers, without a socket."""

import struct

import pytest

from headrace.base.errors import MalformedRequest
from headrace.kafka_client.exchange import Exchange
from headrace.wire.api_keys import ApiKey
from headrace.wire.header import read_request_header, response_header

HEARTBEAT = ApiKey.HEARTBEAT


def exchange(answer_bytes: int = 1 << 20) -> Exchange[str]:
    return Exchange(client_id="test", answer_bytes=answer_bytes)


def feed(to: Exchange[str], data: bytes) -> None:
    while data:
        room = to.responses.get_buffer()
        count = min(len(room), len(data))
        room[:count] = data[:count]
        to.responses.came(count)
        data = data[count:]


def answered(correlation_id: int, body: bytes, *, version: int = 0) -> bytes:
    content = response_header(HEARTBEAT, version, correlation_id) + body
    return struct.pack(">i", len(content)) + content


@pytest.mark.parametrize("version", [0, 4])
def test_a_request_is_framed_with_its_body(version: int) -> None:
    start = exchange().ask(HEARTBEAT, version, 100, "a")
    header = read_request_header(start[4:])
    assert struct.unpack_from(">i", start)[0] == len(start) - 4 + 100
    assert (header.api_key, header.api_version, header.client_id) == (HEARTBEAT, version, "test")
    assert header.body == len(start) - 4


@pytest.mark.parametrize("version", [0, 4])
def test_answers_go_to_their_callers_in_the_order_of_the_requests(version: int) -> None:
    one = exchange()
    numbers = [read_request_header(one.ask(HEARTBEAT, version, 0, caller)[4:]).correlation_id for caller in "ab"]
    assert (one.under_way, one.next) == (2, "a")
    feed(one, answered(numbers[0], b"first", version=version) + answered(numbers[1], b"second", version=version)[:-1])
    first = one.answer()
    assert first is not None
    assert (first[0], bytes(first[1])) == ("a", b"first")
    assert one.answer() is None
    assert one.next == "b"
    feed(one, b"d")
    second = one.answer()
    assert second is not None
    assert (second[0], bytes(second[1]), one.under_way) == ("b", b"second", 0)


def test_an_answer_out_of_order_and_one_that_nobody_asked_for_are_refused() -> None:
    one = exchange()
    feed(one, answered(7, b""))
    with pytest.raises(MalformedRequest, match="nobody asked for"):
        one.answer()
    number = read_request_header(one.ask(HEARTBEAT, 0, 0, "a")[4:]).correlation_id
    feed(one, answered(number + 1, b""))
    with pytest.raises(MalformedRequest, match=f"answered request {number + 1}, where {number} was next"):
        one.answer()


def test_an_answer_longer_than_the_limit_is_refused_by_its_length() -> None:
    one = exchange(answer_bytes=1000)
    one.ask(HEARTBEAT, 0, 0, "a")
    feed(one, struct.pack(">i", 1001))
    with pytest.raises(MalformedRequest, match="1000 is the limit"):
        one.answer()


def test_callers_that_wait_are_told_apart_when_all_is_given_up() -> None:
    one = exchange()
    for caller in "abc":
        one.ask(HEARTBEAT, 0, 0, caller)
    assert one.give_up() == ["a", "b", "c"]
    assert not one.under_way
