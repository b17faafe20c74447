"""Transformations of readings, to be composed in a query: statistics per window, anomaly flags, rows for a topic.

Defines the shape of these DataFrames, streaming or not. Knows nothing about clusters, triggers or sinks. Readings are
records whose topic is the device, whose key is the sensor, whose value is a number as text, and whose timestamp is the
time of the reading.
"""

from array import array
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.streaming.state import GroupStateTimeout
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from headrace_spark.anomalies import Detection, Past, judge

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql.streaming.state import GroupState

STATISTICS = StructType(
    [
        StructField("device", StringType()),
        StructField("sensor", StringType()),
        StructField("start", TimestampType()),
        StructField("end", TimestampType()),
        StructField("count", LongType()),
        StructField("mean", DoubleType()),
        StructField("min", DoubleType()),
        StructField("max", DoubleType()),
        StructField("stddev", DoubleType()),
    ]
)
FLAGS = StructType(
    [
        *STATISTICS.fields,
        StructField("baseline", DoubleType()),
        StructField("score", DoubleType()),
        StructField("anomaly", BooleanType()),
    ]
)
_STATE = StructType([StructField("means", BinaryType()), StructField("high", IntegerType())])
"""A sensor's past: its means as concatenated doubles, since Spark 4.2 cannot read an array type in a state's schema."""
_KEYS = ["device", "sensor"]


def readings(records: DataFrame) -> DataFrame:
    """Return columns device, sensor, time, value of records as read by `format("headrace")`; values that are not
    numbers are left out.
    """
    value = f.expr("try_cast(cast(value as string) as double)")
    return records.select(
        f.col("topic").alias("device"),
        f.coalesce(f.col("key").cast("string"), f.col("topic")).alias("sensor"),
        f.col("timestamp").alias("time"),
        value.alias("value"),
    ).where(value.isNotNull() & ~f.isnan(value) & (f.abs(value) < float("inf")))


def windowed_statistics(source: DataFrame, *, window: str, watermark: str | None = None) -> DataFrame:
    """Return STATISTICS of readings for each device, sensor and window of time. `stddev` is 0 for a single reading.

    `window` and `watermark` are durations in Spark's form ("5 minutes"). A streaming query needs `watermark`: a window
    is emitted once, when the newest reading is that much later than its end; readings that arrive later are dropped.
    """
    if watermark is not None:
        source = source.withWatermark("time", watermark)
    grouped = source.groupBy("device", "sensor", f.window("time", window).alias("window"))
    measured = grouped.agg(
        f.count("value").alias("count"),
        f.avg("value").alias("mean"),
        f.min("value").alias("min"),
        f.max("value").alias("max"),
        f.coalesce(f.stddev("value"), f.lit(0.0)).alias("stddev"),
    )
    return measured.select(
        "device", "sensor", f.col("window.start").alias("start"), f.col("window.end").alias("end"),
        "count", "mean", "min", "max", "stddev",
    )  # fmt: skip


def flag_anomalies(statistics: DataFrame, detection: Detection = Detection()) -> DataFrame:  # noqa: B008 (frozen)
    """Return FLAGS: each window with its baseline, score and flag, judged against the same sensor's earlier windows.

    In a streaming query Spark keeps each sensor's past in its state, so a restart continues where it was. Spark allows
    no such state after an aggregation in the same query: write the statistics to a topic, and read them from there with
    `statistics_of`.
    """
    grouped = statistics.groupBy(*_KEYS)
    if statistics.isStreaming:
        return grouped.applyInPandasWithState(
            partial(_flag_batch, detection), FLAGS, _STATE, "append", GroupStateTimeout.NoTimeout
        )
    return grouped.applyInPandas(partial(_flag_all, detection), FLAGS)


def statistics_of(records: DataFrame) -> DataFrame:
    """Return STATISTICS that `as_records` wrote to a topic; other records are left out."""
    parsed = f.from_json(f.col("value").cast("string"), STATISTICS)
    return records.select(parsed.alias("row")).where("row.start is not null and row.mean is not null").select("row.*")


def as_records(rows: DataFrame, *, key: str | Column, topic: str | Column | None = None) -> DataFrame:
    """Return columns key, value (all columns as JSON) and, if given, topic, in the form that a sink takes."""
    columns = [
        (f.col(key) if isinstance(key, str) else key).cast("string").alias("key"),
        f.to_json(f.struct("*")).alias("value"),
    ]
    if topic is not None:
        columns.append((f.lit(topic) if isinstance(topic, str) else topic).alias("topic"))
    return rows.select(*columns)


def _flag_batch(
    detection: Detection, key: Any, frames: Iterable["pd.DataFrame"], state: "GroupState"
) -> Iterator["pd.DataFrame"]:
    """Flag a sensor's windows of one micro-batch, in order of time."""
    import pandas as pd

    past = Past()
    if state.exists:
        means, high = state.get
        past = Past(tuple(array("d", bytes(means))), high)
    flagged, past = _flag(pd.concat(frames), past, detection)
    state.update((array("d", past.means).tobytes(), past.high))
    yield flagged


def _flag_all(detection: Detection, frame: "pd.DataFrame") -> "pd.DataFrame":
    return _flag(frame, Past(), detection)[0]


def _flag(frame: "pd.DataFrame", past: Past, detection: Detection) -> tuple["pd.DataFrame", Past]:
    frame = frame.sort_values("start")
    judgements = []
    for mean in frame["mean"]:
        judgement, past = judge(mean, past, detection)
        judgements.append(judgement)
    baseline, score, anomaly = zip(*judgements, strict=True)
    return frame.assign(baseline=baseline, score=score, anomaly=anomaly)[FLAGS.fieldNames()], past
