"""Waiting for a commit ends: with the commit, when another node leads, or on a timeout."""

import asyncio
from typing import Any

import pytest

from headrace.base.errors import Code, KafkaError
from headrace.base.ids import ContainerId, Position
from headrace.container import commit_wait
from headrace.container.commit_wait import back_in_touch, committed_to
from headrace.container.commit_waiters import CommitQueue


class Led:
    """A container as seen by those who wait for its commits."""

    id = ContainerId(7)

    def __init__(self) -> None:
        self.queue = CommitQueue(self.id)
        self.in_touch = False
        self.lost = False

    def when_committed(self, position: int, waiting: Any) -> None:
        self.queue.add(position, waiting)


async def test_a_commit_ends_the_wait() -> None:
    led: Any = Led()
    waits = asyncio.create_task(committed_to(led, Position(100), timeout_s=60))
    await asyncio.sleep(0)
    led.queue.committed(Position(99))
    await asyncio.sleep(0)
    assert not waits.done()
    led.queue.committed(Position(100))
    await waits


async def test_who_leads_no_longer_says_so_at_once() -> None:
    led: Any = Led()
    waits = asyncio.create_task(committed_to(led, Position(100), timeout_s=60))
    await asyncio.sleep(0)
    led.queue.lost()
    with pytest.raises(KafkaError) as refused:
        await waits
    assert refused.value.code is Code.NOT_LEADER_OR_FOLLOWER


async def test_a_commit_that_does_not_come_in_time_is_told_and_may_come_later() -> None:
    led: Any = Led()
    with pytest.raises(KafkaError, match="has not committed up to 100 within 0 s") as refused:
        await committed_to(led, Position(100), timeout_s=0)
    assert refused.value.code is Code.LEADER_NOT_AVAILABLE
    led.queue.committed(Position(100))  # nothing waits for it any longer


async def test_touch_with_followers_is_waited_for_and_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_wait, "LOOK_S", 0.0)
    led: Any = Led()
    waits = asyncio.create_task(back_in_touch(led))
    await asyncio.sleep(0)
    assert not waits.done()
    led.in_touch = True
    assert await waits


@pytest.mark.parametrize("lost", [True, False])
async def test_who_is_out_of_touch_for_good_says_so(monkeypatch: pytest.MonkeyPatch, lost: bool) -> None:
    if not lost:
        monkeypatch.setattr(commit_wait, "OUT_OF_TOUCH_S", 0.0)
    led: Any = Led()
    led.lost = lost
    async with asyncio.timeout(1):
        assert not await back_in_touch(led)
