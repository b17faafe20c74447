"""Nodes that are registered with a cluster store."""

import uuid

from headrace.base.ids import NodeId
from headrace.store.protocol import ClusterStore
from headrace.store.records import NodeRecord, register_node, take_node_id


def register(
    store: ClusterStore, *, node_id: int | None = None, format: uuid.UUID | None = None, new: bool = False
) -> NodeRecord:
    """Register a node of this id, or a new one."""
    return register_node(
        store,
        node_id=take_node_id(store) if node_id is None else NodeId(node_id),
        new=node_id is None or new,
        format=format or uuid.uuid4(),
        run=uuid.uuid4(),
        host="127.0.0.1",
        port=9092,
    )
