from types import SimpleNamespace

import pytest

from headrace.metrics import requests
from headrace.metrics.histogram import Histogram
from headrace.metrics.requests import MAX_MEASURED, MAX_WEIGHT, ApiTimes, PhasedTimes, ProduceTimes, Timed, errors_of


def request(*, weight: int = 1, arrived: float = 10.0, started: float = 10.001, **instants: float) -> Timed:
    found = Timed(ApiTimes(), weight=weight, arrived=arrived, started=started)
    for name, seconds in instants.items():
        setattr(found, name, seconds)
    return found


def sums(times: ApiTimes) -> dict[str, float]:
    return {phase: round(each.sum, 6) for phase, each in times.phases() if each.count}


def test_a_request_is_told_whole() -> None:
    times = ApiTimes()
    times.answered(request(ready=10.5), 10.6)
    assert (times.total.count, round(times.total.sum, 6)) == (1, 0.6)
    assert list(times.phases()) == []


def test_a_fetch_is_told_in_phases() -> None:
    times = PhasedTimes()
    times.answered(request(ready=10.5), 10.6)
    assert sums(times) == {"queue": 0.001, "handle": 0.499, "answer": 0.1}
    assert round(times.total.sum, 6) == 0.6


@pytest.mark.parametrize(
    ("timed", "told"),
    [
        pytest.param(
            request(appended=10.003, synced=10.01, ready=10.5),
            {"queue": 0.001, "append": 0.002, "sync": 0.007, "replicate": 0.49, "answer": 0.1},
            id="with followers",
        ),
        pytest.param(
            request(appended=10.003, ready=10.5),
            {"queue": 0.001, "append": 0.002, "sync": 0.497, "answer": 0.1},
            id="alone",
        ),
        pytest.param(request(ready=10.5), {"queue": 0.001, "append": 0.499, "answer": 0.1}, id="refused"),
    ],
)
def test_phases_of_a_produce_request_add_up(timed: Timed, told: dict[str, float]) -> None:
    times = ProduceTimes()
    times.answered(timed, 10.6)
    assert sums(times) == told
    assert round(sum(told.values()), 6) == round(times.total.sum, 6) == 0.6
    assert times.total.count == 1


def test_buckets_are_those_of_a_histogram() -> None:
    times, same = ProduceTimes(), Histogram()
    for number in range(100):
        seconds = number * 0.0173
        times.answered(request(arrived=0.0, started=seconds, ready=seconds), seconds)
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
    times.answered(request(weight=8, ready=10.5), 10.6)
    assert times.total.count == 8
    assert round(times.total.sum, 6) == 4.8
    assert {phase: each.count for phase, each in times.phases() if each.count} == {"queue": 8, "append": 8, "answer": 8}


@pytest.mark.parametrize(
    ("rate", "weight"),
    [
        pytest.param(10, 1, id="few are all measured"),
        pytest.param(10_000, 32, id="of many a part is"),
        pytest.param(10_000_000, MAX_WEIGHT, id="the part is never smaller"),
    ],
)
def test_as_many_are_measured_as_cost_little(monkeypatch: pytest.MonkeyPatch, rate: int, weight: int) -> None:
    now = 100.0
    monkeypatch.setattr(requests, "monotonic", lambda: now)
    times = ApiTimes()
    started = measured = last = 0
    for _ in range(20_000):
        now += 1 / rate
        started += 1
        times.left -= 1
        if times.left <= 0:
            timed = times.begin(0.0)
            assert timed.started == timed.arrived == now
            times.answered(timed, now)
            measured += 1
            last = timed.weight
    assert last == weight
    assert 0 <= started - times.total.count < weight
    assert rate * measured / started <= 2 * MAX_MEASURED or weight == MAX_WEIGHT


def test_measuring_goes_back_to_all_once_there_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(requests, "monotonic", lambda: now)
    times = ApiTimes()
    for _ in range(20):
        times.begin(0.0)
    assert times.left == MAX_WEIGHT
    for _ in range(10):
        now += 1.0
        last = times.begin(0.0)
    assert (times.left, last.weight) == (1, 1)


def test_a_request_tells_how_far_it_has_come_when(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(requests, "monotonic", lambda: now)
    times = ProduceTimes()
    waited, refused = times.begin(98.0), times.begin(0.0)
    now += 1
    waited.mark_appended(SimpleNamespace(synced_at=103.0))
    now += 4
    waited.mark_ready()
    refused.mark_ready()
    now += 8
    waited.mark_answered()
    assert sums(times) == {"queue": 2.0, "append": 1.0, "sync": 2.0, "replicate": 2.0, "answer": 8.0}
    assert times.total.sum == 15.0
    refused.mark_answered()
    assert times.total.sum == 15.0 + 13.0
