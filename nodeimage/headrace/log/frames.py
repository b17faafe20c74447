"""The frame: one entry of a container's log, as bytes.

    offset  type  field
         0  u32   crc            CRC-32C of what is listed below
         4  u32   length         of the whole frame: this header and the payload
         8  u8    type           FrameType
         9  3x                   zero
        12  u32   epoch          of the container, when the frame was appended
        16  u64   position       of this frame's first byte in the container's log
        24  i64   partitionlet
        32  i64   first          offset; -1 where a control frame has none
        40  i64   last           offset, inclusive
        48  i64   max_timestamp  milliseconds since 1970; -1 where there is none
        56        payload

All numbers are little-endian. The CRC covers bytes 4 to 56 and, of a control frame, the whole payload; of a data
frame the first 21 bytes of the batch, which are those that the batch's own CRC-32C (big-endian at byte 17) leaves
out. So each byte of a frame is covered exactly once, and appending never sums a batch a second time.

A gap frame stands where frames were given back before this replica got them. Its length covers all of them, its CRC
the header alone. Raw frames, as they go from replica to replica, hold its header only; on disk the rest of it is
unwritten.

A data frame's payload is one Kafka record batch v2. Known of it here: the CRC at byte 17 covers byte 21 on;
producerId, producerEpoch and baseSequence stand at byte 43.

Knows nothing of files.
"""

import struct
from builtins import memoryview  # mypyc looks for a field's type among the module's own names
from collections.abc import Iterator
from enum import IntEnum
from typing import Final, NamedTuple

from crc32c import crc32c

from headrace.base.errors import CorruptLog, NewerFormat
from headrace.native import codecs

HEADER: Final = struct.Struct("<IIB3xIQqqqq")
_REST: Final = struct.Struct("<IB3xIQqqqq")
_START: Final = struct.Struct("<IIB")
_BATCH_FRAME: Final = struct.Struct("<IIB15xq8xq8x")
"""crc, length, type, partitionlet, last: what a read of batches looks at."""
_RAW_FRAME: Final = struct.Struct("<IIB7xQ")
"""crc, length, type, position: what a check of raw frames looks at."""
_CRC: Final = struct.Struct("<I")
HEADER_BYTES: Final = HEADER.size
assert HEADER_BYTES == 56
MOST_BYTES: Final = 80 << 20
"""Of a frame: it goes to followers as a whole, in one message."""
MOST_PAYLOAD_BYTES: Final = MOST_BYTES - HEADER_BYTES
"""Of a batch or a command. Who appends has seen to it: a longer one could never be replicated."""

BATCH_HEAD_BYTES: Final = 21
"""The part of a batch that its own CRC leaves out: base offset, length, leader epoch, magic, and the CRC itself."""
BATCH_MIN_BYTES: Final = 61
_DATA_LEAST: Final = HEADER_BYTES + BATCH_MIN_BYTES
_SUMMED_END: Final = HEADER_BYTES + BATCH_HEAD_BYTES
_BATCH_CRC: Final = struct.Struct(">I")
_BATCH_CRC_AT: Final = 17
BATCH_PRODUCER: Final = struct.Struct(">qHI")
"""producerId, producerEpoch, baseSequence; the last two read as unsigned, so that they pack into one word."""
BATCH_PRODUCER_AT: Final = 43


class FrameType(IntEnum):
    """What a frame is. The payload of all but DATA is opaque here."""

    DATA = 1
    OPEN = 2
    SEAL = 3
    PRODUCERS = 4
    MARKER = 5
    COMMAND = 6
    CHECKPOINT = 7
    GAP = 8


GAP_BYTES: Final = 8 << 20
"""A gap frame is at most this long; a longer gap is several."""
_TYPES: Final = frozenset(int(kind) for kind in FrameType)
_DATA: Final = int(FrameType.DATA)
_GAP: Final = int(FrameType.GAP)
_native = codecs


class Frame(NamedTuple):
    """One frame as read back. `payload` is a record batch, or a control frame's opaque bytes."""

    type: int
    epoch: int
    position: int
    partitionlet: int
    first: int
    last: int
    max_timestamp: int
    payload: memoryview


