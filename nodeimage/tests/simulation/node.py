"""A simulated node: the real replicas, controller and logs, with the simulation's network, store, disk and clock."""

import asyncio
import contextlib
import math
import random
import shutil
import uuid
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.base.errors import (
    Code,
    CorruptLog,
    FolderRefused,
    HeadraceError,
    KafkaError,
    NewerFormat,
    OutOfDescriptors,
    StorageFull,
)
from headrace.base.ids import ContainerId, Millis, NodeId, Position
from headrace.container import replica_folder
from headrace.container.leader import Leader
from headrace.container.listeners import ContainerListener, ReplicaListener
from headrace.container.local_replica import LocalReplica
from headrace.container.replicas import Replicas
from headrace.control.controller import Controller
from headrace.control.observations import Settings
from headrace.log.container_log import ContainerLog, LogOptions
from headrace.log.scrub import Scrubbed, scrub
from headrace.node.catalog_log import commands_in
from headrace.node.registration import Registration
from headrace.node.store_recovery import StoreRecovery
from headrace.peer.messages import (
    PAIRS_VERSION,
    PEER_VERSION,
    Follow,
    PairUp,
    Prepare,
    Prepared,
    Probe,
    ProbeAnswer,
    RollAway,
    Rolled,
    Unrecorded,
)
from headrace.peer.reports import NodeLoad
from headrace.store import features, records
from headrace.store.protocol import ClusterStore, StoreUnavailable
from headrace.store.records import NodeRecord
from headrace.store.view import Changed
from simulation import disk
from simulation.broker_side import BrokerSide, data_folder
from simulation.loop import Process, Task
from simulation.network import PORT, End, Host
from simulation.odd_calls import OddError
from simulation.store import StoreLink, StoreView

if TYPE_CHECKING:
    from simulation.cluster import Cluster
from simulation.old_version import refuse_as_old

T = TypeVar("T")

STORE_SILENT_S = 2.0
MAX_READ = 50
SETTINGS = Settings(rebuild_after_s=12.0, gather_s=2.0, forget_after_s=0.5)


class Append:
    """A client's request: append a command."""

    def __init__(self, container: ContainerId, payload: bytes) -> None:
        self.container = container
        self.payload = payload


class Latest:
    """A client's request: the latest position that may be read."""

    def __init__(self, container: ContainerId) -> None:
        self.container = container


class Read:
    """A client's request: the committed commands after a position."""

    def __init__(self, container: ContainerId, after: Position) -> None:
        self.container = container
        self.after = after


class _Checked(ContainerListener):
    """A container listener that has the containers of a process checked."""

    def __init__(self, node: "Node", process: Process) -> None:
        self._node = node
        self._process = process

    def container_led(self, container: Leader) -> None:
        self._node.cluster.checks.led(self._node, self._process, container)


class _Maintenance(ReplicaListener):
    """Scrubs and closes chunks in runs without a broker, which would otherwise do so."""

    def __init__(self, node: "Node", replicas: Replicas) -> None:
        self._node = node
        self._replicas = replicas
        self._closing: dict[LocalReplica, Task] = {}

    def chunk_full(self, container: ContainerId) -> None:
        replica = self._replicas.replica(container)
        assert replica is not None
        closing = self._closing.get(replica)
        if closing is None or closing.done():
            self._closing[replica] = self._node.cluster.loop.spawn(self._node.close_chunks(replica))

    def replica_unreadable(self, container: ContainerId) -> None:
        self._node.scrub(container)


