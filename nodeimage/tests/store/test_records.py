import threading
import uuid
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from headrace.base.errors import FolderRefused, HeadraceError
from headrace.base.ids import NodeId
from headrace.store import records
from headrace.store.compare_and_set import skip_ids
from headrace.store.container_records import (
    change_container,
    create_container,
)
from headrace.store.protocol import ClusterStore, StoreUnavailable, VersionConflict
from headrace.store.records import (
    CLUSTER_KEY,
    ClusterRecord,
    LeaseRecord,
    NodeRecord,
    VolumeRecord,
    change_volume,
    ensure_cluster,
    ensure_volume,
    get_lease,
    get_node,
    get_volume,
    next_producer_block,
    nodes,
    put_back_node,
    put_lease,
    register_node,
    remove_node,
    set_balance,
    set_draining,
    set_full,
    set_stopping,
    take_node_id,
)
from headrace.store.sqlite import SqliteStore
from kit.registered import register


def test_a_node_tells_the_addresses_of_its_own_listeners(store: ClusterStore) -> None:
    def started(node_id: NodeId, format: uuid.UUID, *, new: bool, **listeners: int) -> NodeRecord:
        return register_node(
            store,
            node_id=node_id,
            new=new,
            format=format,
            run=uuid.uuid4(),
            host="10.0.0.1",
            port=9092,
            listeners=listeners,
        )

    node_id, format = take_node_id(store), uuid.uuid4()
    first = started(node_id, format, new=True, secure=9093)
    assert first.address("secure") == ("10.0.0.1", 9093)
    assert first.address("") == first.address("other") == ("10.0.0.1", 9092)
    assert started(node_id, format, new=False, secure=9094).address("secure") == ("10.0.0.1", 9094)
    if not isinstance(store, SqliteStore):
        return  # on Kubernetes the addresses are the operator's to say
    assert set_draining(store, node_id, True).address("secure") == ("10.0.0.1", 9094)
    assert put_back_node(store, first).address("secure") == ("10.0.0.1", 9093), "it is what runs that counts"


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
    """A store whose puts get no answer, and are stored later."""

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
    made = create_container(store, kind="data", leader=node)
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


def test_the_lease_is_taken_by_compare_and_set(store: ClusterStore) -> None:
    assert get_lease(store) is None
    lease = LeaseRecord(NodeId(1), uuid.uuid4(), 1)
    version = put_lease(store, lease, None)
    with pytest.raises(VersionConflict):
        put_lease(store, LeaseRecord(NodeId(2), uuid.uuid4(), 1), None)
    assert get_lease(store) == (lease, version)


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


def test_node_ids_end_with_an_error(store: ClusterStore) -> None:
    skip_ids(store, "node", records.MAX_NODE_ID - 100)
    assert records.take_node_id(store) == records.MAX_NODE_ID
    with pytest.raises(HeadraceError, match="handed out all of its 2147483647 node ids"):
        records.take_node_id(store)
