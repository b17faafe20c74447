"""Fetch responses become columns: every field, only committed records, and nothing from corrupt bytes."""

import struct

import numpy as np
import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatchBuilder

from headrace.wire import batch as wire
from headrace_spark.decode import AbortedTransaction, CorruptRecords, decode
from headrace_spark.encode import Columns, build_batch
from headrace_spark.reading import micros

Row = tuple[bytes | None, bytes | None, list[tuple[str, bytes]], int]

rows_of = st.lists(
    st.tuples(
        st.none() | st.binary(max_size=150),
        st.none() | st.binary(max_size=200),
        st.lists(st.tuples(st.text(max_size=4), st.binary(max_size=70)), max_size=3),
        st.integers(min_value=1, max_value=1 << 42),
    ),
    min_size=1,
    max_size=40,
)


def batch_of(rows: list[Row], *, base: int = 0, compression: int = 0, producer: int = -1, attributes: int = 0) -> bytes:
    """Return a batch built by another implementation, stamped as a server does."""
    builder = DefaultRecordBatchBuilder(
        magic=2, compression_type=compression, is_transactional=producer >= 0, producer_id=producer,
        producer_epoch=0 if producer >= 0 else -1, base_sequence=0 if producer >= 0 else -1, batch_size=1 << 26,
    )  # fmt: skip
    for number, (key, value, headers, timestamp) in enumerate(rows):
        assert builder.append(number, timestamp=timestamp, key=key, value=value, headers=headers) is not None
    batch = bytearray(builder.build())
    struct.pack_into(">q", batch, 0, base)
    if attributes:
        (found,) = struct.unpack_from(">h", batch, 21)
        struct.pack_into(">h", batch, 21, found | attributes)
        struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    return bytes(batch)


def simple(count: int, *, base: int, producer: int = -1, attributes: int = 0) -> bytes:
    rows: list[Row] = [(b"k", b"%d" % (base + n), [], 1000 + n) for n in range(count)]
    return batch_of(rows, base=base, producer=producer, attributes=attributes)


@settings(deadline=None)
@given(st.lists(st.tuples(rows_of, st.sampled_from([0, 1])), min_size=1, max_size=4))
def test_every_field_of_every_record_arrives(batches: list[tuple[list[Row], int]]) -> None:
    answer, rows, base = b"", list[Row](), 0
    for content, compression in batches:
        answer += batch_of(content, base=base, compression=compression)
        rows += content
        base += len(content)
    records, following = decode(memoryview(answer), first=0, end=base, with_headers=True)
    assert records is not None
    assert following == base
    assert records.key.to_pylist() == [row[0] for row in rows]
    assert records.value.to_pylist() == [row[1] for row in rows]
    assert records.offset.tolist() == list(range(base))
    assert records.timestamp.tolist() == [row[3] for row in rows]
    assert records.timestamp_type.tolist() == [0] * base
    found = [
        None if one is None else [(pair["key"], pair["value"]) for pair in one] for one in records.headers.to_pylist()
    ]
    assert found == [row[2] or None for row in rows]


@pytest.mark.parametrize("compression", ["snappy", "lz4", "zstd"])
def test_the_other_compressions_are_read(compression: str) -> None:
    values = [b"value %d" % n for n in range(5000)]
    columns = Columns(None, pa.array(values, pa.large_binary()), None, np.arange(5000))
    records, following = decode(memoryview(build_batch(columns, compression=compression)), first=0, end=5000)
    assert records is not None
    assert records.value.to_pylist() == values
    assert following == 5000


def test_records_outside_the_range_are_left_out() -> None:
    answer = simple(10, base=0) + simple(10, base=10) + simple(10, base=20)
    records, following = decode(memoryview(answer), first=7, end=15)
    assert records is not None
    assert records.offset.tolist() == list(range(7, 15))
    assert following == 20


def test_a_batch_that_is_cut_off_is_read_with_the_next_answer() -> None:
    answer = simple(3, base=0) + simple(3, base=3)
    records, following = decode(memoryview(answer)[:-1], first=0, end=6)
    assert records is not None
    assert records.offset.tolist() == [0, 1, 2]
    assert following == 3
    assert decode(memoryview(answer)[:50], first=0, end=6) == (None, 0)


