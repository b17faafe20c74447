"""What the controller did: the latest events, each also written to the log."""

from itertools import pairwise

from structlog.testing import capture_logs

from headrace.base.ids import ContainerId, NodeId
from headrace.control.events import KEPT, Events


def test_the_last_events_are_kept_oldest_first() -> None:
    events = Events()
    for number in range(KEPT + 5):
        events.add("primary", f"reason {number}", container=ContainerId(number))
    assert len(events) == KEPT
    kept = list(events)
    assert (kept[0].reason, kept[-1].reason) == ("reason 5", f"reason {KEPT + 4}")
    assert all(earlier.at <= later.at for earlier, later in pairwise(kept))


def test_an_event_is_a_line_with_what_it_concerns() -> None:
    events = Events()
    with capture_logs() as lines:
        events.add("node", "node 2 is dead", node=NodeId(2))
        events.add("office", "this node is the controller")
    assert [(line["kind"], line["reason"], line.get("node"), "container" in line) for line in lines] == [
        ("node", "node 2 is dead", 2, False),
        ("office", "this node is the controller", None, False),
    ]


def test_events_that_come_while_they_are_listed_do_no_harm() -> None:
    events = Events()
    for number in range(3):
        events.add("wait", str(number))
    for event in events:
        events.add("wait", f"{event.reason} again")
    assert len(events) == 6
