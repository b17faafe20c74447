from typing import Any

import pytest

from headrace.cli.balancing import moves
from headrace.cli.cluster_status import (
    clocks_in_words,
    controller_in_words,
    listener_problems,
    listeners_in_words,
    newest_events,
    redundancy_in_words,
    set_back_in_words,
    store_in_words,
    volume_in_words,
)
from headrace.cli.containers import with_bytes
from headrace.cli.storage import merged
from kit.commands_on_node import Headrace


def event(at: int, kind: str, reason: str) -> dict[str, Any]:
    return {"at_ms": at, "kind": kind, "container": None, "reason": reason}


def test_events_of_all_nodes_come_in_order_of_time() -> None:
    first = [event(1, "office", "node 1 is the controller now"), event(9, "primary", "node 2 leads now")]
    second = [event(5, "office", "node 2 is the controller now")]
    assert [each["at_ms"] for each in newest_events([first, second], 10)] == [1, 5, 9]
    assert [each["at_ms"] for each in newest_events([first, second], 2)] == [5, 9]
    assert newest_events([first], 0) == []


def test_what_all_nodes_see_is_told_once() -> None:
    seen = [
        [event(1_000 + node, "lost", f"{node} containers have fewer"), event(9_000 + node, "whole", "after 8 s")]
        for node in range(3)
    ]
    assert [each["at_ms"] for each in newest_events(seen, 10)] == [1_000, 9_000]


def test_redundancy_that_is_lost_twice_is_told_twice() -> None:
    seen = [[event(1, "lost", ""), event(2, "whole", ""), event(3, "lost", "")], [event(2, "whole", "")]]
    assert [each["kind"] for each in newest_events(seen, 10)] == ["lost", "whole", "lost"]


def test_only_what_moved_load_explains_the_balance() -> None:
    seen = [[event(1, "node", "node 2 is silent"), event(2, "roll", "hot"), event(3, "whole", "")]]
    assert [each["kind"] for each in moves(seen, 10)] == ["roll"]


def redundancy(**fields: Any) -> dict[str, Any]:
    whole = {"whole": True, "since_ms": None, "containers": 4, "lacking": 0, "below_minimum": 0, "behind_bytes": 0}
    return whole | fields


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "whole: 4 containers with all replicas in sync"),
        ({"containers": 1}, "whole: 1 container with all replicas in sync"),
        ({"since_ms": 1_441_115_100_000}, "whole: 4 containers with all replicas in sync, since 2015-09-01 13:45:00Z"),
        ({"whole": False, "lacking": 1}, "not whole: 1 of 4 containers lacks replicas"),
        (
            {"whole": False, "lacking": 2, "behind_bytes": 1 << 30},
            "not whole: 2 of 4 containers lack replicas; 1.0 GiB still to copy",
        ),
        (
            {"whole": False, "lacking": 2, "below_minimum": 1},
            "not whole: 2 of 4 containers lack replicas; 1 is below its minimum and accepts no writes",
        ),
    ],
)
def test_redundancy_in_one_line(fields: dict[str, Any], said: str) -> None:
    assert redundancy_in_words(redundancy(**fields)) == said


def test_a_volume_in_one_line_says_when_a_record_is_acknowledged_and_what_is_missing() -> None:
    one = {"replicas": 1, "min_in_sync": 1, "durability": "fsync", "problem": None}
    assert volume_in_words(one) == "1 replica"
    three = one | {"replicas": 3, "min_in_sync": 2, "problem": "there are 2 nodes"}
    assert volume_in_words(three).startswith("3 replicas; ")
    assert "all in sync, 2 at least, have it on disk" in volume_in_words(three)
    assert volume_in_words(three).endswith("; there are 2 nodes")
    assert "in memory" in volume_in_words(three | {"durability": "memory"})


def test_a_controller_that_does_not_answer_is_told_apart() -> None:
    nodes = [{"node": 1, "state": "up"}, {"node": 2, "state": "down"}]
    assert controller_in_words(1, nodes) == "node 1"
    assert "does not answer" in controller_in_words(2, nodes)
    assert controller_in_words(None, nodes) == "none at present"


