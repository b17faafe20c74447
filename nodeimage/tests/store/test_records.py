import threading
import uuid
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from headrace.base.errors import CorruptLog, FolderRefused, HeadraceError
from headrace.base.ids import ContainerId, Epoch, NodeId
from headrace.store import records
from headrace.store.compare_and_set import skip_ids
from headrace.store.container_records import (
    change_container,
    containers,
    create_container,
    deleted_containers,
    forget_deleted,
    get_container,
    leave_in_sync,
    list_containers_versioned,
    put_container,
)
from headrace.store.protocol import ClusterStore, StoreUnavailable, VersionConflict
from headrace.store.records import (
    CATALOG_ID,
    CLUSTER_KEY,
    ClusterRecord,
    DeletedContainers,
    LeaseRecord,
    NodeRecord,
    VolumeRecord,
    change_volume,
    check_volume,
    ensure_cluster,
    ensure_volume,
    get_lease,
    get_node,
    get_volume,
    next_producer_block,
    nodes,
    put_lease,
    register_node,
    remove_node,
    set_balance,
    set_draining,
    set_full,
    set_stopping,
    take_node_id,
    volumes,
)


def register(
    store: ClusterStore, *, node_id: int | None = None, format: uuid.UUID | None = None, new: bool = False
) -> NodeRecord:
    return register_node(
        store,
        node_id=take_node_id(store) if node_id is None else NodeId(node_id),
        new=node_id is None or new,
        format=format or uuid.uuid4(),
        run=uuid.uuid4(),
        host="127.0.0.1",
        port=9092,
    )


def test_a_cluster_is_made_once(store: ClusterStore) -> None:
    cluster = ensure_cluster(store)
    assert len(cluster.cluster_id) == 22
    assert 0 < cluster.random_bits < 2**23
    assert ensure_cluster(store) == cluster


def test_a_cluster_of_a_newer_format_is_refused(sqlite_store: ClusterStore) -> None:
    sqlite_store.put(CLUSTER_KEY, msgspec.json.encode(ClusterRecord("x" * 22, 5, format_version=99)), None)
    with pytest.raises(FolderRefused, match="newer headrace"):
        ensure_cluster(sqlite_store)


def test_new_folders_get_new_ids_and_known_ones_keep_theirs(store: ClusterStore) -> None:
    first, second = register(store), register(store)
    assert (first.node_id, second.node_id) == (1, 2)
    again = register(store, node_id=1, format=first.format)
    assert again.node_id == 1
    assert again.run != first.run
    assert nodes(store) == [again, second]


def test_who_registers_anew_for_want_of_an_answer_is_the_same_node(store: ClusterStore) -> None:
    format, own = uuid.uuid4(), take_node_id(store)
    for _ in range(2):
        assert register(store, node_id=own, format=format, new=True).node_id == own
    assert [node.node_id for node in nodes(store)] == [own]
    with pytest.raises(FolderRefused, match="another folder"):
        register(store, node_id=own, new=True)


def test_node_ids_are_never_reused(store: ClusterStore) -> None:
    gone = register(store)
    found = store.get(f"node/{gone.node_id}")
    assert found is not None
    store.delete(found.key, found.version)
    assert register(store).node_id == 2


def test_a_folder_of_another_cluster_or_a_replaced_one_is_refused(store: ClusterStore) -> None:
    register(store)
    with pytest.raises(FolderRefused, match="another folder"):
        register(store, node_id=1)
    with pytest.raises(FolderRefused, match="another cluster"):
        register(store, node_id=7)
    assert get_node(store, NodeId(7)) is None


def test_a_container_starts_with_its_leader_in_sync(store: ClusterStore) -> None:
    node = register(store)
    catalog = create_container(store, kind="catalog", primary=node)
    data = create_container(store, kind="data", primary=node)
    assert (catalog.container_id, data.container_id) == (1, 2)
    assert data.in_sync == ((node.node_id, node.format),)
    assert containers(store) == [catalog, data]


