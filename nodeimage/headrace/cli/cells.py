"""Parses times and values from the cells of readings: values keep every digit, and times are rounded to the nearest
millisecond, computed exactly.

Times are milliseconds since 1970, in the years 1 to 9999; times outside the calendar are refused. Values are floats if
these have every digit of the cell, otherwise decimal numbers. Pure functions, which know nothing of files.
"""

import math
import re
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation
from typing import Any, Final, NamedTuple

from headrace.base.errors import HeadraceError

TIME_FORMATS: Final = ("%Y/%m/%d %H:%M:%S", "%Y/%m/%d %H:%M", "%d.%m.%Y %H:%M:%S", "%d.%m.%Y %H:%M")
"""Time formats that are tried besides ISO 8601 and numbers. Day/month/year with slashes is ambiguous and left to
`--time-format`."""
EPOCH_UNITS: Final = ((Decimal("1e17"), -6), (Decimal("1e14"), -3), (Decimal("1e11"), 0), (Decimal(0), 3))
"""(smallest number, exponent): the unit of a numeric time. Numbers from the smallest on are multiplied by this power of
ten to get milliseconds: ns, us, ms, s. 1e11 s is the year 5138."""
TIME_LIMIT: Final = Decimal("4e20")
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
NAIVE_EPOCH: Final = datetime(1970, 1, 1)
DAY_S: Final = 86_400
MILLISECOND: Final = timedelta(milliseconds=1)
FIRST_MS: Final = (datetime.min.replace(tzinfo=UTC) - EPOCH) // MILLISECOND
LAST_MS: Final = (datetime.max.replace(tzinfo=UTC) - EPOCH) // MILLISECOND
EXACT_INT: Final = 2**53
"""Up to this number every whole number is a float."""
SURE_DIGITS: Final = 15
"""Up to this many digits, a decimal number is the shortest text of its float."""
NOT_FINITE: Final = frozenset(
    sign + word for sign in ("", "+", "-") for word in ("nan", "inf", "infinity")
)  # as Python, NumPy and pandas write them
TRUTHS: Final = {"true": 1.0, "false": 0.0}
SMALL_TIME: Final = 10**8
"""Numbers below this are values unless the user says that they are times: as seconds since 1970 they lie before 1973.
"""

_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


class BadReadings(HeadraceError):
    """The readings cannot be parsed; the message says where, and what to do."""


UNITS: Final = {0: "s", 3: "ms", 6: "us", 9: "ns"}


class Instant(NamedTuple):
    """A moment as a file stores it, which may be too exact or too far for a `datetime`."""

    ticks: int
    """Ticks since 1970, UTC."""
    digits: int
    """Decimal places of a second in one tick: 0 (s), 3 (ms), 6 (us), 9 (ns)."""

    def __str__(self) -> str:
        try:
            return moment_of(self.millis()).isoformat()
        except BadReadings:
            return self._raw()

    def millis(self) -> int:
        """Milliseconds since 1970. Raises BadReadings."""
        return in_calendar(_rounded(Decimal(self.ticks), 3 - self.digits), self._raw())

    def _raw(self) -> str:
        return f"{self.ticks} {UNITS[self.digits]}"


class Unreadable(NamedTuple):
    """A cell that the file's reader could not decode."""

    why: str


def parse_time(cell: Any, time_format: str | None = None) -> int:
    """Milliseconds since 1970 from a cell: a moment, ISO 8601, a number of s, ms, us or ns, or text in `time_format`.

    Raises BadReadings.
    """
    match cell:
        case str():
            return _parse_time_text(cell.strip(), time_format)
        case bytes():
            return _parse_time_text(text_of(cell).strip(), time_format)
        case Instant():
            return cell.millis()
        case datetime():
            return _millis(cell)
        case date():
            return _millis(datetime(cell.year, cell.month, cell.day))
        case bool():
            raise BadReadings(f"{cell!r} is not a time")
        case int() | float() | Decimal():
            return _epoch_millis(Decimal(cell), cell)
        case Unreadable():
            raise BadReadings(cell.why)
        case _:
            raise BadReadings(f"{cell!r} is not a time")


def parse_value(cell: Any) -> float | Decimal | str | None:
    """The cell's number with all of its digits, or its text if it is not a number; None for an empty cell.

    True and False are 1 and 0. NaN and infinities count as empty, since JSON lacks them. Raises BadReadings.
    """
    match cell:
        case None:
            return None
        case str():
            return _parse_value_text(cell.strip())
        case bytes():
            return _parse_value_text(text_of(cell).strip())
        case float():
            return cell if math.isfinite(cell) else None
        case bool():
            return float(cell)
        case int():
            return float(cell) if abs(cell) <= EXACT_INT else Decimal(cell)
        case Decimal():
            return _shortest(cell) if cell.is_finite() else None
        case Unreadable():
            raise BadReadings(cell.why)
        case _:
            return text_of(cell)


