"""What is restored in a store that lost it because it was restored to an old copy: registrations, removals, counters,
levels, deletions."""

import uuid

import pytest
from msgspec import structs

from headrace.base.errors import FolderRefused
from headrace.base.ids import NodeId
from headrace.base.levels import NEWEST, Level, format_of
from headrace.store import container_records, features, records
from headrace.store.compare_and_set import take_id
from headrace.store.protocol import ClusterStore
from headrace.store.records import FeaturesRecord, NodeRecord


def register(store: ClusterStore, *, host: str = "one", node: NodeRecord | None = None) -> NodeRecord:
    return records.register_node(
        store,
        node_id=records.take_node_id(store) if node is None else node.node_id,
        new=node is None,
        format=uuid.uuid4() if node is None else node.format,
        run=uuid.uuid4(),
        host=host,
        port=9092,
    )


def lose(store: ClusterStore, key: str) -> None:
    found = store.get(key)
    assert found is not None
    store.delete(key, found.version)


def test_a_node_whose_record_is_missing_was_removed_only_if_somebody_removed_it(store: ClusterStore) -> None:
    lost, removed = register(store), register(store)
    lose(store, f"node/{lost.node_id}")
    records.remove_node(store, removed.node_id)
    for level, expected in ((Level.ORIGINAL, False), (Level.FENCED, True)):
        assert records.may_be_lost(store, lost.node_id, folder_level=level) is expected
        assert not records.may_be_lost(store, removed.node_id, folder_level=level)
    assert records.put_back_node(store, lost) == lost
    with pytest.raises(FolderRefused, match="was removed"):
        records.put_back_node(store, removed)
    assert records.nodes(store) == [lost]


def test_a_registration_of_a_former_run_gives_way_but_for_what_an_operator_said(store: ClusterStore) -> None:
    former = register(store)
    copy = store.get(f"node/{former.node_id}")
    assert copy is not None
    present = register(store, host="two", node=former)
    records.set_stopping(store, former.node_id)
    records.set_draining(store, former.node_id, True)
    now = store.get(f"node/{former.node_id}")
    assert now is not None
    store.put(copy.key, copy.value, now.version)
    records.set_stopping(store, former.node_id)
    records.set_draining(store, former.node_id, True)
    put = records.put_back_node(store, present)
    assert put == structs.replace(present, draining=True)
    assert records.get_node(store, former.node_id) == put


def test_a_node_whose_id_another_has_is_refused(store: ClusterStore) -> None:
    node = register(store)
    with pytest.raises(FolderRefused, match="another folder"):
        records.put_back_node(store, structs.replace(node, format=uuid.uuid4()))


def test_ids_that_somebody_has_seen_handed_out_are_not_handed_out_again(store: ClusterStore) -> None:
    records.ensure_cluster(store)
    assert take_id(store, "node", least=7) == 7
    assert container_records.take_container_id(store, "data", least=30) == 30
    block = records.next_producer_block(store, 10, least=500)
    assert [each & 0xFFFF for each in (block[0], block[-1])] == [500, 509]
    records.raise_counters(store, {"next/node": 40, "next/container": 90, "producer-ids": 5_000}, producers=1_000)
    assert records.take_node_id(store) > 40
    assert container_records.take_container_id(store, "data") > 90
    assert records.next_producer_block(store, 10)[0] & 0xFFFF == 6_000
    records.raise_counters(store, {"next/node": 1, "producer-ids": 0}, producers=1_000)
    assert records.take_node_id(store) > 41
    assert records.next_producer_block(store, 10)[0] & 0xFFFF == 6_010


def test_a_level_that_a_folder_has_seen_is_raised_again(sqlite_store: ClusterStore) -> None:
    sqlite_store.put("features", b'{"level": 0, "most": 0}', None)
    records.ensure_cluster(sqlite_store)
    raised = features.raise_again(sqlite_store, Level.FENCED)
    assert (raised.level, raised.raising, raised.most) == (0, Level.FENCED, None)
    assert records.ensure_cluster(sqlite_store).format_version == format_of(NEWEST)
    assert features.raise_again(sqlite_store, Level.FENCED) == raised
    assert isinstance(raised, FeaturesRecord)


def test_what_was_deleted_is_deleted_again_with_and_without_a_record(store: ClusterStore) -> None:
    node = register(store)
    back = container_records.create_container(store, kind="data", leader=node).container_id
    other = container_records.create_container(store, kind="data", leader=node).container_id
    without = container_records.take_container_id(store, "data")
    container_records.delete_again(store, [back, without])
    states = {each.container_id: each.state for each in container_records.containers(store)}
    assert states == {back: "deleted", other: "open"}
    assert without in container_records.deleted_containers(store)


def test_a_removed_node_is_not_a_node_id_that_was_never_given(store: ClusterStore) -> None:
    for _ in range(4):
        node = register(store)
    records.remove_node(store, NodeId(2))
    records.remove_node(store, node.node_id)
    assert [NodeId(each) in records.removed_nodes(store) for each in range(1, 6)] == [False, True, False, True, False]