class Node:
    """One node through all runs of its process; it is also the environment of its replicas."""

    def __init__(self, cluster: "Cluster", number: int) -> None:
        self.cluster = cluster
        self.number = number
        self.chance: random.Random = cluster.chance
        self.folder: Path = cluster.folder / f"node-{number}"
        self.disk = disk.Disk(self.chance, cluster.shape.job_s, cluster.loop)
        self.host = Host(number)
        cluster.network.hosts[number] = self.host
        self.wall_ahead = cluster.clocks_ahead.get(number, 0.0)
        """Seconds by which its wall clock is ahead of the true time."""
        self.link = StoreLink(cluster.store, cluster.loop, self.chance, cluster.odd)
        self.format = uuid.uuid4()
        self.node_format = str(self.format)
        self.node_id = NodeId(0)
        self.executor: Any = None
        self.writer_pool: Any = None
        self.process: Process | None = None
        self.replicas: Replicas | None = None
        self.controller: Controller | None = None
        self.view: Any = None
        self.tables_synced: bytes | None = None
        """The content of the catalog's file when its write-ahead log was last empty."""
        self.upper: BrokerSide | None = None
        """The node's catalog and broker, in runs that have them."""
        self.runs = 0
        self.is_old = False
        """Whether the node runs an older version (simulation.versions)."""
        self.says_full = False
        """Whether the node reports its disk as full."""
        self.fenced = 0
        """The feature level that its folder has seen."""
        self._scrubbing: set[ContainerId] = set()
        self._former_replicas: dict[ContainerId, tuple[str, Position]] = {}
        """Incarnation (`format`) and position that the replicas of former runs had on disk, by container."""

    # --- life

    @property
    def is_up(self) -> bool:
        """Whether the node's process runs, even if it is frozen."""
        return self.process is not None

    def start(self) -> None:
        """Start a process with the contents of the disk."""
        assert self.process is None
        self.runs += 1
        process = Process(
            f"{self.cluster.name} node {self.number}.{self.runs}".lstrip(),
            self,
            offset=self.chance.uniform(0, 1e6),
            rate=self.chance.uniform(0.99, 1.01),
        )
        self.process = self.host.process = process
        self.link.is_old = self.is_old
        self.writer_pool = disk.WriterPool(self, run=self.runs)
        self._scrubbing.clear()
        self.host.streams = {}
        if self.cluster.shape.topics:
            self.host.handlers = {}
        self.cluster.network.back(self.host)
        self.cluster.loop.spawn(self._run(process), process)

    def kill(self, *, with_host: bool = False) -> None:
        """End the process at once; with its host, nobody is notified."""
        process = self.process
        if process is None:
            return
        self.cluster.checks.look(self)
        if self.replicas is not None:
            for replica in self.replicas.all():
                self._former_replicas[replica.id] = self.holds(replica.id)
        process.dead = True
        process.waiting.clear()
        self.process = self.host.process = None
        if with_host:
            self.host.is_up = False
        if self.view is not None:
            self.view.end()
        self.cluster.network.killed(self.host)
        if fates := self.writer_pool.crash(self.chance):
            self.cluster.trace(f"node {self.number}: jobs under way {fates}")
        if self.upper is not None:
            self.upper.crash(with_host=with_host)
        self.replicas = self.controller = self.upper = None

    def restart(self, process: Process, reason: str) -> None:
        """A process ends on its own, and is restarted soon."""
        if self.process is process:
            self.cluster.trace(f"node {self.number} ends: {reason}")
            process.frozen = True
            self.cluster.loop.call_soon(self._restart, process, context=self.cluster.world)

    def _restart(self, process: Process) -> None:
        if self.process is process:
            self.kill()
        self.cluster.loop.call_later(0.5, lambda: self.is_up or self.start(), context=self.cluster.world)

    @property
    def writes_beside(self) -> bool:
        """Whether two writes of one log are in progress here."""
        return self.is_up and self.writer_pool.writes_beside

    def holds(self, container_id: ContainerId) -> tuple[str, Position]:
        """The format of the node's replica, and the position that it has on disk at least; ("", 0) if unknown."""
        replica = self.replicas.replica(container_id) if self.replicas is not None else None
        if replica is None:
            return self._former_replicas.get(container_id, ("", Position(0)))
        if replica.cycle.is_closed:  # it is being cut
            return "", Position(0)
        return replica.incarnation, replica.log.synced

    def format_of(self, container_id: ContainerId) -> str:
        """The format of the replica in the node's folder; "": there is none, or it cannot be read."""
        try:
            found = replica_folder.read(self.folder / str(container_id))
        except CorruptLog:
            return ""
        return "" if found is None else found.format

    def freeze(self) -> None:
        """Suspend the process, as SIGSTOP does."""
        if self.process is not None:
            self.process.frozen = True

    def thaw(self, process: Process) -> None:
        """Resume the process, as SIGCONT does."""
        if process.frozen and not process.dead:
            self.cluster.loop.wake(process)

    async def _run(self, process: Process) -> None:
        while True:
            try:
                record = await self.store(self._register)
                break
            except StoreUnavailable:
                await asyncio.sleep(0.2)
            except FolderRefused as error:  # an operator gives it the version that it needs
                self.is_old = False
                self.restart(process, str(error))
                await asyncio.sleep(math.inf)
            except OddError as error:  # a process that could not start also ends here
                self.restart(process, str(error))
                await asyncio.sleep(math.inf)
        self.record = record
        self.node_id = record.node_id
        self.view = StoreView(self.link, self.cluster.loop, self.chance)
        await self.view.start()
        self.controller = Controller(
            own=record.node_id,
            run=record.run,
            view=self.view,
            store_call=self.store,
            peers=self,  # type: ignore[arg-type]
            own_probe=self.probe,
            settings=SETTINGS,
        )
        has_tables = self.cluster.shape.topics
        replicas = self.replicas = Replicas(
            self,
            others=self.controller,
            receive=self._receive if has_tables else None,
            snapshot=self._snapshot if has_tables else None,
        )
        replicas.add_container_listener(_Checked(self, process))
        if not self.cluster.shape.topics:
            replicas.add_replica_listener(_Maintenance(self, replicas))
        self.host.handlers = {
            Probe: self._probed,
            Prepare: self._prepare,
            RollAway: self._roll_away,
            Unrecorded: self._unrecorded,
            Append: self._append,
            Latest: self._latest,
            Read: self._read,
        }
        self.host.streams = {Follow: replicas.accept, PairUp: replicas.accept_pair}
        self.host.peer_version = PAIRS_VERSION - 1 if self.is_old else PEER_VERSION
        self.controller._levelling = self.is_old
        self.registration = Registration(
            record,
            view=self.view,
            store=self.store,
            folder_level=lambda: self.fenced,
            full=lambda: self.says_full,
            removed=lambda reason: self.cluster.checks.fail(f"node {self.number} takes itself for removed: {reason}"),
        )
        if self.cluster.shape.topics:
            self.upper = BrokerSide(self, process)
            self.cluster.loop.spawn(self.upper.serve())
        self.view.on_change(self._view_changed)
        self.controller.on_answer(replicas.told)
        replicas.start()
        self.controller.start()
        self._heed_level()  # the level may have risen since the node registered

    async def _receive(self, position: Position, size: int) -> Any:
        assert self.upper is not None
        return await self.upper.receive(position, size)

    async def _snapshot(self, least: Position) -> Any:
        assert self.upper is not None
        return await self.upper.snapshot(least)

    async def stop(self) -> None:
        """Hand over and end, as a node does on SIGTERM."""
        process, replicas, controller = self.process, self.replicas, self.controller
        if process is None or replicas is None or controller is None:
            return
        with contextlib.suppress(HeadraceError, TimeoutError, OddError):
            await self.store(lambda store: records.set_stopping(store, self.node_id, run=self.record.run))
            async with asyncio.timeout(5):
                while any(len(each.state.in_sync) > 1 for each in replicas.led.values()):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        if self.upper is not None:
            await self.upper.stop()
        await controller.close()
        await replicas.close()
        if self.process is process:
            self.cluster.loop.call_soon(self.kill, context=self.cluster.world)

    def _register(self, store: ClusterStore) -> NodeRecord:
        shape = self.cluster.shape
        if self.is_old:
            refuse_as_old(store, self.fenced)
        records.ensure_cluster(store, first_nodes=shape.nodes)
        if not self.is_old:
            told = features.get_features(store)
            self.fenced = max(self.fenced, told.required)
        records.ensure_volume(
            store, records.VolumeRecord("default", replicas=shape.replicas, min_in_sync=shape.min_in_sync)
        )
        host, port = self.cluster.address(self.number)
        self.node_id = self.node_id or records.take_node_id(store)
        run = uuid.uuid4()
        if self.is_old:
            self.cluster.levels.old_runs.add(run)
        return records.register_node(
            store,
            node_id=self.node_id,
            new=True,
            format=self.format,
            run=run,
            supports=None if self.is_old else features.own_range(run),
            host=host,
            port=port,
            failure_host=f"host {self.number}",
            peer_port=PORT + self.number,
        )

    def _heed_level(self) -> None:
        process, told = self.process, self.view.features
        level = told.required
        if self.is_old or process is None:
            return
        if level > self.fenced:
            self.cluster.loop.call_later(self.thread_s(), self._fence, process, level, context=process.context)
        own = self.view.nodes.get(self.node_id)
        if own is not None and own.run == self.record.run and own.supports != self.record.supports:
            self.cluster.loop.spawn(self._publish_range(), process)

    def _fence(self, process: Process, level: int) -> None:
        if self.process is process:
            self.fenced = max(self.fenced, level)

    async def _publish_range(self) -> None:
        supported = self.record.supports
        assert supported is not None
        with contextlib.suppress(HeadraceError):
            await self.store(lambda store: features.publish_range(store, self.node_id, supported))

    def _view_changed(self, changed: Changed) -> None:
        assert self.replicas is not None
        if not self.is_old:
            self.registration.look()
        if changed.features or changed.nodes:
            self._heed_level()
        if self.upper is not None:
            self.upper.view_changed(changed)
        else:
            self.replicas.records_changed(changed.containers)

    # --- the disk's threads

    def thread_s(self) -> float:
        """Seconds until a thread has completed its work."""
        roll = self.chance.random()
        if self.disk.slow:
            return self.disk.hangs_s() + roll * self.disk.slow
        return self.disk.hangs_s() + 0.0002 + roll * 0.002 if roll < 0.98 else (roll - 0.98) * 5.0  # up to 100 ms

    def before_thread(self, function: Callable[..., Any]) -> None:
        """Raises the errors that a full disk would cause."""
        if self.disk.full and function is replica_folder.write and self.chance.random() < 0.5:
            raise StorageFull("the simulated disk is full")

    # --- Environment and Peers

    def options(self, kind: str, volume: str) -> LogOptions:
        return LogOptions(
            chunk_bytes=self.cluster.shape.chunk_bytes,
            open_file_bytes=4096,
            checkpoint_bytes=4096,
            tail_bytes=4096,
            parallel_write_after_s=self.writer_pool.parallel_write_after_s,
        )

    def room(self, kind: str) -> disk.Disk:
        return self.disk

    def fatal(self, reason: str) -> None:
        self.cluster.trace(f"node {self.number}: {reason}")
        self.cluster.loop.call_soon(self.kill, context=self.cluster.world)
        assert self.process is not None
        self.process.frozen = True

    def too_new(self, error: NewerFormat) -> None:
        self.fatal(str(error))

    async def store(self, change: Callable[[ClusterStore], T]) -> T:
        return await self.link.call(change)

    async def connect(self, node: NodeRecord) -> End:
        return await self.cluster.network.open(self.host, (node.host, node.peer_port), 2.0)

    async def call(self, address: tuple[str, int], message: Any, buffers: Any = (), *, timeout_s: float) -> Any:
        if self.is_old and isinstance(message, Probe):
            message = Probe()  # the request of an older version
        return await self.cluster.network.call(self.host, address, message, buffers, timeout_s=timeout_s)

    # --- asked by others

    async def _probed(self, asked: Probe, _payload: memoryview, _session: None) -> ProbeAnswer:
        await self._await_registered()
        if asked.doubted and not self.is_old:
            await self.controller.look_and_tell(asked.doubted)
        assert self.replicas is not None
        # An older version does not know this request.
        return self.replicas.teller().answer(Probe() if self.is_old else asked, self._alive())

    async def _await_registered(self) -> None:
        """Return only if the process has registered: until then calls go to the former process, which never answers."""
        if self.replicas is None:
            await self.cluster.loop.create_future()

    def probe(self, asked: Probe) -> ProbeAnswer:
        assert self.replicas is not None
        return self.replicas.teller().answer(asked, self._alive())

    def _alive(self) -> ProbeAnswer:
        now = asyncio.get_running_loop().time()
        heard = self.controller.heard() if self.controller is not None else set()
        return ProbeAnswer(
            node=self.node_id,
            run=self.record.run,
            replicas=[],
            load=NodeLoad(),
            reaches_store=now - self.view.reachable_at < STORE_SILENT_S,
            ready=True,
            heard=sorted(heard),
            clock=self.controller.clocks.own() if self.controller is not None else Millis(0),
            fenced=0 if self.is_old else self.fenced,
        )

    async def _prepare(self, asked: Prepare, _payload: memoryview, _session: None) -> Prepared:
        await self._await_registered()
        assert self.replicas is not None
        return Prepared(format=await self.replicas.prepare(ContainerId(asked.container)))

    async def _roll_away(self, _asked: RollAway, _payload: memoryview, _session: None) -> Rolled:
        return Rolled(0)

    async def _unrecorded(self, asked: Unrecorded, payload: memoryview, session: Any) -> Any:
        await self._await_registered()
        assert self.replicas is not None
        peers: Any = self
        recovery = StoreRecovery(
            node=self.node_id, replicas=self.replicas, peers=peers, store=self.store, view=self.view
        )
        return await recovery.answer(asked, payload, session)

    async def _append(self, asked: Append, _payload: memoryview, _session: None) -> Position:
        container = self._led(asked.container)
        return await container.append_command(asked.payload)

    async def _latest(self, asked: Latest, _payload: memoryview, _session: None) -> Position:
        container = self._led(asked.container)
        if not container.serves or not container.in_touch:
            raise KafkaError(Code.LEADER_NOT_AVAILABLE)
        return container.committed

    async def _read(self, asked: Read, _payload: memoryview, _session: None) -> list[tuple[Position, bytes]]:
        found = self.replicas.any_log(asked.container) if self.replicas is not None else None
        if found is None:
            raise KafkaError(Code.REPLICA_NOT_AVAILABLE)
        log, committed = found
        if committed <= asked.after:
            return []

        def read() -> list[tuple[Position, bytes]]:
            return list(islice(commands_in(log, asked.after, committed), MAX_READ))

        return await asyncio.get_running_loop().run_in_executor(None, read)

    def _led(self, container_id: ContainerId) -> Leader:
        container = self.replicas.led.get(container_id) if self.replicas is not None else None
        if container is None:
            raise KafkaError(Code.NOT_LEADER_OR_FOLLOWER)
        return container

    # --- its maintenance

    def scrub(self, container_id: ContainerId) -> None:
        """Read a replica back, and have it recreated if it is damaged."""
        if self.process is not None and container_id not in self._scrubbing:
            self._scrubbing.add(container_id)
            self.cluster.loop.spawn(self._scrub(container_id), self.process)

    def scrub_all(self) -> None:
        """Scrub each replica."""
        if self.upper is not None:
            if self.upper.is_ready:
                self.cluster.loop.call_soon(self.upper.parts.scrub.start, context=self.upper.context)
            return
        for replica in self.replicas.all() if self.replicas is not None else ():
            self.scrub(replica.id)

    async def _scrub(self, container_id: ContainerId) -> None:
        replicas = self.replicas
        replica = replicas.replica(container_id) if replicas is not None else None
        try:
            if replicas is not None and replica is not None:
                log = replica.log
                read = partial(scrub, log.folder, Scrubbed(), synced=log.synced)
                try:
                    while True:
                        try:
                            found = await asyncio.get_running_loop().run_in_executor(None, lambda: list(read()))
                            break
                        except OutOfDescriptors:  # later
                            await asyncio.sleep(1.0)
                except OSError:
                    if self._has(replica, log):
                        raise
                    return
                if found and self._has(replica, log):
                    replicas.damaged(container_id)
        finally:
            self._scrubbing.discard(container_id)

    def _has(self, replica: LocalReplica, log: ContainerLog) -> bool:
        """Whether a replica still exists, and is not being cut or recreated."""
        present = self.replicas is not None and self.replicas.replica(replica.id) is replica
        return present and replica.log is log and not replica.cycle.is_closed

    # --- chunks are closed as the node's maintenance does

    async def close_chunks(self, replica: LocalReplica) -> None:
        loop = asyncio.get_running_loop()
        log = replica.log
        for chunk in log.chunks_to_close(replica.committed):
            try:
                await loop.run_in_executor(None, log.close_chunk, chunk)
            except StorageFull:
                pass
            except OSError:
                if self._has(replica, log):
                    raise
            if replica.log is not log:
                return

    def lose_folder(self) -> None:
        """All replicas are lost; the node keeps its identity."""
        assert self.process is None
        self._former_replicas.clear()
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.rmtree(data_folder(self), ignore_errors=True)