def batch_frame_header(
    length: int,
    epoch: int,
    position: int,
    partitionlet: int,
    first: int,
    last: int,
    max_timestamp: int,
    batch: memoryview,
) -> bytes:
    """The header of a data frame (positional arguments: the hottest call of the log)."""
    if _native is not None:
        return _native.batch_frame_header(length, epoch, position, partitionlet, first, last, max_timestamp, batch)
    rest = _REST.pack(length, _DATA, epoch, position, partitionlet, first, last, max_timestamp)
    return _CRC.pack(crc32c(batch[:BATCH_HEAD_BYTES], crc32c(rest))) + rest


def control_frame(
    *, type: int, epoch: int, position: int, partitionlet: int, first: int, last: int, payload: bytes
) -> bytes:
    """A whole control frame."""
    rest = _REST.pack(HEADER_BYTES + len(payload), type, epoch, position, partitionlet, first, last, -1)
    return b"".join((_CRC.pack(crc32c(payload, crc32c(rest))), rest, payload))


def gap_frames(position: int, end: int, *, most: int) -> Iterator[tuple[bytes, int]]:
    """Headers of gap frames from `position` towards `end`, and the position behind each; at least one, and no more
    than cover about `most` bytes."""
    until = position + most
    while position < end:
        length = min(GAP_BYTES, end - position)
        if 0 < end - position - length < HEADER_BYTES:
            length -= HEADER_BYTES  # what is left must hold a header too
        rest = _REST.pack(length, _GAP, 0, position, 0, -1, -1, -1)
        position += length
        yield _CRC.pack(crc32c(rest)) + rest, position
        if position >= until:
            return


def frame_fault(view: memoryview, at: int, *, whole: bool) -> str | None:
    """What is wrong with the frame that starts at `at` in `view`, or None.

    The caller has seen to it that `view` holds the whole frame (of a gap, its header). `whole`: also the batch's own
    CRC (recovery, regroup, scrub). Raises `NewerFormat` for a frame of a type that this version does not know, and that
    is sound as a control frame is: every later type has to be.
    """
    crc, length, type = _START.unpack_from(view, at)
    if type != _DATA:
        if type not in _TYPES:
            if length >= HEADER_BYTES and crc32c(view[at + 4 : at + length]) == crc:
                raise newer_frame(type)
            return f"unknown frame type {type}"
        if type == _GAP:
            length = HEADER_BYTES
        return None if crc32c(view[at + 4 : at + length]) == crc else "the frame's checksum does not match"
    if length < HEADER_BYTES + BATCH_MIN_BYTES:
        return f"a data frame of {length} bytes"
    if crc32c(view[at + 4 : at + _SUMMED_END]) != crc:
        return "the frame's checksum does not match"
    if whole:
        (batch_crc,) = _BATCH_CRC.unpack_from(view, at + HEADER_BYTES + _BATCH_CRC_AT)
        if crc32c(view[at + _SUMMED_END : at + length]) != batch_crc:
            return "the batch's checksum does not match"
    return None


def newer_frame(type: int) -> NewerFormat:
    """The error for a sound frame of a type that this version does not know."""
    return NewerFormat(
        f"a frame of type {type} is of a newer version than this one; use a newer headrace: nothing has been changed"
    )


def summed_bytes(type: int, length: int) -> int:
    """How much of a frame of that type and length, from its start, a check must have: what its own CRC covers."""
    if type == _DATA:
        return min(length, _SUMMED_END)
    return HEADER_BYTES if type == _GAP else length


def frame_at(view: memoryview, at: int) -> Frame:
    """The frame at `at`, unchecked."""
    _, length, type, epoch, position, partitionlet, first, last, max_timestamp = HEADER.unpack_from(view, at)
    return Frame(
        type,
        epoch,
        position,
        partitionlet,
        first,
        last,
        max_timestamp,
        view[at + HEADER_BYTES : at + length],
    )


