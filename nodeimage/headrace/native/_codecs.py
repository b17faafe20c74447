"""Codecs of requests and records, compiled by Cython (.ci/build_native.py); this module never runs as Python.

Each function handles valid, usual input like its Python twin, the function that calls it. For any other input, invalid
or rare, it returns None or how far it came, and the twin continues. So each error is raised in only one place, and both
accept the same input. `native.Codecs` is the interface.

1. No byte is read or written before its position has been compared with the end of its buffer. Positions stay between 0
   and the buffer's size; a length is compared with the bytes that are left (`length > end - at`), never added first.
2. Numbers that were read have 64 bits. A sum that could overflow is either checked, or is meant to wrap (the times of
   records in a check, as in Java) and is then computed with unsigned numbers.
3. A buffer does not change meanwhile: the interpreter lock is held, except during long walks over records, to whose
   buffers nothing writes. A length is read only once, so the value that was compared is the value that is used.
"""

import cython

if not cython.compiled:
    raise ImportError("machine code only")

from crc32c import crc32c
from cython.cimports.cpython.buffer import PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cython.cimports.cpython.bytes import PyBytes_AsString, PyBytes_FromStringAndSize
from cython.cimports.cpython.ref import Py_INCREF
from cython.cimports.cpython.tuple import PyTuple_GetItem, PyTuple_SetItem
from cython.cimports.cpython.unicode import PyUnicode_DecodeUTF8
from cython.cimports.libc.string import memcpy

Bytes = cython.typedef(cython.p_const_uchar)
Int = cython.typedef(cython.longlong)
Word = cython.typedef(cython.ulonglong)

BATCH_HEADER = cython.declare(cython.longlong, 61)
LENGTH_PREFIX = cython.declare(cython.longlong, 12)
BATCH_HEAD = cython.declare(cython.longlong, 21)
"""The bytes at the start of a batch that its own CRC does not cover."""
FRAME_HEADER = cython.declare(cython.longlong, 56)
SUMMED_END = cython.declare(cython.longlong, 77)
"""The end of the bytes that a data frame's CRC covers."""
MAX_SUMMED = cython.declare(cython.longlong, 768 if sums_here() else 0)
"""The most bytes whose checksum is computed here; the package is faster for more."""
MAX_HELD = cython.declare(cython.longlong, 256 << 10)
"""The most bytes of records that are walked with the interpreter lock held, for about 0.4 ms at most."""
MAX_PARTITIONS = cython.declare(cython.longlong, 1 << 17)
MAX_KEYLESS = cython.declare(cython.int, 100)


# Bytes


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def big16(at: Bytes) -> cython.short:
    return cython.cast(cython.short, (at[0] << 8) | at[1])


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def big32(at: Bytes) -> cython.uint:
    return (cython.cast(cython.uint, at[0]) << 24) | (at[1] << 16) | (at[2] << 8) | at[3]


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def big64(at: Bytes) -> Int:
    return cython.cast(Int, (cython.cast(Word, big32(at)) << 32) | big32(at + 4))


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def little32(at: Bytes) -> cython.uint:
    return at[0] | (at[1] << 8) | (at[2] << 16) | (cython.cast(cython.uint, at[3]) << 24)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def little64(at: Bytes) -> Word:
    return cython.cast(Word, little32(at)) | (cython.cast(Word, little32(at + 4)) << 32)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def put_big(at: cython.p_uchar, value: Word, size: cython.int) -> cython.p_uchar:
    """Writes the lowest `size` bytes of `value`, big-endian; returns the position after them."""
    place: cython.int
    for place in range(size):
        at[place] = cython.cast(cython.uchar, value >> (8 * (size - 1 - place)))
    return at + size


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def put_little(at: cython.p_uchar, value: Word, size: cython.int) -> cython.p_uchar:
    """Writes the lowest `size` bytes of `value`, little-endian; returns the position after them."""
    place: cython.int
    for place in range(size):
        at[place] = cython.cast(cython.uchar, value >> (8 * place))
    return at + size


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def put_uvarint(at: cython.p_uchar, value: Word) -> cython.p_uchar:
    """Writes an unsigned varint, at most 10 bytes; returns the position after it."""
    while value > 0x7F:
        at[0] = cython.cast(cython.uchar, value & 0x7F | 0x80)
        at += 1
        value >>= 7
    at[0] = cython.cast(cython.uchar, value)
    return at + 1


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def varint(raw: Bytes, at: Int, end: Int, value: cython.pointer(Int), wraps: cython.bint) -> Int:
    """Reads a zigzag varint of at most ten bytes; returns the position after it, -1 if none ends before `end`.

    A varint of more than 64 bits is rejected too, unless `wraps`: then the excess bits are dropped.
    """
    if at >= end:
        return -1
    byte: cython.uint = raw[at]
    at += 1
    if byte < 0x80:
        value[0] = cython.cast(Int, byte >> 1) ^ -cython.cast(Int, byte & 1)
        return at
    bits: Word = byte & 0x7F
    shift: cython.int = 7
    while shift < 64:
        if at >= end:
            return -1
        byte = raw[at]
        at += 1
        if shift == 63 and byte > 1 and not wraps:
            return -1
        bits |= cython.cast(Word, byte & 0x7F) << shift
        if byte < 0x80:
            value[0] = cython.cast(Int, (bits >> 1) ^ (0 - (bits & 1)))
            return at
        shift += 7
    return -1


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def uvarint(raw: Bytes, at: Int, end: Int, value: cython.pointer(Int)) -> Int:
    """Reads an unsigned varint of at most 32 bits; returns the position after it, -1 if none ends before `end`."""
    found: Word = 0
    byte: cython.uint
    shift: cython.int = 0
    while shift < 35:
        if at >= end:
            return -1
        byte = raw[at]
        at += 1
        found |= cython.cast(Word, byte & 0x7F) << shift
        if byte < 0x80:
            value[0] = cython.cast(Int, found)
            return -1 if found >> 32 else at
        shift += 7
    return -1


