"""The lag of the loop, and the part of it that the process itself causes."""

from collections.abc import Callable
from typing import Any

import pytest

from headrace.base import loop_lag
from headrace.base.loop_lag import EVERY_S, LoopLag


class Ticks:
    """A loop with simulated clocks whose timer is late by a given time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.used = 1000.0
        self.due: Callable[[], None] | None = None
        self.cancelled = 0
        monkeypatch.setattr(loop_lag.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(loop_lag.time, "process_time", lambda: self.used)

    def call_later(self, delay: float, callback: Callable[[], None]) -> "Ticks":
        assert delay == EVERY_S
        self.due = callback
        return self

    def cancel(self) -> None:
        self.cancelled += 1

    def tick(self, *, late: float = 0.0, own: float = 0.0) -> None:
        assert self.due is not None
        self.now += EVERY_S + late
        self.used += own
        self.due()


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> Ticks:
    return Ticks(monkeypatch)


def measured(ticks: Ticks) -> LoopLag:
    loop: Any = ticks
    lag = LoopLag(loop)
    lag.start()
    return lag


def test_a_loop_that_is_in_time_has_no_lag(ticks: Ticks) -> None:
    lag = measured(ticks)
    assert lag.shown() == {"worst": 0.0, "worst_own": 0.0, "p99": 0.0}
    for _ in range(100):
        ticks.tick()
    assert lag.shown() == {"worst": 0.0, "worst_own": 0.0, "p99": 0.0}


def test_time_in_which_others_had_the_processor_is_not_the_nodes_own(ticks: Ticks) -> None:
    lag = measured(ticks)
    ticks.tick(late=0.080, own=0.012)
    assert (lag.shown()["worst"], lag.shown()["worst_own"]) == (80.0, 12.0)
    ticks.tick(late=0.030, own=0.040)
    assert lag.shown()["worst_own"] == 30.0, "no more than it was late"


def test_one_late_tick_in_many_is_the_worst_and_not_the_usual(ticks: Ticks) -> None:
    lag = measured(ticks)
    for _ in range(199):
        ticks.tick(late=0.0015)
    ticks.tick(late=0.4)
    assert lag.shown() == {"worst": 400.0, "worst_own": 0.0, "p99": 2.0}


def test_what_is_later_than_all_buckets_is_shown_as_it_was(ticks: Ticks) -> None:
    lag = measured(ticks)
    ticks.tick(late=7.5)
    assert lag.shown()["p99"] == 7500.0


def test_measuring_begins_anew_and_ends(ticks: Ticks) -> None:
    lag = measured(ticks)
    ticks.tick(late=1.0)
    lag.start()
    assert ticks.cancelled == 1
    assert lag.shown()["worst"] == 0.0
    lag.close()
    lag.close()
    assert ticks.cancelled == 2
