"""Which containers take new partitionlets: an even spread over the nodes that lead open ones.

Of a few candidates, or two random ones of many, the one is taken whose leader got the fewest of the newest placements
made here: load evens out without asking anybody, and no node is flooded because it looked idle to all at once.
Partitionlets that turn out hotter than others are the balancer's to move.

Containers none of whose nodes is full come first, then those that can commit without the full ones; partitions leave
the others (`leaves`).
"""

import random
from collections import Counter, deque
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from headrace.base.errors import Code, KafkaError
from headrace.base.ids import ContainerId, Epoch, NodeId
from headrace.partitions.cluster_client import ClusterClient
from headrace.store.records import ContainerRecord, NodeRecord, Room, VolumeRecord

REMEMBERED: Final = 1_000
"""Placements that count."""
FEW: Final = 16
"""Up to so many candidates are all compared, so that the partitions of a small topic lie on different nodes."""


class Placement:
    """Chooses containers for the new partitionlets that this node creates."""

    def __init__(self, cluster: ClusterClient) -> None:
        self._cluster = cluster
        self._newest: deque[NodeId] = deque()
        self._count: Counter[NodeId] = Counter()

    def place(
        self, count: int, volume: str = "default", *, avoid: ContainerId | None = None
    ) -> list[tuple[ContainerId, Epoch]]:
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
        every = [each for each in self._cluster.open_data(volume=volume) if self._cluster.node(each.leader)]
        others = [each for each in every if each.container_id != avoid] or every
        staying = [each for each in others if self._stays(each.leader)] or others
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
            self._room(each) > Room.NONE and self._stays(each.leader)
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
        chosen = min(candidates, key=lambda each: (self._count[each.leader], random.random()))
        self._newest.append(chosen.leader)
        self._count[chosen.leader] += 1
        if len(self._newest) > REMEMBERED:
            self._count[self._newest.popleft()] -= 1
        return chosen.container_id, chosen.epoch


# --- what volumes ask of nodes


def may_hold(node: NodeRecord, volume: VolumeRecord) -> bool:
    """Whether a volume's replicas may lie on a node, which stays."""
    return not node.draining and volume.admits(node)


def places(volume: VolumeRecord, nodes: Iterable[NodeRecord]) -> int:
    """How many replicas of a container the nodes have room for: one each; one a host where the spread is required."""
    able = [node for node in nodes if may_hold(node, volume)]
    if volume.spread == "required":
        return len({node.fails_with for node in able})
    return len(able)


def volume_fault(volume: VolumeRecord, nodes: Collection[NodeRecord]) -> str | None:
    """Why the nodes that there are cannot keep to the volume; None where they can."""
    room = places(volume, nodes)
    if volume.spread == "required" and room < volume.replicas:
        return (
            f"volume {volume.name!r} asks for {volume.replicas} replicas on hosts of their own, and"
            f" {there_are(volume, room)}: add nodes on other hosts, ask for fewer replicas, or for --spread preferred"
        )
    if room < volume.min_in_sync:
        return (
            f"volume {volume.name!r} asks for {volume.min_in_sync} in sync at least, and {there_are(volume, room)}:"
            " add nodes, or ask for fewer"
        )
    return None


def volume_warning(volume: VolumeRecord, nodes: Collection[NodeRecord]) -> str | None:
    """What the volume will lack although its nodes can keep to it; None where nothing."""
    room = places(volume, nodes)
    if room < volume.replicas:
        wanted = counted(volume.replicas, "replica")
        return f"volume {volume.name!r} asks for {wanted}, and {there_are(volume, room)}: it has {room}"
    return None


def there_are(volume: VolumeRecord, room: int) -> str:
    """How many nodes, or hosts, there are for a volume's replicas, in words."""
    what = "host" if volume.spread == "required" else "node"
    where = []
    if volume.zones:
        where.append(f"in {'zone' if len(volume.zones) == 1 else 'zones'} {', '.join(volume.zones)}")
    if volume.labels:
        where.append("with " + ", ".join(f"{key}={value}" for key, value in sorted(volume.labels.items())))
    return " ".join([f"there {'is' if room == 1 else 'are'}", counted(room, what), *where])


def counted(number: int, what: str) -> str:
    """So many of something, in words."""
    return f"{number} {what}{'' if number == 1 else 's'}"
