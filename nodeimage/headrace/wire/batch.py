"""Record batches of Kafka's format 2: check, stamp, read and build. Knows nothing of where they are stored.

    RecordBatch => base_offset INT64, length INT32 (of the rest), leader_epoch INT32, magic INT8, crc UINT32,
                   attributes INT16, last_offset_delta INT32, base_timestamp INT64, max_timestamp INT64,
                   producer_id INT64, producer_epoch INT16, base_sequence INT32, record_count INT32, records [Record]
    Record      => length VARINT, attributes INT8, timestamp_delta VARLONG, offset_delta VARINT,
                   key VARINT-BYTES, value VARINT-BYTES, headers VARINT [key VARINT-STRING, value VARINT-BYTES]

The CRC is CRC-32C from `attributes` to the end, so base offset and leader epoch can be stamped without changing it.
Attributes: bits 0-2 compression, 3 timestamp type (1 = append time), 4 transactional, 5 control. The records of a batch
are compressed as a whole.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, NoReturn

from crc32c import crc32c

from headrace.base.errors import CorruptBatch, InvalidBatch, UnsupportedBatch
from headrace.native import codecs
from headrace.wire.compression import ZSTD, compress, decompress
from headrace.wire.primitives import Buffer

BATCH_HEADER_SIZE: Final = 61
MAGIC: Final = 2

COMPRESSION_BITS: Final = 0x07
APPEND_TIME_BIT: Final = 0x08
TRANSACTIONAL_BIT: Final = 0x10
CONTROL_BIT: Final = 0x20
_BROKERS_BITS: Final = CONTROL_BIT | APPEND_TIME_BIT

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_LENGTH_PREFIX: Final = 12  # bytes of base offset and length, which `length` does not count
_LENGTH_AT: Final = 8
_EPOCH_AT: Final = 12
_MAGIC_AT: Final = 16
_CRC_AT: Final = 17
_ATTRIBUTES_AT: Final = 21
LAST_ATTRIBUTES_AT: Final = 22
"""Offset in a batch of the attributes' byte that names the codec."""
_MAX_TIMESTAMP_AT: Final = 35
RECORD_COUNT_AT: Final = 57
MAX_EMPTY: Final = 1 << 30
"""The most offsets that one batch of `gap_batches` covers."""
ABORT_MARKER: Final = 0
COMMIT_MARKER: Final = 1
_MARKER: Final = struct.Struct(">hh")
"""The key of a control record: version, type."""
_MARKED: Final = struct.Struct(">hi")
"""The value of a transaction marker: version, epoch of the coordinator."""

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")
_UINT32: Final = struct.Struct(">I")
_new_tuple: Final = tuple.__new__
READ_AT_ONCE: Final = 256
"""Records that the compiled codec reads per call."""
_native = codecs

Header = tuple[str, bytes | None]
"""A record header: its name and value. A byte of the name that is not UTF-8 becomes a lone surrogate
(`surrogateescape`)."""


class BatchHeader(NamedTuple):
    """A batch's header. `length` is the length of the whole batch in bytes, including the 12 bytes that the length
    field on the wire does not count."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def compression(self) -> int:
        """The number of the codec, see `wire/compression.py`."""
        return self.attributes & COMPRESSION_BITS

    @property
    def append_time(self) -> bool:
        """Whether `max_timestamp` is the time of every record."""
        return bool(self.attributes & APPEND_TIME_BIT)

    @property
    def transactional(self) -> bool:
        """Whether the batch belongs to a transaction."""
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def control(self) -> bool:
        """Whether the records are the broker's markers, such as the end of a transaction."""
        return bool(self.attributes & CONTROL_BIT)


