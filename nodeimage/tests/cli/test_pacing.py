from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.pacing import Pace
from headrace.cli.readings import parse_time
from headrace.cli.replay import iso_time


def test_a_reading_is_due_when_its_time_has_passed_at_the_speed() -> None:
    pace = Pace(100.0)
    assert [pace.due(time) for time in (1_000, 1_000, 61_000, 301_000)] == [0.0, 0.0, 0.6, 3.0]
    assert not pace.went_back


def test_at_most_speed_everything_is_due_at_once() -> None:
    pace = Pace(None)
    assert [pace.due(time) for time in (0, 10**9)] == [0.0, 0.0]


def test_a_file_that_goes_back_waits_for_no_span_twice() -> None:
    pace = Pace(1.0)
    assert [pace.due(time) for time in (0, 5_000, 0, 5_000, 6_000)] == [0.0, 5.0, 5.0, 5.0, 6.0]
    assert pace.went_back


@given(st.lists(st.integers(min_value=-(10**12), max_value=10**13)))
def test_due_times_never_fall(times: list[int]) -> None:
    pace = Pace(7.0)
    due = [pace.due(time) for time in times]
    assert due == sorted(due)


@given(st.integers(min_value=-(10**12), max_value=10**13))
def test_a_written_moment_is_the_same_moment_when_it_is_read(millis: int) -> None:
    assert parse_time(iso_time(millis)) == millis