@cython.cfunc
@cython.inline
@cython.exceptval(-1, check=False)
def sum_of(crc: Word, raw: Bytes, size: Int) -> Int:
    """The CRC-32C of `size` bytes that follow bytes with the checksum `crc`; -1 with an exception set."""
    if size <= MAX_SUMMED:
        return sum_here(cython.cast(cython.uint, crc), raw, size)
    memory = PyMemoryView_FromMemory(cython.cast(cython.p_char, raw), size, PyBUF_READ)
    return crc32c(memory, crc)


@cython.cfunc
@cython.inline
def new_tuple(made: object, count: Int) -> object:
    """An empty tuple of the class `made`, each of whose items must be set once by `put`."""
    return PyType_GenericAlloc(cython.cast(cython.pointer(PyTypeObject), made), count)


@cython.cfunc
@cython.inline
@cython.exceptval(-1, check=False)
def put(into: object, place: Int, item: object) -> cython.int:
    Py_INCREF(item)  # PyTuple_SetItem takes over this reference
    return PyTuple_SetItem(into, place, item)


@cython.cfunc
@cython.inline
def item_of(named: object, place: Int) -> object:
    """An item of a tuple, or of an instance of a derived class. Raises IndexError; SystemError for other objects."""
    return cython.cast(object, PyTuple_GetItem(named, place))


# Record batches


def read_batch(view: object, check_crc: cython.bint, from_client: cython.bint, made: object, /) -> object:
    """See `wire.batch.read_batch`."""
    held: Py_buffer
    PyObject_GetBuffer(view, cython.address(held), PyBUF_SIMPLE)
    try:
        return batch_at(cython.cast(Bytes, held.buf), held.len, check_crc, from_client, made)
    finally:
        PyBuffer_Release(cython.address(held))


@cython.cfunc
def batch_at(raw: Bytes, size: Int, check_crc: cython.bint, from_client: cython.bint, made: object) -> object:
    if size < BATCH_HEADER or raw[16] != 2:
        return None
    length: Int = cython.cast(cython.int, big32(raw + 8)) + LENGTH_PREFIX
    if length < BATCH_HEADER or length > size:
        return None
    crc: cython.uint = big32(raw + 17)
    if check_crc and sum_of(0, raw + BATCH_HEAD, length - BATCH_HEAD) != crc:
        return None
    attributes: cython.int = big16(raw + 21)
    last: cython.int = cython.cast(cython.int, big32(raw + 23))
    producer: Int = big64(raw + 43)
    epoch: cython.int = big16(raw + 51)
    sequence: cython.int = cython.cast(cython.int, big32(raw + 53))
    count: cython.int = cython.cast(cython.int, big32(raw + 57))
    if attributes & 0x07 > 4:
        return None
    if from_client and (
        count < 1 or last != count - 1 or attributes & 0x28 or (producer != -1 and (epoch < 0 or sequence < 0))
    ):
        return None
    header = new_tuple(made, 13)
    put(header, 0, big64(raw))
    put(header, 1, length)
    put(header, 2, cython.cast(cython.int, big32(raw + 12)))
    put(header, 3, 2)
    put(header, 4, crc)
    put(header, 5, attributes)
    put(header, 6, last)
    put(header, 7, big64(raw + 27))
    put(header, 8, big64(raw + 35))
    put(header, 9, producer)
    put(header, 10, epoch)
    put(header, 11, sequence)
    put(header, 12, count)
    return header


