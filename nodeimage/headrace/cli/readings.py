"""Extracts readings (time, device, sensor, value) from CSV and Parquet files whose columns nobody described.

Columns are guessed by name first, by the kind of their first cells second; options override each guess. A file is read
once, as a stream: it may be a pipe, and only the first rows are held in memory. Times without a zone are UTC. This
module knows nothing of Kafka.
"""

import io
import itertools
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

from headrace.cli.cells import BadReadings, Instant, is_number, looks_like_time, parse_time, parse_value, text_of
from headrace.cli.csv_rows import CsvRows
from headrace.cli.parquet_rows import MAGIC, ParquetRows

SAMPLE_ROWS: Final = 50
TIME_NAMES: Final = ("time", "timestamp", "ts", "datetime", "date_time", "event_time", "date", "reading_time")
DEVICE_NAMES: Final = (
    *("device", "device_id", "deviceid", "machine", "asset", "equipment", "station", "host", "node", "unit"),
    *("location", "site", "meter", "id", "name"),
)
SENSOR_NAMES: Final = ("sensor", "sensor_id", "metric", "tag", "signal", "channel", "parameter", "measurement")
VALUE_NAMES: Final = ("value", "val", "reading", "v")
PARQUET: Final = (".parquet", ".pq")
STDIN: Final = Path("-")
_EMPTY: Final = (None, "")


class Reading(NamedTuple):
    """One value of one sensor. `time`: milliseconds since 1970, UTC. A value that no float represents exactly is
    decimal."""

    time: int
    device: str
    sensor: str
    value: float | Decimal | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the user said about the columns; None: guess."""

    time: str | None = None
    device: str | None = None
    sensor: str | None = None
    values: Sequence[str] = ()
    time_format: str | None = None
    encoding: str | None = None
    """The encoding of a CSV file."""
    skip_bad: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """The meaning of columns. Without a device column the file's name is the device."""

    time: str
    device: str | None
    sensor: str | None
    values: tuple[str, ...]


class ReadingsFile:
    """A file of readings, `-` for stdin. Iterating, once, gives its `Reading`s in the file's order.

    `skipped` counts the readings that were left out. `first_time` (ms) is known from the start. Cells without a value
    are skipped. A row that cannot be read (its time, its width) raises BadReadings with its number, unless `skip_bad`.
    Parquet needs pyarrow, which a storage node does not install.
    """

    def __init__(self, path: Path, asked: Asked) -> None:
        self.path = path
        self.skipped = 0
        self._asked = asked
        self.name = "stdin" if path == STDIN else str(path)
        """The file's name in messages."""
        self.stem = "stdin" if path == STDIN else os.fsencode(path.stem).decode("utf-8", "backslashreplace")
        """The device, if no column names one."""
        self.has_header = True
        rows = self._opened()
        sample = list(itertools.islice(rows, SAMPLE_ROWS))
        good = [row for row in sample if not isinstance(row, BadReadings)]
        if not good:
            raise (
                sample[0]
                if sample and isinstance(sample[0], BadReadings)
                else BadReadings(f"{self.name} holds no rows")
            )
        self.columns = guess_columns(good, asked, file=Path(self.name).name, vague=self._unnamed | self._twice)
        self._refuse_twice()
        self._rows = itertools.chain(sample, rows)
        self.first_time = self._first_time(good)

    def _opened(self) -> Iterator[dict[str, Any] | BadReadings]:
        self._unnamed: frozenset[str] = frozenset()
        self._twice: frozenset[str] = frozenset()
        try:
            file: BinaryIO = sys.stdin.buffer if self.path == STDIN else self.path.open("rb")
            start = file.peek(len(MAGIC))[: len(MAGIC)] if isinstance(file, io.BufferedReader) else b""
            if self.path.suffix.lower() in PARQUET or start == MAGIC:
                parquet = ParquetRows(_seekable(file), name=self.name)
                self._twice = parquet.twice
                return iter(parquet)
            asked = self._asked
            rows = CsvRows(file, name=self.name, encoding=asked.encoding, time_format=asked.time_format)
        except OSError as error:
            raise BadReadings(f"{self.name} cannot be read: {error.strerror or error}") from error
        if rows.layout is not None:
            self._unnamed, self._twice = rows.layout.unnamed, rows.layout.twice
            self.has_header = rows.layout.has_header
        return iter(rows)

    def _refuse_twice(self) -> None:
        columns = self.columns
        used = (columns.time, columns.device, columns.sensor, *columns.values)
        if names := [name for name in used if name in self._twice]:
            raise BadReadings(f"{self.name} names a column twice: {', '.join(names)}; rename one of them")

    def _first_time(self, sample: Sequence[dict[str, Any]]) -> int:
        """The time of the first row that has one. Raises BadReadings if no row of the sample has."""
        failure: BadReadings | None = None
        for row in sample:
            try:
                return parse_time(row[self.columns.time], self._asked.time_format)
            except BadReadings as error:
                failure = failure or error
        raise BadReadings(f"{self.name}: {failure}")

    def __iter__(self) -> Iterator[Reading]:
        for number, row in enumerate(self._rows, start=1):
            try:
                if isinstance(row, BadReadings):
                    raise row
                readings = self._readings(row)
            except BadReadings as error:
                if self._asked.skip_bad:
                    self.skipped += 1
                    continue
                raise error if error is row else BadReadings(f"{self.name}, row {number}: {error}") from error
            yield from readings

    def _readings(self, row: dict[str, Any]) -> list[Reading]:
        """The readings of a row. Raises BadReadings."""
        columns = self.columns
        time = parse_time(row[columns.time], self._asked.time_format)
        device = text_of(row[columns.device]) if columns.device and row[columns.device] not in _EMPTY else self.stem
        one_generic = len(columns.values) == 1 and columns.values[0].lower() in VALUE_NAMES
        found = []
        for column in columns.values:
            value = parse_value(row[column])
            if value is None:
                self.skipped += 1
                continue
            if columns.sensor and row[columns.sensor] not in _EMPTY:
                sensor = text_of(row[columns.sensor])
            else:
                sensor = device if one_generic else column
            found.append(Reading(time, device, sensor, value))
        return found


