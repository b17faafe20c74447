"""The changes of the cluster store's records (store.record_types), except for those of containers.

All functions block, and use only compare-and-set, so any number of processes may call them at a time.
"""

import base64
import secrets
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec import structs

from headrace.base.errors import FolderRefused, HeadraceError
from headrace.base.ids import NodeId
from headrace.base.levels import NEWEST, Level, format_of, level_of
from headrace.store.compare_and_set import NEXT_PREFIX, change, had_id, read, skip_ids, take_id
from headrace.store.container_records import containers
from headrace.store.features import found
from headrace.store.protocol import ClusterStore, VersionConflict
from headrace.store.record_types import (
    BALANCE_KEY,
    CATALOG_ID,
    CLUSTER_KEY,
    CONTAINER_PREFIX,
    DELETED_KEY,
    FEATURES_KEY,
    FORMAT_VERSION,
    LEASE_KEY,
    MAX_REPLICAS,
    NOBODY,
    NODE_PREFIX,
    PRODUCER_ID_BITS,
    PRODUCER_IDS_KEY,
    REMOVED_KEY,
    SECRET_BYTES,
    VOLUME_PREFIX,
    BalanceRecord,
    ClusterRecord,
    ContainerRecord,
    DeletedContainers,
    FeaturesRecord,
    LeaseRecord,
    NextId,
    NodeRecord,
    ProducerIdBlock,
    R,
    RemovedNodes,
    Room,
    SupportedLevels,
    VolumeRecord,
    check_volume,
    decode,
    decode_container,
)

__all__ = [
    "BALANCE_KEY",
    "CATALOG_ID",
    "CLUSTER_KEY",
    "CONTAINER_PREFIX",
    "DELETED_KEY",
    "FEATURES_KEY",
    "FORMAT_VERSION",
    "LEASE_KEY",
    "MAX_REPLICAS",
    "NOBODY",
    "NODE_PREFIX",
    "PRODUCER_IDS_KEY",
    "PRODUCER_ID_BITS",
    "REMOVED_KEY",
    "SECRET_BYTES",
    "VOLUME_PREFIX",
    "BalanceRecord",
    "ClusterRecord",
    "ContainerRecord",
    "DeletedContainers",
    "FeaturesRecord",
    "LeaseRecord",
    "NextId",
    "NodeRecord",
    "ProducerIdBlock",
    "R",
    "RemovedNodes",
    "Room",
    "SupportedLevels",
    "VolumeRecord",
    "change_volume",
    "check_volume",
    "decode",
    "decode_container",
    "ensure_cluster",
    "ensure_volume",
    "get_lease",
    "get_node",
    "get_volume",
    "had_node_id",
    "may_be_lost",
    "next_producer_block",
    "nodes",
    "put_back_node",
    "put_lease",
    "raise_counters",
    "register_node",
    "remove_node",
    "removed_nodes",
    "set_balance",
    "set_draining",
    "set_full",
    "set_stopping",
    "take_node_id",
    "volumes",
]

SKIPPED_PRODUCERS: Final = 1 << 20
"""Producer ids, of 2**40, skipped after the highest known one, since they may have been handed out unseen."""


def ensure_cluster(store: ClusterStore, *, first_nodes: int = 1) -> ClusterRecord:
    """Return the cluster's record, created if the store is new. Raises FolderRefused for a newer format.

    A new cluster is at the newest feature level: the record of its level is written before the cluster's own.
    """

    def decide(present: ClusterRecord | None) -> ClusterRecord:
        if present is None:
            cluster_id = base64.urlsafe_b64encode(secrets.token_bytes(16)).rstrip(b"=").decode()
            bits = 1 + secrets.randbelow(2**23 - 1)
            return ClusterRecord(
                cluster_id,
                bits,
                format_version=format_of(NEWEST),
                secret=secrets.token_hex(SECRET_BYTES),
                first_nodes=first_nodes,
            )
        if not present.secret and present.format_version <= FORMAT_VERSION:  # from before there was a secret
            return structs.replace(present, secret=secrets.token_hex(SECRET_BYTES))
        return present

    if store.get(CLUSTER_KEY) is None:
        found(store)
    record = change(store, CLUSTER_KEY, ClusterRecord, decide)
    if 1 < record.format_version <= FORMAT_VERSION:  # created by the operator: older versions may not read it
        found(store, level=level_of(record.format_version))
    if record.format_version > FORMAT_VERSION:
        raise FolderRefused(
            f"the cluster has format {record.format_version}, this version reads {FORMAT_VERSION}; use a newer headrace"
        )
    return record


MAX_NODE_ID = 2**31 - 1
"""Highest node id: Kafka's broker ids have 31 bits."""


def take_node_id(store: ClusterStore) -> NodeId:
    """Return an id for a new node that was never handed out."""
    node_id = take_id(store, "node")
    if node_id > MAX_NODE_ID:
        raise HeadraceError(f"the cluster has handed out all of its {MAX_NODE_ID} node ids")
    return NodeId(node_id)


