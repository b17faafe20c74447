"""The changes that are made to the cluster store's records (store.record_types).

All functions block, and go through compare and set alone, so any number of processes may call them at a time.
"""

import base64
import secrets
import time
import uuid
from collections.abc import Callable, Collection, Sequence

import msgspec
from msgspec import structs

from headrace.errors import FolderRefused, HeadraceError
from headrace.ids import ContainerId, Epoch, NodeId
from headrace.store.protocol import ClusterStore, VersionConflict
from headrace.store.record_types import (
    BALANCE_KEY,
    CATALOG_ID,
    CLUSTER_KEY,
    CONTAINER_PREFIX,
    FORMAT_VERSION,
    LEASE_KEY,
    MOST_REPLICAS,
    NOBODY,
    NODE_PREFIX,
    PRODUCER_ID_BITS,
    PRODUCER_IDS_KEY,
    SECRET_BYTES,
    VOLUME_PREFIX,
    BalanceRecord,
    ClusterRecord,
    ContainerRecord,
    LeaseRecord,
    NodeRecord,
    ProducerIdBlock,
    R,
    Record,
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
    "FORMAT_VERSION",
    "LEASE_KEY",
    "MOST_REPLICAS",
    "NOBODY",
    "NODE_PREFIX",
    "PRODUCER_IDS_KEY",
    "PRODUCER_ID_BITS",
    "SECRET_BYTES",
    "VOLUME_PREFIX",
    "BalanceRecord",
    "ClusterRecord",
    "ContainerRecord",
    "LeaseRecord",
    "NodeRecord",
    "ProducerIdBlock",
    "R",
    "VolumeRecord",
    "change_container",
    "change_volume",
    "check_volume",
    "containers",
    "create_container",
    "decode",
    "decode_container",
    "ensure_cluster",
    "ensure_volume",
    "get_container",
    "get_lease",
    "get_node",
    "get_volume",
    "leave_in_sync",
    "list_containers_versioned",
    "next_producer_block",
    "nodes",
    "put_container",
    "put_lease",
    "register_node",
    "remove_node",
    "set_balance_paused",
    "set_draining",
    "set_full",
    "set_stopping",
    "take_container_id",
    "volumes",
]

_PAUSE_S = (0.0, 0.001, 0.002, 0.005, 0.01, 0.02)


class _NextId(Record, frozen=True):
    next: int = 1


def ensure_cluster(store: ClusterStore, *, first_nodes: int = 1) -> ClusterRecord:
    """The cluster's record, made if the store is new. Raises FolderRefused for a newer format."""

    def decide(present: ClusterRecord | None) -> ClusterRecord:
        if present is None:
            cluster_id = base64.urlsafe_b64encode(secrets.token_bytes(16)).rstrip(b"=").decode()
            bits = 1 + secrets.randbelow(2**23 - 1)
            return ClusterRecord(cluster_id, bits, secret=secrets.token_hex(SECRET_BYTES), first_nodes=first_nodes)
        if not present.secret and present.format_version <= FORMAT_VERSION:  # made before nodes spoke to each other
            return structs.replace(present, secret=secrets.token_hex(SECRET_BYTES))
        return present

    record = _change(store, CLUSTER_KEY, ClusterRecord, decide)
    if record.format_version > FORMAT_VERSION:
        raise FolderRefused(
            f"the cluster has format {record.format_version}, this version reads {FORMAT_VERSION}; use a newer headrace"
        )
    return record


def register_node(
    store: ClusterStore,
    *,
    node_id: NodeId | None,
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
) -> NodeRecord:
    """Say that a node has started; it stops no longer, but drains on. `node_id` is what its folder holds; None: a new
    folder, which gets a new id.

    A caller that crashed before it kept its new id finds it again by its format. Raises FolderRefused where the store
    has that id with another format, or not at all: the node was removed, or the folder belongs to another cluster.
    """
    new = False
    if node_id is None:
        known = [node.node_id for node in nodes(store) if node.format == format]
        new = not known
        node_id = known[0] if known else NodeId(_take_ids(store, "node"))
    own_id = node_id

    def decide(present: NodeRecord | None) -> NodeRecord:
        if present is None and not new:
            raise FolderRefused(
                f"the folder says node {own_id}, which this cluster does not have: the node was removed, or the folder "
                "is another cluster's; start it with an empty folder"
            )
        if present is not None and present.format != format:
            raise FolderRefused(f"node {own_id} has another folder, of format {present.format}; start it with that one")
        return NodeRecord(
            own_id,
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
            advertised={} if present is None else present.advertised,
        )

    return _change(store, f"{NODE_PREFIX}{own_id}", NodeRecord, decide)