def text_of(cell: Any) -> str:
    """The text of a cell. Bytes that are not UTF-8 are escaped."""
    if isinstance(cell, Unreadable):
        raise BadReadings(cell.why)
    return cell.decode("utf-8", "backslashreplace") if isinstance(cell, bytes) else str(cell)


def number_of(text: str) -> float | Decimal | None:
    """The number in a text, with all of its digits; None if it is not a number."""
    if not _NUMBER.fullmatch(text):
        return None
    if len(text) <= SURE_DIGITS and "e" not in text and "E" not in text:
        return float(text)
    try:
        return _shortest(Decimal(text))
    except InvalidOperation:  # the exponent is too large
        return None


def is_number(cell: Any) -> bool:
    """Whether the cell holds a number, or a word for a missing number or a truth value."""
    if isinstance(cell, str):
        text = cell.strip()
        return number_of(text) is not None or text.lower() in NOT_FINITE or text.lower() in TRUTHS
    return isinstance(cell, (bool, int, float, Decimal))


def looks_like_time(cell: Any, time_format: str | None = None) -> bool:
    """Whether the cell is certainly a time; a small number is not."""
    if time_format is None:
        number: Any = number_of(cell.strip()) if isinstance(cell, str) else cell
        if isinstance(number, (int, float, Decimal)):
            exact = Decimal(number)
            if exact.is_nan() or exact.copy_abs() < SMALL_TIME:
                return False
    try:
        parse_time(cell, time_format)
    except BadReadings:
        return False
    return True


def moment_of(millis: int) -> datetime:
    """The moment that is `millis` milliseconds after 1970, and lies within the calendar."""
    return EPOCH + timedelta(milliseconds=millis)


def in_calendar(millis: int, cell: object) -> int:
    """Return `millis`. Raises BadReadings, which names the cell, if it lies outside the calendar."""
    if not FIRST_MS <= millis <= LAST_MS:
        raise BadReadings(f"the time {cell} lies outside of the years 1 to 9999")
    return millis


def _parse_time_text(text: str, time_format: str | None) -> int:
    if time_format is not None:
        try:
            return _millis(datetime.strptime(text, time_format))
        except ValueError as error:
            raise BadReadings(f"time {text!r} is not of the form {time_format!r}") from error
    if _NUMBER.fullmatch(text):  # a number; fromisoformat would read 20150901 as a date
        try:
            return _epoch_millis(Decimal(text), text)
        except InvalidOperation:
            raise BadReadings(f"{text!r} is not a time") from None
    try:
        return _millis(datetime.fromisoformat(text))
    except ValueError:
        pass
    for known in TIME_FORMATS:
        try:
            return _millis(datetime.strptime(text, known))
        except ValueError:
            continue
    raise BadReadings(f"{text!r} is not in a known form of time: give its form with --time-format")


def _millis(moment: datetime) -> int:
    """The nearest millisecond, computed exactly: a float of seconds is too coarse for distant years. A time zone may
    put a moment near the calendar's end beyond it."""
    since = moment.replace(tzinfo=None) - NAIVE_EPOCH if moment.tzinfo else moment - NAIVE_EPOCH
    if shift := moment.utcoffset():
        since -= shift
    millis, micros = divmod(since.microseconds, 1000)
    millis += (since.days * DAY_S + since.seconds) * 1000
    millis += micros > 500 or (micros == 500 and millis % 2 == 1)
    return millis if FIRST_MS <= millis <= LAST_MS else in_calendar(millis, moment.isoformat())


def _epoch_millis(number: Decimal, cell: object) -> int:
    size = number.copy_abs()  # abs() rounds, and fails for huge exponents
    if number.is_nan() or not size < TIME_LIMIT:
        raise BadReadings(f"{cell!r} is not a time")
    power = next(power for limit, power in EPOCH_UNITS if size >= limit)
    return in_calendar(_rounded(number, power), cell)


def _rounded(number: Decimal, power: int) -> int:
    return int(number.scaleb(power).to_integral_value(ROUND_HALF_EVEN))


def _parse_value_text(text: str) -> float | Decimal | str | None:
    if not text:
        return None
    number = number_of(text)
    if number is not None:
        return number
    word = text.lower()
    if word in NOT_FINITE:
        return None
    return TRUTHS.get(word, text)


def _shortest(number: Decimal) -> float | Decimal:
    """The float, if it has every digit of the number; otherwise the number."""
    near = float(number)
    return near if math.isfinite(near) and Decimal(repr(near)) == number else number
