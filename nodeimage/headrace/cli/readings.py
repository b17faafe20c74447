"""Readings (time, device, sensor, value) out of CSV and Parquet files whose columns nobody described.

Columns are guessed by name first, by the kind of their first cells second; what is guessed can always be said
instead. A file is read as a stream: nothing but the first rows is held. Times without a zone are UTC. Knows nothing
of Kafka.
"""

import csv
import importlib
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from headrace.errors import HeadraceError

SAMPLE_ROWS: Final = 50
TIME_NAMES: Final = ("time", "timestamp", "ts", "datetime", "date_time", "event_time", "date", "reading_time")
DEVICE_NAMES: Final = (
    *("device", "device_id", "deviceid", "machine", "asset", "equipment", "station", "host", "node", "unit"),
    *("location", "site", "meter", "id", "name"),
)
SENSOR_NAMES: Final = ("sensor", "sensor_id", "metric", "tag", "signal", "channel", "parameter", "measurement")
VALUE_NAMES: Final = ("value", "val", "reading", "v")
TIME_FORMATS: Final = ("%Y/%m/%d %H:%M:%S", "%Y/%m/%d %H:%M", "%d.%m.%Y %H:%M:%S", "%d.%m.%Y %H:%M")
"""Besides ISO 8601 and numbers. Day/month/year with slashes is ambiguous and left to `--time-format`."""
EPOCH_UNITS: Final = ((1e17, 1e6), (1e14, 1e3), (1e11, 1.0), (0.0, 1e-3))
"""Numbers from the first on are in units of the second per millisecond: ns, us, ms, s. 1e11 s is the year 5138."""
FLOAT_TIME_LIMIT: Final = 4e20


class BadReadings(HeadraceError):
    """A file of readings that cannot be read; the message says where and what to do."""


class Reading(NamedTuple):
    """One value of one sensor. `time` in milliseconds since 1970, UTC."""

    time: int
    device: str
    sensor: str
    value: float | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the user said of the columns; None is for us to guess."""

    time: str | None = None
    device: str | None = None
    sensor: str | None = None
    values: Sequence[str] = ()
    time_format: str | None = None
    skip_bad: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Which column means what. Without a device column the file's name is the device."""

    time: str
    device: str | None
    sensor: str | None
    values: tuple[str, ...]


class ReadingsFile:
    """A file of readings. Iterating gives its `Reading`s in the file's order; `skipped` counts what was left out.

    `first_time` (ms) is known from the start. Cells without a value are skipped. A time that cannot be read raises
    BadReadings with its row, unless `skip_bad`. Parquet needs pyarrow, which the storage node does not bring.
    """

    def __init__(self, path: Path, asked: Asked) -> None:
        self.path = path
        self.skipped = 0
        self._asked = asked
        self._rows = _parquet_rows(path) if path.suffix.lower() in (".parquet", ".pq") else _csv_rows(path)
        sample = list(itertools.islice(self._rows, SAMPLE_ROWS))
        if not sample:
            raise BadReadings(f"{path} holds no rows")
        self.columns = guess_columns(sample, asked, file=path.name)
        self._rows = itertools.chain(sample, self._rows)
        self.first_time = self._first_time(sample)

    def _first_time(self, sample: Sequence[dict[str, Any]]) -> int:
        """The time of the first row that has one. Raises BadReadings when no row of the sample has."""
        failure: BadReadings | None = None
        for row in sample:
            try:
                return parse_time(row[self.columns.time], self._asked.time_format)
            except BadReadings as error:
                failure = failure or error
        raise BadReadings(f"{self.path}: {failure}")

    def __iter__(self) -> Iterator[Reading]:
        columns, fallback = self.columns, self.path.stem
        one_generic = len(columns.values) == 1 and columns.values[0].lower() in VALUE_NAMES
        for number, row in enumerate(self._rows, start=1):
            try:
                time = parse_time(row[columns.time], self._asked.time_format)
            except BadReadings as error:
                if not self._asked.skip_bad:
                    raise BadReadings(f"{self.path}, row {number}: {error}") from error
                self.skipped += 1
                continue
            device = str(row[columns.device]) if columns.device and row[columns.device] is not None else fallback
            for column in columns.values:
                value = _value(row[column])
                if value is None:
                    self.skipped += 1
                    continue
                if columns.sensor and row[columns.sensor] is not None:
                    sensor = str(row[columns.sensor])
                else:
                    sensor = device if one_generic else column
                yield Reading(time, device, sensor, value)


def guess_columns(sample: Sequence[dict[str, Any]], asked: Asked, *, file: str) -> Columns:
    """Which column of the sample's rows means what. Raises BadReadings with the option that settles it."""
    names = list(sample[0])
    for said in (asked.time, asked.device, asked.sensor, *asked.values):
        if said is not None and said not in names:
            raise BadReadings(f"{file} has no column {said!r}; it has {', '.join(names)}")
    left = [name for name in names if name not in (asked.time, asked.device, asked.sensor, *asked.values)]

    time = asked.time or _by_name(left, TIME_NAMES) or _first(left, lambda name: _holds_times(sample, name, asked))
    if time is None:
        raise BadReadings(f"no column of {file} looks like a time: name it with --time-column, --time-format")
    left = [name for name in left if name != time]
    sensor = asked.sensor or _by_name(left, SENSOR_NAMES)
    left = [name for name in left if name != sensor]
    values = tuple(asked.values) or _values(left, sample)
    left = [name for name in left if name not in values]
    device = asked.device or _by_name(left, DEVICE_NAMES)
    if device is None:
        texts = [name for name in left if not _holds_numbers(sample, name)]
        device = texts[0] if len(texts) == 1 else None
    if not values:
        raise BadReadings(f"no column of {file} holds numbers: name the value with --value-column")
    return Columns(time=time, device=device, sensor=sensor, values=values)


