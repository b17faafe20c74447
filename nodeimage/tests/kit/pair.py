"""Two nodes in one loop, each of which leads a container; they talk over loopback, and share one SQLite store."""

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from msgspec import structs

from headrace.base.errors import KafkaError
from headrace.base.ids import ContainerId, Epoch
from headrace.catalog.rows import PartitionletRow
from headrace.container.leader import Leader
from headrace.container.local_replica import LocalReplica
from headrace.node import Node
from headrace.node.options import Options
from headrace.node.parts import NodeParts
from headrace.partitions.cluster_layout import NodeSettings
from headrace.partitions.partition import Partition
from headrace.partitions.topics import Topic
from headrace.store import container_records
from headrace.store.records import ContainerRecord
from headrace.store.sqlite import SqliteStore
from headrace.wire.batch import RecordIn, build_batch, iter_records, read_batch


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(100):
        while not holds():  # noqa: ASYNC110  # the conditions are of several nodes
            await asyncio.sleep(0.005)


class Committed:
    def __init__(self) -> None:
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def committed(self) -> None:
        self.future.set_result(None)

    def lost(self) -> None:
        self.future.set_exception(AssertionError("the node ceased to lead"))


class Pair:
    """Two nodes, each of which leads a container."""

    def __init__(self, first: Node, second: Node) -> None:
        self.nodes = (first, second)
        self.first, self.second = first.parts, second.parts

    def led(self, broker: NodeParts) -> Leader:
        return next(each for each in broker.containers.values() if each.id != broker.maintenance.catalog_id)

    async def ready(self) -> "Pair":
        for broker in (self.first, self.second):
            await until(lambda broker=broker: any(each for each in broker.maintenance.open_containers()))  # type: ignore[misc]
        for broker in (self.first, self.second):
            await until(lambda broker=broker: len({each.leader for each in broker.cluster.open_data()}) == 2)  # type: ignore[misc]
        for node in self.nodes:  # from here on only tests move leaders
            await node.controller.close()
        return self

    async def topic(self, broker: NodeParts, name: str) -> Topic:
        async with asyncio.timeout(100):
            while True:
                (topic,) = await broker.topics.resolve([name])
                if isinstance(topic, Topic):
                    return topic
                await asyncio.sleep(0.005)

    async def partition(self, broker: NodeParts, name: str) -> Partition:
        """The partition at its leader, once that node knows it."""
        topic = await self.topic(broker, name)
        async with asyncio.timeout(100):
            while True:
                with contextlib.suppress(KafkaError):
                    partition = await broker.partitions.leader(topic, 0)
                    await broker.rolls.wait_for_roll(partition)
                    if not partition.left:
                        return partition
                await asyncio.sleep(0.005)

    async def create(self, name: str) -> Partition:
        """Create a topic whose partition the first node leads, with two records."""
        await self.first.topics.resolve([name], create=True)
        topic = await self.topic(self.first, name)
        opened = (await self.first.catalog.query(lambda reader: reader.chains.chain(topic.row.number)))[-1]
        leads = self.first if opened.container in self.first.containers else self.second
        partition = await self.partition(leads, name)
        if leads is self.second:
            await leads.rolls.roll(partition, to=self.led(self.first).id)
            partition = await self.partition(self.first, name)
        await append(partition, b"a", b"b")
        return partition

    async def hand_over(self, container: ContainerId, to: NodeParts) -> None:
        """Do as the controller does: another in-sync replica leads, in the next epoch."""
        node = self.nodes[0]
        await node.store(
            lambda store: container_records.change_container(
                store, container, lambda now: structs.replace(now, leader=to.node.node_id, epoch=Epoch(now.epoch + 1))
            )
        )
        node.view.refresh()
        await until(lambda: container in to.containers)

    @contextlib.asynccontextmanager
    async def follows_nothing(self, container: ContainerId) -> AsyncIterator[tuple[NodeParts, LocalReplica]]:
        """The follower of a container gets nothing more, and leaves the in-sync set. Yields its node and replica."""
        leader, other = sorted(self.nodes, key=lambda node: container not in node.parts.containers)
        await until(lambda: _in_sync(leader.parts, container) == 2)
        replicas = other.parts.cluster.replicas
        replica = replicas.replica(container)
        assert replica is not None
        await until(lambda: replica.follower is not None)  # otherwise it would follow after it was stopped
        follow = replicas._follow

        async def follow_others(record: ContainerRecord, replica: LocalReplica) -> None:
            if record.container_id != container:
                await follow(record, replica)

        replicas._follow = follow_others  # type: ignore[method-assign]
        await until(lambda: replica.committed == leader.parts.containers[container].committed)
        await replica.stop()
        await until(lambda: _in_sync(leader.parts, container) == 1)
        yield other.parts, replica
        replicas._follow = follow  # type: ignore[method-assign]
        record = other.parts.cluster.record(container)
        if record is not None and record.leader != other.parts.node.node_id:
            await follow(record, replica)

    @contextlib.asynccontextmanager
    async def lagging(self, container: ContainerId) -> AsyncIterator[NodeParts]:
        """The follower of a container gets nothing more, and leaves the in-sync set; afterwards it leads, by an
        operator's choice (invariant 15): records that the other wrote meanwhile are lost. Yields the follower's node.
        """
        leader = next(node for node in self.nodes if container in node.parts.containers)
        async with self.follows_nothing(container) as (other, replica):
            yield other
            own = (other.node.node_id, uuid.UUID(replica.incarnation))
            await self.nodes[0].store(
                lambda store: container_records.change_container(
                    store,
                    container,
                    lambda now: structs.replace(
                        now,
                        leader=own[0],
                        epoch=Epoch(now.epoch + 1),
                        in_sync=(own,),
                        recovered=now.recovered + 1,
                        recovered_epoch=Epoch(now.epoch + 1),
                    ),
                )
            )
            for node in self.nodes:
                node.view.refresh()
            await until(lambda: container in other.containers and other.containers[container].serves)
            await until(lambda: container not in leader.parts.containers)
        # Its tables have commands that the log lost, until they are replaced.
        if container == leader.parts.maintenance.catalog_id:
            await until(lambda: _in_sync(leader.parts, container) == 2)
            await leader.parts.catalog.wait_applied(other.catalog.applied)

    async def chain(self, broker: NodeParts, name: str) -> list[PartitionletRow]:
        topic = await self.topic(broker, name)
        return await broker.catalog.query(lambda reader: reader.chains.chain(topic.row.number))


