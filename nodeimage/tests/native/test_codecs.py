"""The compiled codecs, compared with those in Python: for valid bytes, bytes with mistakes, and arbitrary bytes."""

import struct
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.log import frames
from headrace.native import codecs
from headrace.wire import batch, fetch, header, produce, records
from headrace.wire.produce import PartitionRecords, ProduceRequest, ProduceResult
from kit.codec_twins import (
    NEEDS_CODECS,
    all_records,
    assert_alike,
    compare_batch,
    compare_frames,
    compare_request,
    compare_stamp,
    in_python,
    sealed,
)

pytestmark = NEEDS_CODECS
settings.register_profile("twins", deadline=None, max_examples=150)
settings.load_profile("twins")

int16 = st.integers(-(1 << 15), (1 << 15) - 1)
int32 = st.integers(-(1 << 31), (1 << 31) - 1)
int64 = st.integers(-(1 << 63), (1 << 63) - 1)
field = st.none() | st.binary(max_size=200)
name = st.binary(max_size=20).map(lambda given: given.decode("utf-8", "surrogateescape"))
record = st.tuples(st.integers(0, 1 << 45), field, field, st.lists(st.tuples(name, field), max_size=3))
batches = st.builds(
    batch.build_batch,
    st.lists(record, min_size=1, max_size=20),
    base_offset=st.integers(0, 1 << 62),
    compression=st.sampled_from([0, 0, 0, 1, 2, 3, 4]),
    producer_id=st.sampled_from([-1, 7]),
    base_sequence=st.sampled_from([-1, 0, 9]),
    producer_epoch=st.sampled_from([-1, 0]),
    attributes=st.sampled_from([0, 0, 0, batch.APPEND_TIME_BIT, batch.CONTROL_BIT, 0x80, -32768]),
).map(bytes)
HUGE = b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"
"""A varint of 2^63 - 1."""
ODD = st.sampled_from(
    [HUGE, b"\xff" * 9 + b"\x01", b"\xff" * 9 + b"\x7f", b"\xff" * 11, b"\x80\x00", b"\x01", b"\x80" * 4]
)


@st.composite
def mistaken(draw: Any, sound: st.SearchStrategy[bytes], first: int = 0) -> bytes:
    """Valid bytes with mistakes: changed, extra or missing bytes, odd numbers. The `first` bytes are unchanged."""
    made = bytearray(draw(sound))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(min(first, len(made)), len(made)))
        match draw(st.sampled_from(["another", "cut", "odd", "more", "fewer"])):
            case "another" if at < len(made):
                made[at] = draw(st.integers(0, 255))
            case "cut":
                del made[max(at, len(made) - 20) :]
            case "odd":
                odd = draw(ODD)
                made[at : at + draw(st.sampled_from([0, 1, len(odd)]))] = odd
            case "more":
                made[at:at] = draw(st.binary(max_size=8))
            case "fewer":
                del made[at : at + draw(st.integers(1, 4))]
    return bytes(made)


@given(batches)
def test_a_sound_batch_is_read_in_machine_code(data: bytes) -> None:
    assert codecs is not None
    found = batch.read_batch(data, from_client=False)
    assert codecs.read_batch(data, True, False, batch.BatchHeader) == found
    compare_batch(data)


@given(mistaken(batches), mistaken(batches, batch.BATCH_HEADER_SIZE))
def test_batches_with_mistakes_are_alike(any_bytes: bytes, in_records: bytes) -> None:
    compare_batch(any_bytes)
    compare_batch(bytes(sealed(any_bytes)))
    compare_batch(bytes(sealed(in_records)))


@given(st.binary(max_size=200))
def test_any_bytes_for_a_batch_are_alike(data: bytes) -> None:
    compare_batch(data)
    compare_batch(bytes(sealed(bytes(61) + data)))


