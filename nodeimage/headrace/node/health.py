"""Whether a node is ready, and whether it can stop safely, by the cluster's records and by which nodes answer it. Pure.

A node is ready when it leads what it should lead and none of its replicas is behind. A container without a leader, or
whose leader does not answer, does not make a node unready: otherwise nodes that start together would wait for each
other.
"""

from collections.abc import Collection

from headrace.base.ids import ContainerId, NodeId
from headrace.store.records import ContainerRecord
from headrace.store.view import ClusterView


def why_not_ready(view: ClusterView, node: NodeId, *, led: Collection[ContainerId], heard: Collection[NodeId]) -> str:
    """What a serving node still has to do before it is ready; "": nothing. `led`: containers that it leads; `heard`:
    nodes that answer it."""
    held = _held(view, node)
    waits = []
    if opening := [record for record in held if record.leader == node and record.container_id not in led]:
        waits.append(f"has yet to lead {_named(opening)}")
    if behind := [record for record in held if record.leader in heard and not _in_sync(record, node)]:
        waits.append(f"is behind in {_named(behind)}")
    return "; ".join(waits)


def why_not_safe(view: ClusterView, node: NodeId, *, heard: Collection[NodeId]) -> str:
    """Which containers would refuse writes without this node, for lack of in-sync replicas that they could still gain;
    "": none.

    A container that should have a single replica is not named, nor is one whose other replicas are all in sync and
    answer, unless it has none: waiting would change nothing, though writes may stall while the node is away.
    """
    needed = [
        record
        for record in _held(view, node)
        if record.wanted > 1 and _in_sync(record, node) and _others(record, node, heard) < _least(record)
    ]
    return f"{_named(needed)} would have too few replicas in sync" if needed else ""


def _held(view: ClusterView, node: NodeId) -> list[ContainerRecord]:
    kept = [record for record in view.containers.values() if record.state != "deleted" and node in record.replicas]
    return sorted(kept, key=lambda record: record.container_id)


def _in_sync(record: ContainerRecord, node: NodeId) -> bool:
    return any(member == node for member, _ in record.in_sync)


def _others(record: ContainerRecord, node: NodeId, heard: Collection[NodeId]) -> int:
    return sum(1 for member, _ in record.in_sync if member != node and member in heard)


def _least(record: ContainerRecord) -> int:
    """How many other replicas have to be in sync: as many as writes need, or all if there are fewer; at least
    one."""
    return max(1, min(record.min_in_sync, len(record.replicas) - 1))


def _named(found: Collection[ContainerRecord]) -> str:
    return f"container {', '.join(str(record.container_id) for record in found)}"