class Record(NamedTuple):
    """One record. `timestamp` in milliseconds."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[Header]


def read_batch(view: Buffer, *, check_crc: bool = True, from_client: bool = True) -> BatchHeader:
    """The header of the batch that starts at `view[0]`, after checking that the batch is complete and valid.

    `view` may continue after the batch, whose end the header's `length` gives. `from_client` also checks that a
    producer may send the batch: offsets without gaps, no append time, no control batch, an epoch and a sequence if
    there is a producer id. Raises `UnsupportedBatch` for magic 0 and 1, `CorruptBatch` for wrong lengths or a wrong
    CRC, else `InvalidBatch`.
    """
    if _native is not None:
        header = _native.read_batch(view, check_crc, from_client, BatchHeader)
        if header is not None:
            return header
    return _read_batch(view, check_crc, from_client)


def _read_batch(view: Buffer, check_crc: bool, from_client: bool) -> BatchHeader:
    """`read_batch` in Python, which raises the exceptions: the compiled codec does not."""
    available = len(view)
    if not available:
        raise InvalidBatch("no record batch where one is due")
    if available > _MAGIC_AT and view[_MAGIC_AT] != MAGIC:
        magic = view[_MAGIC_AT]
        if magic < MAGIC:
            raise UnsupportedBatch(
                f"messages of format {magic}; send record batches of format 2 (Kafka 0.11 and later)"
            )
        raise CorruptBatch(f"magic {magic}, where 2 is due")
    if available < BATCH_HEADER_SIZE:
        raise CorruptBatch(f"{available} bytes are no record batch, whose header alone has {BATCH_HEADER_SIZE}")
    fields = _HEADER.unpack_from(view)
    (
        base,
        length,
        epoch,
        magic,
        crc,
        attributes,
        last,
        first_time,
        max_time,
        producer,
        producer_epoch,
        sequence,
        count,
    ) = fields
    length += _LENGTH_PREFIX
    if length < BATCH_HEADER_SIZE or length > available:
        raise CorruptBatch(f"a record batch of {length} bytes, of which {available} are there")
    # The class's own constructor takes its thirteen arguments one by one, which would be most of this function's time.
    header = _new_tuple(
        BatchHeader,
        (
            base,
            length,
            epoch,
            magic,
            crc,
            attributes,
            last,
            first_time,
            max_time,
            producer,
            producer_epoch,
            sequence,
            count,
        ),
    )
    if check_crc and crc32c(view[_ATTRIBUTES_AT:length]) != crc:
        raise CorruptBatch(f"CRC of a record batch of {length} bytes does not match")
    if attributes & COMPRESSION_BITS > ZSTD:
        raise InvalidBatch(f"compression {header.compression} is unknown")
    if from_client and (
        count < 1
        or last != count - 1
        or attributes & _BROKERS_BITS
        or (producer != -1 and (producer_epoch < 0 or sequence < 0))
    ):
        _refuse_client(header)
    return header


def _refuse_client(header: BatchHeader) -> NoReturn:
    """Raises `InvalidBatch` with the reason why no producer may send this batch."""
    if header.record_count < 1 or header.last_offset_delta != header.record_count - 1:
        raise InvalidBatch(f"{header.record_count} records, last offset delta {header.last_offset_delta}")
    if header.attributes & _BROKERS_BITS:
        raise InvalidBatch("control batches and append times are the broker's to write")
    raise InvalidBatch(f"producer {header.producer_id} sent no epoch or no sequence")


def stamp(view: bytearray | memoryview, base_offset: int, leader_epoch: int) -> None:
    """Writes the two fields that the broker sets into the batch at `view[0]`, in place. The CRC stays valid."""
    if _native is not None and _native.stamp(view, base_offset, leader_epoch):
        return
    _INT64.pack_into(view, 0, base_offset)
    _INT32.pack_into(view, _EPOCH_AT, leader_epoch)


def stamp_append_time(view: bytearray | memoryview, now_ms: int) -> None:
    """Makes `now_ms` the time of every record of the batch at `view[0]`, in place, and recomputes the CRC."""
    end = _INT32.unpack_from(view, _LENGTH_AT)[0] + _LENGTH_PREFIX
    _INT16.pack_into(view, _ATTRIBUTES_AT, _INT16.unpack_from(view, _ATTRIBUTES_AT)[0] | APPEND_TIME_BIT)
    _INT64.pack_into(view, _MAX_TIMESTAMP_AT, now_ms)
    _UINT32.pack_into(view, _CRC_AT, crc32c(memoryview(view)[_ATTRIBUTES_AT:end]))


def stamp_max_timestamp(view: bytearray | memoryview, max_timestamp: int) -> None:
    """Sets the largest timestamp of the batch at `view[0]`, in place, and recomputes the CRC. For a producer whose
    header and records disagree."""
    end = _INT32.unpack_from(view, _LENGTH_AT)[0] + _LENGTH_PREFIX
    _INT64.pack_into(view, _MAX_TIMESTAMP_AT, max_timestamp)
    _UINT32.pack_into(view, _CRC_AT, crc32c(memoryview(view)[_ATTRIBUTES_AT:end]))


def uncompressed(batch: Buffer, raw: bytes) -> memoryview:
    """A copy of the batch with its decompressed records `raw`. Its CRC is still that of the compressed batch."""
    whole = bytearray(memoryview(batch)[:BATCH_HEADER_SIZE])
    attributes = _INT16.unpack_from(whole, _ATTRIBUTES_AT)[0] & ~COMPRESSION_BITS
    _INT16.pack_into(whole, _ATTRIBUTES_AT, attributes)
    _INT32.pack_into(whole, _LENGTH_AT, BATCH_HEADER_SIZE + len(raw) - _LENGTH_PREFIX)
    whole += raw
    return memoryview(whole)


def detached(batch: memoryview) -> memoryview:
    """The batch for a caller that keeps it: copied if it is less than half of the buffer that it would keep alive."""
    if 2 * len(batch) < len(batch.obj):  # type: ignore[arg-type]  # bytes, a bytearray or an mmap
        return memoryview(bytes(batch))
    return batch


def iter_batches(view: Buffer) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Each of the contiguous batches in `view`, with its bytes. CRCs are not checked. Raises `CorruptBatch`.

    An incomplete batch at the end is omitted: a fetch response may end with one (KIP-74).
    """
    rest = memoryview(view)
    while len(rest) >= BATCH_HEADER_SIZE:
        (length,) = _INT32.unpack_from(rest, _LENGTH_AT)
        if length + _LENGTH_PREFIX > len(rest) and rest[_MAGIC_AT] == MAGIC:
            return
        header = read_batch(rest, check_crc=False, from_client=False)
        yield header, rest[: header.length]
        rest = rest[header.length :]


