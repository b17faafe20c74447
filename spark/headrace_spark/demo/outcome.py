"""Reads the results of the consumers: the database, Parquet, topics. Uses stock libraries only, none of Headrace's.

This module only reads; check.py compares.
"""

import sqlite3
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from sqlite_utils import Database

from headrace_spark.demo.check import FlaggedWindow, StateRow
from headrace_spark.demo.ledger import Aggregates, SensorKey, WindowKey
from headrace_spark.demo.quiet import quiet
from headrace_spark.demo.readings import SENSORS_STREAM, device_of

TIMEOUT_S: Final = 20.0
PAUSE_S: Final = 0.2
PASSING: Final = frozenset(
    {KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE, KafkaError._TRANSPORT, KafkaError._TIMED_OUT}
)
"""Errors that a client gets while a partition changes its leader."""


class Windows(NamedTuple):
    """Windows by their key, and the number of duplicate rows."""

    by_key: dict[WindowKey, FlaggedWindow]
    repeated: int


def read_state(path: Path) -> dict[SensorKey, StateRow]:
    """Return the rows of the state database."""
    with Database(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        return {(row.pop("device"), row.pop("sensor")): StateRow(**row) for row in db.table("sensors").rows}


def read_windows(folder: Path) -> Windows:
    """Return every window in the Parquet folder."""
    import pyarrow.dataset as dataset

    columns = ("device", "sensor", "start", "count", "mean", "min", "max", "baseline", "anomaly")
    table = dataset.dataset(folder, format="parquet", exclude_invalid_files=True).to_table(columns=list(columns))
    found: dict[WindowKey, FlaggedWindow] = {}
    for device, sensor, start, count, mean, low, high, baseline, anomaly in zip(
        *(table.column(name).to_pylist() for name in columns), strict=True
    ):
        key = (device, sensor, round(start.timestamp() * 1000))
        found[key] = FlaggedWindow(Aggregates(count, mean * count, low, high), mean, baseline, anomaly)
    return Windows(found, table.num_rows - len(found))


class _TopicWindow(msgspec.Struct, frozen=True):
    device: str
    sensor: str
    start: str


_windows = msgspec.json.Decoder(_TopicWindow)


def read_window_topic(bootstrap: str, topic: str) -> list[WindowKey]:
    """Return the key of every window in a topic, in order, including repeats."""
    from datetime import datetime

    found = []
    for value in _read_all(bootstrap, topic):
        window = _windows.decode(value)
        start = datetime.fromisoformat(window.start.replace("Z", "+00:00"))
        found.append((window.device, window.sensor, round(start.timestamp() * 1000)))
    return found


def topic_ends(bootstrap: str) -> dict[str, int]:
    """Return how many records each sensors' topic holds, by device."""
    consumer = _consumer(bootstrap)
    try:
        counts: Counter[str] = Counter()
        for name, topic in consumer.list_topics(timeout=TIMEOUT_S).topics.items():
            if name.startswith(f"{SENSORS_STREAM}:"):
                for partition in topic.partitions:
                    low, high = _bounds(consumer, TopicPartition(name, partition))
                    counts[device_of(name)] += high - low
        return dict(counts)
    finally:
        consumer.close()


def _read_all(bootstrap: str, topic: str) -> list[bytes]:
    """Return the values of a topic with one partition, up to its present end. Raises TimeoutError."""
    consumer = _consumer(bootstrap)
    try:
        _, end = _bounds(consumer, TopicPartition(topic, 0))
        consumer.assign([TopicPartition(topic, 0, 0)])
        values: list[bytes] = []
        while len(values) < end:
            messages = consumer.consume(min(end - len(values), 10_000), TIMEOUT_S)
            if not messages:
                raise TimeoutError(f"{topic}: {len(values)} of {end} records came within {TIMEOUT_S:.0f} s")
            values += [message.value() for message in messages if message.error() is None]
        return values
    finally:
        consumer.close()


def _bounds(consumer: Any, place: TopicPartition) -> tuple[int, int]:
    """Return the first and the next offset of a partition. Retries while the partition changes its leader, as this
    client call does not. Raises KafkaException.
    """
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            low, high = consumer.get_watermark_offsets(place, timeout=TIMEOUT_S)
            return low, high
        except KafkaException as error:
            if error.args[0].code() not in PASSING or time.monotonic() > deadline:
                raise
        time.sleep(PAUSE_S)


def _consumer(bootstrap: str) -> Any:
    return Consumer(quiet({"bootstrap.servers": bootstrap, "group.id": "demo-check", "enable.auto.commit": False}))
