"""Which containers take new partitionlets: an even spread over the nodes that lead open ones.

Of a few candidates, or two random ones of many, the one is taken whose leader got the fewest of the newest placements
made here: load evens out without asking anybody, and no node is flooded because it looked idle to all at once.
Partitionlets that turn out hotter than others are the balancer's to move.

Containers none of whose nodes is full come first, then those that can commit without the full ones; partitions leave
the others (`leaves`).
"""

import random
from collections import Counter, deque
from collections.abc import Sequence
from typing import Final

from headrace.admin.cluster_rules import volume_fault
from headrace.base.errors import Code, KafkaError
from headrace.base.ids import ContainerId, Epoch, NodeId
from headrace.partitions.cluster_client import ClusterLink
from headrace.store.records import ContainerRecord, Room

REMEMBERED: Final = 1_000
"""Placements that count."""
FEW: Final = 16
"""Up to so many candidates are all compared, so that the partitions of a small topic lie on different nodes."""


class Placing:
    """Places what this node is asked for."""

    def __init__(self, cluster: ClusterLink) -> None:
        self._cluster = cluster
        self._newest: deque[NodeId] = deque()
        self._count: Counter[NodeId] = Counter()

    def place(self, count: int, volume: str, *, avoid: ContainerId | None = None) -> list[tuple[ContainerId, Epoch]]:
        """Containers for `count` new partitionlets, each with its epoch, which may be an older one but never a newer.

        `avoid` is taken only where there is no other. Raises KafkaError: LEADER_NOT_AVAILABLE while there is none,
        INVALID_REPLICATION_FACTOR where the cluster's nodes cannot give the volume what it asks for.
        """
        candidates = self._candidates(volume, avoid)
        if not candidates:
            wanted = self._cluster.view.volumes.get(volume)
            fault = volume_fault(wanted, self._cluster.nodes()) if wanted is not None else None
            if fault is not None:
                raise KafkaError(Code.INVALID_REPLICATION_FACTOR, fault)
            raise KafkaError(
                Code.LEADER_NOT_AVAILABLE, f"no container of volume {volume!r} takes new partitions at the moment"
            )
        return [self._one(candidates) for _ in range(count)]

    def _candidates(self, volume: str, avoid: ContainerId | None) -> Sequence[ContainerRecord]:
        """The best there are: with a leader that stays, and with room; else whatever is open.

        None whose leader was removed: another leads soon, or nobody ever may.
        """
        every = [each for each in self._cluster.open_data(volume=volume) if self._cluster.node(each.primary)]
        others = [each for each in every if each.container_id != avoid] or every
        staying = [each for each in others if self._stays(each.primary)] or others
        room = {each.container_id: self._room(each) for each in staying}
        most = max(room.values(), default=Room.NONE)
        return [each for each in staying if room[each.container_id] == most]

    def leaves(self, container_id: ContainerId) -> bool:
        """Whether what is open in a container should go on in another: full nodes keep it from taking records, and
        there is one that takes some.
        """
        record = self._cluster.record(container_id)
        if record is None or self._room(record) > Room.NONE:
            return False
        return any(
            self._room(each) > Room.NONE and self._stays(each.primary)
            for each in self._cluster.open_data(volume=record.volume)
        )

    def _room(self, record: ContainerRecord) -> Room:
        return record.room(
            {node.node_id for node in map(self._cluster.node, record.replicas) if node is not None and node.full}
        )

    def _stays(self, node_id: NodeId) -> bool:
        node = self._cluster.node(node_id)
        return node is not None and not node.draining and not node.stopping

    def _one(self, candidates: Sequence[ContainerRecord]) -> tuple[ContainerId, Epoch]:
        if len(candidates) > FEW:
            candidates = random.sample(candidates, 2)
        chosen = min(candidates, key=lambda each: (self._count[each.primary], random.random()))
        self._newest.append(chosen.primary)
        self._count[chosen.primary] += 1
        if len(self._newest) > REMEMBERED:
            self._count[self._newest.popleft()] -= 1
        return chosen.container_id, chosen.epoch
