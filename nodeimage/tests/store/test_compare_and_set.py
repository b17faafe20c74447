"""Changes of a record that succeed whatever other processes change, and ids that are handed out only once."""

import threading

import pytest

from headrace.store import compare_and_set
from headrace.store.compare_and_set import change, had_id, read, skip_ids, take_id
from headrace.store.protocol import ClusterStore
from headrace.store.record_types import NextId

KEY = "next/thing"


def raised(present: NextId | None) -> NextId:
    return NextId((present or NextId()).next + 1)


def test_a_record_that_is_not_there_is_made_and_then_changed(store: ClusterStore) -> None:
    assert read(store, KEY, NextId) is None
    first = change(store, KEY, NextId, raised)
    assert read(store, KEY, NextId) == first
    assert change(store, KEY, NextId, raised).next == first.next + 1


def test_a_record_that_need_not_change_is_not_written_unless_it_is_to_be(store: ClusterStore) -> None:
    change(store, KEY, NextId, lambda _: NextId(5))
    before = store.get(KEY)
    change(store, KEY, NextId, lambda _: NextId(5))
    assert store.get(KEY) == before
    change(store, KEY, NextId, lambda _: NextId(5), anyway=True)
    after = store.get(KEY)
    assert before is not None
    assert after is not None
    assert after.version > before.version


def test_who_was_slower_decides_again_by_what_is_there_now(
    store: ClusterStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare_and_set, "_PAUSE_S", (0.0,))
    seen: list[int] = []

    def decide(present: NextId | None) -> NextId:
        found = (present or NextId()).next
        seen.append(found)
        if len(seen) < 4:  # another process is faster
            change(store, KEY, NextId, lambda _: NextId(100 * len(seen)))
        return NextId(found + 1)

    assert change(store, KEY, NextId, decide).next == 301
    assert seen == [NextId().next, 100, 200, 300]


def test_ids_are_given_once_from_many_threads(store: ClusterStore) -> None:
    taken: list[int] = []

    def take() -> None:
        taken.extend(take_id(store, "thing") for _ in range(5))

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(taken)) == 20
    assert sorted(taken) == list(range(min(taken), min(taken) + 20))


def test_an_id_is_not_below_what_the_taker_has_seen(store: ClusterStore) -> None:
    assert take_id(store, "thing", least=50) == 50
    assert take_id(store, "thing", least=10) == 51
    assert had_id(store, "thing", 51)
    assert not had_id(store, "thing", 52)
    assert not had_id(store, "other", 1)


def test_ids_that_are_skipped_are_not_given_and_count_as_had(store: ClusterStore) -> None:
    skip_ids(store, "thing", 500)
    assert had_id(store, "thing", 500)
    first = take_id(store, "thing")
    assert first > 500
    skip_ids(store, "thing", 3)
    assert take_id(store, "thing") == first + 1