def test_aborted_transactions_and_markers_are_not_seen() -> None:
    marker = 0x30  # control, transactional
    answer = (
        simple(2, base=0, producer=7)
        + simple(2, base=2, producer=8)
        + simple(1, base=4, producer=7, attributes=marker)
        + simple(2, base=5, producer=7)
        + simple(1, base=7, producer=8, attributes=marker)
        + simple(1, base=8)
    )
    records, following = decode(memoryview(answer), first=0, end=9, aborted=[AbortedTransaction(7, 0)])
    assert records is not None
    assert records.offset.tolist() == [2, 3, 5, 6, 8]
    assert following == 9


def test_a_range_of_nothing_but_markers_is_passed() -> None:
    assert decode(memoryview(simple(1, base=4, producer=7, attributes=0x30)), first=4, end=5) == (None, 5)


def test_append_time_is_the_batchs() -> None:
    batch = bytearray(simple(3, base=0, attributes=0x08))
    struct.pack_into(">q", batch, 35, 99_000)
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    records, _ = decode(memoryview(batch), first=0, end=3)
    assert records is not None
    assert records.timestamp.tolist() == [99_000] * 3
    assert records.timestamp_type.tolist() == [1, 1, 1]


@given(st.integers(min_value=21, max_value=200), st.integers(min_value=1, max_value=255))
@example(place=23, flip=0x80)  # the last offset delta: the batch would seem to end too early
def test_a_flipped_byte_is_found(place: int, flip: int) -> None:
    batch = bytearray(simple(30, base=0))
    batch[place] ^= flip
    with pytest.raises(CorruptRecords, match="checksum"):
        decode(memoryview(batch), first=0, end=30)


@given(st.binary(min_size=1, max_size=60), st.integers(min_value=1, max_value=2**31 - 1))
def test_nonsense_with_a_right_checksum_is_refused_or_read_never_more(records: bytes, count: int) -> None:
    batch = bytearray(simple(1, base=0)[:61] + records)
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">i", batch, 57, count)
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    try:
        found, _ = decode(memoryview(batch), first=0, end=1 << 40, with_headers=True)
    except CorruptRecords:
        return
    assert found is None or len(found.offset) <= len(records)


def test_an_old_message_set_is_refused() -> None:
    batch = bytearray(simple(1, base=0))
    batch[16] = 1
    with pytest.raises(CorruptRecords, match="version 1"):
        decode(memoryview(batch), first=0, end=1)


def test_columns_have_sparks_types() -> None:
    records, _ = decode(memoryview(simple(2, base=0)), first=0, end=2, with_headers=True)
    assert records is not None
    assert (records.key.type, records.value.type) == (pa.binary(), pa.binary())
    assert records.headers.to_pylist() == [None, None]


INT64 = st.integers(-(2**63), 2**63 - 1)


@given(st.lists(INT64, min_size=1))
def test_a_time_is_itself_in_microseconds_or_none_at_all(millis: list[int]) -> None:
    fits = [each * 1000 if abs(each) <= (2**63 - 1) // 1000 else None for each in millis]
    assert micros(np.array(millis, np.int64)).cast(pa.int64()).to_pylist() == fits


@pytest.mark.parametrize("at", [0, -1, 1_700_000_000_000_000_000, 2**63 - 1, -(2**63)])
def test_the_times_of_records_are_as_stored(at: int) -> None:
    records, _ = decode(memoryview(wire.build_batch([(at, None, b"v", [])])), first=0, end=1)
    assert records is not None
    assert records.timestamp.tolist() == [at]


def test_a_time_beyond_64_bits_is_none() -> None:
    whole = wire.build_batch([(0, None, b"v", []), (10, None, b"v", [])])
    struct.pack_into(">q", whole, 27, 2**63 - 5)
    struct.pack_into(">I", whole, 17, crc32c(bytes(whole[21:])))
    records, _ = decode(memoryview(whole), first=0, end=2)
    assert records is not None
    assert records.timestamp.tolist() == [2**63 - 5, -(2**63)]
    assert micros(records.timestamp).to_pylist() == [None, None]


def test_names_of_headers_that_are_no_utf8_are_replaced_and_end_nothing() -> None:
    rows = [(1, None, b"v", [("a\udcff", b"1"), ("b", None)]), (2, None, b"w", [])]
    records, _ = decode(memoryview(wire.build_batch(rows)), first=0, end=2, with_headers=True)
    assert records is not None
    assert records.headers is not None
    assert records.headers.to_pylist() == [[{"key": "a\ufffd", "value": b"1"}, {"key": "b", "value": None}], None]
