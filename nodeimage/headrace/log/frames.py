"""The frame: one entry of a container's log, as bytes.

    offset  type  field
         0  u32   crc            CRC-32C of the bytes named below
         4  u32   length         of the whole frame: this header and the payload
         8  u8    type           FrameType
         9  3x                   zero
        12  u32   epoch          of the container, when the frame was appended
        16  u64   position       of this frame's first byte in the container's log
        24  i64   partitionlet
        32  i64   first          offset; -1 if a control frame has none
        40  i64   last           offset, inclusive
        48  i64   max_timestamp  milliseconds since 1970; -1 if there is none
        56        payload

All numbers are little-endian. The CRC covers bytes 4 to 56 and, of a control frame, the whole payload; of a data
frame, the first 21 bytes of the batch, which the batch's own CRC-32C (big-endian at byte 17) does not cover. So each
byte of a frame is covered exactly once, and an append never computes the checksum of a whole batch a second time.

A gap frame replaces frames whose space was freed before this replica received them. Its length covers all of them, its
CRC only its header. When raw frames are sent from replica to replica, they include only the gap frame's header; on disk
the rest of the gap frame is unwritten.

A data frame's payload is one Kafka record batch v2. This module relies on two facts about it: the CRC at byte 17 covers
all bytes from 21 on, and producerId, producerEpoch and baseSequence start at byte 43.

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
"""crc, length, type, partitionlet, last: the header fields that a read of batches needs."""
_RAW_FRAME: Final = struct.Struct("<IIB7xQ")
"""crc, length, type, position: the header fields that a check of raw frames needs."""
_CRC: Final = struct.Struct("<I")
HEADER_BYTES: Final = HEADER.size
assert HEADER_BYTES == 56
MAX_BYTES: Final = 80 << 20
"""The greatest length of a frame, since it is sent to followers as a whole, in one message."""
MAX_PAYLOAD_BYTES: Final = MAX_BYTES - HEADER_BYTES
"""The greatest length of a batch or a command. Callers of append must respect it: a longer one could never be
replicated."""

BATCH_HEAD_BYTES: Final = 21
"""The start of a batch, which its own CRC does not cover: base offset, length, leader epoch, magic, and the CRC."""
BATCH_MIN_BYTES: Final = 61
_MIN_DATA: Final = HEADER_BYTES + BATCH_MIN_BYTES
_SUMMED_END: Final = HEADER_BYTES + BATCH_HEAD_BYTES
_BATCH_CRC: Final = struct.Struct(">I")
_BATCH_CRC_AT: Final = 17
BATCH_PRODUCER: Final = struct.Struct(">qHI")
"""producerId, producerEpoch, baseSequence of a batch; the last two as unsigned numbers, to be packed into one word."""
BATCH_PRODUCER_AT: Final = 43


class FrameType(IntEnum):
    """The type of a frame. The log does not interpret the payload of any type but DATA."""

    DATA = 1
    OPEN = 2
    SEAL = 3
    PRODUCERS = 4
    MARKER = 5
    COMMAND = 6
    CHECKPOINT = 7
    GAP = 8


GAP_BYTES: Final = 8 << 20
"""The greatest length of a gap frame; a longer gap consists of several frames."""
_TYPES: Final = frozenset(int(kind) for kind in FrameType)
_DATA: Final = int(FrameType.DATA)
_GAP: Final = int(FrameType.GAP)
_native = codecs


class Frame(NamedTuple):
    """One decoded frame. `payload` is a record batch, or a control frame's opaque bytes."""

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
    """Headers of gap frames from `position` towards `end`, and the position after each frame; at least one frame, and
    about `most` bytes of gap in total."""
    until = position + most
    while position < end:
        length = min(GAP_BYTES, end - position)
        if 0 < end - position - length < HEADER_BYTES:
            length -= HEADER_BYTES  # the rest must have room for a header
        rest = _REST.pack(length, _GAP, 0, position, 0, -1, -1, -1)
        position += length
        yield _CRC.pack(crc32c(rest)) + rest, position
        if position >= until:
            return


def frame_fault(view: memoryview, at: int, *, whole: bool) -> str | None:
    """A description of what is wrong with the frame that starts at `at` in `view`, or None.

    `view` must contain the whole frame (of a gap frame, the header). `whole`: check the batch's own CRC too (recovery,
    regroup, scrub). Raises `NewerFormat` for a frame of an unknown type whose checksum, computed as for a control
    frame, matches: a future type must have that checksum too.
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
    """The place, in a frame of this type and length, after the bytes that the CRC in its header covers."""
    if type == _DATA:
        return min(length, _SUMMED_END)
    return HEADER_BYTES if type == _GAP else length


def frame_at(view: memoryview, at: int) -> Frame:
    """The frame at `at`, without any check."""
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
    """Checks the raw frames that fill `frames`, contiguous from `position` on; returns the position after them.

    Raises `CorruptLog` if a frame is not contiguous, or it or its batch is damaged, since appended frames count as a
    replica's copy; `NewerFormat` as `frame_fault`. A hot call: it does not keep what it unpacks, as a list of a
    thousand headers costs as much as unpacking them again.
    """
    if _native is not None and (end := _native.check_frames(frames, position)) >= 0:
        return end
    at, size = 0, len(frames)
    unpack = _RAW_FRAME.unpack_from
    while at + HEADER_BYTES <= size:
        crc, length, type, where = unpack(frames, at)
        least = HEADER_BYTES
        if type == _DATA:
            stop, summed, least = at + length, at + _SUMMED_END, _MIN_DATA
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
    """Appends to `batches` the batches of the data frames that fill `view`: those that contain `offset` or follow it,
    end below `limit`, and together stay within `max_bytes` (the first may be longer if `batches` is empty).

    Returns the bytes that are left of `max_bytes`; a negative number if a batch exceeds `max_bytes` or reaches `limit`.
    Raises `CorruptLog`. One tight loop, because a place may hold hundreds of small frames.
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
            if crc32c(view[at + _SUMMED_END : stop]) != batch_crc:  # many clients do not check this CRC
                raise CorruptLog(f"{source}, {at} bytes on: a damaged batch. Refetch or restore this chunk.")
            batches.append(view[at + HEADER_BYTES : stop])
        at = stop
    return max_bytes


def frames_in(view: memoryview, *, source: str, whole: bool = False) -> Iterator[Frame]:
    """The frames that fill `view` completely, each checked.

    Raises `CorruptLog`, whose message names `source` and the place within it.
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