def parse_time(cell: Any, time_format: str | None = None) -> int:
    """Milliseconds since 1970 of a cell: a datetime, ISO 8601, a number of s, ms, us or ns, or `time_format`."""
    if isinstance(cell, str):
        return _parse_time_text(cell.strip(), time_format)
    if isinstance(cell, datetime):
        return _millis(cell)
    if isinstance(cell, date):
        return _millis(datetime(cell.year, cell.month, cell.day))
    if isinstance(cell, (int, float)) and not isinstance(cell, bool):
        return _epoch_millis(cell)
    raise BadReadings(f"{cell!r} is not a time")


def _parse_time_text(text: str, time_format: str | None) -> int:
    if time_format is not None:
        try:
            return _millis(datetime.strptime(text, time_format))
        except ValueError as error:
            raise BadReadings(f"time {text!r} is not of the form {time_format!r}") from error
    if not text.isdigit():  # fromisoformat would read 20150901 as a date; a number it is
        try:
            return _millis(datetime.fromisoformat(text))
        except ValueError:
            pass
    try:
        return _epoch_millis(float(text))
    except ValueError:
        pass
    for known in TIME_FORMATS:
        try:
            return _millis(datetime.strptime(text, known))
        except ValueError:
            continue
    raise BadReadings(f"{text!r} is not a time that is known here: give its form with --time-format")


def _millis(moment: datetime) -> int:
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


def _epoch_millis(number: float) -> int:
    if not abs(number) < FLOAT_TIME_LIMIT:  # also refuses nan
        raise BadReadings(f"{number!r} is not a time")
    for limit, per_milli in EPOCH_UNITS:
        if abs(number) >= limit:
            return round(number / per_milli)
    raise AssertionError("the last unit takes what is left")


def _value(cell: Any) -> float | str | None:
    """A number where it is one; None for an empty cell. NaN and infinities count as empty: JSON lacks them."""
    if cell is None:
        return None
    if isinstance(cell, str):
        text = cell.strip()
        if not text:
            return None
        try:
            number = float(text)
        except ValueError:
            return text
    elif isinstance(cell, bool):
        return float(cell)
    else:
        try:
            number = float(cell)
        except (TypeError, ValueError):
            return str(cell)
    return number if math.isfinite(number) else None


def _by_name(names: Sequence[str], known: Sequence[str]) -> str | None:
    """The column with the first known name; else one that ends with it (`sensor_time`)."""
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
    if not cells:
        return False
    for cell in cells:
        if asked.time_format is None and _is_number(cell) and abs(float(cell)) < 1e8:
            return False  # a small number is a value; as seconds since 1970 it would lie before 1973
        try:
            parse_time(cell, asked.time_format)
        except BadReadings:
            return False
    return True


def _values(names: Sequence[str], sample: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    """The value column by name; else every column of numbers, each a sensor, but for what is named like a device."""
    named = _by_name(names, VALUE_NAMES)
    if named is not None:
        return (named,)
    numbers = [name for name in names if _holds_numbers(sample, name)]
    device = _by_name(names, DEVICE_NAMES)
    return tuple(name for name in numbers if name != device)


def _holds_numbers(sample: Sequence[dict[str, Any]], name: str) -> bool:
    cells = [row[name] for row in sample if row[name] not in (None, "")]
    return bool(cells) and all(_is_number(cell) for cell in cells)


def _is_number(cell: Any) -> bool:
    try:
        float(cell)
    except (TypeError, ValueError):
        return False
    return True


def _csv_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Rows of a CSV file with a header; the separator (comma, semicolon, tab, bar) is found in the first lines."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            start = file.read(16_384)
            if not start.strip():
                return
            try:
                dialect: Any = csv.Sniffer().sniff(start, delimiters=",;\t|")
            except csv.Error:
                dialect = csv.excel
            file.seek(0)
            rows = csv.reader(file, dialect)
            header = next(rows)
            if len(set(header)) != len(header):
                raise BadReadings(f"{path} names a column twice in its first line: {', '.join(header)}")
            width = len(header)
            for row in rows:
                if not row:
                    continue
                if len(row) != width:
                    raise BadReadings(f"{path}, line {rows.line_num}: {len(row)} cells where the header has {width}")
                yield dict(zip(header, row, strict=True))
    except OSError as error:
        raise BadReadings(f"{path} cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadReadings(f"{path} is not CSV in UTF-8: {error}") from error


def _parquet_rows(path: Path) -> Iterator[dict[str, Any]]:
    try:
        lib: Any = importlib.import_module("pyarrow.lib")
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise BadReadings('Parquet needs pyarrow: pip install "headrace[spark]"') from error
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=8_192):
                yield from batch.to_pylist()
    except OSError as error:
        raise BadReadings(f"{path} cannot be read: {error.strerror or error}") from error
    except lib.ArrowException as error:
        raise BadReadings(f"{path} is not Parquet: {str(error).splitlines()[0]}") from error
