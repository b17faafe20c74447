"""The upper half of a simulated node: the real catalog and broker, over the simulation's network, store and disk.

This module connects catalog, snapshots, broker and containers as headrace.node does, but without sockets, threads and
folder. Clients produce by Kafka's Produce request, and read as a fetch does.
"""

import asyncio
import itertools
import sqlite3
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.base.errors import Code, HeadraceError, KafkaError
from headrace.base.ids import ContainerId, LeaderEpoch, Millis, Offset, Position
from headrace.base.runtime import Runtime
from headrace.catalog.chains import LogStart, SetLogStart
from headrace.catalog.committed_offsets import CommitOffsets, CommittedOffset
from headrace.catalog.names import DEFAULT_STREAM
from headrace.kafka.list_offsets import wait_until_rolled
from headrace.links.pull.home_links import HomeLinks
from headrace.node.catalog import NodeCatalog
from headrace.node.changes import Changes
from headrace.node.containers import NodeContainers
from headrace.node.links import make_forwarding
from headrace.node.node import PeerHandlers, make_parts
from headrace.node.parts import NodeParts
from headrace.node.snapshot_sending import GivenSnapshot
from headrace.partitions.cluster_client import ClusterClient
from headrace.partitions.cluster_layout import NodeIdentity, NodeSettings
from headrace.partitions.partition import Partition
from headrace.partitions.partition_tail import read_chain
from headrace.partitions.topics import Topic
from headrace.peer.messages import ReadMarks, ReadSnapshot, Submit
from headrace.store.records import PRODUCER_IDS_KEY, next_producer_block
from headrace.tables.received_snapshot import ReceivedSnapshot
from headrace.tables.snapshots import live_file
from headrace.tables.sqlite_errors import is_damage
from headrace.wire.api_keys import ApiKey
from headrace.wire.header import RequestHeader

if TYPE_CHECKING:
    from simulation.node import Node

T = TypeVar("T")

VERSION = 7
SECRET = "secret"
"""The secret that seals credentials of links."""
_RESULT = struct.Struct(">ihq")


class Produce:
    """A client's request: append a record batch to a topic's partition. The answer: (error code, base offset)."""

    def __init__(self, topic: str, batch: bytes) -> None:
        self.topic = topic
        self.batch = batch


class Find:
    """A client's request: which node leads a topic's partition, as far as the answering node knows; the topic is
    created on first use. The answer: a node id.
    """

    def __init__(self, topic: str) -> None:
        self.topic = topic


class Fetch:
    """A client's request: committed batches from an offset on. The answer: (high watermark, batches)."""

    def __init__(self, topic: str, offset: int) -> None:
        self.topic = topic
        self.offset = offset


class Trim:
    """A client's request: delete the records below an offset."""

    def __init__(self, topic: str, offset: int) -> None:
        self.topic = topic
        self.offset = offset


class Committed:
    """A client's request: the committed offset of a group, as the answering node has it. The answer: an offset, 0 if
    there is none.
    """

    def __init__(self, topic: str, group: str) -> None:
        self.topic = topic
        self.group = group


class Roll:
    """A client's request: let the partition continue in another partitionlet."""

    def __init__(self, topic: str) -> None:
        self.topic = topic


class Commit:
    """A client's request to any node: commit an offset of a group. The answer: an error code."""

    def __init__(self, topic: str, group: str, offset: int, metadata: str) -> None:
        self.topic = topic
        self.group = group
        self.offset = offset
        self.metadata = metadata


_numbers = itertools.count(1)


class Talk:
    """The part of a connection that Produce needs."""

    def __init__(self, broker: NodeParts) -> None:
        self.refusals = None
        self.number = next(_numbers)
        self.peer = "a client"
        self.default_stream = DEFAULT_STREAM
        self._broker = broker

    def park(self, coroutine: Any, *, finish: bool = False) -> None:
        self._broker.runtime.spawn(coroutine)


class Slot:
    """The place of one answer."""

    timed = None
    throttle_ms = 0

    def __init__(self) -> None:
        self.answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def answer(self, body: list[bytes]) -> None:
        self.answered.set_result(b"".join(body))

    def failed(self, code: int) -> None:
        """Counts nothing."""

    def lose(self) -> None:
        if not self.answered.done():
            self.answered.set_exception(KafkaError(Code.REQUEST_TIMED_OUT, "the connection was closed"))


