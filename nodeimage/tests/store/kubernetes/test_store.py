"""The cluster store on Kubernetes when things go wrong, over a toy API server; on a real one it runs in e2e.

What holds of every cluster store is in test_contract, test_records and test_view.
"""

import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs

from headrace.base.errors import FolderRefused, HeadraceError
from headrace.base.ids import Epoch, NodeId
from headrace.node.folder import DataFolder, Identity
from headrace.store import container_records, records
from headrace.store.kubernetes import api as api_module
from headrace.store.kubernetes import objects
from headrace.store.kubernetes import store as store_module
from headrace.store.kubernetes.api import BUSY_S, LEAST_BUSY_S, MOST_BUSY_S, Access, Api, ApiBusy, ApiSilent
from headrace.store.kubernetes.store import KubernetesStore
from headrace.store.protocol import StoreUnavailable, VersionConflict
from headrace.store.records import ContainerRecord, LeaseRecord, NodeRecord
from kit.toy_api import ToyApi

NODES = "/apis/headrace.dev/v1alpha1/namespaces/ns/storagenodes"
CONTAINERS = "/apis/headrace.dev/v1alpha1/namespaces/ns/storagecontainers"
STORE = "/api/v1/namespaces/ns/configmaps/c-store"
Open = Callable[..., KubernetesStore]


@pytest.fixture
def store(open_kubernetes: Open) -> KubernetesStore:
    return open_kubernetes()


def register(store: KubernetesStore, *, folder: DataFolder | None = None, **fields: str) -> NodeRecord:
    def take_id() -> NodeId:
        return records.take_node_id(store)

    own = Identity("c", take_id(), str(uuid.uuid4())) if folder is None else folder.reserved("c", take_id)
    return records.register_node(
        store,
        node_id=NodeId(own.node_id),
        new=True,
        format=uuid.UUID(own.folder_id),
        run=uuid.uuid4(),
        host="h",
        port=9092,
        **fields,
    )


