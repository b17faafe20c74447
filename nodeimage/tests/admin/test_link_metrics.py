from collections.abc import Mapping
from typing import Any

import pytest

from headrace.admin import link_metrics
from headrace.admin.link_metrics import LinkReadings
from headrace.links.pull.lag import CATCHING_UP, CAUGHT_UP, Lag, Overall
from headrace.metrics import declarations as declared


def link(seconds: float = 0.0, state: str = CAUGHT_UP) -> Overall:
    return Overall(state, Lag(7, 70, seconds, 1), 2, 100, 1000, 3)


def readings_of(found: Mapping[str, Overall]) -> LinkReadings:
    async def look() -> Mapping[str, Overall]:
        return found

    runtime: Any = None
    return LinkReadings(runtime=runtime, look=look)


async def test_a_link_is_told_by_its_state_and_figures() -> None:
    readings = readings_of({"north": link(4.5, CATCHING_UP)})
    assert list(readings.readings()) == []
    await readings.look()
    told = {(each.metric, each.labels): each.value for each in readings.readings()}
    states = {labels[1]: value for (metric, labels), value in told.items() if metric is declared.LINK_STATE}
    assert states == {"Connecting": 0.0, "CatchingUp": 1.0, "CaughtUp": 0.0, "Paused": 0.0, "Failed": 0.0}
    assert told[declared.LINK_LAG_RECORDS, ("north",)] == 7.0
    assert told[declared.LINK_LAG_SECONDS, ("north",)] == 4.5
    assert told[declared.LINK_BLOCKED, ("north",)] == 2.0


async def test_links_beyond_the_limit_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_metrics, "MAX_LINKS", 1)
    readings = readings_of({"a": link(1.0), "b": link(9.0), "c": link(2.0)})
    await readings.look()
    told = list(readings.readings())
    assert {each.labels[0] for each in told if each.metric is not declared.SERIES_DROPPED} == {"b"}
    assert [each.value for each in told if each.metric is declared.SERIES_DROPPED] == [2.0]
