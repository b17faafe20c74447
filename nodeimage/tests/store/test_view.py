import asyncio
import threading
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from structlog.testing import capture_logs

from headrace.base.ids import ContainerId, Epoch, NodeId
from headrace.base.levels import NEWEST
from headrace.store import container_records, records
from headrace.store.compare_and_set import change
from headrace.store.protocol import Changes, ClusterStore, StoreUnavailable, Versioned
from headrace.store.records import DELETED_KEY, ContainerRecord, DeletedContainers, LeaseRecord, VolumeRecord
from headrace.store.sqlite import SqliteStore
from headrace.store.view import Changed, ClusterView
from kit.store_files import checkpointed, overwrite


@pytest.fixture
async def view(store: ClusterStore) -> AsyncIterator[ClusterView]:
    view = ClusterView(store)
    yield view
    await view.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(100):
        while not condition():  # noqa: ASYNC110  # the conditions are of other threads
            await asyncio.sleep(0.005)


def register(store: ClusterStore) -> records.NodeRecord:
    return records.register_node(
        store,
        node_id=records.take_node_id(store),
        new=True,
        format=uuid.uuid4(),
        run=uuid.uuid4(),
        host="127.0.0.1",
        port=1,
        peer_port=2,
    )


async def test_a_view_starts_with_all_that_there_is(store: ClusterStore, view: ClusterView) -> None:
    cluster = records.ensure_cluster(store)
    node = register(store)
    container = container_records.create_container(store, kind="data", leader=node)
    volume = records.ensure_volume(store, VolumeRecord("default"))
    records.put_lease(store, LeaseRecord(node.node_id, node.run, 1), None)
    seen: list[Changed] = []
    view.on_change(seen.append)
    await view.start()
    assert view.cluster == cluster
    assert view.nodes == {node.node_id: node}
    assert view.containers == {container.container_id: container}
    assert (
        dict(container_records.list_containers_versioned(store)[:1])[container] == view.versions[container.container_id]
    )
    assert view.volumes == {"default": volume}
    assert view.lease == LeaseRecord(node.node_id, node.run, 1)
    is_founded_here = isinstance(store, SqliteStore)  # elsewhere the level is raised as in any cluster
    assert view.features.level == (NEWEST if is_founded_here else 0)
    assert view.reachable_at > 0
    assert seen == [
        Changed(
            {container.container_id}, {node.node_id}, {"default"}, lease=True, cluster=True, features=is_founded_here
        )
    ]


async def test_a_container_is_deleted_by_its_record_or_by_its_id_and_not_for_want_of_both(
    store: ClusterStore, view: ClusterView
) -> None:
    node = register(store)
    lives, goes = (container_records.create_container(store, kind="data", leader=node).container_id for _ in range(2))
    await view.start()
    assert [view.is_deleted(each) for each in (lives, goes, ContainerId(77))] == [False, False, False]
    container_records.change_container(store, goes, lambda present: structs.replace(present, state="deleted"))
    await until(lambda: view.is_deleted(goes))
    never_seen = ContainerId(78)
    told: set[ContainerId] = set()
    view.on_change(lambda changed: told.update(changed.containers))
    container_records.forget_deleted(store, [goes])
    await until(lambda: goes not in view.containers)
    change(store, DELETED_KEY, DeletedContainers, lambda now: (now or DeletedContainers()).and_these([never_seen]))
    await until(lambda: {goes, never_seen} <= told)
    assert view.is_deleted(never_seen), "it came and went while the store was away"
    assert [view.is_deleted(each) for each in (lives, goes, ContainerId(77))] == [False, True, False]


async def test_changes_of_others_are_told_and_shown(
    store: ClusterStore, view: ClusterView, open_store: Callable[[], ClusterStore]
) -> None:
    await view.start()
    seen: list[Changed] = []
    view.on_change(seen.append)
    other = open_store()
    node = register(other)
    await until(lambda: node.node_id in view.nodes)
    records.remove_node(other, node.node_id)
    await until(lambda: not view.nodes)
    records.set_balance(other, paused=True)
    await until(lambda: view.balance.paused)
    assert [each.nodes for each in seen[:1]] == [{node.node_id}]
    assert seen[-1].balance


async def test_ones_own_put_is_shown_at_once_and_never_taken_back_by_an_older_look(
    store: ClusterStore, view: ClusterView
) -> None:
    made = container_records.create_container(store, kind="data", leader=register(store))
    await view.start()
    container = made.container_id
    old = view.versions[container]
    closed = msgspec.structs.replace(made, state="closed")
    version = container_records.put_container(store, closed, old)
    view.put_seen(closed, version)
    assert view.containers[container].state == "closed"
    view.put_seen(made, old)
    assert view.containers[container].state == "closed"
    looked_at = view.reachable_at
    view.refresh()
    await until(lambda: view.reachable_at > looked_at)
    assert (view.containers[container], view.versions[container]) == (closed, version)


