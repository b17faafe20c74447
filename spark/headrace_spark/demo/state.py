"""The second consumer: the current state of each sensor in SQLite, exactly once.

Each batch of records changes the state and the next offsets in one transaction, so either both are stored or neither,
and a process that is killed at any point continues where the database is. Afterwards the consumer group's offsets are
committed too, for tools that show lag; nothing relies on them.

    sensors(device, sensor, readings, sequence, time, value, lowest, highest, total)   the state
    cursors(topic, partition, next)                                                    the next offset to read
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from sqlite_utils import Database

from headrace_spark.demo.quiet import quiet
from headrace_spark.demo.readings import ALL_SENSOR_TOPICS, Reading, decode, device_of
from headrace_spark.demo.reports import Orders, StateReport, say

GROUP: Final = "demo-state"
BATCH: Final = 2_000
POLL_S: Final = 0.2
REPORT_S: Final = 0.5
_STATE: Final = {
    "device": str,
    "sensor": str,
    "readings": int,
    "sequence": int,
    "time": int,
    "value": float,
    "lowest": float,
    "highest": float,
    "total": float,
}
"""Columns of `sensors`, with their types; the first two are its key."""
_CURSORS: Final = {"topic": str, "partition": int, "next": int}
"""Columns of `cursors`, likewise."""


class StateDatabase:
    """The state with its next offsets. `skipped` counts records that arrived again."""

    def __init__(self, path: Path) -> None:
        self._db = Database(path)
        self._db.enable_wal()
        self._sensors, self._cursors = (
            self._db.table(name).create(columns, pk=list(columns)[:2], not_null=columns, if_not_exists=True)
            for name, columns in (("sensors", _STATE), ("cursors", _CURSORS))
        )
        self._state = {(row["device"], row["sensor"]): row for row in self._sensors.rows}
        self._next: dict[tuple[str, int], int] = {
            (row["topic"], row["partition"]): row["next"] for row in self._cursors.rows
        }
        self.skipped = 0

    def next_offset(self, topic: str, partition: int) -> int | None:
        """Return the offset at which a partition continues; None if it was never read."""
        return self._next.get((topic, partition))

    def totals(self) -> tuple[int, int]:
        """Return (readings stored, sensors)."""
        (row,) = self._db.query("SELECT coalesce(sum(readings), 0) AS readings, count(*) AS sensors FROM sensors")
        return row["readings"], row["sensors"]

    def take_in(self, messages: Sequence[Any]) -> None:
        """Store records and their next offsets in one transaction; records below the stored offset are skipped."""
        moved, changed, skipped = dict(self._next), dict[tuple[str, str], dict[str, Any]](), 0
        for message in messages:
            topic, partition, offset = message.topic(), message.partition(), message.offset()
            if offset < moved.get((topic, partition), 0):
                skipped += 1
                continue
            moved[topic, partition] = offset + 1
            reading = decode(message.value())
            key = (device_of(topic), reading.sensor)
            changed[key] = _after(changed.get(key) or self._state.get(key), key, reading)
        with self._db.atomic():
            self._sensors.upsert_all(changed.values(), pk=("device", "sensor"))
            self._cursors.upsert_all(
                (
                    {"topic": topic, "partition": partition, "next": after}
                    for (topic, partition), after in moved.items()
                    if self._next.get((topic, partition)) != after
                ),
                pk=("topic", "partition"),
            )
        self._state |= changed
        self._next = moved
        self.skipped += skipped

    def cursors(self) -> list[TopicPartition]:
        """Return the next offset of each partition, in the form that a consumer commits."""
        return [TopicPartition(topic, partition, offset) for (topic, partition), offset in self._next.items()]

    def close(self) -> None:
        """Close the file, with no other beside it."""
        self._db.disable_wal()
        self._db.close()


def _after(row: dict[str, Any] | None, key: tuple[str, str], reading: Reading) -> dict[str, Any]:
    """Return a sensor's row after a reading; `row`: the row before it, None if there was none."""
    value = reading.value
    first = {"readings": 0, "lowest": value, "highest": value, "total": 0.0}
    former = first if row is None else row
    return {
        "device": key[0],
        "sensor": key[1],
        "readings": former["readings"] + 1,
        "sequence": reading.sequence,
        "time": reading.time,
        "value": value,
        "lowest": min(former["lowest"], value),
        "highest": max(former["highest"], value),
        "total": former["total"] + value,
    }


def follow(consumer: Any, database: StateDatabase, orders: Orders) -> None:
    """Store records until the end of orders."""

    def start_at_cursors(_: Any, partitions: list[TopicPartition]) -> None:
        for one in partitions:
            after = database.next_offset(one.topic, one.partition)
            one.offset = OFFSET_BEGINNING if after is None else after
        consumer.assign(partitions)

    consumer.subscribe([ALL_SENSOR_TOPICS], on_assign=start_at_cursors)
    resumed, _ = database.totals()
    reported = 0.0
    while not orders.ended:
        messages = [message for message in consumer.consume(BATCH, POLL_S) if message.error() is None]
        if messages:
            database.take_in(messages)
            consumer.commit(offsets=database.cursors(), asynchronous=True)
        if time.monotonic() - reported > REPORT_S:
            reported = time.monotonic()
            say(StateReport(*database.totals(), resumed, database.skipped))
    say(StateReport(*database.totals(), resumed, database.skipped))


def main() -> None:
    """Consume all sensors' topics until the end of orders."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--database", required=True, type=Path)
    asked = parser.parse_args()
    orders = Orders()
    database = StateDatabase(asked.database)
    consumer = Consumer(
        quiet({
            "bootstrap.servers": asked.bootstrap,
            "client.id": GROUP,
            "group.id": GROUP,
            "group.instance.id": f"{GROUP}-1",  # a restarted process rejoins the group at once
            "session.timeout.ms": 10_000,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "topic.metadata.refresh.interval.ms": 500,
            "reconnect.backoff.max.ms": 500,
        })
    )  # fmt: skip
    try:
        follow(consumer, database, orders)
    finally:
        consumer.close()
        database.close()


if __name__ == "__main__":
    main()
