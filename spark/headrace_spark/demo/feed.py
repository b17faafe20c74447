"""The producer: reads the machine ten times a second and sends each value through the stock confluent-kafka client.

Keeps the pace, the sequence numbers and the ledger of acknowledgements. A reading is added to the ledger when it is
acknowledged, with its offset. While a topic has no leader its readings wait in the client; idempotence keeps a reading
that is sent again from being stored twice.
"""

import argparse
import time
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Producer

from headrace_spark.demo.ledger import Entry, LedgerWriter, checksum
from headrace_spark.demo.quiet import quiet
from headrace_spark.demo.readings import Reading, decode, device_of, encode, topic_of
from headrace_spark.demo.reports import FeedReport, Orders, say
from headrace_spark.demo.telemetry import Machine, Sample

ROUND_S: Final = 0.1
REPORT_EVERY: Final = 5
"""Rounds between two reports."""
RATE_OVER: Final = 4
"""Reports over which the shown rate is averaged."""
FLUSH_S: Final = 60.0


class Feed:
    """Sends samples and counts readings: `sent`, `acknowledged`, `failed`."""

    def __init__(self, producer: Any, ledger: LedgerWriter) -> None:
        self.sent = 0
        self.acknowledged = 0
        self.failed = 0
        self.slowest_s = 0.0
        """The longest time in seconds that a reading waited for its acknowledgement, since `mark`."""
        self.devices: set[str] = set()
        self.sequences: Counter[tuple[str, str]] = Counter()
        self._producer = producer
        self._ledger = ledger

    def send(self, sample: Sample) -> None:
        """Send one device's values as records to its topic. Blocks while the client's queue is full."""
        self.devices.add(sample.device)
        topic = topic_of(sample.device)
        for sensor, value in sample.values:
            self.sequences[sample.device, sensor] += 1
            reading = Reading(sample.time_ms, sensor, value, self.sequences[sample.device, sensor])
            self._produce(topic, sensor, encode(reading), sample.time_ms)

    def mark(self) -> None:
        """Restart the measurement of the slowest acknowledgement."""
        self.slowest_s = 0.0

    def _produce(self, topic: str, key: str, value: bytes, time_ms: int) -> None:
        while True:
            try:
                self._producer.produce(topic, value, key, timestamp=time_ms, on_delivery=self._delivered)
                break
            except BufferError:
                self._producer.poll(ROUND_S)
        self.sent += 1

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failed += 1
            return
        self.acknowledged += 1
        self.slowest_s = max(self.slowest_s, message.latency() or 0.0)
        value = message.value()
        reading = decode(value)
        self._ledger.add(
            Entry(
                device_of(message.topic()), message.offset(), reading.sensor, reading.sequence, reading.time,
                reading.value, checksum(value),
            )
        )  # fmt: skip


def run(feed: Feed, machine: Machine, *, poll: Callable[[float], Any], stopping: Callable[[], bool]) -> None:
    """Run rounds until `stopping()`, each started on its beat; a beat missed by more than a round is skipped and
    counted.
    """
    late = number = 0
    beat = time.monotonic()
    marks = deque([(beat, 0)], maxlen=RATE_OVER + 1)
    while not stopping():
        for sample in machine.sample():
            feed.send(sample)
            poll(0)
        number += 1
        if number % REPORT_EVERY == 0:
            marks.append((time.monotonic(), feed.sent))
            _report(feed, marks, late)
        beat += ROUND_S
        if time.monotonic() > beat + ROUND_S:
            late += 1
            beat = time.monotonic()
        while (left := beat - time.monotonic()) > 0:
            poll(left)
    _report(feed, marks, late)


def _report(feed: Feed, marks: deque[tuple[float, int]], late: int) -> None:
    (since, sent_then), (now, sent) = marks[0], marks[-1]
    say(
        FeedReport(
            sent=feed.sent,
            acknowledged=feed.acknowledged,
            failed=feed.failed,
            devices=len(feed.devices),
            sensors=len(feed.sequences),
            per_second=(sent - sent_then) / (now - since) if now > since else 0.0,
            waiting=feed.sent - feed.acknowledged - feed.failed,
            late_rounds=late,
            slowest_s=feed.slowest_s,
        )
    )


def main() -> None:
    """Feed until the end of orders, then wait for all acknowledgements. Orders: "watch NAME PID", "mark"."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--ledger", required=True, type=Path)
    asked = parser.parse_args()
    ordered: deque[list[str]] = deque()

    orders = Orders(ordered.append)
    producer = Producer(
        quiet({
            "bootstrap.servers": asked.bootstrap,
            "client.id": "demo-feed",
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 5,
            "compression.type": "lz4",
            "reconnect.backoff.max.ms": 500,
            "retry.backoff.max.ms": 500,
        })
    )  # fmt: skip
    machine = Machine()
    ledger = LedgerWriter(asked.ledger)
    feed = Feed(producer, ledger)

    def stopping() -> bool:
        while ordered:
            match ordered.popleft():
                case ["watch", name, pid]:
                    machine.watch(name, int(pid))
                case ["mark"]:
                    feed.mark()
        return orders.ended

    try:
        run(feed, machine, poll=producer.poll, stopping=stopping)
        producer.flush(FLUSH_S)
    finally:
        ledger.close()
    say(
        FeedReport(
            feed.sent, feed.acknowledged, feed.failed, len(feed.devices), len(feed.sequences), 0.0,
            feed.sent - feed.acknowledged - feed.failed, 0, feed.slowest_s,
        )
    )  # fmt: skip


if __name__ == "__main__":
    main()