def stamp(view: object, base_offset: Int, leader_epoch: cython.int, /) -> cython.bint:
    """See `wire.batch.stamp`; False: nothing was written."""
    held: Py_buffer
    try:
        PyObject_GetBuffer(view, cython.address(held), PyBUF_WRITABLE)
    except BufferError:
        return False
    if held.len >= BATCH_HEADER:
        raw: cython.p_uchar = cython.cast(cython.p_uchar, held.buf)
        put_big(raw, cython.cast(Word, base_offset), 8)
        put_big(raw + 12, cython.cast(Word, leader_epoch), 4)
    wrote: cython.bint = held.len >= BATCH_HEADER
    PyBuffer_Release(cython.address(held))
    return wrote


# Records

Record = cython.struct(
    time=cython.longlong,
    offset=cython.longlong,
    key=cython.longlong,
    key_size=cython.longlong,
    value=cython.longlong,
    value_size=cython.longlong,
    headers=cython.longlong,
    header_count=cython.longlong,
)
"""The positions of the parts of a record. A negative size: the part is null."""


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def field(raw: Bytes, at: Int, end: Int, start: cython.pointer(Int), size: cython.pointer(Int)) -> Int:
    """Finds bytes or null; returns the position after them, -1 if they do not end by `end`."""
    at = varint(raw, at, end, size, False)
    if at < 0 or size[0] > end - at:
        return -1
    start[0] = at
    return at + size[0] if size[0] > 0 else at


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def record_at(raw: Bytes, at: Int, end: Int, found: cython.pointer(Record), wraps: cython.bint) -> Int:
    """Parses the record that starts at `at`, headers included; returns the position after it, -1 if it is invalid.

    `wraps`: its timestamp may have more than 64 bits.
    """
    length: Int = 0
    at = varint(raw, at, end, cython.address(length), False)
    if at < 0 or length < 1 or length > end - at:
        return -1
    end = at + length
    at = varint(raw, at + 1, end, cython.address(found.time), wraps)  # after the attributes, a byte of any value
    if at < 0:
        return -1
    at = varint(raw, at, end, cython.address(found.offset), False)
    if at < 0:
        return -1
    at = field(raw, at, end, cython.address(found.key), cython.address(found.key_size))
    if at < 0:
        return -1
    at = field(raw, at, end, cython.address(found.value), cython.address(found.value_size))
    if at < 0:
        return -1
    at = varint(raw, at, end, cython.address(found.header_count), False)
    if at < 0 or found.header_count < 0 or found.header_count > end - at:
        return -1
    found.headers = at
    start: Int = 0
    size: Int = 0
    left: Int = found.header_count
    while left > 0:
        at = field(raw, at, end, cython.address(start), cython.address(size))
        if at < 0 or size < 0:
            return -1
        at = field(raw, at, end, cython.address(start), cython.address(size))
        if at < 0:
            return -1
        left -= 1
    return at if at == end else -1


Walk = cython.struct(at=cython.longlong, place=cython.int, latest=cython.longlong, keyless=cython.int)
"""The progress of a walk over records: the position (`at`) and the index (`place`) of the next record, the largest
timestamp of the records before it (at least -1), and the number of records without a key that were noted."""


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def walk(
    raw: Bytes,
    end: Int,
    count: cython.int,
    base_timestamp: Int,
    keyless: cython.p_int,
    most: cython.int,
    walked: cython.pointer(Walk),
) -> cython.void:
    """Walks over records up to index `count` or an invalid one, or one whose offset leaves a gap. Notes the indexes of
    the first `most` records without a key."""
    found: Record
    timestamp: Int
    while walked.place < count:
        behind: Int = record_at(raw, walked.at, end, cython.address(found), True)
        if behind < 0 or found.offset != walked.place:
            return
        timestamp = cython.cast(Int, cython.cast(Word, base_timestamp) + cython.cast(Word, found.time))
        if timestamp > walked.latest:
            walked.latest = timestamp
        if found.key_size < 0 and walked.keyless < most:
            keyless[walked.keyless] = walked.place
            walked.keyless += 1
        walked.at = behind
        walked.place += 1


