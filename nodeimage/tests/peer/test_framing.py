"""Encoding and decoding of messages, in whatever pieces the bytes arrive."""

import random
import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import Code, KafkaError, MalformedRequest
from headrace.base.ids import ContainerId, Epoch, NodeId, Position
from headrace.peer.framing import (
    MAX_FRAME,
    MAX_HEADER,
    MAX_PAYLOAD,
    FrameReader,
    decode_message,
    encode_frame,
    encode_message,
)
from headrace.peer.messages import (
    Acked,
    AnyMessage,
    Commit,
    Follow,
    Following,
    Frames,
    Message,
    Probe,
    Refused,
    Request,
    RollAway,
    Submit,
)

Read = list[tuple[Message, memoryview]]

positions = st.integers(0, 2**62).map(Position)
histories = st.lists(st.tuples(st.integers(0, 2**31).map(Epoch), positions), max_size=5)
messages: st.SearchStrategy[Message] = st.one_of(
    st.builds(Frames, committed=positions),
    st.builds(Acked, position=positions, epoch=st.integers(0, 2**31).map(Epoch)),
    st.builds(
        Following,
        epoch=st.integers(0, 2**31).map(Epoch),
        history=histories,
        begin=positions,
        committed=positions,
        snapshot_position=positions,
    ),
    st.builds(Refused, code=st.integers(-1, 100), reason=st.text()),
)
payloads = st.lists(st.sampled_from([0, 1, 100, 4_095, 4_096, 20_000, 70_000]), max_size=4)


def feed(reader: FrameReader, data: bytes, most: int) -> Read:
    """Gives `data` to the reader as a socket would, `most` bytes at a time at most."""
    read: Read = []
    at = 0
    while at < len(data):
        room = reader.get_buffer()
        assert len(room)
        piece = data[at : at + min(most, len(room))]
        room[: len(piece)] = piece
        reader.came(len(piece))
        at += len(piece)
        while (frame := reader.next()) is not None:
            read.append((decode_message(frame[0]), frame[1]))
    return read


@given(st.lists(st.tuples(messages, payloads), max_size=8), st.integers(1, 100_000), st.integers(0, 1 << 32))
def test_whatever_is_sent_arrives_however_it_is_cut(
    sent: list[tuple[Message, list[int]]], most: int, seed: int
) -> None:
    chance = random.Random(seed)
    frames = [(message, [chance.randbytes(size) for size in sizes]) for message, sizes in sent]
    data = b"".join(b"".join(encode_frame(message, buffers)) for message, buffers in frames)
    reader = FrameReader()
    # compared at the end: no payload may change when further bytes come
    assert [(message, bytes(payload)) for message, payload in feed(reader, data, max(most, len(data) // 2_000))] == [
        (message, b"".join(buffers)) for message, buffers in frames
    ]
    assert not reader.is_within


@given(st.binary(max_size=200))
def test_junk_is_refused_or_waited_for_and_nothing_else(junk: bytes) -> None:
    try:
        feed(FrameReader(), junk, 1_000)
    except MalformedRequest:
        pass


def test_large_buffers_are_sent_as_they_are_and_small_ones_joined() -> None:
    large = [memoryview(bytes(300_000)), bytes(500_000)]
    small = [b"a" * 10, b"b" * 10]
    pieces = encode_frame(Frames(Position(1)), [large[0], *small, large[1], b"tail"])
    assert pieces[1] is large[0]
    assert pieces[2] == b"a" * 10 + b"b" * 10
    assert pieces[3] is large[1]
    assert pieces[4:] == [b"tail"]


def test_a_small_frame_is_one_piece() -> None:
    assert len(encode_frame(Frames(Position(1)), [b"a" * 5_000, b"b" * 5_000])) == 1


def test_a_large_payload_is_read_into_memory_of_its_own_and_copied_at_its_beginning_only() -> None:
    reader = FrameReader()
    feed(reader, b"".join(encode_frame(Commit(Position(1)))) * 20_000, 1 << 20)  # enlarges the window
    data = b"".join(encode_frame(Frames(Position(1)), [bytes(1 << 20)]))
    feed(reader, data, 1 << 20)
    reads = []
    at = 0
    while at < len(data):
        room = reader.get_buffer()
        reads.append(len(room))
        room[:] = data[at : at + len(room)]
        reader.came(len(room))
        at += len(room)
        frame = reader.next()
    assert reads == [4_096, len(data) - 4_096]
    assert frame is not None
    assert len(frame[1]) == 1 << 20
    assert frame[1].readonly


def test_a_payload_that_no_node_would_read_is_not_sent() -> None:
    part = bytes(1 << 20)
    with pytest.raises(KafkaError) as caught:
        encode_frame(Frames(Position(1)), [part] * 81)
    assert caught.value.code is Code.MESSAGE_TOO_LARGE
    with pytest.raises(KafkaError):
        encode_frame(Refused(1, "x" * (MAX_HEADER + 1)))


def test_the_largest_frame_that_may_be_sent_is_read() -> None:
    part = bytes(1 << 20)
    data = b"".join(encode_frame(Refused(1, "x" * (MAX_HEADER - 100)), [part] * 80))
    ((message, payload),) = feed(FrameReader(), data, 1 << 20)
    assert isinstance(message, Refused)
    assert len(payload) == MAX_PAYLOAD


@pytest.mark.parametrize(
    ("length", "header"),
    [(MAX_FRAME + 1, 10), (0xFFFFFFFF, 10), (0, 0), (4, 0), (100, 0), (100, 97), (1 << 22, 1 << 21)],
)
def test_lengths_that_cannot_be_are_refused_at_once(length: int, header: int) -> None:
    with pytest.raises(MalformedRequest):
        feed(FrameReader(), struct.pack(">II", length, header), 8)


def test_unknown_fields_are_ignored_and_missing_ones_take_their_defaults() -> None:
    raw = msgspec.msgpack.encode({"type": "RollAway", "container": 3, "most": 4, "wings": [1, {"a": None}]})
    assert decode_message(raw) == RollAway(ContainerId(3), 4)
    assert len(encode_message(Commit(Position(1)))) < 30


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode({"type": "Unheard"}),
        msgspec.msgpack.encode({"type": "Frames"}),
        msgspec.msgpack.encode({"type": "Frames", "committed": "much"}),
        msgspec.msgpack.encode({"type": "Frames", "committed": 1}) + b"\x00",
        b"\x83\xa4type\xa9Following\xa7history\xdd\xff\xff\xff\xff",
        b"\x82\xa4type\xa6Frames\xa1z" + b"\x91" * 100_000,
        b"\x82\xa4type\xa7Refused\xa6reason\xa2\xff\xff",
    ],
)
def test_a_header_that_does_not_decode_is_refused(header: bytes) -> None:
    with pytest.raises(MalformedRequest):
        decode_message(header)


