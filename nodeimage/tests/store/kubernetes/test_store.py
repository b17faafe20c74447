"""The cluster store on Kubernetes, over a toy API server; on a real one it runs in e2e."""

import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from toy_api import ToyApi, toy_api

from headrace.ids import ContainerId, NodeId
from headrace.store import records
from headrace.store.kubernetes import store as store_module
from headrace.store.kubernetes.api import Access
from headrace.store.kubernetes.store import KubernetesStore
from headrace.store.protocol import StoreUnavailable, VersionConflict
from headrace.store.records import ClusterRecord, LeaseRecord, NodeRecord

NODES = "/apis/headrace.dev/v1alpha1/namespaces/ns/storagenodes"
CONTAINERS = "/apis/headrace.dev/v1alpha1/namespaces/ns/storagecontainers"
STORE = "/api/v1/namespaces/ns/configmaps/c-store"
CLUSTER = msgspec.json.encode(ClusterRecord("id-of-the-cluster", 7, secret="s"))


@pytest.fixture
def api() -> Iterator[ToyApi]:
    with toy_api() as served:
        yield served


@pytest.fixture
def opened(api: ToyApi, tmp_path: Path) -> Iterator[Callable[[], KubernetesStore]]:
    stores = []

    def make() -> KubernetesStore:
        made = KubernetesStore(cluster="c", namespace="ns", access=Access(api.url), cluster_record=CLUSTER)
        stores.append(made)
        return made

    yield make
    for store in stores:
        store.close()


@pytest.fixture
def store(opened: Callable[[], KubernetesStore]) -> KubernetesStore:
    return opened()


def register(store: KubernetesStore, **fields: str) -> NodeRecord:
    return records.register_node(
        store, node_id=None, format=uuid.uuid4(), run=uuid.uuid4(), host="h", port=9092, peer_port=7092, **fields
    )


def until(store: KubernetesStore, key: str, *, since: int = 0) -> bytes | None:
    """What a watch tells of a key, at last."""
    deadline = time.monotonic() + 10
    found: bytes | None = None
    while time.monotonic() < deadline:
        changes = store.watch("", since=since, timeout_s=1)
        since = changes.revision
        for each in changes.records:
            if each.key == key:
                return each.value
        if key in changes.removed:
            return None
    raise AssertionError(f"nothing of {key}: {found!r}")


def test_records_are_objects_that_a_person_can_read(store: KubernetesStore, api: ToyApi) -> None:
    node = register(store, slot="c-0/0", zone="east")
    container = records.create_container(store, kind="data", primary=node)
    shown = api.objects[f"{NODES}/c-{node.node_id}"]
    assert shown["status"]["nodeId"] == 1
    assert shown["status"]["slot"] == "c-0/0"
    assert shown["metadata"]["labels"] == {"headrace.dev/cluster": "c"}
    held = api.objects[f"{CONTAINERS}/c-{container.container_id}"]["status"]
    assert held["inSync"] == [{"node": 1, "format": str(node.format)}]
    assert records.get_container(store, container.container_id) == container
    assert records.nodes(store) == [node]
    assert set(api.objects[STORE]["data"]) == {"next.node", "next.container"}


def test_a_put_at_another_version_is_refused_whoever_was_first(opened: Callable[[], KubernetesStore]) -> None:
    one, other = opened(), opened()
    first = one.put("volume/a", b'{"name":"a"}', None)
    with pytest.raises(VersionConflict):
        other.put("volume/a", b'{"name":"a"}', None)
    second = other.put("volume/a", b'{"name":"a","replicas":2}', first)
    assert second > first
    with pytest.raises(VersionConflict):
        one.put("volume/a", b"{}", first)
    with pytest.raises(VersionConflict):
        one.delete("volume/a", first)
    one.delete("volume/a", second)
    assert other.get("volume/a") is None


def test_ids_are_handed_out_once_by_many(opened: Callable[[], KubernetesStore]) -> None:
    from concurrent.futures import ThreadPoolExecutor

    stores = [opened() for _ in range(3)]
    with ThreadPoolExecutor(6) as pool:
        nodes = list(pool.map(lambda index: register(stores[index % 3]), range(12)))
    assert sorted(node.node_id for node in nodes) == list(range(1, 13))


def test_a_watch_tells_of_changes_and_removals_by_others(store: KubernetesStore, api: ToyApi) -> None:
    node = register(store)
    assert until(store, "node/1") is not None
    since = store.watch("", since=0, timeout_s=0).revision
    api.drop(f"{NODES}/c-1")
    assert until(store, "node/1", since=since) is None
    assert node.node_id == NodeId(1)