def set_draining(store: ClusterStore, node_id: NodeId, draining: bool) -> NodeRecord:
    """Have a node's roles and replicas go elsewhere, or no longer. Raises HeadraceError where there is no such node."""
    return _change_node(store, node_id, lambda node: structs.replace(node, draining=draining))


def set_stopping(store: ClusterStore, node_id: NodeId, *, run: uuid.UUID | None = None) -> NodeRecord:
    """Say that a node is about to stop; its next start takes that back. `run`: only where that run is the present one.

    Raises HeadraceError where there is no such node.
    """
    return _change_node(
        store, node_id, lambda node: node if run not in (None, node.run) else structs.replace(node, stopping=True)
    )


def set_full(store: ClusterStore, node_id: NodeId, full: bool, *, run: uuid.UUID) -> NodeRecord:
    """Say that a node's present run has hardly any room left, or has again. Raises HeadraceError where there is no such
    node.
    """
    return _change_node(store, node_id, lambda node: node if run != node.run else structs.replace(node, full=full))


def remove_node(store: ClusterStore, node_id: NodeId, *, force: bool = False) -> None:
    """Forget a node, for good: its folder is refused from now on. Nothing, where there is no such node.

    Raises HeadraceError while it has replicas, unless `force`: then they are rebuilt on other nodes.
    """
    holds = [each.container_id for each in containers(store) if node_id in each.replicas and each.state != "deleted"]
    if holds and not force:
        raise HeadraceError(
            f"node {node_id} has replicas of {len(holds)} containers (such as {holds[0]}); drain it, then remove it"
        )
    key = f"{NODE_PREFIX}{node_id}"
    while (found := store.get(key)) is not None:
        try:
            store.delete(key, found.version)
        except VersionConflict:
            continue


def nodes(store: ClusterStore) -> list[NodeRecord]:
    """All nodes, by id."""
    found = [decode(each.value, NodeRecord, each.key) for each in store.list(NODE_PREFIX)]
    return sorted(found, key=lambda node: node.node_id)


def get_node(store: ClusterStore, node_id: NodeId) -> NodeRecord | None:
    """One node."""
    return _get(store, f"{NODE_PREFIX}{node_id}", NodeRecord)


def take_container_id(store: ClusterStore, kind: str) -> ContainerId:
    """The id for a new container: one that nobody has had, but the catalog's is always the same."""
    if kind == "catalog":
        return CATALOG_ID
    while (taken := _take_ids(store, "container")) == CATALOG_ID:
        continue
    return ContainerId(taken)


def create_container(
    store: ClusterStore,
    *,
    kind: str,
    members: Sequence[tuple[NodeId, uuid.UUID]] = (),
    primary: NodeRecord | None = None,
    container_id: ContainerId | None = None,
    volume: str = "default",
    min_in_sync: int = 1,
    wanted: int = 1,
) -> ContainerRecord:
    """A new open container at epoch 1, the first member its primary, all of them in sync.

    Members are (node, format of its replica's folder); without formats, `primary` alone is the member and its node's
    format stands for the replica's. `container_id` is from `take_container_id`. The catalog is made once: whoever comes
    later gets the one that is there. Raises StoreUnavailable: it may be there nevertheless, with an id that nobody
    else gets.
    """
    if primary is not None:
        members = ((primary.node_id, primary.format),)
    record = ContainerRecord(
        container_id=take_container_id(store, kind) if container_id is None else container_id,
        kind=kind,
        primary=members[0][0],
        epoch=Epoch(1),
        in_sync=tuple(members),
        replicas=tuple(node for node, _ in members),
        volume=volume,
        min_in_sync=min_in_sync,
        wanted=wanted,
    )
    try:
        put_container(store, record, None)
    except VersionConflict:
        present = get_container(store, record.container_id)
        if kind != "catalog" or present is None:
            raise
        return present
    return record


