"""Record batches built from columns are readable by another implementation."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.wire.batch import iter_records, read_batch
from headrace_spark.encode import Columns, ProducerToken, build_batch, record_sizes

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
Row = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int]

rows_of = st.lists(
    st.tuples(
        st.none() | st.binary(max_size=200),
        st.none() | st.binary(max_size=300),
        st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=70)), max_size=3),
        st.integers(min_value=0, max_value=1 << 42),
    ),
    min_size=1,
    max_size=70,
)


def columns_of(rows: list[Row], *, keyed: bool = True, with_headers: bool = True) -> Columns:
    headers = [[{"key": name, "value": value} for name, value in row[2]] or None for row in rows]
    return Columns(
        key=pa.array([row[0] for row in rows], pa.large_binary()) if keyed else None,
        value=pa.array([row[1] for row in rows], pa.large_binary()),
        headers=pa.array(headers, HEADERS) if with_headers else None,
        timestamps=np.array([row[3] for row in rows], np.int64),
    )


@settings(deadline=None)
@given(rows_of, st.sampled_from(["none", "gzip", "snappy", "lz4", "zstd"]))
def test_the_servers_reader_finds_every_field_of_every_row(rows: list[Row], compression: str) -> None:
    batch = build_batch(columns_of(rows), compression=compression)
    found = list(iter_records(batch))
    assert [(one.key, one.value, one.timestamp) for one in found] == [(row[0], row[1], row[3]) for row in rows]
    assert [[(name, value) for name, value in one.headers] for one in found] == [row[2] for row in rows]
    assert [one.offset for one in found] == list(range(len(rows)))


@given(rows_of)
def test_rows_without_key_and_headers_take_no_more_than_their_values(rows: list[Row]) -> None:
    found = list(iter_records(build_batch(columns_of(rows, keyed=False, with_headers=False))))
    assert [(one.key, one.value) for one in found] == [(None, row[1]) for row in rows]


@given(rows_of)
def test_the_sizes_of_rows_are_an_upper_bound(rows: list[Row]) -> None:
    columns = columns_of(rows)
    assert len(build_batch(columns)) - 61 <= int(record_sizes(columns).sum())


def test_a_slice_of_columns_is_encoded_without_its_neighbours() -> None:
    whole = columns_of([(b"k%d" % n, b"v%d" % n, [("h", b"%d" % n)], n) for n in range(100)])
    part = Columns(whole.key[40:60], whole.value[40:60], whole.headers[40:60], whole.timestamps[40:60])
    found = list(iter_records(build_batch(part)))
    assert [(one.key, one.value) for one in found] == [(b"k%d" % n, b"v%d" % n) for n in range(40, 60)]
    assert [list(one.headers) for one in found] == [[("h", b"%d" % n)] for n in range(40, 60)]


def test_the_token_stands_in_the_header() -> None:
    batch = build_batch(columns_of([(None, b"v", [], 5)]), token=ProducerToken(-77, 0, 12))
    header = read_batch(memoryview(batch), from_client=False)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-77, 0, 12)


def test_no_rows_make_no_batch() -> None:
    with pytest.raises(ValueError, match="at least one record"):
        build_batch(columns_of([]))


def test_an_unknown_compression_is_refused() -> None:
    with pytest.raises(ValueError, match="use one of none, gzip"):
        build_batch(columns_of([(None, b"v", [], 5)]), compression="brotli")
