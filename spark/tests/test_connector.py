"""Spark's own Kafka connector works with a Headrace node, batch and streaming, reading and writing."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from conftest import Node

pytestmark = [pytest.mark.spark, pytest.mark.java, pytest.mark.timeout(240)]


@pytest.fixture(autouse=True)
def _needs_the_connector(connector_jars: list[Path]) -> None:
    if not connector_jars:
        pytest.skip("Spark's Kafka connector is not there, and Maven cannot bring it")


def test_batch_both_ways(spark: "SparkSession", node: "Node") -> None:
    topic = node.topic(partitions=3)
    rows = spark.range(500).selectExpr("cast(id as string) key", "cast(id as string) value")
    rows.write.format("kafka").option("kafka.bootstrap.servers", node.bootstrap).option("topic", topic).save()
    assert sorted(int(record.value()) for record in node.consume(topic)) == list(range(500))
    theirs = spark.read.format("kafka").option("kafka.bootstrap.servers", node.bootstrap).option("subscribe", topic)
    ours = spark.read.format("headrace").option("bootstrap", node.bootstrap).option("topics", topic)
    assert theirs.load().count() == 500
    assert ours.load().schema.names == theirs.load().schema.names
    assert [field.dataType for field in ours.load().schema] == [field.dataType for field in theirs.load().schema]
    assert ours.load().exceptAll(theirs.load()).count() == 0


def test_what_our_sink_wrote_is_read_by_it(spark: "SparkSession", node: "Node") -> None:
    topic = node.topic(partitions=2)
    rows = spark.range(500).selectExpr("cast(id as string) key", "cast(id as string) value")
    rows.write.format("headrace").options(bootstrap=node.bootstrap, topic=topic).mode("append").save()
    theirs = spark.read.format("kafka").option("kafka.bootstrap.servers", node.bootstrap).option("subscribe", topic)
    assert theirs.load().selectExpr("cast(cast(value as string) as int) n").distinct().count() == 500


def test_streaming_both_ways(spark: "SparkSession", node: "Node", tmp_path: Path) -> None:
    source, target = node.topic(partitions=2), node.topic(partitions=2)
    node.produce(source, [{"value": b"%d" % n} for n in range(300)])
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", node.bootstrap)
    rows = reader.options(subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger="100").load()
    writer = rows.select("key", "value").writeStream.format("kafka").option("kafka.bootstrap.servers", node.bootstrap)
    query = writer.options(topic=target, checkpointLocation=str(tmp_path)).trigger(availableNow=True).start()
    query.awaitTermination()
    assert len([one for one in query.recentProgress if one.numInputRows]) >= 3
    assert sorted(int(record.value()) for record in node.consume(target)) == list(range(300))
