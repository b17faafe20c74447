"""Times and values out of the cells of readings, exactly: no digit is lost, and no time becomes another.

Times are milliseconds since 1970, of the years 1 to 9999: what no calendar has is refused. Values are floats where
these have every digit that the cell has, else decimal numbers. Pure functions; know nothing of files.
"""

import math
import re
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation
from typing import Any, Final, NamedTuple

from headrace.base.errors import HeadraceError

TIME_FORMATS: Final = ("%Y/%m/%d %H:%M:%S", "%Y/%m/%d %H:%M", "%d.%m.%Y %H:%M:%S", "%d.%m.%Y %H:%M")
"""Besides ISO 8601 and numbers. Day/month/year with slashes is ambiguous and left to `--time-format`."""
EPOCH_UNITS: Final = ((Decimal("1e17"), -6), (Decimal("1e14"), -3), (Decimal("1e11"), 0), (Decimal(0), 3))
"""Numbers from the first on are in units of which a power of ten makes milliseconds: ns, us, ms, s. 1e11 s is the year
5138."""
TIME_LIMIT: Final = Decimal("4e20")
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
NAIVE_EPOCH: Final = datetime(1970, 1, 1)
DAY_S: Final = 86_400
MILLISECOND: Final = timedelta(milliseconds=1)
FIRST_MS: Final = (datetime.min.replace(tzinfo=UTC) - EPOCH) // MILLISECOND
LAST_MS: Final = (datetime.max.replace(tzinfo=UTC) - EPOCH) // MILLISECOND
EXACT_INT: Final = 2**53
"""Up to here every whole number is a float."""
SURE_DIGITS: Final = 15
"""A decimal number of so many digits is the shortest that means its float."""
NOT_FINITE: Final = frozenset(
    sign + word for sign in ("", "+", "-") for word in ("nan", "inf", "infinity")
)  # as Python, NumPy and pandas write them
TRUTHS: Final = {"true": 1.0, "false": 0.0}
SMALL_TIME: Final = 10**8
"""Numbers below are values where nobody says that they are times: as seconds since 1970 they lie before 1973."""

_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


class BadReadings(HeadraceError):
    """Readings that cannot be read; the message says where and what to do."""


UNITS: Final = {0: "s", 3: "ms", 6: "us", 9: "ns"}


class Instant(NamedTuple):
    """A moment as a file has it, which no `datetime` may hold."""

    ticks: int
    """Since 1970, UTC."""
    digits: int
    """Decimal places of a second that one stands for: 0 (s), 3 (ms), 6 (us), 9 (ns)."""

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
    """A cell that the file's reader could make nothing of."""

    why: str


def parse_time(cell: Any, time_format: str | None = None) -> int:
    """Milliseconds since 1970 of a cell: a moment, ISO 8601, a number of s, ms, us or ns, or `time_format`.

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
    """A number where it is one, with all of its digits; None for an empty cell.

    True and False are 1 and 0. NaN and infinities count as empty: JSON lacks them. Raises BadReadings.
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
    """The name in a cell. Bytes that are no UTF-8 are escaped."""
    if isinstance(cell, Unreadable):
        raise BadReadings(cell.why)
    return cell.decode("utf-8", "backslashreplace") if isinstance(cell, bytes) else str(cell)


def number_of(text: str) -> float | Decimal | None:
    """The number that a text is, with all of its digits; None where it is none."""
    if not _NUMBER.fullmatch(text):
        return None
    if len(text) <= SURE_DIGITS and "e" not in text and "E" not in text:
        return float(text)
    try:
        return _shortest(Decimal(text))
    except InvalidOperation:  # an exponent beyond all bounds
        return None


def is_number(cell: Any) -> bool:
    """Whether the cell holds a number, or one of the words for what is none or true."""
    if isinstance(cell, str):
        text = cell.strip()
        return number_of(text) is not None or text.lower() in NOT_FINITE or text.lower() in TRUTHS
    return isinstance(cell, (bool, int, float, Decimal))


def looks_like_time(cell: Any, time_format: str | None = None) -> bool:
    """Whether the cell is a time beyond doubt: a small number is none."""
    if time_format is None:
        number: Any = number_of(cell.strip()) if isinstance(cell, str) else cell
        if isinstance(number, (int, float, Decimal)) and not abs(Decimal(number)) >= SMALL_TIME:
            return False
    try:
        parse_time(cell, time_format)
    except BadReadings:
        return False
    return True


def moment_of(millis: int) -> datetime:
    """The moment so many milliseconds after 1970, which lie within the calendar."""
    return EPOCH + timedelta(milliseconds=millis)


def in_calendar(millis: int, cell: object) -> int:
    """`millis` itself. Raises BadReadings, which names the cell, where no calendar has it."""
    if not FIRST_MS <= millis <= LAST_MS:
        raise BadReadings(f"the time {cell} lies outside of the years 1 to 9999")
    return millis


def _parse_time_text(text: str, time_format: str | None) -> int:
    if time_format is not None:
        try:
            return _millis(datetime.strptime(text, time_format))
        except ValueError as error:
            raise BadReadings(f"time {text!r} is not of the form {time_format!r}") from error
    if _NUMBER.fullmatch(text):  # fromisoformat would read 20150901 as a date; a number it is
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
    raise BadReadings(f"{text!r} is not a time that is known here: give its form with --time-format")


def _millis(moment: datetime) -> int:
    """To the nearest, exactly: a float of seconds would not do in far years. A moment near the calendar's end may have
    a zone that sets it beyond."""
    since = moment.replace(tzinfo=None) - NAIVE_EPOCH if moment.tzinfo else moment - NAIVE_EPOCH
    if shift := moment.utcoffset():
        since -= shift
    millis, micros = divmod(since.microseconds, 1000)
    millis += (since.days * DAY_S + since.seconds) * 1000
    millis += micros > 500 or (micros == 500 and millis % 2 == 1)
    return millis if FIRST_MS <= millis <= LAST_MS else in_calendar(millis, moment.isoformat())


def _epoch_millis(number: Decimal, cell: object) -> int:
    if number.is_nan() or not abs(number) < TIME_LIMIT:
        raise BadReadings(f"{cell!r} is not a time")
    power = next(power for limit, power in EPOCH_UNITS if abs(number) >= limit)
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
    """The float that has every digit of the number, or the number."""
    near = float(number)
    return near if math.isfinite(near) and Decimal(repr(near)) == number else number
