"""What a process has seen of a cluster's objects, including after a restore of etcd from a backup."""

import pytest
from msgspec import structs

from headrace.base.ids import Epoch
from headrace.store import container_records, records
from headrace.store.kubernetes.store import KubernetesStore
from headrace.store.protocol import StoreUnavailable, VersionConflict
from headrace.store.records import LeaseRecord
from kit.kubernetes_store import Follower, Open, all_watch, container_of, register, until, version_of
from kit.toy_api import ToyApi


def test_a_server_that_is_away_is_said_and_found_again(store: KubernetesStore, api: ToyApi) -> None:
    register(store)
    follower = Follower(store)
    until("it is told", follower.has("node/1"))
    api.away = True
    api.cut_watches()

    def refused() -> bool:
        try:
            follower.look()
        except StoreUnavailable as error:
            return "does not answer" in str(error)
        return False

    until("a watch says so", refused)
    for call in (lambda: store.get("node/1"), lambda: store.list("node/"), lambda: store.put("balance", b"{}", None)):
        with pytest.raises(StoreUnavailable, match="does not answer"):
            call()
    api.away = False
    until("it is found again", follower.has("node/1"))
    assert not refused()


@pytest.mark.parametrize(
    ("bump", "others_write"), [(0, 0), (1_000_000, 0), (0, 1000)], ids=["as it was", "bumped", "gone on"]
)
def test_what_a_restore_of_etcd_took_back_is_shown_as_it_is_now(
    open_kubernetes: Open, api: ToyApi, bump: int, others_write: int
) -> None:
    """A cache that keeps the newest state would block everything until the old versions are reached again."""
    store, other = open_kubernetes(), open_kubernetes()
    node, gone = register(store), register(store)
    container = container_records.create_container(store, kind="data", leader=node)
    lease = LeaseRecord(node.node_id, node.run, 1)
    leased = records.put_lease(store, lease, None)
    backup = api.backup()
    renewed = records.put_lease(store, structs.replace(lease, renewal=1), leased)
    records.remove_node(store, gone.node_id)
    later = register(store)
    for epoch in range(2, 12):
        container_records.change_container(
            store, container.container_id, lambda now, epoch=epoch: structs.replace(now, epoch=Epoch(epoch))
        )
    view = Follower(other)
    until("all is seen", view.has(f"node/{later.node_id}"))
    version = view.look()[f"container/{container.container_id}"]
    all_watch(api, 2)
    api.restore(backup, bump=bump, others_write=others_write)
    with pytest.raises(VersionConflict):
        records.put_lease(store, structs.replace(lease, renewal=2), renewed)
    until("the restore is seen", view.fell)
    expected = {f"node/{node.node_id}", f"node/{gone.node_id}", f"container/{container.container_id}"}
    assert {each for each in view.versions if each.startswith(("node/", "container/"))} == expected
    assert view.versions[f"container/{container.container_id}"] < version
    after = register(other)
    until("it goes on", view.has(f"node/{after.node_id}"))
    container_records.change_container(store, container.container_id, lambda now: structs.replace(now, epoch=Epoch(2)))
    found = container_records.get_container(other, container.container_id)
    assert found is not None
    assert found.epoch == 2


@pytest.mark.parametrize("others_write", [0, 1000], ids=["as it was", "gone on"])
@pytest.mark.parametrize("leased_since", [False, True], ids=["no lease since", "a lease since"])
def test_who_only_watches_sees_a_restore_whatever_was_written_since(
    open_kubernetes: Open, api: ToyApi, others_write: int, leased_since: bool
) -> None:
    """The only call that it makes by itself requests the lease, which may by then be as new as before, or newer."""
    store, other = open_kubernetes(), open_kubernetes()
    node = register(store)
    container = container_records.create_container(store, kind="data", leader=node)
    lease = LeaseRecord(node.node_id, node.run, 1)
    leased = records.put_lease(store, lease, None)
    backup = api.backup()
    version = store.put(f"container/{container.container_id}", container_of(container, 2), version_of(store, container))
    if leased_since:
        records.put_lease(store, structs.replace(lease, renewal=1), leased)
    view = Follower(other)
    until("all is seen", lambda: view.look().get(f"container/{container.container_id}") == version)
    all_watch(api, 2)
    api.restore(backup, others_write=others_write)
    path = next(path for path in api.objects if "/leases/" in path)
    for renewal in range(10):
        api.put(path, {**api.objects[path], "data": {"renewal": str(renewal)}})
    until("the restore is seen", view.fell)
    assert view.versions[f"container/{container.container_id}"] < version
    store.put(f"container/{container.container_id}", container_of(container, 3), version_of(store, container))
    until("it goes on", lambda: view.look()[f"container/{container.container_id}"] > version)


@pytest.mark.parametrize("others_write", [0, 1000], ids=["as it was", "gone on"])
def test_a_removal_that_a_restore_took_back_is_seen(open_kubernetes: Open, api: ToyApi, others_write: int) -> None:
    store, other = open_kubernetes(), open_kubernetes()
    node = register(store)
    backup = api.backup()
    view = Follower(other)
    until("it is seen", view.has(f"node/{node.node_id}"))
    store.delete(f"node/{node.node_id}", view.versions[f"node/{node.node_id}"])
    until("it is gone", view.lacks(f"node/{node.node_id}"))
    all_watch(api, 2)
    api.restore(backup, others_write=others_write)
    until("the restore is seen", view.fell)
    assert f"node/{node.node_id}" in view.versions
