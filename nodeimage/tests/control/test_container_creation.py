"""A container's record is written after its replicas' folders are created."""

import asyncio
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from msgspec import structs

from headrace.base.errors import Code, KafkaError
from headrace.base.ids import ContainerId, NodeId
from headrace.control.container_creation import Begun, create
from headrace.peer.messages import Prepare, Prepared
from headrace.peer.session import PeerUnreachable
from headrace.store import container_records, records
from headrace.store.protocol import ClusterStore, StoreUnavailable, VersionConflict
from headrace.store.records import CATALOG_ID, NodeRecord, VolumeRecord
from headrace.store.sqlite import SqliteStore

T = TypeVar("T")

VOLUME = VolumeRecord("fast", 3, 2)


def node(number: int) -> NodeRecord:
    return NodeRecord(NodeId(number), uuid.uuid4(), uuid.uuid4(), "127.0.0.1", 1, peer_port=number)


class Store(SqliteStore):
    """A store that may refuse records of containers; it hands out ids as usual."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.refuses = False
        self.on_the_way: list[tuple[str, bytes]] = []
        """Puts that were refused, and may be stored late."""

    def put(self, key: str, value: bytes, expected_version: int | None) -> int:
        if self.refuses and key.startswith(records.CONTAINER_PREFIX):
            self.on_the_way.append((key, value))
            raise StoreUnavailable("exceeded quota")
        return super().put(key, value, expected_version)


class Folders:
    """Nodes that create folders, each reached at the port of its number; some do not answer."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.away: set[int] = set()
        self.formats: dict[tuple[int, ContainerId], str] = {}
        self.begun: Begun = {}

    async def call(self, address: tuple[str, int], message: Any, *, timeout_s: float) -> Any:
        assert isinstance(message, Prepare)
        present = container_records.get_container(self.store, message.container)
        assert present is None or self.store.on_the_way, "the folders come first"
        await asyncio.sleep(0)
        if address[1] in self.away:
            raise PeerUnreachable("away")
        format = self.formats.setdefault((address[1], message.container), str(uuid.uuid4()))
        return Prepared(format), memoryview(b"")

    async def store_call(self, function: Callable[[ClusterStore], T]) -> T:
        return function(self.store)

    async def make(self, *members: int, kind: str = "data") -> records.ContainerRecord:
        nodes = [node(each) for each in members]
        return await create(self.store_call, self, kind=kind, members=nodes, volume=VOLUME, begun=self.begun)


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[Folders]:
    store = Store(tmp_path / "cluster.sqlite")
    yield Folders(store)
    store.close()


async def test_the_record_names_the_incarnations_of_the_replicas(folders: Folders) -> None:
    made = await folders.make(3, 1, 2)
    assert made == container_records.get_container(folders.store, made.container_id)
    assert (made.leader, made.replicas, made.epoch) == (3, (3, 1, 2), 1)
    assert [str(format) for _, format in made.in_sync] == [
        folders.formats[each, made.container_id] for each in (3, 1, 2)
    ]
    assert (made.volume, made.min_in_sync, made.wanted) == ("fast", 2, 3)


async def test_members_that_do_not_answer_are_left_out(folders: Folders) -> None:
    folders.away = {1}
    made = await folders.make(3, 1, 2)
    assert made.replicas == (3, 2)
    assert made.wanted == 3


async def test_with_fewer_replicas_than_have_to_be_in_sync_there_is_no_container_yet(folders: Folders) -> None:
    """If a node loses its folder meanwhile, that must not have been the only replica that could lead (seed 121053)."""
    folders.away = {1, 2}
    with pytest.raises(KafkaError, match="1 of the 2 replicas"):
        await folders.make(3, 1, 2)
    assert container_records.containers(folders.store) == []
    made_there = dict(folders.formats)
    folders.away = {3}
    with pytest.raises(PeerUnreachable):
        await folders.make(3, 1, 2)
    folders.away = {1}
    made = await folders.make(3, 1, 2)
    assert made.replicas == (3, 2)
    assert made_there.items() <= folders.formats.items(), "it goes on with the folder that is there"
    assert {container for _, container in folders.formats} == {made.container_id}


