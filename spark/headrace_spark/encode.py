"""Encodes rows of Arrow columns as one Kafka record batch (version 2), without a Python object per row.

Defines the bytes of a record batch. Knows nothing about topics, partitions, sockets or Spark.

    RecordBatch => BaseOffset(8) Length(4) LeaderEpoch(4) Magic(1) CRC(4) Attributes(2) LastOffsetDelta(4)
                   BaseTimestamp(8) MaxTimestamp(8) ProducerId(8) ProducerEpoch(2) BaseSequence(4) Count(4) [Record]
    Record      => Length Attributes(1) TimestampDelta OffsetDelta KeyLength Key ValueLength Value HeaderCount [Header]
    Header      => KeyLength Key ValueLength Value          (lengths and deltas are zigzag varints, -1 = null)

The varints of all rows are computed as one matrix of bytes, and Arrow's element-wise join puts them between keys and
values, so that the joined column's buffer is the batch's record section.
"""

import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c

from headrace.wire.compression import NAMES, compress
from headrace_spark.murmur2 import binary_parts

HEADER = struct.Struct(">qiibIhiqqqhii")
CRC_START = 21
"""Where the checksummed bytes start: everything from the attributes on."""
TOKEN = struct.Struct(">qhi")
TOKEN_START = 43


@dataclass(frozen=True, slots=True)
class Columns:
    """Rows for one partition. All columns have equal length; `key`, `value` are large_binary, `headers` is
    list<struct<key: string, value: binary>> or None, `timestamps` int64 milliseconds since 1970, shape (rows,).
    """

    key: pa.Array | None
    value: pa.Array
    headers: pa.Array | None
    timestamps: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.value)

    def take(self, rows: npt.NDArray[np.int64]) -> "Columns":
        """Return the rows with these numbers, in this order."""
        index = pa.array(rows)
        return Columns(
            key=None if self.key is None else self.key.take(index),
            value=self.value.take(index),
            headers=None if self.headers is None else self.headers.take(index),
            timestamps=self.timestamps[rows],
        )


@dataclass(frozen=True, slots=True)
class ProducerToken:
    """The producer id, epoch and base sequence number of a batch."""

    producer_id: int
    producer_epoch: int
    base_sequence: int


NO_PRODUCER = ProducerToken(-1, -1, -1)


def codec_of(compression: str) -> int:
    """Return the number of a compression codec in a batch's attributes. Raises ValueError for an unknown name."""
    if compression not in NAMES:
        raise ValueError(f"unknown compression {compression!r}: use one of {', '.join(NAMES)}")
    return NAMES.index(compression)


def build_batch(columns: Columns, *, token: ProducerToken = NO_PRODUCER, compression: str = "none") -> bytes:
    """Return all rows as a record batch, with base offset 0. Raises ValueError for no rows or unknown compression."""
    rows = len(columns)
    if rows == 0:
        raise ValueError("a record batch needs at least one record")
    codec = codec_of(compression)
    records: bytes | memoryview = memoryview(_records(columns))
    if codec:
        records = compress(codec, bytes(records))
    first, largest = int(columns.timestamps[0]), int(columns.timestamps.max())
    batch = bytearray(HEADER.size + len(records))
    HEADER.pack_into(
        batch, 0, 0, len(batch) - 12, -1, 2, 0, codec, rows - 1, first, largest,
        token.producer_id, token.producer_epoch, token.base_sequence, rows,
    )  # fmt: skip
    batch[HEADER.size :] = records
    return _with_checksum(batch)


def token_of(batch: bytes | memoryview) -> ProducerToken:
    """Return the token of a record batch."""
    return ProducerToken(*TOKEN.unpack_from(batch, TOKEN_START))


def with_token(batch: bytes, token: ProducerToken) -> bytes:
    """Return the same record batch with another token."""
    other = bytearray(batch)
    TOKEN.pack_into(other, TOKEN_START, token.producer_id, token.producer_epoch, token.base_sequence)
    return _with_checksum(other)


def _with_checksum(batch: bytearray) -> bytes:
    struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[CRC_START:]))
    return bytes(batch)


def record_sizes(columns: Columns) -> npt.NDArray[np.int64]:
    """Return an upper bound of each row's bytes in a batch, shape (rows,)."""
    sizes = np.full(len(columns), 32, np.int64)
    for column in (columns.key, columns.value):
        if column is not None:
            sizes += np.diff(binary_parts(column)[0])
    if columns.headers is not None:
        header_bytes, starts = _header_bytes(columns.headers)
        sizes += np.diff(binary_parts(header_bytes)[0][starts])
    return sizes


