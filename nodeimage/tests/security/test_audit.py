"""How refusals are logged, and that nobody can fill the log or hide others in it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from headrace.security import audit
from headrace.security.audit import ALL_BURST, BURST, AuditEvent, AuditLog

DENIED = AuditEvent(
    at_ms=5,
    user="alice",
    address="10.0.0.1",
    listener="external",
    action="produce",
    kind="topic",
    name="/plant:flow",
    allowed=False,
    reason="u:bob does not let alice in",
    api="Produce",
    client_id="app",
)


class Told:
    """A log with a clock that the test sets."""

    def __init__(self, **options: Any) -> None:
        self.now = 100.0
        self.events: list[Mapping[str, object]] = []
        self.log = AuditLog([self.events.append], monotonic=lambda: self.now, **options)


@pytest.fixture
def told() -> Told:
    return Told()


def test_a_refusal_is_told_with_all_that_there_is_to_know(told: Told) -> None:
    assert told.log.tell(DENIED)
    assert told.events == [
        {
            "at_ms": 5,
            "user": "alice",
            "address": "10.0.0.1",
            "listener": "external",
            "action": "produce",
            "kind": "topic",
            "name": "/plant:flow",
            "allowed": False,
            "reason": "u:bob does not let alice in",
            "api": "Produce",
            "client_id": "app",
        }
    ]


def test_of_what_is_allowed_only_the_actions_that_are_asked_for_are_told() -> None:
    told = Told(allowed=["admin"])
    for action, wanted in (("produce", False), ("admin", True)):
        assert told.log.wants(action, allowed=True) is wanted
        assert told.log.tell(replace(DENIED, action=action, allowed=True)) is wanted
    assert [each["action"] for each in told.events] == ["admin"]


def test_who_is_refused_all_the_time_is_told_now_and_then_with_how_often(told: Told) -> None:
    went_out = [told.log.tell(DENIED) for _ in range(BURST + 30)]
    assert went_out == [True] * BURST + [False] * 30
    assert told.log.tell(replace(DENIED, user="bob")), "another is told"
    told.now += 1
    assert told.log.tell(DENIED)
    assert told.events[-1]["left_out"] == 30
    assert not told.log.tell(DENIED)
    assert told.log.flush() == 1
    assert told.events[-1] == {"action": "left out", "left_out": 1}
    assert told.log.flush() == 0


def test_those_who_have_proved_nothing_are_told_apart_by_address(told: Told) -> None:
    nobody = replace(DENIED, user="ANONYMOUS")
    assert [told.log.tell(nobody) for _ in range(BURST + 1)][-1] is False
    assert told.log.tell(replace(nobody, address="10.0.0.2"))
    assert not told.log.tell(replace(nobody, address="10.0.0.1"))


def test_all_together_have_a_bound(told: Told) -> None:
    went_out = sum(told.log.tell(replace(DENIED, user=f"u{number}")) for number in range(ALL_BURST + 500))
    assert went_out == ALL_BURST
    assert told.log.flush() == 500


def test_what_is_kept_of_principals_is_bounded_and_no_count_is_lost(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "_MAX_PRINCIPALS", 3)
    for _ in range(BURST + 5):
        told.log.tell(DENIED)
    for number in range(10):
        told.log.tell(replace(DENIED, user=f"u{number}"))
        assert len(told.log._principals) <= 3
    told.log.flush()
    assert sum(each.get("left_out", 0) for each in told.events) == 5  # type: ignore[misc]


def test_those_who_are_quiet_are_forgotten(told: Told) -> None:
    told.log.tell(DENIED)
    told.log.flush()
    assert told.log._principals
    told.now += 2
    told.log.flush()
    assert not told.log._principals


def test_long_names_are_cut(told: Told) -> None:
    told.log.tell(replace(DENIED, client_id="x" * 10_000))
    assert len(str(told.events[0]["client_id"])) == 501
