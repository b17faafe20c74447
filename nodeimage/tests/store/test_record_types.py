"""Values of records: which are refused, and how those of other versions are read."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import CorruptLog, HeadraceError
from headrace.base.ids import ContainerId
from headrace.store.container_records import (
    create_container,
    get_container,
)
from headrace.store.protocol import ClusterStore
from headrace.store.records import (
    DeletedContainers,
    VolumeRecord,
    change_volume,
    check_volume,
    ensure_volume,
    volumes,
)
from kit.registered import register


@pytest.mark.parametrize(
    ("volume", "why"),
    [
        (VolumeRecord("v", replicas=2, min_in_sync=3), "the number of replicas"),
        (VolumeRecord("v", replicas=0, min_in_sync=0), "replicas is 0"),
        (VolumeRecord("v", replicas=10), "replicas is 10"),
        (VolumeRecord("v", min_in_sync=0), "min_in_sync is 0"),
        (VolumeRecord("v", spread="maybe"), "'maybe'"),
        (VolumeRecord("v", durability="hope"), "'hope'"),
        (VolumeRecord("v", size_limit=-1), "size_limit is -1"),
        (VolumeRecord("v", zones=("",)), "zone"),
        (VolumeRecord("a/b"), "name"),
    ],
)
def test_a_volume_that_cannot_be_kept_to_is_refused_with_one_line(
    store: ClusterStore, volume: VolumeRecord, why: str
) -> None:
    with pytest.raises(HeadraceError, match=why) as caught:
        check_volume(volume)
    assert "\n" not in str(caught.value)
    with pytest.raises(HeadraceError, match=why):
        ensure_volume(store, volume)
    with pytest.raises(HeadraceError, match=why):
        change_volume(store, "v", lambda _: volume)
    assert volumes(store) == []


def test_records_keep_out_of_the_way_of_fields_from_later_versions(store: ClusterStore) -> None:
    node = register(store)
    container = create_container(store, kind="data", leader=node)
    later = msgspec.to_builtins(container) | {"colour": "blue"}
    key = f"container/{container.container_id}"
    found = store.get(key)
    assert found is not None
    store.put(key, msgspec.json.encode(later), found.version)
    assert get_container(store, container.container_id) == container


def test_a_record_that_cannot_be_read_is_named(sqlite_store: ClusterStore) -> None:
    sqlite_store.put("container/5", b"{", None)
    with pytest.raises(CorruptLog, match="container/5"):
        get_container(sqlite_store, ContainerId(5))


@given(st.lists(st.lists(st.integers(1, 60), max_size=8), max_size=12))
def test_ids_of_deleted_containers_are_kept_as_ranges(added: list[list[int]]) -> None:
    deleted, wanted = DeletedContainers(), set[int]()
    for ids in added:
        before, had = deleted, set(wanted)
        deleted = deleted.and_these(map(ContainerId, ids))
        wanted |= set(ids)
        assert {each for each in range(63) if ContainerId(each) in deleted} == wanted
        assert list(deleted.beyond(before)) == sorted(wanted - had)
        assert not list(before.beyond(deleted))
        assert len(deleted.ranges) == sum(each + 1 not in wanted for each in wanted), "one for each run of ids"
    assert msgspec.json.decode(msgspec.json.encode(deleted), type=DeletedContainers) == deleted
