"""Watches that end, are cut, fall silent or are too old: what is observed stays up to date."""

import time
import uuid

import msgspec
import pytest

from headrace.base.ids import NodeId
from headrace.store.kubernetes import api as api_module
from headrace.store.kubernetes.store import KubernetesStore
from headrace.store.records import LeaseRecord
from kit.kubernetes_store import CONTAINERS, NODES, Follower, Open, all_watch, meta, register, until
from kit.toy_api import ToyApi


def test_watches_that_are_cut_list_again(store: KubernetesStore, api: ToyApi) -> None:
    """The server may by then be another one, with an old copy of everything."""
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
    """A server that is stopping ends them too."""
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


def test_an_object_that_cannot_be_read_is_left_aside_by_watches(store: KubernetesStore, api: ToyApi) -> None:
    api.put(f"{CONTAINERS}/c-9", {"metadata": meta(9), "status": {"inSync": "nobody"}})
    register(store)
    follower = Follower(store)
    until("it is told", follower.has("node/1"))
    assert "container/9" not in follower.versions


def test_what_a_server_hears_of_no_one_costs_it_one_call_a_moment(store: KubernetesStore, api: ToyApi) -> None:
    """Without a lease that is renewed, only this shows that the server is there; with one, it is not needed."""
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
