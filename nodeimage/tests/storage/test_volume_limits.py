"""Volumes with a size limit: how much they hold over all nodes, which containers refuse records for it, and how they
accept records again once there is room."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.base.errors import Code, KafkaError
from headrace.base.ids import ContainerId, NodeId
from headrace.peer.messages import HeldBytes
from headrace.storage import volume_limits
from headrace.storage.volume_limits import VolumeLimits
from kit.storage import MIB, Running

CATALOG = ContainerId(1)
NewNode = Callable[..., Awaitable[Running]]
TOPIC = "/small:topic"
LIMIT = 300 << 10


class Cluster:
    """Two nodes: this one, and one that answers with the containers that it leads."""

    node_id = NodeId(1)

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.view = SimpleNamespace(volumes={}, containers={})
        self.replicas = SimpleNamespace(led={})
        self.on_disk: dict[int, int] = {}
        self.there: dict[int, int] | None = {}
        """None if the other node does not answer."""

        async def bytes_on_disk(runtime: object, replicas: object) -> dict[int, int]:
            return self.on_disk

        monkeypatch.setattr(volume_limits, "bytes_on_disk", bytes_on_disk)

    def nodes(self) -> list[Any]:
        return [SimpleNamespace(node_id=NodeId(1)), SimpleNamespace(node_id=NodeId(2))]

    async def ask(self, node: Any, message: object, *, timeout_s: float) -> tuple[Any, memoryview]:
        assert (node.node_id, message) == (2, HeldBytes())
        if self.there is None:
            raise KafkaError(code=7, message="it does not answer")  # type: ignore[arg-type]
        return SimpleNamespace(items=list(self.there.items())), memoryview(b"")

    def container(self, number: int, volume: str = "small", *, size: int = 0, unused: int = 0, led: bool = True) -> Any:
        record = SimpleNamespace(kind="catalog" if number == CATALOG else "data", state="open", volume=volume)
        self.view.containers[ContainerId(number)] = record
        container = SimpleNamespace(
            id=ContainerId(number), volume=volume, log=SimpleNamespace(unused_bytes=unused), refuses=""
        )
        if led:
            self.replicas.led[container.id] = container
            self.on_disk[number] = size
        return container

    def limits(self) -> VolumeLimits:
        runtime: Any = None
        cluster: Any = self
        return VolumeLimits(runtime=runtime, cluster=cluster, catalog_id=CATALOG)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(monkeypatch)


async def test_a_volume_holds_what_the_leaders_of_its_containers_do(cluster: Cluster) -> None:
    cluster.container(2, size=500, unused=100)
    cluster.container(3, led=False)
    cluster.container(4, "other", size=7)
    cluster.there = {3: 30}
    assert await cluster.limits().by_volume() == {"small": 430, "other": 7}


async def test_a_node_that_does_not_answer_counts_with_what_was_last_heard(cluster: Cluster) -> None:
    cluster.container(2, size=100)
    cluster.container(3, led=False)
    cluster.there = {3: 30}
    limits = cluster.limits()
    await limits.by_volume()
    cluster.there = None
    assert await limits.by_volume() == {"small": 130}
    cluster.view.containers[ContainerId(3)].state = "deleted"
    assert await limits.by_volume() == {"small": 100}


async def test_containers_of_a_volume_at_its_limit_refuse_records_until_there_is_room(cluster: Cluster) -> None:
    cluster.view.volumes = {"small": SimpleNamespace(size_limit=100), "other": SimpleNamespace(size_limit=0)}
    full = cluster.container(2, size=99)
    other = cluster.container(4, "other", size=10_000)
    limits = cluster.limits()
    await limits.step()
    assert not full.refuses
    cluster.on_disk[2] = 100
    await limits.step()
    assert full.refuses == "volume 'small' holds 100 bytes, and may hold 100"
    assert not other.refuses
    cluster.view.volumes["small"].size_limit = 200
    await limits.step()
    assert not full.refuses


async def test_the_catalog_is_never_refused(cluster: Cluster) -> None:
    cluster.view.volumes = {"small": SimpleNamespace(size_limit=1)}
    catalog = cluster.container(CATALOG, size=1000)
    await cluster.limits().step()
    assert not catalog.refuses


# --- room in a volume at its limit, on a node


async def filled(new_node: NewNode) -> Running:
    """A node whose only topic in a volume with a limit holds less than a chunk, but more than the volume may."""
    node = await new_node(chunk_bytes=4 * MIB)
    await node.call("admin", "volume.create", name="small", size_limit=LIMIT)
    await node.call("admin", "stream.create", path="/small", policy={"volume": "small"})
    await node.call("create", TOPIC, "/small:other")
    await node.call("put", "/small:other", b"small")
    for _ in range(4):
        await node.call("put", TOPIC, bytes(100_000))
    await node.parts.maintenance.pass_now()
    assert await produced(node) == Code.KAFKA_STORAGE_ERROR
    return node


def is_chunk_open(node: Running) -> bool:
    """Whether the first chunk of the volume's container is still open."""
    (container,) = [each for each in node.parts.containers.values() if each.volume == "small"]
    return container.log.chunks()[0].end is None


