"""The more clients have a backlog, the smaller is each answer."""

from types import SimpleNamespace
from typing import Any

from headrace.kafka.answer_budget import COUNTED_S, MIN_BYTES, SHARED_BYTES, AnswerBudget


def test_clients_that_are_behind_share_what_there_is_down_to_a_least() -> None:
    now = 0.0
    connections: list[Any] = []
    budget = AnswerBudget(connections, time=lambda: now)
    assert budget.bytes() == SHARED_BYTES
    connections += [SimpleNamespace(is_behind=True), SimpleNamespace(is_behind=False)]
    now = COUNTED_S
    assert budget.bytes() == SHARED_BYTES // 2
    connections += [SimpleNamespace(is_behind=True)] * 10_000
    now = 2 * COUNTED_S
    assert budget.bytes() == MIN_BYTES


def test_a_count_holds_for_a_moment() -> None:
    now = 0.0
    connections: list[Any] = []
    budget = AnswerBudget(connections, time=lambda: now)
    budget.bytes()
    connections.append(SimpleNamespace(is_behind=True))
    now = COUNTED_S / 2
    assert budget.bytes() == SHARED_BYTES
    now = COUNTED_S
    assert budget.bytes() == SHARED_BYTES // 2
