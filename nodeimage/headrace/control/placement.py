"""Which nodes hold a container's replicas. Pure.

A volume's zones and labels say which nodes it may use. Among those, replicas go to zones and failure hosts that have
none of this container yet, then to nodes that hold few containers and carry little. Hosts and zones are shared only
where `spread` is `preferred` (a laptop has one host) and nothing else is there; zones also where there are fewer of
them than replicas.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from headrace.control.observed import DELETED, OPEN
from headrace.ids import NodeId
from headrace.peer.messages import NodeLoad
from headrace.store.records import ContainerRecord, NodeRecord, VolumeRecord

DISK_FULL = 0.9
"""Of a node's disk: above it others are taken first."""


def may_hold(node: NodeRecord, volume: VolumeRecord) -> bool:
    """Whether a volume's replicas may lie on a node."""
    return (not volume.zones or node.zone in volume.zones) and volume.labels.items() <= node.labels.items()


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
    held: Mapping[NodeId, int] | None = None,
) -> list[NodeId]:
    """`first` and `present` (members already, perhaps gone), and then the best of `nodes`, `count` in all, or fewer.

    `every_node` tells where members lie that are not among `nodes`; `held` is what `weigh` says of `containers`, for
    callers that choose often.
    """
    known = {**(every_node or {}), **{node.node_id: node for node in nodes}}
    chosen = [first, *(node for node in present if node != first)]
    held = weigh(containers) if held is None else held
    while len(chosen) < count:
        placed = [known[node] for node in chosen if node in known]
        zones = Counter(node.zone for node in placed)
        hosts = Counter(_host(node) for node in placed)
        free = [
            node
            for node in nodes
            if node.node_id not in chosen
            and may_hold(node, volume)
            and (volume.spread != "required" or not hosts[_host(node)])
        ]
        if not free:
            break
        chosen.append(
            min(
                free,
                key=lambda node: (
                    zones[node.zone],
                    hosts[_host(node)],
                    *_burden(node.node_id, held, loads.get(node.node_id, NodeLoad())),
                ),
            ).node_id
        )
    return chosen


def least_needed(
    members: Sequence[NodeId],
    *,
    nodes: Mapping[NodeId, NodeRecord],
    held: Mapping[NodeId, int],
    loads: Mapping[NodeId, NodeLoad],
    keep: NodeId,
) -> NodeId:
    """The member, other than `keep`, that a container with one too many should do without."""
    zones = Counter(nodes[node].zone for node in members)
    hosts = Counter(_host(nodes[node]) for node in members)
    return max(
        (node for node in members if node != keep),
        key=lambda node: (
            zones[nodes[node].zone],
            hosts[_host(nodes[node])],
            *_burden(node, held, loads.get(node, NodeLoad())),
        ),
    )


def weigh(containers: Iterable[ContainerRecord]) -> Counter[NodeId]:
    """Replicas by node; an open one weighs as much as four closed ones, which only shrink."""
    held: Counter[NodeId] = Counter()
    for container in containers:
        if container.state != DELETED:
            for node in container.replicas:
                held[node] += 4 if container.state == OPEN else 1
    return held


def _burden(node: NodeId, held: Mapping[NodeId, int], load: NodeLoad) -> tuple[bool, int, float, NodeId]:
    full = load.disk_total > 0 and load.disk_used > DISK_FULL * load.disk_total
    return full, held.get(node, 0), load.bytes_in_per_s + load.bytes_out_per_s, node


def _host(node: NodeRecord) -> str:
    """What fails together; a node that does not say fails alone."""
    return node.failure_host or f"node {node.node_id}"
