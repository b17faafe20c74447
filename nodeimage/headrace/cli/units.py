"""Durations and sizes as people write and read them: `7d`, `90 min`, `1.5GiB`. Pure functions."""

import math
import re
from fractions import Fraction
from typing import Final

from headrace.base.errors import HeadraceError

DURATIONS_MS: Final = {
    "ms": 1,
    "s": 1_000,
    "sec": 1_000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 7 * 86_400_000,
}
SIZES: Final = {
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
    "k": 1 << 10,
    "m": 1 << 20,
    "g": 1 << 30,
    "t": 1 << 40,
}
FOREVER: Final = frozenset({"0", "forever", "none", "unlimited"})
LARGEST: Final = 2**63 - 1
MAX_DIGITS: Final = 100

_NUMBER_AND_UNIT = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)")


class BadQuantity(HeadraceError):
    """A duration, size or speed cannot be parsed."""


def parse_duration(text: str) -> int:
    """A duration in milliseconds; 0: forever. A bare number is refused, since its unit is unknown. Raises
    BadQuantity."""
    if text.strip().lower() in FOREVER:
        return 0
    return _parse(text, DURATIONS_MS, what="duration", example="30min, 12h, 7d or forever")


def parse_size(text: str) -> int:
    """A size in bytes; -1: no limit. A bare number is bytes. Raises BadQuantity."""
    if text.strip().lower() in FOREVER | {"-1"}:
        return -1
    return _parse(text, SIZES | {"": 1}, what="size", example="500MB, 10GiB or unlimited")


def parse_speed(text: str) -> float | None:
    """The speed relative to real time (`100x`, `0.5x`, `1`), or None for `max`. Raises BadQuantity."""
    if text.strip().lower() == "max":
        return None
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)x?", text.strip().lower())
    if not found or not 0 < float(found[1]) < math.inf:
        raise BadQuantity(f"{text!r} is not a speed: write 1x, 100x or max")
    return float(found[1])


def show_duration(ms: int) -> str:
    """A duration as `7d` or `1h30min`, with its two largest units; `forever` for 0."""
    if ms == 0:
        return "forever"
    parts: list[str] = []
    for unit in ("d", "h", "min", "s", "ms"):
        count, ms = divmod(ms, DURATIONS_MS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts[:2])


def show_size(size: int) -> str:
    """A size as `1.5 GiB`; `unlimited` for a negative size."""
    if size < 0:
        return "unlimited"
    amount, units = float(size), ("B", "KiB", "MiB", "GiB", "TiB")
    for unit in units:
        if amount < 1024 or unit == units[-1]:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    raise AssertionError("the last unit takes what is left")


def _parse(text: str, units: dict[str, int], *, what: str, example: str) -> int:
    found = _NUMBER_AND_UNIT.fullmatch(text.strip().lower())
    if not found or found[2] not in units:
        raise BadQuantity(f"{text!r} is not a {what}: write for example {example}")
    amount = round(Fraction(found[1]) * units[found[2]]) if len(found[1]) <= MAX_DIGITS else LARGEST + 1
    if amount > LARGEST:
        raise BadQuantity(f"{text!r} is too large a {what}")
    if not amount and found[1].strip("0."):  # 0 would mean forever
        raise BadQuantity(f"{text!r} is too small a {what}")
    return amount
