"""The records of containers in the cluster store (record_types.ContainerRecord), and their permitted changes.

Invariants 3 and 5 (docs/architecture.md): leader, epoch and in-sync set change only here, by compare-and-set; an epoch
never decreases, and a new leader has a new epoch. Others decide which change is wanted: a leader, the controller, an
operator.

All functions block; any number of processes may call them at a time.
"""

import uuid
from collections.abc import Callable, Collection, Sequence

import msgspec
from msgspec import structs

from headrace.base.errors import HeadraceError, StoreSetBack
from headrace.base.ids import ContainerId, Epoch, NodeId
from headrace.base.levels import Level
from headrace.store.compare_and_set import change, read, take_id
from headrace.store.features import get_features
from headrace.store.lineage import descends, with_next
from headrace.store.protocol import ClusterStore, VersionConflict, Versioned
from headrace.store.record_types import (
    CATALOG_ID,
    CONTAINER_PREFIX,
    DELETED_KEY,
    ContainerRecord,
    DeletedContainers,
    NodeRecord,
    decode,
    decode_container,
)


def take_container_id(store: ClusterStore, kind: str, *, least: int = 0) -> ContainerId:
    """Return an id for a new container that was never handed out; the catalog's is always the same. `least`: see
    take_id."""
    if kind == "catalog":
        return CATALOG_ID
    while (taken := take_id(store, "container", least=least)) == CATALOG_ID:
        continue
    return ContainerId(taken)


def create_container(
    store: ClusterStore,
    *,
    kind: str,
    members: Sequence[tuple[NodeId, uuid.UUID]] = (),
    leader: NodeRecord | None = None,
    container_id: ContainerId | None = None,
    volume: str = "default",
    min_in_sync: int = 1,
    wanted: int = 1,
    traced: bool = False,
) -> ContainerRecord:
    """Create an open container at epoch 1, with all members in sync and the first one as leader; return its record.

    Members are (node, incarnation of its replica). Without them, `leader` is the only member, and the incarnation of
    its node's folder counts as the replica's. `container_id` comes from `take_container_id`. `traced`: see `stamped`.

    The catalog is created once: later callers get the existing record. So does a caller that repeats a creation whose
    outcome is unknown, while the container is unchanged, even if the members differ.

    Raises StoreUnavailable: the container may exist nevertheless, with an id that is not handed out again. Raises
    VersionConflict: it exists, but meanwhile has another leader or is closed.
    """
    if leader is not None:
        members = ((leader.node_id, leader.format),)
    record = ContainerRecord(
        container_id=take_container_id(store, kind) if container_id is None else container_id,
        kind=kind,
        leader=members[0][0],
        epoch=Epoch(1),
        in_sync=tuple(members),
        replicas=tuple(node for node, _ in members),
        volume=volume,
        min_in_sync=min_in_sync,
        wanted=wanted,
    )
    record = stamped(record, traced=traced)
    try:
        put_container(store, record, None)
    except VersionConflict:
        present = get_container(store, record.container_id)
        if present is None or (kind != "catalog" and not _is_as_made(present, record)):
            raise
        return present
    return record


def _is_as_made(present: ContainerRecord, made: ContainerRecord) -> bool:
    return (present.leader, present.epoch, present.state) == (made.leader, made.epoch, made.state)


def containers(store: ClusterStore) -> list[ContainerRecord]:
    """Return all containers, by id."""
    found = [decode(each.value, ContainerRecord, each.key) for each in store.list(CONTAINER_PREFIX)]
    return sorted(found, key=lambda container: container.container_id)


def list_containers_versioned(store: ClusterStore) -> list[tuple[ContainerRecord, int]]:
    """Return all containers with the versions of their records, by id."""
    found = [(decode_container(each), each.version) for each in store.list(CONTAINER_PREFIX)]
    return sorted(found, key=lambda pair: pair[0].container_id)


def get_container(store: ClusterStore, container_id: ContainerId) -> ContainerRecord | None:
    """Return one container's record; None if there is none."""
    return read(store, f"{CONTAINER_PREFIX}{container_id}", ContainerRecord)


def stamped(record: ContainerRecord, *, traced: bool) -> ContainerRecord:
    """Return the record with an id for the change that is about to be made.

    `traced`: the cluster's feature level has such ids. Below that level, a record gets one only if it has some already.
    """
    if not traced and not record.changes:
        return record
    return structs.replace(record, changes=with_next(record.changes))


def descends_from(record: ContainerRecord, known: ContainerRecord) -> bool:
    """Return whether the store may have gone from `known` to `record`. If not, the store is an old copy of itself.

    An operator who gave up records has declared so in `recovered` (invariant 15).
    """
    return descends(record.changes, known.changes) or record.recovered > known.recovered


def has_trace(record: ContainerRecord, *, change: str, recovered: int) -> bool:
    """Return whether a record is, or comes after, the record with this newest `change` and this `recovered`.

    Both values are as another node reported them for its replica; see `descends_from`. No change: the other record
    dates from before changes had ids.
    """
    if not change or (record.changes and record.changes[-1] == change):
        return True
    return descends(record.changes, (change,)) or record.recovered > recovered


