"""Several nodes' replicas in one loop: real logs, real peers on loopback, one SQLite store; nothing above them."""

import asyncio
import socket
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn, TypeVar

import pytest
from msgspec import structs

from headrace.base.errors import KafkaError, NewerFormat
from headrace.base.ids import ContainerId, Epoch, NodeId, Position
from headrace.container.leader import Leader
from headrace.container.local_replica import LocalReplica
from headrace.container.replica_events import ReplicaEvents
from headrace.container.replicas import Replicas
from headrace.container.snapshot_transfer import Receive, Snapshot
from headrace.container.writer_pool import WriterPool
from headrace.log.container_log import LogOptions
from headrace.node.catalog_log import commands_in
from headrace.peer.client import PeerClient
from headrace.peer.messages import Follow, Message, PairUp
from headrace.peer.reports import ReplicaState
from headrace.peer.server import Handler, PeerServer
from headrace.peer.session import Session
from headrace.store import container_records, records
from headrace.store.protocol import ClusterStore
from headrace.store.records import ContainerRecord, NodeRecord
from headrace.store.sqlite import SqliteStore
from headrace.store.view import ClusterView

T = TypeVar("T")


class PlentyOfRoom:
    def check(self, length: int, *, from_reserve: bool = False) -> None:
        pass

    def lacked(self) -> None:
        pass


class Unheard(ReplicaEvents):
    """A listener that ignores everything that happens to a replica."""


class TheOthers:
    """The node's knowledge of others, set by tests."""

    def __init__(self) -> None:
        self.answering: set[NodeId] = set()
        self.tell: list[ReplicaState] = []

    def gone(self) -> set[NodeId]:
        return set()

    def heard(self) -> set[NodeId]:
        return self.answering

    def told_of(self, container: ContainerId) -> list[ReplicaState]:
        return [state for state in self.tell if state.container == container]

    def look_at(self, node: NodeId) -> None:
        pass


