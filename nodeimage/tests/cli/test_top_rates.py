from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.top_rates import FLOWS, Rates, Sample, StreamContent, containers, ordered, rate, stream_rates


def node(number: int, **fields: Any) -> dict[str, Any]:
    return {
        "node": number,
        "address": f"127.0.0.1:{9091 + number}",
        "state": "up",
        "roles": ["controller"] if number == 1 else [],
        "leads": 2,
        "in_sync": 3,
        "replicas": 4,
        "disk_used_bytes": 5,
        **fields,
    }


def status(uptime_ms: int, count: int = 0, **fields: Any) -> dict[str, Any]:
    return {
        "uptime_ms": uptime_ms,
        "clients": {
            "connected": 3,
            "requests_since_start": count,
            "in_since_start_bytes": 10 * count,
            "out_since_start_bytes": 100 * count,
        },
        "process": {"cpu_since_start_ms": uptime_ms // 4},
        "memory": {"resident_bytes": 1 << 20},
        "loop_lag_ms": {"p99": 3.0},
        "containers": [],
        **fields,
    }


def sample(at_s: float, nodes: dict[int, dict[str, Any]], **fields: Any) -> Sample:
    told = {"whole": True, "containers": 1, "lacking": 0, "below_minimum": 0, "stalled": 0, "behind_bytes": 0}
    cluster = {
        "cluster": "c",
        "controller": 1,
        "redundancy": told,
        "nodes": [node(1), node(2)],
        "lacking": fields.pop("lacking", []),
    }
    given = {"groups": [], "streams": {}, "events": [], **fields}
    return Sample(at_s=at_s, cluster=cluster, nodes=nodes, **given)


def test_rates_are_of_the_nodes_own_clock() -> None:
    rates = Rates()
    first = rates.take(sample(0, {1: status(10_000, 500), 2: status(20_000, 0)}))
    assert first.nodes[0]["requests_per_second"] is None
    assert first.totals["requests_per_second"] is None
    second = rates.take(sample(999, {1: status(12_000, 700), 2: status(22_000, 20)}))
    assert [each["requests_per_second"] for each in second.nodes] == [100, 10]
    assert [each["in_per_second_bytes"] for each in second.nodes] == [1_000, 100]
    assert second.nodes[0]["cpu_percent"] == 25.0
    assert second.totals["requests_per_second"] == 110
    assert second.totals["connections"] == 6


def test_a_node_that_was_started_again_has_no_rates_for_once() -> None:
    rates = Rates()
    rates.take(sample(0, {1: status(10_000, 500)}))
    again = rates.take(sample(2, {1: status(1_000, 20)}))
    assert again.nodes[0]["requests_per_second"] is None
    assert again.nodes[0]["connections"] == 3
    assert rates.take(sample(4, {1: status(3_000, 40)})).nodes[0]["requests_per_second"] == 10


def test_a_node_that_is_silent_or_older_tells_nothing() -> None:
    rates = Rates()
    rates.take(sample(0, {1: status(10_000)}))
    shown = rates.take(sample(2, {1: {"uptime_ms": 12_000, "containers": []}}))
    assert (shown.nodes[0]["cpu_percent"], shown.nodes[0]["resident_bytes"]) == (None, None)
    assert (shown.nodes[1]["requests_per_second"], shown.nodes[1]["connections"]) == (None, None)


@given(st.integers(0, 10), st.integers(0, 10), st.integers(0, 10), st.integers(0, 10))
def test_a_rate_is_never_negative(before_ms: int, now_ms: int, was: int, count: int) -> None:
    found = rate({"uptime_ms": before_ms, "n": was}, {"uptime_ms": now_ms, "n": count}, ("n",))
    assert found is None or found >= 0


def group(name: str, lag: int) -> dict[str, Any]:
    return {"group": name, "state": "Stable", "protocol_type": "consumer", "partitions": 1, "lag": lag}


def test_lag_grows_and_falls() -> None:
    rates = Rates()
    rates.take(sample(0, {}, groups=[group("a", 100), group("b", 50)]))
    shown = rates.take(sample(2, {}, groups=[group("a", 120), group("b", 0), group("c", 9)]))
    assert [(each["group"], each["lag_per_second"]) for each in shown.groups] == [("a", 10), ("b", -25), ("c", None)]
    assert rates.take(sample(4, {}, groups=None)).groups == []
    assert rates.take(sample(6, {}, groups=[group("a", 1)])).groups[0]["lag_per_second"] is None


def moved(uptime_ms: int, **counts: int) -> dict[str, Any]:
    """The status of a node with this many records written to each stream, and read twice, of 10 bytes each."""
    streams = [
        {
            "stream": f"/{name}",
            "in_since_start_records": count,
            "in_since_start_bytes": 10 * count,
            "out_since_start_records": 2 * count,
            "out_since_start_bytes": 20 * count,
        }
        for name, count in counts.items()
    ]
    return status(uptime_ms, traffic={"streams": streams, "streams_in_others": 0})


def test_a_streams_rates_are_the_sums_of_all_nodes() -> None:
    rates = Rates()
    content = {"/s": StreamContent(7, 70), "/idle": StreamContent(1, 10)}
    first = rates.take(sample(0, {1: moved(1_000, s=100), 2: moved(9_000, s=5)}, streams=content))
    assert [each["in_per_second_records"] for each in first.streams] == [None, None]
    nodes = {1: moved(3_000, s=300), 2: moved(11_000, s=25, other=40)}
    shown = {each.pop("stream"): each for each in rates.take(sample(2, nodes, streams=content)).streams}
    assert shown == {
        "/s": {
            "in_per_second_records": 110,
            "in_per_second_bytes": 1_100,
            "out_per_second_records": 220,
            "out_per_second_bytes": 2_200,
            "records": 7,
            "bytes": 70,
        },
        "/idle": {**dict.fromkeys(FLOWS, 0), "records": 1, "bytes": 10},
        "/other": {
            "in_per_second_records": 20,
            "in_per_second_bytes": 200,
            "out_per_second_records": 40,
            "out_per_second_bytes": 400,
            "records": None,
            "bytes": None,
        },
    }
    assert [each["stream"] for each in rates.take(sample(4, nodes, streams=content)).streams] == ["/s", "/idle"]


def test_a_node_that_was_started_again_counts_in_no_stream_for_once() -> None:
    rates = Rates()
    rates.take(sample(0, {1: moved(1_000, s=100), 2: moved(1_000, s=100)}))
    one = rates.take(sample(2, {1: moved(500, s=40), 2: moved(3_000, s=120)}))
    assert [each["in_per_second_records"] for each in one.streams] == [10]
    both = rates.take(sample(4, {1: moved(2_500, s=60), 2: moved(5_000, s=140)}))
    assert [each["in_per_second_records"] for each in both.streams] == [20]


def test_a_counter_that_fell_says_that_the_node_was_started_again_however_long_it_is_up() -> None:
    before, now = {1: moved(1_000, s=100, t=1)}, {1: moved(9_000, s=40, t=90)}
    assert stream_rates(before, now) is None


def test_streams_of_nodes_that_do_not_tell_of_them_have_no_rates() -> None:
    rates = Rates()
    rates.take(sample(0, {1: status(1_000)}, streams={"/s": StreamContent(1, 1)}))
    (shown,) = rates.take(sample(2, {1: status(3_000)}, streams={"/s": StreamContent(1, 1)})).streams
    assert [shown[name] for name in FLOWS] == [None] * len(FLOWS)
    rates.take(sample(4, {}))
    (shown,) = rates.take(sample(6, {1: moved(5_000, s=9)}, streams={"/s": StreamContent(1, 1)})).streams
    assert shown["in_per_second_bytes"] is None


@given(st.lists(st.tuples(st.integers(-9, 9), st.integers(0, 9), st.integers(0, 9)), max_size=4))
def test_no_rate_of_a_stream_is_negative(looks: list[tuple[int, int, int]]) -> None:
    before: dict[int, Any] = {}
    for uptime_ms, written, others in looks:
        now = {1: moved(uptime_ms, s=written), 2: moved(-uptime_ms, s=others)}
        assert all(rate >= 0 for each in (stream_rates(before, now) or {}).values() for rate in each.values())
        before = now


def test_containers_that_lack_something_come_first() -> None:
    replica = {"kind": "data", "primary": 1, "in_sync": "1,2", "on_disk_bytes": 7}
    nodes = {
        1: status(1, containers=[{"id": 1, "role": "primary", **replica}, {"id": 2, "role": "follower", **replica}]),
        2: status(1, containers=[{"id": 2, "role": "primary", **replica, "on_disk_bytes": 8}]),
    }
    lack = {"kind": "data", "primary": 3, "in_sync": 1, "wanted": 3, "reason": "node 2 is down", "behind_bytes": 9}
    lacking = [{"container": 5, **lack}, {"container": 2, **lack, "stalled": True}]
    rows = containers(sample(0, nodes, lacking=lacking))
    assert [(each["container"], each["state"]) for each in rows] == [(2, "stalled"), (5, "behind"), (1, "in sync")]
    assert rows[0]["on_disk_bytes"] == 8
    assert rows[1]["on_disk_bytes"] is None
    assert (rows[2]["in_sync"], rows[2]["wanted"], rows[2]["behind_bytes"]) == (2, 2, 0)


def test_the_newest_event_comes_first() -> None:
    events = [[{"at_ms": at, "kind": "k", "container": None, "reason": str(at)}] for at in (3, 1, 2)]
    assert [each["at_ms"] for each in Rates().take(sample(0, {}, events=events)).events] == [3, 2, 1]


def test_numbers_fall_and_names_rise_and_what_is_not_known_is_last() -> None:
    rows = [{"n": 1, "t": "b"}, {"n": None, "t": "a"}, {"n": 3, "t": None}]
    assert [each["n"] for each in ordered(rows, "n", reverse=False)] == [3, 1, None]
    assert [each["n"] for each in ordered(rows, "n", reverse=True)] == [1, 3, None]
    assert [each["t"] for each in ordered(rows, "t", reverse=False)] == ["a", "b", None]
    assert [each["node"] for each in ordered([{"node": 2}, {"node": 1}], "node", reverse=False)] == [1, 2]


def test_all_of_it_is_json() -> None:
    shown = Rates().take(sample(0, {1: status(1)}))
    assert msgspec.json.decode(msgspec.json.encode(shown.as_json()))["nodes"][0]["node"] == 1
