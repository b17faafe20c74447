"""Placement of new partitionlets in containers, spread evenly over the nodes that lead open containers.

The choice is among all candidates if they are few, else among two random ones: it falls on the container whose leader
got the fewest of this node's latest placements. So load evens out without any request, and no node is flooded because
it looked idle to all others at once. The balancer moves partitionlets that turn out hotter than others.

Containers without full nodes come first, then those that can commit without their full nodes; partitions leave the
others (`leaves`).
"""

import asyncio
import random
from collections import Counter, deque
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from headrace.base.errors import Code, KafkaError
from headrace.base.ids import ContainerId, Epoch, NodeId
from headrace.partitions.cluster_client import ClusterClient
from headrace.store.records import ContainerRecord, NodeRecord, Room, VolumeRecord

REMEMBERED: Final = 1_000
"""Number of this node's latest placements that the choice takes into account."""
FEW: Final = 16
"""Number of candidates up to which all are compared, so that the partitions of a small topic lie on different nodes."""

LEARN_S: Final = 2.0
"""Seconds within which a node has learned of a container that another node created."""
LOOK_S: Final = 0.02


class Placement:
    """Chooses containers for the new partitionlets that this node creates."""

    def __init__(self, cluster: ClusterClient) -> None:
        self._cluster = cluster
        self._latest: deque[NodeId] = deque()
        self._count: Counter[NodeId] = Counter()

    def place(
        self, count: int, volume: str = "default", *, avoid: ContainerId | None = None
    ) -> list[tuple[ContainerId, Epoch]]:
        """Containers for `count` new partitionlets, each with its epoch, which may be out of date but never too new.

        `avoid` is chosen only if there is no other. Raises KafkaError: LEADER_NOT_AVAILABLE while there is no
        container, INVALID_REPLICATION_FACTOR if the cluster's nodes cannot satisfy the volume.
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
        return [self._choose(candidates) for _ in range(count)]

    async def learn_of(self, volumes: Iterable[str], *, timeout_s: float) -> None:
        """Wait until this node knows a container of each volume, or `timeout_s` have passed, LEARN_S at most: `place`
        then says what is wrong. The first container of a volume is created with the first stream that names it, perhaps
        by another node a moment ago.
        """
        deadline = asyncio.get_running_loop().time() + min(timeout_s, LEARN_S)
        missing = {volume for volume in volumes if self._may_be_unknown(volume)}
        if missing:
            self._cluster.view.refresh()  # once: the store has the container before a stream names its volume
        while missing and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(LOOK_S)
            missing = {volume for volume in missing if self._may_be_unknown(volume)}

    def _may_be_unknown(self, volume: str) -> bool:
        """Whether the volume may have a container that this node does not know yet."""
        if self._candidates(volume, None):
            return False
        wanted = self._cluster.view.volumes.get(volume)
        return wanted is None or volume_fault(wanted, self._cluster.nodes()) is None

    def _candidates(self, volume: str, avoid: ContainerId | None) -> Sequence[ContainerRecord]:
        """The best open containers: those whose leader stays, and of these the ones with the most room; otherwise any.

        Containers whose leader was removed from the cluster are left out: another node leads soon, or none ever may.
        """
        every = [each for each in self._cluster.open_data(volume=volume) if self._cluster.node(each.leader)]
        others = [each for each in every if each.container_id != avoid] or every
        staying = [each for each in others if self._stays(each.leader)] or others
        room = {each.container_id: self._room(each) for each in staying}
        most = max(room.values(), default=Room.NONE)
        return [each for each in staying if room[each.container_id] == most]

    def leaves(self, container_id: ContainerId) -> bool:
        """Whether a container's open partitionlets should continue in another container: full nodes keep it from taking
        records, and another container of its volume has room.
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

    def _choose(self, candidates: Sequence[ContainerRecord]) -> tuple[ContainerId, Epoch]:
        if len(candidates) > FEW:
            candidates = random.sample(candidates, 2)
        chosen = min(candidates, key=lambda each: (self._count[each.leader], random.random()))
        self._latest.append(chosen.leader)
        self._count[chosen.leader] += 1
        if len(self._latest) > REMEMBERED:
            self._count[self._latest.popleft()] -= 1
        return chosen.container_id, chosen.epoch


# --- requirements of volumes


def may_hold(node: NodeRecord, volume: VolumeRecord) -> bool:
    """Whether a node may get replicas of a volume: the volume admits the node, and the node is not draining."""
    return not node.draining and volume.admits(node)


def places(volume: VolumeRecord, nodes: Iterable[NodeRecord]) -> int:
    """How many replicas of one container the nodes can hold: one per node, or per host if the spread is required."""
    able = [node for node in nodes if may_hold(node, volume)]
    if volume.spread == "required":
        return len({node.fails_with for node in able})
    return len(able)


def volume_fault(volume: VolumeRecord, nodes: Collection[NodeRecord]) -> str | None:
    """Why the existing nodes cannot satisfy a volume; None if they can."""
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
    """What a volume will lack although the nodes can satisfy its minimum; None if nothing."""
    room = places(volume, nodes)
    if room < volume.replicas:
        wanted = counted(volume.replicas, "replica")
        return f"volume {volume.name!r} asks for {wanted}, and {there_are(volume, room)}: it has {room}"
    return None


def there_are(volume: VolumeRecord, room: int) -> str:
    """A phrase that says how many nodes, or hosts, there are for a volume's replicas."""
    what = "host" if volume.spread == "required" else "node"
    where = []
    if volume.zones:
        where.append(f"in {'zone' if len(volume.zones) == 1 else 'zones'} {', '.join(volume.zones)}")
    if volume.labels:
        where.append("with " + ", ".join(f"{key}={value}" for key, value in sorted(volume.labels.items())))
    return " ".join([f"there {'is' if room == 1 else 'are'}", counted(room, what), *where])


def counted(number: int, what: str) -> str:
    """A number and a noun, in the plural unless the number is 1."""
    return f"{number} {what}{'' if number == 1 else 's'}"
