"""Kafka record batches (version 2) to Arrow columns, without a Python object per record.

Interprets the record bytes of a Fetch response: checksums, compression, control batches, aborted transactions, the
records' fields. Knows nothing about sockets, retries or Spark. The schema is in encode.py.

Only the records' borders are found one by one (a record's length says where the next one starts); all fields are then
read at once with numpy, over all batches of a response, so many small batches cost little more than a large one. Arrow
takes keys and values out of the response's buffer: as one binary array whose elements are, in turn, the bytes before a
key, the key, the bytes before the value, and the value; `take` picks the keys, and then the values. This is the only
copy, and the result holds no reference to the response.
"""

import itertools
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from crc32c import crc32c

from headrace.base.errors import HeadraceError
from headrace.wire.batch import APPEND_TIME_BIT, COMPRESSION_BITS, CONTROL_BIT, TRANSACTIONAL_BIT
from headrace.wire.compression import decompress
from headrace_spark.encode import CRC_START, HEADER

FIRST_LEAP, WALK = 64, 512
"""FIRST_LEAP: records whose sizes are first compared at once. WALK: records that are walked one by one otherwise."""
NO_TIME = -(1 << 63)
LENGTH_END = 12
"""Where a batch's length field ends; the length counts the bytes from there on."""

Int64s = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


class CorruptRecords(Exception):
    """Bytes that are not valid record batches."""


@dataclass(frozen=True, slots=True)
class AbortedTransaction:
    """An aborted transaction of a producer; its data batches start at `first_offset`."""

    producer_id: int
    first_offset: int


@dataclass(frozen=True, slots=True)
class Records:
    """Records of one partition as columns, each of shape (rows,)."""

    key: pa.Array
    value: pa.Array
    offset: Int64s
    timestamp: Int64s
    """Milliseconds since 1970; NO_TIME if the batch's value exceeds 64 bits."""
    timestamp_type: npt.NDArray[np.int32]
    """0 = set by the producer, 1 = by the broker on append."""
    headers: pa.Array | None


@dataclass(frozen=True, slots=True)
class _Batch:
    """The fields of a batch that its records need, and its records, uncompressed."""

    base_offset: int
    base_timestamp: int
    max_timestamp: int
    append_time: bool
    count: int
    records: memoryview | bytes
    place: int
    """Where the records start in the response; -1 if they were compressed."""


def decode(
    answer: memoryview, *, first: int, end: int, aborted: Sequence[AbortedTransaction] = (), with_headers: bool = False
) -> tuple[Records | None, int]:
    """Return (the records with first <= offset < end, the offset to read next).

    `answer` holds the record bytes of a Fetch response: whole batches, possibly with a truncated one at the end. The
    offset to read next is `first` if there is no whole batch. Raises CorruptRecords.
    """
    batches, following = _visible_batches(answer, first=first, end=end, aborted=aborted)
    if not batches:
        return None, following
    content, places = _record_buffer(answer, batches)
    starts = _record_starts(content, batches, places)
    records = _columns(content, starts, batches, with_headers=with_headers)
    keep = (records.offset >= first) & (records.offset < end)
    if not keep.all():
        records = _filtered(records, keep)
    return (records if len(records.offset) else None), following


def whole_batches(answer: memoryview) -> Iterable[memoryview]:
    """Yield each whole batch of a Fetch response. Raises CorruptRecords for a batch that is not of version 2."""
    place = 0
    while place + HEADER.size <= len(answer):
        (length,) = struct.unpack_from(">i", answer, place + 8)
        if length < HEADER.size - LENGTH_END:
            raise CorruptRecords(f"a record batch says that it is {length} bytes long")
        if place + LENGTH_END + length > len(answer):
            return
        if answer[place + 16] != 2:
            raise CorruptRecords(f"a record batch of version {answer[place + 16]}; only version 2 can be read")
        yield answer[place : place + LENGTH_END + length]
        place += LENGTH_END + length