def test_the_catalog_is_made_once_and_no_other_container_takes_its_id(store: ClusterStore) -> None:
    one, two = register(store), register(store)
    data = create_container(store, kind="data", members=[(one.node_id, uuid.uuid4())])
    catalog = create_container(store, kind="catalog", members=[(one.node_id, uuid.uuid4())])
    assert create_container(store, kind="catalog", members=[(two.node_id, uuid.uuid4())]) == catalog
    assert (data.container_id, catalog.container_id) == (2, CATALOG_ID)


def test_a_container_has_its_first_member_as_leader_and_all_in_sync(store: ClusterStore) -> None:
    members = [(NodeId(3), uuid.uuid4()), (NodeId(1), uuid.uuid4())]
    made = create_container(store, kind="data", members=members, volume="fast", min_in_sync=2, wanted=3)
    assert (made.primary, made.epoch, made.in_sync, made.replicas) == (3, 1, tuple(members), (3, 1))
    assert (made.volume, made.min_in_sync, made.wanted) == ("fast", 2, 3)


def test_a_container_is_put_at_its_version_only(store: ClusterStore) -> None:
    made = create_container(store, kind="data", primary=register(store))
    ((found, version),) = list_containers_versioned(store)
    assert found == made
    closed = msgspec.structs.replace(made, state="closed")
    later = put_container(store, closed, version)
    with pytest.raises(VersionConflict):
        put_container(store, made, version)
    assert list_containers_versioned(store) == [(closed, later)]


@pytest.mark.parametrize(
    "wrong",
    [
        {"primary": NodeId(2)},
        {"replicas": (NodeId(2),)},
        {"replicas": (NodeId(1), NodeId(1))},
        {"in_sync": ()},
    ],
)
def test_a_leader_outside_the_in_sync_set_or_the_replicas_is_never_written(
    store: ClusterStore, wrong: dict[str, Any]
) -> None:
    made = create_container(store, kind="data", primary=register(store))
    ((_, version),) = list_containers_versioned(store)
    with pytest.raises(HeadraceError, match="no container may have"):
        put_container(store, msgspec.structs.replace(made, **wrong), version)
    assert list_containers_versioned(store) == [(made, version)]


def test_a_start_takes_back_stopping_but_not_draining(store: ClusterStore) -> None:
    node = register(store)
    set_draining(store, node.node_id, True)
    assert set_stopping(store, node.node_id, run=uuid.uuid4()).stopping is False
    assert set_stopping(store, node.node_id, run=node.run).stopping is True
    assert set_full(store, node.node_id, True, run=uuid.uuid4()).full is False
    assert set_full(store, node.node_id, True, run=node.run).full is True
    again = register(store, node_id=1, format=node.format)
    assert (again.draining, again.stopping, again.full) == (True, False, False)
    assert set_draining(store, node.node_id, False).draining is False
    with pytest.raises(HeadraceError, match="no node 9"):
        set_draining(store, NodeId(9), True)