def scan_records(
    view: object, start: Int, count: cython.int, base_timestamp: Int, most_keyless: cython.int, made: object, /
) -> object:
    """See `wire.records.check_records`."""
    held: Py_buffer
    places: cython.int[100]
    walked: Walk
    if most_keyless > MAX_KEYLESS:
        raise ValueError(most_keyless)
    PyObject_GetBuffer(view, cython.address(held), PyBUF_SIMPLE)
    try:
        if start < 0 or start > held.len:
            raise ValueError(start)
        walked.at, walked.place, walked.latest, walked.keyless = start, 0, -1, 0
        raw: Bytes = cython.cast(Bytes, held.buf)
        end: Int = held.len
        if end - start > MAX_HELD:
            with cython.nogil:
                walk(raw, end, count, base_timestamp, places, most_keyless, cython.address(walked))
        else:
            walk(raw, end, count, base_timestamp, places, most_keyless, cython.address(walked))
    finally:
        PyBuffer_Release(cython.address(held))
    if walked.place != count or walked.at != end:
        return None
    checked = new_tuple(made, 2)
    put(checked, 0, walked.latest)
    put(checked, 1, tuple([places[place] for place in range(walked.keyless)]) if walked.keyless else ())
    return checked


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def overflows(one: Int, other: Int) -> cython.bint:
    """Whether the sum of both numbers needs more than 64 bits."""
    total: Int = cython.cast(Int, cython.cast(Word, one) + cython.cast(Word, other))
    return ((one ^ total) & (other ^ total)) < 0


@cython.cfunc
@cython.inline
def piece(raw: Bytes, at: Int, size: Int) -> object:
    """A copy of bytes; None for null (a negative `size`)."""
    if size < 0:
        return None
    return PyBytes_FromStringAndSize(cython.cast(cython.p_const_char, raw + at), size)


@cython.cfunc
def headers_of(raw: Bytes, at: Int, end: Int, count: Int) -> object:
    """The headers of a record that `record_at` has parsed."""
    headers: list = []
    start: Int = 0
    size: Int = 0
    while count > 0:
        at = field(raw, at, end, cython.address(start), cython.address(size))
        name = PyUnicode_DecodeUTF8(cython.cast(cython.p_const_char, raw + start), size, b"surrogateescape")
        at = field(raw, at, end, cython.address(start), cython.address(size))
        headers.append((name, piece(raw, start, size)))
        count -= 1
    return headers


def read_records(
    view: object, at: Int, most: Int, base_offset: Int, base_timestamp: Int, append_time: object, made: object, /
) -> object:
    """See `wire.batch.unpacked_records`: up to `most` records from `at` on, fewer if an invalid one follows, and the
    position after them. `append_time`: the timestamp of all records, or None."""
    held: Py_buffer
    found: Record
    records: list = []
    PyObject_GetBuffer(view, cython.address(held), PyBUF_SIMPLE)
    try:
        if at < 0 or at > held.len:
            raise ValueError(at)
        raw: Bytes = cython.cast(Bytes, held.buf)
        end: Int = held.len
        while most > 0:
            behind: Int = record_at(raw, at, end, cython.address(found), False)
            if behind < 0 or overflows(base_offset, found.offset) or overflows(base_timestamp, found.time):
                break
            record = new_tuple(made, 5)
            put(record, 0, base_offset + found.offset)
            put(record, 1, base_timestamp + found.time if append_time is None else append_time)
            put(record, 2, piece(raw, found.key, found.key_size))
            put(record, 3, piece(raw, found.value, found.value_size))
            put(record, 4, headers_of(raw, found.headers, behind, found.header_count))
            records.append(record)
            at = behind
            most -= 1
    finally:
        PyBuffer_Release(cython.address(held))
    return records, at


# Frames of the log


