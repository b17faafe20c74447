"""Which nodes hold a container's replicas. Pure.

A volume's zones and labels say which nodes it may use. Among those, replicas go to zones and failure hosts that have
none of this container yet, then to nodes that hold few open containers of the volume, for those are written to alike,
and whose disks are less full. An empty disk counts no more than twice as much as others, or a new node would have a
replica of all that is written. Hosts and zones are shared only where `spread` is `preferred` (a laptop has one host)
and nothing else is there; zones also where there are fewer of them than replicas.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from headrace.base.ids import NodeId
from headrace.control.container_states import DELETED, OPEN
from headrace.peer.reports import NodeLoad
from headrace.store.records import ContainerRecord, NodeRecord, VolumeRecord

DISK_FULL = 0.9
"""Of a node's disk: above it others are taken first."""
_SHARE_STEPS: Final = 20
"""Disks that differ by less than one of so many parts are alike."""


class Held:
    """How many replicas each node holds."""

    def __init__(self, containers: Iterable[ContainerRecord] = ()) -> None:
        self.total: Counter[NodeId] = Counter()
        """An open one weighs as much as four closed ones, which only shrink."""
        self.open: Counter[tuple[str, NodeId]] = Counter()
        """Of open containers, by volume."""
        for container in containers:
            if container.state != DELETED:
                self.add(container, container.replicas)

    def add(self, container: ContainerRecord, nodes: Iterable[NodeId], *, by: int = 1) -> None:
        """Replicas of a container on these nodes; `by` -1: they are there no longer."""
        for node in nodes:
            self.total[node] += by * (4 if container.state == OPEN else 1)
            if container.state == OPEN:
                self.open[container.volume, node] += by

    def copy(self) -> "Held":
        """One that may be changed by itself."""
        held = Held()
        held.total, held.open = self.total.copy(), self.open.copy()
        return held


def choose_members(
    nodes: Collection[NodeRecord],
    containers: Iterable[ContainerRecord],
    *,
    first: NodeId,
    count: int,
    volume: VolumeRecord,
    loads: Mapping[NodeId, NodeLoad],
    present: Sequence[NodeId] = (),
    every_node: Mapping[NodeId, NodeRecord] | None = None,
    held: Held | None = None,
) -> list[NodeId]:
    """`first` and `present` (members already, perhaps gone), and then the best of `nodes`, `count` in all, or fewer.

    `every_node` tells where members lie that are not among `nodes`; `held` is that of `containers`, for
    callers that choose often.
    """
    known = {**(every_node or {}), **{node.node_id: node for node in nodes}}
    chosen = [first, *(node for node in present if node != first)]
    burden = _Burden(Held(containers) if held is None else held, loads, volume.name, [node.node_id for node in nodes])
    while len(chosen) < count:
        placed = [known[node] for node in chosen if node in known]
        zones = Counter(node.zone for node in placed)
        hosts = Counter(node.fails_with for node in placed)
        free = [
            node
            for node in nodes
            if node.node_id not in chosen
            and volume.admits(node)
            and (volume.spread != "required" or not hosts[node.fails_with])
        ]
        if not free:
            break
        chosen.append(
            min(
                free,
                key=lambda node: (
                    zones[node.zone],
                    hosts[node.fails_with],
                    node.full,
                    *burden.of(node.node_id),
                ),
            ).node_id
        )
    return chosen


def least_needed(
    members: Sequence[NodeId],
    *,
    nodes: Mapping[NodeId, NodeRecord],
    held: Held,
    loads: Mapping[NodeId, NodeLoad],
    volume: str,
    among: Collection[NodeId],
) -> NodeId:
    """Which of some members a container with one too many should do without."""
    zones = Counter(nodes[node].zone for node in members)
    hosts = Counter(nodes[node].fails_with for node in members)
    burden = _Burden(held, loads, volume, members)
    return max(
        among,
        key=lambda node: (
            zones[nodes[node].zone],
            hosts[nodes[node].fails_with],
            nodes[node].full,
            *burden.of(node),
        ),
    )


class _Burden:
    """What each of `nodes` carries, as far as it matters to a volume's next replica."""

    def __init__(self, held: Held, loads: Mapping[NodeId, NodeLoad], volume: str, nodes: Collection[NodeId]) -> None:
        self._held = held
        self._loads = loads
        self._volume = volume
        self._mean = max(sum(held.open[volume, node] for node in nodes) / max(len(nodes), 1), 1.0)

    def of(self, node: NodeId) -> tuple[bool, float, int, float, NodeId]:
        """The least first."""
        load = self._loads.get(node, NodeLoad())
        share = load.disk_used / load.disk_total if load.disk_total > 0 else 0.0
        opened = self._held.open[self._volume, node] / self._mean + int(share * _SHARE_STEPS) / _SHARE_STEPS
        return share > DISK_FULL, opened, self._held.total[node], load.bytes_in_per_s + load.bytes_out_per_s, node
