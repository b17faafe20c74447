"""The second consumer: the current state of each device in SQLite, exactly once.

Each batch of records changes the state and moves the cursor in one transaction, so either both are there or neither,
and a process that is killed anywhere goes on where the database is. The cursors of the consumer group are committed
too, afterwards, for those who look at lag; nothing relies on them.

    sensors(device, sensor, readings, sequence, time, value, lowest, highest, total)   the state
    cursors(topic, partition, next)                                                    the next offset to take in
"""

import argparse
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from headrace_spark.demo.quiet import quiet
from headrace_spark.demo.readings import ALL_SENSOR_TOPICS, decode, device_of
from headrace_spark.demo.reports import Orders, StateReport, say

GROUP: Final = "demo-state"
BATCH: Final = 2_000
POLL_S: Final = 0.2
REPORT_S: Final = 0.5
SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS sensors (
  device TEXT NOT NULL, sensor TEXT NOT NULL, readings INTEGER NOT NULL, sequence INTEGER NOT NULL,
  time INTEGER NOT NULL, value REAL NOT NULL, lowest REAL NOT NULL, highest REAL NOT NULL, total REAL NOT NULL,
  PRIMARY KEY (device, sensor)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS cursors (
  topic TEXT NOT NULL, partition INTEGER NOT NULL, next INTEGER NOT NULL, PRIMARY KEY (topic, partition)
) WITHOUT ROWID;
"""
_TAKE_IN: Final = """
INSERT INTO sensors VALUES (?1, ?2, 1, ?3, ?4, ?5, ?5, ?5, ?5)
ON CONFLICT (device, sensor) DO UPDATE SET
  readings = readings + 1, sequence = ?3, time = ?4, value = ?5,
  lowest = min(lowest, ?5), highest = max(highest, ?5), total = total + ?5
"""
_MOVE: Final = """
INSERT INTO cursors VALUES (?1, ?2, ?3) ON CONFLICT (topic, partition) DO UPDATE SET next = ?3
"""


class StateDatabase:
    """The state with its cursors. `skipped` counts records that came again."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.executescript(SCHEMA)
        self._next: dict[tuple[str, int], int] = {
            (topic, partition): offset for topic, partition, offset in self._db.execute("SELECT * FROM cursors")
        }
        self.skipped = 0

    def next_offset(self, topic: str, partition: int) -> int | None:
        """Where a partition goes on; None for one that was never read."""
        return self._next.get((topic, partition))

    def totals(self) -> tuple[int, int]:
        """(readings taken in, sensors)."""
        readings, sensors = self._db.execute("SELECT coalesce(sum(readings), 0), count(*) FROM sensors").fetchone()
        return readings, sensors

    def take_in(self, messages: Sequence[Any]) -> None:
        """Records and their cursors in one transaction; those below a cursor are left out."""
        moved = dict(self._next)
        rows, skipped = [], 0
        for message in messages:
            topic, partition, offset = message.topic(), message.partition(), message.offset()
            if offset < moved.get((topic, partition), 0):
                skipped += 1
                continue
            moved[topic, partition] = offset + 1
            reading = decode(message.value())
            rows.append((device_of(topic), reading.sensor, reading.sequence, reading.time, reading.value))
        self._db.execute("BEGIN IMMEDIATE")
        try:
            self._db.executemany(_TAKE_IN, rows)
            changed = [(*key, after) for key, after in moved.items() if self._next.get(key) != after]
            self._db.executemany(_MOVE, changed)
            self._db.execute("COMMIT")
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._next = moved
        self.skipped += skipped

    def cursors(self) -> list[TopicPartition]:
        """The next offset of each partition, as a consumer commits them."""
        return [TopicPartition(topic, partition, offset) for (topic, partition), offset in self._next.items()]

    def close(self) -> None:
        """Close the file, with no other beside it."""
        self._db.execute("PRAGMA journal_mode = DELETE")
        self._db.close()


def follow(consumer: Any, database: StateDatabase, orders: Orders) -> None:
    """Take records in until the end of orders."""

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
    """Follow all sensors' topics until the end of orders."""
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
            "group.instance.id": f"{GROUP}-1",  # a process that starts again takes its place at once
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
