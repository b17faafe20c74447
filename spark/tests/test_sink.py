"""Writes: Kafka clients read what Spark wrote."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from conftest import Node

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]


def write(frame: "DataFrame", node: "Node", **options: Any) -> None:
    frame.write.format("headrace").option("bootstrap", node.bootstrap).options(**options).mode("append").save()


def test_every_field_reaches_a_kafka_client(spark: "SparkSession", node: "Node") -> None:
    topic = node.topic(partitions=3)
    rows = spark.range(300).selectExpr(
        "cast(id % 10 as string) key",
        "cast(id as string) value",
        "timestamp_millis(1700000000000 + id) timestamp",
        "array(named_struct('key', 'n', 'value', cast(cast(id as string) as binary))) headers",
    )
    write(rows.repartition(2), node, topic=topic)
    records = node.consume(topic)
    assert sorted(int(record.value()) for record in records) == list(range(300))
    for record in records:
        number = int(record.value())
        assert record.key() == b"%d" % (number % 10)
        assert record.timestamp() == (1, 1_700_000_000_000 + number)
        assert record.headers() == [("n", b"%d" % number)]
    assert len({record.partition() for record in records}) > 1


def test_keys_go_to_the_partitions_that_kafka_clients_choose(spark: "SparkSession", node: "Node") -> None:
    ours, theirs = node.topic(partitions=5), node.topic(partitions=5)
    write(spark.range(100).selectExpr("concat('key-', id) key", "'v' value"), node, topic=ours)
    producer = Producer({"bootstrap.servers": node.bootstrap, "partitioner": "murmur2_random"})
    for n in range(100):
        producer.produce(theirs, b"v", key=b"key-%d" % n)
    assert producer.flush(30) == 0
    assert {r.key(): r.partition() for r in node.consume(ours)} == {
        r.key(): r.partition() for r in node.consume(theirs)
    }


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_clients_read_every_compression(spark: "SparkSession", node: "Node", compression: str) -> None:
    topic = node.topic()
    write(spark.range(3000).selectExpr("cast(id as string) value"), node, topic=topic, compression=compression)
    assert sorted(int(record.value()) for record in node.consume(topic)) == list(range(3000))


def test_rows_choose_their_topic_and_partition_and_topics_are_made(spark: "SparkSession", node: "Node") -> None:
    node.admin("stream.create", {"path": "/plant/alarms", "policy": {}})
    rows = spark.createDataFrame([("north", "a"), ("south", "b"), ("north", "c")], "topic string, value string")
    write(rows.coalesce(1), node, stream="/plant/alarms")
    assert [record.value() for record in node.consume("/plant/alarms:north")] == [b"a", b"c"]
    assert [record.value() for record in node.consume("/plant/alarms:south")] == [b"b"]
    topic = node.topic(partitions=4)
    write(spark.createDataFrame([("x", 3), ("y", 1)], "value string, partition int"), node, topic=topic)
    assert {record.value(): record.partition() for record in node.consume(topic)} == {b"x": 3, b"y": 1}


def test_what_is_over_the_largest_batch_is_split(spark: "SparkSession", node: "Node") -> None:
    topic = node.topic()
    rows = spark.range(2000).coalesce(1).selectExpr("cast(id as string) key", "repeat('x', 500) value")
    write(rows, node, topic=topic, maxBatchBytes="100k")
    records = node.consume(topic)
    assert sorted(int(record.key()) for record in records) == list(range(2000))


def test_what_cannot_be_written_is_said(spark: "SparkSession", node: "Node") -> None:
    topic = node.topic()
    one = spark.range(1)
    with pytest.raises(Exception, match="rows need a column value"):
        write(one.selectExpr("'k' key"), node, topic=topic)
    with pytest.raises(Exception, match="columns id cannot be written"):
        write(one.selectExpr("id", "'v' value"), node, topic=topic)
    with pytest.raises(Exception, match="the column value is int64"):
        write(one.selectExpr("id value"), node, topic=topic)
    with pytest.raises(Exception, match="give the option topic"):
        write(one.selectExpr("'v' value"), node)
    with pytest.raises(Exception, match="which has partitions 0 to 0"):
        write(one.selectExpr("'v' value", "7 partition"), node, topic=topic)
    assert node.consume(topic) == []


def test_a_named_job_that_is_run_again_writes_once(spark: "SparkSession", node: "Node") -> None:
    topic = node.topic()
    rows = spark.range(10).coalesce(1).selectExpr("cast(id as string) value")
    for _ in range(2):
        write(rows, node, topic=topic, queryName="nightly-2026-11-21")
    assert len(node.consume(topic)) == 10
    write(rows, node, topic=topic, queryName="nightly-2026-11-22")
    assert len(node.consume(topic)) == 20


def test_foreach_batch_writes_once_under_a_name_and_the_batchs_number(spark: "SparkSession", node: "Node") -> None:
    topic = node.topic()
    for batch in (0, 1, 1, 0, 2):
        rows = spark.range(10).coalesce(1).selectExpr(f"'{batch}' value")
        write(rows, node, topic=topic, queryName="per-batch", batchId=batch)
    assert [record.value() for record in node.consume(topic)] == [b"0"] * 10 + [b"1"] * 10 + [b"2"] * 10


def test_a_query_reads_and_writes(spark: "SparkSession", node: "Node", tmp_path: Path) -> None:
    source, target = node.topic(partitions=2), node.topic(partitions=3)
    node.produce(source, [{"key": b"%d" % (n % 7), "value": b"%d" % n} for n in range(100)])
    rows = spark.readStream.format("headrace").options(bootstrap=node.bootstrap, topics=source).load()
    query = (
        rows.selectExpr("key", "concat('seen ', cast(value as string)) value")
        .writeStream.format("headrace")
        .options(bootstrap=node.bootstrap, topic=target, checkpointLocation=str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert sorted(record.value() for record in node.consume(target)) == sorted(b"seen %d" % n for n in range(100))