async def test_a_container_whose_record_the_store_does_not_take_has_one_id_and_one_folder_a_node(
    folders: Folders,
) -> None:
    """Each attempt left an id, and a folder on each member."""
    folders.store.refuses = True
    for _ in range(10):
        with pytest.raises(StoreUnavailable):
            await folders.make(3, 1, 2)
    folders.away = {2}
    with pytest.raises(StoreUnavailable):
        await folders.make(3, 1, 2)
    assert len(folders.store.on_the_way) == 11
    assert len(folders.formats) == 3
    (taken,) = {container for _, container in folders.formats}
    folders.store.refuses = False
    folders.store.put(*folders.store.on_the_way[0], None)  # late
    made = await folders.make(3, 1)
    assert (made.container_id, made.replicas) == (taken, (3, 1, 2)), "the one that landed, with the members of then"
    assert container_records.containers(folders.store) == [made]
    assert not folders.begun
    assert (await folders.make(3, 1)).container_id != taken


async def test_what_two_could_not_make_at_a_time_is_made_by_the_next_two(folders: Folders) -> None:
    folders.store.refuses = True
    for _ in range(3):
        await asyncio.gather(folders.make(3, 1), folders.make(3, 1), return_exceptions=True)
    begun = {container for _, container in folders.formats}
    assert len(begun) == 2
    folders.store.refuses = False
    assert {(await folders.make(3, 1)).container_id for _ in range(2)} == begun


async def test_what_landed_late_and_was_closed_is_not_what_is_made(folders: Folders) -> None:
    folders.store.refuses = True
    with pytest.raises(StoreUnavailable):
        await folders.make(3, 1)
    folders.store.refuses = False
    folders.store.put(*folders.store.on_the_way[0], None)
    (landed,) = container_records.containers(folders.store)
    container_records.change_container(
        folders.store, landed.container_id, lambda present: structs.replace(present, state="closed")
    )
    with pytest.raises(VersionConflict):
        await folders.make(3, 1)
    assert (await folders.make(3, 1)).container_id != landed.container_id


async def test_as_many_replicas_as_there_are_nodes_are_enough(folders: Folders) -> None:
    assert (await folders.make(3)).replicas == (3,)


async def test_without_its_first_member_there_is_no_container(folders: Folders) -> None:
    folders.away = {3}
    with pytest.raises(PeerUnreachable):
        await folders.make(3, 1, 2)
    assert container_records.containers(folders.store) == []
    assert not folders.formats, "it is tried again and again, each time under another id"


async def test_a_refusal_of_the_first_member_is_passed_on(folders: Folders) -> None:
    async def refuse(*_: Any, **__: Any) -> Any:
        raise KafkaError(Code.KAFKA_STORAGE_ERROR, "no room")

    folders.call = refuse  # type: ignore[method-assign]
    with pytest.raises(KafkaError, match="no room"):
        await folders.make(1)


@pytest.mark.parametrize("member", [1, 2])
async def test_a_container_that_a_member_has_in_use_is_not_made_anew(folders: Folders, member: int) -> None:
    """Its record was lost with the store: recreated, it would be another container, at an epoch that its replicas
    refuse."""
    whole = folders.call

    async def call(address: tuple[str, int], message: Any, *, timeout_s: float) -> Any:
        if address[1] == member:
            raise KafkaError(Code.FENCED_LEADER_EPOCH, "its replica here has seen epoch 7")
        return await whole(address, message, timeout_s=timeout_s)

    folders.call = call  # type: ignore[method-assign]
    with pytest.raises(KafkaError, match="epoch 7"):
        await folders.make(1, 2, kind="catalog")
    assert records.containers(folders.store) == []


async def test_two_that_make_the_catalog_at_a_time_get_the_same_one(folders: Folders) -> None:
    one, other = await asyncio.gather(folders.make(1, 2, kind="catalog"), folders.make(2, 1, kind="catalog"))
    assert one == other
    assert container_records.containers(folders.store) == [one]
    assert one.container_id == CATALOG_ID
