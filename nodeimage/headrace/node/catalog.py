"""The catalog of one node: opened over this node's replica of the catalog's container, and kept up to date with the
leader.

The leader of the catalog's container writes all commands, whichever node that is. A node that is too far behind the log
installs the leader's snapshot.

If a node's tables are lost and its log is intact but does not reach back far enough, only the snapshot is fetched: the
replica still has everything it acknowledged, and keeps its place in the in-sync set, which it may not be able to leave
(invariant 6). Once this log is committed up to a position, the leader's tables at that position are what replaying this
log would yield. Damaged tables are replaced in the same way (tables_repair.py).
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
"""Seconds to wait for a piece of a snapshot. The leader may have to write the snapshot before it sends the first piece.
"""
_RECEIVED: Final = "received-"
"""File name prefix of partly received snapshots, which versions before 0.2.0 left in the node's folder."""


class NodeCatalog(ReplicaListener):
    """One node's tables, and how it reaches the node that writes their commands."""

    tables: Catalog
    """Set by `open`."""

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
        """`room` is asked before a snapshot takes disk space. `snapshot_rate`: bytes per second of snapshots sent to
        all other nodes together; 0 means no limit. `tell` is called with events for people (control.events): the tables
        are damaged, the tables are rebuilt."""
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
        """Why this node's replica is unusable: it is damaged and there is no other, or it has no room."""
        self._opened = asyncio.Event()
        self._fetching: asyncio.Task[None] | None = None
        """The task that fetches this node's lost tables."""
        self._repair: TablesRepair | None = None
        """Set once the tables are open."""
        self._tell = tell
        replicas.add_replica_listener(self)

    @property
    def _folder(self) -> Path:
        return self._data / "catalog"

    @property
    def is_open(self) -> bool:
        """Whether the tables are open."""
        return self._opened.is_set()

    @property
    def damage(self) -> str:
        """Why the tables are damaged; empty while they are not, or are not open yet."""
        return self.tables.damage if self.is_open else ""

    async def replica(self) -> LocalReplica:
        """Wait for this node's replica of the catalog's container, and return it."""
        while (replica := self._replicas.replica(CATALOG_ID)) is None:
            self._check_usable()
            await self._changes.wait()
        return replica

    async def open(self, replica: LocalReplica) -> Catalog:
        """Open the tables as the last process left them. They are out of date until `caught_up` returns."""
        for left in self._data.glob(f"{_RECEIVED}*"):  # left by a process that was killed
            left.unlink()
        catalog_log = CatalogLog(replica, self._executor, tables_lost=lambda: self._tables_lost(replica))
        tables = self.tables = await Catalog.open(
            self._folder, catalog_log, route=self._route, may=self._view.may, room=self._room
        )
        # Whatever has been applied was committed; a follower learns the rest from its leader.
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
        """Return when this node's tables have applied everything that the leader has reported as committed."""
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
        """Create the stream for topic names without a path, if it does not exist."""
        if await self.tables.query(lambda reader: reader.streams.at(DEFAULT_STREAM)) is None:
            policy = StreamPolicy(auto_create=True)
            await self.tables.submit(CreateStream(path=DEFAULT_STREAM, policy=policy, now=now))

    async def raise_level(self, level: int) -> None:
        """Raise the feature level of the catalog's log to `level`, if it is lower. The tables have to be open. Raises
        HeadraceError."""
        if await self.tables.query(lambda reader: reader.level()) < level:
            await self.tables.submit(RaiseLevel(level))

    async def submitted(self, asked: Submit, payload: memoryview, _session: Session) -> Submitted:
        """Append another node's command to the catalog, which this node leads."""
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
        """Answer another node, which has lost its tables, with a part of this node's snapshot. This node leads the
        catalog."""
        await self._opened.wait()
        leader = self._replicas.led.get(CATALOG_ID)
        if leader is None or not leader.serves:
            raise KafkaError(Code.NOT_CONTROLLER, "this node does not lead the catalog")
        position = asked.position
        if position < 0:
            # A node that has lost its tables still has the log, so this node need not keep its own log for it.
            position = await self._lent.lend(await self._newest(asked.least, keeps_log=False))
        return await self._lent.part(position, asked.at)

    async def marks_read(
        self, _asked: ReadMarks, _payload: memoryview, _session: Session
    ) -> tuple[TableMarks, list[bytes]]:
        """Answer another node, which compares its tables with this node's."""
        await self._opened.wait()
        return TableMarks([(mark.position, mark.digest) for mark in await self.tables.marks()]), []

    async def close(self) -> None:
        """Stop fetching and repairing. Call this after the tables are closed, so that they request no further fetch."""
        if self._repair is not None:
            await self._repair.close()
        self._lent.close()
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.wait([self._fetching])

    # --- inside

    def _tables_lost(self, replica: LocalReplica) -> None:
        """Start fetching the tables, unless a fetch is under way. Called repeatedly until they are back."""
        if self._fetching is None or self._fetching.done():
            self._fetching = asyncio.get_running_loop().create_task(self._fetch_tables(replica), name="catalog-tables")

    async def _fetch_tables(self, replica: LocalReplica) -> None:
        """Try once to fetch the leader's tables.

        If the leader does not support this, report the replica as damaged: it is then recreated with an empty log, and
        the leader sends a snapshot along."""
        await self._opened.wait()
        record = self._view.containers.get(CATALOG_ID)
        node = None if record is None else self._view.nodes.get(record.leader)
        if node is None or node.node_id == self._node_id:
            return
        try:
            await self._fetch_from(node, replica)
        except (HeadraceError, OSError, sqlite3.Error) as error:
            log.warning("the catalog's tables could not be fetched", node=node.node_id, reason=str(error))
            if isinstance(error, KafkaError) and error.code is Code.UNSUPPORTED_VERSION:
                replica.report_damage()

    async def _fetch_from(self, node: NodeRecord, replica: LocalReplica) -> None:
        asked = ReadSnapshot(least=replica.log.start)
        received: ReceivedSnapshot | None = None
        try:
            while received is None or received.length < received.size:
                part, piece = await self._peers.call(node.peer_address, asked, timeout_s=PIECE_S)
                if not replica.log.start <= part.position <= replica.committed:
                    return  # either this node or the leader is behind
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
        """Raise the replica's error, if it has one. Without the catalog a node cannot serve, so it reports the error
        rather than waiting silently."""
        if self._unusable is not None:
            raise self._unusable

    async def _route(self, payload: bytes) -> Position:
        """Submit a command to the catalog's leader; the position after it."""
        record = self._view.containers.get(CATALOG_ID)
        node = None if record is None else self._view.nodes.get(record.leader)
        if record is None or node is None or node.node_id == self._node_id:
            raise KafkaError(Code.NOT_CONTROLLER, "no node is known to lead the catalog")
        with self._submit_attempts.one(record.epoch) as asked:
            answer, _ = await self._while_it_leads(node)(
                self._peers.call(node.peer_address, asked, [payload], timeout_s=SUBMIT_S)
            )
        return Position(answer.position)

    def _while_it_leads(self, node: NodeRecord) -> Callable[[Awaitable[T]], Awaitable[T]]:
        """Wrap a call to the catalog's leader so that it fails as soon as that node no longer leads: a dead node never
        answers."""

        async def awaited(call: Awaitable[T]) -> T:
            task = asyncio.ensure_future(call)
            try:
                while not task.done():
                    changed = asyncio.ensure_future(self._changes.wait())
                    await asyncio.wait({task, changed}, return_when=asyncio.FIRST_COMPLETED)
                    changed.cancel()
                    record = self._view.containers.get(CATALOG_ID)
                    if not task.done() and (record is None or record.leader != node.node_id):
                        raise KafkaError(Code.NOT_CONTROLLER, f"node {node.node_id} no longer leads the catalog")
                return await task
            finally:
                task.cancel()

        return awaited

    async def receive(self, position: Position, size: int) -> ReceivedSnapshot:
        """Prepare for a snapshot that the leader is about to send because this node's log is recreated. See
        container.snapshot_transfer."""
        await self._opened.wait()
        return await self._begin(position, size, self.tables.install)

    async def _put_back(self, snapshot: Path, position: Position) -> None:
        """Replace lost or damaged tables with a snapshot; the log has all commands committed after its position."""
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
        """A snapshot that is not older than `least`. See container.snapshot_transfer."""
        await self._opened.wait()
        return await self._newest(least, keeps_log=True)

    async def _newest(self, least: Position, *, keeps_log: bool) -> GivenSnapshot:
        try:
            shared = await self.tables.newest_snapshot(least, keeps_log=keeps_log)
        except (OSError, sqlite3.Error) as error:
            raise HeadraceError(f"no snapshot of the catalog can be read: {error}") from error
        return GivenSnapshot(shared, self._pacer, self._executor)

    async def _applied(self, position: Position) -> None:
        """Return when the tables have applied the log up to `position`. Raises `StorageFull`: the tables would wait for
        room, but a starting node does not."""
        waiting = asyncio.ensure_future(self.tables.wait_applied(position))
        try:
            while not waiting.done():
                await asyncio.wait({waiting}, timeout=0.05)
                if self.tables.full:
                    raise StorageFull(f"no room on the disk for the catalog in {self._data}; free some")
            waiting.result()
        finally:
            waiting.cancel()
