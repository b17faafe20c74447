"""The first consumer: the newest value of every device as it arrives, with the latency since the reading.

It also reads the topic of Spark's windows, and reports those that are flagged. It keeps no state but its group's
committed offsets, which the client commits from time to time, so after a crash some readings arrive again; their
sequence numbers reveal that, and only the newest value matters here.
"""

import argparse
import time
from collections import Counter, deque
from typing import Any, Final

import msgspec
from confluent_kafka import Consumer

from headrace_spark.demo.quiet import quiet
from headrace_spark.demo.readings import (
    ALL_SENSOR_TOPICS,
    INSIGHTS_STREAM,
    WINDOWS_TOPIC,
    Reading,
    decode,
    device_of,
)
from headrace_spark.demo.reports import Alarm, LiveReport, NewestValue, Orders, say

GROUP: Final = "demo-live"
BATCH: Final = 1_000
POLL_S: Final = 0.1
REPORT_S: Final = 0.5
SPAN_REPORTS: Final = 2
"""Reports over which latencies are shown."""
TREND: Final = 24
TREND_STEP_MS: Final = 500
LATEST_ALARMS: Final = 200


class Window(msgspec.Struct, frozen=True):
    """The fields needed here of a window that Spark wrote."""

    device: str
    sensor: str
    start: str
    mean: float
    baseline: float
    score: float
    anomaly: bool


_windows = msgspec.json.Decoder(Window)


class Latencies:
    """A histogram of latencies: exact in counts, to the millisecond in time."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def add(self, millis: int) -> None:
        """Add a latency."""
        self._counts[max(millis, 0)] += 1

    def merge(self, other: "Latencies") -> None:
        """Add all latencies of another histogram."""
        self._counts.update(other._counts)

    def quantile(self, share: float) -> float:
        """Return the latency in milliseconds that `share` of all readings do not exceed; 0 if there are none."""
        left = share * self._counts.total()
        for millis, count in sorted(self._counts.items()):
            left -= count
            if left <= 0:
                return float(millis)
        return 0.0


class _Device:
    def __init__(self, sensor: str) -> None:
        self.sensor = sensor
        self.value = 0.0
        self.time = 0
        self.readings = 0
        self.trend: deque[float] = deque(maxlen=TREND)
        self.trend_at = 0

    def show(self, reading: Reading) -> None:
        self.value, self.time = reading.value, reading.time
        if reading.time - self.trend_at >= TREND_STEP_MS:
            self.trend.append(reading.value)
            self.trend_at = reading.time


class LiveView:
    """What is known from the records so far."""

    def __init__(self) -> None:
        self.readings = 0
        self.repeated = 0
        self.missing = 0
        self.alarms = 0
        self.longest_gap_s = 0.0
        self._last_at: float | None = None
        self._devices: dict[str, _Device] = {}
        self._sequences: dict[tuple[str, str], int] = {}
        self._latest_alarms: deque[Alarm] = deque(maxlen=LATEST_ALARMS)
        self._spans: deque[Latencies] = deque([Latencies()], maxlen=SPAN_REPORTS)
        self._all = Latencies()

    def take(self, device: str, reading: Reading, *, now_ms: int) -> None:
        """Add one reading."""
        last = self._sequences.get((device, reading.sensor), 0)
        if reading.sequence <= last:
            self.repeated += 1
            return
        self.missing += reading.sequence - last - 1
        self._sequences[device, reading.sensor] = reading.sequence
        self.readings += 1
        known = self._devices.setdefault(device, _Device(reading.sensor))
        known.readings += 1
        if reading.sensor == known.sensor:
            known.show(reading)
        self._spans[-1].add(now_ms - reading.time)

    def take_window(self, window: Window) -> None:
        """Add one window of Spark's."""
        if window.anomaly:
            self.alarms += 1
            self._latest_alarms.append(
                Alarm(window.device, window.sensor, window.start, window.mean, window.baseline, window.score)
            )

    def tick(self, now: float) -> None:
        """Note that readings arrived at `now`, in seconds of a monotonic clock."""
        if self._last_at is not None:
            self.longest_gap_s = max(self.longest_gap_s, now - self._last_at)
        self._last_at = now

    def report(self) -> LiveReport:
        """Return the current report; each alarm is reported once."""
        span = Latencies()
        for one in self._spans:
            span.merge(one)
        self._all.merge(self._spans[-1])
        self._spans.append(Latencies())
        newest = tuple(
            NewestValue(name, one.sensor, one.value, one.time, one.readings, tuple(one.trend))
            for name, one in self._devices.items()
        )
        alarms = tuple(self._latest_alarms)
        self._latest_alarms.clear()
        return LiveReport(
            readings=self.readings,
            repeated=self.repeated,
            missing=self.missing,
            p50_ms=span.quantile(0.5),
            p99_ms=span.quantile(0.99),
            longest_gap_s=self.longest_gap_s,
            alarms=self.alarms,
            newest=newest,
            latest_alarms=alarms,
            all_p50_ms=self._all.quantile(0.5),
            all_p99_ms=self._all.quantile(0.99),
        )


def follow(consumer: Any, view: LiveView, orders: Orders) -> None:
    """Consume until the end of orders."""
    windows_topic = f"{INSIGHTS_STREAM}:{WINDOWS_TOPIC}"
    consumer.subscribe([ALL_SENSOR_TOPICS, f"^{windows_topic}$"])
    reported = 0.0
    while not orders.ended:
        first = consumer.poll(POLL_S)  # `consume` would wait for a full batch, and delay the readings
        came_in = [] if first is None else [first, *consumer.consume(BATCH, 0)]
        messages = [message for message in came_in if message.error() is None]
        now_ms = time.time_ns() // 1_000_000
        came = False
        for message in messages:
            if message.topic() == windows_topic:
                view.take_window(_windows.decode(message.value()))
            else:
                view.take(device_of(message.topic()), decode(message.value()), now_ms=now_ms)
                came = True
        if came:
            view.tick(time.monotonic())
        if time.monotonic() - reported > REPORT_S:
            reported = time.monotonic()
            say(view.report())
    say(view.report())


def main() -> None:
    """Consume all sensors' topics and Spark's windows until the end of orders."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap", required=True)
    asked = parser.parse_args()
    orders = Orders()
    consumer = Consumer(
        quiet({
            "bootstrap.servers": asked.bootstrap,
            "client.id": GROUP,
            "group.id": GROUP,
            "auto.offset.reset": "earliest",
            "partition.assignment.strategy": "cooperative-sticky",
            "session.timeout.ms": 10_000,
            "topic.metadata.refresh.interval.ms": 500,
            "reconnect.backoff.max.ms": 500,
            "fetch.wait.max.ms": 100,
        })
    )  # fmt: skip
    try:
        follow(consumer, LiveView(), orders)
    finally:
        consumer.close()


if __name__ == "__main__":
    main()