class Late:
    """A store of which a put gets no answer, and lands later."""

    def __init__(self, store: ClusterStore) -> None:
        self._store = store
        self.puts: list[tuple[str, bytes, int | None]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def put(self, key: str, value: bytes, expected_version: int | None) -> int:
        self.puts.append((key, value, expected_version))
        raise StoreUnavailable("no answer")


def test_an_order_that_lands_late_does_not_undo_the_one_that_was_given_after_it(store: ClusterStore) -> None:
    node, late = register(store), Late(store)
    ensure_volume(store, VolumeRecord("default", 3, 2))
    orders: list[tuple[Callable[[Any], Any], Callable[[Any], Any]]] = [
        (
            lambda s: set_full(s, node.node_id, True, run=node.run),
            lambda s: set_full(s, node.node_id, False, run=node.run),
        ),
        (lambda s: set_draining(s, node.node_id, True), lambda s: set_draining(s, node.node_id, False)),
        (lambda s: set_balance(s, paused=True), lambda s: set_balance(s, paused=False)),
        (
            lambda s: change_volume(s, "default", lambda _: VolumeRecord("default", 1, 1)),
            lambda s: change_volume(s, "default", lambda _: VolumeRecord("default", 3, 2)),
        ),
    ]
    for order, other in orders:
        with pytest.raises(StoreUnavailable):
            order(late)
        wanted = other(store)
        with pytest.raises(VersionConflict):
            store.put(*late.puts.pop())
        assert other(store) == wanted


def test_a_node_is_removed_once_it_has_no_replicas_and_never_comes_back(store: ClusterStore) -> None:
    node = register(store)
    made = create_container(store, kind="data", primary=node)
    with pytest.raises(HeadraceError, match="drain it"):
        remove_node(store, node.node_id)
    change_container(store, made.container_id, lambda was: msgspec.structs.replace(was, state="deleted"))
    remove_node(store, node.node_id)
    remove_node(store, node.node_id)
    with pytest.raises(FolderRefused, match="was removed"):
        register(store, node_id=node.node_id, format=node.format)
    assert nodes(store) == []


def test_a_cluster_of_before_there_were_secrets_gets_one(sqlite_store: ClusterStore) -> None:
    made = ensure_cluster(sqlite_store, first_nodes=3)
    assert (len(made.secret), made.first_nodes) == (32, 3)
    found = sqlite_store.get(CLUSTER_KEY)
    assert found is not None
    sqlite_store.put(CLUSTER_KEY, msgspec.json.encode(ClusterRecord(made.cluster_id, made.random_bits)), found.version)
    again = ensure_cluster(sqlite_store)
    assert len(again.secret) == 32
    assert again.cluster_id == made.cluster_id
    assert ensure_cluster(sqlite_store) == again


@pytest.mark.parametrize(
    ("volume", "why"),
    [
        (VolumeRecord("v", replicas=2, min_in_sync=3), "the number of replicas"),
        (VolumeRecord("v", replicas=0, min_in_sync=0), "replicas is 0"),
        (VolumeRecord("v", replicas=10), "replicas is 10"),
        (VolumeRecord("v", min_in_sync=0), "min_in_sync is 0"),
        (VolumeRecord("v", spread="maybe"), "'maybe'"),
        (VolumeRecord("v", durability="hope"), "'hope'"),
        (VolumeRecord("v", size_limit=-1), "size_limit is -1"),
        (VolumeRecord("v", zones=("",)), "zone"),
        (VolumeRecord("a/b"), "name"),
    ],
)
def test_a_volume_that_cannot_be_kept_to_is_refused_with_one_line(
    store: ClusterStore, volume: VolumeRecord, why: str
) -> None:
    with pytest.raises(HeadraceError, match=why) as caught:
        check_volume(volume)
    assert "\n" not in str(caught.value)
    with pytest.raises(HeadraceError, match=why):
        ensure_volume(store, volume)
    with pytest.raises(HeadraceError, match=why):
        change_volume(store, "v", lambda _: volume)
    assert volumes(store) == []


def test_the_lease_is_taken_by_compare_and_set(store: ClusterStore) -> None:
    assert get_lease(store) is None
    lease = LeaseRecord(NodeId(1), uuid.uuid4(), 1)
    version = put_lease(store, lease, None)
    with pytest.raises(VersionConflict):
        put_lease(store, LeaseRecord(NodeId(2), uuid.uuid4(), 1), None)
    assert get_lease(store) == (lease, version)


def test_changes_of_a_container_from_many_threads_all_take_place(
    store: ClusterStore, open_store: Callable[[], ClusterStore]
) -> None:
    container = create_container(store, kind="data", primary=register(store))

    def raise_epoch() -> None:
        own = open_store()
        for _ in range(25):
            change_container(
                own, container.container_id, lambda was: msgspec.structs.replace(was, epoch=Epoch(was.epoch + 1))
            )

    threads = [threading.Thread(target=raise_epoch) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = get_container(store, container.container_id)
    assert found is not None
    assert found.epoch == 101


def test_an_epoch_never_falls_and_a_leader_never_changes_without_one(store: ClusterStore) -> None:
    container = create_container(store, kind="data", primary=register(store))
    for change in ({"epoch": Epoch(0)}, {"primary": NodeId(9)}):
        with pytest.raises(HeadraceError, match="must not go"):
            change_container(store, container.container_id, lambda was, to=change: msgspec.structs.replace(was, **to))
    assert get_container(store, container.container_id) == container
    with pytest.raises(HeadraceError, match="no container"):
        change_container(store, ContainerId(99), lambda was: was)


def test_producer_blocks_never_meet_and_bear_the_clusters_bits(
    store: ClusterStore, open_store: Callable[[], ClusterStore]
) -> None:
    blocks: list[range] = []

    def take() -> None:
        own = open_store()
        blocks.extend(next_producer_block(own, 100) for _ in range(20))

    threads = [threading.Thread(target=take) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ids = [id_ for block in blocks for id_ in block]
    assert len(set(ids)) == 6000
    assert {id_ >> 40 for id_ in ids} == {ensure_cluster(store).random_bits}
    assert all(0 < id_ < 2**63 for id_ in ids)


def test_producer_ids_that_are_used_up_are_refused(store: ClusterStore) -> None:
    ensure_cluster(store)
    store.put("producer-ids", msgspec.json.encode({"next": 2**40 - 10}), None)
    assert len(next_producer_block(store, 10)) == 10
    with pytest.raises(HeadraceError, match="handed out all"):
        next_producer_block(store, 1)


def test_a_volume_is_made_once(store: ClusterStore) -> None:
    assert ensure_volume(store, VolumeRecord("default", replicas=3, min_in_sync=2)).replicas == 3
    assert ensure_volume(store, VolumeRecord("default")).replicas == 3
    assert get_volume(store, "other") is None


def test_records_keep_out_of_the_way_of_fields_from_later_versions(store: ClusterStore) -> None:
    node = register(store)
    container = create_container(store, kind="data", primary=node)
    later = msgspec.to_builtins(container) | {"colour": "blue"}
    key = f"container/{container.container_id}"
    found = store.get(key)
    assert found is not None
    store.put(key, msgspec.json.encode(later), found.version)
    assert get_container(store, container.container_id) == container


def test_a_record_that_cannot_be_read_is_named(sqlite_store: ClusterStore) -> None:
    sqlite_store.put("container/5", b"{", None)
    with pytest.raises(CorruptLog, match="container/5"):
        get_container(sqlite_store, ContainerId(5))


def test_a_replica_that_lost_what_it_held_leaves_the_in_sync_set_if_enough_are_left(store: ClusterStore) -> None:
    formats = {NodeId(number): uuid.uuid4() for number in (1, 2, 3)}
    made = create_container(store, kind="data", members=list(formats.items()), min_in_sync=2, wanted=3)
    key = made.container_id
    first, second, third = ((node, format) for node, format in formats.items())
    assert leave_in_sync(store, key, (second[0], uuid.uuid4()), candidates={1, 3}) == made, (
        "another format is not in it"
    )
    assert leave_in_sync(store, key, first, candidates=()) == made, "nobody follows who could lead"
    after = leave_in_sync(store, key, first, candidates={2, 3})
    assert (after.primary, after.epoch, after.in_sync) == (2, made.epoch + 1, (second, third))
    assert after.replicas == made.replicas
    assert leave_in_sync(store, key, third, candidates=()) == after, "fewer than the minimum would be left"
    assert leave_in_sync(store, key, first, candidates={2, 3}) == after, "it has left already"
    assert leave_in_sync(store, key, second, candidates={3}, hand_over=False) == after
    then = leave_in_sync(store, key, second, candidates={3})
    assert (then.primary, then.epoch, then.in_sync) == (3, after.epoch + 1, after.in_sync), "the other may read it"
    assert get_container(store, key) == then


def test_a_container_that_is_deleted_is_never_back(store: ClusterStore) -> None:
    node = register(store)
    made = create_container(store, kind="data", primary=node)
    change_container(store, made.container_id, lambda present: structs.replace(present, state="deleted"))
    with pytest.raises(HeadraceError, match="must not go"):
        change_container(store, made.container_id, lambda present: structs.replace(present, state="closed"))


@given(st.lists(st.lists(st.integers(1, 60), max_size=8), max_size=12))
def test_ids_of_deleted_containers_are_kept_as_ranges(added: list[list[int]]) -> None:
    deleted, wanted = DeletedContainers(), set[int]()
    for ids in added:
        before, had = deleted, set(wanted)
        deleted = deleted.and_these(map(ContainerId, ids))
        wanted |= set(ids)
        assert {each for each in range(63) if ContainerId(each) in deleted} == wanted
        assert list(deleted.beyond(before)) == sorted(wanted - had)
        assert not list(before.beyond(deleted))
        assert len(deleted.ranges) == sum(each + 1 not in wanted for each in wanted), "one for each run of ids"
    assert msgspec.json.decode(msgspec.json.encode(deleted), type=DeletedContainers) == deleted


class Stuck:
    """A store that takes no record away."""

    def __init__(self, store: ClusterStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def delete(self, key: str, expected_version: int) -> None:
        raise StoreUnavailable(key)


def test_of_deleted_containers_the_ids_alone_are_kept(store: ClusterStore) -> None:
    node = register(store)
    made = [create_container(store, kind="data", primary=node).container_id for _ in range(4)]
    for each in made[1:]:
        change_container(store, each, lambda present: structs.replace(present, state="deleted"))
    with pytest.raises(StoreUnavailable):
        forget_deleted(Stuck(store), made[:2])
    assert made[1] in deleted_containers(store), "before its record goes: what has neither may have lost it"
    assert get_container(store, made[1]) is not None
    forget_deleted(store, [*made[:3], ContainerId(77)])
    assert [each.container_id for each in containers(store)] == [made[0], made[3]], "one lives, one was not named"
    assert deleted_containers(store) == DeletedContainers(((made[1], made[2]),))
    with pytest.raises(HeadraceError, match="no container"):
        change_container(store, made[1], lambda present: structs.replace(present, state="closed"))


def test_a_follower_leaves_the_in_sync_set_whoever_could_lead(store: ClusterStore) -> None:
    formats = {NodeId(number): uuid.uuid4() for number in (1, 2, 3)}
    made = create_container(store, kind="data", members=list(formats.items()), min_in_sync=2, wanted=3)
    after = leave_in_sync(store, made.container_id, (NodeId(3), formats[NodeId(3)]), candidates=())
    assert (after.primary, after.epoch) == (1, made.epoch)
    assert {node for node, _ in after.in_sync} == {1, 2}


def test_the_last_one_stays_in_sync_however_damaged(store: ClusterStore) -> None:
    node = register(store)
    made = create_container(store, kind="data", primary=node)
    assert leave_in_sync(store, made.container_id, (node.node_id, node.format), candidates={2}) == made
    assert get_container(store, made.container_id) == made


def test_node_ids_end_with_an_error(store: ClusterStore) -> None:
    skip_ids(store, "node", records.MOST_NODE_ID - 100)
    assert records.take_node_id(store) == records.MOST_NODE_ID
    with pytest.raises(HeadraceError, match="handed out all of its 2147483647 node ids"):
        records.take_node_id(store)