def test_a_watch_that_is_told_it_is_too_old_lists_again(store: KubernetesStore, api: ToyApi) -> None:
    register(store)
    until(store, "node/1")
    since = store.watch("", since=0, timeout_s=0).revision
    api.away = True
    with pytest.raises(StoreUnavailable):
        store.get("node/1")
    api.drop(f"{NODES}/c-1")
    api.forget_events()
    api.away = False
    assert until_gone(store, "node/1", since)


def until_gone(store: KubernetesStore, key: str, since: int) -> bool:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            changes = store.watch("", since=since, timeout_s=0.5)
        except StoreUnavailable:
            continue
        if key in changes.removed:
            return True
    return False


def test_an_api_server_that_is_away_is_said(store: KubernetesStore, api: ToyApi) -> None:
    register(store)
    store.watch("", since=0, timeout_s=5)
    api.away = True
    deadline = time.monotonic() + 10
    with pytest.raises(StoreUnavailable, match="does not answer"):
        while time.monotonic() < deadline:
            since = 10**9
            store.watch("", since=since, timeout_s=0.2)
    with pytest.raises(StoreUnavailable):
        store.put("volume/a", b"{}", None)
    api.away = False
    while True:
        try:
            store.watch("", since=0, timeout_s=1)
            break
        except StoreUnavailable:
            assert time.monotonic() < deadline + 10


def test_a_put_whose_answer_is_lost_is_unknown_and_found_when_it_is_put_again(
    store: KubernetesStore, api: ToyApi
) -> None:
    api.swallow = 1
    with pytest.raises(StoreUnavailable):
        store.put("volume/a", b'{"name":"a"}', None)
    with pytest.raises(VersionConflict):
        store.put("volume/a", b'{"name":"a"}', None)
    assert store.get("volume/a") is not None


def test_a_watch_that_went_silent_is_begun_anew(
    store: KubernetesStore, api: ToyApi, monkeypatch: pytest.MonkeyPatch, opened: Callable[[], KubernetesStore]
) -> None:
    monkeypatch.setattr(store_module, "DEAF_S", 0.5)
    other = opened()
    records.take_lease(store, node=NodeId(1), run=uuid.uuid4()) if hasattr(records, "take_lease") else store.put(
        "controller", msgspec.json.encode(LeaseRecord(NodeId(1), uuid.uuid4(), 1)), None
    )
    until(other, "controller")
    api.deaf = True
    since = other.watch("", since=0, timeout_s=0).revision
    version = other.get("controller")
    assert version is not None
    store.put("controller", msgspec.json.encode(LeaseRecord(NodeId(2), uuid.uuid4(), 2)), version.version)
    time.sleep(2)
    api.deaf = False
    value = until(other, "controller", since=since)
    assert value is not None
    assert msgspec.json.decode(value)["node"] == 2


def test_a_rotated_token_is_taken_up(api: ToyApi, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old\n")
    api.tokens = {"old"}
    store = KubernetesStore(
        cluster="c", namespace="ns", access=Access(api.url, token_file=token), cluster_record=CLUSTER
    )
    try:
        store.put("volume/a", b'{"name":"a"}', None)
        api.tokens = {"new"}
        token.write_text("new\n")
        assert store.get("volume/a") is not None
    finally:
        store.close()


def test_the_operator_s_wishes_and_the_node_s_record_leave_each_other_alone(
    store: KubernetesStore, api: ToyApi
) -> None:
    node = register(store)
    where = f"{NODES}/c-1"
    wished = {**api.objects[where], "spec": {"drain": True, "advertised": {"external": "1.2.3.4:30001"}}}
    api.put(where, wished)
    (seen,) = records.nodes(store)
    assert seen.draining
    assert seen.address("external") == ("1.2.3.4", 30001)
    assert seen.address("") == ("h", 9092)
    records.set_full(store, node.node_id, True, run=node.run)
    assert api.objects[where]["spec"]["advertised"] == {"external": "1.2.3.4:30001"}
    records.set_draining(store, node.node_id, False)
    assert api.objects[where]["spec"]["drain"] is False


def test_the_cluster_s_own_record_comes_from_its_file(store: KubernetesStore) -> None:
    assert records.ensure_cluster(store).cluster_id == "id-of-the-cluster"
    assert store.watch("", since=0, timeout_s=5).records[0].key == "cluster"
    assert records.get_container(store, ContainerId(5)) is None