def batch_frame_header(
    length: cython.uint,
    epoch: cython.uint,
    position: Word,
    partitionlet: Int,
    first: Int,
    last: Int,
    max_timestamp: Int,
    batch: object,
    /,
) -> object:
    """See `log.frames.batch_frame_header`."""
    held: Py_buffer
    raw: cython.uchar[77]
    at: cython.p_uchar = put_little(cython.cast(cython.p_uchar, raw) + 4, length, 4)
    at = put_little(at, 1, 4)
    at = put_little(at, epoch, 4)
    at = put_little(at, position, 8)
    at = put_little(at, cython.cast(Word, partitionlet), 8)
    at = put_little(at, cython.cast(Word, first), 8)
    at = put_little(at, cython.cast(Word, last), 8)
    at = put_little(at, cython.cast(Word, max_timestamp), 8)
    PyObject_GetBuffer(batch, cython.address(held), PyBUF_SIMPLE)
    size: Int = min(BATCH_HEAD, cython.cast(Int, held.len))
    memcpy(at, held.buf, size)
    PyBuffer_Release(cython.address(held))
    crc: Int = sum_of(0, cython.cast(Bytes, raw) + 4, FRAME_HEADER - 4 + size)
    put_little(raw, cython.cast(Word, crc), 4)
    return PyBytes_FromStringAndSize(cython.cast(cython.p_const_char, raw), FRAME_HEADER)


def check_frames(frames: object, position: Int, /) -> Int:
    """See `log.frames.check_frames`; -1: some frame is invalid, or its type is unusual."""
    held: Py_buffer
    PyObject_GetBuffer(frames, cython.address(held), PyBUF_SIMPLE)
    try:
        return end_of_frames(cython.cast(Bytes, held.buf), held.len, position)
    finally:
        PyBuffer_Release(cython.address(held))


@cython.cfunc
@cython.exceptval(-2)
def end_of_frames(raw: Bytes, size: Int, position: Int) -> Int:
    at: Int = 0
    if position < 0:
        return -1
    while at < size:
        if size - at < FRAME_HEADER:
            return -1
        frame: Bytes = raw + at
        length: Int = little32(frame + 4)
        kind: cython.int = frame[8]
        here: Int = FRAME_HEADER if kind == 8 else length  # of a gap frame only the header is present
        least: Int = FRAME_HEADER + BATCH_HEADER if kind == 1 else FRAME_HEADER
        if (
            length < least
            or here > size - at
            or kind < 1
            or kind > 8
            or little64(frame + 16) != cython.cast(Word, position)
        ):
            return -1
        if sum_of(0, frame + 4, (SUMMED_END if kind == 1 else here) - 4) != little32(frame):
            return -1
        if kind == 1 and sum_of(0, frame + SUMMED_END, length - SUMMED_END) != big32(frame + FRAME_HEADER + 17):
            return -1
        if position > 0x7FFFFFFFFFFFFFFF - length:
            return -1
        position += length
        at += here
    return position


def take_batches(view: object, batches: list, partitionlet: Int, offset: Int, limit: Int, max_bytes: Int, /) -> object:
    """See `log.frames.take_batches`; None: something is invalid, and `batches` is unchanged."""
    held: Py_buffer
    before: Int = len(batches)
    PyObject_GetBuffer(view, cython.address(held), PyBUF_SIMPLE)
    try:
        is_sound = take(
            view,
            cython.cast(Bytes, held.buf),
            held.len,
            batches,
            partitionlet,
            offset,
            limit,
            cython.address(max_bytes),
        )
    finally:
        PyBuffer_Release(cython.address(held))
    if is_sound:
        return max_bytes
    del batches[before:]
    return None


@cython.cfunc
@cython.exceptval(-1)
def take(
    view: object,
    raw: Bytes,
    end: Int,
    batches: list,
    partitionlet: Int,
    offset: Int,
    limit: Int,
    left: cython.pointer(Int),
) -> cython.int:
    """1: success; `left` is what `log.frames.take_batches` returns. 0: something is invalid."""
    at: Int = 0
    while at < end:
        if end - at < FRAME_HEADER + BATCH_HEADER:
            return 0
        frame: Bytes = raw + at
        length: Int = little32(frame + 4)
        last: Int = cython.cast(Int, little64(frame + 40))
        if length < FRAME_HEADER + BATCH_HEADER or length > end - at or frame[8] != 1:
            return 0
        if cython.cast(Int, little64(frame + 24)) != partitionlet:
            return 0
        if sum_of(0, frame + 4, SUMMED_END - 4) != little32(frame):
            return 0
        if last >= offset:
            if last >= limit or (left[0] < length - FRAME_HEADER and batches):
                left[0] = -1
                return 1
            if left[0] < -(1 << 32):  # no caller passes so low a number; the subtraction below cannot overflow
                return 0
            if sum_of(0, frame + SUMMED_END, length - SUMMED_END) != big32(frame + FRAME_HEADER + 17):
                return 0
            left[0] -= length - FRAME_HEADER
            batches.append(view[at + FRAME_HEADER : at + length])
        at += length
    return 1