def test_a_containers_bytes_are_those_of_its_leader() -> None:
    found = [{"container": 1, "primary": 2, "bytes": None}, {"container": 2, "primary": 3, "bytes": 5}]
    answers = {2: [{"container": 1, "bytes": 7}, {"container": 2, "bytes": 6}], 3: None}
    assert [each["bytes"] for each in with_bytes(found, answers)] == [7, None]


def scrub(**fields: Any) -> dict[str, Any]:
    state = {"running": False, "state": "ended", "containers": 2, "containers_done": 2, "frames": 10}
    return state | {"read_bytes": 100, "seconds": 1.5, "errors": []} | fields


def test_the_scrubs_of_all_nodes_are_shown_as_one() -> None:
    both = merged({1: scrub(), 2: scrub(running=True, state="running", seconds=0.5, errors=["bad frame"])})
    assert (both["nodes"], both["running"], both["state"]) == (2, True, "running")
    assert (both["frames"], both["read_bytes"], both["seconds"]) == (20, 200, 1.5)
    assert both["errors"] == ["node 2: bad frame"]
    assert merged({1: scrub(errors=["bad frame"])})["errors"] == ["bad frame"]
    assert merged({1: scrub(), 2: None})["errors"] == ["node 2 does not answer"]


def test_a_clock_that_is_off_is_told_in_one_line_and_others_not_at_all() -> None:
    nodes: list[dict[str, Any]] = [{"node": 1, "clock_off_ms": None}, {"node": 2, "clock_off_ms": 180_000}]
    assert clocks_in_words(nodes) == "node 2's clock is 3min ahead of the cluster's time"
    assert "node 3's clock is 2min behind" in clocks_in_words([*nodes, {"node": 3, "clock_off_ms": -120_000}])
    assert clocks_in_words(nodes[:1]) == ""


def test_a_store_that_does_not_answer_is_told_in_one_line_with_what_goes_on() -> None:
    assert store_in_words(None) == store_in_words({"node": 1, "silent_ms": 0}) == ""
    said = store_in_words({"node": 1, "silent_ms": 12_345})
    assert said.startswith("node 1 has not heard of it for 12s: leaders serve reads and writes as before")


def test_a_store_that_was_set_back_is_told_in_one_line_with_what_to_do() -> None:
    told = {"containers": 3, "such_as": [1, 4, 7], "nodes": [2, 3], "do": "`headrace recover-store`"}
    said = set_back_in_words(told)
    assert said.startswith("an old copy of itself: nodes 2, 3 know newer records of 3 containers, such as 1")
    assert said.endswith("which stand still; `headrace recover-store`")
    assert "node 2 knows newer records of container 1," in set_back_in_words(told | {"containers": 1, "nodes": [2]})
    assert set_back_in_words(None) == ""


def test_status_shows_the_node_and_its_containers(hr: Headrace, cluster: Any) -> None:
    status = hr("status", "-o", "json").json
    (node,) = status["nodes"]
    assert (status["bootstrap"], node["pid"], node["state"]) == (cluster.bootstrap, cluster.pid, "up")
    assert status["redundancy"]["whole"]
    shown = hr("status", "--bootstrap", cluster.bootstrap).out
    assert status["cluster"] in shown
    assert "1 replica" in shown
    alone = hr("status", "--node", str(node["node"]), "-o", "json").json
    assert {container["kind"] for container in alone["containers"]} == {"catalog", "data"}
    assert {container["role"] for container in alone["containers"]} == {"primary"}
    assert "there is no node 77" in hr("status", "--node", "77").refused()


def test_what_is_wrong_with_listeners_is_one_line() -> None:
    wrong = {"name": "secure", "problem": "the certificate expires in 3 days", "problem_since_ms": 0}
    sound = {"name": "mutual", "problem": "", "problem_since_ms": None}
    said = listener_problems([wrong, sound])
    assert said == ["listener secure: the certificate expires in 3 days (since 1970-01-01 00:00:00Z)"]
    nodes = [{"node": 1, "listener_problems": said}, {"node": 2, "listener_problems": []}, {"node": 3}]
    assert listeners_in_words(nodes) == f"node 1, {said[0]}"
    assert listeners_in_words(nodes[1:]) == ""
