"""How many executors a job is to have, by its lag."""

from headrace_spark.job import Autoscale
from headrace_spark.job.autoscale import ScaleState, decide

ASKED = Autoscale(min=1, max=5, lag_s=30, up_after_s=30, down_after_s=120)


def test_a_backlog_doubles_the_executors_up_to_the_most() -> None:
    state = ScaleState(1, changed_at=0)
    assert decide(state, ASKED, lag_s=31, live=1, now=29) == state
    state = decide(state, ASKED, lag_s=31, live=1, now=30)
    assert state == ScaleState(2, changed_at=30)
    state = decide(state, ASKED, lag_s=99, live=2, now=60)
    state = decide(state, ASKED, lag_s=99, live=4, now=90)
    assert state == ScaleState(5, changed_at=90)
    assert decide(state, ASKED, lag_s=9999, live=5, now=500) == state


def test_no_more_are_asked_for_before_the_last_ones_are_there() -> None:
    state = ScaleState(2, changed_at=0)
    assert decide(state, ASKED, lag_s=99, live=1, now=1000) == state


def test_they_go_one_by_one_after_a_long_calm() -> None:
    state = ScaleState(3, changed_at=0)
    state = decide(state, ASKED, lag_s=0, live=3, now=200)
    assert state == ScaleState(3, 0, calm_since=200)
    state = decide(state, ASKED, lag_s=7, live=3, now=319)
    assert state.executors == 3
    state = decide(state, ASKED, lag_s=7, live=3, now=320)
    assert state == ScaleState(2, changed_at=320)
    state = decide(state, ASKED, lag_s=0, live=2, now=321)
    assert decide(state, ASKED, lag_s=0, live=2, now=440).executors == 2
    assert decide(state, ASKED, lag_s=0, live=2, now=441).executors == 1


def test_a_lag_that_swings_around_the_limit_moves_nothing() -> None:
    state = ScaleState(2, changed_at=0)
    for now in range(1000, 2000, 10):
        state = decide(state, ASKED, lag_s=29 if now % 20 else 0, live=2, now=now)
    assert state.executors == 2


def test_what_is_asked_for_holds_at_once() -> None:
    assert decide(ScaleState(1, 0), Autoscale(min=3, max=5), lag_s=0, live=1, now=1).executors == 3
    assert decide(ScaleState(9, 0), ASKED, lag_s=99, live=9, now=1).executors == 5
