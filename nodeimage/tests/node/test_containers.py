"""The containers of one node: led from its start, created, closed and deleted while it runs, and handed over at its
end."""

import asyncio
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
from msgspec import structs

from headrace.base.ids import ContainerId, NodeId
from headrace.node import containers as module
from headrace.node.changes import Changes
from headrace.node.containers import NodeContainers
from headrace.store import container_records, records
from headrace.store.protocol import ClusterStore, StoreUnavailable
from headrace.store.records import ContainerRecord, VolumeRecord
from headrace.store.sqlite import SqliteStore
from kit.registered import register

T = TypeVar("T")


class Leading:
    """A node over a real store. The test decides what it leads, and which nodes answer it."""

    def __init__(self, store: SqliteStore) -> None:
        self.store = store
        self.node = register(store)
        self.led: dict[ContainerId, Any] = {}
        self.heard: set[NodeId] = set()
        self.created: list[VolumeRecord] = []
        self.refreshed = 0
        self.steps: list[str] = []
        self.away = False
        self.changes = Changes()
        self.view: Any = SimpleNamespace(volumes={}, nodes={self.node.node_id: self.node}, refresh=self.refresh)
        controller: Any = SimpleNamespace(create=self.create, heard=lambda: self.heard)
        replicas: Any = SimpleNamespace(led=self.led)
        self.containers = NodeContainers(
            node=self.node,
            view=self.view,
            replicas=replicas,
            controller=controller,
            store=self.call,  # type: ignore[arg-type]  # of a class
            changes=self.changes,
            note_stop=lambda: self.steps.append("noted in the folder"),
        )

    def refresh(self) -> None:
        self.refreshed += 1

    async def call(self, function: Callable[[ClusterStore], T], /) -> T:
        if self.away:
            raise StoreUnavailable("away")
        result = function(self.store)
        self.steps.append("told the store")
        return result

    async def create(self, *, first: NodeId, volume: VolumeRecord) -> Any:
        assert first == self.node.node_id
        self.created.append(volume)
        return SimpleNamespace(container_id=ContainerId(7))

    def leads(self, number: int, *, in_sync: tuple[int, ...] = ()) -> Any:
        """Make the node lead a container from now on."""
        members = [SimpleNamespace(node=NodeId(each)) for each in (self.node.node_id, *in_sync)]
        container = SimpleNamespace(
            id=ContainerId(number),
            closing=False,
            handing_over=False,
            state=SimpleNamespace(in_sync=members),
        )
        self.led[container.id] = container
        self.changes.wake()
        return container

    def made(self, state: str = "open") -> ContainerId:
        """Create a container's record."""
        record = container_records.create_container(
            self.store, kind="data", members=[(self.node.node_id, uuid.uuid4())]
        )
        container_records.change_container(
            self.store, record.container_id, lambda present: structs.replace(present, state=state)
        )
        return record.container_id

    def state(self, container: ContainerId) -> str:
        found = container_records.get_container(self.store, container)
        assert found is not None
        return found.state


@pytest.fixture
def leading(tmp_path: Path) -> Iterator[Leading]:
    store = SqliteStore(tmp_path / "cluster.sqlite")
    records.ensure_cluster(store)
    yield Leading(store)
    store.close()


def record(number: int, leader: NodeId) -> ContainerRecord:
    made: Any = SimpleNamespace(container_id=ContainerId(number), leader=leader)
    return made  # type: ignore[no-any-return]


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_start_waits_for_a_container_and_until_its_own_are_led(leading: Leading) -> None:
    there: list[ContainerRecord] = []
    up = asyncio.create_task(leading.containers.taken_up(lambda: there))
    await turns()
    assert not up.done()
    there += [record(7, leading.node.node_id), record(8, NodeId(99))]
    leading.changes.wake()
    await turns()
    assert not up.done(), "it leads 7"
    leading.leads(7)
    await up


async def test_what_cannot_be_led_is_not_waited_for(leading: Leading, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LED_S", 0.0)
    await leading.containers.taken_up(lambda: [record(7, leading.node.node_id)])


async def test_a_new_container_is_of_the_volume_and_there_once_it_is_led(leading: Leading) -> None:
    leading.view.volumes = {"fast": VolumeRecord("fast", 3, 2)}
    new = asyncio.create_task(leading.containers.new("fast"))
    await turns()
    assert not new.done()
    made = leading.leads(7)
    assert await new is made
    assert leading.created == [VolumeRecord("fast", 3, 2)]
    assert leading.refreshed == 1


async def test_a_container_closes_in_the_store_before_it_does_here(leading: Leading) -> None:
    number = leading.made()
    container = leading.leads(number)
    leading.away = True
    with pytest.raises(StoreUnavailable):
        await leading.containers.close(container)
    assert not container.closing, "all others may close too while the store is away"
    leading.away = False
    await leading.containers.close(container)
    assert (container.closing, leading.state(number)) == (True, "closed")


async def test_what_is_deleted_stays_so_however_late_it_is_closed(leading: Leading) -> None:
    number = leading.made()
    container = leading.leads(number)
    await leading.containers.delete(container)
    await leading.containers.close(container)
    assert leading.state(number) == "deleted"


async def test_a_node_that_leads_alone_has_nothing_to_hand_over(leading: Leading) -> None:
    container = leading.leads(7)
    await leading.containers.hand_over()
    assert (leading.steps, container.handing_over) == ([], False)


async def test_it_says_that_it_stops_in_its_folder_first_and_waits_until_others_lead(leading: Leading) -> None:
    other = register(leading.store)
    leading.view.nodes = {**leading.view.nodes, other.node_id: other}
    leading.heard = {other.node_id}
    shared, alone = leading.leads(7, in_sync=(other.node_id,)), leading.leads(8)
    over = asyncio.create_task(leading.containers.hand_over())
    await turns()
    assert leading.steps == ["noted in the folder", "told the store"]
    assert (shared.handing_over, alone.handing_over) == (True, False)
    stopping = records.get_node(leading.store, leading.node.node_id)
    assert stopping is not None
    assert stopping.stopping
    assert not over.done()
    del leading.led[shared.id]
    leading.changes.wake()
    await over


async def test_where_nobody_is_left_to_lead_it_does_not_wait(leading: Leading) -> None:
    other = register(leading.store)
    leading.view.nodes = {**leading.view.nodes, other.node_id: structs.replace(other, stopping=True)}
    leading.heard = {other.node_id}
    leading.leads(7, in_sync=(other.node_id,))
    async with asyncio.timeout(60):
        await leading.containers.hand_over()


async def test_a_store_that_is_away_keeps_no_node_from_stopping(leading: Leading) -> None:
    leading.leads(7, in_sync=(99,))
    leading.away = True
    await leading.containers.hand_over()
