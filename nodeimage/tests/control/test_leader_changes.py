"""Spans of changes of leaders: from the former leader's problem until the new one leads."""

import uuid
from dataclasses import replace
from typing import Any

import pytest

from headrace.base.ids import ContainerId, Epoch, NodeId, Position
from headrace.control import leader_changes
from headrace.control.changes import PutContainer
from headrace.control.leader_changes import LeaderChanges
from headrace.peer.reports import ReplicaState
from headrace.store.records import ContainerRecord
from headrace.tracing.tracer import NO_TRACER
from kit.kept_spans import KeptSpans

FORMER, NEXT = NodeId(1), NodeId(2)


def change(container: int = 7, *, epoch: int = 4, began: float | None = 98.0) -> PutContainer:
    pairs = ((NEXT, uuid.UUID(int=1)),)
    record = ContainerRecord(ContainerId(container), "data", NEXT, Epoch(epoch), pairs, (NEXT,))
    return PutContainer(record, 10, "test", began=began)


def state(container: int = 7, *, epoch: int = 4, role: Any = "primary") -> ReplicaState:
    return ReplicaState(ContainerId(container), role, Epoch(epoch), Epoch(epoch), Position(0), Position(0))


class World:
    """A controller's clock, and the replicas that its nodes reported."""

    def __init__(self, tracer: Any) -> None:
        self.now = 100.0
        self.replicas: dict[tuple[NodeId, ContainerId], ReplicaState] = {}
        self.tracer = tracer
        self.changes = LeaderChanges(
            tracer=tracer, time=lambda: self.now, replica=lambda node, container: self.replicas.get((node, container))
        )

    def decide(self, *changes: PutContainer) -> None:
        for each in changes:
            self.changes.decided(each, FORMER)
        self.changes.planned(changes)

    def told(self, **about: Any) -> None:
        self.changes.told(NEXT, ContainerId(7), state(**about))


@pytest.fixture
def world() -> World:
    return World(KeptSpans())


def test_a_failover_is_told_with_how_long_each_step_took(world: World) -> None:
    world.decide(change())
    world.now = 101.0
    world.decide(change())  # the store is slow: another plan wants the same
    world.now = 104.0
    world.changes.appointed(change(), FORMER)
    world.now = 104.5
    world.told(role="follower")
    world.told(epoch=3)
    world.changes.told(NodeId(9), ContainerId(7), state())
    world.changes.told(NEXT, ContainerId(8), state(8))
    world.changes.told(NEXT, ContainerId(7), None)
    assert world.tracer.spans == []
    world.told()
    world.told()
    (span,) = world.tracer.spans
    assert (span.took_s, span.error) == (6.5, "")
    assert span.told() == {
        "headrace.container": 7,
        "headrace.container.kind": "data",
        "headrace.cause": "failure",
        "headrace.from_node": 1,
        "headrace.to_node": 2,
        "headrace.epoch": 4,
        "headrace.notice_seconds": 2.0,
        "headrace.appoint_seconds": 4.0,
        "headrace.lead_seconds": 0.5,
    }


@pytest.mark.parametrize(
    ("asked", "cause"),
    [
        (replace(change(began=None), is_planned=True), "hand_over"),
        (replace(change(began=None), is_balance=True), "balance"),
        (change(began=None), "failure"),
    ],
)
def test_what_was_planned_begins_as_it_is_decided(world: World, asked: PutContainer, cause: str) -> None:
    world.decide(asked)
    world.changes.appointed(asked, FORMER)
    world.told()
    (told,) = world.tracer.told("headrace.failover")
    assert (told["headrace.cause"], told["headrace.notice_seconds"]) == (cause, 0.0)


def test_a_leader_that_leads_before_the_store_has_answered_is_known(world: World) -> None:
    """The answer was lost, and the view showed that the put had been stored."""
    world.replicas[NEXT, ContainerId(7)] = state()
    world.changes.appointed(change(began=None), FORMER)
    (span,) = world.tracer.spans
    assert (span.took_s, span.told()["headrace.lead_seconds"]) == (0.0, 0.0)


def test_what_a_plan_no_longer_wants_is_forgotten(world: World) -> None:
    world.decide(change(began=None))
    world.decide(change(8))
    world.now = 200.0
    world.decide(change(began=None))
    world.changes.appointed(change(began=None), FORMER)
    world.told()
    assert world.tracer.spans[0].took_s == 0.0


def test_a_change_of_replicas_is_no_change_of_leaders(world: World) -> None:
    world.changes.decided(change(), NEXT)
    world.now = 200.0
    world.changes.appointed(change(began=None), FORMER)
    world.told()
    assert world.tracer.spans[0].took_s == 0.0


def test_one_that_another_overtakes_ends_there_and_so_do_those_of_a_controller_that_goes(world: World) -> None:
    world.changes.appointed(change(), FORMER)
    world.now = 105.0
    world.changes.appointed(change(epoch=5), FORMER)
    world.told(epoch=4)
    world.changes.forget()
    world.changes.forget()
    told = world.tracer.told("headrace.failover")
    assert [each["error.type"] for each in told] == ["OVERTAKEN", "CONTROLLER_LEFT"]
    assert [each["headrace.epoch"] for each in told] == [4, 5]
    assert all("headrace.lead_seconds" not in each for each in told)


def test_those_under_way_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader_changes, "MAX_APPOINTED", 2)
    for number in (6, 7, 8, 9):
        world.changes.appointed(change(number), FORMER)
    world.changes.forget()
    assert [each["headrace.container"] for each in world.tracer.told("headrace.failover")] == [6, 7]


def test_without_traces_nothing_is_kept() -> None:
    world = World(NO_TRACER)
    world.decide(change())
    world.changes.appointed(change(), FORMER)
    assert (world.changes._decided, world.changes._appointed) == ({}, {})
