"""The producer's own record of what was acknowledged, one CSV line per reading, and what follows from it.

Defines the file's form and the sums with which consumers are compared. The producing process alone writes the file,
from its acknowledgements; nothing in it comes from a consumer.
"""

import csv
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, NamedTuple

COLUMNS = ("device", "offset", "sensor", "sequence", "time", "value", "crc")

SensorKey = tuple[str, str]
"""(device, sensor)."""
WindowKey = tuple[str, str, int]
"""(device, sensor, start in milliseconds since 1970)."""


class Entry(NamedTuple):
    """One acknowledged reading. `time` in milliseconds since 1970, `crc` the CRC-32 of the record's value."""

    device: str
    offset: int
    sensor: str
    sequence: int
    time: int
    value: float
    crc: int


class LedgerWriter:
    """Appends entries to a CSV file."""

    def __init__(self, path: Path) -> None:
        self._file: IO[str] = path.open("w", newline="", encoding="utf-8")
        self._rows = csv.writer(self._file)
        self._rows.writerow(COLUMNS)

    def add(self, entry: Entry) -> None:
        """Append one entry."""
        self._rows.writerow(entry)

    def close(self) -> None:
        """Flush and close the file."""
        self._file.close()


def checksum(value: bytes) -> int:
    """Return the CRC-32 of a record's value, equal to Spark's crc32."""
    return zlib.crc32(value)


def read_ledger(path: Path) -> Iterator[Entry]:
    """Yield the entries of a file, in the order of their acknowledgement."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = csv.reader(file)
        next(rows)
        for device, offset, sensor, sequence, time, value, crc in rows:
            yield Entry(device, int(offset), sensor, int(sequence), int(time), float(value), int(crc))


@dataclass(slots=True)
class Aggregates:
    """Count, sum, lowest and highest of values. Sums are exact, since values are whole multiples of readings.STEP."""

    count: int = 0
    total: float = 0.0
    lowest: float = float("inf")
    highest: float = float("-inf")

    def add(self, value: float) -> None:
        """Add a value."""
        self.count += 1
        self.total += value
        self.lowest = min(self.lowest, value)
        self.highest = max(self.highest, value)

    @property
    def mean(self) -> float:
        """The sum divided by the count, as Spark computes it."""
        return self.total / self.count


@dataclass(slots=True)
class SensorHistory:
    """All readings of one sensor."""

    aggregates: Aggregates = field(default_factory=Aggregates)
    last: Entry | None = None


@dataclass(slots=True)
class Expected:
    """What every consumer must have, according to the ledger."""

    readings: int = 0
    checksum: int = 0
    """Sum of the CRCs of all values."""
    newest_ms: int = 0
    offsets: dict[str, list[int]] = field(default_factory=dict)
    """Acknowledged offsets by device, in order of acknowledgement."""
    sensors: dict[SensorKey, SensorHistory] = field(default_factory=dict)
    windows: dict[WindowKey, Aggregates] = field(default_factory=dict)

    def closed_windows(self, *, window_ms: int, watermark_ms: int) -> dict[WindowKey, Aggregates]:
        """Return the windows that Spark must have emitted: those that end at least `watermark_ms` before the newest
        reading (Spark's rule in append mode).
        """
        limit = self.newest_ms - watermark_ms
        return {key: aggregates for key, aggregates in self.windows.items() if key[2] + window_ms <= limit}


def expect(entries: Iterable[Entry], *, window_ms: int) -> Expected:
    """Aggregate entries by device, by sensor, and by window of time."""
    expected = Expected()
    for entry in entries:
        expected.readings += 1
        expected.checksum += entry.crc
        expected.newest_ms = max(expected.newest_ms, entry.time)
        expected.offsets.setdefault(entry.device, []).append(entry.offset)
        history = expected.sensors.setdefault((entry.device, entry.sensor), SensorHistory())
        history.aggregates.add(entry.value)
        if history.last is None or entry.sequence > history.last.sequence:
            history.last = entry
        start = entry.time // window_ms * window_ms
        expected.windows.setdefault((entry.device, entry.sensor, start), Aggregates()).add(entry.value)
    return expected
