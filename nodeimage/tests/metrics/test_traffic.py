from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.metrics import traffic as module
from headrace.metrics.traffic import BUSIER, MAX_SWAPS, OTHERS, SELECT_S, Flow, Traffic

TIMES = 20
"""After this many rounds the busy streams have had their series for long."""


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def wrote(flow: Flow, size: int) -> None:
    flow.in_bytes += size
    flow.in_records += 1


def told(traffic: Traffic) -> dict[str, int]:
    return {
        each.stream: each.flow.in_bytes for each in traffic.flow_reports() if each is not None and each.topic is None
    }


def topics(traffic: Traffic) -> list[tuple[str, str, int]]:
    return [
        (each.stream, each.topic, each.flow.in_records)
        for each in traffic.flow_reports()
        if each is not None and each.topic is not None
    ]


def test_topics_of_a_stream_share_its_flow() -> None:
    traffic = Traffic()
    assert traffic.of("/a", "t") is traffic.of("/a", "u")
    wrote(traffic.of("/a", "t"), 10)
    wrote(traffic.of("/b", "t"), 1)
    assert told(traffic) == {"/a": 10, "/b": 1}
    assert topics(traffic) == []
    assert traffic.dropped == {"streams": 0, "topics": 0}


def test_streams_beyond_the_limit_are_told_together() -> None:
    traffic = Traffic(most_streams=2)
    for number in range(5):
        wrote(traffic.of(f"/{number}", "t"), 1 << number)
        wrote(traffic.of(f"/{number}", "t"), 1 << number)
    assert told(traffic) == {"/0": 2, "/1": 4, OTHERS: 56}
    assert traffic.dropped["streams"] == 3


def test_topics_have_flows_of_their_own_where_they_are_asked_for() -> None:
    traffic = Traffic(most_topics=2)
    for topic in ("t", "u", "v", "w", "v"):
        wrote(traffic.of("/a", topic), 1)
    assert topics(traffic) == [("/a", "t", 1), ("/a", "u", 1)]
    assert told(traffic) == {"/a": 5}
    assert traffic.dropped == {"streams": 0, "topics": 2}


def test_topics_of_streams_beyond_the_limit_count_among_others() -> None:
    traffic = Traffic(most_topics=9, most_streams=1)
    wrote(traffic.of("/a", "t"), 1)
    wrote(traffic.of("/b", "t"), 2)
    assert told(traffic) == {"/a": 1, OTHERS: 2}


def test_telling_changes_nothing() -> None:
    traffic = Traffic(most_topics=1)
    wrote(traffic.of("/a", "t"), 1)
    wrote(traffic.of("/a", "u"), 1)
    assert told(traffic) == told(traffic) == {"/a": 2}


def test_the_busiest_are_told_whoever_came_first() -> None:
    clock = Clock()
    traffic = Traffic(most_streams=10, time=clock)
    for _ in range(TIMES):
        for number in range(100):
            wrote(traffic.of(f"/{number}", "t"), (number + 1) ** 4)
        found = told(traffic)
        clock.now += SELECT_S
    busiest = {f"/{number}" for number in range(90, 100)}
    assert len(busiest & found.keys()) >= 9, "one may not be twice as busy as the one that is there"
    assert len(found) == 11
    assert traffic.dropped["streams"] == 90


def test_of_two_that_are_alike_the_one_that_is_told_stays() -> None:
    clock = Clock()
    traffic = Traffic(most_streams=1, time=clock)
    for round_ in range(TIMES):
        wrote(traffic.of("/a", "t"), 1_000 if round_ % 2 else BUSIER * 1_000)
        wrote(traffic.of("/b", "t"), BUSIER * 1_000 if round_ % 2 else 1_000)
        assert told(traffic).keys() == {"/a", OTHERS}
        clock.now += SELECT_S


def test_few_are_told_anew_at_a_time_however_often_somebody_asks() -> None:
    clock = Clock()
    traffic = Traffic(most_streams=50, time=clock)
    for number in range(100):
        traffic.of(f"/{number}", "t")
    before = told(traffic).keys() - {OTHERS}
    for number in range(50, 100):
        wrote(traffic.of(f"/{number}", "t"), 1_000)
    clock.now += SELECT_S
    told(traffic)
    for _ in range(TIMES):
        clock.now += SELECT_S / TIMES / 2
        assert len(told(traffic).keys() - {OTHERS} - before) == MAX_SWAPS


def test_one_that_comes_back_goes_on_where_it_was() -> None:
    clock = Clock()
    traffic = Traffic(most_streams=1, time=clock)
    shown: list[tuple[int | None, int | None]] = []
    for round_ in range(3 * TIMES):
        wrote(traffic.of("/a", "t"), 100 if round_ // TIMES != 1 else 0)
        wrote(traffic.of("/b", "t"), 0 if round_ // TIMES != 1 else 100)
        found = told(traffic)
        shown.append((found.get("/a"), found.get("/b")))
        clock.now += SELECT_S
    first = [a for a, _ in shown if a is not None]
    assert first == sorted(first)
    assert (shown[TIMES - 1], shown[2 * TIMES - 1][0]) == ((100 * TIMES, None), None)
    back = next(number for number, (a, _) in enumerate(shown) if a is not None and number >= 2 * TIMES)
    assert shown[back][0] == 100 * TIMES, "what it carried meanwhile is told as the others'"
    assert shown[-1][0] == 100 * TIMES + 100 * (3 * TIMES - 1 - back)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 6), st.integers(0, 2), st.integers(0, 1_000), st.sampled_from(("write", "look", "wait"))
        ),
        max_size=80,
    )
)
def test_what_is_told_never_falls_and_nothing_is_told_twice(steps: list[tuple[int, int, int, str]]) -> None:
    clock = Clock()
    traffic = Traffic(most_topics=4, most_streams=2, time=clock)
    last: dict[str, int] = {}
    written = 0
    rose: dict[str, int] = defaultdict(int)
    for stream, topic, size, what in steps:
        if what == "write":
            wrote(traffic.of(f"/{stream}", f"{topic}"), size)
            written += size
        elif what == "wait":
            clock.now += SELECT_S
        else:
            for path, value in told(traffic).items():
                assert value >= last.get(path, 0)
                rose[path] += value - last.get(path, 0)
                last[path] = value
    for path, value in told(traffic).items():
        rose[path] += value - last.get(path, 0)
    assert sum(rose.values()) == written


def test_streams_without_end_share_the_flow_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_COUNTED", 3)
    clock = Clock()
    traffic = Traffic(most_streams=1, time=clock)
    for _ in range(TIMES):
        for number in range(9):
            wrote(traffic.of(f"/{number}", "t"), 10**number)
        found = told(traffic)
        clock.now += SELECT_S
    assert found.keys() == {"/2", OTHERS}
    assert traffic.of("/7", "t") is traffic.of("/8", "u")
    assert traffic.dropped["streams"] == 2


def test_a_look_at_many_streams_is_taken_in_pieces() -> None:
    traffic = Traffic(most_streams=1)
    for number in range(1_000):
        traffic.of(f"/{number}", "t")
    assert sum(each is None for each in traffic.flow_reports()) >= 999