class Slow:
    """A store whose watch waits forever, but reads normally when it must not wait."""

    def __init__(self, store: ClusterStore) -> None:
        self._store = store
        self.ended = threading.Event()
        self.away = False

    def watch(self, prefix: str, *, since: int, timeout_s: float) -> Changes:
        if self.away:
            raise StoreUnavailable("away")
        if timeout_s:
            self.ended.wait(60)
        return self._store.watch(prefix, since=since, timeout_s=0)

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)


async def test_a_refresh_does_not_wait_for_the_watch(store: ClusterStore) -> None:
    slow = Slow(store)
    view = ClusterView(slow)  # type: ignore[arg-type]  # the rest of the protocol is passed on
    await view.start()
    node = register(store)
    view.refresh()
    await until(lambda: node.node_id in view.nodes)
    await view.close()
    slow.ended.set()


async def test_a_view_waits_for_a_store_that_is_away_and_stays_when_it_goes(store: ClusterStore) -> None:
    node = register(store)
    slow = Slow(store)
    slow.away = True
    slow.ended.set()
    view = ClusterView(slow)  # type: ignore[arg-type]
    starting = asyncio.create_task(view.start())
    slow.away = False
    await asyncio.wait_for(starting, 20)
    slow.away = True
    reached = view.reachable_at
    assert view.nodes == {node.node_id: node}
    slow.away = False
    await until(lambda: view.reachable_at > reached)
    await view.close()


