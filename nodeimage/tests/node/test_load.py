"""A node's load: rates, smoothed over the latest readings."""

from types import SimpleNamespace
from typing import Any

import pytest

from headrace.kafka.counters import Counters
from headrace.node import load
from headrace.node.load import LoadMeter


class Clock:
    """A clock that the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(load.time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_a_rate_comes_near_to_what_passes_and_goes_with_it(clock: Clock) -> None:
    meter, counters = LoadMeter(), Counters()
    rates = []
    for _ in range(4):
        clock.now += 2
        counters.bytes_in += 2000
        rates.append(meter.read(counters, (), disk_used=1, disk_total=2).bytes_in_per_s)
    assert rates == [500, 750, 875, 937.5]
    clock.now += 1
    assert meter.read(counters, (), disk_used=1, disk_total=2).bytes_in_per_s == 468.75


def test_two_looks_in_a_moment_tell_the_same_and_lose_nothing(clock: Clock) -> None:
    meter, counters = LoadMeter(), Counters()
    clock.now += 1
    counters.requests = 100
    assert meter.read(counters, (), disk_used=0, disk_total=0).requests_per_s == 50
    clock.now += 0.1
    counters.requests = 400
    assert meter.read(counters, (), disk_used=0, disk_total=0).requests_per_s == 50
    clock.now += 0.9
    assert meter.read(counters, (), disk_used=0, disk_total=0).requests_per_s == 25 + 150


def test_containers_that_close_are_not_counted(clock: Clock) -> None:
    led: Any = [SimpleNamespace(closing=False), SimpleNamespace(closing=True), SimpleNamespace(closing=False)]
    told = LoadMeter().read(Counters(), led, disk_used=7, disk_total=9)
    assert (told.led_containers, told.disk_used, told.disk_total) == (2, 7, 9)
