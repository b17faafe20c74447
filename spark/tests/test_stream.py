"""Streaming reads: limits, restarts, topics that are created later, committed offsets and lag."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headrace_spark.cursors import lag

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from conftest import Node

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


class Run:
    """A query that appends (topic, partition, offset, value) to Parquet files, with one checkpoint."""

    def __init__(self, spark: "SparkSession", node: "Node", folder: Path, **options: Any) -> None:
        self._spark, self._node, self._folder, self._options = spark, node, folder, options

    def start(self, *, available_now: bool = True) -> "StreamingQuery":
        source = self._spark.readStream.format("headrace").options(bootstrap=self._node.bootstrap, **self._options)
        rows = source.load().selectExpr("topic", "partition", "offset", "cast(value as string) value")
        writer = rows.writeStream.format("parquet").option("path", str(self._folder / "out"))
        writer = writer.option("checkpointLocation", str(self._folder / "checkpoint"))
        return (
            writer.trigger(availableNow=True) if available_now else writer.trigger(processingTime="0 seconds")
        ).start()

    def to_the_end(self) -> "StreamingQuery":
        """Run until everything that exists now is read."""
        query = self.start()
        query.awaitTermination()
        return query

    def rows(self) -> "DataFrame":
        return self._spark.read.parquet(str(self._folder / "out"))

    def values(self) -> list[str]:
        return sorted(row["value"] for row in self.rows().select("value").collect())


def values(count: int, *, first: int = 0) -> list[dict[str, Any]]:
    return [{"value": b"%06d" % n} for n in range(first, first + count)]


def named(count: int) -> list[str]:
    return [f"{n:06d}" for n in range(count)]


def batches(query: "StreamingQuery") -> list[int]:
    return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]


def test_available_now_reads_all_in_limited_batches_and_goes_on_from_the_checkpoint(
    spark: "SparkSession", node: "Node", tmp_path: Path
) -> None:
    topic = node.topic(partitions=2)
    for number in (0, 1):
        node.produce(topic, [{**row, "partition": number} for row in values(50, first=50 * number)])
    run = Run(spark, node, tmp_path, topics=topic, maxOffsetsPerTrigger="40")
    query = run.to_the_end()
    assert batches(query) == [40, 40, 20]
    assert run.values() == named(100)
    node.produce(topic, values(10, first=100))
    query = run.to_the_end()
    assert batches(query) == [10]
    assert run.values() == named(110)
    assert batches(run.to_the_end()) == []


def test_a_limit_in_bytes_divides_the_backlog(spark: "SparkSession", node: "Node", tmp_path: Path) -> None:
    topic = node.topic()
    node.produce(topic, [{"value": b"%06d" % n + bytes(994)} for n in range(1000)])
    run = Run(spark, node, tmp_path, topics=topic, maxBytesPerTrigger="300k")
    query = run.to_the_end()
    assert len(batches(query)) in (3, 4)
    assert sum(batches(query)) == 1000


def test_a_topic_that_comes_later_joins_from_its_first_record(
    spark: "SparkSession", node: "Node", tmp_path: Path, eventually: Callable[..., None]
) -> None:
    node.produce(node.topic(name="late-a"), values(3))
    run = Run(spark, node, tmp_path, topicPattern="late-.", startingOffsets="latest")
    query = run.start(available_now=False)
    try:
        eventually(lambda: bool(query.recentProgress) or not query.isActive)
        node.produce(node.topic(name="late-b"), values(5))
        node.produce("late-a", values(2, first=5))
        eventually(lambda: sum(batches(query)) >= 7 or not query.isActive)
    finally:
        query.stop()
    assert query.exception() is None
    assert run.values() == named(7)
    assert run.rows().where("topic = 'late-b'").count() == 5


def test_cursors_follow_each_batch_and_lag_is_in_the_progress(
    spark: "SparkSession", node: "Node", tmp_path: Path, eventually: Callable[..., None]
) -> None:
    topic = node.topic(partitions=2)
    for number in (0, 1):
        node.produce(topic, [{**row, "partition": number} for row in values(30)])
    run = Run(spark, node, tmp_path, topics=topic, maxOffsetsPerTrigger="20", group="parquet-writer")
    query = run.to_the_end()
    assert [lag(progress) for progress in query.recentProgress if progress.numInputRows] == [40, 20, 0]
    eventually(lambda: node.cursors("parquet-writer", topic, 2) == [30, 30])


def test_a_group_that_nobody_named_stays_the_same_over_restarts(
    spark: "SparkSession", node: "Node", tmp_path: Path, eventually: Callable[..., None]
) -> None:
    topic = node.topic()
    node.produce(topic, values(5))
    run = Run(spark, node, tmp_path, topics=topic)

    def group_after_a_run() -> str:
        return str(json.loads(run.to_the_end().recentProgress[0].sources[0].endOffset)["group"])

    group = group_after_a_run()
    assert group.startswith("spark-")
    node.produce(topic, values(5, first=5))
    assert group_after_a_run() == group
    eventually(lambda: node.cursors(group, topic, 1) == [10])


def test_a_query_rides_out_a_killed_node(
    spark: "SparkSession", new_node: Callable[..., "Node"], tmp_path: Path, eventually: Callable[..., None]
) -> None:
    own = new_node()
    topic = own.topic()
    own.produce(topic, values(20))
    run = Run(spark, own, tmp_path, topics=topic)
    query = run.start(available_now=False)
    try:
        eventually(lambda: sum(batches(query)) == 20 or not query.isActive)
        own.kill()
        own.start()
        own.produce(topic, values(20, first=20))
        eventually(lambda: sum(batches(query)) >= 40 or not query.isActive)
    finally:
        query.stop()
    assert query.exception() is None
    assert run.values() == named(40)


def test_a_deleted_topic_fails_the_query_and_says_so(spark: "SparkSession", node: "Node", tmp_path: Path) -> None:
    from confluent_kafka.admin import AdminClient

    for name in ("gone-a", "gone-b"):
        node.produce(node.topic(name=name), values(3))
    run = Run(spark, node, tmp_path, topicPattern="gone-.")
    run.to_the_end()
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    for done in admin.delete_topics(["gone-b"]).values():
        done.result()
    with pytest.raises(Exception, match=r"gone-b/0 is gone from the cluster"):
        run.to_the_end()
    node.produce("gone-a", values(3, first=3))
    Run(spark, node, tmp_path, topicPattern="gone-.", failOnDataLoss="false").to_the_end()
    assert len(run.values()) == 9
