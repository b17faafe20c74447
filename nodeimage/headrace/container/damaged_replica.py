"""A replica that cannot read all that it holds (invariant 14), and how it is replaced.

It is made anew as another incarnation, and fetched from the others: but only once it has left the in-sync set, by the
store, as of several that are damaged not all can go. Where the others are too few, it stays as it is, and if it leads
lets another lead that may be able to read to followers what this one cannot.
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

STAND_BACK_S: Final = 10.0
"""After a leader has let another lead, it does so again after this, twice as long each time: that one may be damaged
elsewhere, and both would take turns for ever."""
STAND_BACK_MOST_S: Final = 600.0


class Damage:
    """Of one replica of a node."""

    __slots__ = ("_backoff", "_incarnation", "_stands_back_at")

    def __init__(self) -> None:
        self._incarnation = ""
        self._backoff = Backoff(STAND_BACK_S, STAND_BACK_MOST_S)
        self._stands_back_at = float("-inf")

    def found(self, incarnation: str) -> None:
        """The replica of that incarnation is damaged."""
        if self._incarnation != incarnation:
            self._incarnation, self._stands_back_at = incarnation, float("-inf")
            self._backoff.succeeded()

    def is_of(self, incarnation: str) -> bool:
        """Whether the replica of that incarnation is damaged."""
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
        """Have the replica leave the in-sync set; whether it has left. `leader`: its half as leader, where it leads.
        `known`: the record that is kept with it.

        Raises HeadraceError: it may have left.
        """
        loop = asyncio.get_running_loop()
        own = (node, uuid.UUID(self._incarnation))
        near: Collection[NodeId] = () if leader is None else leader.state.near(loop.time())
        if leader is not None and not near:
            if leader.state.waits_for == {leader.member}:
                # A put of before that failed may have been under way: since then the record has let the others go.
                leader.handing_over = False
            return False
        hand_over = loop.time() >= self._stands_back_at
        if leader is not None:
            leader.handing_over = True  # invariant 16: until it is known that nobody else leads
        after = await store(
            lambda store: container_records.leave_in_sync(
                store, container_id, own, candidates=near, hand_over=hand_over, known=known
            )
        )
        if leader is not None and after.epoch == leader.epoch:
            leader.handing_over = False
        elif leader is not None:
            self._stands_back_at = loop.time() + self._backoff.failed()
        return own not in after.in_sync