@given(batches | st.binary(max_size=80), int64, int32)
def test_stamps_are_alike(data: bytes, base_offset: int, leader_epoch: int) -> None:
    if len(data) >= 16:
        compare_stamp(data, base_offset, leader_epoch)


def test_what_is_read_only_is_not_stamped() -> None:
    assert codecs is not None
    assert not codecs.stamp(bytes(batch.build_batch([(1, b"k", b"v", [])])), 5, 3)


@pytest.mark.parametrize("base", [0, 1 << 62, (1 << 63) - 1, -1, -(1 << 63)])
@pytest.mark.parametrize("delta", [0, 1, -1, (1 << 62), (1 << 63) - 1, -(1 << 63), 1 << 64, -(1 << 66)])
def test_times_at_the_bounds_are_alike(base: int, delta: int) -> None:
    folded = delta * 2 if delta >= 0 else -delta * 2 - 1
    body = bytearray(1)
    while folded > 0x7F:
        body.append(folded & 0x7F | 0x80)
        folded >>= 7
    body += bytes([folded, 0, 2]) + b"k" + bytes([2]) + b"v" + bytes(1)
    made = batch.build_batch([(0, None, None, [])])
    made[61:] = bytes([len(body) * 2]) + body
    struct.pack_into(">q", made, 27, base)
    compare_batch(bytes(sealed(made)))


def test_more_records_than_are_read_at_once_are_alike() -> None:
    for count in (1, 255, 256, 257, 512, 1000):
        made = batch.build_batch([(number, b"k%d" % number, None, []) for number in range(count)])
        compare_batch(bytes(made))
        for at in (62, len(made) // 2, len(made) - 3):
            made[at] ^= 0x55
            compare_batch(bytes(made))


def test_a_long_walk_lets_go_of_the_lock_and_finds_the_same() -> None:
    made = batch.build_batch([(number, b"k" * 300, bytes(100), []) for number in range(1000)])
    assert len(made) > 256 << 10
    compare_batch(bytes(made))
    made[-50] = 0x80
    made[-120] = 0
    compare_batch(bytes(made))


def frame(body: bytes, position: int, partitionlet: int, first: int) -> bytes:
    head = frames.batch_frame_header(56 + len(body), 3, position, partitionlet, first, first, 99, memoryview(body))
    return head + body


@st.composite
def runs(draw: Any) -> bytes:
    """Contiguous frames from position 1000 on: data, control, gaps (only their headers)."""
    made, position = b"", 1000
    for number in range(draw(st.integers(0, 6))):
        match draw(st.sampled_from(["data", "data", "data", "control", "gap"])):
            case "data":
                body = bytes(draw(batches))
                one = frame(body, position, draw(st.sampled_from([7, 7, 7, 8])), number)
                length = len(one)
            case "control":
                one = frames.control_frame(
                    type=draw(st.sampled_from([2, 3, 6, 9])),
                    epoch=1,
                    position=position,
                    partitionlet=7,
                    first=-1,
                    last=-1,
                    payload=draw(st.binary(max_size=40)),
                )
                length = len(one)
            case _:
                one, end = next(frames.gap_frames(position, position + draw(st.integers(56, 9999)), most=1))
                length = end - position
        made += one
        position += length
    return made


WHERE = st.tuples(
    st.sampled_from([7, 8]), st.integers(-1, 7), st.sampled_from([0, 3, 100, (1 << 63) - 1]), st.integers(-10, 4000)
)


@given(runs() | mistaken(runs()), st.sampled_from([1000, 0, 1001]), WHERE)
def test_frames_are_alike(data: bytes, position: int, where: Any) -> None:
    partitionlet, offset, limit, most = where
    compare_frames(data, position, partitionlet=partitionlet, offset=offset, limit=limit, max_bytes=most)


@given(st.lists(batches, max_size=5), WHERE)
def test_batches_taken_from_a_place_are_alike(bodies: list[bytes], where: Any) -> None:
    partitionlet, offset, limit, most = where
    data = b"".join(frame(body, 1000, 7, number) for number, body in enumerate(bodies))
    compare_frames(data, 1000, partitionlet=partitionlet, offset=offset, limit=limit, max_bytes=most)


def test_a_frame_whose_position_nearly_overflows_is_no_fault() -> None:
    body = bytes(batch.build_batch([(1, b"k", b"v", [])]))
    for position in ((1 << 63) - 1, (1 << 63) - 57 - len(body), (1 << 62)):
        compare_frames(frame(body, position, 7, 0), position, partitionlet=7, offset=0, limit=1, max_bytes=1 << 40)


@given(
    st.integers(0, (1 << 32) - 1),
    st.integers(0, (1 << 32) - 1),
    st.integers(0, (1 << 63) - 1),
    st.tuples(int64, int64, int64, int64),
    st.binary(max_size=100),
)
def test_frame_headers_are_alike(length: int, epoch: int, position: int, numbers: Any, body: bytes) -> None:
    assert_alike(lambda: frames.batch_frame_header(length, epoch, position, *numbers, memoryview(body)))


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 100, 767, 768, 769, 800, 5000])
def test_sums_are_right_on_both_sides_of_what_is_summed_here(size: int) -> None:
    made = batch.build_batch([(1, None, bytes(range(256)) * 20, [])])[: batch.BATCH_HEADER_SIZE] + bytes(size)
    whole = sealed(made)
    assert batch.read_batch(whole, from_client=False).crc == crc32c(bytes(whole[21:]))
    compare_batch(bytes(whole))
    whole[-1] ^= 1
    compare_batch(bytes(whole))


