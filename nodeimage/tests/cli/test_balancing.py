"""Which events count as moves of load."""

from typing import Any

from headrace.cli.balancing import MOVES, moves


def event(kind: str, at_ms: int) -> dict[str, Any]:
    return {"kind": kind, "at_ms": at_ms, "at": at_ms, "reason": f"{kind} {at_ms}", "container": 1, "node": 1}


def test_only_moves_are_shown_the_newest_of_all_nodes_in_order_of_time() -> None:
    seen = [
        [event("primary", 10), event("node", 11), event("roll", 30)],
        [event("container", 20), event("wait", 40), event("office", 50)],
    ]
    assert [each["kind"] for each in moves(iter(seen), 10)] == ["primary", "container", "roll"]
    assert [each["kind"] for each in moves(iter(seen), 2)] == ["container", "roll"]
    assert moves(iter([]), 5) == []
    assert set(MOVES) == {"primary", "roll", "container"}