def check_descent(record: ContainerRecord, known: ContainerRecord) -> None:
    """Raise StoreSetBack, with what to do, if the store's record is older than the known one."""
    if not descends_from(record, known):
        raise StoreSetBack(
            f"the cluster store has no trace of change {known.changes[-1]} of container {record.container_id}, known "
            "here: it is an old copy. Nothing is followed or cut; rebuild it with `headrace recover-store`"
        )


def put_container(store: ClusterStore, record: ContainerRecord, expected_version: int | None) -> int:
    """Write a container's record, `stamped`, if it is at `expected_version`; return its new version.

    Raises VersionConflict, StoreUnavailable (the record may have been stored, or may still be), and HeadraceError for
    an invalid record: a leader that is not in sync or not a replica, or a node named twice. Other members of the
    in-sync set may briefly not be replicas; the leader corrects that.
    """
    if (
        record.leader not in record.replicas
        or all(node != record.leader for node, _ in record.in_sync)
        or len(set(record.in_sync)) < len(record.in_sync)
        or len(set(record.replicas)) < len(record.replicas)
    ):
        raise HeadraceError(f"no container may have this record: {record}")
    return store.put(f"{CONTAINER_PREFIX}{record.container_id}", msgspec.json.encode(record), expected_version)


def change_container(
    store: ClusterStore, container_id: ContainerId, decide: Callable[[ContainerRecord], ContainerRecord]
) -> ContainerRecord:
    """Replace a container's record with the result of `decide`, which is called again if another process was faster.

    `decide` may raise to leave the record as it is. Raises HeadraceError if there is no such container, for a change
    that breaks invariant 3 (an epoch that decreases, a new leader at an old epoch), and if a deleted container would be
    revived.
    """

    def checked(present: ContainerRecord | None) -> ContainerRecord:
        if present is None:
            raise HeadraceError(f"there is no container {container_id}")
        wanted = decide(present)
        falls = wanted.epoch < present.epoch or (wanted.leader != present.leader and wanted.epoch == present.epoch)
        if falls or (present.state == "deleted" != wanted.state):
            raise HeadraceError(f"container {container_id} must not go from {present} to {wanted}")
        if wanted == present:
            return present
        return stamped(wanted, traced=bool(present.changes) or get_features(store).level >= Level.FENCED)

    return change(store, f"{CONTAINER_PREFIX}{container_id}", ContainerRecord, checked)


def deleted_containers(store: ClusterStore) -> DeletedContainers:
    """Return the ids of deleted containers that no longer have a record."""
    return read(store, DELETED_KEY, DeletedContainers) or DeletedContainers()


def delete_again(store: ClusterStore, containers: Collection[ContainerId]) -> None:
    """Delete containers again after the store was restored to a copy from before their deletion: deletion is
    permanent."""
    change(
        store, DELETED_KEY, DeletedContainers, lambda present: (present or DeletedContainers()).and_these(containers)
    )
    for each in containers:
        if get_container(store, each) is not None:
            change_container(store, each, lambda now: structs.replace(now, state="deleted"))


def forget_deleted(store: ClusterStore, containers: Collection[ContainerId]) -> None:
    """Remove the records of containers that are deleted; their ids stay in `deleted_containers`.

    The id is added before the record goes: a container of which nothing is known may have lost its record, so its
    replicas stay. The next call completes what a crash leaves.
    """
    deleted: dict[ContainerId, Versioned] = {}
    for each in containers:
        found = store.get(f"{CONTAINER_PREFIX}{each}")
        if found is not None and decode_container(found).state == "deleted":
            deleted[each] = found
    if not deleted:
        return
    change(store, DELETED_KEY, DeletedContainers, lambda present: (present or DeletedContainers()).and_these(deleted))
    for found in deleted.values():
        try:
            store.delete(found.key, found.version)
        except VersionConflict:
            continue  # another process was faster


def leave_in_sync(
    store: ClusterStore,
    container_id: ContainerId,
    member: tuple[NodeId, uuid.UUID],
    *,
    candidates: Collection[NodeId],
    hand_over: bool = True,
    known: ContainerRecord | None = None,
) -> ContainerRecord:
    """Take a damaged replica out of the in-sync set; return the resulting record.

    The replica stays if fewer than the minimum would remain, since it may have the last good copy of something else. A
    leader hands over to another member among `candidates`, in a new epoch; if it has to stay in sync, only with
    `hand_over`: the other one may be able to read what this one cannot.

    Raises StoreSetBack if the store's record is an old copy of `known`: according to such a record, replicas that are
    damaged or lack something might be in sync.
    """
    node, _ = member

    def without(present: ContainerRecord) -> ContainerRecord:
        if known is not None:
            check_descent(present, known)
        others = tuple(each for each in present.in_sync if each != member)
        able = [each for each, _ in others if each in present.replicas and each in candidates]
        leaves = len(others) >= max(1, present.min_in_sync)
        leads = present.leader == node
        if len(others) == len(present.in_sync) or (leads and not (able and (leaves or hand_over))):
            return present
        after = structs.replace(present, in_sync=others) if leaves else present
        return structs.replace(after, leader=able[0], epoch=Epoch(present.epoch + 1)) if leads else after

    return change_container(store, container_id, without)
