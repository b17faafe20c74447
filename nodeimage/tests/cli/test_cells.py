"""Times and values from cells: no digit is lost, and no time becomes another."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.cells import LAST_MS, Instant, looks_like_time, number_of, parse_value
from headrace.cli.readings import BadReadings, parse_time


@given(st.datetimes(min_value=datetime(1973, 4, 1), max_value=datetime(2200, 1, 1)))
def test_a_moment_is_the_same_in_every_way_of_writing_it(moment: datetime) -> None:
    moment = moment.replace(microsecond=moment.microsecond // 1000 * 1000, tzinfo=UTC)
    ms = round(moment.timestamp() * 1000)
    texts = [
        moment.isoformat(),
        moment.isoformat(" "),
        moment.replace(tzinfo=None).isoformat(),
        str(ms),
        str(ms / 1000),
    ]
    assert {parse_time(text) for text in texts} == {ms}
    assert {parse_time(number) for number in (ms, ms * 1_000, ms * 1_000_000, moment)} == {ms}


@pytest.mark.parametrize("cell", ["", "noon", None, True, float("nan"), float("inf"), 10**30, [], "nan"])
def test_what_is_no_time_is_refused(cell: object) -> None:
    with pytest.raises(BadReadings):
        parse_time(cell)


@given(st.decimals(allow_nan=False, allow_infinity=False) | st.integers())
def test_a_value_keeps_every_digit(number: Decimal | int) -> None:
    for cell in (str(number), number):
        value = parse_value(cell)
        assert not isinstance(value, str)
        assert value is not None
        assert Decimal(repr(value) if isinstance(value, float) else value) == number


@pytest.mark.parametrize("text", ["1_000", "\u0661\u0662", "0x10", "1,5", "1e", "--1", "1e99999999999999999999"])
def test_what_python_alone_takes_for_a_number_is_text(text: str) -> None:
    assert number_of(text) is None
    assert parse_value(text) == text


@given(st.integers(-(2**63), 2**63 - 1), st.sampled_from([0, 3, 6, 9]))
def test_an_instant_is_its_own_time_or_is_refused(ticks: int, digits: int) -> None:
    exact = Decimal(ticks) / 10**digits * 1000
    try:
        found = Instant(ticks, digits).millis()
    except BadReadings:
        assert not -62_135_596_800_000 <= exact <= LAST_MS
    else:
        assert abs(found - exact) <= Decimal("0.5")


@given(st.datetimes())
def test_every_moment_of_the_calendar_is_exact(moment: datetime) -> None:
    exact = (moment - datetime(1970, 1, 1)) / timedelta(milliseconds=1)
    try:
        assert abs(parse_time(moment.isoformat()) - exact) <= 0.51
    except BadReadings:
        assert moment.year == 9999


@pytest.mark.parametrize(
    "cell",
    [
        "3.9e20",
        "-99999999999",
        "1e400",
        "9" * 5_000,
        "0001-01-01T00:00:00+14:00",
        "\u00b2",
        2**200,
        Decimal("1e500"),
        1e308,
        "1e9999999",  # beyond the exponents of decimal's default context
        "-1e9999999",
    ],
)
def test_a_time_that_no_calendar_has_is_refused(cell: Any) -> None:
    with pytest.raises(BadReadings):
        parse_time(cell)


@pytest.mark.parametrize(
    "cell", [float("nan"), Decimal("NaN"), Decimal("sNaN"), float("inf"), "nan", "1e9999999", "-1e9999999", 10**400]
)
def test_what_can_be_no_time_does_not_look_like_one(cell: Any) -> None:
    assert not looks_like_time(cell)
