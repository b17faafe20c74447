"""Rows that a task sends again are stored once if they are the same, and different rows are never dropped."""

import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from headrace_spark.cluster import Cluster
from headrace_spark.once import store_once
from headrace_spark.options import write_options
from headrace_spark.rows import gather
from headrace_spark.sink import _outgoing
from headrace_spark.tokens import TaskToken

if TYPE_CHECKING:
    from conftest import Node

ROWS = 60


def attempt(
    node: "Node", topic: str, columns: dict[str, Any], *, only: int | None = None, now: int = 1, **options: str
) -> None:
    """Run an attempt of one task; with `only`, one that died after storing the rows of that partition."""
    asked = write_options({"bootstrap": node.bootstrap, "topic": topic, "timeout": "30", **options})
    rows = gather([pa.RecordBatch.from_pydict(columns)], naming=asked.naming, topic=asked.topic, now_ms=now)
    assert rows is not None
    with Cluster(asked.connection) as cluster:
        counts = cluster.partition_counts([topic])
        outgoing = list(_outgoing(rows, counts, asked, TaskToken("query", 0, 7)))
        store_once(cluster, [one for one in outgoing if only in (None, one[0][1])], timed=rows.timed)


def stored(node: "Node", topic: str) -> Counter[bytes]:
    return Counter(record.value() for record in node.consume(topic))


def keyed(seed: int) -> dict[str, Any]:
    """The same rows, with keys that differ in each attempt, like uuid()."""
    keys = random.Random(seed)
    return {"key": [b"%032x" % keys.getrandbits(128) for _ in range(ROWS)], "value": [b"%d" % n for n in range(ROWS)]}


def test_a_re_run_that_spreads_its_rows_otherwise_loses_none(node: "Node") -> None:
    topic = node.topic(partitions=2)
    attempt(node, topic, keyed(1), only=0)
    attempt(node, topic, keyed(2))
    found = stored(node, topic)
    assert sorted(found) == sorted(b"%d" % n for n in range(ROWS))
    assert max(found.values()) == 2
    attempt(node, topic, keyed(2))
    assert stored(node, topic) == found


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_the_same_rows_in_another_order_at_another_time_are_stored_once(node: "Node", compression: str) -> None:
    topic = node.topic(partitions=2)
    order = list(range(ROWS))
    for now in range(3):
        columns = {
            "key": [None if n % 3 == 0 else b"%d" % n for n in order],
            "value": [None if n % 7 == 0 else b"%d" % n for n in order],
            "headers": pa.array([[{"key": "n", "value": b"%d" % n}] * (n % 3) for n in order]),
        }
        attempt(node, topic, columns, now=1_700_000_000_000 + now, compression=compression)
        random.Random(now).shuffle(order)
    assert stored(node, topic).total() == ROWS


@pytest.mark.parametrize("column", ["headers", "timestamp"])
def test_rows_that_differ_in_one_field_alone_are_other_rows(node: "Node", column: str) -> None:
    topic = node.topic()
    for n in (1, 2, 1, 2):
        other = [{"key": "n", "value": b"%d" % n}] if column == "headers" else n
        kind = None if column == "headers" else pa.timestamp("ms", tz="UTC")
        attempt(node, topic, {"value": [b"v"], column: pa.array([other], kind)})
    assert stored(node, topic) == {b"v": 2}


def test_what_cannot_be_read_back_any_more_is_stored_again(node: "Node") -> None:
    topic = node.topic()
    attempt(node, topic, {"value": [b"v"]})
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    for done in admin.delete_records([TopicPartition(topic, 0, 1)]).values():
        done.result()
    attempt(node, topic, {"value": [b"v"]})
    assert stored(node, topic) == {b"v": 1}
