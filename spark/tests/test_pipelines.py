"""The pipeline over a running node: a machine's readings in, its failure flagged."""

import csv
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace_spark.anomalies import Detection, alarms_of, quality

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from conftest import Node

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
NAB = Path(__file__).parents[3] / "shared" / "data" / "nab"
MACHINE = "realKnownCause/machine_temperature_system_failure.csv"


def test_statistics_and_flags_of_a_batch(spark: "SparkSession") -> None:
    from headrace_spark.pipelines import as_records, flag_anomalies, readings, windowed_statistics

    start = datetime(2026, 1, 1, tzinfo=UTC)
    rows = [
        ("pump", b"rpm", str(value).encode(), start + timedelta(seconds=20 * n)) for n, value in enumerate([1, 2, 6, 4])
    ]
    rows += [("pump", b"rpm", b"broken", start), ("pump", b"rpm", b"Infinity", start), ("fan", None, b"7.5", start)]
    records = spark.createDataFrame(rows, "topic string, key binary, value binary, timestamp timestamp")
    statistics = windowed_statistics(readings(records), window="1 minute")
    found = {(row["device"], row["sensor"], row["start"].minute): row for row in statistics.collect()}
    pump = found["pump", "rpm", 0]
    assert (pump["count"], pump["mean"], pump["min"], pump["max"]) == (3, 3.0, 1.0, 6.0)
    assert pump["stddev"] == pytest.approx(2.6457513)
    assert found["fan", "fan", 0]["stddev"] == 0.0
    assert found["pump", "rpm", 1]["count"] == 1
    flagged = flag_anomalies(
        statistics, Detection(history=4, warm_up=1, threshold=1.0, persistence=1, least_spread=0.1)
    )
    assert {(row["device"], row["start"].minute): row["anomaly"] for row in flagged.collect()} == {
        ("pump", 0): False,
        ("pump", 1): True,
        ("fan", 0): False,
    }
    out = as_records(flagged.where("device = 'fan'"), key="sensor", topic="alarms").collect()
    assert (out[0]["key"], out[0]["topic"]) == ("fan", "alarms")
    assert json.loads(out[0]["value"])["mean"] == 7.5


@pytest.mark.skipif(not NAB.is_dir(), reason=f"the recordings are not at {NAB}")
def test_the_failure_of_the_machine_is_flagged_by_a_restarted_stream(
    spark: "SparkSession", node: "Node", tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    from headrace_spark.pipelines import as_records, flag_anomalies, readings, statistics_of, windowed_statistics

    topic, windows_topic = node.topic(name="machine-temperature"), node.topic(name="machine-windows")
    with (NAB / "data" / MACHINE).open() as file:
        rows = [
            {
                "key": b"temperature",
                "value": row["value"].encode(),
                "timestamp": int(datetime.fromisoformat(row["timestamp"]).replace(tzinfo=UTC).timestamp() * 1000),
            }
            for row in csv.DictReader(file)
        ]

    def records(name: str) -> "DataFrame":
        return spark.readStream.format("headrace").options(bootstrap=node.bootstrap, topics=name).load()

    def run() -> None:
        measured = windowed_statistics(readings(records(topic)), window="4 hours", watermark="1 hour")
        writer = as_records(measured, key="sensor").writeStream.format("headrace")
        writer = writer.options(bootstrap=node.bootstrap, topic=windows_topic)
        writer.option("checkpointLocation", str(tmp_path / "a")).trigger(availableNow=True).start().awaitTermination()
        flags = flag_anomalies(statistics_of(records(windows_topic)), Detection())
        kept = flags.writeStream.format("parquet").option("path", str(tmp_path / "out"))
        kept.option("checkpointLocation", str(tmp_path / "b")).trigger(availableNow=True).start().awaitTermination()

    half = len(rows) // 2
    node.produce(topic, rows[:half])
    run()
    node.produce(topic, rows[half:])
    run()

    windows = json.loads((NAB / "labels" / "combined_windows.json").read_text())[MACHINE]
    labels = [(datetime.fromisoformat(start), datetime.fromisoformat(end)) for start, end in windows]
    out = spark.read.parquet(str(tmp_path / "out"))
    assert out.count() == out.select("start").distinct().count() >= 472
    flagged = [(row["start"], row["end"]) for row in out.where("anomaly").collect()]
    alarms = alarms_of(flagged, gap_s=12 * 3600)
    measured = quality(alarms, labels)
    record_property("precision", measured.precision)
    record_property("recall", measured.recall)
    assert quality(alarms, labels[-1:]).found == 1, "the failure of 8 February 2014"
    assert measured.precision >= 0.75
    assert measured.recall >= 0.75
