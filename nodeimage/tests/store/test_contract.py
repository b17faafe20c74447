"""What applies to every cluster store (store.protocol), with records as in real use."""

import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from headrace.base.ids import ContainerId, Epoch, NodeId
from headrace.store.protocol import Changes, ClusterStore, VersionConflict, Versioned
from headrace.store.record_types import ContainerRecord, decode, decode_container

FORMAT = uuid.UUID(int=5)


def key_of(number: int) -> str:
    return f"container/{number}"


def value_of(number: int, epoch: int = 1) -> bytes:
    node = NodeId(1)
    return msgspec.json.encode(
        ContainerRecord(ContainerId(number), "data", node, Epoch(epoch), ((node, FORMAT),), (node,), volume="a_b-C")
    )


def holds(found: Versioned | None, number: int, epoch: int, version: int) -> bool:
    return (
        found is not None
        and (found.key, found.version) == (key_of(number), version)
        and decode_container(found) == decode(value_of(number, epoch), ContainerRecord, "wanted")
    )


def watched(store: ClusterStore, since: int, *keys: str) -> Changes:
    """Return what a watch reports of keys, once it has reported all of them."""
    records: dict[str, Versioned] = {}
    removed: dict[str, int] = {}
    deadline = time.monotonic() + 20
    whole = None
    while not set(keys) <= records.keys() | removed.keys():
        assert time.monotonic() < deadline, (records, removed)
        changes = store.watch("", since=since, timeout_s=1)
        whole = changes.whole if whole is None else whole
        for each in changes.records:
            records[each.key] = each
            removed.pop(each.key, None)
        for key, version in changes.removed.items():
            records.pop(key, None)
            removed[key] = version
        since = changes.revision
    return Changes(since, [records[key] for key in sorted(records)], removed, bool(whole))


def test_what_is_put_is_got_with_its_version(store: ClusterStore) -> None:
    version = store.put(key_of(1), value_of(1), None)
    assert holds(store.get(key_of(1)), 1, 1, version)
    assert store.get(key_of(2)) is None
    assert store.get("volume/none") is None
    assert store.get("controller") is None


def test_put_refuses_any_version_but_the_present_one(store: ClusterStore) -> None:
    first = store.put(key_of(1), value_of(1), None)
    second = store.put(key_of(1), value_of(1, 2), first)
    for expected in (None, first, second + 1):
        with pytest.raises(VersionConflict) as caught:
            store.put(key_of(1), value_of(1, 3), expected)
        assert caught.value.found == second
    assert holds(store.get(key_of(1)), 1, 2, second)
    with pytest.raises(VersionConflict) as caught:
        store.put(key_of(2), value_of(2), 1)
    assert caught.value.found is None


def test_a_put_of_what_is_there_already_has_a_version_of_its_own(store: ClusterStore) -> None:
    """Otherwise an earlier put, whose outcome is unknown, could still be stored after it."""
    versions = [store.put(key_of(1), value_of(1), None), store.put("volume/a", b'{"name":"a"}', None)]
    again = [store.put(key_of(1), value_of(1), versions[0]), store.put("volume/a", b'{"name":"a"}', versions[1])]
    assert all(later > before for before, later in zip(versions, again, strict=True))
    with pytest.raises(VersionConflict):
        store.put(key_of(1), value_of(1, 2), versions[0])


def test_a_record_made_again_after_a_delete_has_a_version_never_seen(store: ClusterStore) -> None:
    for key, value in ((key_of(1), value_of(1)), ("volume/a", b'{"name":"a"}')):
        first = store.put(key, value, None)
        with pytest.raises(VersionConflict):
            store.delete(key, first + 1)
        store.delete(key, first)
        assert store.get(key) is None
        with pytest.raises(VersionConflict):
            store.put(key, value, first)
        with pytest.raises(VersionConflict):
            store.delete(key, first)
        assert store.put(key, value, None) > first


def test_lists_are_of_a_prefix_and_in_order(store: ClusterStore) -> None:
    for number in (2, 10, 1):
        store.put(key_of(number), value_of(number), None)
    for name in ("a_b", "aXb", "a_c"):
        store.put(f"volume/{name}", msgspec.json.encode({"name": name}), None)
    assert [each.key for each in store.list("container/")] == ["container/1", "container/10", "container/2"]
    assert [each.key for each in store.list("container/1")] == ["container/1", "container/10"]
    assert [each.key for each in store.list("volume/a_")] == ["volume/a_b", "volume/a_c"]
    assert store.list("node/") == []
    assert len([each for each in store.list("") if each.key != "cluster"]) == 6


def test_watch_tells_changes_and_removals_since_a_revision(store: ClusterStore) -> None:
    one = store.put(key_of(1), value_of(1), None)
    everything = watched(store, 0, key_of(1))
    assert everything.whole
    two = store.put(key_of(2), value_of(2), None)
    store.delete(key_of(1), one)
    changes = watched(store, everything.revision, key_of(1), key_of(2))
    assert not changes.whole
    assert [(each.key, each.version) for each in changes.records] == [(key_of(2), two)]
    assert changes.removed.keys() == {key_of(1)}
    assert changes.removed[key_of(1)] >= one
    nothing = store.watch("", since=changes.revision, timeout_s=0)
    assert (nothing.revision, nothing.records, nothing.removed) == (changes.revision, [], {})


def test_watch_wakes_for_a_change_of_another_process(
    store: ClusterStore, open_store: Callable[[], ClusterStore]
) -> None:
    store.put(key_of(1), value_of(1), None)
    since = watched(store, 0, key_of(1)).revision
    other = open_store()
    writer = threading.Timer(0.1, lambda: other.put(key_of(2), value_of(2), None))
    writer.start()
    changes = store.watch("container/", since=since, timeout_s=20)
    writer.join()
    assert [each.key for each in changes.records] == [key_of(2)]


@pytest.mark.parametrize("key", ["next/node", "container/3"])
def test_processes_that_hammer_one_record_lose_no_update(key: str, open_store: Callable[[], ClusterStore]) -> None:
    def value(count: int) -> bytes:
        return value_of(3, count) if key.startswith("container") else msgspec.json.encode({"next": count})

    def count_of(found: Versioned | None) -> int:
        if found is None:
            return 0
        return (
            decode_container(found).epoch if key.startswith("container") else msgspec.json.decode(found.value)["next"]
        )

    def hammer(store: ClusterStore) -> None:
        left = 10
        while left:
            found = store.get(key)
            try:
                store.put(key, value(count_of(found) + 1), None if found is None else found.version)
            except VersionConflict:
                continue
            left -= 1

    stores = [open_store() for _ in range(3)]
    with ThreadPoolExecutor(6) as pool:
        for each in [pool.submit(hammer, stores[number % 3]) for number in range(6)]:
            each.result()
    assert count_of(stores[0].get(key)) == 60