def _visible_batches(
    answer: memoryview, *, first: int, end: int, aborted: Sequence[AbortedTransaction]
) -> tuple[list[_Batch], int]:
    """Return (the batches of committed records that overlap [first, end), the offset to read next)."""
    waiting = sorted(aborted, key=lambda one: one.first_offset, reverse=True)
    dropped: set[int] = set()
    batches, following, after = list[_Batch](), first, 0
    for view in whole_batches(answer):
        place = after
        after += len(view)
        base, _, _, _, crc, attributes, delta, base_time, max_time, producer, _, _, count = HEADER.unpack_from(view)
        if base >= end:
            break
        if crc32c(view[CRC_START:]) != crc & 0xFFFFFFFF:  # before `delta` is trusted below
            raise CorruptRecords(f"the record batch at offset {base} fails its checksum")
        if base + delta < first:
            continue
        following = base + delta + 1
        while waiting and waiting[-1].first_offset <= base + delta:
            dropped.add(waiting.pop().producer_id)
        if attributes & CONTROL_BIT:
            dropped.discard(producer)
            continue
        if count == 0 or (attributes & TRANSACTIONAL_BIT and producer in dropped):
            continue
        codec = attributes & COMPRESSION_BITS
        records = _uncompressed(view[HEADER.size :], codec)
        at = -1 if codec else place + HEADER.size
        batches.append(_Batch(base, base_time, max_time, bool(attributes & APPEND_TIME_BIT), count, records, at))
    return batches, following


def _uncompressed(records: memoryview, codec: int) -> bytes | memoryview:
    if codec == 0:
        return records
    try:
        return decompress(codec, records)
    except HeadraceError as error:
        raise CorruptRecords(f"records cannot be decompressed: {error}") from error


def _record_buffer(answer: memoryview, batches: Sequence[_Batch]) -> tuple[memoryview | bytes, list[int]]:
    """Return (one buffer with all batches' records, each batch's start): the response itself if none is compressed."""
    if all(batch.place >= 0 for batch in batches):
        return answer, [batch.place for batch in batches]
    sizes = (len(batch.records) for batch in batches)
    return b"".join(batch.records for batch in batches), [0, *itertools.accumulate(sizes)][:-1]


def _record_starts(content: memoryview | bytes, batches: Sequence[_Batch], places: Sequence[int]) -> Int64s:
    """Return where the fields of each record start (after its length), shape (records,).

    A record's length gives the start of the next one, so the records are walked. Records of equal size are skipped many
    at a time: if the bytes of this length recur every `step` bytes, each of them is where the record before it ends.
    """
    cells = np.frombuffer(content, np.uint8)
    found: list[Int64s] = []
    try:
        for batch, start in zip(batches, places, strict=True):
            place, end, left, window = start, start + len(batch.records), batch.count, FIRST_LEAP
            while left:
                run = _equal_run(content, cells, place, min(left, window)) if left >= FIRST_LEAP else None
                if run is None or len(run.starts) < FIRST_LEAP // 2:
                    starts, place = _walk(content, place, min(left, WALK))
                    window = FIRST_LEAP
                else:
                    starts, place = run
                    window = 4 * window if len(starts) == window else FIRST_LEAP
                found.append(starts)
                left -= len(starts)
            if place != end:
                raise CorruptRecords(f"the records of the batch at offset {batch.base_offset} do not fill it")
    except IndexError:
        raise CorruptRecords("a record reaches beyond its batch") from None
    return np.concatenate(found)


class _Run(NamedTuple):
    starts: Int64s
    end: int


