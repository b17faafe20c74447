"""The catalog of one node: opened over this node's replica of its container, and kept up to date with its leader.

Commands are written by the leader of the catalog's container, wherever it is; a node that is too far behind the log
takes over the leader's snapshot.

Where the tables are lost, and the log is whole but does not go back so far, the snapshot alone is fetched: the replica
has all that it acknowledged, and keeps its place in the in-sync set, which it may not be able to leave (invariant 6).
What the leader has applied up to a position is what this log comes to, once it is committed up to there. Tables that
are damaged come the same way (tables_repair.py).
"""

import asyncio
import sqlite3
import uuid
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import Final, TypeVar

import structlog

from headrace.base.errors import Code, HeadraceError, KafkaError, StorageFull
from headrace.base.ids import ContainerId, Millis, NodeId, Position
from headrace.catalog.catalog import Catalog
from headrace.catalog.feature_level import RaiseLevel
from headrace.catalog.names import DEFAULT_STREAM
from headrace.catalog.policy import StreamPolicy
from headrace.catalog.streams import CreateStream
from headrace.container.listeners import ReplicaListener
from headrace.container.local_replica import LocalReplica
from headrace.container.replicas import Replicas
from headrace.node.catalog_log import CatalogLog
from headrace.node.changes import Changes
from headrace.node.snapshot_sending import GivenSnapshot, LentSnapshots, Pacer
from headrace.node.submit_fencing import SubmitAttempts, SubmitFence
from headrace.node.tables_repair import TablesRepair
from headrace.peer.client import PeerClient
from headrace.peer.messages import ReadMarks, ReadSnapshot, SnapshotPart, Submit, Submitted, TableMarks
from headrace.peer.session import Session
from headrace.store.records import CATALOG_ID, NodeRecord
from headrace.store.view import ClusterView
from headrace.tables.live_copy import Room, plenty
from headrace.tables.received_snapshot import ReceivedSnapshot

log = structlog.get_logger()

T = TypeVar("T")

SUBMIT_S: Final = 5.0
PIECE_S: Final = 30.0
"""Before the first one a snapshot may have to be written."""
_RECEIVED: Final = "received-"
"""Snapshots on their way into the tables, as versions before 0.2.0 left them in the node's folder."""


