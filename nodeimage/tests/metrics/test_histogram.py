from headrace.metrics.histogram import BOUNDS_S, Histogram


def test_a_duration_counts_in_the_first_bucket_that_it_is_not_above() -> None:
    histogram = Histogram((0.1, 1.0))
    for seconds in (0.05, 0.1, 0.5, 7.0):
        histogram.observe(seconds)
    assert histogram.counts == [2, 1, 1]
    assert histogram.count == 4
    assert histogram.sum == 0.05 + 0.1 + 0.5 + 7.0


def test_bounds_rise() -> None:
    assert list(BOUNDS_S) == sorted(set(BOUNDS_S))
