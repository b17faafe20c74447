"""The resources as last seen: the newer state is kept, and deleted resources do not come back."""

from typing import Any

import pytest

from headrace_operator import cache as module
from headrace_operator.cache import Cache, Key, News, key_of


def body(version: int, *, uid: str = "u", generation: int | None = 1, **fields: Any) -> dict[str, Any]:
    meta = {"name": "t", "namespace": "ns", "uid": uid, "resourceVersion": str(version), **fields}
    if generation is not None:
        meta["generation"] = generation
    return {"kind": "Topic", "metadata": meta, "status": {"version": version}}


KEY = Key("Topic", "ns", "t")


def shown(cache: Cache) -> int | None:
    found = cache.get(KEY)
    return None if found is None else int(found["metadata"]["resourceVersion"])


def test_the_newer_of_two_states_stays_whichever_came_first() -> None:
    cache = Cache()
    assert cache.take(body(5)) is News.CHANGED
    assert cache.take(body(9, generation=2)) is News.CHANGED
    assert cache.take(body(7, generation=3)) is News.NOTHING
    assert cache.take(body(9, generation=2)) is News.NOTHING
    assert shown(cache) == 9
    assert cache.take(body(10, generation=3)) is News.CHANGED, "versions are numbers, and no texts"


def test_a_change_of_status_alone_is_no_change_of_what_is_asked_for() -> None:
    cache = Cache()
    cache.take(body(1))
    assert cache.take(body(2)) is News.FIGURES
    assert cache.take(body(3, finalizers=["f"])) is News.CHANGED
    assert cache.take(body(4, finalizers=["f"], annotations={"a": "b"})) is News.CHANGED
    assert cache.take(body(5, generation=None)) is News.CHANGED, "a kind without generations tells nothing"


def test_what_was_deleted_does_not_come_back_though_a_list_under_way_has_it() -> None:
    cache = Cache()
    cache.take(body(5))
    assert cache.take(body(6), deleted=True) is News.CHANGED
    assert cache.take(body(5)) is News.NOTHING
    assert shown(cache) is None
    assert cache.take(body(1, uid="another")) is News.CHANGED, "one of that name was made again"
    assert cache.take(body(7), deleted=True) is News.NOTHING, "the former one has gone already"
    assert shown(cache) == 1


def test_what_only_seems_to_be_gone_comes_back() -> None:
    cache = Cache()
    cache.take(body(5))
    assert not cache.gone(KEY, uid="another")
    assert cache.gone(KEY, uid="u")
    assert not cache.gone(KEY)
    assert cache.take(body(5)) is News.CHANGED


def test_of_those_that_are_gone_the_last_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DEAD", 2)
    cache = Cache()
    for number in range(3):
        cache.take(body(1, uid=f"u{number}"), deleted=True)
    assert cache.take(body(1, uid="u2")) is News.NOTHING
    assert cache.take(body(1, uid="u0")) is News.CHANGED


def test_a_change_of_somebody_elses_that_comes_with_an_answer_to_a_write_of_ours_is_told() -> None:
    cache = Cache()
    learnt: list[Key] = []
    cache.on_learnt(lambda key, _: learnt.append(key))
    cache.learn(body(1))
    assert (learnt, shown(cache)) == ([], None), "it has gone meanwhile"
    cache.take(body(1))
    cache.learn(body(2, finalizers=["ours"]))
    assert (learnt, shown(cache)) == ([], 2)
    cache.learn(body(3, generation=2))
    assert learnt == [KEY]


def test_kinds_are_counted_and_listed_without_what_only_the_api_server_needs() -> None:
    cache = Cache()
    cache.take(body(1, managedFields=[{"manager": "kubectl"}]))
    assert (cache.count("Topic"), cache.count("Stream")) == (1, 0)
    (kept,) = cache.all("Topic")
    assert "managedFields" not in kept["metadata"]
    assert key_of(kept) == KEY