def iter_records(view: Buffer) -> Iterator[Record]:
    """The records of one or several contiguous batches, in order. CRCs are not checked.

    Raises `CorruptBatch` for a batch that decompresses to more than `compression.MAX_UNPACKED` bytes (128 MiB), or does
    not match its header.
    """
    for header, batch in iter_batches(view):
        yield from batch_records(header, batch)


def batch_records(header: BatchHeader, batch: Buffer) -> Iterator[Record]:
    """The records of one batch; none for a control batch, whose markers no client sees. Raises as `iter_records`."""
    return iter(()) if header.attributes & CONTROL_BIT else _records(header, batch)


def _records(header: BatchHeader, batch: Buffer) -> Iterator[Record]:
    raw = decompress(header.attributes & COMPRESSION_BITS, memoryview(batch)[BATCH_HEADER_SIZE : header.length])
    yield from unpacked_records(header, raw)


def unpacked_records(header: BatchHeader, raw: bytes) -> Iterator[Record]:
    """The records of a batch from their decompressed bytes `raw`. Raises `CorruptBatch`."""
    number = at = 0
    if _native is not None:
        append_time = header.max_timestamp if header.append_time else None
        while number < header.record_count:
            most = min(READ_AT_ONCE, header.record_count - number)
            found, at = _native.read_records(
                raw, at, most, header.base_offset, header.base_timestamp, append_time, Record
            )
            yield from found
            number += len(found)
            if len(found) < most:
                break
    try:
        yield from _parse(raw, header, number, at)
    except IndexError as error:
        raise CorruptBatch(f"the records of the batch at offset {header.base_offset} end early: {error}") from error


