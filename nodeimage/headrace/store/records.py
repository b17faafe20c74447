"""The records of the cluster store, and the changes that are made to them.

    cluster                  ClusterRecord
    node/<id>                NodeRecord
    container/<id>           ContainerRecord
    volume/<name>            VolumeRecord
    next/{node,container}    the next id: ids are handed out once and never again
    producer-ids             ProducerIdBlock

Values are JSON, to be read by people too; fields that this version does not know are kept out of its way, not refused.
All functions block, and go through compare and set alone, so any number of processes may call them at a time.
"""

import base64
import secrets
import time
import uuid
from collections.abc import Callable
from typing import TypeVar

import msgspec

from headrace.errors import CorruptLog, FolderRefused, HeadraceError
from headrace.ids import ContainerId, Epoch, NodeId
from headrace.store.protocol import ClusterStore, VersionConflict

CLUSTER_KEY = "cluster"
NODE_PREFIX = "node/"
CONTAINER_PREFIX = "container/"
VOLUME_PREFIX = "volume/"
PRODUCER_IDS_KEY = "producer-ids"

FORMAT_VERSION = 1
"""Of a cluster's records and folders. A newer one is refused."""
PRODUCER_ID_BITS = 40
"""Of a producer id: the number within the cluster. Above it stand the cluster's 23 random bits, below the sign."""

_PAUSE_S = (0.0, 0.001, 0.002, 0.005, 0.01, 0.02)

R = TypeVar("R", bound=msgspec.Struct)


class _Record(msgspec.Struct, frozen=True):
    """A value of the store."""


class ClusterRecord(_Record, frozen=True):
    """Made once, with the store."""

    cluster_id: str
    """22 characters, as Kafka's."""
    random_bits: int
    """23 bits, never 0, in the high bits of producer ids: those of linked clusters never meet."""
    format_version: int = FORMAT_VERSION


class NodeRecord(_Record, frozen=True):
    """A storage node. `format` was made with its folder, `run` with this start of its process."""

    node_id: NodeId
    format: uuid.UUID
    run: uuid.UUID
    host: str
    port: int
    failure_host: str = ""
    """What fails together with it."""


class ContainerRecord(_Record, frozen=True):
    """(primary, epoch, in_sync) change only here (invariant 3); the in-sync set names (node, format) (invariant 5)."""

    container_id: ContainerId
    kind: str
    """`catalog` or `data`."""
    primary: NodeId
    epoch: Epoch
    in_sync: tuple[tuple[NodeId, uuid.UUID], ...]
    replicas: tuple[NodeId, ...]
    state: str = "open"
    """`open`, `closed` or `deleted`."""
    volume: str = "default"


class VolumeRecord(_Record, frozen=True):
    """A placement policy."""

    name: str
    replicas: int = 1
    min_in_sync: int = 1


class ProducerIdBlock(_Record, frozen=True):
    """`next`: the first number, without the cluster's bits, that was not handed out."""

    next: int = 0


class _NextId(_Record, frozen=True):
    next: int = 1


def ensure_cluster(store: ClusterStore) -> ClusterRecord:
    """The cluster's record, made if the store is new. Raises FolderRefused for a newer format."""

    def decide(present: ClusterRecord | None) -> ClusterRecord:
        if present is not None:
            return present
        cluster_id = base64.urlsafe_b64encode(secrets.token_bytes(16)).rstrip(b"=").decode()
        return ClusterRecord(cluster_id, 1 + secrets.randbelow(2**23 - 1))

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
) -> NodeRecord:
    """Say that a node has started. `node_id` is what its folder holds; None: a new folder, which gets a new id.

    A caller that crashed before it kept its new id finds it again by its format. Raises FolderRefused where the store
    has that id with another format, or not at all: the folder belongs to another cluster, or was replaced.
    """
    if node_id is None:
        known = [node.node_id for node in nodes(store) if node.format == format]
        node_id = known[0] if known else NodeId(_take_ids(store, "node"))
    elif get_node(store, node_id) is None:
        raise FolderRefused(
            f"the folder says node {node_id}, which this cluster does not have: it is another cluster's"
        )
    own_id = node_id

    def decide(present: NodeRecord | None) -> NodeRecord:
        if present is not None and present.format != format:
            raise FolderRefused(f"node {own_id} has another folder, of format {present.format}; start it with that one")
        return NodeRecord(own_id, format, run, host, port, failure_host)

    return _change(store, f"{NODE_PREFIX}{own_id}", NodeRecord, decide)