# Requests and answers


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def text_at(raw: Bytes, at: Int, end: Int, flexible: cython.bint, size: cython.pointer(Int)) -> Int:
    """Finds a string or null; returns the position of its first byte, -1 if it does not end by `end`. A `size` of -1:
    null."""
    if flexible:
        at = uvarint(raw, at, end, size)
        if at < 0:
            return -1
        size[0] -= 1
    else:
        if end - at < 2:
            return -1
        size[0] = big16(raw + at)
        at += 2
    return -1 if size[0] < -1 or size[0] > end - at else at


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def count_at(raw: Bytes, at: Int, end: Int, flexible: cython.bint, count: cython.pointer(Int)) -> Int:
    """Reads the length of an array or of bytes; returns the position after it, -1 if none ends before `end`."""
    if flexible:
        at = uvarint(raw, at, end, count)
        count[0] -= 1
        return at
    if end - at < 4:
        return -1
    count[0] = cython.cast(cython.int, big32(raw + at))
    return at + 4


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def behind_no_tags(raw: Bytes, at: Int, end: Int) -> Int:
    """The position after an empty set of tagged fields; -1 if the set is not empty."""
    return at + 1 if at < end and not raw[at] else -1


@cython.cfunc
@cython.inline
def text(raw: Bytes, at: Int, size: Int) -> object:
    """The string that `text_at` found; None for null. Raises UnicodeDecodeError."""
    if size < 0:
        return None
    return PyUnicode_DecodeUTF8(cython.cast(cython.p_const_char, raw + at), size, cython.NULL)


def read_request_header(buf: object, flexible_from: dict, made: object, /) -> object:
    """See `wire.header.read_request_header`; `flexible_from`: the first flexible version by API key."""
    held: Py_buffer
    PyObject_GetBuffer(buf, cython.address(held), PyBUF_SIMPLE)
    try:
        return request_header(cython.cast(Bytes, held.buf), held.len, flexible_from, made)
    except UnicodeDecodeError:
        return None
    finally:
        PyBuffer_Release(cython.address(held))


@cython.cfunc
def request_header(raw: Bytes, end: Int, flexible_from: dict, made: object) -> object:
    size: Int = 0
    if end < 10:
        return None
    at: Int = text_at(raw, 8, end, False, cython.address(size))
    if at < 0:
        return None
    client_id = text(raw, at, size)
    if size > 0:
        at += size
    api_key = big16(raw)
    version: cython.int = big16(raw + 2)
    first = flexible_from.get(api_key)
    if first is not None and version >= cython.cast(cython.int, first):
        at = behind_no_tags(raw, at, end)
        if at < 0:
            return None
    header = new_tuple(made, 5)
    put(header, 0, api_key)
    put(header, 1, version)
    put(header, 2, cython.cast(cython.int, big32(raw + 4)))
    put(header, 3, client_id)
    put(header, 4, at)
    return header


def decode_produce(buf: object, body: Int, version: cython.int, made: object, made_part: object, /) -> object:
    """See `wire.produce.decode_request`."""
    held: Py_buffer
    PyObject_GetBuffer(buf, cython.address(held), PyBUF_SIMPLE)
    try:
        return produce_request(buf, cython.cast(Bytes, held.buf), held.len, body, version, made, made_part)
    except UnicodeDecodeError:
        return None
    finally:
        PyBuffer_Release(cython.address(held))


@cython.cfunc
def produce_request(
    buf: object, raw: Bytes, end: Int, at: Int, version: cython.int, made: object, made_part: object
) -> object:
    flexible: cython.bint = version >= 9
    size: Int = 0
    topics: Int = 0
    count: Int = 0
    transactional_id = None
    if at < 0 or at > end:
        return None
    if version >= 3:
        at = text_at(raw, at, end, flexible, cython.address(size))
        if at < 0:
            return None
        if size >= 0:
            transactional_id = text(raw, at, size)
            at += size
    if end - at < 6:
        return None
    acks = big16(raw + at)
    timeout_ms = cython.cast(cython.int, big32(raw + at + 2))
    at = count_at(raw, at + 6, end, flexible, cython.address(topics))
    if at < 0 or topics < 0 or topics > end - at or topics > MAX_PARTITIONS:
        return None
    parts: list = []
    while topics > 0:
        at = text_at(raw, at, end, flexible, cython.address(size))
        if at < 0 or size < 0:
            return None
        topic = text(raw, at, size)
        at = count_at(raw, at + size, end, flexible, cython.address(count))
        if at < 0 or count < 0 or count > end - at or count > MAX_PARTITIONS - len(parts):
            return None
        while count > 0:
            if end - at < 4:
                return None
            index = cython.cast(cython.int, big32(raw + at))
            at = count_at(raw, at + 4, end, flexible, cython.address(size))
            if at < 0 or size < -1 or size > end - at:
                return None
            part = new_tuple(made_part, 4)
            put(part, 0, topic)
            put(part, 1, index)
            put(part, 2, None if size < 0 else buf[at : at + size])
            put(part, 3, None)
            parts.append(part)
            if size > 0:
                at += size
            if flexible:
                at = behind_no_tags(raw, at, end)
                if at < 0:
                    return None
            count -= 1
        if flexible:
            at = behind_no_tags(raw, at, end)
            if at < 0:
                return None
        topics -= 1
    if flexible:
        at = behind_no_tags(raw, at, end)
    if at != end:
        return None
    request = new_tuple(made, 4)
    put(request, 0, transactional_id)
    put(request, 1, acks)
    put(request, 2, timeout_ms)
    put(request, 3, parts)
    return request