def _parse(raw: bytes, header: BatchHeader, number: int, pos: int) -> Iterator[Record]:
    """The records from index `number` on, which starts at byte `pos`."""
    for _ in range(number, header.record_count):
        length, pos = _varint(raw, pos)
        end = pos + length
        if length < 0 or end > len(raw):
            raise CorruptBatch(f"a record of {length} bytes, of which {len(raw) - pos} are there")
        time_delta, pos = _varint(raw, pos + 1)
        offset_delta, pos = _varint(raw, pos)
        key, pos = _field(raw, pos, end)
        value, pos = _field(raw, pos, end)
        count, pos = _varint(raw, pos)
        if not 0 <= count <= end - pos:
            raise CorruptBatch(f"a record of {length} bytes with {count} headers")
        headers: list[Header] = []
        for _ in range(count):
            name, pos = _field(raw, pos, end)
            content, pos = _field(raw, pos, end)
            if name is None:
                raise CorruptBatch("a header's key is null")
            headers.append((name.decode("utf-8", "surrogateescape"), content))
        if pos != end:
            raise CorruptBatch(f"a record announced as {length} bytes has {pos - end + length}")
        timestamp = header.max_timestamp if header.append_time else header.base_timestamp + time_delta
        yield Record(header.base_offset + offset_delta, timestamp, key, value, headers)
    if pos != len(raw):
        raise CorruptBatch(f"{len(raw) - pos} bytes after the last of {header.record_count} records")


def _varint(raw: bytes, pos: int) -> tuple[int, int]:
    """A zigzag varint of at most 64 bits, and the position behind it."""
    byte = raw[pos]
    pos += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), pos
    value = byte & 0x7F
    shift = 7
    while shift < 64:
        byte = raw[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), pos
        shift += 7
    raise CorruptBatch("a varint has more than 64 bits")


def _field(raw: bytes, pos: int, end: int) -> tuple[bytes | None, int]:
    """Bytes or null inside a record that ends at `end`, and the position behind them."""
    length, pos = _varint(raw, pos)
    if length < 0:
        return None, pos
    stop = pos + length
    if stop > end:
        raise CorruptBatch(f"a field of {length} bytes in a record with {end - pos} left")
    return raw[pos:stop], stop


RecordIn = tuple[int, bytes | None, bytes | None, Sequence[Header]]
"""A record for `build_batch`: timestamp in milliseconds, key, value, headers."""


def build_batch(
    records: Sequence[RecordIn],
    *,
    base_offset: int = 0,
    compression: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    attributes: int = 0,
) -> bytearray:
    """A batch of `records`, at least one, with consecutive offsets. `attributes`: more bits for the attributes.

    Raises `InvalidBatch` if there is no record.
    """
    if not records:
        raise InvalidBatch("a record batch has at least one record")
    base_timestamp = records[0][0]
    raw = bytearray()
    body = bytearray()
    for delta, (timestamp, key, value, headers) in enumerate(records):
        body += b"\x00"
        _put_varint(body, timestamp - base_timestamp)
        _put_varint(body, delta)
        _put_field(body, key)
        _put_field(body, value)
        _put_varint(body, len(headers))
        for name, content in headers:
            _put_field(body, name.encode("utf-8", "surrogateescape"))
            _put_field(body, content)
        _put_varint(raw, len(body))
        raw += body
        body.clear()
    packed = compress(compression, raw)
    batch = bytearray(BATCH_HEADER_SIZE)
    _HEADER.pack_into(
        batch,
        0,
        base_offset,
        BATCH_HEADER_SIZE - _LENGTH_PREFIX + len(packed),
        -1,  # leader epoch: set by the broker
        MAGIC,
        0,  # CRC: set below
        compression | attributes,
        len(records) - 1,
        base_timestamp,
        max(record[0] for record in records),
        producer_id,
        producer_epoch,
        base_sequence,
        len(records),
    )
    batch += packed
    _UINT32.pack_into(batch, _CRC_AT, crc32c(memoryview(batch)[_ATTRIBUTES_AT:]))
    return batch


