"""The cluster store on Kubernetes under failures, over a toy API server; e2e runs it on a real one.

What applies to every cluster store is in test_contract, test_records and test_view.
"""

import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.base.errors import HeadraceError
from headrace.base.ids import NodeId
from headrace.node.folder import DataFolder
from headrace.store import container_records, records
from headrace.store.kubernetes.api import Api, ApiSilent
from headrace.store.kubernetes.store import KubernetesStore
from headrace.store.protocol import StoreUnavailable, VersionConflict
from headrace.store.records import LeaseRecord, NodeRecord
from kit.kubernetes_store import (
    CONTAINERS,
    NODES,
    STORE,
    Follower,
    Open,
    container,
    crashes_of_a_start,
    register,
    until,
)
from kit.toy_api import ToyApi


def test_records_are_objects_that_a_person_can_read(store: KubernetesStore, api: ToyApi) -> None:
    node = register(store, slot="c-0/0", zone="east")
    container = container_records.create_container(store, kind="data", leader=node)
    shown = api.objects[f"{NODES}/c-{node.node_id}"]
    assert (shown["status"]["nodeId"], shown["status"]["slot"]) == (1, "c-0/0")
    assert shown["metadata"]["labels"] == {"headrace.dev/cluster": "c"}
    held = api.objects[f"{CONTAINERS}/c-{container.container_id}"]["status"]
    assert held["inSync"] == [{"node": 1, "format": str(node.format)}]
    assert set(api.objects[STORE]["data"]) == {"next.node", "next.container"}


def test_the_cluster_s_own_record_comes_from_its_file(store: KubernetesStore) -> None:
    assert records.ensure_cluster(store).cluster_id == "id-of-the-cluster-22--"
    assert until("it is told", lambda: Follower(store).look(5)).keys() == {"cluster"}
    with pytest.raises(HeadraceError, match="operator's to write"):
        store.put("cluster", b"{}", 1)


def test_the_operator_s_wishes_and_the_node_s_record_leave_each_other_alone(
    store: KubernetesStore, api: ToyApi
) -> None:
    node = register(store)
    where = f"{NODES}/c-1"
    api.put(where, {**api.objects[where], "spec": {"drain": True, "advertised": {"external": "1.2.3.4:30001"}}})
    (seen,) = records.nodes(store)
    assert seen.draining
    assert (seen.address("external"), seen.address("")) == (("1.2.3.4", 30001), ("h", 9092))
    records.set_full(store, node.node_id, True, run=node.run)
    assert api.objects[where]["spec"]["advertised"] == {"external": "1.2.3.4:30001"}
    records.set_draining(store, node.node_id, False)
    assert api.objects[where]["spec"]["drain"] is False


# --- writes whose outcome is not known


def test_a_put_whose_answer_is_lost_is_found_when_it_is_put_again(store: KubernetesStore, api: ToyApi) -> None:
    for key, value in (("volume/a", b'{"name":"a"}'), ("container/5", container(5))):
        api.swallow = 1
        with pytest.raises(StoreUnavailable):
            store.put(key, value, None)
        with pytest.raises(VersionConflict) as caught:
            store.put(key, value, None)
        found = store.get(key)
        assert found is not None
        assert found.version == caught.value.found


@pytest.mark.parametrize("key", ["container/5", "controller"])
def test_of_puts_that_expect_one_version_one_lands_however_late(key: str, store: KubernetesStore, api: ToyApi) -> None:
    def value(epoch: int) -> bytes:
        if key == "controller":
            return msgspec.json.encode(LeaseRecord(NodeId(epoch), uuid.UUID(int=epoch), epoch))
        return container(5, epoch)

    first = store.put(key, value(1), None)
    api.late = 1
    with pytest.raises(StoreUnavailable):
        store.put(key, value(2), first)
    unchanged = store.get(key)
    assert unchanged is not None
    assert unchanged.version == first
    second = store.put(key, value(3), first)
    api.land()
    found = store.get(key)
    assert found is not None
    assert found.version == second


