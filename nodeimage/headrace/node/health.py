"""Whether a node is ready, and whether it can stop, by the cluster's records. Pure."""

from headrace.ids import NodeId
from headrace.store.records import ContainerRecord
from headrace.store.view import ClusterView


def why_not_ready(view: ClusterView, node: NodeId) -> str:
    """What a node that serves is behind with; "": nothing.

    A container that nobody leads says nothing of this node: all nodes of a cluster may start at once.
    """
    behind = [
        str(record.container_id)
        for record in _held(view, node)
        if record.primary != node and record.primary in view.nodes and not _in_sync(record, node)
    ]
    return f"behind in container {', '.join(behind)}" if behind else ""


def why_not_safe(view: ClusterView, node: NodeId) -> str:
    """Which containers would take no writes, or be lost from sight, without a node; "": none."""
    needed = [
        str(record.container_id)
        for record in _held(view, node)
        if record.wanted > 1 and _in_sync(record, node) and len(record.in_sync) - 1 < max(1, record.min_in_sync)
    ]
    return f"container {', '.join(needed)} would have too few replicas in sync" if needed else ""


def _held(view: ClusterView, node: NodeId) -> list[ContainerRecord]:
    kept = [record for record in view.containers.values() if record.state != "deleted" and node in record.replicas]
    return sorted(kept, key=lambda record: record.container_id)


def _in_sync(record: ContainerRecord, node: NodeId) -> bool:
    return any(member == node for member, _ in record.in_sync)