def _in_sync(broker: NodeParts, container: ContainerId) -> int:
    record = broker.cluster.record(container)
    return 0 if record is None else len(record.in_sync)


async def append(partition: Partition, *values: bytes, producer: int = -1, sequence: int = -1) -> None:
    now = int(time.time() * 1000)
    stamped: list[RecordIn] = [(now, None, value, []) for value in values]
    epoch = 0 if producer >= 0 else -1
    batch = build_batch(stamped, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)
    if not partition.container.has_room(len(batch)):
        await partition.container.make_room()
    waiting = Committed()
    partition.append(memoryview(batch), read_batch(batch), append_time=None, now=now, request=waiting)
    await waiting.future


async def read(broker: NodeParts, partition: Partition, offset: int = 0) -> list[tuple[int, bytes]]:
    """All records from `offset` on, as a fetch finds them."""
    found: list[tuple[int, bytes]] = []
    while offset < partition.high_watermark:
        answer = await broker.fetch_planner.read_all(
            [(("", 0), broker.fetch_planner.locate(partition, offset), 1 << 20)], 1 << 20
        )
        batches = answer[("", 0)]
        assert isinstance(batches, list), batches
        assert batches, f"nothing at {offset}"
        for batch in batches:
            found += [(each.offset, bytes(each.value or b"")) for each in iter_records(memoryview(batch))]
        offset = found[-1][0] + 1
    return found


def options(folder: Path, number: int, nodes: int) -> Options:
    return Options(
        data=folder / f"node-{number}",
        store=folder / "cluster.sqlite",
        host="127.0.0.1",
        port=0,
        ready_file=None,
        settings=NodeSettings(chunk_bytes=1 << 20, disk_reserve=0, fsync=False),
        first_nodes=nodes,
        failure_host=f"host-{number}",
    )


Start = Callable[[int], Awaitable[Pair]]


@pytest.fixture
async def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Start]:
    """Starts two nodes, with replicas on both, or each container on one of them."""
    running: list[Node] = []
    monkeypatch.setattr("headrace.node.containers.HAND_OVER_S", 0.0)  # no other node is left to lead

    async def started(replicas: int) -> Pair:
        SqliteStore(tmp_path / "cluster.sqlite").close()
        nodes = [Node(options(tmp_path, number, replicas)) for number in (1, 2)]
        running.extend(nodes)
        if replicas == 2:
            await asyncio.gather(*(node.start() for node in nodes))
        else:
            for node in nodes:
                await node.start()
        return await Pair(*nodes).ready()

    yield started
    for node in reversed(running):
        await node.stop()
