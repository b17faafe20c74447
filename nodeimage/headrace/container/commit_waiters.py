"""Those who wait for frames of one container to be committed: they are told in the order in which they came.

Knows nothing of what is committed, or why; the leader's half (leader.py) says so. Who waits when this node ceases
to lead is told `lost`: whether its frames will be committed is for the next leader to say. The loop thread's own.
"""

import asyncio
from collections import deque
from typing import Protocol

import structlog

from headrace.base.errors import Code, KafkaError
from headrace.base.ids import ContainerId, Position

log = structlog.get_logger()


class Waiting(Protocol):
    """Somebody who waits for a frame to be committed."""

    def committed(self) -> None:
        """It is."""

    def lost(self) -> None:
        """This node leads the container no more. The frame may be committed by the next leader, or be gone."""


class CommitQueue:
    """All who wait for frames of one container."""

    __slots__ = ("_container", "_waiting")

    def __init__(self, container: ContainerId) -> None:
        self._container = container
        self._waiting: deque[tuple[int, Waiting]] = deque()

    def add(self, position: int, waiting: Waiting) -> None:
        """`waiting` waits until everything below `position` is committed, and those before it have been told."""
        self._waiting.append((position, waiting))

    def committed(self, position: Position) -> None:
        """Everything below `position` is: tell everybody who waited for no more than that, in order."""
        waiting = self._waiting
        while waiting and waiting[0][0] <= position:
            try:
                waiting.popleft()[1].committed()
            except Exception:  # one listener's fault must not keep the others waiting
                log.exception("who waited for a commit failed", container=self._container)

    def lost(self) -> None:
        """This node leads no more: tell all."""
        waiting, self._waiting = self._waiting, deque()
        for _, each in waiting:
            try:
                each.lost()
            except Exception:  # one listener's fault must not keep the others waiting
                log.exception("who waited for a commit failed", container=self._container)


class WaitingFuture:
    """A future as somebody who waits: of the position, or NOT_LEADER_OR_FOLLOWER."""

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
    """For those who ask for more than this node may say of a container."""
    return KafkaError(Code.NOT_LEADER_OR_FOLLOWER, f"this node leads container {container} no more")
