"""A frame returns what was put into it, and any flipped bit is detected."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import CorruptLog, NewerFormat
from headrace.log.frames import (
    GAP_BYTES,
    HEADER_BYTES,
    FrameType,
    batch_frame_header,
    check_frames,
    control_frame,
    frames_in,
    gap_frames,
    take_batches,
)

MakeBatch = Callable[..., memoryview]
I64 = st.integers(-(1 << 63), (1 << 63) - 1)


@given(
    kind=st.sampled_from([kind for kind in FrameType if kind not in (FrameType.DATA, FrameType.GAP)]),
    epoch=st.integers(0, (1 << 32) - 1),
    position=st.integers(0, (1 << 64) - 1),
    partitionlet=I64,
    first=I64,
    last=I64,
    payload=st.binary(max_size=300),
)
def test_a_control_frame_reads_back_as_written(
    kind: FrameType, epoch: int, position: int, partitionlet: int, first: int, last: int, payload: bytes
) -> None:
    raw = control_frame(
        type=kind, epoch=epoch, position=position, partitionlet=partitionlet, first=first, last=last, payload=payload
    )
    (frame,) = frames_in(memoryview(raw), source="test", whole=True)
    assert frame == (kind, epoch, position, partitionlet, first, last, -1, payload)


def data_frame(batch: memoryview, *, partitionlet: int = 7, first: int = 10, last: int = 12) -> bytes:
    """A data frame at position 1000."""
    return batch_frame_header(HEADER_BYTES + len(batch), 3, 1000, partitionlet, first, last, 99, batch) + bytes(batch)


@pytest.mark.parametrize("beyond", [0, 1, 55, 56, 1000, GAP_BYTES])
def test_a_long_gap_is_several_frames_each_with_room_for_a_header(beyond: int) -> None:
    position, frames = 1000, b""
    for header, behind in gap_frames(position, position + GAP_BYTES + beyond, most=1 << 60):
        frames += header
        assert HEADER_BYTES <= behind - position <= GAP_BYTES
        position = behind
    assert position == 1000 + GAP_BYTES + beyond
    assert len(frames) // HEADER_BYTES == (2 if beyond else 1)
    assert check_frames(memoryview(frames), 1000) == position
    assert len(list(gap_frames(0, 10 * GAP_BYTES, most=1))) == 1


def test_every_flipped_bit_of_a_data_frame_shows(make_batch: MakeBatch) -> None:
    raw = bytearray(data_frame(make_batch(10, records=3, size=30)))
    (frame,) = frames_in(memoryview(raw), source="test", whole=True)
    assert frame[:7] == (FrameType.DATA, 3, 1000, 7, 10, 12, 99)
    for bit in range(len(raw) * 8):
        raw[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptLog):
            list(frames_in(memoryview(raw), source="test", whole=True))
        raw[bit // 8] ^= 1 << bit % 8


def test_every_flipped_bit_of_raw_frames_shows_to_who_appends_them(make_batch: MakeBatch) -> None:
    """A follower acknowledges the frames that it appends."""
    raw = bytearray(data_frame(make_batch(10, records=3, size=30)))
    assert check_frames(memoryview(raw), 1000) == 1000 + len(raw)
    for bit in range(len(raw) * 8):
        raw[bit // 8] ^= 1 << bit % 8
        with pytest.raises((CorruptLog, NewerFormat)):
            check_frames(memoryview(raw), 1000)
        raw[bit // 8] ^= 1 << bit % 8


def test_every_flipped_bit_of_a_header_shows_to_a_reader_of_batches(make_batch: MakeBatch) -> None:
    raw = bytearray(data_frame(make_batch(10, records=3, size=30)))
    for bit in range((HEADER_BYTES + 21) * 8):
        raw[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptLog):
            take_batches(memoryview(raw), [], partitionlet=7, offset=0, limit=1000, max_bytes=1000, source="test")
        raw[bit // 8] ^= 1 << bit % 8


def test_batches_are_taken_from_the_one_that_holds_the_offset_below_the_limit_within_the_bytes(
    make_batch: MakeBatch,
) -> None:
    made = [make_batch(first, records=10, size=39) for first in range(0, 100, 10)]  # 100 bytes each
    raw = memoryview(b"".join(data_frame(batch, first=row * 10, last=row * 10 + 9) for row, batch in enumerate(made)))

    def take(offset: int, limit: int, max_bytes: int) -> tuple[list[int], int]:
        batches: list[memoryview] = []
        left = take_batches(
            raw, batches, partitionlet=7, offset=offset, limit=limit, max_bytes=max_bytes, source="test"
        )
        return [made.index(batch) for batch in batches], left

    assert take(15, 1000, 300) == ([1, 2, 3], -1)
    assert take(15, 40, 1000) == ([1, 2, 3], -1)
    assert take(15, 39, 1000) == ([1, 2], -1)
    assert take(0, 1000, 1000) == (list(range(10)), 0)
    assert take(90, 1000, 1) == ([9], -99)
    assert take(100, 1000, 1000) == ([], 1000)


def test_bytes_that_are_no_frames_are_corruption() -> None:
    for raw in (b"\0" * 200, b"x" * 55, b"\xff" * 500):
        with pytest.raises(CorruptLog, match="test, 0 bytes on"):
            list(frames_in(memoryview(raw), source="test"))