class NodeCatalog(ReplicaListener):
    """One node's tables, and the way to where their commands are written."""

    tables: Catalog
    """Once it is open."""

    def __init__(
        self,
        *,
        node_id: NodeId,
        run: uuid.UUID,
        data: Path,
        executor: Executor,
        view: ClusterView,
        replicas: Replicas,
        peers: PeerClient,
        changes: Changes,
        room: Room = plenty,
        snapshot_rate: int = 0,
        tell: Callable[[str, str], None] = lambda _kind, _reason: None,
    ) -> None:
        """`room` is asked before a snapshot takes any; `snapshot_rate`: bytes of them that all others are sent in a
        second, 0: as fast as it goes. `tell` hears of events for people (control.events): that the tables are damaged,
        and made anew."""
        self._node_id = node_id
        self._data = data
        self._executor = executor
        self._view = view
        self._replicas = replicas
        self._peers = peers
        self._changes = changes
        self._room = room
        self._pacer = Pacer(snapshot_rate)
        self._lent = LentSnapshots()
        self._submit_attempts = SubmitAttempts(str(run))
        self._fence = SubmitFence()
        self._unusable: HeadraceError | None = None
        """Why this node's replica is: damaged and nowhere else, or without room."""
        self._opened = asyncio.Event()
        self._fetching: asyncio.Task[None] | None = None
        """Of tables that are lost here."""
        self._repair: TablesRepair | None = None
        """Once they are open."""
        self._tell = tell
        replicas.add_replica_listener(self)

    @property
    def _folder(self) -> Path:
        return self._data / "catalog"

    @property
    def is_open(self) -> bool:
        """Whether there are tables."""
        return self._opened.is_set()

    @property
    def damage(self) -> str:
        """Why the tables are damaged; empty while they are not, or are not open yet."""
        return self.tables.damage if self.is_open else ""

    async def replica(self) -> LocalReplica:
        """This node's replica of the catalog's container, once there is one."""
        while (replica := self._replicas.replica(CATALOG_ID)) is None:
            self._check_usable()
            await self._changes.wait()
        return replica

    async def open(self, replica: LocalReplica) -> Catalog:
        """Open the tables as they were left. They are behind until `caught_up`."""
        for left in self._data.glob(f"{_RECEIVED}*"):  # by a process that was killed
            left.unlink()
        catalog_log = CatalogLog(replica, self._executor, tables_lost=lambda: self._tables_lost(replica))
        tables = self.tables = await Catalog.open(
            self._folder, catalog_log, route=self._route, may=self._view.may, room=self._room
        )
        # What is applied was committed; a follower learns the rest from its leader.
        replica.learn_committed(Position(min(tables.applied, replica.log.synced)))
        replica.has_tables(tables)
        self._repair = TablesRepair(
            node_id=self._node_id,
            tables=tables,
            replica=replica,
            view=self._view,
            peers=self._peers,
            fetch=lambda: self._fetch_tables(replica),
            tell=self._tell,
        )
        self._opened.set()
        return tables

    async def caught_up(self, replica: LocalReplica) -> None:
        """Return when the catalog's tables here are those of now, as far as its leader has said."""
        while True:
            self._check_usable()
            leader, follower = replica.leader, replica.follower
            if leader is not None and leader.serves:
                await self._applied(leader.committed)
                return
            if follower is not None and follower.is_current:
                await self._applied(replica.committed)
                return
            await asyncio.sleep(0.01)

    async def ensure_default_stream(self, now: Millis) -> None:
        """There is a stream for bare topic names, from the start."""
        if await self.tables.query(lambda reader: reader.streams.at(DEFAULT_STREAM)) is None:
            policy = StreamPolicy(auto_create=True)
            await self.tables.submit(CreateStream(path=DEFAULT_STREAM, policy=policy, now=now))

    async def raise_level(self, level: int) -> None:
        """Have the catalog's log come to a feature level, if it has not. Raises HeadraceError."""
        if self.is_open and await self.tables.query(lambda reader: reader.level()) < level:
            await self.tables.submit(RaiseLevel(level))

    async def submitted(self, asked: Submit, payload: memoryview, _session: Session) -> Submitted:
        """Another node has a command for the catalog, which this one leads."""
        await self._opened.wait()

        def admit() -> None:
            leader = self._replicas.led.get(CATALOG_ID)
            if leader is None:
                raise KafkaError(Code.NOT_CONTROLLER, "this node does not lead the catalog")
            self._fence.admit(asked, led=leader.epoch)

        return Submitted(position=await self.tables.append(bytes(payload), admit=admit))

    async def snapshot_read(
        self, asked: ReadSnapshot, _payload: memoryview, _session: Session
    ) -> tuple[SnapshotPart, list[bytes]]:
        """Another node has lost its tables, and wants those of this one, which leads the catalog."""
        await self._opened.wait()
        leader = self._replicas.led.get(CATALOG_ID)
        if leader is None or not leader.serves:
            raise KafkaError(Code.NOT_CONTROLLER, "this node does not lead the catalog")
        position = asked.position
        if position < 0:
            # Whoever has lost its tables has the log: nothing of it is kept for them.
            position = await self._lent.lend(await self._newest(asked.least, keeps_log=False))
        return await self._lent.part(position, asked.at)

    async def marks_read(
        self, _asked: ReadMarks, _payload: memoryview, _session: Session
    ) -> tuple[TableMarks, list[bytes]]:
        """Another node compares its tables with those of this one."""
        await self._opened.wait()
        return TableMarks([(mark.position, mark.digest) for mark in await self.tables.marks()]), []

    async def close(self) -> None:
        """Fetch nothing more; once the tables are closed, so that nothing more is asked for."""
        if self._repair is not None:
            await self._repair.close()
        self._lent.close()
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.wait([self._fetching])

    # --- inside

    def _tables_lost(self, replica: LocalReplica) -> None:
        """Told again and again, until they are back."""
        if self._fetching is None or self._fetching.done():
            self._fetching = asyncio.get_running_loop().create_task(self._fetch_tables(replica), name="catalog-tables")

    async def _fetch_tables(self, replica: LocalReplica) -> None:
        """Once. Where the leader refuses it, the replica counts as damaged: with a log that is empty they come too."""
        await self._opened.wait()
        record = self._view.containers.get(CATALOG_ID)
        node = None if record is None else self._view.nodes.get(record.leader)
        if node is None or node.node_id == self._node_id:
            return
        try:
            await self._fetch_from(node, replica)
        except (HeadraceError, OSError, sqlite3.Error) as error:
            log.warning("the catalog's tables are not fetched", node=node.node_id, reason=str(error))
            if isinstance(error, KafkaError) and error.code is Code.UNSUPPORTED_VERSION:
                replica.report_damage()

    async def _fetch_from(self, node: NodeRecord, replica: LocalReplica) -> None:
        asked = ReadSnapshot(least=replica.log.start)
        received: ReceivedSnapshot | None = None
        try:
            while received is None or received.length < received.size:
                part, piece = await self._peers.call(node.peer_address, asked, timeout_s=PIECE_S)
                if not replica.log.start <= part.position <= replica.committed:
                    return  # one of both is behind
                if received is None:
                    received = await self._begin(part.position, part.size, self._put_back)
                if (part.position, part.size) != (received.position, received.size) or not piece:
                    raise HeadraceError("the primary broke off its snapshot")
                self.tables.tables_come()
                await received.write(piece)
                asked = ReadSnapshot(least=asked.least, position=part.position, at=received.length)
            await received.check(part.crc)
            await received.install()
        finally:
            if received is not None:
                received.close()

    def replica_unusable(self, container_id: ContainerId, error: HeadraceError) -> None:
        """See ReplicaListener."""
        if container_id == CATALOG_ID:
            self._unusable = error
            self._changes.wake()

    def _check_usable(self) -> None:
        """Without the catalog nothing can be served: say what is wrong with it, rather than wait in silence."""
        if self._unusable is not None:
            raise self._unusable

    async def _route(self, payload: bytes) -> Position:
        """Have the catalog's leader write a command."""
        record = self._view.containers.get(CATALOG_ID)
        node = None if record is None else self._view.nodes.get(record.leader)
        if record is None or node is None or node.node_id == self._node_id:
            raise KafkaError(Code.NOT_CONTROLLER, "nobody is known to lead the catalog")
        with self._submit_attempts.one(record.epoch) as asked:
            answer, _ = await self._while_it_leads(node)(
                self._peers.call(node.peer_address, asked, [payload], timeout_s=SUBMIT_S)
            )
        return Position(answer.position)

    def _while_it_leads(self, node: NodeRecord) -> Callable[[Awaitable[T]], Awaitable[T]]:
        """Await a call to the catalog's leader no longer than it is that: a dead one would be waited for in vain."""

        async def awaited(call: Awaitable[T]) -> T:
            task = asyncio.ensure_future(call)
            try:
                while not task.done():
                    changed = asyncio.ensure_future(self._changes.wait())
                    await asyncio.wait({task, changed}, return_when=asyncio.FIRST_COMPLETED)
                    changed.cancel()
                    record = self._view.containers.get(CATALOG_ID)
                    if not task.done() and (record is None or record.leader != node.node_id):
                        raise KafkaError(Code.NOT_CONTROLLER, f"node {node.node_id} leads the catalog no more")
                return await task
            finally:
                task.cancel()

        return awaited

    async def receive(self, position: Position, size: int) -> ReceivedSnapshot:
        """The leader is about to send a snapshot, as the log here begins anew. See container.snapshot_transfer."""
        await self._opened.wait()
        return await self._begin(position, size, self.tables.install)

    async def _put_back(self, snapshot: Path, position: Position) -> None:
        """In the place of tables that are lost or damaged; the log has what was committed behind that."""
        if self.tables.damage:
            await self.tables.rebuild(snapshot, position)
        else:
            await self.tables.install(snapshot, position, log_stays=True)

    async def _begin(
        self, position: Position, size: int, install: Callable[[Path, Position], Awaitable[None]]
    ) -> ReceivedSnapshot:
        return await ReceivedSnapshot.begin(
            self._folder,
            position=position,
            size=size,
            executor=self._executor,
            room=self._room,
            install=install,
        )

    async def snapshot(self, least: Position) -> GivenSnapshot:
        """One that is not older than `least`. See container.snapshot_transfer."""
        await self._opened.wait()
        return await self._newest(least, keeps_log=True)

    async def _newest(self, least: Position, *, keeps_log: bool) -> GivenSnapshot:
        try:
            shared = await self.tables.newest_snapshot(least, keeps_log=keeps_log)
        except (OSError, sqlite3.Error) as error:
            raise HeadraceError(f"no snapshot of the catalog can be read: {error}") from error
        return GivenSnapshot(shared, self._pacer, self._executor)

    async def _applied(self, position: Position) -> None:
        """Return when the tables are so far. Raises `StorageFull`: they wait for room, and a start does not."""
        waiting = asyncio.ensure_future(self.tables.wait_applied(position))
        try:
            while not waiting.done():
                await asyncio.wait({waiting}, timeout=0.05)
                if self.tables.full:
                    raise StorageFull(f"no room on the disk for the catalog in {self._data}; free some")
            waiting.result()
        finally:
            waiting.cancel()
