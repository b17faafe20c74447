"""The records of containers in the cluster store (record_types.ContainerRecord), and what each of them may become.

Invariants 3 and 5: leader, epoch and in-sync set change here alone, by compare and set; an epoch never falls, and a
new leader has a new one. Which change is wanted is for others to decide: for a leader, the controller, an operator.

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
    """The id for a new container: one that nobody has had, but the catalog's is always the same. `least`: see
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
    """A new open container at epoch 1, the first member its leader, all of them in sync.

    Members are (node, format of its replica's folder); without formats, `leader` alone is the member and its node's
    format stands for the replica's. `container_id` is from `take_container_id`. The catalog is made once: whoever comes
    later gets the one that is there. So does who was not told whether the container is there, and makes it again as
    long as it is as it was made, maybe with other members. Raises StoreUnavailable: it may be there nevertheless, with
    an id that nobody else gets. VersionConflict: it is, and has another leader or is closed by now. `traced`: see
    `stamped`.
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
    """All containers, by id."""
    found = [decode(each.value, ContainerRecord, each.key) for each in store.list(CONTAINER_PREFIX)]
    return sorted(found, key=lambda container: container.container_id)


def list_containers_versioned(store: ClusterStore) -> list[tuple[ContainerRecord, int]]:
    """All containers with the versions of their records, by id."""
    found = [(decode_container(each), each.version) for each in store.list(CONTAINER_PREFIX)]
    return sorted(found, key=lambda pair: pair[0].container_id)


def get_container(store: ClusterStore, container_id: ContainerId) -> ContainerRecord | None:
    """One container."""
    return read(store, f"{CONTAINER_PREFIX}{container_id}", ContainerRecord)


def stamped(record: ContainerRecord, *, traced: bool) -> ContainerRecord:
    """The record with an id for the change that it is about to be. `traced`: the cluster's feature level has such ids;
    where it has not, a record that has some goes on with them nevertheless.
    """
    if not traced and not record.changes:
        return record
    return structs.replace(record, changes=with_next(record.changes))


def descends_from(record: ContainerRecord, known: ContainerRecord) -> bool:
    """Whether the store may have come from the one record to the other. If not, it is an old copy of itself.

    An operator who gave records up has said so (invariant 15).
    """
    return descends(record.changes, known.changes) or record.recovered > known.recovered


def has_trace(record: ContainerRecord, *, change: str, recovered: int) -> bool:
    """Whether a record comes after, or is, the one of which a replica elsewhere told its newest change and its
    `recovered`: as `descends_from`. One without a change is of before there were any.
    """
    if not change or (record.changes and record.changes[-1] == change):
        return True
    return descends(record.changes, (change,)) or record.recovered > recovered


def check_descent(record: ContainerRecord, known: ContainerRecord) -> None:
    """Raise StoreSetBack, with what to do, where a record as the store has it is older than one that is known."""
    if not descends_from(record, known):
        raise StoreSetBack(
            f"the cluster store has no trace of change {known.changes[-1]} of container {record.container_id}, known "
            "here: it is an old copy. Nothing is followed or cut; build it anew with `headrace recover-store`"
        )


def put_container(store: ClusterStore, record: ContainerRecord, expected_version: int | None) -> int:
    """Write a container's record, `stamped`, if it is at `expected_version`; its new version.

    Raises VersionConflict, StoreUnavailable (it may have landed, or may yet), and HeadraceError for a record that no
    container may have: a leader that is not in sync or no replica, or a node named twice. Another member of the
    in-sync set may for a moment be no replica any more; the leader sees to that.
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
    """Replace a container's record with what `decide` makes of it; decided anew when somebody else was faster.

    `decide` may run more than once, and may raise to leave the record as it is. Raises HeadraceError where there is no
    such container, for a change that breaks invariant 3 (an epoch that falls, a new leader at an old epoch), and where
    a deleted one would be back.
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
    """Those that were deleted and have no record any more."""
    return read(store, DELETED_KEY, DeletedContainers) or DeletedContainers()


def delete_again(store: ClusterStore, containers: Collection[ContainerId]) -> None:
    """Have containers be deleted that were, where the store was set back to before that: for good is for good."""
    change(
        store, DELETED_KEY, DeletedContainers, lambda present: (present or DeletedContainers()).and_these(containers)
    )
    for each in containers:
        if get_container(store, each) is not None:
            change_container(store, each, lambda now: structs.replace(now, state="deleted"))


def forget_deleted(store: ClusterStore, containers: Collection[ContainerId]) -> None:
    """Take away the records of those that are deleted; their ids stay in `deleted_containers`.

    The id is there before the record goes: a container of which nothing is said may have lost its record, and its
    replicas stay. What a crash leaves is taken away the next time.
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
            continue  # somebody else was faster


def leave_in_sync(
    store: ClusterStore,
    container_id: ContainerId,
    member: tuple[NodeId, uuid.UUID],
    *,
    candidates: Collection[NodeId],
    hand_over: bool = True,
    known: ContainerRecord | None = None,
) -> ContainerRecord:
    """Take a replica that is damaged out of the in-sync set; the record as it is then. Raises StoreSetBack where that
    is an old copy of the one that is `known`: by it those who are damaged, or lack something, might be in sync.

    It stays where fewer than the minimum would be left, as its copy may be the last good one of something else. A
    leader hands over to another member among `candidates`, in a new epoch; where it stays in sync only with
    `hand_over`: what it cannot read to others that one may.
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