def test_every_message_is_known_by_its_name_and_every_request_by_its_answer() -> None:
    known = {each.__name__: each for each in AnyMessage.__args__}
    declared = {each for each in _below(Message) if each.__module__ == Message.__module__} - {Request}
    assert {each for each in declared if not _below(each)} == set(known.values())
    for each in known.values():
        if issubclass(each, Request):
            (base,) = each.__orig_bases__
            assert base.__args__ == (each.answer,)


def _below(base: type) -> set[type]:
    found = set(base.__subclasses__())
    return found.union(*(_below(each) for each in found))


def test_a_follower_is_described_whole() -> None:
    follow = Follow(
        container=ContainerId(7),
        epoch=Epoch(3),
        node=NodeId(2),
        format="f" * 36,
        observer=False,
        history=[(Epoch(1), Position(0)), (Epoch(3), Position(4_096))],
        end=Position(9_000),
        start=Position(0),
    )
    assert decode_message(encode_message(follow)) == follow
    assert decode_message(encode_message(Probe())) == Probe()


@pytest.mark.parametrize("piece", [1, 5, 1_000, 1 << 20])
def test_a_reader_takes_longer_frames_once_it_is_told_to(piece: int) -> None:
    """The bytes that arrived behind the last short frame are not lost."""
    reader = FrameReader(4_096)
    short = b"".join(encode_frame(Submit(), [b"s" * 1_000]))
    long = b"".join(encode_frame(Submit(), [b"l" * 100_000]))
    data = memoryview(short + long + short)
    sizes: list[int] = []
    while data:
        room = reader.get_buffer()
        size = min(piece, len(room), len(data))
        room[:size] = data[:size]
        data = data[size:]
        reader.came(size)
        while (frame := reader.next()) is not None:
            sizes.append(len(frame[1]))
            if len(sizes) == 1:
                reader.take_longer()
    assert sizes == [1_000, 100_000, 1_000]


@pytest.mark.parametrize("payload", [10, 5_000, 9_000, 15_000, 20_000, 100_000])
@pytest.mark.parametrize("piece", [1_000, 1 << 20])
def test_a_reader_that_shrank_takes_frames_of_any_length(payload: int, piece: int) -> None:
    reader = FrameReader()
    for _ in range(2):
        data = memoryview(b"".join(encode_frame(Submit(), [bytes(payload)])) * 3)
        sizes: list[int] = []
        while data:
            room = reader.get_buffer()
            assert room
            size = min(piece, len(room), len(data))
            room[:size] = data[:size]
            data = data[size:]
            reader.came(size)
            if len(reader._staging) > 8 * 1024 and reader.is_within:
                staging = reader._staging
                reader.shrink()  # not while part of a frame has arrived
                assert reader._staging is staging
            while (frame := reader.next()) is not None:
                sizes.append(len(frame[1]))
        assert sizes == [payload] * 3
        reader.shrink()
        assert len(reader._staging) == 8 * 1024