async def test_a_view_goes_on_when_a_file_that_was_overwritten_is_put_back(
    tmp_path: Path, sqlite_store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.store.view.AGAIN_S", 0.01)
    view = ClusterView(sqlite_store)
    await view.start()
    path = tmp_path / "cluster.sqlite"
    kept = await asyncio.to_thread(checkpointed, path)
    with capture_logs() as logs:
        overwrite(path, b"this is no database".ljust(len(kept)), sqlite_store)
        view.refresh()
        await until(lambda: any("does not answer" in each["event"] for each in logs))
        overwrite(path, kept, sqlite_store)
        await until(lambda: any("answers again" in each["event"] for each in logs))
    node = register(sqlite_store)
    await until(lambda: node.node_id in view.nodes)
    records.remove_node(sqlite_store, node.node_id)
    view.refresh()
    await until(lambda: not view.nodes)
    await view.close()


async def test_a_file_that_was_set_back_to_an_old_copy_is_shown_as_it_is_now(
    tmp_path: Path, sqlite_store: SqliteStore
) -> None:
    view = ClusterView(sqlite_store)
    node, gone = register(sqlite_store), register(sqlite_store)
    container = container_records.create_container(sqlite_store, kind="data", leader=node)
    await view.start()
    assert view.fell_at == float("-inf")
    path = tmp_path / "cluster.sqlite"
    copy = await asyncio.to_thread(checkpointed, path)
    records.remove_node(sqlite_store, gone.node_id)
    later = register(sqlite_store)
    changed = container_records.change_container(
        sqlite_store, container.container_id, lambda now: structs.replace(now, epoch=Epoch(7))
    )
    await until(lambda: later.node_id in view.nodes and view.containers[container.container_id] == changed)
    await asyncio.to_thread(checkpointed, path)
    overwrite(path, copy, sqlite_store)
    view.refresh()
    await until(lambda: view.containers[container.container_id] == container)
    assert view.nodes.keys() == {node.node_id, gone.node_id}
    assert view.fell_at > 0
    after = register(sqlite_store)
    await until(lambda: after.node_id in view.nodes)
    await view.close()


async def test_a_store_that_went_on_past_what_was_seen_before_anybody_looked_is_known_by_its_older_versions(
    sqlite_store: ClusterStore,
) -> None:
    """As seen by a process that was suspended, or cut off, meanwhile."""
    view = ClusterView(sqlite_store)
    node = register(sqlite_store)
    container = container_records.create_container(sqlite_store, kind="data", leader=node)
    for _ in range(9):
        container_records.take_container_id(sqlite_store, "data")
    await view.start()
    changed = container_records.change_container(
        sqlite_store, container.container_id, lambda now: structs.replace(now, epoch=Epoch(7))
    )
    await until(lambda: view.containers[container.container_id] == changed)
    version, revision = view.versions[container.container_id], view.revision
    whole = sqlite_store.watch("", since=0, timeout_s=0)
    older = [
        replace(each, value=msgspec.json.encode(container), version=version - 5)
        if each.key.startswith("container/")
        else each
        for each in whole.records
    ]
    put_meanwhile = replace(whole, revision=version - 1, records=older)
    view._take(put_meanwhile, threading.Event())
    assert view.containers[container.container_id] == changed, "it was put after that look"
    view._take(replace(whole, revision=revision + 20, records=older), threading.Event())
    assert view.containers[container.container_id] == container
    assert view.fell_at > 0
    await view.close()


async def seen_whole(store: ClusterStore) -> tuple[ClusterView, ContainerRecord, Changes]:
    """A view of a store with a container, which some revisions have followed, and the store's complete content."""
    view = ClusterView(store)
    container = container_records.create_container(store, kind="data", leader=register(store))
    for _ in range(9):
        container_records.take_container_id(store, "data")
    await view.start()
    whole = store.watch("", since=0, timeout_s=0)
    await until(lambda: view.revision == whole.revision)
    return view, container, whole


@pytest.mark.parametrize("written_since", [0, 3])
async def test_a_removal_that_a_store_was_set_back_before_is_seen_whatever_was_written_since(
    sqlite_store: ClusterStore, written_since: int
) -> None:
    """A process that was cut off meanwhile asks for changes after a revision that the store has reached again."""
    view, record, whole = await seen_whole(sqlite_store)
    container = record.container_id
    without = [each for each in whole.records if each.key != f"container/{container}"]
    earlier = replace(whole, revision=whole.revision - 1, records=without)
    view._take(earlier, threading.Event())
    assert container in view.containers, "it was made after that look"
    view._take(replace(whole, revision=whole.revision + written_since, records=without), threading.Event())
    assert container not in view.containers
    await view.close()


async def test_a_record_of_another_line_is_seen_though_its_version_is_one_of_before(sqlite_store: ClusterStore) -> None:
    view, container, whole = await seen_whole(sqlite_store)
    other = structs.replace(container, container_id=ContainerId(77))
    made = Versioned("container/77", msgspec.json.encode(other), whole.revision - 2)
    view._take(replace(whole, revision=whole.revision + 5, records=[*whole.records, made]), threading.Event())
    assert view.containers[ContainerId(77)] == other
    assert view.fell_at > 0
    await view.close()


async def test_a_view_behind_the_copy_that_a_store_was_set_back_to_looks_at_everything(
    tmp_path: Path, sqlite_store: SqliteStore
) -> None:
    """Its revision proves nothing then, although it is no higher than the store's."""
    view = ClusterView(sqlite_store)
    node = register(sqlite_store)
    container = container_records.create_container(sqlite_store, kind="data", leader=node).container_id
    other = container_records.create_container(sqlite_store, kind="data", leader=node).container_id
    await view.start()
    path = tmp_path / "cluster.sqlite"
    copy = await asyncio.to_thread(checkpointed, path)
    container_records.change_container(sqlite_store, container, lambda now: structs.replace(now, state="deleted"))
    taken = container_records.take_container_id(sqlite_store, "data")
    await until(lambda: view.is_deleted(container))
    await until(lambda: view.highest["next/container"] == taken + 1)
    revision = view.revision
    await asyncio.to_thread(checkpointed, path)
    overwrite(path, copy, sqlite_store)
    fallen = sqlite_store.watch("", since=revision, timeout_s=0)
    assert (fallen.generation, fallen.whole) == (1, True)
    view._take(replace(fallen, whole=False, records=[]), threading.Event())
    assert view.is_deleted(container), "it is not known yet what the copy holds"
    await until(lambda: not view.is_deleted(container))
    assert view.undeleted == {container}
    assert not view.is_deleted(other)
    assert view.counters["next/container"] < view.highest["next/container"] == taken + 1
    await view.close()


async def test_a_record_that_cannot_be_read_is_left_aside(sqlite_store: ClusterStore) -> None:
    sqlite_store.put("container/7", b"{", None)
    node = register(sqlite_store)
    view = ClusterView(sqlite_store)
    await view.start()
    assert view.containers == {}
    assert view.nodes == {node.node_id: node}
    await view.close()


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_no_order_of_looks_and_own_puts_shows_an_old_state(data: st.DataObject) -> None:
    """Reads begin and end in any order; what is shown of a container is never older than what was shown before."""

    async def run() -> None:
        store = SqliteStore(Path(":memory:"))
        view = ClusterView(store)
        view._loop = asyncio.get_running_loop()
        shown: dict[ContainerId, int] = {}
        under_way: list[Changes] = []
        latest: dict[ContainerId, tuple[ContainerRecord, int]] = {}
        for _ in range(data.draw(st.integers(1, 25))):
            match data.draw(st.sampled_from(["put", "own", "look", "take", "other"])):
                case "put" | "own" as how:
                    container = ContainerId(data.draw(st.integers(1, 2)))
                    record, version = latest.get(container, (None, None))
                    if record is None:
                        member = (NodeId(1), uuid.UUID(int=1))
                        record = ContainerRecord(container, "data", NodeId(1), 0, (member,), (NodeId(1),))  # type: ignore[arg-type]
                    record = msgspec.structs.replace(record, epoch=record.epoch + 1)
                    latest[container] = (record, container_records.put_container(store, record, version))
                    if how == "own":
                        view.put_seen(*latest[container])
                case "other":
                    records.ensure_volume(store, VolumeRecord(f"v{view.revision}"))
                case "look":
                    under_way.append(store.watch("", since=view.revision, timeout_s=0))
                case "take" if under_way:
                    view._take(under_way.pop(data.draw(st.integers(0, len(under_way) - 1))), threading.Event())
            for container, version in view.versions.items():
                assert version >= shown.get(container, 0)
                shown[container] = version
            assert shown.keys() == view.versions.keys()
        view._take(store.watch("", since=view.revision, timeout_s=0), threading.Event())
        assert view.containers == {container: record for container, (record, _) in latest.items()}
        store.close()

    asyncio.run(run())
