"""Which nodes hold a container's replicas. Pure.

A volume's zones and labels restrict the nodes that it may use. Among these, replicas go first to zones and failure
hosts that have no replica of the container yet, then to nodes that hold few open containers of the volume, since these
are assumed to be written to equally, and whose disks are less full. An emptier disk outweighs at most as many
open containers as a node has on average: otherwise a new node would get a replica of everything that is written. Hosts
and zones are shared only if `spread` is `preferred` (a laptop has one host) and there is no other choice; zones also if
there are fewer of them than replicas.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from headrace.base.ids import NodeId
from headrace.control.container_states import DELETED, OPEN
from headrace.peer.reports import NodeLoad
from headrace.store.records import ContainerRecord, NodeRecord, VolumeRecord

DISK_FULL = 0.9
"""Part of a node's disk in use above which other nodes are preferred."""
_SHARE_STEPS: Final = 20
"""Disk use is rounded down to this many steps, so that similar disks count as equal."""


class Held:
    """The number of replicas that each node holds."""

    def __init__(self, containers: Iterable[ContainerRecord] = ()) -> None:
        self.total: Counter[NodeId] = Counter()
        """Weighted count: an open replica counts as four closed ones, which only shrink."""
        self.open: Counter[tuple[str, NodeId]] = Counter()
        """Replicas of open containers, by volume and node."""
        for container in containers:
            if container.state != DELETED:
                self.add(container, container.replicas)

    def add(self, container: ContainerRecord, nodes: Iterable[NodeId], *, by: int = 1) -> None:
        """Add a container's replicas on these nodes, or remove them with `by=-1`."""
        for node in nodes:
            self.total[node] += by * (4 if container.state == OPEN else 1)
            if container.state == OPEN:
                self.open[container.volume, node] += by

    def copy(self) -> "Held":
        """Return an independent copy."""
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
    """Return `first` and `present` (existing members, perhaps gone), then the best of `nodes`: `count` in all, or
    fewer.

    `every_node` describes members that are not among `nodes`. `held` is the result of `Held(containers)`, for callers
    that choose often.
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
    """Return which member a container with one replica too many should give up."""
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
    """The load of each of `nodes`, as far as it matters for the placement of a volume's next replica."""

    def __init__(self, held: Held, loads: Mapping[NodeId, NodeLoad], volume: str, nodes: Collection[NodeId]) -> None:
        self._held = held
        self._loads = loads
        self._volume = volume
        self._mean = max(sum(held.open[volume, node] for node in nodes) / max(len(nodes), 1), 1.0)

    def of(self, node: NodeId) -> tuple[bool, float, int, float, NodeId]:
        """Return a sort key: the least loaded node first."""
        load = self._loads.get(node, NodeLoad())
        share = load.disk_used / load.disk_total if load.disk_total > 0 else 0.0
        opened = self._held.open[self._volume, node] / self._mean + int(share * _SHARE_STEPS) / _SHARE_STEPS
        return share > DISK_FULL, opened, self._held.total[node], load.bytes_in_per_s + load.bytes_out_per_s, node