def had_node_id(store: ClusterStore, node_id: NodeId) -> bool:
    """Return whether the id may have been a node's; an id not handed out yet may become the next node's."""
    return had_id(store, "node", node_id)


def register_node(
    store: ClusterStore,
    *,
    node_id: NodeId,
    new: bool = False,
    format: uuid.UUID,
    run: uuid.UUID,
    host: str,
    port: int,
    failure_host: str = "",
    peer_host: str = "",
    peer_port: int = 0,
    zone: str = "",
    labels: dict[str, str] | None = None,
    slot: str = "",
    supports: SupportedLevels | None = None,
    listeners: Mapping[str, int] | None = None,
) -> NodeRecord:
    """Record that a node has started: it is no longer stopping, but keeps draining.

    `node_id` is the one in its folder; `new`: the store may not have it yet. `listeners`: the node's own ports, by
    name, at `host`.

    Raises FolderRefused if the store has that id with another format, or, unless `new`, not at all: the node was
    removed, or the folder belongs to another cluster.
    """

    def decide(present: NodeRecord | None) -> NodeRecord:
        if present is None and not new:
            raise _unknown(node_id)
        _check_format(present, node_id, format)
        return NodeRecord(
            node_id,
            format,
            run,
            host,
            port,
            failure_host,
            peer_host=peer_host,
            peer_port=peer_port,
            zone=zone,
            labels=labels or {},
            slot=slot,
            draining=present is not None and present.draining,
            advertised=({} if present is None else present.advertised)
            | {name: f"{host}:{port}" for name, port in (listeners or {}).items()},
            supports=supports,
        )

    return change(store, f"{NODE_PREFIX}{node_id}", NodeRecord, decide)


def may_be_lost(store: ClusterStore, node_id: NodeId, *, folder_level: int) -> bool:
    """Return whether a node without a record lost it because the store was restored; otherwise an operator removed it.

    `folder_level`: the feature level that its folder has seen; below `FENCED`, removals leave no trace.
    """
    return folder_level >= Level.FENCED and node_id not in removed_nodes(store)


def put_back_node(store: ClusterStore, node: NodeRecord) -> NodeRecord:
    """Restore a process incarnation's registration after the store was restored to a copy from before it.

    What an operator configured for the node (draining, addresses) stays as the store has it. Raises FolderRefused if
    the node was removed, or another node has its id.
    """

    def decide(present: NodeRecord | None) -> NodeRecord:
        if present is None:
            if node.node_id in removed_nodes(store):
                raise _unknown(node.node_id)
            return node
        _check_format(present, node.node_id, node.format)
        stopping = present.stopping and present.run == node.run
        advertised = present.advertised | node.advertised
        return structs.replace(node, draining=present.draining, advertised=advertised, stopping=stopping)

    return change(store, f"{NODE_PREFIX}{node.node_id}", NodeRecord, decide)


def _unknown(node_id: NodeId) -> FolderRefused:
    return FolderRefused(
        f"the folder is that of node {node_id}, which this cluster does not have: the node was removed, or the"
        " folder is another cluster's; start it with an empty folder"
    )


def _check_format(present: NodeRecord | None, node_id: NodeId, format: uuid.UUID) -> None:
    if present is not None and present.format != format:
        raise FolderRefused(f"node {node_id} has another folder, of format {present.format}; start it with that one")


def set_draining(store: ClusterStore, node_id: NodeId, draining: bool) -> NodeRecord:
    """Begin or end moving a node's roles and replicas to other nodes. Raises HeadraceError if there is no such node."""
    return _change_node(store, node_id, lambda node: structs.replace(node, draining=draining))


def set_stopping(store: ClusterStore, node_id: NodeId, *, run: uuid.UUID | None = None) -> NodeRecord:
    """Record that a node is about to stop; its next start reverses that.

    `run`: only if this is the current process incarnation. Raises HeadraceError if there is no such node.
    """
    return _change_node(
        store, node_id, lambda node: node if run not in (None, node.run) else structs.replace(node, stopping=True)
    )


def set_full(store: ClusterStore, node_id: NodeId, full: bool, *, run: uuid.UUID) -> NodeRecord:
    """Record that a node's current process incarnation has hardly any room left, or has room again.

    Raises HeadraceError if there is no such node.
    """
    return _change_node(store, node_id, lambda node: node if run != node.run else structs.replace(node, full=full))


def remove_node(store: ClusterStore, node_id: NodeId, *, force: bool = False) -> None:
    """Remove a node permanently: its folder is refused from now on.

    The removal is recorded before the node's record goes: a node whose record is merely missing has lost it. Raises
    HeadraceError while it has replicas, unless `force`: then they are rebuilt on other nodes.
    """
    holds = [each.container_id for each in containers(store) if node_id in each.replicas and each.state != "deleted"]
    if holds and not force:
        raise HeadraceError(
            f"node {node_id} has replicas of {len(holds)} containers (such as {holds[0]}); drain it, then remove it"
        )
    change(store, REMOVED_KEY, RemovedNodes, lambda present: (present or RemovedNodes()).and_these([node_id]))
    key = f"{NODE_PREFIX}{node_id}"
    while (found := store.get(key)) is not None:
        try:
            store.delete(key, found.version)
        except VersionConflict:
            continue


