"""A task's rows become the same batches however a shuffle delivered them."""

import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as reference

from headrace_spark.encode import Columns, build_batch
from headrace_spark.errors import BadOption
from headrace_spark.options import Naming
from headrace_spark.rows import by_partition, check_schema, gather, parts
from headrace_spark.tokens import TaskToken

PLAIN = Naming(None)


def batch(**columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))


def split(
    source: pa.RecordBatch, counts: dict[str, int], *, topic: str | None, turn: int = 0
) -> dict[tuple[str, int], Columns]:
    rows = gather([source], naming=PLAIN, topic=topic, now_ms=1)
    assert rows is not None
    return dict(by_partition(rows, counts, turn=turn))


def test_keys_go_where_kafkas_clients_send_them() -> None:
    keys = [b"sensor-%d" % n for n in range(200)]
    found = split(batch(key=pa.array(keys), value=pa.array(keys)), {"t": 5}, topic="t")
    where = {key: number for (_, number), columns in found.items() for key in columns.key.to_pylist()}
    assert where == {key: (reference(key) & 0x7FFFFFFF) % 5 for key in keys}


def test_rows_keep_their_order_within_a_partition() -> None:
    numbers = list(range(1000))
    found = split(
        batch(key=pa.array([b"%d" % (n % 7) for n in numbers]), value=pa.array([b"%06d" % n for n in numbers])),
        {"t": 3},
        topic="t",
    )
    for columns in found.values():
        values = columns.value.to_pylist()
        assert values == sorted(values)


def test_each_row_names_its_topic_and_partition() -> None:
    found = split(
        batch(
            topic=pa.array(["a", "b", "a", "b"]),
            partition=pa.array([1, 0, 1, None], pa.int32()),
            value=pa.array(["1", "2", "3", "4"]),
            key=pa.array([None, None, None, "k"]),
        ),
        {"a": 2, "b": 1},
        topic=None,
    )
    assert {where: columns.value.to_pylist() for where, columns in found.items()} == {
        ("a", 1): [b"1", b"3"],
        ("b", 0): [b"2", b"4"],
    }


def test_rows_without_key_go_round_the_partitions_by_task_and_batch() -> None:
    source = batch(value=pa.array(["a", "b", "c"]))
    turns = [next(iter(split(source, {"t": 3}, topic="t", turn=turn))) for turn in range(4)]
    assert turns == [("t", 0), ("t", 1), ("t", 2), ("t", 0)]


def test_topics_are_bare_within_the_stream() -> None:
    rows = gather([batch(topic=pa.array(["press"]), value=pa.array(["v"]))], naming=Naming("/s"), topic=None, now_ms=1)
    assert rows is not None
    assert rows.topic.to_pylist() == ["/s:press"]


def test_timestamps_are_kept_and_missing_ones_are_now() -> None:
    column = pa.array([1_700_000_000_123_000, None], pa.timestamp("us", tz="UTC"))
    rows = gather([batch(value=pa.array(["a", "b"]), timestamp=column)], naming=PLAIN, topic="t", now_ms=5)
    assert rows is not None
    assert rows.columns.timestamps.tolist() == [1_700_000_000_123, 5]


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.none() | st.binary(max_size=3), st.binary(max_size=60)), min_size=1, max_size=80),
    st.integers(400, 2000),
    st.randoms(use_true_random=False),
)
def test_what_is_too_large_is_cut_alike_in_any_order(
    rows: list[tuple[bytes | None, bytes]], limit: int, shuffle: random.Random
) -> None:
    def cut(order: list[tuple[bytes | None, bytes]]) -> list[list[tuple[bytes | None, bytes]]]:
        columns = Columns(
            pa.array([key for key, _ in order], pa.large_binary()),
            pa.array([value for _, value in order], pa.large_binary()),
            None,
            np.zeros(len(order), np.int64),
        )
        found = parts(columns, limit=limit)
        assert all(len(build_batch(part)) <= limit for part in found)
        return [list(zip(part.key.to_pylist(), part.value.to_pylist(), strict=True)) for part in found]

    mixed = list(rows)
    shuffle.shuffle(mixed)
    first, second = cut(rows), cut(mixed)
    assert sorted(map(str, (row for part in first for row in part))) == sorted(map(str, rows))
    heavy = {key for key, _ in rows if sum(len(v) + 40 for k, v in rows if k == key) > limit // 2}
    if not heavy:
        assert [sorted(map(str, part)) for part in first] == [sorted(map(str, part)) for part in second]


def test_a_key_over_the_limit_is_cut_by_row_number() -> None:
    count = 100
    columns = Columns(
        pa.array([b"same"] * count, pa.large_binary()),
        pa.array([b"%04d" % n + bytes(96) for n in range(count)], pa.large_binary()),
        None,
        np.zeros(count, np.int64),
    )
    found = parts(columns, limit=2000)
    values = [value for part in found for value in part.value.to_pylist()]
    assert len(found) > 5
    assert values == columns.value.to_pylist()


@pytest.mark.parametrize(
    ("names", "topic", "message"),
    [
        (["value", "offset"], "t", "columns offset cannot be written"),
        (["key"], "t", "need a column value"),
        (["value"], None, "give the option topic"),
    ],
)
def test_columns_that_cannot_be_written_are_refused(names: list[str], topic: str | None, message: str) -> None:
    with pytest.raises(BadOption, match=message):
        check_schema(names, topic=topic)


def test_rows_that_cannot_be_written_are_refused() -> None:
    with pytest.raises(BadOption, match="partition 3 of t, which has partitions 0 to 2"):
        split(batch(value=pa.array(["v"]), partition=pa.array([3], pa.int32())), {"t": 3}, topic="t")
    with pytest.raises(BadOption, match="a row has no topic"):
        gather([batch(value=pa.array(["v"]), topic=pa.array([None], pa.string()))], naming=PLAIN, topic=None, now_ms=1)
    with pytest.raises(BadOption, match="value is int64"):
        gather([batch(value=pa.array([1]))], naming=PLAIN, topic="t", now_ms=1)


@given(st.integers(0, 10_000), st.integers(0, 2**40), st.integers(0, 100))
def test_tokens_tell_tasks_apart_and_stay_below_every_producer_id(task: int, number: int, part: int) -> None:
    token = TaskToken("q", task, number).part("t", part)
    assert -(1 << 63) <= token.producer_id < -1
    assert 0 <= token.base_sequence < 1 << 31
    assert token == TaskToken("q", task, number).part("t", part)
    assert token.producer_id != TaskToken("q", task + 1, number).part("t", part).producer_id
    assert token.producer_id != TaskToken("q", task, number).part("t", part + 1).producer_id
    assert token.producer_id == TaskToken("q", task, number + 1).part("t", part).producer_id
