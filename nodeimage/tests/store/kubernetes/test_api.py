"""Calls of the API server: paced, repeated, and authorized by a token that changes."""

import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from headrace.base.errors import FolderRefused
from headrace.base.ids import NodeId
from headrace.store.kubernetes import api as api_module
from headrace.store.kubernetes import store as store_module
from headrace.store.kubernetes.api import BUSY_S, MAX_BUSY_S, MIN_BUSY_S, Access, Api, ApiBusy
from headrace.store.kubernetes.store import KubernetesStore
from headrace.store.protocol import StoreUnavailable
from headrace.store.records import LeaseRecord
from kit.kubernetes_store import (
    NODES,
    Follower,
    Open,
    container,
    meta,
    register,
    until,
)
from kit.toy_api import ToyApi


def test_lists_come_in_pages_of_one_moment(open_kubernetes: Open, api: ToyApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_module, "PAGE", 3)
    for number in range(1, 11):
        api.put(f"{NODES}/c-{number}", {"metadata": meta(number), "status": {"nodeId": number}})
    store = open_kubernetes()
    assert len(store.list("node/")) == 10
    until("all are told", Follower(store).has("node/10"))
    assert api.count("GET", "storagenodes") == 8


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
        ("0", MIN_BUSY_S),
        ("-7", MIN_BUSY_S),
        ("-inf", MIN_BUSY_S),
        ("100000000", MAX_BUSY_S),
        ("1e400", MAX_BUSY_S),
        ("inf", MAX_BUSY_S),
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
    monkeypatch.setattr(api_module, "MAX_BUSY_S", 0.2)
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


def test_a_server_that_wants_a_token_where_there_is_none_is_told_so(store: KubernetesStore, api: ToyApi) -> None:
    api.tokens = {"first": time.monotonic() + 60}
    with pytest.raises(StoreUnavailable, match="Unauthorized; it requires a token, and no token file"):
        store.get("node/1")


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