def _equal_run(content: memoryview | bytes, cells: Bytes, place: int, most: int) -> _Run | None:
    """Return the records from `place` on that have equal sizes, at most `most`; None if they are over 8 KiB."""
    first, second = content[place], content[place + 1]
    if first < 0x80:
        width, step = 1, 1 + (first >> 1)
    elif second < 0x80:
        width, step = 2, 2 + ((first & 0x7F | second << 7) >> 1)
    else:
        return None
    same = cells[place : place + most * step : step] == first
    if width == 2:
        next_to = cells[place + 1 : place + most * step : step] == second
        same = same[: len(next_to)] & next_to
    count = len(same) if same.all() else int(same.argmin())
    return _Run(np.arange(count, dtype=np.int64) * step + (place + width), place + count * step)


def _walk(content: memoryview | bytes, place: int, count: int) -> tuple[Int64s, int]:
    """Return (the starts of the fields of the next `count` records, the end of the last). Raises IndexError at the
    buffer's end.
    """
    starts: list[int] = []
    add = starts.append
    for _ in range(count):
        size = content[place]
        place += 1
        if size >= 0x80:
            size &= 0x7F
            shift = 7
            while (byte := content[place]) >= 0x80:
                size |= (byte & 0x7F) << shift
                shift += 7
                place += 1
            size |= byte << shift
            place += 1
        add(place)
        place += size >> 1
    return np.array(starts, np.int64), place


def _columns(content: memoryview | bytes, starts: Int64s, batches: Sequence[_Batch], *, with_headers: bool) -> Records:
    cells = np.frombuffer(content, np.uint8)
    time_delta, place = _read_varints(cells, starts + 1)
    offset_delta, place = _read_varints(cells, place)
    key_size, key_start = _read_varints(cells, place)
    key_end = key_start + np.maximum(key_size, 0)
    if len(key_end) and key_end.max() > len(content):
        raise CorruptRecords("a record's key reaches beyond its batch")
    value_size, value_start = _read_varints(cells, key_end)
    value_end = value_start + np.maximum(value_size, 0)
    if len(value_end) and value_end.max() > len(content):
        raise CorruptRecords("a record's value reaches beyond its batch")

    def of_batch(values: Iterable[int]) -> Int64s:
        return np.repeat(np.fromiter(values, np.int64, len(batches)), counts)

    counts = np.fromiter((batch.count for batch in batches), np.int64, len(batches))
    append_time = of_batch(batch.append_time for batch in batches)
    base_time = of_batch(batch.base_timestamp for batch in batches)
    timestamp = base_time + time_delta
    wrapped = ((base_time ^ timestamp) & (time_delta ^ timestamp)) < 0
    if wrapped.any():
        timestamp = np.where(wrapped, NO_TIME, timestamp)
    if append_time.any():
        timestamp = np.where(append_time, of_batch(batch.max_timestamp for batch in batches), timestamp)
    key, value = _cut(content, (key_start, key_end, key_size < 0), (value_start, value_end, value_size < 0))
    return Records(
        key=key,
        value=value,
        offset=of_batch(batch.base_offset for batch in batches) + offset_delta,
        timestamp=timestamp,
        timestamp_type=append_time.astype(np.int32),
        headers=_headers(content, cells, value_end) if with_headers else None,
    )


def _read_varints(cells: Bytes, places: Int64s) -> tuple[Int64s, Int64s]:
    """Return (the zigzag varint at each place, the place after it), shape (records,) each. Raises CorruptRecords."""
    byte = cells[np.minimum(places, len(cells) - 1)].astype(np.int64)
    value = byte & 0x7F
    after = places + 1
    rows = np.flatnonzero(byte & 0x80)
    shift = 7
    while len(rows):
        if shift > 63:
            raise CorruptRecords("a number in a record is longer than 10 bytes")
        byte = cells[np.minimum(after[rows], len(cells) - 1)].astype(np.int64)
        value[rows] |= (byte & 0x7F) << shift
        after[rows] += 1
        rows = rows[(byte & 0x80) != 0]
        shift += 7
    unsigned = value.view(np.uint64)
    return (unsigned >> np.uint64(1)).view(np.int64) ^ -(value & 1), after


