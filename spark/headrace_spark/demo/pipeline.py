"""The third consumer: PySpark Structured Streaming, from the sensors' topics to flagged windows.

    /factory/sensors:*  --windows-->  /factory/insights:windows, and windows.parquet/batch=N

One query aggregates each sensor per window of time, judges each window against the same sensor's past, and continues
from its checkpoint, whatever happens to the node meanwhile. A batch that is run again writes the same as before: the
topic recognizes the batch by its query name, in Parquet the batch replaces its own folder, and the sensors' past is
restored from the batches before it when a process starts. The driver judges the windows, since they are few;
pipelines.flag_anomalies is for many.
"""

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil
import pyarrow as pa
from pyarrow import parquet as pq

from headrace_spark.anomalies import Detection, Judgement, Past, judge
from headrace_spark.demo.readings import INSIGHTS_STREAM, SENSORS_STREAM, WINDOWS_TOPIC
from headrace_spark.demo.reports import Orders, SparkReport, say

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

WINDOW_MS: Final = 2_000
WATERMARK_MS: Final = 5_000
"""Milliseconds that a window's end must be older than the newest reading before the window is emitted."""
TRIGGER: Final = "2 seconds"
POLL_S: Final = 0.5
LAST_BATCH_S: Final = 10.0
"""Seconds that a running batch may still take at the end."""
GROUP: Final = "demo-spark"
PART: Final = "windows.parquet"
DETECTION: Final = Detection(history=30, warm_up=5, threshold=8.0, persistence=2)
READING_FIELDS: Final = "time LONG, sensor STRING, value DOUBLE, sequence LONG"


class Judge:
    """Judges windows of all sensors batch by batch, each sensor's in order of time, by anomalies.judge."""

    def __init__(self, parquet: Path) -> None:
        self._parquet = parquet
        self._pasts: dict[tuple[str, str], Past] = {}
        self._known: int | None = None

    def flag(self, windows: pa.Table, *, batch: int) -> pa.Table:
        """Return the batch's windows with the columns baseline, score and anomaly."""
        if self._known is None or batch <= self._known:
            self._remember(before=batch)
        self._known = batch
        windows = windows.sort_by([("device", "ascending"), ("sensor", "ascending"), ("start", "ascending")])
        judgements = [self._judge(row["device"], row["sensor"], row["mean"]) for row in windows.to_pylist()]
        for column, kind in (("baseline", pa.float64()), ("score", pa.float64()), ("anomaly", pa.bool_())):
            windows = windows.append_column(column, pa.array([getattr(one, column) for one in judgements], kind))
        return windows

    def _judge(self, device: str, sensor: str, mean: float) -> Judgement:
        judgement, self._pasts[device, sensor] = judge(mean, self._pasts.get((device, sensor), Past()), DETECTION)
        return judgement

    def _remember(self, *, before: int) -> None:
        """Restore the sensors' past from the windows of earlier batches."""
        self._pasts.clear()
        earlier = sorted(
            (batch, folder) for folder in self._parquet.glob("batch=*") if (batch := batch_of(folder)) < before
        )
        for _, folder in earlier:
            for row in pq.read_table(folder / PART, columns=["device", "sensor", "mean"]).to_pylist():
                self._judge(row["device"], row["sensor"], row["mean"])


def batch_of(folder: Path) -> int:
    """Return the batch to which a folder belongs."""
    return int(folder.name.partition("=")[2])


def keep(windows: pa.Table, folder: Path) -> None:
    """Write a batch's windows as its folder's only file, atomically, replacing the file of a former attempt."""
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / f"_{PART}"
    pq.write_table(windows, draft)
    draft.replace(folder / PART)


class Progress:
    """The query's totals, kept by batch, so that a batch that is run again counts once."""

    def __init__(self, jvm_pid: int) -> None:
        self._jvm_pid = jvm_pid
        self._read: dict[int, tuple[int, int]] = {}
        self._kept: dict[int, tuple[int, int]] = {}
        self._lag = 0
        self._per_second = 0.0

    def kept(self, batch: int, *, windows: int, flagged: int) -> None:
        """Record that a batch's flagged windows are in the topic and in Parquet."""
        self._kept[batch] = (windows, flagged)

    def look(self, query: "StreamingQuery") -> SparkReport:
        """Record the finished batches, and return the query's report."""
        from headrace_spark.cursors import lag

        for one in query.recentProgress:
            row = one.observedMetrics.get("readings")
            if row is not None and one.batchId not in self._read:
                self._read[one.batchId] = (row[0] or 0, row[1] or 0)
            if one.numInputRows:
                self._lag, self._per_second = lag(one), one.processedRowsPerSecond
        readings, checksum = _sums(self._read)
        windows, flagged = _sums(self._kept)
        return SparkReport(
            phase="running",
            jvm_pid=self._jvm_pid,
            batch=max(self._read, default=-1),
            readings=readings,
            checksum=checksum,
            lag=self._lag,
            per_second=self._per_second,
            windows=windows,
            flagged=flagged,
        )