def until(what: str, holds: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 20
    while not (found := holds()):
        assert time.monotonic() < deadline, what
        time.sleep(0.01)
    return found


def all_watch(api: ToyApi, stores: int = 1) -> None:
    """What is shown may come from a list, with the watch still to begin."""
    until("all watch", lambda: api.watches == stores * len(objects.watched("c")))


class Follower:
    """What one who watches knows."""

    def __init__(self, store: KubernetesStore) -> None:
        self.store = store
        self.revision = 0
        self.versions: dict[str, int] = {}

    def look(self, timeout_s: float = 0.05) -> dict[str, int]:
        changes = self.store.watch("", since=self.revision, timeout_s=timeout_s)
        self.revision = changes.revision
        self.versions |= {each.key: each.version for each in changes.records}
        for key in changes.removed:
            self.versions.pop(key, None)
        return self.versions

    def has(self, key: str) -> Callable[[], bool]:
        def shown() -> bool:
            try:
                return key in self.look()
            except StoreUnavailable:
                return False

        return shown

    def lacks(self, key: str) -> Callable[[], bool]:
        def gone() -> bool:
            try:
                return key not in self.look()
            except StoreUnavailable:
                return False

        return gone

    def fell(self) -> bool:
        """Whether the store is known to have been set back, once; all is looked at anew then."""
        try:
            changes = self.store.watch("", since=self.revision, timeout_s=0.05)
        except StoreUnavailable:
            return False
        if changes.generation:
            assert changes.whole
            self.versions = {each.key: each.version for each in changes.records}
        self.revision = changes.revision
        return changes.generation == 1


def test_records_are_objects_that_a_person_can_read(store: KubernetesStore, api: ToyApi) -> None:
    node = register(store, slot="c-0/0", zone="east")
    container = container_records.create_container(store, kind="data", primary=node)
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


# --- watches


def test_watches_that_are_cut_list_again(store: KubernetesStore, api: ToyApi) -> None:
    """The server may be another one since, with an old copy of everything."""
    register(store)
    follower = Follower(store)
    until("it is told", follower.has("node/1"))
    all_watch(api)
    for number in range(3):
        watched, listed = api.count("WATCH", "storagenodes"), api.count("GET", "storagenodes")
        api.cut_watches()
        api.put(f"{NODES}/c-{50 + number}", {**api.objects[f"{NODES}/c-1"], "metadata": meta(50 + number)})
        until("it is told", follower.has(f"node/{50 + number}"))
        until("it watches again", lambda before=watched: api.count("WATCH", "storagenodes") > before)
        assert api.count("GET", "storagenodes") > listed
    api.cut_watches()
    api.drop(f"{NODES}/c-50")
    until("it is gone", follower.lacks("node/50"))
    assert follower.look().keys() >= {"node/1", "node/51", "node/52"}
    assert store.watch("", since=0, timeout_s=5).generation == 0


def meta(number: int) -> dict[str, Any]:
    return {"name": f"c-{number}", "labels": {"headrace.dev/cluster": "c"}}


def test_watches_whose_time_is_over_go_on_where_they_were(
    open_kubernetes: Open, api: ToyApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_module, "WATCH_S", 0.1)
    store = open_kubernetes()
    follower = Follower(store)
    for number in range(10):
        made = store.put(f"volume/v{number}", b'{"name":"v"}', None)
        until("it is told", follower.has(f"volume/v{number}"))
        assert follower.versions[f"volume/v{number}"] >= made
    assert api.count("GET", "storagenodes") == 1


def test_watches_that_the_server_ends_before_their_time_list_again(open_kubernetes: Open, api: ToyApi) -> None:
    """So does a server that stops."""
    api.end_watches_s = 0.1
    store = open_kubernetes()
    follower = Follower(store)
    for number in range(10):
        store.put(f"volume/v{number}", b'{"name":"v"}', None)
        until("it is told", follower.has(f"volume/v{number}"))
    until("it is listed", lambda: api.count("GET", "storagenodes") > 1)


def test_a_watch_that_is_told_it_is_too_old_lists_again(
    open_kubernetes: Open, api: ToyApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_module, "WATCH_S", 0.2)
    store = open_kubernetes()
    register(store)
    follower = Follower(store)
    until("it is told", follower.has("node/1"))
    api.deaf = {"storagenodes"}
    api.drop(f"{NODES}/c-1")
    api.forget_events()
    until("it is gone", follower.lacks("node/1"))


def test_bookmarks_keep_a_quiet_watch_from_being_too_old(
    open_kubernetes: Open, api: ToyApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_module, "WATCH_S", 0.3)
    api.bookmarks_s = 0.05
    store = open_kubernetes()
    follower = Follower(store)
    version: int | None = None
    for _ in range(20):
        version = store.put("balance", b'{"paused":true}', version)
    until("it is told", follower.has("balance"))
    time.sleep(0.3)  # bookmarks come of themselves; nothing shows that they did
    api.forget_events()
    resumed = api.count("WATCH", "storagecontainers")
    until("it is resumed", lambda: api.count("WATCH", "storagecontainers") > resumed + 1)
    register(store)
    until("it is told", follower.has("node/1"))
    assert api.count("GET", "storagecontainers") == 1


def test_watches_that_went_silent_are_begun_anew(open_kubernetes: Open, api: ToyApi) -> None:
    store, other = open_kubernetes(), open_kubernetes()
    follower = Follower(other)
    version = store.put("controller", msgspec.json.encode(LeaseRecord(NodeId(1), uuid.uuid4(), 1)), None)
    until("it is told", follower.has("controller"))
    api.deaf = {"leases", "storagenodes"}
    register(store)
    store.put("controller", msgspec.json.encode(LeaseRecord(NodeId(2), uuid.uuid4(), 2)), version)
    until("a call tells of the lease", lambda: follower.look()["controller"] > version)
    until("new watches list the rest", follower.has("node/1"))


def test_lists_come_in_pages_of_one_moment(open_kubernetes: Open, api: ToyApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_module, "PAGE", 3)
    for number in range(1, 11):
        api.put(f"{NODES}/c-{number}", {"metadata": meta(number), "status": {"nodeId": number}})
    store = open_kubernetes()
    assert len(store.list("node/")) == 10
    until("all are told", Follower(store).has("node/10"))
    assert api.count("GET", "storagenodes") == 8


def test_an_object_that_cannot_be_read_is_left_aside_by_watches(store: KubernetesStore, api: ToyApi) -> None:
    api.put(f"{CONTAINERS}/c-9", {"metadata": meta(9), "status": {"inSync": "nobody"}})
    register(store)
    follower = Follower(store)
    until("it is told", follower.has("node/1"))
    assert "container/9" not in follower.versions


# --- a server that is away, busy, slow, or does not know us


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


def test_what_a_server_hears_of_no_one_costs_it_one_call_a_moment(store: KubernetesStore, api: ToyApi) -> None:
    """Without a lease that is renewed there is no other way to know that it is there; with one, none is needed."""
    until("all is listed", lambda: Follower(store).look(5))
    version: int | None = None
    renewals = 0
    begun, before = time.monotonic(), api.count("GET", "leases/")
    while time.monotonic() < begun + 2:
        lease = LeaseRecord(NodeId(1), uuid.UUID(int=1), 1, renewals)
        version = store.put("controller", msgspec.json.encode(lease), version)
        renewals += 1
        time.sleep(0.2)
    assert api.count("GET", "leases/") - before <= 2


def test_a_server_that_does_not_answer_in_time_is_away(store: KubernetesStore, api: ToyApi) -> None:
    until("all is listed", lambda: Follower(store).look(5))
    api.slow_s = 60.0
    begun = time.monotonic()
    with pytest.raises(StoreUnavailable, match="does not answer"):
        store.get("node/1")
    assert time.monotonic() - begun < 30
    with pytest.raises(StoreUnavailable):
        store.watch("node/", since=1, timeout_s=0)
    api.slow_s = 0.0


def test_a_busy_server_is_left_alone_for_as_long_as_it_says(store: KubernetesStore, api: ToyApi) -> None:
    until("all is listed", lambda: Follower(store).look(5))
    api.busy, api.busy_s = 1000, 1
    threading.Timer(0.3, lambda: setattr(api, "busy", 0)).start()
    begun, before = time.monotonic(), len(api.calls)
    version = store.put("volume/a", b'{"name":"a"}', None)
    assert time.monotonic() - begun >= 1
    calls = [method for method, path in api.calls[before:] if path.endswith("/c-store") or method == "POST"]
    assert calls == ["GET", "GET", "POST"]  # told to wait, asked, written
    found = store.get("volume/a")
    assert found is not None
    assert found.version == version


@pytest.mark.parametrize(
    ("named", "seconds"),
    [
        ("1", 1.0),
        ("2.5", 2.5),
        ("0", LEAST_BUSY_S),
        ("-7", LEAST_BUSY_S),
        ("-inf", LEAST_BUSY_S),
        ("100000000", MOST_BUSY_S),
        ("1e400", MOST_BUSY_S),
        ("inf", MOST_BUSY_S),
        ("nan", BUSY_S),
        ("", BUSY_S),
        ("soon", BUSY_S),
        ("Fri, 31 Dec 2999 23:59:59 GMT", BUSY_S),
    ],
)
async def test_how_long_a_busy_server_is_left_alone_is_bounded(api: ToyApi, named: str, seconds: float) -> None:
    api.busy, api.busy_s = 1, named
    client = Api(Access(api.url))
    try:
        with pytest.raises(ApiBusy) as busy:
            await client.call("GET", "/api/v1/nodes")
        assert busy.value.retry_after_s == seconds
    finally:
        await client.close()


def test_a_server_that_names_a_year_once_is_asked_again(
    store: KubernetesStore, api: ToyApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_module, "MOST_BUSY_S", 0.2)
    api.busy, api.busy_s = 1, 31_536_000
    store.put("volume/a", b'{"name":"a"}', None)
    assert api.busy == 0
    assert store.get("volume/a") is not None


def test_a_server_that_stays_busy_is_away_in_the_end(
    store: KubernetesStore, api: ToyApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "ALL_S", 0.5)
    api.busy, api.busy_s = 1000, 30
    with pytest.raises(StoreUnavailable):
        store.put("volume/a", b'{"name":"a"}', None)


def test_a_missing_right_is_named(store: KubernetesStore, api: ToyApi) -> None:
    api.refuse = (403, 'storagenodes.headrace.dev is forbidden: User "x" cannot create resource')
    with pytest.raises(StoreUnavailable, match=r"cannot create resource.*Role"):
        register(store)


def test_writes_are_paced_and_the_lease_goes_first(
    open_kubernetes: Open, api: ToyApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "BURST", 5)
    monkeypatch.setattr(store_module, "WRITES_PER_S", 10.0)
    store = open_kubernetes()
    begun = time.monotonic()
    with ThreadPoolExecutor(15) as pool:
        puts = [pool.submit(store.put, f"container/{n}", container(n), None) for n in range(1, 16)]
        while api.count("POST", "storagecontainers") < 5:
            time.sleep(0.01)
        store.put("controller", msgspec.json.encode(LeaseRecord(NodeId(1), uuid.uuid4(), 1)), None)
        for each in puts:
            each.result()
    posted = [path for method, path in api.calls if method == "POST"]
    (lease,) = [place for place, path in enumerate(posted) if "leases" in path]
    assert lease < max(place for place, path in enumerate(posted) if "storagecontainers" in path)
    assert time.monotonic() - begun >= 0.9


def container(number: int, epoch: int = 1) -> bytes:
    member = (1, str(uuid.UUID(int=1)))
    return msgspec.json.encode(
        {"container_id": number, "kind": "data", "primary": 1, "epoch": epoch, "in_sync": [member], "replicas": [1]}
    )


# --- tokens


def test_a_rotated_token_is_taken_up_before_and_after_the_old_one_expires(
    open_kubernetes: Open, api: ToyApi, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    api.tokens = {"first": time.monotonic() + 1.0}
    store = open_kubernetes(token)
    follower = Follower(store)
    register(store)
    until("it is told", follower.has("node/1"))
    api.tokens = {"first": api.tokens["first"], "second": time.monotonic() + 60}
    swapped = tmp_path / "token.new"
    swapped.write_text("second\n")
    swapped.rename(token)  # as the kubelet does, by another file in its place
    time.sleep(max(0.0, api.tokens["first"] - time.monotonic()))
    api.cut_watches()
    register(store)
    until("it is told", follower.has("node/2"))
    api.tokens = {"third": time.monotonic() + 60}
    with pytest.raises(StoreUnavailable, match=r"Unauthorized.*token"):
        store.get("node/1")
    token.write_text("third\n")
    assert store.get("node/1") is not None
    api.cut_watches()
    api.drop(f"{NODES}/c-2")
    until("watches go on", follower.lacks("node/2"))


def test_a_token_file_that_is_missing_for_a_moment_is_waited_for(
    open_kubernetes: Open, api: ToyApi, tmp_path: Path
) -> None:
    api.tokens = {"first": time.monotonic() + 60}
    store = open_kubernetes(tmp_path / "token")
    with pytest.raises(StoreUnavailable, match="token"):
        store.get("node/1")
    (tmp_path / "token").write_text("first")
    register(store)
    until("it is told", Follower(store).has("node/1"))


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


def crashes_of_a_start() -> list[tuple[int, bool]]:
    return [(calls, landed) for calls in range(12) for landed in (False, True)]


@pytest.mark.parametrize(("calls", "landed"), crashes_of_a_start())
def test_a_start_that_crashes_at_any_call_is_made_good_by_the_next(
    calls: int, landed: bool, open_kubernetes: Open, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The process dies before or after its nth call took place; the next one starts with the same folder."""
    folder = DataFolder.open(tmp_path / "data")

    def start(store: KubernetesStore) -> NodeRecord:
        records.ensure_volume(store, records.VolumeRecord("default"))
        node = register(store, folder=folder, slot="c-0/0")
        container_records.create_container(store, kind="catalog", primary=node)
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
    assert (catalog.primary, catalog.in_sync) == (node.node_id, ((node.node_id, node.format),))


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
        with pytest.raises(StoreUnavailable):
            under_way.result()
    with pytest.raises(StoreUnavailable, match="closed"):
        store.get("node/1")
    api.slow_s = 0.0


def test_access_that_cannot_be_had_is_refused_at_once(
    api: ToyApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OSError, match="No such file"):
        KubernetesStore(
            cluster="c", namespace="ns", access=Access(api.url, ca_file=tmp_path / "none"), cluster_record=b"{}"
        )
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(FolderRefused, match="--kubernetes-api"):
        Access.in_cluster()
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    assert Access.in_cluster().url == "https://[fd00::1]:443"


@pytest.mark.parametrize(
    ("bump", "others_write"), [(0, 0), (1_000_000, 0), (0, 1000)], ids=["as it was", "bumped", "gone on"]
)
def test_what_a_restore_of_etcd_took_back_is_shown_as_it_is_now(
    open_kubernetes: Open, api: ToyApi, bump: int, others_write: int
) -> None:
    """A cache that keeps what is newest would keep out all that comes, until versions are there again."""
    store, other = open_kubernetes(), open_kubernetes()
    node, gone = register(store), register(store)
    container = container_records.create_container(store, kind="data", primary=node)
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
    """The one call that it makes by itself asks for the lease, which may be as new as before, or newer, by then."""
    store, other = open_kubernetes(), open_kubernetes()
    node = register(store)
    container = container_records.create_container(store, kind="data", primary=node)
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


def version_of(store: KubernetesStore, container: ContainerRecord) -> int:
    found = store.get(f"container/{container.container_id}")
    assert found is not None
    return found.version


def container_of(container: ContainerRecord, epoch: int) -> bytes:
    return msgspec.json.encode(structs.replace(container, epoch=Epoch(epoch)))