def _records(columns: Columns) -> pa.Buffer:
    rows = len(columns)
    key_sizes, key_wire = _lengths(columns.key, rows)
    value_sizes, value_wire = _lengths(columns.value, rows)
    tails, tail_sizes = _tails(columns.headers, rows)
    fields = [
        np.zeros(rows, np.uint64),  # attributes
        _zigzag(columns.timestamps - columns.timestamps[0]),
        _zigzag(np.arange(rows, dtype=np.int64)),
        key_wire,
    ]
    widths = sum(_varint_width(field) for field in fields) + _varint_width(value_wire)
    lengths = widths + key_sizes + value_sizes + tail_sizes
    parts = [
        _varints([_zigzag(lengths), *fields]),
        *([] if columns.key is None else [columns.key]),
        _varints([value_wire]),
        columns.value,
        tails,
    ]
    joined = pc.binary_join_element_wise(
        *parts, pa.scalar(b"", pa.large_binary()), null_handling="replace", null_replacement=""
    )
    offsets, _ = binary_parts(joined)
    return joined.buffers()[2].slice(int(offsets[0]), int(offsets[-1] - offsets[0]))


def _tails(headers: pa.Array | None, rows: int) -> tuple[pa.Scalar | pa.Array, npt.NDArray[np.int64]]:
    """Return the header count and headers of each row, and their sizes, shape (rows,)."""
    if headers is None:
        return pa.scalar(b"\x00", pa.large_binary()), np.ones(rows, np.int64)
    content, starts = _header_bytes(headers)
    counts = np.diff(starts)
    places = binary_parts(content)[0][starts]
    per_row = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), rows, [None, pa.py_buffer(np.ascontiguousarray(places)), content.buffers()[2]]
    )
    tails = pc.binary_join_element_wise(_varints([_zigzag(counts)]), per_row, pa.scalar(b"", pa.large_binary()))
    return tails, np.diff(binary_parts(tails)[0])


def _header_bytes(headers: pa.Array) -> tuple[pa.Array, npt.NDArray[np.int64]]:
    """Return (the bytes of every header of all rows, the index of each row's first header, shape (rows + 1,))."""
    counts = np.asarray(pc.fill_null(pc.list_value_length(headers), 0), dtype=np.int64)
    starts = np.concatenate([np.zeros(1, np.int64), counts.cumsum()])
    flat = headers.flatten()
    names, values = pc.struct_field(flat, 0).cast(pa.large_binary()), pc.struct_field(flat, 1).cast(pa.large_binary())
    if names.null_count:
        raise ValueError("a header's key is null; give every header a key")
    if len(flat) == 0:
        return pa.array([], pa.large_binary()), starts
    joined = pc.binary_join_element_wise(
        _varints([_lengths(names, len(flat))[1]]),
        names,
        _varints([_lengths(values, len(flat))[1]]),
        values,
        pa.scalar(b"", pa.large_binary()),
        null_handling="replace",
        null_replacement="",
    )
    return joined, starts


def _lengths(column: pa.Array | None, rows: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64]]:
    """Return (bytes of each value, 0 for null; the zigzag length in the record, of -1 for null), shape (rows,) each."""
    if column is None:
        return np.zeros(rows, np.int64), np.ones(rows, np.uint64)
    sizes = np.diff(binary_parts(column)[0])
    if column.null_count:
        nulls = np.asarray(column.is_null())
        sizes = np.where(nulls, 0, sizes)
        return sizes, _zigzag(np.where(nulls, -1, sizes))
    return sizes, _zigzag(sizes)


def _zigzag(values: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    return ((values << 1) ^ (values >> 63)).view(np.uint64)


def _varint_width(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """Return how many bytes each value takes as an unsigned varint, shape (rows,)."""
    width = np.ones(len(values), np.int64)
    limit, top = 7, int(values.max(initial=0))
    while top >> limit:
        width += values >= np.uint64(1 << limit)
        limit += 7
    return width


def _varints(fields: list[npt.NDArray[np.uint64]]) -> pa.Array:
    """Return one large_binary value per row: the varints of all its fields, concatenated."""
    blocks, masks = [], []
    for values in fields:
        width = _varint_width(values)
        places = np.arange(int(width.max(initial=1)))
        groups = (values[:, None] >> (7 * places).astype(np.uint64)[None, :]) & np.uint64(0x7F)
        more = places[None, :] < (width - 1)[:, None]
        blocks.append(groups.astype(np.uint8) | (more.astype(np.uint8) << 7))
        masks.append(places[None, :] < width[:, None])
    mask = np.concatenate(masks, axis=1)
    content = np.concatenate(blocks, axis=1)[mask]
    offsets = np.concatenate([np.zeros(1, np.int64), mask.sum(axis=1, dtype=np.int64).cumsum()])
    return pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(content)]
    )