text = st.text(max_size=12) | st.text(st.characters(codec="ascii"), max_size=12)
parts = st.lists(
    st.builds(PartitionRecords, text, int32, st.none() | st.binary(max_size=300).map(memoryview)), max_size=5
)
requests = st.builds(ProduceRequest, st.none() | text, int16, int32, parts)


@st.composite
def produce_calls(draw: Any) -> tuple[bytes, int, int]:
    """A Produce request with its header, the position of its body, and its version."""
    version = draw(st.integers(0, 11))
    head = header.request_header(0, version, draw(int32), draw(st.none() | text))
    return head + produce.encode_request(version, draw(requests)), len(head), version


@given(produce_calls(), st.data())
def test_produce_requests_are_alike(call: tuple[bytes, int, int], data: st.DataObject) -> None:
    assert codecs is not None
    sound, body, version = call
    view = memoryview(bytearray(sound))
    assert codecs.read_request_header(view, header.FLEXIBLE_FROM, header.RequestHeader) is not None
    assert codecs.decode_produce(view, body, version, ProduceRequest, PartitionRecords) is not None
    compare_request(sound, body, version)
    compare_request(data.draw(mistaken(st.just(sound))), body, version)
    compare_request(data.draw(mistaken(st.just(sound), body)), body, data.draw(st.integers(0, 13)))


asked = st.builds(fetch.FetchPartition, int32, int32, int64, int32, int64, int32)


@st.composite
def fetch_calls(draw: Any) -> tuple[bytes, int, int, bool]:
    """A Fetch request with its header, the position of its body, its version, and whether it has anything rare."""
    version = draw(st.integers(4, 16))
    topics = draw(
        st.lists(st.tuples(text, st.binary(min_size=16, max_size=16), st.lists(asked, max_size=3)), max_size=3)
    )
    named = [
        fetch.FetchTopic(name if version < 13 else None, of if version > 12 else None, each)
        for name, of, each in topics
    ]
    forgotten = [(name, of, [7]) for name, of, _ in named] if draw(st.booleans()) else []
    replica_id = draw(st.sampled_from([-1, -1, 5]))
    request = fetch.FetchRequest(
        *draw(st.tuples(int32, int32, int32, st.integers(-128, 127), int32, int32)),
        named,
        forgotten,
        draw(text),
        replica_id,
    )
    head = header.request_header(1, version, draw(int32), draw(st.none() | text))
    is_rare = bool(forgotten and version >= 7) or (version >= 15 and replica_id >= 0)
    return head + fetch.encode_request(version, request), len(head), version, is_rare


