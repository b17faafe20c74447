"""The reports of the demo's processes to the story: one JSON object per line, each with its `type`.

Defines the form of reports and handles the child's end of both pipes. A process reads orders from stdin, one per line;
at the end of stdin it finishes its work and exits.
"""

import sys
import threading
from collections.abc import Callable

import msgspec


class Report(msgspec.Struct, frozen=True, tag_field="type", tag=lambda name: name.removesuffix("Report").lower()):
    """A report of a process. Counts are totals since the process started."""


class FeedReport(Report, frozen=True):
    """The producer's progress. A reading counts as acknowledged once all in-sync replicas have it on disk."""

    sent: int
    acknowledged: int
    failed: int
    devices: int
    sensors: int
    per_second: float
    waiting: int
    """Readings that are sent, but not acknowledged yet."""
    late_rounds: int
    """Rounds that began more than a tenth of a second late, so that others were skipped."""
    slowest_s: float = 0.0
    """The longest time in seconds that a reading waited for its acknowledgement, since the last order "mark"."""


class NewestValue(msgspec.Struct, frozen=True):
    """The newest value of a device's first sensor."""

    device: str
    sensor: str
    value: float
    time: int
    readings: int
    """Readings of all of the device's sensors."""
    trend: tuple[float, ...]
    """Values of the last seconds, oldest first."""


class Alarm(msgspec.Struct, frozen=True):
    """A window that Spark flagged, as read from the topic of windows."""

    device: str
    sensor: str
    start: str
    mean: float
    baseline: float
    score: float


class LiveReport(Report, frozen=True):
    """The live consumer's view. Latencies in milliseconds, from reading to arrival, over the last second."""

    readings: int
    repeated: int
    missing: int
    p50_ms: float
    p99_ms: float
    longest_gap_s: float
    """The longest time so far without any reading."""
    alarms: int
    newest: tuple[NewestValue, ...]
    latest_alarms: tuple[Alarm, ...]
    all_p50_ms: float
    all_p99_ms: float


class StateReport(Report, frozen=True):
    """The database's progress."""

    readings: int
    """Readings in the database, including those of a former process."""
    sensors: int
    resumed: int
    """Readings that the database already held when this process started."""
    skipped: int
    """Readings that arrived again and were skipped."""


class SparkReport(Report, frozen=True):
    """The progress of Spark's query."""

    phase: str
    jvm_pid: int = 0
    batch: int = -1
    readings: int = 0
    checksum: int = 0
    """Sum of the CRC-32 of all values read."""
    lag: int = 0
    per_second: float = 0.0
    windows: int = 0
    """Windows in Parquet."""
    flagged: int = 0
    error: str = ""


class PressReport(Report, frozen=True):
    """Whether the press works. Times in milliseconds since 1970."""

    began: int = 0
    ended: int = 0


AnyReport = FeedReport | LiveReport | StateReport | SparkReport | PressReport

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[AnyReport] = msgspec.json.Decoder(AnyReport)


def decode_report(line: bytes) -> AnyReport:
    """Return the report in a line. Raises msgspec.DecodeError."""
    return _decoder.decode(line)


def say(report: AnyReport) -> None:
    """Print a report for the story. If nobody reads it any longer, orders end too, and the process exits."""
    try:
        sys.stdout.buffer.write(_encoder.encode(report) + b"\n")
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        pass


class Orders:
    """The orders on stdin, read by a thread that calls `on_order` with the words of each line."""

    def __init__(self, on_order: Callable[[list[str]], None] = lambda words: None) -> None:
        self._ended = threading.Event()
        self._on_order = on_order
        threading.Thread(target=self._read, name="orders", daemon=True).start()

    @property
    def ended(self) -> bool:
        """Whether the process is to finish."""
        return self._ended.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end of orders; return whether it was reached."""
        return self._ended.wait(timeout_s)

    def _read(self) -> None:
        try:
            for line in sys.stdin:
                self._on_order(line.split())
        finally:
            self._ended.set()
