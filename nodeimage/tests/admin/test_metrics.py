from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from headrace.admin.metrics import counts, of_containers, of_log, of_loop, of_nodes, of_peers, of_requests, of_status
from headrace.base.errors import Code
from headrace.base.loop_lag import LoopLag
from headrace.metrics import declarations as declared
from headrace.metrics.declarations import ALL
from headrace.metrics.exposition import NodeMetrics
from headrace.metrics.histogram import Histogram
from headrace.metrics.log_times import LogTimes
from headrace.metrics.readings import Reading
from headrace.metrics.requests import ApiTimes, ProduceTimes


def status(node: int = 3) -> dict[str, Any]:
    container = {
        "id": 7,
        "kind": "data",
        "role": "primary",
        "epoch": 4,
        "end": 900,
        "committed": 800,
        "on_disk_bytes": 1,
    }
    unseen = {"id": 9, "kind": "data", "role": "follower", "epoch": None, "end": 5, "committed": 5, "on_disk_bytes": 2}
    return {
        "node": node,
        "cluster": "own",
        "version": "1.2.3",
        "ready": 1,
        "controller": 0,
        "store_silent_s": 0.25,
        "started_s": 1000.0,
        "cpu_s": 1.5,
        "now_s": 2000.0,
        "catalog": {"damage": "", "damaged": 0},
        "streams": 1,
        "topics": 2,
        "partitions": 3,
        "topics_in_memory": 2,
        "clients": {
            "connected": 4,
            "connections_since_start": 5,
            "most_connections": 18,
            "refused_since_start": 19,
            "made_way_since_start": 20,
            "silent_since_start": 21,
            "requests_since_start": 6,
            "produce_requests_since_start": 7,
            "fetch_requests_since_start": 8,
            "in_since_start_bytes": 9,
            "out_since_start_bytes": 10,
        },
        "listeners": [
            {"name": "tls", "certificate_expires_ms": 5_000_000, "failed_handshakes_since_start": 2},
            {"name": "plain", "certificate_expires_ms": None, "failed_handshakes_since_start": 0},
        ],
        "memory": {"resident_bytes": 11},
        "descriptors": {"open": 22, "limit": 23},
        "disk": {"free_bytes": 12, "total_bytes": 13, "stored_bytes": 14, "waiting_bytes": 15},
        "maintenance": {"given_back_since_start_bytes": 16, "chunks_regrouped_since_start": 17},
        "scrub": {"running": False},
        "containers": [each | {"on_disk_bytes": 1} for each in (container, unseen)],
    }


async def lines(readings: Iterable[Reading]) -> list[str]:
    return (await NodeMetrics(ALL, node="3").text(readings)).decode().splitlines()


async def test_figures_are_told_of_the_node_and_of_its_containers() -> None:
    told = await lines(of_status(status()))
    assert 'headrace_ready{node="3"} 1.0' in told
    assert 'headrace_store_silent_seconds{node="3"} 0.25' in told
    assert 'headrace_in_bytes_total{node="3"} 9.0' in told
    assert "# TYPE headrace_in_bytes_total counter" in told
    assert 'headrace_node_info{cluster="own",node="3",version="1.2.3"} 1.0' in told
    assert 'headrace_container_committed_position{container="7",kind="data",node="3"} 800.0' in told
    assert [each for each in told if each.startswith("headrace_container_leads")] == [
        'headrace_container_leads{container="7",kind="data",node="3"} 1.0',
        'headrace_container_leads{container="9",kind="data",node="3"} 0.0',
    ]
    assert not any(each.startswith("headrace_container_epoch") and 'container="9"' in each for each in told)


async def test_certificates_are_told_by_how_long_they_last() -> None:
    told = await lines(of_status(status()))
    assert [each for each in told if each.startswith("headrace_certificate_expiry_seconds")] == [
        'headrace_certificate_expiry_seconds{listener="tls",node="3"} 3000.0'
    ]
    assert 'headrace_tls_handshakes_failed_total{listener="tls",node="3"} 2.0' in told


async def test_nodes_are_told_by_how_they_are() -> None:
    told = await lines(of_nodes(["alive", "in doubt", "alive"]))
    assert [each for each in told if each.startswith("headrace_nodes{")] == [
        'headrace_nodes{node="3",state="alive"} 2.0',
        'headrace_nodes{node="3",state="in_doubt"} 1.0',
        'headrace_nodes{node="3",state="dead"} 0.0',
    ]


async def test_requests_are_told_of_the_apis_that_were_asked() -> None:
    produce, fetch, metadata = ProduceTimes(), ApiTimes(), ApiTimes()

    class Request:
        weight, arrived, started, appended, synced, ready = 1, 1.0, 1.0, 0.0, 0.0, 1.5

    produce.answered(Request(), 2.0)
    fetch.failed(int(Code.OFFSET_OUT_OF_RANGE))
    fetch.failed(-999)
    found = list(of_requests({"Produce": produce, "Fetch": fetch, "Metadata": metadata}))
    assert [(each.metric, each.labels) for each in found] == [
        (declared.REQUEST_SECONDS, ("Produce",)),
        (declared.REQUEST_PHASE_SECONDS, ("Produce", "queue")),
        (declared.REQUEST_PHASE_SECONDS, ("Produce", "append")),
        (declared.REQUEST_PHASE_SECONDS, ("Produce", "answer")),
        (declared.REQUEST_ERRORS, ("Fetch", "OFFSET_OUT_OF_RANGE")),
        (declared.REQUEST_ERRORS, ("Fetch", "-999")),
    ]


async def test_what_disk_and_loop_take_is_told() -> None:
    times = LogTimes()
    times.sync.observe(0.003)
    assert 'headrace_log_sync_seconds_count{node="3"} 1.0' in await lines(of_log(times))

    class Lag(LoopLag):
        def __init__(self) -> None:
            self.counts = [1] + [0] * len(LoopLag.bounds_s)
            self.sum_s = 0.0005

    (reading,) = of_loop(Lag())
    assert isinstance(reading.value, Histogram)
    assert (reading.metric, reading.value.count, reading.value.sum) == (declared.LOOP_LAG, 1, 0.0005)


def test_counts_have_one_label() -> None:
    assert list(counts(declared.LOGINS, {"PLAIN": 2})) == [Reading(declared.LOGINS, 2.0, ("PLAIN",))]


def test_containers_are_told_by_how_they_are() -> None:
    def leader(stalled: str = "") -> Any:
        return SimpleNamespace(stalled=stalled)

    def record(in_sync: int, wanted: int = 3) -> Any:
        return SimpleNamespace(in_sync=range(in_sync), wanted=wanted)

    led: Any = {1: leader(), 2: leader(), 3: leader("it has too few replicas in sync"), 4: leader()}
    records: Any = {1: record(3), 2: record(2), 3: record(1)}
    assert list(of_containers(led, records, waiting=5)) == [
        Reading(declared.CONTAINERS, 2.0, ("in_sync",)),
        Reading(declared.CONTAINERS, 1.0, ("behind",)),
        Reading(declared.CONTAINERS, 1.0, ("stalled",)),
        Reading(declared.CONTAINERS, 5.0, ("waiting",)),
    ]


async def test_calls_to_other_nodes_are_told_by_what_was_asked() -> None:
    took = Histogram()
    took.observe(0.003)
    assert 'headrace_peer_call_seconds_count{call="Probe",node="3"} 1.0' in await lines(of_peers({"Probe": took}))
