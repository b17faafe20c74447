"""Waiters for a commit are notified in order, once, whatever other waiters do."""

import asyncio

import pytest

from headrace.base.errors import Code, KafkaError
from headrace.base.ids import ContainerId, Position
from headrace.container.commit_waiters import CommitQueue, WaitingFuture

CONTAINER = ContainerId(7)


class Waiter:
    """Records its notifications."""

    def __init__(self, name: str, told: list[str]) -> None:
        self.name = name
        self.told = told

    def committed(self) -> None:
        self.told.append(f"{self.name} committed")

    def lost(self) -> None:
        self.told.append(f"{self.name} lost")


class Broken(Waiter):
    """Fails when notified."""

    def committed(self) -> None:
        super().committed()
        raise RuntimeError("a fault of its own")

    def lost(self) -> None:
        super().lost()
        raise RuntimeError("a fault of its own")


def test_who_waits_is_told_once_all_below_its_position_is_committed_and_in_order() -> None:
    queue, told = CommitQueue(CONTAINER), []
    for name, position in (("a", 10), ("b", 20), ("c", 20), ("d", 30)):
        queue.add(position, Waiter(name, told))
    queue.committed(Position(9))
    assert told == []
    queue.committed(Position(20))
    assert told == ["a committed", "b committed", "c committed"]
    queue.committed(Position(20))
    assert len(told) == 3
    queue.committed(Position(1000))
    assert told[3:] == ["d committed"]


def test_a_lower_position_behind_a_higher_one_waits_its_turn() -> None:
    queue, told = CommitQueue(CONTAINER), []
    queue.add(30, Waiter("first", told))
    queue.add(10, Waiter("second", told))
    queue.committed(Position(20))
    assert told == []
    queue.committed(Position(30))
    assert told == ["first committed", "second committed"]


def test_all_who_wait_hear_that_the_node_leads_no_longer_and_nothing_after_that() -> None:
    queue, told = CommitQueue(CONTAINER), []
    queue.add(10, Waiter("a", told))
    queue.add(20, Waiter("b", told))
    queue.lost()
    queue.committed(Position(1000))
    assert told == ["a lost", "b lost"]


@pytest.mark.parametrize("outcome", ["committed", "lost"])
def test_a_fault_of_one_keeps_none_of_the_others_waiting(outcome: str) -> None:
    queue, told = CommitQueue(CONTAINER), []
    queue.add(10, Broken("a", told))
    queue.add(10, Waiter("b", told))
    if outcome == "committed":
        queue.committed(Position(10))
    else:
        queue.lost()
    assert told == [f"a {outcome}", f"b {outcome}"]


async def test_a_future_gets_its_position_or_hears_that_another_leads() -> None:
    loop = asyncio.get_running_loop()
    kept: asyncio.Future[Position] = loop.create_future()
    gone: asyncio.Future[Position] = loop.create_future()
    given_up: asyncio.Future[Position] = loop.create_future()
    given_up.cancel()
    queue = CommitQueue(CONTAINER)
    for position, future in ((10, kept), (10, given_up), (20, gone), (20, given_up)):
        queue.add(position, WaitingFuture(future, Position(position), CONTAINER))
    queue.committed(Position(10))
    queue.lost()
    assert await kept == 10
    with pytest.raises(KafkaError, match="no longer leads container 7") as refused:
        await gone
    assert refused.value.code is Code.NOT_LEADER_OR_FOLLOWER