class OneNode:
    """The parts of a node below the catalog; it is also the environment of its replicas."""

    def __init__(self, folder: Path, store: Path, *, number: int) -> None:
        self.folder = folder / "containers"
        self.number = number
        self._store_path = store
        self.formats = uuid.uuid5(uuid.NAMESPACE_OID, str(folder))
        self.node_format = str(self.formats)
        self.running = False
        self.chunk_bytes = 1 << 20
        self.handlers: dict[type[Message], Handler] = {}
        """The handlers of calls."""
        self.refused: list[str] = []
        """The reasons why a node ended because of data of a newer version."""
        self.others = TheOthers()
        self.receive: Receive | None = None
        self.snapshot: Snapshot | None = None
        """The snapshot of the catalog's tables, if the node has one."""
        self.on_made: Callable[[], None] = lambda: None
        """Called when the replicas exist, but are not started yet."""

    async def start(self) -> "OneNode":
        self.executor = ThreadPoolExecutor(3)
        self.writer_pool = WriterPool()
        self._store = await asyncio.to_thread(SqliteStore, self._store_path)
        cluster = await self.store(records.ensure_cluster)
        listening = socket.socket()
        listening.bind(("127.0.0.1", 0))
        listening.setblocking(False)
        self.record: NodeRecord = await self.store(
            lambda store: records.register_node(
                store,
                node_id=self._known_id(store) or records.take_node_id(store),
                new=True,
                format=self.formats,
                run=uuid.uuid4(),
                host="127.0.0.1",
                port=0,
                peer_port=listening.getsockname()[1],
            )
        )
        self.node_id = self.record.node_id
        self.view = ClusterView(self._store)
        await self.view.start()
        self.peers = PeerClient(
            cluster_id=cluster.cluster_id, secret=cluster.secret, node=self.node_id, run=self.record.run
        )
        self.replicas = Replicas(self, others=self.others, receive=self.receive, snapshot=self.snapshot)
        self.on_made()
        self.server = PeerServer(
            listening,
            cluster_id=cluster.cluster_id,
            secret=cluster.secret,
            node=self.node_id,
            run=self.record.run,
            handlers=self.handlers,
            streams={Follow: self.replicas.accept, PairUp: self.replicas.accept_pair},
        )
        await self.server.start()
        self.view.on_change(lambda changed: self.replicas.records_changed(changed.containers))
        self.replicas.start()
        self.running = True
        return self

    def _known_id(self, store: ClusterStore) -> NodeId | None:
        return next((node.node_id for node in records.nodes(store) if node.format == self.formats), None)

    async def stop(self) -> None:
        if self.running:
            self.running = False
            await self.server.close()
            await self.replicas.close()
            await self.peers.close()
            await self.view.close()
            self.executor.shutdown()
            self.writer_pool.close()
            self._store.close()

    # --- Environment

    def options(self, kind: str, volume: str) -> LogOptions:
        return LogOptions(chunk_bytes=self.chunk_bytes)

    def room(self, kind: str) -> PlentyOfRoom:
        return PlentyOfRoom()

    def fatal(self, reason: str) -> NoReturn:
        raise AssertionError(reason)

    def too_new(self, error: NewerFormat) -> None:
        self.refused.append(str(error))

    async def store(self, change: Callable[[ClusterStore], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.executor, change, self._store)

    async def connect(self, node: NodeRecord) -> Session:
        return await self.peers.open((node.host, node.peer_port), 2.0)


class Several:
    """Some nodes, and what a test does with them."""

    def __init__(self, folder: Path, count: int) -> None:
        self.nodes = [
            OneNode(folder / f"node-{number}", folder / "cluster.sqlite", number=number) for number in range(count)
        ]

    async def start(self) -> None:
        for node in self.nodes:
            await node.start()

    async def stop(self) -> None:
        for node in self.nodes:
            await node.stop()

    async def create(
        self, *, replicas: int, min_in_sync: int, kind: str = "data", container_id: ContainerId | None = None
    ) -> ContainerId:
        """Create a container that the first node leads."""
        first = self.nodes[0]
        taken = container_id or await first.store(lambda store: container_records.take_container_id(store, kind))
        members = [(node.node_id, uuid.UUID(await node.replicas.prepare(taken))) for node in self.nodes[:replicas]]
        await first.store(
            lambda store: container_records.create_container(
                store,
                kind=kind,
                members=members,
                container_id=taken,
                min_in_sync=min_in_sync,
                wanted=replicas,
            )
        )
        return taken

    async def led(self, container_id: ContainerId, *, by: OneNode | None = None) -> Leader:
        """The container's leader, once it serves."""

        def found() -> Leader | None:
            for node in [by] if by is not None else self.nodes:
                container = node.replicas.led.get(container_id) if node.running else None
                if container is not None and container.serves:
                    return container
            return None

        return await until(found)

    async def change(
        self, container_id: ContainerId, decide: Callable[[ContainerRecord], ContainerRecord]
    ) -> ContainerRecord:
        running = next(node for node in self.nodes if node.running)
        return await running.store(lambda store: container_records.change_container(store, container_id, decide))

    def replica(self, number: int, container_id: ContainerId) -> LocalReplica:
        replica = self.nodes[number].replicas.replica(container_id)
        assert replica is not None
        return replica

    def payloads(self, number: int, container_id: ContainerId) -> list[bytes]:
        """The contents of a node's replica, committed or not."""
        log = self.replica(number, container_id).log
        return [payload for _, payload in commands_in(log, log.start, log.synced)]

    async def same(self, container_id: ContainerId, numbers: list[int], *, end: Position) -> None:
        """Return when these nodes' replicas end at `end`, on disk."""

        def ends_there(number: int) -> bool:
            replica = self.nodes[number].replicas.replica(container_id)
            return replica is not None and replica.log.synced == end

        await until(lambda: all(ends_there(number) for number in numbers) or None)


async def until(found: Callable[[], T | None], *, limit_s: float = 100.0) -> T:
    """What `found` gives once it is not None."""
    async with asyncio.timeout(limit_s):
        while (result := found()) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # what is waited for has no event
        return result


def handed_to(number: int, nodes: Several, *, without: tuple[int, ...] = ()) -> object:
    """A record's change: the next epoch, another leader, an in-sync set without some nodes."""
    gone = {nodes.nodes[each].node_id for each in without}

    def decide(record: ContainerRecord) -> ContainerRecord:
        return structs.replace(
            record,
            leader=nodes.nodes[number].node_id,
            epoch=Epoch(record.epoch + 1),
            in_sync=tuple(each for each in record.in_sync if each[0] not in gone),
        )

    return decide


async def ended(leader: OneNode, alone: list["asyncio.Future[Position]"]) -> None:
    """The node ends; nobody commits what only it has appended."""
    await leader.stop()
    for each in alone:
        with pytest.raises(KafkaError):
            await each


async def led_by_the_others(three: Several, container_id: ContainerId) -> Leader:
    """The first node is down; the others return, and the second one leads."""
    await three.nodes[1].start()
    await three.nodes[2].start()
    await three.change(container_id, handed_to(1, three, without=(0,)))  # type: ignore[arg-type]
    return await three.led(container_id, by=three.nodes[1])