def check_frames(frames: memoryview, position: int) -> int:
    """Checks the raw frames that fill `frames`, which follow each other from `position` on; the position behind them.

    Raises `CorruptLog` if one does not, or one is damaged, its batch included: what is appended counts as a copy.
    `NewerFormat` as `frame_fault`. A hot call: it keeps nothing of what it unpacks, since a list of some thousand
    headers costs as much as to unpack them again.
    """
    if _native is not None and (end := _native.check_frames(frames, position)) >= 0:
        return end
    at, size = 0, len(frames)
    unpack = _RAW_FRAME.unpack_from
    while at + HEADER_BYTES <= size:
        crc, length, type, where = unpack(frames, at)
        least = HEADER_BYTES
        if type == _DATA:
            stop, summed, least = at + length, at + _SUMMED_END, _DATA_LEAST
        elif type == _GAP:
            stop = summed = at + HEADER_BYTES
        else:
            stop = summed = at + length
        fault = ""
        if length < least or stop > size or where != position or crc32c(frames[at + 4 : summed]) != crc:
            fault = f"a frame of type {type}, {length} bytes, position {where}, that is damaged or out of place"
        elif type == _DATA:
            (batch_crc,) = _BATCH_CRC.unpack_from(frames, at + HEADER_BYTES + _BATCH_CRC_AT)
            if crc32c(frames[summed:stop]) != batch_crc:
                fault = "a batch whose checksum does not match"
        elif type not in _TYPES:
            raise newer_frame(type)
        if fault:
            raise CorruptLog(f"raw frames for position {position}, {at} bytes on: {fault}. Fetch them again.")
        position += length
        at = stop
    if at < size:
        raise CorruptLog(f"raw frames for position {position}: they end within a frame's header. Fetch them again.")
    return position


def take_batches(
    view: memoryview,
    batches: list[memoryview],
    *,
    partitionlet: int,
    offset: int,
    limit: int,
    max_bytes: int,
    source: str,
) -> int:
    """Adds to `batches` those of the data frames that fill `view` that hold `offset` or lie behind it, end below
    `limit`, and together stay within `max_bytes` (were `batches` empty, the first may be longer).

    Returns the bytes of `max_bytes` that are left; -1 when the end is reached. Raises `CorruptLog`. One tight loop,
    because a place may hold hundreds of small frames.
    """
    if _native is not None:
        left = _native.take_batches(view, batches, partitionlet, offset, limit, max_bytes)
        if left is not None:
            return left
    at, end = 0, len(view)
    unpack = _BATCH_FRAME.unpack_from
    while at < end:
        if at + HEADER_BYTES + BATCH_MIN_BYTES > end:
            raise CorruptLog(f"{source}, {at} bytes on: no frame where one must be. Refetch or restore this chunk.")
        crc, length, type, owner, last = unpack(view, at)
        stop = at + length
        if (
            crc32c(view[at + 4 : at + _SUMMED_END]) != crc
            or type != _DATA
            or owner != partitionlet
            or stop > end
            or length <= HEADER_BYTES
        ):
            fault = f"a frame of type {type}, partitionlet {owner}, that is not what the index says, or damaged"
            raise CorruptLog(f"{source}, {at} bytes on: {fault}. Refetch or restore this chunk.")
        if last >= offset:
            max_bytes -= length - HEADER_BYTES
            if last >= limit or (max_bytes < 0 and batches):
                return -1
            (batch_crc,) = _BATCH_CRC.unpack_from(view, at + HEADER_BYTES + _BATCH_CRC_AT)
            if crc32c(view[at + _SUMMED_END : stop]) != batch_crc:  # many clients do not check it
                raise CorruptLog(f"{source}, {at} bytes on: a damaged batch. Refetch or restore this chunk.")
            batches.append(view[at + HEADER_BYTES : stop])
        at = stop
    return max_bytes


def frames_in(view: memoryview, *, source: str, whole: bool = False) -> Iterator[Frame]:
    """The frames that fill `view` from end to end, each checked.

    Raises `CorruptLog`, which names `source` and the place within it.
    """
    at, end = 0, len(view)
    while at < end:
        length = HEADER.unpack_from(view, at)[1] if at + HEADER_BYTES <= end else 0
        if length < HEADER_BYTES or at + length > end:
            raise CorruptLog(f"{source}, {at} bytes on: no frame where one must be. Refetch or restore this chunk.")
        if fault := frame_fault(view, at, whole=whole):
            raise CorruptLog(f"{source}, {at} bytes on: {fault}. Refetch or restore this chunk.")
        yield frame_at(view, at)
        at += length
