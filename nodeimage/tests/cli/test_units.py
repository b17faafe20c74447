import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.units import BadQuantity, parse_duration, parse_size, parse_speed, show_duration, show_size


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("250ms", 250),
        ("90 s", 90_000),
        ("1.5h", 5_400_000),
        ("7d", 604_800_000),
        ("forever", 0),
        ("0", 0),
        ("2W", 1_209_600_000),
    ],
)
def test_a_duration_is_a_number_and_its_unit(text: str, ms: int) -> None:
    assert parse_duration(text) == ms


@pytest.mark.parametrize("text", ["7", "-1d", "d", "", "1 fortnight", "1e3s", "99999999999999999999d"])
def test_a_duration_without_a_known_unit_is_refused(text: str) -> None:
    with pytest.raises(BadQuantity):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "size"), [("512", 512), ("1KB", 1000), ("1 KiB", 1024), ("2g", 2 << 30), ("unlimited", -1), ("-1", -1)]
)
def test_a_size_is_bytes_or_has_a_unit(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(("text", "speed"), [("100x", 100.0), ("0.5X", 0.5), ("3", 3.0), ("max", None)])
def test_a_speed_is_a_factor_or_max(text: str, speed: float | None) -> None:
    assert parse_speed(text) == speed


@pytest.mark.parametrize("text", ["0x", "fast", "-1x", ""])
def test_a_speed_that_never_arrives_is_refused(text: str) -> None:
    with pytest.raises(BadQuantity):
        parse_speed(text)


@given(st.integers(min_value=1, max_value=10**15))
def test_a_shown_duration_is_short_of_the_truth_by_less_than_its_largest_unit(ms: int) -> None:
    first, *more = re.findall(r"\d+[a-z]+", show_duration(ms))
    shown = sum(parse_duration(part) for part in (first, *more))
    assert shown <= ms < shown + parse_duration("1" + first.lstrip("0123456789"))


def test_durations_and_sizes_are_shown_short() -> None:
    assert show_duration(0) == "forever"
    assert show_duration(5_400_000) == "1h30min"
    assert show_duration(90_061_001) == "1d1h"
    assert show_size(1536) == "1.5 KiB"
    assert show_size(12) == "12 B"
    assert show_size(-1) == "unlimited"


@given(st.integers(1, 2**63 - 1))
def test_every_digit_of_a_size_and_of_a_duration_counts(number: int) -> None:
    assert parse_size(f"{number}B") == number
    assert parse_duration(f"{number}ms") == number


@pytest.mark.parametrize(
    "text", ["9" * 400 + "B", "9" * 5_000 + "d", f"{2**63}", "\u0663GiB", "1e400", "\u00b2d", "0.0001ms", "0.1B"]
)
def test_quantities_beyond_all_bounds_are_refused(text: str) -> None:
    for parse in (parse_size, parse_duration):
        with pytest.raises(BadQuantity):
            parse(text)


@pytest.mark.parametrize("text", ["9" * 400, "0." + "0" * 400 + "1", "\u0663x", "nan", "inf"])
def test_a_speed_that_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(BadQuantity):
        parse_speed(text)