def nodes(store: ClusterStore) -> list[NodeRecord]:
    """All nodes, by id."""
    found = [_decode(each.value, NodeRecord, each.key) for each in store.list(NODE_PREFIX)]
    return sorted(found, key=lambda node: node.node_id)


def get_node(store: ClusterStore, node_id: NodeId) -> NodeRecord | None:
    """One node."""
    return _get(store, f"{NODE_PREFIX}{node_id}", NodeRecord)


def create_container(
    store: ClusterStore, *, kind: str, primary: NodeRecord, volume: str = "default"
) -> ContainerRecord:
    """A new open container at epoch 1 with one replica, on `primary`; more replicas join by `change_container`."""
    record = ContainerRecord(
        container_id=ContainerId(_take_ids(store, "container")),
        kind=kind,
        primary=primary.node_id,
        epoch=Epoch(1),
        in_sync=((primary.node_id, primary.format),),
        replicas=(primary.node_id,),
        volume=volume,
    )
    store.put(f"{CONTAINER_PREFIX}{record.container_id}", msgspec.json.encode(record), None)
    return record


def containers(store: ClusterStore) -> list[ContainerRecord]:
    """All containers, by id."""
    found = [_decode(each.value, ContainerRecord, each.key) for each in store.list(CONTAINER_PREFIX)]
    return sorted(found, key=lambda container: container.container_id)


def get_container(store: ClusterStore, container_id: ContainerId) -> ContainerRecord | None:
    """One container."""
    return _get(store, f"{CONTAINER_PREFIX}{container_id}", ContainerRecord)


def change_container(
    store: ClusterStore, container_id: ContainerId, decide: Callable[[ContainerRecord], ContainerRecord]
) -> ContainerRecord:
    """Replace a container's record with what `decide` makes of it; decided anew when somebody else was faster.

    `decide` may run more than once, and may raise to leave the record as it is. Raises HeadraceError where there is no
    such container, and for a change that breaks invariant 3: an epoch that falls, or a new primary at an old epoch.
    """

    def checked(present: ContainerRecord | None) -> ContainerRecord:
        if present is None:
            raise HeadraceError(f"there is no container {container_id}")
        wanted = decide(present)
        if wanted.epoch < present.epoch or (wanted.primary != present.primary and wanted.epoch == present.epoch):
            raise HeadraceError(f"container {container_id} must not go from {present} to {wanted}")
        return wanted

    return _change(store, f"{CONTAINER_PREFIX}{container_id}", ContainerRecord, checked)


def ensure_volume(store: ClusterStore, volume: VolumeRecord) -> VolumeRecord:
    """The volume of that name as it is, or `volume` where there is none yet."""
    return _change(store, f"{VOLUME_PREFIX}{volume.name}", VolumeRecord, lambda present: present or volume)


def get_volume(store: ClusterStore, name: str) -> VolumeRecord | None:
    """One volume."""
    return _get(store, f"{VOLUME_PREFIX}{name}", VolumeRecord)


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
        present = None if found is None else _decode(found.value, type_, key)
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
    return None if found is None else _decode(found.value, type_, key)


def _decode(value: bytes, type_: type[R], key: str) -> R:
    try:
        return msgspec.json.decode(value, type=type_)
    except msgspec.DecodeError as error:
        raise CorruptLog(f"the cluster store's record {key} cannot be read: {error}") from error