async def produced(node: Running) -> int:
    return int((await node.call("produce", "/small:other", [b"more"])).error)


async def takes_records(node: Running) -> bool:
    """Whether the node accepts records after some rounds of maintenance; it has two seconds, in which it learns of
    other limits."""
    for _ in range(40):
        await node.parts.maintenance.pass_now()
        if await produced(node) == 0:
            return True
        await asyncio.sleep(0.05)
    return False


async def test_room_is_made_though_little_is_dead_and_nothing_fills_the_chunk_in_which_it_is(new_node: NewNode) -> None:
    """While a volume refuses records, its open chunks do not grow."""
    node = await filled(new_node)
    await node.call("delete", TOPIC)
    assert await takes_records(node)
    assert [value for _, value in await node.call("read", "/small:other")] == [b"small", b"more"]


async def test_room_is_made_where_records_are_deleted(new_node: NewNode) -> None:
    node = await filled(new_node)
    await node.call("delete_records", TOPIC, 4)
    assert await takes_records(node)


async def test_all_that_a_chunk_has_makes_room_however_little_it_is(new_node: NewNode) -> None:
    node = await new_node()
    await node.call("admin", "volume.create", name="small", size_limit=8192)
    await node.call("admin", "stream.create", path="/small", policy={"volume": "small"})
    await node.call("create", TOPIC, "/small:other")
    await node.call("put", TOPIC, bytes(10_000))
    await node.parts.maintenance.pass_now()
    assert await produced(node) == Code.KAFKA_STORAGE_ERROR
    await node.call("delete", TOPIC)
    assert await takes_records(node)


async def test_room_is_made_of_what_was_dead_before_the_volume_came_to_its_limit(
    new_node: NewNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.storage.chunk_closing.EARLY_EVERY_S", 0.0)
    node = await filled(new_node)
    await node.call("admin", "volume.alter", name="small", size_limit=0)
    assert await takes_records(node)
    await node.call("put", "/small:other", bytes(800_000))
    await node.call("delete_records", TOPIC, 4)
    assert await takes_records(node)
    await node.parts.maintenance.pass_now()
    assert is_chunk_open(node), "so little is not worth a chunk, while records are taken"
    await node.call("admin", "volume.alter", name="small", size_limit=MIB)
    async with asyncio.timeout(10):  # the node learns of the limit a little later
        while is_chunk_open(node):
            await node.parts.maintenance.pass_now()
            await asyncio.sleep(0.02)
    assert await takes_records(node)


async def test_nothing_is_closed_early_where_little_is_dead(new_node: NewNode) -> None:
    node = await filled(new_node)
    assert not await takes_records(node)
    assert is_chunk_open(node)


@pytest.mark.parametrize("limit", [None, 4 * LIMIT])
async def test_a_higher_limit_makes_room(new_node: NewNode, limit: int | None) -> None:
    node = await filled(new_node)
    await node.call("admin", "volume.alter", name="small", size_limit=limit or 0)
    assert await takes_records(node)
