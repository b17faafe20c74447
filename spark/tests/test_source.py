"""Batch reads: what Kafka clients wrote is returned as rows, from the requested offsets, in few tasks."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from conftest import Node

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]


def read(spark: "SparkSession", node: "Node", **options: Any) -> "DataFrame":
    return spark.read.format("headrace").option("bootstrap", node.bootstrap).options(**options).load()


def numbered(count: int, *, first: int = 0, **more: Any) -> list[dict[str, Any]]:
    return [{"key": b"k%d" % (n % 5), "value": b"v%d" % n, **more} for n in range(first, first + count)]


def test_rows_have_the_columns_of_sparks_kafka_source(spark: "SparkSession", node: "Node") -> None:
    topic = node.topic()
    node.produce(
        topic,
        [
            {"key": b"a", "value": b"1", "timestamp": 1_700_000_000_123, "headers": [("h", b"x"), ("n", None)]},
            {"key": None, "value": None, "timestamp": 1_700_000_000_124},
        ],
    )
    rows = read(spark, node, topics=topic, includeHeaders="true").selectExpr("*", "unix_millis(timestamp) ms").collect()
    first, second = sorted(rows, key=lambda row: row["offset"])
    assert (bytes(first["key"]), bytes(first["value"])) == (b"a", b"1")
    assert (first["topic"], first["partition"], first["offset"], first["ms"]) == (topic, 0, 0, 1_700_000_000_123)
    assert first["timestampType"] == 0
    assert [(pair["key"], pair["value"]) for pair in first["headers"]] == [("h", b"x"), ("n", None)]
    assert (second["key"], second["value"], second["headers"]) == (None, None, None)
    plain = read(spark, node, topics=topic)
    assert plain.columns == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]


@pytest.mark.parametrize("compression", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_records_are_read(spark: "SparkSession", node: "Node", compression: str) -> None:
    topic = node.topic()
    producer = Producer({"bootstrap.servers": node.bootstrap, "compression.type": compression, "linger.ms": 50})
    for n in range(2000):
        producer.produce(topic, b"value %d" % n)
    assert producer.flush(30) == 0
    values = {bytes(row["value"]) for row in read(spark, node, topics=topic).select("value").collect()}
    assert values == {b"value %d" % n for n in range(2000)}


def test_places_to_start_and_end(spark: "SparkSession", node: "Node") -> None:
    topic = node.topic(partitions=2)
    for number in (0, 1):
        node.produce(topic, [{"value": b"%d" % n, "partition": number, "timestamp": 1000 * n + 1} for n in range(10)])

    def count(**options: str) -> int:
        return read(spark, node, topics=topic, **options).count()

    assert count() == 20
    assert count(startingOffsets="latest") == 0
    assert count(startingOffsets=f'{{"{topic}": {{"0": 4, "1": -1}}}}') == 6
    assert count(startingOffsets="5001") == 10
    assert count(startingOffsets="1970-01-01T00:00:05.001Z", endingOffsets="8001") == 6
    assert count(startingOffsets="99999999") == 0
    assert count(endingOffsets=f'{{"{topic}": {{"0": 3, "1": 0}}}}') == 3


def test_topics_of_a_stream_have_bare_names(spark: "SparkSession", node: "Node") -> None:
    node.admin("stream.create", {"path": "/plant/pumps", "policy": {}})
    node.produce("/plant/pumps:north", numbered(3))
    node.produce("/plant/pumps:south", numbered(4))
    named = read(spark, node, stream="/plant/pumps", topics="north,south").groupBy("topic").count().collect()
    assert {row["topic"]: row["count"] for row in named} == {"north": 3, "south": 4}
    matched = read(spark, node, stream="/plant/pumps", topicPattern="so.*").select("topic").distinct().collect()
    assert [row["topic"] for row in matched] == ["south"]
    full = read(spark, node, topics="/plant/pumps:north").select("topic").distinct().collect()
    assert [row["topic"] for row in full] == ["/plant/pumps:north"]


def test_work_is_spread_over_tasks_and_small_topics_share_one(spark: "SparkSession", node: "Node") -> None:
    topic = node.topic()
    node.produce(topic, [{"value": bytes(1000)} for _ in range(4000)])
    assert read(spark, node, topics=topic, minPartitions="4").rdd.getNumPartitions() == 4
    many = [node.topic(name=f"small-{n}") for n in range(20)]
    for name in many:
        node.produce(name, numbered(5))
    small = read(spark, node, topicPattern="small-.*")
    assert small.rdd.getNumPartitions() == 1
    assert small.groupBy("topic").count().where("count = 5").count() == 20


def test_a_topic_that_is_absent_is_named(spark: "SparkSession", node: "Node") -> None:
    with pytest.raises(Exception, match="the cluster has no topic nowhere"):
        read(spark, node, topics="nowhere").count()


def test_a_cluster_that_is_away_is_said_in_one_line(spark: "SparkSession") -> None:
    reader = spark.read.format("headrace").options(bootstrap="127.0.0.1:1", topics="t", timeout="1")
    with pytest.raises(
        Exception, match=r"cannot read the cluster's topics, tried for 1 s: .*check the option bootstrap"
    ):
        reader.load().count()


def test_offsets_that_expired_fail_the_query_or_are_passed(spark: "SparkSession", node: "Node") -> None:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    topic = node.topic()
    node.produce(topic, numbered(10))
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    for done in admin.delete_records([TopicPartition(topic, 0, 6)]).values():
        done.result()
    start = f'{{"{topic}": {{"0": 2}}}}'
    with pytest.raises(Exception, match=r"offsets 2 to 6 have expired; the first is 6. Set failOnDataLoss to false"):
        read(spark, node, topics=topic, startingOffsets=start).count()
    assert read(spark, node, topics=topic, startingOffsets=start, failOnDataLoss="false").count() == 4


def test_a_read_goes_on_over_a_restart_of_the_node(spark: "SparkSession", new_node: Callable[..., "Node"]) -> None:
    own = new_node()
    topic = own.topic(partitions=2)
    own.produce(topic, numbered(500))
    frame = read(spark, own, topics=topic)
    assert frame.count() == 500
    own.kill()
    own.start()
    assert frame.count() == 500


def test_a_stream_alone_is_all_of_its_topics_and_far_times_are_null(spark: "SparkSession", node: "Node") -> None:
    first = node.topic()
    stream = first.rpartition(":")[0]
    node.produce(first, [{"value": b"1", "timestamp": at} for at in (1_700_000_000_123, 1_700_000_000_000_000_000)])
    rows = read(spark, node, stream=stream or "/default").where(f"topic = '{first.rpartition(':')[2]}'")
    assert [row["ms"] for row in rows.selectExpr("unix_millis(timestamp) ms").collect()] == [1_700_000_000_123, None]
