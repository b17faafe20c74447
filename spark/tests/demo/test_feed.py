from collections import deque
from pathlib import Path
from typing import Any

import pytest

from headrace_spark.demo.feed import Feed
from headrace_spark.demo.ledger import LedgerWriter, checksum, read_ledger
from headrace_spark.demo.telemetry import Sample


class Message:
    """The message of a delivery report."""

    def __init__(self, topic: str, offset: int, value: bytes, latency_s: float) -> None:
        self._topic, self._offset, self._value, self._latency_s = topic, offset, value, latency_s

    def topic(self) -> str:
        return self._topic

    def offset(self) -> int:
        return self._offset

    def value(self) -> bytes:
        return self._value

    def latency(self) -> float:
        return self._latency_s


class ShortQueue:
    """A producer whose queue holds `room` records, and that delivers them when it is polled."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._queue: deque[tuple[str, bytes, Any]] = deque()
        self._offset = 0
        self.fails: set[int] = set()
        self.latency_s = 0.1

    def produce(self, topic: str, value: bytes, key: str, *, timestamp: int, on_delivery: Any) -> None:
        if len(self._queue) == self._room:
            raise BufferError
        self._queue.append((topic, value, on_delivery))

    def poll(self, timeout: float) -> int:
        delivered = len(self._queue)
        while self._queue:
            topic, value, on_delivery = self._queue.popleft()
            message = Message(topic, self._offset, value, self.latency_s)
            on_delivery("refused" if self._offset in self.fails else None, message)
            self._offset += 1
        return delivered


@pytest.fixture
def ledger(tmp_path: Path) -> LedgerWriter:
    return LedgerWriter(tmp_path / "ledger.csv")


def test_each_acknowledged_reading_enters_the_ledger_with_its_sequence(tmp_path: Path, ledger: LedgerWriter) -> None:
    producer = ShortQueue(room=2)
    feed = Feed(producer, ledger)
    for time_ms in (1_000, 1_100):
        feed.send(Sample("core-0", time_ms, [("busy", 1.5), ("idle", 2.5)]))
    producer.poll(0)
    ledger.close()
    entries = list(read_ledger(tmp_path / "ledger.csv"))
    assert [(entry.sensor, entry.sequence, entry.time, entry.offset) for entry in entries] == [
        ("busy", 1, 1_000, 0),
        ("idle", 1, 1_000, 1),
        ("busy", 2, 1_100, 2),
        ("idle", 2, 1_100, 3),
    ]
    assert entries[0].crc == checksum(b'{"time":1000,"sensor":"busy","value":1.5,"sequence":1}')
    assert (feed.sent, feed.acknowledged, feed.failed) == (4, 4, 0)


def test_a_reading_that_is_refused_is_counted_and_stays_out_of_the_ledger(tmp_path: Path, ledger: LedgerWriter) -> None:
    producer = ShortQueue(room=10)
    producer.fails = {1}
    feed = Feed(producer, ledger)
    feed.send(Sample("core-0", 1_000, [("busy", 1.5), ("idle", 2.5)]))
    producer.poll(0)
    ledger.close()
    assert [entry.sensor for entry in read_ledger(tmp_path / "ledger.csv")] == ["busy"]
    assert (feed.sent, feed.acknowledged, feed.failed) == (2, 1, 1)


def test_the_slowest_acknowledgement_is_that_since_the_mark(ledger: LedgerWriter) -> None:
    producer = ShortQueue(room=10)
    feed = Feed(producer, ledger)
    slowest = []
    for latency_s, mark in ((2.5, False), (0.5, True), (0.2, False)):
        if mark:
            feed.mark()
        producer.latency_s = latency_s
        feed.send(Sample("core-0", 1_000, [("busy", 1.5)]))
        producer.poll(0)
        slowest.append(feed.slowest_s)
    ledger.close()
    assert slowest == [2.5, 0.5, 0.5]
