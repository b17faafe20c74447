import asyncio
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
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
    plain = all(name.isprintable() for name in names)  # the parser of tests splits lines at other characters too
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


def test_the_registry_of_prometheus_client_reads_it() -> None:
    made = metrics(Reading(DONE, 3.0))
    families: Iterable[str] = [family.name for family in made.collect()]
    assert list(families) == ["headrace_done"]