def _sums(totals: dict[int, tuple[int, int]]) -> tuple[int, int]:
    kept = list(totals.values())  # another thread may add a batch
    return sum(first for first, _ in kept), sum(second for _, second in kept)


def readings_of(records: "DataFrame") -> "DataFrame":
    """Return columns device, sensor, time, value of the demo's records, and observe their count and checksum sum."""
    from pyspark.sql import functions as f

    parsed = records.select(
        f.col("topic").alias("device"),
        f.col("value").alias("raw"),
        f.from_json(f.col("value").cast("string"), READING_FIELDS).alias("reading"),
    ).observe("readings", f.count(f.lit(1)), f.sum(f.crc32("raw")))
    return parsed.select(
        "device",
        f.col("reading.sensor").alias("sensor"),
        f.timestamp_millis("reading.time").alias("time"),
        f.col("reading.value").alias("value"),
    )


def start(
    spark: "SparkSession", progress: Progress, *, bootstrap: str, parquet: Path, checkpoint: Path
) -> "StreamingQuery":
    """Start the query and return it."""
    from headrace_spark.pipelines import windowed_statistics

    records = (
        spark.readStream.format("headrace")
        .option("bootstrap", bootstrap)
        .option("stream", SENSORS_STREAM)
        .option("topicPattern", ".*")
        .option("group", GROUP)
        .load()
    )
    statistics = windowed_statistics(
        readings_of(records), window=f"{WINDOW_MS} milliseconds", watermark=f"{WATERMARK_MS} milliseconds"
    )
    judging = Judge(parquet)

    def take(closed: "DataFrame", batch: int) -> None:
        windows = closed.toArrow()
        if windows.num_rows == 0:
            return
        flagged = judging.flag(windows, batch=batch)
        write_records(spark, flagged, bootstrap=bootstrap, batch=batch)
        keep(flagged, parquet / f"batch={batch}")
        progress.kept(batch, windows=flagged.num_rows, flagged=sum(flagged.column("anomaly").to_pylist()))

    return (
        statistics.writeStream.queryName("windows")
        .foreachBatch(take)
        .option("checkpointLocation", str(checkpoint))
        .outputMode("append")
        .trigger(processingTime=TRIGGER)
        .start()
    )


def write_records(spark: "SparkSession", flagged: pa.Table, *, bootstrap: str, batch: int) -> None:
    """Append a batch's windows to their topic, once, even if called repeatedly for the batch."""
    from pyspark.sql import functions as f

    from headrace_spark.pipelines import as_records

    rows = spark.createDataFrame(flagged).coalesce(1)
    (
        as_records(rows, key=f.concat_ws("/", "device", "sensor"))
        .write.format("headrace")
        .option("bootstrap", bootstrap)
        .option("stream", INSIGHTS_STREAM)
        .option("topic", WINDOWS_TOPIC)
        .option("queryName", f"{GROUP}-{batch}")
        .mode("append")
        .save()
    )


def main() -> None:
    """Run the query until the end of orders."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--parquet", required=True, type=Path)
    parser.add_argument("--checkpoint", required=True, type=Path)
    parser.add_argument("--scratch", required=True, type=Path)
    asked = parser.parse_args()
    orders = Orders()
    say(SparkReport("starting Java"))
    from headrace_spark.session import SHORT_LIVED, build_session

    spark = build_session(
        "headrace-demo",
        conf={
            "spark.local.dir": str(asked.scratch),
            "spark.sql.warehouse.dir": str(asked.scratch / "warehouse"),
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.memory": "1g",
            **SHORT_LIVED,
            "spark.sql.streaming.numRecentProgressUpdates": "1000",
        },
    )
    jvm = next((one.pid for one in psutil.Process().children(recursive=True) if "java" in one.name()), 0)
    say(SparkReport("starting queries", jvm))
    try:
        progress = Progress(jvm)
        query = start(spark, progress, bootstrap=asked.bootstrap, parquet=asked.parquet, checkpoint=asked.checkpoint)
        _watch(query, progress, orders)
    finally:
        spark.stop()


def _watch(query: "StreamingQuery", progress: Progress, orders: Orders) -> None:
    """Report until the end of orders, or until the query fails, which is reported and ends the process."""
    while not orders.wait(POLL_S):
        failure = query.exception()
        if failure is not None:
            say(SparkReport("failed", error=str(failure).splitlines()[0]))
            raise SystemExit(1)
        say(progress.look(query))
    deadline = time.monotonic() + LAST_BATCH_S
    while query.status["isTriggerActive"] and time.monotonic() < deadline:
        time.sleep(POLL_S / 10)
    query.stop()


if __name__ == "__main__":
    main()
