"""How a replica that cannot read all of its data (invariant 14) is replaced.

The replica is recreated as another incarnation and fetched from the others, but only after it has left the in-sync set
in the store: if several replicas are damaged, they must not all go. If too few others are in sync, the replica stays as
it is; if it leads, it hands over to another replica, which may be able to send followers the data that this one cannot
read.
"""

import asyncio
import uuid
from collections.abc import Collection
from typing import Final

from headrace.base.backoff import Backoff
from headrace.base.ids import ContainerId, NodeId
from headrace.container.leader import Leader
from headrace.store import container_records
from headrace.store.protocol import StoreCall
from headrace.store.records import ContainerRecord

HAND_OVER_RETRY_S: Final = 10.0
"""Seconds before a damaged leader that has handed over does so again; doubled each time. The other replica may be
damaged elsewhere, and without this delay both would hand over to each other forever."""
HAND_OVER_RETRY_MAX_S: Final = 600.0
"""Upper bound, in seconds, of the doubled `HAND_OVER_RETRY_S`."""


class Damage:
    """The damage of one replica of this node, and when the replica last handed over because of it."""

    __slots__ = ("_backoff", "_incarnation", "_next_hand_over_at")

    def __init__(self) -> None:
        self._incarnation = ""
        self._backoff = Backoff(HAND_OVER_RETRY_S, HAND_OVER_RETRY_MAX_S)
        self._next_hand_over_at = float("-inf")

    def found(self, incarnation: str) -> None:
        """Record that the replica of this incarnation is damaged."""
        if self._incarnation != incarnation:
            self._incarnation, self._next_hand_over_at = incarnation, float("-inf")
            self._backoff.succeeded()

    def is_of(self, incarnation: str) -> bool:
        """Return whether the replica of this incarnation is damaged."""
        return self._incarnation == incarnation

    async def leave(
        self,
        store: StoreCall,
        container_id: ContainerId,
        node: NodeId,
        leader: Leader | None,
        *,
        known: ContainerRecord | None,
    ) -> bool:
        """Have the replica leave the in-sync set; return whether it has left.

        `leader`: the replica's leader half if it leads. `known`: the container's record kept with the replica.

        Raises HeadraceError: the replica may or may not have left.
        """
        loop = asyncio.get_running_loop()
        own = (node, uuid.UUID(self._incarnation))
        near: Collection[NodeId] = () if leader is None else leader.state.near(loop.time())
        if leader is not None and not near:
            if leader.state.waits_for == {leader.member}:
                # The put of an earlier hand-over may have been in flight. The record has since dropped the others.
                leader.handing_over = False
            return False
        hand_over = loop.time() >= self._next_hand_over_at
        if leader is not None:
            leader.handing_over = True  # invariant 16: until it is certain that no other node leads
        after = await store(
            lambda store: container_records.leave_in_sync(
                store, container_id, own, candidates=near, hand_over=hand_over, known=known
            )
        )
        if leader is not None and after.epoch == leader.epoch:
            leader.handing_over = False
        elif leader is not None:
            self._next_hand_over_at = loop.time() + self._backoff.failed()
        return own not in after.in_sync
