"""The fetches of a task, and how their responses are handled."""

import numpy as np
import pyarrow as pa
import pytest

from headrace.wire import fetch
from headrace.wire.batch import build_batch
from headrace_spark.errors import DataLoss
from headrace_spark.options import read_options
from headrace_spark.reading import (
    BATCH_ROWS,
    MAX_MILLIS,
    VERSION,
    _following,
    _joined,
    _mean_bytes,
    fetch_request,
    micros,
    raise_or_skip,
)


def batch(first: int, count: int, value: bytes = b"v") -> bytes:
    return bytes(build_batch([(1, None, value, [])] * count, base_offset=first))


def test_the_mean_size_of_records_is_that_of_whole_headers_however_the_last_batch_is_cut() -> None:
    one, other = batch(0, 4), batch(4, 2)
    assert _mean_bytes(memoryview(one + other)) == (len(one) + len(other)) / 6
    assert _mean_bytes(memoryview(one + other[:70])) == (len(one) + len(other)) / 6
    assert _mean_bytes(memoryview(one + other[:20])) == len(one) / 4
    assert _mean_bytes(memoryview(b"")) is None
    assert _mean_bytes(memoryview(bytes(200))) is None, "that is no batch"


def test_reading_goes_on_behind_the_last_whole_batch() -> None:
    records = batch(10, 3) + batch(13, 2)
    assert _following(memoryview(records), 0) == 15
    assert _following(memoryview(records[:-1]), 0) == 13
    assert _following(memoryview(records), 99) == 99
    assert _following(memoryview(b""), 7) == 7


def test_a_request_names_each_topic_once() -> None:
    body = fetch_request(
        [(("/s:a", 0), 5), (("/s:b", 1), 6), (("/s:a", 2), 7)],
        read_committed=True,
        partition_bytes=100,
        answer_bytes=900,
    )
    request = fetch.decode_request(memoryview(body), 0, VERSION)
    assert [
        (topic.topic, [(each.partition, each.offset) for each in topic.partitions]) for topic in request.topics
    ] == [
        ("/s:a", [(0, 5), (2, 7)]),
        ("/s:b", [(1, 6)]),
    ]
    assert (request.isolation, request.max_bytes, request.topics[0].partitions[0].max_bytes) == (1, 900, 100)


def test_a_time_that_does_not_fit_into_64_bits_of_microseconds_is_null() -> None:
    times = micros(np.array([0, -5, MAX_MILLIS, MAX_MILLIS + 1, -MAX_MILLIS - 1], np.int64))
    assert times.to_pylist() == [0, -5000, MAX_MILLIS * 1000, None, None]


def rows(count: int, first: int = 0) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(range(first, first + count))], names=["n"])


def test_small_batches_are_joined_and_no_row_is_lost_or_moved() -> None:
    sizes = [1, 2, BATCH_ROWS, 5, BATCH_ROWS - 5, 3]
    firsts = [sum(sizes[:index]) for index in range(len(sizes))]
    joined = list(_joined(rows(size, first) for size, first in zip(sizes, firsts, strict=True)))
    assert [each.num_rows for each in joined] == [BATCH_ROWS + 3, BATCH_ROWS, 3]
    assert [row for each in joined for row in each.column(0).to_pylist()] == list(range(sum(sizes)))
    assert list(_joined(iter(()))) == []


def test_records_that_are_gone_fail_the_query_unless_it_says_that_it_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    given = {"bootstrap": "h:1", "topics": "t", "stream": "/s"}
    with pytest.raises(DataLoss, match=r"t/0 has expired\. Set failOnDataLoss"):
        raise_or_skip(read_options(given), "t/0 has expired")
    raise_or_skip(read_options({**given, "failOnDataLoss": "false"}), "t/0 has expired")
    assert "the query continues" in caplog.text
