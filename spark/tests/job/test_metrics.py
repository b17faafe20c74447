"""A job's lag, in records and seconds, and its throughput."""

from headrace_spark.job.metrics import LOOKS, Lag, Rate

P, Q = ("/s:t", 0), ("/s:t", 1)


def test_lag_is_what_is_stored_and_not_yet_done() -> None:
    lag = Lag()
    lag.look({P: 100, Q: 50}, {P: 40}, now=10)
    assert (lag.records, lag.seconds) == (110, 0)
    lag.look({P: 100, Q: 50}, {P: 100, Q: 49}, now=15)
    assert (lag.records, lag.seconds) == (1, 5)
    lag.look({P: 100, Q: 50}, {P: 100, Q: 50}, now=20)
    assert (lag.records, lag.seconds) == (0, 0)


def test_lag_in_seconds_is_since_the_job_was_at_the_end() -> None:
    lag = Lag()
    for now in range(0, 50, 10):
        lag.look({P: now * 100}, {P: 0}, now=now)
    assert lag.seconds == 40
    lag.look({P: 5000}, {P: 2000}, now=50)  # it has processed what had arrived by second 20
    assert (lag.records, lag.seconds) == (3000, 30)
    lag.look({P: 5000}, {P: 4500}, now=55)
    assert lag.seconds == 15


def test_a_job_that_stands_still_falls_behind_second_by_second() -> None:
    lag = Lag()
    lag.look({P: 10}, {P: 10}, now=0)
    lag.look({P: 11}, {P: 10}, now=2)
    lag.look({P: 11}, {P: 10}, now=600)
    assert (lag.records, lag.seconds) == (1, 600)


def test_looks_are_bounded_and_the_oldest_stays() -> None:
    lag = Lag()
    for now in range(10 * LOOKS):
        lag.look({P: now + 1}, {P: 0}, now=now)
    assert len(lag._looks) <= LOOKS
    assert lag.seconds == 10 * LOOKS - 1


def test_a_position_beyond_the_end_is_no_lag() -> None:
    lag = Lag()
    lag.look({P: 5}, {P: 9}, now=1)
    assert (lag.records, lag.seconds) == (0, 0)


def test_the_rate_is_over_the_last_minute() -> None:
    rate = Rate()
    rate.start(now=0)
    rate.batch(600, 2.0, now=10)
    assert rate.per_second(now=10) == 60
    rate.batch(0, 0.1, now=20)
    assert rate.batch_s == 2.0
    rate.batch(600, 3.0, now=60)
    assert rate.per_second(now=60) == 20
    assert rate.per_second(now=75) == 10
    assert rate.per_second(now=130) == 0
    assert (rate.records, rate.batch_s) == (1200, 3.0)
