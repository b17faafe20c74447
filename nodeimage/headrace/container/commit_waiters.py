"""Waiters for frames of one container to be committed; they are notified in the order in which they were added.

This module does not decide what is committed; the leader (leader.py) reports that. When this node ceases to lead, the
remaining waiters get `lost`: only the next leader can say whether their frames will be committed. Used only on the loop
thread.
"""

import asyncio
from collections import deque
from typing import Protocol

import structlog

from headrace.base.errors import Code, KafkaError
from headrace.base.ids import ContainerId, Position

log = structlog.get_logger()


class Waiting(Protocol):
    """A waiter for a frame to be committed."""

    def committed(self) -> None:
        """The frame is committed."""

    def lost(self) -> None:
        """This node no longer leads the container. The next leader may commit the frame, or the frame may be gone."""


class CommitQueue:
    """All waiters for frames of one container."""

    __slots__ = ("_container", "_waiting")

    def __init__(self, container: ContainerId) -> None:
        self._container = container
        self._waiting: deque[tuple[int, Waiting]] = deque()

    def add(self, position: int, waiting: Waiting) -> None:
        """Notify `waiting` once everything below `position` is committed, and after the waiters that were added before
        it."""
        self._waiting.append((position, waiting))

    def committed(self, position: Position) -> None:
        """Everything below `position` is committed: notify the waiters for positions up to it, in order."""
        waiting = self._waiting
        while waiting and waiting[0][0] <= position:
            try:
                waiting.popleft()[1].committed()
            except Exception:  # a fault in one waiter must not block the others
                log.exception("a waiter for a commit failed", container=self._container)

    def lost(self) -> None:
        """This node no longer leads: notify all waiters."""
        waiting, self._waiting = self._waiting, deque()
        for _, each in waiting:
            try:
                each.lost()
            except Exception:  # a fault in one waiter must not block the others
                log.exception("a waiter for a commit failed", container=self._container)


class WaitingFuture:
    """Adapts a future to the `Waiting` protocol: its result is the position, or it fails with
    NOT_LEADER_OR_FOLLOWER."""

    __slots__ = ("_container", "_future", "_position")

    def __init__(self, future: asyncio.Future[Position], position: Position, container: ContainerId) -> None:
        self._future = future
        self._position = position
        self._container = container

    def committed(self) -> None:
        """See Waiting."""
        if not self._future.done():
            self._future.set_result(self._position)

    def lost(self) -> None:
        """See Waiting."""
        if not self._future.done():
            self._future.set_exception(not_leader(self._container))


def not_leader(container: ContainerId) -> KafkaError:
    """Return the error for callers when this node no longer leads the container."""
    return KafkaError(Code.NOT_LEADER_OR_FOLLOWER, f"this node no longer leads container {container}")
