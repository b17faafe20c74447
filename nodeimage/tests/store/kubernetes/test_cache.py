from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.store.kubernetes import cache as cache_module
from headrace.store.kubernetes.cache import Cache
from headrace.store.kubernetes.objects import CONTAINERS, NODES, Object
from headrace.store.protocol import Versioned


def at(version: int, name: str = "c-1") -> Object:
    return {"metadata": {"name": name, "resourceVersion": str(version), "managedFields": ["much"]}}


def held(version: int, key: str = "container/1") -> list[Versioned]:
    return [Versioned(key, str(version).encode(), version)]


def test_an_older_state_changes_nothing() -> None:
    cache = Cache()
    assert cache.take(CONTAINERS, at(5), held(5))
    assert not cache.take(CONTAINERS, at(5), held(5))
    assert not cache.take(CONTAINERS, at(4), held(4))
    assert cache.changes("", 0).records == held(5)


def test_what_is_gone_is_not_back_by_a_late_answer_but_may_be_made_again() -> None:
    cache = Cache()
    cache.take(CONTAINERS, at(5), held(5))
    since = cache.revision
    assert cache.take(CONTAINERS, at(7), [], deleted=True)
    assert not cache.take(CONTAINERS, at(6), held(6))
    assert cache.changes("", since).removed == {"container/1": 7}
    assert cache.take(CONTAINERS, at(8), held(8))
    assert cache.changes("", since).records == held(8)
    assert cache.changes("", since).removed == {}


def test_a_list_removes_what_was_older_and_leaves_what_was_written_since() -> None:
    cache = Cache()
    cache.take(CONTAINERS, at(5, "c-1"), held(5))
    cache.take(CONTAINERS, at(9, "c-2"), held(9, "container/2"))
    cache.take(NODES, at(4, "c-1"), held(4, "node/1"))
    assert cache.only(CONTAINERS, [], 8)
    assert [each.key for each in cache.changes("", 0).records] == ["container/2", "node/1"]
    assert cache.changes("", 0).removed == {"container/1": 8}
    assert not cache.only(CONTAINERS, ["c-2"], 10)


def test_the_highest_version_is_of_a_kind_as_kinds_may_be_in_etcds_of_their_own() -> None:
    cache = Cache()
    cache.take(CONTAINERS, at(900), held(900))
    cache.take(NODES, at(5, "n-1"), held(5, "node/1"))
    cache.take(NODES, at(4, "n-1"), held(4, "node/1"))
    assert cache.highest == {CONTAINERS.kind: 900, NODES.kind: 5}


def test_versions_are_known_also_of_what_is_gone() -> None:
    cache = Cache()
    cache.take(CONTAINERS, at(5, "c-1"), held(5))
    cache.take(CONTAINERS, at(6, "c-2"), held(6, "container/2"))
    cache.take(CONTAINERS, at(7, "c-3"), held(7, "container/3"))
    cache.take(NODES, at(9, "c-1"), held(9, "node/1"))
    cache.take(CONTAINERS, at(8, "c-1"), [], deleted=True)
    cache.only(CONTAINERS, ["c-3"], 12)
    assert cache.versions(CONTAINERS) == {"c-1": 8, "c-2": 12, "c-3": 7}


def test_records_that_share_an_object_come_and_go_with_it() -> None:
    cache = Cache()
    cache.take(NODES, at(5), [*held(5, "volume/a"), *held(5, "volume/b")])
    since = cache.revision
    cache.take(NODES, at(6), held(6, "volume/b"))
    changes = cache.changes("volume/", since)
    assert (changes.records, changes.removed) == (held(6, "volume/b"), {"volume/a": 6})


def test_what_servers_keep_for_themselves_is_not_kept() -> None:
    cache = Cache()
    cache.take(CONTAINERS, at(5), held(5))
    kept = cache._objects["StorageContainer", "c-1"]
    assert (kept["kind"], "managedFields" in kept["metadata"]) == ("StorageContainer", False)


def test_who_asks_from_before_forgotten_removals_gets_everything(monkeypatch: Any) -> None:
    monkeypatch.setattr(cache_module, "FORGET", 2)
    cache = Cache()
    cache.take(NODES, at(1, "kept"), held(1, "node/1"))
    since = cache.revision
    for number in range(2, 8):
        cache.take(CONTAINERS, at(2 * number, str(number)), held(2 * number, f"container/{number}"))
        cache.take(CONTAINERS, at(2 * number + 1, str(number)), [], deleted=True)
    assert cache.changes("", since).whole
    assert [each.key for each in cache.changes("", since).records] == ["node/1"]
    assert not cache.changes("", cache.revision - 1).whole
    assert len(cache._versions) <= 1 + 2


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_no_order_of_answers_events_and_lists_shows_an_old_state(data: st.DataObject) -> None:
    """Three objects are created and removed; the observations arrive in any order, repeatedly, and from several
    sources."""
    there: dict[str, int] = {}
    states: list[tuple[str, int, bool]] = []
    lists: list[tuple[dict[str, int], int]] = [({}, 0)]
    for version in range(1, 1 + data.draw(st.integers(1, 12))):
        name = data.draw(st.sampled_from("abc"))
        if name in there and data.draw(st.booleans()):
            del there[name]
            states.append((name, version, True))
        else:
            there[name] = version
            states.append((name, version, False))
        lists.append((dict(there), version))
    cache = Cache()
    shown: dict[str, int] = {}
    seen: dict[str, int] = {}
    since = 0

    def look() -> None:
        nonlocal since
        changes = cache.changes("", since)
        since = changes.revision
        for key, gone in changes.removed.items():
            assert gone >= seen.get(key, 0)
            seen[key] = gone
            shown.pop(key, None)
        for each in changes.records:
            assert each.version >= seen.get(each.key, 0)
            shown[each.key] = seen[each.key] = each.version

    def listed(found: dict[str, int], at_version: int) -> None:
        for name, each in found.items():
            cache.take(CONTAINERS, at(each, name), held(each, name))
        cache.only(CONTAINERS, found, at_version)

    for _ in range(data.draw(st.integers(0, 30))):
        match data.draw(st.sampled_from(["state", "list", "look"])):
            case "state":
                name, each, deleted = data.draw(st.sampled_from(states))
                cache.take(CONTAINERS, at(each, name), [] if deleted else held(each, name), deleted=deleted)
            case "list":
                listed(*data.draw(st.sampled_from(lists)))
            case "look":
                look()
    listed(*lists[-1])
    look()
    assert shown == there
