"""How much a link may fetch: the bytes that it holds are bounded, and so is its rate."""

import pytest

from headrace.links.pull.byte_budget import BURST_S, ByteBudget, ByteRate


def test_bytes_are_taken_until_they_are_committed() -> None:
    budget = ByteBudget(100)
    budget.reserve(60)
    assert budget.free == 40
    budget.arrived(60, 50)
    assert (budget.free, budget.reserved, budget.held) == (50, 0, 50)
    budget.release(50)
    assert budget.free == 100


def test_an_answer_longer_than_asked_for_lets_nothing_more_be_asked_for() -> None:
    budget = ByteBudget(100)
    budget.reserve(100)
    budget.arrived(100, 130)
    assert budget.free == -30
    with pytest.raises(AssertionError):
        budget.reserve(1)
    budget.release(130)
    budget.reserve(100)


def test_a_rate_lets_its_burst_through_and_then_as_much_as_time_brings() -> None:
    rate = ByteRate(1000, now=0)
    assert rate.allowed(0) == 250
    rate.pay(250, 0)
    assert rate.allowed(0) == 0
    assert rate.allowed(0.125) == 125
    assert rate.allowed(100) == 250, "no more is saved up than a burst"
    assert BURST_S == 0.25


def test_what_came_too_much_is_paid_for_later() -> None:
    rate = ByteRate(1000, now=0)
    rate.pay(1250, 0)
    assert rate.allowed(0.9) == 0
    assert rate.ready_at(1, 0.9) == pytest.approx(1.001)
    assert rate.allowed(1.1) == 100


def test_bytes_that_did_not_come_are_given_back() -> None:
    rate = ByteRate(1000, now=0)
    rate.pay(200, 0)
    rate.pay(-200, 0)
    assert rate.allowed(0) == 250


def test_more_than_a_burst_is_ready_as_soon_as_a_burst_is() -> None:
    rate = ByteRate(1000, now=0)
    rate.pay(250, 0)
    assert rate.ready_at(10_000, 0) == pytest.approx(BURST_S)
    assert rate.ready_at(100, 0.2) == 0.2, "there are enough"


def test_without_a_rate_nothing_is_bounded() -> None:
    rate = ByteRate(0, now=0)
    rate.pay(10**9, 0)
    assert rate.allowed(0) is None
    assert rate.ready_at(10**9, 5) == 5


def test_a_clock_that_stands_still_or_goes_back_brings_nothing() -> None:
    rate = ByteRate(1000, now=10)
    rate.pay(250, 10)
    assert rate.allowed(10) == 0
    assert rate.allowed(9) == 0
    assert rate.allowed(10.125) == 125
