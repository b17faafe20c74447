"""The choice of the partitions to roll when a part of a container's load is to move elsewhere."""

import pytest

from headrace.partitions.rolls.rolls import to_move

Rates = dict[str, int]


def chosen(rates: Rates, share: float, limit: float, *, most: int = 64) -> list[int]:
    """The rates of the chosen partitions."""
    return [rates[each] for each in to_move(rates, written=sum(rates.values()), most=most, share=share, limit=limit)]


def of(*rates: int) -> Rates:
    return {f"partition-{number}": rate for number, rate in enumerate(rates)}


@pytest.mark.parametrize(
    ("rates", "share", "limit", "wanted"),
    [
        (of(*[5] * 20), 0.22, 0.9, [5] * 5),  # until the share is reached
        (of(25, 25, 25, 25), 0.2, 0.26, [25]),
        (of(40, 30, 10, 10, 10), 0.2, 0.9, [10, 10]),  # smaller ones come nearer to the share than the hottest
        (of(50, 50), 0.2, 0.26, []),  # each is too large
        (of(50, 50), 0.2, 0.9, [50]),  # each is large, but within the limit
        (of(60, 38, 2), 0.2, 0.9, [38]),  # the small one falls far short: the smallest larger one
        (of(85, 15), 0.2, 0.9, [15]),
        (of(100), 0.2, 0.9, []),  # moving it would only move the problem
        (of(100), 1.0, 1.0, [100]),
        (of(0, 0, 7, 0), 1.0, 1.0, [7]),  # partitions without writes stay
        (of(), 1.0, 1.0, []),
    ],
)
def test_what_rolls_is_about_what_is_asked_for_and_never_above_the_limit(
    rates: Rates, share: float, limit: float, wanted: list[int]
) -> None:
    assert chosen(rates, share, limit) == wanted


def test_no_more_roll_than_are_asked_for() -> None:
    assert chosen(of(*range(1, 100)), 1.0, 1.0, most=3) == [99, 98, 97]


def test_those_that_roll_already_count_as_written() -> None:
    assert to_move({"left": 25}, written=100, most=9, share=0.2, limit=0.26) == ["left"]
    assert to_move({"left": 25}, written=80, most=9, share=0.2, limit=0.26) == []