@given(fetch_calls(), st.data())
def test_fetch_requests_are_alike(call: tuple[bytes, int, int, bool], data: st.DataObject) -> None:
    assert codecs is not None
    sound, body, version, is_rare = call
    found = codecs.decode_fetch(
        memoryview(sound), body, version, fetch.FetchRequest, fetch.FetchTopic, fetch.FetchPartition
    )
    assert (found is None) == is_rare
    compare_request(sound, body, version)
    compare_request(data.draw(mistaken(st.just(sound))), body, version)
    compare_request(data.draw(mistaken(st.just(sound), body)), body, data.draw(st.integers(3, 17)))


@given(st.binary(max_size=100), st.integers(0, 120), st.integers(-1, 17))
def test_any_bytes_for_a_request_are_alike(data: bytes, body: int, version: int) -> None:
    compare_request(data, body, version)


def test_more_partitions_than_one_request_may_name_are_refused_alike() -> None:
    one = struct.pack(">hhii", -1, -1, 0, 1)[:-4]
    for topics, partitions in ((1 << 17, 1), (1, 1 << 17), (1, (1 << 17) + 1), ((1 << 17) + 1, 1), (2, 1 << 16)):
        data = one + struct.pack(">i", topics)
        for _ in range(topics):
            data += struct.pack(">h", 0) + struct.pack(">i", partitions) + struct.pack(">ii", 0, -1) * partitions
        compare_request(data, 0, 3)


results = st.builds(
    ProduceResult,
    text,
    int32,
    st.integers(-1, 120),
    int64,
    int64,
    int64,
    st.sampled_from([None, None, None, "why"]),
    st.sampled_from([(), (), (), ((3, "no key"),)]),
)


@given(st.integers(0, 11), st.lists(results, max_size=6) | st.lists(results, min_size=1, max_size=1), int32)
def test_produce_answers_are_alike(version: int, given: list[ProduceResult], throttle_ms: int) -> None:
    assert_alike(lambda: produce.encode_response(version, given, throttle_ms))


@pytest.mark.parametrize("length", [126, 127, 128, 16_383, 32_767])
@pytest.mark.parametrize("version", [8, 9])
def test_produce_answers_with_long_names_are_alike(length: int, version: int) -> None:
    given = [ProduceResult("n" * length, number, 0) for number in range(130)]
    assert_alike(lambda: produce.encode_response(version, given))
    assert_alike(lambda: produce.encode_response(version, given[:1]))


def test_what_goes_in_is_held_only_during_the_call() -> None:
    """A buffer that is still exported cannot be resized."""
    made = bytearray(batch.build_batch([(1, b"k", b"v", [])]))
    batch.read_batch(made)
    batch.stamp(made, 1, 1)
    found = batch.read_batch(made)
    all_records(found, memoryview(bytes(made)))
    assert codecs is not None
    assert codecs.scan_records(made, 61, 1, 0, 100, records.Checked) is not None
    assert codecs.scan_records(made, 61, 2, 0, 100, records.Checked) is None
    for wrong in (-1, len(made) + 1):
        with pytest.raises(ValueError, match=str(wrong)):
            codecs.scan_records(made, wrong, 1, 0, 100, records.Checked)
        with pytest.raises(ValueError, match=str(wrong)):
            codecs.read_records(made, wrong, 1, 0, 0, None, batch.Record)
    with pytest.raises(ValueError, match="101"):
        codecs.scan_records(made, 61, 1, 0, 101, records.Checked)
    made += b"more"


def test_in_python_nothing_is_done_in_machine_code() -> None:
    with in_python():
        assert batch._native is None
    assert batch._native is codecs