def removed_nodes(store: ClusterStore) -> RemovedNodes:
    """Return the ids of nodes that an operator removed."""
    return read(store, REMOVED_KEY, RemovedNodes) or RemovedNodes()


def nodes(store: ClusterStore) -> list[NodeRecord]:
    """Return all nodes, by id."""
    found = [decode(each.value, NodeRecord, each.key) for each in store.list(NODE_PREFIX)]
    return sorted(found, key=lambda node: node.node_id)


def get_node(store: ClusterStore, node_id: NodeId) -> NodeRecord | None:
    """Return one node; None if there is none."""
    return read(store, f"{NODE_PREFIX}{node_id}", NodeRecord)


def ensure_volume(store: ClusterStore, volume: VolumeRecord) -> VolumeRecord:
    """Return the volume of that name, created as `volume` if missing. Raises HeadraceError like `check_volume`."""
    check_volume(volume)
    return change(store, f"{VOLUME_PREFIX}{volume.name}", VolumeRecord, lambda present: present or volume)


def get_volume(store: ClusterStore, name: str) -> VolumeRecord | None:
    """Return one volume; None if there is none."""
    return read(store, f"{VOLUME_PREFIX}{name}", VolumeRecord)


def volumes(store: ClusterStore) -> list[VolumeRecord]:
    """Return all volumes, by name."""
    return [decode(each.value, VolumeRecord, each.key) for each in store.list(VOLUME_PREFIX)]


def change_volume(
    store: ClusterStore, name: str, decide: Callable[[VolumeRecord | None], VolumeRecord]
) -> VolumeRecord:
    """Create a volume (`decide` gets None), or replace it; `decide` is called again if another process was faster.

    Raises HeadraceError for a volume that `check_volume` refuses.
    """

    def checked(present: VolumeRecord | None) -> VolumeRecord:
        wanted = decide(present)
        check_volume(wanted)
        return wanted

    return change(store, f"{VOLUME_PREFIX}{name}", VolumeRecord, checked, anyway=True)


def get_lease(store: ClusterStore) -> tuple[LeaseRecord, int] | None:
    """Return the controller's lease and its version; None if there is none."""
    found = store.get(LEASE_KEY)
    return None if found is None else (decode(found.value, LeaseRecord, LEASE_KEY), found.version)


def put_lease(store: ClusterStore, record: LeaseRecord, expected_version: int | None) -> int:
    """Take, renew or give back the controller's lease; return the new version. Raises VersionConflict,
    StoreUnavailable."""
    return store.put(LEASE_KEY, msgspec.json.encode(record), expected_version)


def set_balance(store: ClusterStore, **fields: Any) -> BalanceRecord:
    """Change the balance policy; fields that are not given stay. Return the policy."""
    return change(
        store,
        BALANCE_KEY,
        BalanceRecord,
        lambda before: structs.replace(before or BalanceRecord(), **fields),
        anyway=True,
    )


def next_producer_block(store: ClusterStore, size: int, *, least: int = 0) -> range:
    """Return `size` unused producer ids, positive and below 2**63. Raises HeadraceError when all are used.

    `least`: as for take_id, without the cluster's bits.
    """
    cluster = ensure_cluster(store)

    def decide(present: ProducerIdBlock | None) -> ProducerIdBlock:
        first = max(0 if present is None else present.next, least)
        if first + size > 1 << PRODUCER_ID_BITS:
            raise HeadraceError(f"the cluster has handed out all of its {1 << PRODUCER_ID_BITS} producer ids")
        return ProducerIdBlock(first + size)

    end = (cluster.random_bits << PRODUCER_ID_BITS) + change(store, PRODUCER_IDS_KEY, ProducerIdBlock, decide).next
    return range(end - size, end)


def raise_counters(store: ClusterStore, seen: Mapping[str, int], *, producers: int = SKIPPED_PRODUCERS) -> None:
    """Raise the counters of a store that was restored to an old copy, so that no id is handed out twice.

    `seen`: the highest known values, by key. More ids are skipped, as some may have been handed out unseen.
    """
    for key, highest in seen.items():
        if key == PRODUCER_IDS_KEY:
            wanted = min(highest + producers, 1 << PRODUCER_ID_BITS)

            def decide(present: ProducerIdBlock | None, wanted: int = wanted) -> ProducerIdBlock:
                return ProducerIdBlock(max(wanted, 0 if present is None else present.next))

            change(store, key, ProducerIdBlock, decide)
        elif key.startswith(NEXT_PREFIX):
            skip_ids(store, key.removeprefix(NEXT_PREFIX), highest)


def _change_node(store: ClusterStore, node_id: NodeId, decide: Callable[[NodeRecord], NodeRecord]) -> NodeRecord:
    def known(present: NodeRecord | None) -> NodeRecord:
        if present is None:
            raise HeadraceError(f"there is no node {node_id}")
        return decide(present)

    return change(store, f"{NODE_PREFIX}{node_id}", NodeRecord, known, anyway=True)