def test_a_put_that_changes_nothing_keeps_a_late_one_out(store: KubernetesStore, api: ToyApi) -> None:
    first = store.put("container/5", container(5), None)
    api.late = 1
    with pytest.raises(StoreUnavailable):
        store.put("container/5", container(5, 2), first)
    store.put("container/6", container(6), None)
    second = store.put("container/5", container(5), first)
    api.land()
    found = store.get("container/5")
    assert found is not None
    assert found.version == second
    assert store.watch("", since=0, timeout_s=5).generation == 0, "an older version than others have is no restore"


def test_a_delete_whose_answer_is_lost_leaves_nothing_to_delete(store: KubernetesStore, api: ToyApi) -> None:
    version = store.put("container/5", container(5), None)
    api.swallow = 1
    with pytest.raises(StoreUnavailable):
        store.delete("container/5", version)
    with pytest.raises(VersionConflict):
        store.delete("container/5", version)
    until("it is gone", Follower(store).lacks("container/5"))


def test_who_loses_a_race_sees_what_the_other_wrote(open_kubernetes: Open, api: ToyApi) -> None:
    one, other = open_kubernetes(), open_kubernetes()
    first = one.put("container/5", container(5), None)
    follower = Follower(other)
    until("it is told", follower.has("container/5"))
    api.deaf = {"storagecontainers"}
    second = one.put("container/5", container(5, 2), first)
    with pytest.raises(VersionConflict) as caught:
        other.put("container/5", container(5, 3), first)
    assert caught.value.found == second
    assert follower.look(0)["container/5"] == second


@pytest.mark.parametrize(("calls", "landed"), crashes_of_a_start())
def test_a_start_that_crashes_at_any_call_is_made_good_by_the_next(
    calls: int, landed: bool, open_kubernetes: Open, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The process dies before or after its nth call is carried out; the next one starts with the same folder."""
    folder = DataFolder.open(tmp_path / "data")

    def start(store: KubernetesStore) -> NodeRecord:
        records.ensure_volume(store, records.VolumeRecord("default"))
        node = register(store, folder=folder, slot="c-0/0")
        container_records.create_container(store, kind="catalog", leader=node)
        return node

    whole = Api.call
    left = [calls]

    async def dying(self: Api, method: str, path: str, **named: Any) -> dict[str, Any]:
        if threading.current_thread() is not dies or path.endswith(("/leases", "/c-controller")) or "watch" in path:
            return await whole(self, method, path, **named)
        left[0] -= 1
        if left[0] < 0:
            if landed and left[0] == -1:
                await whole(self, method, path, **named)
            raise ApiSilent("the process is dead")
        return await whole(self, method, path, **named)

    store = open_kubernetes()
    until("all is listed", lambda: Follower(store).look(5))
    dies = store._thread
    monkeypatch.setattr(Api, "call", dying)
    try:
        start(store)
        crashed = False
    except StoreUnavailable:
        crashed = True
    monkeypatch.setattr(Api, "call", whole)
    assert crashed or calls > 8
    again = open_kubernetes()
    node = start(again)
    assert records.nodes(again) == [node]
    (catalog,) = records.containers(again)
    assert (catalog.leader, catalog.in_sync) == (node.node_id, ((node.node_id, node.format),))


# --- the end


def test_a_store_that_is_closed_says_so(open_kubernetes: Open, api: ToyApi) -> None:
    store = open_kubernetes()
    api.slow_s = 60.0
    with ThreadPoolExecutor(1) as pool:
        under_way = pool.submit(store.get, "node/1")
        while not any(path.endswith("c-1") for _, path in api.calls):
            time.sleep(0.01)
        begun = time.monotonic()
        store.close()
        store.close()
        assert time.monotonic() - begun < 30
        with pytest.raises(StoreUnavailable, match="closed"):
            under_way.result()
    with pytest.raises(StoreUnavailable, match="closed"):
        store.get("node/1")
    api.slow_s = 0.0
