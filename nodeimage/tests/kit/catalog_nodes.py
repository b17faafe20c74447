"""Several nodes' replicas of the catalog's container, with the tables to which each applies it."""

import asyncio
import shutil
from functools import partial
from pathlib import Path
from uuid import UUID, uuid4

from msgspec import structs

from headrace.base.errors import StorageFull
from headrace.base.ids import Epoch, Millis, Position
from headrace.catalog.catalog import Catalog
from headrace.catalog.policy import StreamPolicy
from headrace.catalog.streams import CreateStream
from headrace.catalog.topics import CreateTopics, NewTopic
from headrace.node.catalog import NodeCatalog
from headrace.node.changes import Changes
from headrace.node.snapshot_sending import GivenSnapshot
from headrace.peer.messages import ReadMarks, ReadSnapshot, Submit, Submitted
from headrace.store.records import CATALOG_ID, ContainerRecord
from headrace.tables.received_snapshot import ReceivedSnapshot
from kit.several_replicas import OneNode, Several, until

CHUNK_BYTES = 8192


class WithTables:
    """Nodes, of which the first two have replicas of the catalog, and the third is an observer."""

    def __init__(self, folder: Path) -> None:
        self.several = Several(folder, 3)
        self._catalogs: dict[int, NodeCatalog] = {}
        self._tables: dict[int, Catalog] = {}
        self.gives_tables = True
        """Whether nodes send snapshots of tables; otherwise they have the previous version."""
        self.free = [1 << 40] * 3
        """Free bytes on the disk of each node."""
        for number, node in enumerate(self.several.nodes):
            node.receive = partial(self._receive, number)
            node.snapshot = partial(self._snapshot, number)
            node.on_made = partial(self._made, number)

    def node(self, number: int) -> OneNode:
        return self.several.nodes[number]

    def catalog(self, number: int) -> NodeCatalog:
        return self._catalogs[number]

    def tables(self, number: int) -> Catalog:
        return self._tables[number]

    def _made(self, number: int) -> None:
        node, changes = self.node(number), Changes()
        node.view.on_change(lambda _changed: changes.wake())
        self._catalogs[number] = NodeCatalog(
            node_id=node.node_id,
            run=node.record.run,
            data=node.folder.parent,
            executor=node.executor,
            view=node.view,
            replicas=node.replicas,
            peers=node.peers,
            changes=changes,
            room=partial(self._room, number),
        )
        catalog = self._catalogs[number]
        node.handlers = (
            {ReadSnapshot: catalog.snapshot_read, ReadMarks: catalog.marks_read} if self.gives_tables else {}
        )

    async def _receive(self, number: int, position: Position, size: int) -> ReceivedSnapshot:
        return await self._catalogs[number].receive(position, size)

    async def _snapshot(self, number: int, least: Position) -> GivenSnapshot:
        return await self._catalogs[number].snapshot(least)

    def _room(self, number: int, length: int) -> None:
        if length > self.free[number]:
            raise StorageFull(f"{self.free[number]} bytes are free on node {number}")

    async def trim(self) -> None:
        """Trim the log of the node that leads, so that it begins after the end of a new node's log."""
        log = self.several.replica(0, CATALOG_ID).log
        await self.write(0, "/s", applied_by=())
        while not log.chunks_to_close():
            first = log.end
            made = [
                NewTopic("/s", f"topic-{first + each}", uuid4().bytes, 1, {}, [CATALOG_ID], [Epoch(1)])
                for each in range(100)
            ]
            await self.tables(0).submit(CreateTopics(made, Millis(1)), here=True)
        log.close_chunk(log.chunks_to_close()[0])
        for path in ("/one", "/two"):
            await self.write(0, path, applied_by=(1,))
            await self.tables(0).snapshot()
        await until(lambda: log.start > 0 or None)

    async def begin_empty(self, number: int) -> None:
        """Restart a node with an empty folder."""
        await self.stop(number)
        await asyncio.to_thread(shutil.rmtree, self.node(number).folder.parent)
        await asyncio.to_thread(self.node(number).folder.parent.mkdir)
        await self.start(number)

    async def open(self, number: int) -> None:
        """Open the tables of a running node."""
        replica = await until(lambda: self.node(number).replicas.replica(CATALOG_ID))
        self._tables[number] = await self._catalogs[number].open(replica)

    async def stop(self, number: int) -> None:
        if number in self._tables:
            await self._tables.pop(number).close()
            await self._catalogs[number].close()
        await self.node(number).stop()

    async def start(self, number: int) -> None:
        await self.node(number).start()
        await self.open(number)

    async def write(self, number: int, path: str, *, applied_by: tuple[int, ...]) -> Position:
        """Submit a command at the node that leads."""
        await self.tables(number).submit(CreateStream(path, StreamPolicy(), Millis(1)), here=True)
        end = self.tables(number).applied
        for each in applied_by:
            await self.tables(each).wait_applied(end)
        return end

    async def submitted(self, number: int, asked: Submit, payload: bytes) -> Submitted:
        """The answer of a node that leads when another node asks it to write a command."""
        return await self._catalogs[number].submitted(asked, memoryview(payload), None)  # type: ignore[arg-type]

    def leads_in(self, number: int) -> int:
        """The epoch in which a node leads; 0 if it does not."""
        container = self.node(number).replicas.led.get(CATALOG_ID)
        return container.epoch if container is not None and container.serves else 0

    async def paths(self, number: int) -> list[str]:
        return await self.tables(number).query(lambda reader: [row.path for row in reader.streams.page()])

    async def led_uncleanly(self, number: int) -> None:
        """An operator lets this node's replica lead, and only it is in sync."""
        format = UUID(self.several.replica(number, CATALOG_ID).incarnation)

        def decide(record: ContainerRecord) -> ContainerRecord:
            node_id, epoch = self.node(number).node_id, Epoch(record.epoch + 1)
            in_sync, recovered = ((node_id, format),), record.recovered + 1
            return structs.replace(record, leader=node_id, epoch=epoch, in_sync=in_sync, recovered=recovered)

        record = await self.several.change(CATALOG_ID, decide)

        await until(lambda: self.leads_in(number) == record.epoch or None)
