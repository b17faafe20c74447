"""Reads a topic's whole backlog as a Spark batch and aggregates it: rows, bytes of values, largest offset.

`--source headrace` is our data source, `--source kafka` Spark's own connector. The same query runs several times in one
session; the first run includes Spark's warm-up. Prints one JSON object with the seconds of each run.
"""

import argparse
import json
import os
import sys
import time
from statistics import median

from bench.jars import spark_connector_jars
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import headrace_spark


def session(source: str) -> SparkSession:
    """Return a local session on all cores, with the connector's jars if it is used."""
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = (
        SparkSession.builder.master("local[*]")
        .appName("bench")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "2g")
    )
    if source == "kafka":
        builder = builder.config("spark.jars", ",".join(map(str, spark_connector_jars())))
    return builder.getOrCreate()


def backlog(spark: SparkSession, *, source: str, bootstrap: str, topic: str) -> DataFrame:
    """Return the topic from its first to its last offset."""
    if source == "kafka":
        options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic}
        return spark.read.format("kafka").options(**options).load()
    headrace_spark.register(spark)
    # A bare topic name belongs to the default stream.
    return spark.read.format("headrace").options(bootstrap=bootstrap, stream="/default", topics=topic).load()


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__)
    parse.add_argument("--bootstrap", required=True)
    parse.add_argument("--source", choices=["kafka", "headrace"], required=True)
    parse.add_argument("--topic", required=True)
    parse.add_argument("--records", type=int, required=True)
    parse.add_argument("--size", type=int, required=True)
    parse.add_argument("--times", type=int, default=4)
    options = parse.parse_args()
    spark = session(options.source)
    seconds = []
    for _ in range(options.times):
        began = time.monotonic()
        frame = backlog(spark, source=options.source, bootstrap=options.bootstrap, topic=options.topic)
        (row,) = frame.agg(
            f.count("*").alias("rows"), f.sum(f.length("value")).alias("octets"), f.max("offset").alias("last")
        ).collect()
        seconds.append(time.monotonic() - began)
        if row["rows"] != options.records or row["octets"] != options.records * options.size:
            raise SystemExit(f"read {row['rows']} rows of {row['octets']} bytes, not {options.records}")
    spark.stop()
    warm = median(seconds[1:] or seconds)
    print(
        json.dumps(
            {
                "records": options.records,
                "first_s": seconds[0],
                "seconds": warm,
                "all_s": seconds,
                "per_s": options.records / warm,
                "mb_per_s": options.records * options.size / warm / 1e6,
            }
        )
    )


if __name__ == "__main__":
    main()
