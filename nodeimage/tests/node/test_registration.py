"""What a node has written to the cluster store is restored after the store was set back."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.base.ids import NodeId
from headrace.node import registration
from headrace.node.registration import FELL_S, Registration
from headrace.store import container_records, records
from headrace.store.protocol import ClusterStore, StoreUnavailable
from headrace.store.records import NodeRecord
from headrace.store.sqlite import SqliteStore


class Held:
    """One node's registration, over a store and a view that the test sets."""

    def __init__(self, store: ClusterStore, *, folder_level: int) -> None:
        self.store = store
        self.node = records.register_node(
            store,
            node_id=records.take_node_id(store),
            new=True,
            format=uuid.uuid4(),
            run=uuid.uuid4(),
            host="a",
            port=1,
        )
        self.view = SimpleNamespace(
            nodes={self.node.node_id: self.node},
            counters={},
            highest={},
            undeleted=set(),
            fell_at=float("-inf"),
            refresh=self.look_again,
        )
        self.errors: list[Exception] = []
        self.removed: list[str] = []
        self.registration = Registration(
            self.node,
            view=self.view,
            store=self.call,
            folder_level=lambda: folder_level,
            full=lambda: True,
            removed=self.removed.append,
        )

    async def call(self, change: Callable[[ClusterStore], Any]) -> Any:
        if self.errors:
            raise self.errors.pop()
        return change(self.store)

    def look_again(self) -> None:
        self.view.nodes = {each.node_id: each for each in records.nodes(self.store)}
        self.view.counters = dict(self.view.highest)

    def lose(self) -> None:
        """Delete the node's record from the store."""
        found = self.store.get(f"node/{self.node.node_id}")
        assert found is not None
        self.store.delete(found.key, found.version)
        self.look_again()

    async def finished(self) -> None:
        self.registration.look()
        async with asyncio.timeout(10):
            while self.registration._task is not None and not self.registration._task.done():  # noqa: ASYNC110
                await asyncio.sleep(0.001)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "AGAIN_S", 0.001)


@asynccontextmanager
async def holding(folder: Path, *, folder_level: int = 1) -> AsyncIterator[Held]:
    store = SqliteStore(folder / "cluster.sqlite")
    held = Held(store, folder_level=folder_level)
    yield held
    await held.registration.close()
    store.close()


async def test_a_registration_that_was_lost_stands_again_whatever_goes_wrong_at_first(tmp_path: Path) -> None:
    async with holding(tmp_path) as held:
        held.lose()
        held.errors = [ValueError("planted"), StoreUnavailable("planted")]
        await held.finished()
        found = records.get_node(held.store, held.node.node_id)
        assert found is not None
        assert (found.run, found.full) == (held.node.run, True)
        assert not held.removed


async def test_a_node_that_was_removed_ends(tmp_path: Path) -> None:
    async with holding(tmp_path) as held:
        records.remove_node(held.store, held.node.node_id)
        held.look_again()
        await held.finished()
        assert len(held.removed) == 1
        await held.finished()
        assert len(held.removed) == 1
        assert not records.nodes(held.store)


@pytest.mark.parametrize("fell", [True, False])
async def test_of_a_folder_of_level_0_a_missing_registration_is_lost_only_with_a_fall(
    tmp_path: Path, fell: bool
) -> None:
    async with holding(tmp_path, folder_level=0) as held:
        held.lose()
        held.view.fell_at = asyncio.get_running_loop().time() - (1 if fell else FELL_S + 1)
        await held.finished()
        assert bool(held.removed) is not fell
        assert bool(records.nodes(held.store)) is fell


async def test_an_older_run_in_its_place_gives_way_once(tmp_path: Path) -> None:
    """Two runs alive at once, as after copying a folder, do not replace each other forever."""
    async with holding(tmp_path) as held:
        own = held.node

        def taken(run: uuid.UUID) -> NodeRecord:
            return records.register_node(held.store, node_id=own.node_id, format=own.format, run=run, host="b", port=2)

        other = uuid.uuid4()
        for expected in (own.run, other):
            taken(other)
            held.look_again()
            await held.finished()
            found = records.get_node(held.store, own.node_id)
            assert found is not None
            assert found.run == expected


async def test_counters_and_deletions_that_fell_are_put_back(tmp_path: Path) -> None:
    async with holding(tmp_path) as held:
        gone = container_records.create_container(held.store, kind="data", leader=held.node).container_id
        held.view.highest = {"next/node": 50, "next/container": 60, "producer-ids": 7_000}
        held.view.undeleted = {gone}
        await held.finished()
        assert records.take_node_id(held.store) > NodeId(50)
        assert container_records.take_container_id(held.store, "data") > 60
        (record,) = container_records.containers(held.store)
        assert record.state == "deleted"
        assert not held.view.undeleted