def decode_fetch(
    buf: object, body: Int, version: cython.int, made: object, made_topic: object, made_partition: object, /
) -> object:
    """See `wire.fetch.decode_request`."""
    held: Py_buffer
    PyObject_GetBuffer(buf, cython.address(held), PyBUF_SIMPLE)
    try:
        return fetch_request(cython.cast(Bytes, held.buf), held.len, body, version, made, made_topic, made_partition)
    except UnicodeDecodeError:
        return None
    finally:
        PyBuffer_Release(cython.address(held))


@cython.cfunc
def fetch_request(
    raw: Bytes, end: Int, at: Int, version: cython.int, made: object, made_topic: object, made_partition: object
) -> object:
    flexible: cython.bint = version >= 12
    size: Int = 0
    count: Int = 0
    left: Int = 0
    total: Int = 0
    replica_id: cython.int = -1
    session_id: cython.int = 0
    session_epoch: cython.int = -1
    fixed: Int = (4 if version < 15 else 0) + 13 + (8 if version >= 7 else 0)
    if version < 4 or version > 16 or at < 0 or at > end or end - at < fixed:
        return None
    if version < 15:
        replica_id = cython.cast(cython.int, big32(raw + at))
        at += 4
    limits: Bytes = raw + at
    at += 13
    if version >= 7:
        session_id = cython.cast(cython.int, big32(raw + at))
        session_epoch = cython.cast(cython.int, big32(raw + at + 4))
        at += 8
    at = count_at(raw, at, end, flexible, cython.address(left))
    if at < 0 or left < 0 or left > end - at or left > MAX_PARTITIONS:
        return None
    topics: list = []
    while left > 0:
        topic = None
        topic_id = None
        if version >= 13:
            if end - at < 16:
                return None
            topic_id = piece(raw, at, 16)
            at += 16
        else:
            at = text_at(raw, at, end, flexible, cython.address(size))
            if at < 0 or size < 0:
                return None
            topic = text(raw, at, size)
            at += size
        at = count_at(raw, at, end, flexible, cython.address(count))
        if at < 0 or count < 0 or count > end - at or count > MAX_PARTITIONS - total:
            return None
        total += count
        partitions: list = []
        while count > 0:
            at = fetch_partition(raw, at, end, version, partitions, made_partition)
            if at < 0:
                return None
            count -= 1
        if flexible:
            at = behind_no_tags(raw, at, end)
            if at < 0:
                return None
        of_topic = new_tuple(made_topic, 3)
        put(of_topic, 0, topic)
        put(of_topic, 1, topic_id)
        put(of_topic, 2, partitions)
        topics.append(of_topic)
        left -= 1
    if version >= 7:
        at = count_at(raw, at, end, flexible, cython.address(count))
        if at < 0 or count != 0:  # forgotten topics are rare
            return None
    rack = ""
    if version >= 11:
        at = text_at(raw, at, end, flexible, cython.address(size))
        if at < 0 or size < 0:
            return None
        rack = text(raw, at, size)
        at += size
    if flexible:
        at = behind_no_tags(raw, at, end)
    if at != end:
        return None
    request = new_tuple(made, 10)
    put(request, 0, cython.cast(cython.int, big32(limits)))
    put(request, 1, cython.cast(cython.int, big32(limits + 4)))
    put(request, 2, cython.cast(cython.int, big32(limits + 8)))
    put(request, 3, cython.cast(cython.schar, limits[12]))
    put(request, 4, session_id)
    put(request, 5, session_epoch)
    put(request, 6, topics)
    put(request, 7, [])
    put(request, 8, rack)
    put(request, 9, replica_id)
    return request