def containers(store: ClusterStore) -> list[ContainerRecord]:
    """All containers, by id."""
    found = [decode(each.value, ContainerRecord, each.key) for each in store.list(CONTAINER_PREFIX)]
    return sorted(found, key=lambda container: container.container_id)


def list_containers_versioned(store: ClusterStore) -> list[tuple[ContainerRecord, int]]:
    """All containers with the versions of their records, by id."""
    found = [(decode_container(each), each.version) for each in store.list(CONTAINER_PREFIX)]
    return sorted(found, key=lambda pair: pair[0].container_id)


def get_container(store: ClusterStore, container_id: ContainerId) -> ContainerRecord | None:
    """One container."""
    return _get(store, f"{CONTAINER_PREFIX}{container_id}", ContainerRecord)


def put_container(store: ClusterStore, record: ContainerRecord, expected_version: int | None) -> int:
    """Write a container's record if it is at `expected_version`; its new version.

    Raises VersionConflict, StoreUnavailable (it may have landed, or may yet), and HeadraceError for a record that no
    container may have: a primary that is not in sync or no replica, or a node named twice. Another member of the
    in-sync set may for a moment be no replica any more; the primary sees to that.
    """
    if (
        record.primary not in record.replicas
        or all(node != record.primary for node, _ in record.in_sync)
        or len(set(record.in_sync)) < len(record.in_sync)
        or len(set(record.replicas)) < len(record.replicas)
    ):
        raise HeadraceError(f"no container may have this record: {record}")
    return store.put(f"{CONTAINER_PREFIX}{record.container_id}", msgspec.json.encode(record), expected_version)


def change_container(
    store: ClusterStore, container_id: ContainerId, decide: Callable[[ContainerRecord], ContainerRecord]
) -> ContainerRecord:
    """Replace a container's record with what `decide` makes of it; decided anew when somebody else was faster.

    `decide` may run more than once, and may raise to leave the record as it is. Raises HeadraceError where there is no
    such container, for a change that breaks invariant 3 (an epoch that falls, a new primary at an old epoch), and where
    a deleted one would be back.
    """

    def checked(present: ContainerRecord | None) -> ContainerRecord:
        if present is None:
            raise HeadraceError(f"there is no container {container_id}")
        wanted = decide(present)
        falls = wanted.epoch < present.epoch or (wanted.primary != present.primary and wanted.epoch == present.epoch)
        if falls or (present.state == "deleted" != wanted.state):
            raise HeadraceError(f"container {container_id} must not go from {present} to {wanted}")
        return wanted

    return _change(store, f"{CONTAINER_PREFIX}{container_id}", ContainerRecord, checked)


def leave_in_sync(
    store: ClusterStore,
    container_id: ContainerId,
    member: tuple[NodeId, uuid.UUID],
    *,
    heirs: Collection[NodeId],
    hand_over: bool = True,
) -> ContainerRecord:
    """Take a replica that is damaged out of the in-sync set; the record as it is then.

    It stays where fewer than the minimum would be left, as its copy may be the last good one of something else. A
    primary hands over to another member among `heirs`, in a new epoch; where it stays in sync only with `hand_over`:
    what it cannot read to others that one may.
    """
    node, _ = member

    def without(present: ContainerRecord) -> ContainerRecord:
        others = tuple(each for each in present.in_sync if each != member)
        able = [each for each, _ in others if each in present.replicas and each in heirs]
        leaves = len(others) >= max(1, present.min_in_sync)
        leads = present.primary == node
        if len(others) == len(present.in_sync) or (leads and not (able and (leaves or hand_over))):
            return present
        after = structs.replace(present, in_sync=others) if leaves else present
        return structs.replace(after, primary=able[0], epoch=Epoch(present.epoch + 1)) if leads else after

    return change_container(store, container_id, without)


def ensure_volume(store: ClusterStore, volume: VolumeRecord) -> VolumeRecord:
    """The volume of that name as it is, or `volume` where there is none yet. Raises HeadraceError as `check_volume`."""
    check_volume(volume)
    return _change(store, f"{VOLUME_PREFIX}{volume.name}", VolumeRecord, lambda present: present or volume)


