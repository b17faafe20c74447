from dataclasses import dataclass

import pytest

from headrace.metrics import requests
from headrace.metrics.histogram import Histogram
from headrace.metrics.requests import MOST_MEASURED, MOST_WEIGHT, ApiTimes, PhasedTimes, ProduceTimes, errors_of


@dataclass
class Request:
    weight: int = 1
    arrived: float = 10.0
    started: float = 10.001
    appended: float = 0.0
    synced: float = 0.0
    ready: float = 0.0


def sums(times: ApiTimes) -> dict[str, float]:
    return {phase: round(each.sum, 6) for phase, each in times.phases() if each.count}


def test_a_request_is_told_whole() -> None:
    times = ApiTimes()
    times.answered(Request(ready=10.5), 10.6)
    assert (times.total.count, round(times.total.sum, 6)) == (1, 0.6)
    assert list(times.phases()) == []


def test_a_fetch_is_told_in_phases() -> None:
    times = PhasedTimes()
    times.answered(Request(ready=10.5), 10.6)
    assert sums(times) == {"queue": 0.001, "handle": 0.499, "answer": 0.1}
    assert round(times.total.sum, 6) == 0.6


@pytest.mark.parametrize(
    ("request_", "told"),
    [
        pytest.param(
            Request(appended=10.003, synced=10.01, ready=10.5),
            {"queue": 0.001, "append": 0.002, "sync": 0.007, "replicate": 0.49, "answer": 0.1},
            id="with followers",
        ),
        pytest.param(
            Request(appended=10.003, ready=10.5),
            {"queue": 0.001, "append": 0.002, "sync": 0.497, "answer": 0.1},
            id="alone",
        ),
        pytest.param(Request(ready=10.5), {"queue": 0.001, "append": 0.499, "answer": 0.1}, id="refused"),
    ],
)
def test_phases_of_a_produce_request_add_up(request_: Request, told: dict[str, float]) -> None:
    times = ProduceTimes()
    times.answered(request_, 10.6)
    assert sums(times) == told
    assert round(sum(told.values()), 6) == round(times.total.sum, 6) == 0.6
    assert times.total.count == 1


def test_buckets_are_those_of_a_histogram() -> None:
    times, same = ProduceTimes(), Histogram()
    for number in range(100):
        seconds = number * 0.0173
        times.answered(Request(arrived=0.0, started=seconds, ready=seconds), seconds)
        same.observe(seconds)
    assert times.total.counts == same.counts
    assert dict(times.phases())["queue"].counts == same.counts


def test_errors_are_counted_by_code() -> None:
    times = ApiTimes()
    for code in (6, 6, 3):
        times.failed(code)
    assert sorted(errors_of({"Produce": times, "Fetch": ApiTimes()})) == [("Produce", 3, 1), ("Produce", 6, 2)]


def test_a_request_stands_for_those_that_were_not_measured() -> None:
    times = ProduceTimes()
    times.answered(Request(weight=8, ready=10.5), 10.6)
    assert times.total.count == 8
    assert round(times.total.sum, 6) == 4.8
    assert {phase: each.count for phase, each in times.phases() if each.count} == {"queue": 8, "append": 8, "answer": 8}


@pytest.mark.parametrize(
    ("rate", "weight"),
    [
        pytest.param(10, 1, id="few are all measured"),
        pytest.param(20_000, 32, id="of many a part is"),
        pytest.param(10_000_000, MOST_WEIGHT, id="the part is never smaller"),
    ],
)
def test_as_many_are_measured_as_cost_little(monkeypatch: pytest.MonkeyPatch, rate: int, weight: int) -> None:
    now = 100.0
    monkeypatch.setattr(requests, "monotonic", lambda: now)
    times, request = ApiTimes(), Request()
    started = measured = 0
    for _ in range(20_000):
        now += 1 / rate
        started += 1
        times.left -= 1
        if times.left <= 0:
            times.begin(request, now)
            assert request.started == request.arrived == now
            times.answered(request, now)
            measured += 1
    assert request.weight == weight
    assert 0 <= started - times.total.count < weight
    assert rate * measured / started <= 2 * MOST_MEASURED or weight == MOST_WEIGHT


def test_measuring_goes_back_to_all_once_there_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(requests, "monotonic", lambda: now)
    times, request = ApiTimes(), Request()
    for _ in range(20):
        times.begin(request, now)
    assert times.left == MOST_WEIGHT
    for _ in range(10):
        now += 1.0
        times.begin(request, now)
    assert (times.left, request.weight) == (1, 1)