@cython.cfunc
@cython.exceptval(-2)
def fetch_partition(raw: Bytes, at: Int, end: Int, version: cython.int, partitions: list, made: object) -> Int:
    """Reads the request for one partition; returns the position after it, -1 if something is invalid or rare."""
    size: Int = 32 if version >= 12 else 28 if version >= 9 else 24 if version >= 5 else 16
    if end - at < size:
        return -1
    behind: Int = at + size
    leader_epoch: cython.int = -1
    fetched_epoch: cython.int = -1
    log_start: Int = -1
    index: cython.int = cython.cast(cython.int, big32(raw + at))
    at += 4
    if version >= 9:
        leader_epoch = cython.cast(cython.int, big32(raw + at))
        at += 4
    offset: Int = big64(raw + at)
    at += 8
    if version >= 12:
        fetched_epoch = cython.cast(cython.int, big32(raw + at))
        at += 4
    if version >= 5:
        log_start = big64(raw + at)
        at += 8
    asked = new_tuple(made, 6)
    put(asked, 0, index)
    put(asked, 1, leader_epoch)
    put(asked, 2, offset)
    put(asked, 3, fetched_epoch)
    put(asked, 4, log_start)
    put(asked, 5, cython.cast(cython.int, big32(raw + at)))
    partitions.append(asked)
    return behind_no_tags(raw, behind, end) if version >= 12 else behind


def encode_produced(version: cython.int, results: list, throttle_ms: cython.int, /) -> object:
    """See `wire.produce.encode_response`; None for versions below 5, and for results with messages or record errors."""
    if version < 5:
        return None
    if len(results) == 1:
        groups = [(item_of(results[0], 0), results)]
    else:
        by_topic: dict = {}
        for result in results:
            topic = item_of(result, 0)
            group = by_topic.get(topic)
            if group is None:
                by_topic[topic] = [result]
            else:
                cython.cast(list, group).append(result)
        groups = list(by_topic.items())
    try:
        return produced(version, groups, throttle_ms)
    except OverflowError:
        return None


@cython.cfunc
def produced(version: cython.int, groups: list, throttle_ms: cython.int) -> object:
    flexible: cython.bint = version >= 9
    most: Int = 32
    size: cython.Py_ssize_t = 0
    for topic, group in groups:
        PyUnicode_AsUTF8AndSize(topic, cython.address(size))
        if size > 0x7FFF:
            return None
        most += size + 24 + 48 * len(group)
    room = PyBytes_FromStringAndSize(cython.NULL, most)
    start: cython.p_uchar = cython.cast(cython.p_uchar, PyBytes_AsString(room))
    at: cython.p_uchar = put_count(start, len(groups), flexible)
    for topic, group in groups:
        name: cython.p_const_char = PyUnicode_AsUTF8AndSize(topic, cython.address(size))
        at = put_uvarint(at, size + 1) if flexible else put_big(at, size, 2)
        memcpy(at, name, size)
        at = put_count(at + size, len(group), flexible)
        for result in group:
            if item_of(result, 6) is not None or item_of(result, 7):
                return None
            partition: cython.int = item_of(result, 1)
            error: cython.short = item_of(result, 2)
            base_offset: Int = item_of(result, 3)
            append_time: Int = item_of(result, 4)
            log_start: Int = item_of(result, 5)
            at = put_big(at, cython.cast(Word, partition), 4)
            at = put_big(at, cython.cast(Word, error), 2)
            at = put_big(at, cython.cast(Word, base_offset), 8)
            at = put_big(at, cython.cast(Word, append_time), 8)
            at = put_big(at, cython.cast(Word, log_start), 8)
            if flexible:  # no record errors, no message, no tagged fields
                at = put_big(at, 0x010000, 3)
            elif version >= 8:
                at = put_big(at, 0xFFFF, 6)
        if flexible:
            at = put_big(at, 0, 1)
    at = put_big(at, cython.cast(Word, throttle_ms), 4)
    if flexible:
        at = put_big(at, 0, 1)
    return PyBytes_FromStringAndSize(cython.cast(cython.p_const_char, start), at - start)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def put_count(at: cython.p_uchar, count: Int, flexible: cython.bint) -> cython.p_uchar:
    """Writes an array's length, at most 10 bytes; returns the position after it."""
    return put_uvarint(at, count + 1) if flexible else put_big(at, count, 4)