def get_volume(store: ClusterStore, name: str) -> VolumeRecord | None:
    """One volume."""
    return _get(store, f"{VOLUME_PREFIX}{name}", VolumeRecord)


def volumes(store: ClusterStore) -> list[VolumeRecord]:
    """All volumes, by name."""
    return [decode(each.value, VolumeRecord, each.key) for each in store.list(VOLUME_PREFIX)]


def change_volume(
    store: ClusterStore, name: str, decide: Callable[[VolumeRecord | None], VolumeRecord]
) -> VolumeRecord:
    """Make a volume (`decide` gets None), or replace it; decided anew when somebody else was faster.

    Raises HeadraceError for one that `check_volume` refuses.
    """

    def checked(present: VolumeRecord | None) -> VolumeRecord:
        wanted = decide(present)
        check_volume(wanted)
        return wanted

    return _change(store, f"{VOLUME_PREFIX}{name}", VolumeRecord, checked)


def get_lease(store: ClusterStore) -> tuple[LeaseRecord, int] | None:
    """The controller's lease and its version."""
    found = store.get(LEASE_KEY)
    return None if found is None else (decode(found.value, LeaseRecord, LEASE_KEY), found.version)


def put_lease(store: ClusterStore, record: LeaseRecord, expected_version: int | None) -> int:
    """Take, renew or give back the controller's lease; the new version. Raises VersionConflict, StoreUnavailable."""
    return store.put(LEASE_KEY, msgspec.json.encode(record), expected_version)


def set_balance_paused(store: ClusterStore, paused: bool) -> BalanceRecord:
    """Have the controller move load, or not."""
    return _change(store, BALANCE_KEY, BalanceRecord, lambda _: BalanceRecord(paused))


def next_producer_block(store: ClusterStore, size: int) -> range:
    """`size` producer ids that nobody else gets, positive and below 2**63. Raises HeadraceError when all are used."""
    cluster = ensure_cluster(store)

    def decide(present: ProducerIdBlock | None) -> ProducerIdBlock:
        first = 0 if present is None else present.next
        if first + size > 1 << PRODUCER_ID_BITS:
            raise HeadraceError(f"the cluster has handed out all of its {1 << PRODUCER_ID_BITS} producer ids")
        return ProducerIdBlock(first + size)

    end = (cluster.random_bits << PRODUCER_ID_BITS) + _change(store, PRODUCER_IDS_KEY, ProducerIdBlock, decide).next
    return range(end - size, end)


def _change_node(store: ClusterStore, node_id: NodeId, decide: Callable[[NodeRecord], NodeRecord]) -> NodeRecord:
    def known(present: NodeRecord | None) -> NodeRecord:
        if present is None:
            raise HeadraceError(f"there is no node {node_id}")
        return decide(present)

    return _change(store, f"{NODE_PREFIX}{node_id}", NodeRecord, known)


def _take_ids(store: ClusterStore, kind: str) -> int:
    """An id that nobody has had."""

    def decide(present: _NextId | None) -> _NextId:
        return _NextId(1 + (present or _NextId()).next)

    return _change(store, f"next/{kind}", _NextId, decide).next - 1


def _change(store: ClusterStore, key: str, type_: type[R], decide: Callable[[R | None], R]) -> R:
    """Compare and set until it holds. A record that need not change is not written."""
    attempt = 0
    while True:
        found = store.get(key)
        present = None if found is None else decode(found.value, type_, key)
        wanted = decide(present)
        if wanted == present:
            return wanted
        try:
            store.put(key, msgspec.json.encode(wanted), None if found is None else found.version)
        except VersionConflict:
            # Somebody else got on, so this ends; the pause keeps many processes from colliding again.
            time.sleep(secrets.SystemRandom().uniform(0, _PAUSE_S[min(attempt, len(_PAUSE_S) - 1)]))
            attempt += 1
        else:
            return wanted


def _get(store: ClusterStore, key: str, type_: type[R]) -> R | None:
    found = store.get(key)
    return None if found is None else decode(found.value, type_, key)
