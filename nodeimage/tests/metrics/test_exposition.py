import asyncio
import math
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.parser import text_string_to_metric_families

from headrace.metrics.exposition import READINGS_AT_ONCE, NodeMetrics
from headrace.metrics.histogram import Histogram
from headrace.metrics.metric import counter, gauge, histogram
from headrace.metrics.readings import Reading

LAG = gauge("lag_records", "How far a group is behind", "group")
DONE = counter("done_total", "What was done")
TOOK = histogram("took_seconds", "How long it took", "api")


def metrics(*readings: Reading, node: str | None = "3") -> NodeMetrics:
    made = NodeMetrics([LAG, DONE, TOOK], node=node)
    made.add(lambda: readings)
    return made


def parsed(text: bytes) -> dict[str, list[tuple[str, dict[str, str], float]]]:
    return {
        family.name: [(each.name, each.labels, each.value) for each in family.samples]
        for family in text_string_to_metric_families(text.decode())
    }


async def test_each_sample_says_of_which_node_it_is() -> None:
    text = await metrics(Reading(DONE, 3.0), Reading(LAG, 7.0, ("g",))).text()
    assert text.decode().splitlines() == [
        "# HELP headrace_lag_records How far a group is behind.",
        "# TYPE headrace_lag_records gauge",
        'headrace_lag_records{group="g",node="3"} 7.0',
        "# HELP headrace_done_total What was done.",
        "# TYPE headrace_done_total counter",
        'headrace_done_total{node="3"} 3.0',
    ]
    assert b"node" not in await metrics(Reading(DONE, 3.0), node=None).text()


async def test_a_histogram_is_told_by_what_is_not_above_each_bound() -> None:
    took = Histogram((0.1, 1.0))
    for seconds in (0.05, 0.5, 0.5, 7.0):
        took.observe(seconds)
    ((_, samples),) = parsed(await metrics(Reading(TOOK, took, ("Produce",))).text()).items()
    labels = {"api": "Produce", "node": "3"}
    assert samples == [
        ("headrace_took_seconds_bucket", labels | {"le": "0.1"}, 1.0),
        ("headrace_took_seconds_bucket", labels | {"le": "1.0"}, 3.0),
        ("headrace_took_seconds_bucket", labels | {"le": "+Inf"}, 4.0),
        ("headrace_took_seconds_count", labels, 4.0),
        ("headrace_took_seconds_sum", labels, 8.05),
    ]


@given(st.lists(st.text(max_size=249), max_size=3, unique=True))
def test_hostile_label_values_are_told_as_they_are(names: list[str]) -> None:
    readings = [Reading(LAG, float(number), (name,)) for number, name in enumerate(names)]
    text = asyncio.run(metrics(*readings).text())
    assert text.count(b"\n") == (2 + len(names) if names else 0), "a line break in a value is escaped"
    found = parsed(text).get("headrace_lag_records", [])
    plain = all(name.isprintable() for name in names)  # the tests' parser splits lines at other characters too
    assert not plain or [labels["group"] for _, labels, _ in found] == names


async def test_long_families_have_one_head() -> None:
    many = [Reading(LAG, float(number), (f"group-{number}",)) for number in range(3 * READINGS_AT_ONCE + 1)]
    text = await metrics(*many, Reading(DONE, 1.0)).text()
    assert text.count(b"# TYPE headrace_lag_records ") == 1
    assert [value for _, _, value in parsed(text)["headrace_lag_records"]] == [each.value for each in many]
    assert parsed(text)["headrace_done"] == [("headrace_done_total", {"node": "3"}, 1.0)]


async def test_what_is_not_declared_is_refused() -> None:
    with pytest.raises(ValueError, match="headrace_other is not declared"):
        await metrics(Reading(gauge("other", "Something else"), 1.0)).text()


async def test_the_loop_goes_on_while_a_long_answer_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    passed = 0.0

    def clock() -> float:
        nonlocal passed
        passed += 0.0004
        return passed

    monkeypatch.setattr("headrace.metrics.exposition.monotonic", clock)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(count())
    await metrics(*(Reading(LAG, 1.0, (str(number),)) for number in range(20 * READINGS_AT_ONCE))).text()
    other.cancel()
    assert turns >= 5


TEXT = st.text(max_size=30)


def of_prometheus_client(readings: list[Reading]) -> str:
    """The output of prometheus-client for the same readings."""
    lag = GaugeMetricFamily(LAG.name, f"{LAG.help}.", labels=["node", "group"])
    done = CounterMetricFamily(DONE.name, f"{DONE.help}.", labels=["node"])
    took = HistogramMetricFamily(TOOK.name, f"{TOOK.help}.", labels=["node", "api"])
    for each in readings:
        labels = ["3", *each.labels]
        if isinstance(each.value, Histogram):
            sums = accumulate(each.value.counts)
            bounds = [*map(str, each.value.bounds), "+Inf"]
            took.add_metric(labels, [(le, float(n)) for le, n in zip(bounds, sums, strict=True)], each.value.sum)
        else:
            (lag if each.metric is LAG else done).add_metric(labels, each.value)
    told: Any = SimpleNamespace(collect=lambda: [each for each in (lag, done, took) if each.samples])
    return generate_latest(told).decode()


@given(
    st.dictionaries(TEXT, st.floats(max_value=999_999.0)),
    st.lists(st.floats(0, 99_999.0), max_size=1),
    st.dictionaries(TEXT, st.lists(st.floats(0, 100.0), max_size=5), max_size=3),
)
def test_prometheus_client_would_write_the_same(
    lags: dict[str, float], done: list[float], took: dict[str, list[float]]
) -> None:
    readings = [Reading(LAG, lag, (group,)) for group, lag in lags.items()]
    readings += [Reading(DONE, each) for each in done]
    for api, durations in took.items():
        readings.append(Reading(TOOK, Histogram(), (api,)))
        assert isinstance(readings[-1].value, Histogram)
        for seconds in durations:
            readings[-1].value.observe(seconds)
    assert asyncio.run(metrics(*readings).text()).decode() == of_prometheus_client(readings)


@pytest.mark.parametrize("value", [0, 1, -1.5, 1e6, 123_456_789.0, 2.0**60, 1e300, 5e-324, math.inf, -math.inf])
async def test_a_number_is_read_as_it_is(value: float) -> None:
    ((_, ((_, _, read),)),) = parsed(await metrics(Reading(LAG, value, ("g",))).text()).items()
    assert read == value


async def test_what_utf_8_cannot_hold_keeps_nothing_else_away() -> None:
    text = await metrics(Reading(LAG, 1.0, ("a\udcffb",)), Reading(DONE, 1.0)).text()
    assert b'{group="a?b",node="3"} 1.0\n' in text
    assert b"headrace_done_total" in text