Field = tuple[Int64s, Int64s, npt.NDArray[np.bool_]]
"""(start, end, is null) of one field of every record, shape (records,) each."""


def _cut(content: memoryview | bytes, *fields: Field) -> list[pa.Array]:
    """Return one binary array per field; in `content` a record's fields follow each other, and so do the records."""
    records = len(fields[0][0])
    width = 2 * len(fields)
    borders = np.empty(records * width + 1, np.int64)
    borders[-1] = fields[-1][1][-1] if records else 0
    inner = borders[:-1].reshape(records, width)
    inner[0:1, 0] = 0
    inner[1:, 0] = fields[-1][1][:-1]
    for number, (start, end, _) in enumerate(fields):
        inner[:, 2 * number + 1] = start
        if number + 1 < len(fields):
            inner[:, 2 * number + 2] = end
    if len(content) < 2**31:
        kind, borders = pa.binary(), borders.astype(np.int32)
    else:
        kind = pa.large_binary()
    joined = pa.Array.from_buffers(kind, len(borders) - 1, [None, pa.py_buffer(borders), pa.py_buffer(content)])
    columns = []
    for number, (_, _, null) in enumerate(fields):
        if null.all():
            columns.append(pa.nulls(records, pa.binary()))
            continue
        index = np.arange(records, dtype=np.int64) * width + (2 * number + 1)
        columns.append(joined.take(pa.array(index, mask=null if null.any() else None)).cast(pa.binary()))
    return columns


def _headers(content: memoryview | bytes, cells: Bytes, places: Int64s) -> pa.Array:
    """Return list<struct<key, value>> of every record, null if a record has none, like Spark's Kafka source."""
    counts, places = _read_varints(cells, places)
    rounds: list[tuple[Int64s, Int64s, Int64s, Int64s, Int64s]] = []
    rows = np.flatnonzero(counts > 0)
    place = places[rows]
    while len(rows):
        key_size, key_start = _read_varints(cells, place)
        value_size, value_start = _read_varints(cells, key_start + np.maximum(key_size, 0))
        rounds.append((rows, key_start, key_size, value_start, value_size))
        place = value_start + np.maximum(value_size, 0)
        if key_size.min() < 0 or place.max() > len(content):
            raise CorruptRecords("a record's headers reach beyond its batch")
        more = counts[rows] > len(rounds)
        rows, place = rows[more], place[more]
    offsets = pa.array(np.concatenate([np.zeros(1, np.int32), np.maximum(counts, 0).cumsum().astype(np.int32)]))
    if rounds:
        number = np.concatenate([np.full(len(found[0]), turn) for turn, found in enumerate(rounds)])
        row, key_start, key_size, value_start, value_size = (np.concatenate(part) for part in zip(*rounds, strict=True))
        order = np.lexsort((number, row))
        keys, values = _cut(
            content,
            (key_start[order], (key_start + key_size)[order], np.zeros(len(order), bool)),
            (value_start[order], (value_start + np.maximum(value_size, 0))[order], value_size[order] < 0),
        )
    else:
        keys, values = pa.array([], pa.binary()), pa.array([], pa.binary())
    pairs = pa.StructArray.from_arrays([_text(keys), values], ["key", "value"])
    return pa.ListArray.from_arrays(offsets, pairs, mask=pa.array(counts <= 0))


def _text(names: pa.Array) -> pa.Array:
    """Return names as text; bytes that are not UTF-8 are replaced (U+FFFD), as in Kafka's own client."""
    try:
        return names.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([name.decode("utf-8", "replace") for name in names.to_pylist()], pa.string())


def _filtered(records: Records, keep: npt.NDArray[np.bool_]) -> Records:
    mask = pa.array(keep)
    return Records(
        key=records.key.filter(mask),
        value=records.value.filter(mask),
        offset=records.offset[keep],
        timestamp=records.timestamp[keep],
        timestamp_type=records.timestamp_type[keep],
        headers=None if records.headers is None else records.headers.filter(mask),
    )
