"""Waiting, with a time limit, for a container to commit a position or to get back in touch with its followers."""

import asyncio
from typing import Final

from headrace.base.errors import Code, KafkaError
from headrace.base.ids import Position
from headrace.container.leader import Leader

__all__ = ["back_in_touch", "committed_to"]

OUT_OF_TOUCH_S: Final = 2.0
"""Longest wait, in seconds, of `back_in_touch`: within this time a follower that died has been removed from the in-sync
set, or another node leads."""
LOOK_S: Final = 0.05
"""Seconds between two checks of `back_in_touch`."""


class _Reached:
    """Adapts a future to the `Waiting` protocol: True once committed, False if this node ceases to lead."""

    __slots__ = ("_future",)

    def __init__(self, future: "asyncio.Future[bool]") -> None:
        self._future = future

    def committed(self) -> None:
        if not self._future.done():
            self._future.set_result(True)

    def lost(self) -> None:
        if not self._future.done():
            self._future.set_result(False)


async def committed_to(leader: Leader, position: Position, *, timeout_s: float) -> None:
    """Return once everything below `position` is committed.

    Raises KafkaError: NOT_LEADER_OR_FOLLOWER if this node no longer leads the container, LEADER_NOT_AVAILABLE on a
    timeout.
    """
    reached: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    leader.when_committed(position, _Reached(reached))
    try:
        async with asyncio.timeout(timeout_s):
            leads = await reached
    except TimeoutError:
        raise KafkaError(
            Code.LEADER_NOT_AVAILABLE,
            f"container {leader.id} has not committed up to {position} within {timeout_s:g} s",
        ) from None
    if not leads:
        raise KafkaError(Code.NOT_LEADER_OR_FOLLOWER, f"this node no longer leads container {leader.id}")


async def back_in_touch(leader: Leader) -> bool:
    """Wait up to `OUT_OF_TOUCH_S` for the container to be in touch with its followers (invariant 16); return whether it
    is."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + OUT_OF_TOUCH_S
    while not leader.in_touch and not leader.lost and loop.time() < deadline:  # noqa: ASYNC110  # no event for it
        await asyncio.sleep(LOOK_S)
    return leader.in_touch
