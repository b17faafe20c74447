"""Cutting a server's bytes into responses, whatever pieces they arrive in."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.errors import MalformedRequest
from headrace.kafka_client.responses import ResponseReader


def feed(reader: ResponseReader, data: bytes, piece: int) -> list[bytes]:
    """All responses in `data`, which is fed in pieces."""
    found: list[bytes] = []
    at = 0
    while at < len(data):
        room = reader.get_buffer()
        count = min(len(room), piece, len(data) - at)
        assert count
        room[:count] = data[at : at + count]
        at += count
        reader.came(count)
        while (response := reader.next()) is not None:
            found.append(bytes(response))
    return found


@settings(deadline=None)
@given(
    sizes=st.lists(st.one_of(st.integers(0, 200), st.integers(0, 100_000)), max_size=12),
    piece=st.one_of(st.integers(1, 20), st.integers(1000, 200_000)),
)
def test_every_response_comes_out_whole_and_in_order(sizes: list[int], piece: int) -> None:
    responses = [bytes([index]) * size for index, size in enumerate(sizes)]
    data = b"".join(struct.pack(">i", len(each)) + each for each in responses)
    assert feed(ResponseReader(1 << 20), data, piece) == responses


def test_responses_are_memory_of_their_own_that_may_be_written_to() -> None:
    reader = ResponseReader(8 << 20)
    kept: list[memoryview] = []
    for size in (10, 100_000, 5 << 20):
        data = struct.pack(">i", size) + bytes([size % 251]) * size
        response: memoryview | None = None
        at = 0
        while response is None:
            room = reader.get_buffer()
            count = min(len(room), len(data) - at)
            assert count
            room[:count] = data[at : at + count]
            at += count
            reader.came(count)
            response = reader.next()
        kept.append(response)
    assert [set(each[:: max(1, len(each) // 100)]) for each in kept] == [{10}, {100_000 % 251}, {(5 << 20) % 251}]
    assert not any(each.readonly for each in kept)


@pytest.mark.parametrize(
    ("start", "why"),
    [
        (struct.pack(">i", -1), "-1 bytes"),
        (struct.pack(">i", 0x7FFFFFFF), "2147483647 bytes"),
        (b"HTTP/1.1", "is it a Kafka port"),
        (b"\x15\x03\x03\x00\x02\x02\x46", "speaks TLS"),
    ],
)
def test_a_length_beyond_the_limit_is_refused_before_its_bytes(start: bytes, why: str) -> None:
    with pytest.raises(MalformedRequest, match=why):
        feed(ResponseReader(1 << 20), start, 100)