def guess_columns(
    sample: Sequence[dict[str, Any]], asked: Asked, *, file: str, vague: frozenset[str] = frozenset()
) -> Columns:
    """The meaning of the columns in the sample's rows. Raises BadReadings with the option that decides it.

    A `vague` column, one without a name (the index of a data frame) or with another column's name, is never chosen by
    its cells, except as the time.
    """
    names = list(sample[0])
    for wanted in (asked.time, asked.device, asked.sensor, *asked.values):
        if wanted is not None and wanted not in names:
            raise BadReadings(f"{file} has no column {wanted!r}; it has {', '.join(names)}")
    left = [name for name in names if name not in (asked.time, asked.device, asked.sensor, *asked.values)]

    time = asked.time or _by_name(left, TIME_NAMES) or _first(left, lambda name: _holds_times(sample, name, asked))
    if time is None:
        raise BadReadings(f"no column of {file} looks like a time: name it with --time-column, --time-format")
    left = [name for name in left if name != time]
    sensor = asked.sensor or _by_name(left, SENSOR_NAMES)
    left = [name for name in left if name != sensor]
    values = tuple(asked.values) or _values(left, sample, vague)
    left = [name for name in left if name not in values]
    device = asked.device or _by_name(left, DEVICE_NAMES)
    if device is None:
        texts = [name for name in left if name not in vague and not _holds_numbers(sample, name)]
        device = texts[0] if len(texts) == 1 else None
    if not values:
        raise BadReadings(f"no column of {file} holds numbers: name the value with --value-column")
    return Columns(time=time, device=device, sensor=sensor, values=values)


def _by_name(names: Sequence[str], known: Sequence[str]) -> str | None:
    """The column with the first known name; otherwise one that ends with such a name (`sensor_time`)."""
    lowered = {name.lower().strip().replace(" ", "_"): name for name in reversed(names)}
    for name in known:
        if name in lowered:
            return lowered[name]
    for name in known:
        for candidate in lowered:
            if candidate.endswith(f"_{name}") and len(name) > 2:
                return lowered[candidate]
    return None


def _first(names: Sequence[str], test: Callable[[str], bool]) -> str | None:
    return next((name for name in names if test(name)), None)


def _holds_times(sample: Sequence[dict[str, Any]], name: str, asked: Asked) -> bool:
    cells = [row[name] for row in sample if row[name] not in (None, "")]
    return bool(cells) and all(looks_like_time(cell, asked.time_format) for cell in cells)


def _values(names: Sequence[str], sample: Sequence[dict[str, Any]], vague: frozenset[str]) -> tuple[str, ...]:
    """The value column by name; otherwise every column of numbers, each a sensor, except the first that is named like a
    device."""
    named = _by_name(names, VALUE_NAMES)
    if named is not None:
        return (named,)
    numbers = [name for name in names if name not in vague and _holds_numbers(sample, name)]
    device = _by_name(names, DEVICE_NAMES)
    return tuple(name for name in numbers if name != device)


def _holds_numbers(sample: Sequence[dict[str, Any]], name: str) -> bool:
    cells = [row[name] for row in sample if row[name] not in (None, "")]
    return bool(cells) and all(is_number(cell) for cell in cells)


def _seekable(file: BinaryIO) -> BinaryIO:
    """The file, or a copy of a pipe's contents: Parquet has its metadata at the end."""
    if file.seekable():
        return file
    copy = tempfile.TemporaryFile()  # noqa: SIM115
    shutil.copyfileobj(file, copy)
    copy.seek(0)
    return copy


__all__ = ["Asked", "BadReadings", "Columns", "Instant", "Reading", "ReadingsFile", "guess_columns", "parse_time"]