def gap_batches(first: int, last: int) -> list[bytearray]:
    """Batches that cover offsets `first` to `last`, which have no records: one batch per 2^30 offsets.

    They are control batches like transaction markers: clients skip them and continue behind them. (An empty batch, as
    compaction may leave in Kafka, would not do: some clients spin or reread if a log ends with one.) The record in each
    batch is a marker at the batch's last offset. It has no timestamp, so that no look-up by time finds it.
    """
    batches = []
    for begin in range(first, last + 1, MAX_EMPTY):
        delta = min(last - begin, MAX_EMPTY - 1)
        record = bytearray((0, 0))  # attributes, time
        _put_varint(record, delta)
        _put_field(record, _MARKER.pack(0, COMMIT_MARKER))
        _put_field(record, _MARKED.pack(0, 0))
        record.append(0)
        batch = bytearray(BATCH_HEADER_SIZE)
        _put_varint(batch, len(record))
        batch += record
        length = len(batch) - _LENGTH_PREFIX
        _HEADER.pack_into(batch, 0, begin, length, -1, MAGIC, 0, CONTROL_BIT, delta, -1, -1, -1, -1, -1, 1)
        _UINT32.pack_into(batch, _CRC_AT, crc32c(memoryview(batch)[_ATTRIBUTES_AT:]))
        batches.append(batch)
    return batches


def marker_type(header: BatchHeader, batch: Buffer) -> int | None:
    """The type of the marker in a control batch: 0 abort, 1 commit, others are internal to Kafka; None: no marker.

    Raises `CorruptBatch`.
    """
    for record in _records(header, batch):
        if record.key is not None and len(record.key) >= _MARKER.size:
            return int(_MARKER.unpack_from(record.key)[1])
    return None


def _put_varint(out: bytearray, value: int) -> None:
    value = (value << 1) ^ (value >> 63)
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _put_field(out: bytearray, value: bytes | None) -> None:
    if value is None:
        out.append(1)  # -1
        return
    _put_varint(out, len(value))
    out += value


def find_by_time(view: Buffer, timestamp: int) -> tuple[int, int] | None:
    """The (offset, timestamp) of the first record at or after `timestamp` in the batches, or None.

    For a batch whose records cannot be read, only the header counts: earlier versions stored batches unchecked.
    """
    for header, batch in iter_batches(view):
        if header.max_timestamp < timestamp:
            continue
        try:
            for record in batch_records(header, batch):
                if record.timestamp >= timestamp:
                    return record.offset, record.timestamp
        except CorruptBatch:
            return header.base_offset, header.max_timestamp
    return None


def find_max_time(view: Buffer) -> tuple[int, int]:
    """The (offset, timestamp) of the first record with the largest timestamp. Raises `CorruptBatch`."""
    latest: tuple[BatchHeader, memoryview] | None = None
    for header, batch in iter_batches(view):
        if latest is None or header.max_timestamp > latest[0].max_timestamp:
            latest = header, batch
    if latest is None:
        raise CorruptBatch("no record batch to look for the latest record in")
    try:
        best = max(batch_records(*latest), key=lambda record: record.timestamp, default=None)
    except CorruptBatch:  # as in `find_by_time`
        return latest[0].base_offset, latest[0].max_timestamp
    if best is None:
        raise CorruptBatch("the latest record batch holds no record")
    return best.offset, best.timestamp
