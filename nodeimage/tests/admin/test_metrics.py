import re
from typing import Any

from headrace.admin.metrics import exposition, merged


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
        "ready": 1,
        "controller": 0,
        "store_silent_s": 0.25,
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
        "memory": {"resident_bytes": 11},
        "descriptors": {"open": 22, "limit": 23},
        "disk": {"free_bytes": 12, "total_bytes": 13, "stored_bytes": 14, "waiting_bytes": 15},
        "maintenance": {"given_back_since_start_bytes": 16, "chunks_regrouped_since_start": 17},
        "containers": [each | {"on_disk_bytes": 1} for each in (container, unseen)],
    }


def test_every_line_is_of_the_text_format() -> None:
    text = exposition(status())
    line = re.compile(
        r"# (HELP|TYPE) headrace_[a-z_]+ .+|headrace_[a-z_]+\{[a-z_]+=\"[^\"]*\"(,[a-z_]+=\"[^\"]*\")*\} [0-9.]+"
    )
    assert text.endswith("\n")
    assert [each for each in text.splitlines() if not line.fullmatch(each)] == []


def test_figures_are_told_of_the_node_and_of_its_containers() -> None:
    lines = exposition(status()).splitlines()
    assert 'headrace_ready{node="3"} 1' in lines
    assert 'headrace_store_silent_seconds{node="3"} 0.25' in lines
    assert 'headrace_in_bytes_total{node="3"} 9' in lines
    assert "# TYPE headrace_in_bytes_total counter" in lines
    assert 'headrace_container_committed_position{node="3",container="7",kind="data"} 800' in lines
    assert [each for each in lines if each.startswith("headrace_container_leads")] == [
        'headrace_container_leads{node="3",container="7",kind="data"} 1',
        'headrace_container_leads{node="3",container="9",kind="data"} 0',
    ]
    assert not any(each.startswith("headrace_container_epoch") and 'container="9"' in each for each in lines)


def test_several_nodes_metrics_stand_together_under_one_head() -> None:
    both = merged([exposition(status(3)), exposition(status(4))]).splitlines()
    assert len([each for each in both if each.startswith("# TYPE headrace_ready ")]) == 1
    at = both.index('headrace_ready{node="3"} 1')
    assert both[at + 1] == 'headrace_ready{node="4"} 1'
    assert sorted(both) == sorted({*exposition(status(3)).splitlines(), *exposition(status(4)).splitlines()})
