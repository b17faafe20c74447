"""Filling a token bucket, and taking tokens."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.base.token_bucket import TokenBucket


def test_it_is_full_at_first_and_saves_no_more_than_a_burst() -> None:
    bucket = TokenBucket(10.0, 0.0)
    assert bucket.tokens == 10.0
    assert bucket.fill(1000.0, per_s=2.0, burst=10.0) == 10.0


def test_what_is_taken_below_none_comes_in_first() -> None:
    bucket = TokenBucket(10.0, 0.0)
    bucket.take(14.0)
    assert bucket.tokens == -4.0
    assert bucket.fill(1.0, per_s=2.0, burst=10.0) == -2.0
    bucket.take()
    assert bucket.fill(3.0, per_s=2.0, burst=10.0) == 1.0


def test_another_rate_and_burst_hold_from_then_on() -> None:
    bucket = TokenBucket(10.0, 0.0)
    assert bucket.fill(0.0, per_s=1.0, burst=4.0) == 4.0
    assert bucket.fill(1.0, per_s=100.0, burst=1000.0) == 104.0


def test_a_clock_that_goes_back_brings_nothing() -> None:
    bucket = TokenBucket(10.0, 5.0)
    bucket.take(10.0)
    assert bucket.fill(4.0, per_s=2.0, burst=10.0) == 0.0
    assert bucket.fill(6.0, per_s=2.0, burst=10.0) == 2.0


@given(st.lists(st.floats(0, 3), max_size=50), st.floats(0.1, 100), st.floats(1, 100))
def test_who_takes_all_there_is_gets_the_rate_and_a_burst(pauses: list[float], per_s: float, burst: float) -> None:
    bucket, now, taken = TokenBucket(burst, 0.0), 0.0, 0.0
    for pause in pauses:
        now += pause
        tokens = bucket.fill(now, per_s=per_s, burst=burst)
        bucket.take(tokens)
        taken += tokens
    assert taken <= (burst + now * per_s) * 1.000001
