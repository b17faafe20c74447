"""The records of containers: which node leads, which are in sync, and what remains of deleted containers."""

import threading
import uuid
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from msgspec import structs

from headrace.base.errors import HeadraceError
from headrace.base.ids import ContainerId, Epoch, NodeId
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
    DeletedContainers,
)
from kit.registered import register


def test_a_container_starts_with_its_leader_in_sync(store: ClusterStore) -> None:
    node = register(store)
    catalog = create_container(store, kind="catalog", leader=node)
    data = create_container(store, kind="data", leader=node)
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
    assert (made.leader, made.epoch, made.in_sync, made.replicas) == (3, 1, tuple(members), (3, 1))
    assert (made.volume, made.min_in_sync, made.wanted) == ("fast", 2, 3)


def test_a_container_is_put_at_its_version_only(store: ClusterStore) -> None:
    made = create_container(store, kind="data", leader=register(store))
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
        {"leader": NodeId(2)},
        {"replicas": (NodeId(2),)},
        {"replicas": (NodeId(1), NodeId(1))},
        {"in_sync": ()},
    ],
)
def test_a_leader_outside_the_in_sync_set_or_the_replicas_is_never_written(
    store: ClusterStore, wrong: dict[str, Any]
) -> None:
    made = create_container(store, kind="data", leader=register(store))
    ((_, version),) = list_containers_versioned(store)
    with pytest.raises(HeadraceError, match="no container may have"):
        put_container(store, msgspec.structs.replace(made, **wrong), version)
    assert list_containers_versioned(store) == [(made, version)]


def test_changes_of_a_container_from_many_threads_all_take_place(
    store: ClusterStore, open_store: Callable[[], ClusterStore]
) -> None:
    container = create_container(store, kind="data", leader=register(store))

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
    container = create_container(store, kind="data", leader=register(store))
    for change in ({"epoch": Epoch(0)}, {"leader": NodeId(9)}):
        with pytest.raises(HeadraceError, match="must not go"):
            change_container(store, container.container_id, lambda was, to=change: msgspec.structs.replace(was, **to))
    assert get_container(store, container.container_id) == container
    with pytest.raises(HeadraceError, match="no container"):
        change_container(store, ContainerId(99), lambda was: was)


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
    assert (after.leader, after.epoch, after.in_sync) == (2, made.epoch + 1, (second, third))
    assert after.replicas == made.replicas
    assert leave_in_sync(store, key, third, candidates=()) == after, "fewer than the minimum would be left"
    assert leave_in_sync(store, key, first, candidates={2, 3}) == after, "it has left already"
    assert leave_in_sync(store, key, second, candidates={3}, hand_over=False) == after
    then = leave_in_sync(store, key, second, candidates={3})
    assert (then.leader, then.epoch, then.in_sync) == (3, after.epoch + 1, after.in_sync), "the other may read it"
    assert get_container(store, key) == then


def test_a_container_that_is_deleted_is_never_back(store: ClusterStore) -> None:
    node = register(store)
    made = create_container(store, kind="data", leader=node)
    change_container(store, made.container_id, lambda present: structs.replace(present, state="deleted"))
    with pytest.raises(HeadraceError, match="must not go"):
        change_container(store, made.container_id, lambda present: structs.replace(present, state="closed"))


class Stuck:
    """A store that removes no records."""

    def __init__(self, store: ClusterStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def delete(self, key: str, expected_version: int) -> None:
        raise StoreUnavailable(key)


def test_of_deleted_containers_the_ids_alone_are_kept(store: ClusterStore) -> None:
    node = register(store)
    made = [create_container(store, kind="data", leader=node).container_id for _ in range(4)]
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
    assert (after.leader, after.epoch) == (1, made.epoch)
    assert {node for node, _ in after.in_sync} == {1, 2}


def test_the_last_one_stays_in_sync_however_damaged(store: ClusterStore) -> None:
    node = register(store)
    made = create_container(store, kind="data", leader=node)
    assert leave_in_sync(store, made.container_id, (node.node_id, node.format), candidates={2}) == made
    assert get_container(store, made.container_id) == made
