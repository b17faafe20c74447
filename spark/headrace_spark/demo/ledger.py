"""The producer's own record of what was acknowledged, one CSV line a reading, and what must follow from it.

Responsible for the file's form and for the sums that consumers are held against. Knows nothing of how they are read.
The file is written by the producing process alone, from its acknowledgements; nothing of it comes from a consumer.
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
        """Append one."""
        self._rows.writerow(entry)

    def close(self) -> None:
        """Flush and close the file."""
        self._file.close()


def checksum(value: bytes) -> int:
    """CRC-32 of a record's value, as Spark's crc32 has it."""
    return zlib.crc32(value)


def read_ledger(path: Path) -> Iterator[Entry]:
    """The entries of a file, in the order of their acknowledgement."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = csv.reader(file)
        next(rows)
        for device, offset, sensor, sequence, time, value, crc in rows:
            yield Entry(device, int(offset), sensor, int(sequence), int(time), float(value), int(crc))


@dataclass(slots=True)
class Figures:
    """Count, sum, smallest, largest of values. Sums are exact, since values are whole multiples of readings.STEP."""

    count: int = 0
    total: float = 0.0
    lowest: float = float("inf")
    highest: float = float("-inf")

    def add(self, value: float) -> None:
        """Take a value in."""
        self.count += 1
        self.total += value
        self.lowest = min(self.lowest, value)
        self.highest = max(self.highest, value)

    @property
    def mean(self) -> float:
        """The sum by the count, as Spark divides them."""
        return self.total / self.count


@dataclass(slots=True)
class SensorHistory:
    """All readings of one sensor."""

    figures: Figures = field(default_factory=Figures)
    last: Entry | None = None


@dataclass(slots=True)
class Expected:
    """What every consumer must have, by the ledger."""

    readings: int = 0
    checksum: int = 0
    """Sum of all CRCs."""
    newest_ms: int = 0
    offsets: dict[str, list[int]] = field(default_factory=dict)
    """By device, in order of acknowledgement."""
    sensors: dict[SensorKey, SensorHistory] = field(default_factory=dict)
    windows: dict[WindowKey, Figures] = field(default_factory=dict)

    def closed_windows(self, *, window_ms: int, watermark_ms: int) -> dict[WindowKey, Figures]:
        """The windows that Spark must have given out: those that end when the newest reading is `watermark_ms` older
        or more (Spark's rule in append mode)."""
        limit = self.newest_ms - watermark_ms
        return {key: figures for key, figures in self.windows.items() if key[2] + window_ms <= limit}


def expect(entries: Iterable[Entry], *, window_ms: int) -> Expected:
    """Sum up entries by device, by sensor, and by window of time."""
    expected = Expected()
    for entry in entries:
        expected.readings += 1
        expected.checksum += entry.crc
        expected.newest_ms = max(expected.newest_ms, entry.time)
        expected.offsets.setdefault(entry.device, []).append(entry.offset)
        history = expected.sensors.setdefault((entry.device, entry.sensor), SensorHistory())
        history.figures.add(entry.value)
        if history.last is None or entry.sequence > history.last.sequence:
            history.last = entry
        start = entry.time // window_ms * window_ms
        expected.windows.setdefault((entry.device, entry.sensor, start), Figures()).add(entry.value)
    return expected