class BrokerSide:
    """The catalog and broker of one run of a node."""

    def __init__(self, node: "Node", process: Any) -> None:
        self._sim = node
        self._process = process
        shape = node.cluster.shape
        self._data = data_folder(node)
        self._data.mkdir(exist_ok=True)
        settings = NodeSettings(
            chunk_bytes=shape.chunk_bytes,
            container_bytes=6 * shape.chunk_bytes,
            partitionlet_bytes=shape.chunk_bytes // 2,
        )
        host, port = node.cluster.address(node.number)
        self.identity = NodeIdentity(
            node_id=node.node_id,
            cluster_id=node.cluster.name or "simulated",
            host=host,
            port=port,
            settings=settings,
        )
        self.view = node.view
        assert node.replicas is not None
        assert node.controller is not None
        self.replicas = node.replicas
        self._changes = Changes()
        no_executor: Any = None
        peers: Any = node
        self._opening = NodeCatalog(
            node_id=node.node_id,
            run=node.record.run,
            data=self._data,
            executor=no_executor,
            view=node.view,
            replicas=node.replicas,
            peers=peers,
            changes=self._changes,
        )
        self._containers = NodeContainers(
            node=node.record,
            view=node.view,
            replicas=node.replicas,
            controller=node.controller,
            store=node.link.call,
            changes=self._changes,
        )
        self._handlers: PeerHandlers = {
            Submit: self._opening.submitted,
            ReadSnapshot: self._opening.snapshot_read,
            ReadMarks: self._opening.marks_read,
        }
        self._link = ClusterClient(node_id=node.node_id, view=node.view, replicas=node.replicas, peers=peers)
        self.replicas.add_replica_listener(self._changes)
        self.replicas.add_container_listener(self._changes)
        self.is_ready = False
        self.context = process.context
        self.handlers = self._handlers
        """Handlers of requests from other nodes."""
        self.closing: list[Callable[[], Awaitable[None]]] = []
        """Functions that close what has to be closed before the broker."""
        self.links: Any = None
        """The links of the node's cluster, in runs with links."""

    async def receive(self, position: Position, size: int) -> ReceivedSnapshot:
        """See `NodeCatalog`."""
        return await self._opening.receive(position, size)

    async def snapshot(self, least: Position) -> GivenSnapshot:
        """See `NodeCatalog`."""
        return await self._opening.snapshot(least)

    async def serve(self) -> None:
        """Do what `Node.start` does once the node has joined the others; a node that fails here is restarted."""
        controller = self._sim.controller
        assert controller is not None
        try:
            replica = await self._opening.replica()
            self._look_at_files()
            self.catalog = await self._opening.open(replica)
            self._sim.host.handlers = {**self._sim.host.handlers, **self._handlers}
            self.catalog.failed.add_done_callback(lambda _: self._sim.restart(self._process, "the catalog failed"))
            runtime = Runtime(executor=self._opening._executor, clock=controller.clocks)
            self.home_links = HomeLinks()
            self.home_links.looked_up(())  # links, if there are any, are looked up when they begin
            self.forwarding = make_forwarding(
                self.home_links, runtime=runtime, own_cluster=self.identity.cluster_id, secret=SECRET
            )
            self.parts = make_parts(
                identity=self.identity,
                runtime=runtime,
                data=self._data,
                catalog=self.catalog,
                producer_block=lambda size: next_producer_block(
                    self._sim.cluster.store, size, least=self.view.highest.get(PRODUCER_IDS_KEY, 0)
                ),
                link=self._link,
                store=self._sim.link.call,
                controller=controller,
                containers=self._containers,
                handlers=self._handlers,
                home_addresses=self.home_links.addresses,
                forwards=self.forwarding,
            )
            await self._opening.caught_up(replica)
            await self._opening.ensure_default_stream(Millis(self.parts.runtime.now()))
            await self.parts.start()
            more = await self._sim.cluster.attach(self)
        except HeadraceError as error:
            self._sim.restart(self._process, str(error))
            return
        self._sim.host.handlers = {
            **self._sim.host.handlers,
            **self._handlers,
            Produce: self._produce,
            Find: self._find,
            Fetch: self._fetch,
            Trim: self._trim,
            Commit: self._commit,
            Committed: self._committed,
            Roll: self._roll,
            **more,
        }
        self.is_ready = True

    async def stop(self) -> None:
        """Close everything that was opened, in order."""
        self.is_ready = False
        for close in self.closing:
            await close()
        if hasattr(self, "parts"):
            await self.parts.close()
        if self._opening.is_open:
            await self.catalog.close()
            await self._opening.close()

    def view_changed(self, changed: Any) -> None:
        """See `Node`."""
        self._changes.wake()
        self.replicas.records_changed(changed.containers)
        if hasattr(self, "parts") and (changed.containers or changed.nodes):
            self.parts.records_changed(changed.containers)

    async def close_container(self, container_id: ContainerId) -> None:
        """Close a container as if it were full."""
        container = self.replicas.led.get(container_id)
        if container is not None:
            await self._containers.close(container)

    def crash(self, *, with_host: bool) -> None:
        """End the process: the files of the tables stay as they are, and none of its connections holds them.

        If the host's memory is lost too, some of the newest commits are gone, since SQLite syncs a commit only when it
        moves it into the file of the tables.
        """
        if not self._opening.is_open:
            return
        live, journal = self._live_files()
        if not journal.exists():
            return  # it had already closed the connections
        tables, commits = live.read_bytes(), journal.read_bytes()
        self.catalog._close_files()
        live.with_name(live.name + "-shm").unlink(missing_ok=True)
        chance = self._sim.chance
        if with_host and tables == self._sim.tables_synced and chance.random() < 0.7:
            commits = commits[: chance.randrange(len(commits) + 1)]
        live.write_bytes(tables)
        journal.write_bytes(commits)

    def _live_files(self) -> tuple[Path, Path]:
        live = live_file(self._data / "catalog")
        return live, live.with_name(live.name + "-wal")

    def _look_at_files(self) -> None:
        live, journal = self._live_files()
        if not journal.exists() or not journal.stat().st_size:
            self._sim.tables_synced = live.read_bytes() if live.exists() else b""

    def rows(self, *more: str) -> dict[str, list[tuple[Any, ...]]] | None:
        """All rows of the tables here, without those of links unless in `more`; None if the tables are damaged."""
        tables = ("counters", "streams", "topics", "partitionlets", "log_starts", "groups", "cursors", *more)
        columns = {"counters": "name, value"}  # the totals also say how far rows have sums
        if self.catalog.damage:
            return None
        try:
            return {
                table: list(
                    self.catalog._connection.execute(f"SELECT {columns.get(table, '*')} FROM {table} ORDER BY 1, 2")
                )
                for table in tables
            }
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise
            return None

    # --- clients

    async def _topic(self, name: str) -> Topic:
        (topic,) = await self.parts.topics.resolve([name], create=True)
        if isinstance(topic, KafkaError):
            raise topic
        return topic

    async def _find(self, asked: Find, _payload: memoryview, _session: None) -> int:
        topic = await self._topic(asked.topic)
        chain = await self.catalog.query(lambda reader: read_chain(reader, topic.row.number, 0))
        leader = self.parts.cluster.leader(chain.rows[-1].container) if chain is not None else None
        if leader is None:
            raise KafkaError(Code.LEADER_NOT_AVAILABLE)
        return leader[0]

    async def _produce(self, asked: Produce, _payload: memoryview, _session: None) -> tuple[int, int]:
        name = asked.topic.encode()
        head = struct.pack(">hhiih", -1, -1, 4000, 1, len(name)) + name + struct.pack(">iii", 1, 0, len(asked.batch))
        request = memoryview(bytearray(head + asked.batch))
        header = RequestHeader(ApiKey.PRODUCE, VERSION, 0, "", 0)
        slot: Any = Slot()
        session: Any = Talk(self.parts)
        self.parts.produce.handle(session, header, request, slot)
        answer = await slot.answered
        _, error, base_offset = _RESULT.unpack_from(answer, 4 + 2 + len(name) + 4)
        return error, base_offset

    async def _leader(self, name: str) -> Partition:
        partition = await self.parts.partitions.leader(await self._topic(name), 0)
        if not partition.container.serves or not partition.container.in_touch:
            raise KafkaError(Code.LEADER_NOT_AVAILABLE)
        return partition

    async def _fetch(self, asked: Fetch, _payload: memoryview, _session: None) -> tuple[int, list[bytes]]:
        partition = await self._leader(asked.topic)
        await wait_until_rolled(self.parts.rolls, partition)
        end, log_start = partition.high_watermark, partition.log_start
        offset = max(asked.offset, log_start)
        row = next((row for row in partition.chain if row.end > offset), partition.chain[-1])
        if row is not partition.chain[-1]:
            found = await self.parts.remote_reads.read(row, offset=offset, limit=row.end, max_bytes=4096)
        else:
            log = partition.container.log
            found = await self.parts.runtime.loop.run_in_executor(
                None, lambda: log.read(row.id, Offset(offset), limit=Offset(end), max_bytes=4096)
            )
        return end, [bytes(each) for each in found]

    async def _trim(self, asked: Trim, _payload: memoryview, _session: None) -> int:
        partition = await self._leader(asked.topic)
        offset = Offset(min(asked.offset, partition.high_watermark))
        await self.catalog.submit(SetLogStart(items=[LogStart(partition.topic_id, 0, offset)]))
        return offset

    async def _roll(self, asked: Roll, _payload: memoryview, _session: None) -> int:
        partition = await self.parts.partitions.leader(await self._topic(asked.topic), 0)
        row = await self.parts.rolls.roll(partition)
        return row.id

    async def _commit(self, asked: Commit, _payload: memoryview, _session: None) -> Code:
        topic = await self._topic(asked.topic)
        committed_offset = CommittedOffset(topic.topic_id, 0, Offset(asked.offset), LeaderEpoch(-1), asked.metadata)
        now = Millis(self.parts.runtime.now())
        (code,) = await self.catalog.submit(
            CommitOffsets(group=asked.group, generation=-1, member_id="", items=[committed_offset], now=now)
        )
        return code

    async def _committed(self, asked: Committed, _payload: memoryview, _session: None) -> int:
        topic = await self._topic(asked.topic)
        await self.catalog.catch_up()
        found = await self.catalog.query(
            lambda reader: reader.groups.committed_offsets(asked.group, [topic.row.number])
        )
        return found[0].offset if found else 0


def data_folder(node: "Node") -> Path:
    """The folder of a node's catalog."""
    return node.cluster.folder / f"data-{node.number}"
