"""One storage node as a process: `python -m headrace.node`.

Responsible for putting the parts together in the right order (folder, cluster store, peers, replicas, catalog, broker,
listener), for saying when it is ready, for answering the other nodes' probes, and for stopping cleanly on SIGTERM: what
it leads is handed over first. Exit codes: 0 stopped, 2 refused to start (one line on stderr says why), 70 the disk
failed (invariant 13).
"""

import asyncio
import contextlib
import gc
import io
import json
import os
import resource
import signal
import socket
import sys
import tempfile
import uuid
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TextIO, TypeVar, cast

import structlog
import uvloop
from msgspec import structs

from headrace.broker import peer_apis
from headrace.broker.broker import Broker, NodeIdentity
from headrace.broker.cluster_link import ClusterLink
from headrace.broker.disk_room import DiskRoom
from headrace.broker.listener import Connection
from headrace.catalog.commands import CreateStream, StreamPolicy
from headrace.catalog.service import Catalog
from headrace.container.catalog_log import CatalogLog
from headrace.container.container import Container
from headrace.container.local_replica import LocalReplica
from headrace.container.replicas import Replicas
from headrace.control.controller import Controller
from headrace.control.observed import Settings
from headrace.errors import Code, FolderRefused, HeadraceError, KafkaError, StorageFull
from headrace.folder import DataFolder
from headrace.ids import ContainerId, Millis, NodeId, Position
from headrace.node_disk import NodeDisk
from headrace.node_environment import EXIT_DISK_FAILED, NodeEnvironment
from headrace.node_load import LoadMeter
from headrace.node_options import Options, parse
from headrace.peer.client import PeerClient
from headrace.peer.messages import Follow, NodeLoad, Prepare, Prepared, Probe, ProbeAnswer, Submit, Submitted
from headrace.peer.server import PeerServer
from headrace.peer.session import Session
from headrace.store import records
from headrace.store.protocol import ClusterStore
from headrace.store.records import CATALOG_ID, ClusterRecord, ContainerRecord, NodeRecord
from headrace.store.sqlite import SqliteStore
from headrace.store.view import Changed, ClusterView

log = structlog.get_logger()

T = TypeVar("T")

READERS = 4
GC_THRESHOLDS = (50_000, 20, 1_000)
"""A request makes some tens of objects that die by reference counts; to look at all others often stalls the loop."""
SWITCH_S = 0.001
"""How long a thread may keep the interpreter while the loop waits for it; Python's default is 5 ms."""
EXIT_REFUSED = 2
STORE_SILENT_S: Final = 2.0
HAND_OVER_S: Final = 5.0
"""How long a node that stops waits until others lead what it led."""
SUBMIT_S: Final = 5.0
NEW_CONTAINER_S: Final = 10.0
LED_S: Final = 2.0


class Node:
    """The process's parts, from the folder up."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._settings = options.settings
        self._folder = DataFolder.open(options.data)
        self._executor = ThreadPoolExecutor(READERS, thread_name_prefix="reader")
        self._store_executor = ThreadPoolExecutor(2, thread_name_prefix="store")
        self._room = DiskRoom(options.data, self._settings)
        self._disk = NodeDisk(
            self._room, chunk_bytes=self._settings.chunk_bytes, executor=self._executor, tell=self._tell_full
        )
        self._load = LoadMeter()
        self._catalog_opened = asyncio.Event()
        self._closing = contextlib.AsyncExitStack()
        """What has been started, to be stopped in reverse order."""
        self._ready = False
        self._unusable: dict[ContainerId, HeadraceError] = {}
        """Replicas that are damaged and nowhere else, or that have no room."""
        self._changed = asyncio.Event()
        """Set, and replaced, whenever the view of the cluster store changes."""
        self.ended = asyncio.Event()

    async def start(self) -> NodeIdentity:
        """Recover and serve. Raises `HeadraceError`, `OSError`."""
        options = self._options
        self._closing.callback(self._folder.close)
        self._closing.callback(self._executor.shutdown)
        listening = _listen(options.host, options.port)
        self._closing.callback(listening.close)
        peer_listening = _listen(options.host, options.peer_port, option="--peer-port")
        self._closing.callback(peer_listening.close)
        loop = asyncio.get_running_loop()
        self._store = await loop.run_in_executor(self._executor, SqliteStore, options.store)
        self._closing.callback(self._store.close)
        self._closing.callback(self._store_executor.shutdown)
        port, peer_port = int(listening.getsockname()[1]), int(peer_listening.getsockname()[1])
        cluster, record = await self.store(lambda store: self._register(store, port, peer_port))
        self._record = record
        self.identity = NodeIdentity(
            node_id=record.node_id,
            cluster_id=cluster.cluster_id,
            host=options.host,
            port=port,
            settings=self._settings,
            rack=options.zone or None,
        )
        self.view = ClusterView(self._store)
        await self.view.start()
        self._closing.push_async_callback(self.view.close)
        await self._join(cluster, peer_listening)
        replica = await self._catalog_replica()
        await self._open_catalog(replica)
        self._make_broker()
        await self._caught_up(replica)
        await self._default_stream()
        await self.broker.start()
        await self._somewhere_to_write()
        self._server = await loop.create_server(lambda: Connection(self.broker), sock=listening, backlog=1024)
        self._ready = True
        return self.identity

    async def _join(self, cluster: ClusterRecord, listening: socket.socket) -> None:
        """Meet the other nodes: replicas, the controller's role, and the peers' door."""
        record = self._record
        secret = {"cluster_id": cluster.cluster_id, "secret": cluster.secret}
        self.peers = PeerClient(**secret, node=record.node_id, run=record.run)
        self._closing.push_async_callback(self.peers.close)
        self.replicas = Replicas(
            NodeEnvironment(
                node_id=record.node_id,
                node_format=str(record.format),
                executor=self._executor,
                view=self.view,
                folder=self._options.data / "containers",
                settings=self._settings,
                disk_room=self._room,
                store=self.store,
                peers=self.peers,
            )
        )
        self.replicas.install = self._install_snapshot
        self.replicas.snapshot = self._take_snapshot
        self._closing.push_async_callback(self.replicas.close)
        self._handlers: dict[type, Callable[[Any, memoryview, Session], Awaitable[Any]]] = {
            Probe: self._probed,
            Prepare: self._prepare,
            Submit: self._submitted,
        }
        self._peer_server = PeerServer(
            listening,
            cluster_id=cluster.cluster_id,
            secret=cluster.secret,
            node=record.node_id,
            run=record.run,
            handlers=self._handlers,
            streams={Follow: self.replicas.accept},
        )
        await self._peer_server.start()
        self._closing.push_async_callback(self._peer_server.close)
        self.controller = Controller(
            own=record.node_id,
            run=record.run,
            view=self.view,
            store_call=self.store,
            peers=self.peers,
            own_probe=self.probe,
            settings=Settings(rebuild_after_s=self._options.rebuild_after_s),
        )
        self.view.on_change(self._view_changed)
        self.replicas.on_unusable.append(self._is_unusable)
        self.replicas.on_trouble.append(self.controller.look_at)
        self.replicas.on_opened.append(lambda _: self._wake())
        self.replicas.on_led.append(lambda _: self._wake())
        self.replicas.start()
        self.controller.start()
        self._closing.push_async_callback(self._disk.close)
        self._closing.push_async_callback(self.controller.close)

    async def stop(self) -> None:
        """Hand over, answer what can be answered, sync, and let go of the folder."""
        if self._ready:
            self._ready = False
            await self._hand_over()
            self._server.close()
        await self._closing.aclose()

    # --- the catalog

    async def _catalog_replica(self) -> LocalReplica:
        """This node's replica of the catalog's container, once there is one."""
        while (replica := self.replicas.replica(CATALOG_ID)) is None:
            self._check_usable()
            await self._changed.wait()
        return replica

    def _is_unusable(self, container_id: ContainerId, error: HeadraceError) -> None:
        self._unusable[container_id] = error
        self._wake()

    def _check_usable(self) -> None:
        """Without the catalog nothing can be served: say what is wrong with it, rather than wait in silence."""
        if CATALOG_ID in self._unusable:
            raise self._unusable[CATALOG_ID]

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _open_catalog(self, replica: LocalReplica) -> None:
        self.catalog = await Catalog.open(
            self._options.data / "catalog", CatalogLog(replica, self._executor), route=self._route
        )
        self._closing.push_async_callback(self.catalog.close)
        # What is applied was committed; a follower learns the rest from its primary.
        replica.learn_committed(Position(min(self.catalog.applied, replica.log.synced)))
        replica.applied = lambda: self.catalog.applied
        self._catalog_opened.set()

    async def _route(self, payload: bytes) -> Position:
        """Have the catalog's primary write a command."""
        record = self.view.containers.get(CATALOG_ID)
        node = None if record is None else self.view.nodes.get(record.primary)
        if node is None or node.node_id == self._record.node_id:
            raise KafkaError(Code.NOT_CONTROLLER, "nobody is known to lead the catalog")
        answer, _ = await self._while_it_leads(node)(
            self.peers.call((node.host, node.peer_port), Submit(), [payload], timeout_s=SUBMIT_S)
        )
        return Position(answer.position)

    def _while_it_leads(self, node: NodeRecord) -> Callable[[Awaitable[T]], Awaitable[T]]:
        """Await a call to the catalog's primary no longer than it is that: a dead one would be waited for in vain."""

        async def awaited(call: Awaitable[T]) -> T:
            task = asyncio.ensure_future(call)
            try:
                while not task.done():
                    changed = asyncio.ensure_future(self._changed.wait())
                    await asyncio.wait({task, changed}, return_when=asyncio.FIRST_COMPLETED)
                    changed.cancel()
                    record = self.view.containers.get(CATALOG_ID)
                    if not task.done() and (record is None or record.primary != node.node_id):
                        raise KafkaError(Code.NOT_CONTROLLER, f"node {node.node_id} leads the catalog no more")
                return await task
            finally:
                task.cancel()

        return awaited

    async def _submitted(self, _asked: Submit, payload: memoryview, _session: Session) -> Submitted:
        await self._catalog_opened.wait()
        return Submitted(position=await self.catalog.append(bytes(payload)))

    async def _install_snapshot(self, snapshot: bytearray, position: Position) -> None:
        await self._catalog_opened.wait()
        path = await asyncio.get_running_loop().run_in_executor(self._executor, self._keep_snapshot, snapshot)
        try:
            await self.catalog.install(path, position)
        finally:
            path.unlink()

    def _keep_snapshot(self, snapshot: bytearray) -> Path:
        """[blocking]"""
        descriptor, name = tempfile.mkstemp(dir=self._options.data, prefix="received-", suffix=".tmp")
        with os.fdopen(descriptor, "wb") as file:
            file.write(snapshot)
        return Path(name)

    async def _take_snapshot(self) -> tuple[memoryview, Position]:
        await self._catalog_opened.wait()
        path, position = await self.catalog.newest_snapshot()
        raw = await asyncio.get_running_loop().run_in_executor(self._executor, path.read_bytes)
        return memoryview(raw), position

    async def _caught_up(self, replica: LocalReplica) -> None:
        """Return when the catalog's tables here are those of now, as far as its primary has said."""
        while True:
            self._check_usable()
            container, follower = replica.container, replica.follower
            if container is not None and container.serves:
                await self._applied(container.committed)
                return
            if follower is not None and follower.is_current:
                await self._applied(replica.committed)
                return
            await asyncio.sleep(0.01)

    async def _applied(self, position: Position) -> None:
        """Return when the tables are so far. Raises `StorageFull`: they wait for room, and a start does not."""
        waiting = asyncio.ensure_future(self.catalog.wait_applied(position))
        try:
            while not waiting.done():
                await asyncio.wait({waiting}, timeout=0.05)
                if self.catalog.full:
                    raise StorageFull(f"no room on the disk for the catalog in {self._options.data}; free some")
            waiting.result()
        finally:
            waiting.cancel()

    async def _default_stream(self) -> None:
        if await self.catalog.query(lambda reader: reader.stream(Broker.default_stream)) is None:
            policy = StreamPolicy(auto_create=True)
            now = Millis(self.broker.now())
            await self.catalog.submit(CreateStream(path=Broker.default_stream, policy=policy, now=now))

    # --- the broker

    def _make_broker(self) -> None:
        self.broker = Broker(
            node=self.identity,
            folder=self._options.data / "containers",
            catalog=self.catalog,
            executor=self._executor,
            producer_block=lambda size: records.next_producer_block(self._store, size),
            cluster=ClusterLink(node_id=self._record.node_id, view=self.view, replicas=self.replicas, peers=self.peers),
            store=self.store,
            controller=self.controller,
        )
        self._closing.push_async_callback(self.broker.close)
        self.broker.space.attach(self._new_container, self._close_container, self._delete_container, CATALOG_ID)
        for container in list(self.replicas.led.values()):
            self.broker.container_led(container)
        self.replicas.on_led.append(self.broker.container_led)
        self.replicas.on_left.append(self.broker.container_left)
        self._handlers.update(peer_apis.handlers(self.broker))

    async def _somewhere_to_write(self) -> None:
        """Return when there is a container for new partitions, and this node leads what it is to lead of them.

        A fresh cluster makes the first ones now. One that cannot be led is not waited for: others may be.
        """
        while not self.broker.cluster.open_data():
            await self._changed.wait()
        try:
            async with asyncio.timeout(LED_S):
                while not self._leads_its_own():
                    await self._changed.wait()
        except TimeoutError:
            log.warning("serves without having taken up all that it is to lead", node=self._record.node_id)

    def _leads_its_own(self) -> bool:
        own = self._record.node_id
        records_here = [record for record in self.broker.cluster.open_data() if record.primary == own]
        return all(record.container_id in self.replicas.led for record in records_here)

    async def _new_container(self, volume: str = "default") -> Container:
        """The next container that this node leads first."""
        record = await self.controller.create(
            first=self._record.node_id, volume=self.view.volumes.get(volume) or records.VolumeRecord(volume)
        )
        led = asyncio.Event()
        callback = _tell(record.container_id, led)
        self.replicas.on_led.append(callback)
        try:
            self.view.refresh()
            async with asyncio.timeout(NEW_CONTAINER_S):
                while record.container_id not in self.replicas.led:
                    await led.wait()
            return self.replicas.led[record.container_id]
        finally:
            self.replicas.on_led.remove(callback)

    async def _close_container(self, container: Container) -> None:
        await self._set_state(container, "closed")

    async def _delete_container(self, container: Container) -> None:
        await self._set_state(container, "deleted")

    async def _set_state(self, container: Container, state: str) -> None:
        await self.store(
            lambda store: records.change_container(store, container.id, lambda now: _with_state(now, state))
        )
        self.view.refresh()

    # --- the cluster store

    async def store(self, change: Callable[[ClusterStore], T]) -> T:
        """Run a blocking call on the cluster store in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._store_executor, change, self._store)

    def _register(self, store: ClusterStore, port: int, peer_port: int) -> tuple[ClusterRecord, NodeRecord]:
        """[blocking]"""
        options = self._options
        cluster = records.ensure_cluster(store, first_nodes=options.first_nodes)
        replicas = min(3, cluster.first_nodes)
        records.ensure_volume(
            store, records.VolumeRecord("default", replicas=replicas, min_in_sync=2 if replicas == 3 else 1)
        )
        identity = self._folder.identity()
        if identity is not None:
            self._folder.check_cluster(identity, cluster.cluster_id)
        folder_id = uuid.UUID(identity.folder_id) if identity is not None else uuid.uuid4()
        record = records.register_node(
            store,
            node_id=NodeId(identity.node_id) if identity is not None else None,
            format=folder_id,
            run=uuid.uuid4(),
            host=options.host,
            port=port,
            peer_port=peer_port,
            failure_host=options.failure_host or socket.gethostname(),
            zone=options.zone,
            labels=options.labels,
        )
        if identity is None:
            self._folder.claim(cluster_id=cluster.cluster_id, node_id=record.node_id, folder_id=str(folder_id))
        return cluster, record

    def _view_changed(self, changed: Changed) -> None:
        self._wake()
        self.replicas.records_changed(changed.containers)
        if hasattr(self, "broker") and (changed.containers or changed.nodes):
            self.broker.records_changed(changed.containers)
        if changed.nodes and self.view.nodes.get(self._record.node_id) is None:
            log.critical("this node was removed from the cluster; it stops", node=self._record.node_id)
            self.ended.set()

    # --- the other nodes

    async def _prepare(self, asked: Prepare, _payload: memoryview, _session: Session) -> Prepared:
        return Prepared(format=await self.replicas.prepare(ContainerId(asked.container)))

    async def _probed(self, _asked: Probe, _payload: memoryview, _session: Session) -> ProbeAnswer:
        return self.probe()

    def probe(self) -> ProbeAnswer:
        """How this node is."""
        now = asyncio.get_running_loop().time()
        load = None
        if hasattr(self, "broker"):
            self._disk.look()
            load = self._load.read(self.broker, disk_used=self._disk.used, disk_total=self._disk.total)
        return ProbeAnswer(
            node=self._record.node_id,
            run=self._record.run,
            replicas=self.replicas.states(),
            load=load or NodeLoad(),
            reaches_store=now - self.view.reachable_at < STORE_SILENT_S,
            ready=self._ready,
            heard=sorted(self.controller.heard()),
        )

    async def _tell_full(self, full: bool) -> None:
        """Say in the cluster store that this node has hardly any room left, or has again."""
        await self.store(lambda store: records.set_full(store, self._record.node_id, full, run=self._record.run))
        self.view.refresh()

    def _has_heir(self) -> bool:
        return any(not node.stopping for node in self.view.nodes.values() if node.node_id in self.controller.heard())

    async def _hand_over(self) -> None:
        """Have others lead what this node leads, where there are others."""
        led = [
            container.id
            for container in self.replicas.led.values()
            if any(member.node != self._record.node_id for member in container.primary.in_sync)
        ]
        if not led:
            return
        for container in self.replicas.led.values():
            container.handing_over = container.id in led  # invariant 16
        try:
            await self.store(lambda store: records.set_stopping(store, self._record.node_id, run=self._record.run))
            async with asyncio.timeout(HAND_OVER_S):
                while any(container in self.replicas.led for container in led) and self._has_heir():
                    await self._changed.wait()
        except (HeadraceError, TimeoutError) as error:
            log.info("stops without having handed over all", reason=str(error) or "timeout")


def _tell(container_id: ContainerId, led: asyncio.Event) -> Callable[[Container], None]:
    return lambda container: led.set() if container.id == container_id else None


def _with_state(record: ContainerRecord, state: str) -> ContainerRecord:
    return structs.replace(record, state=state)


def _listen(host: str, port: int, *, option: str = "--port") -> socket.socket:
    """A bound socket. Raises `FolderRefused` with a line that says who has the port."""
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise FolderRefused(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another with {option}"
        ) from error
    listening.setblocking(False)
    return listening


async def serve(options: Options) -> int:
    """Run a node until SIGTERM or SIGINT; the exit code."""
    loop = asyncio.get_running_loop()
    node = Node(options)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, node.ended.set)
    try:
        identity = await node.start()
    except BaseException:
        await node.stop()
        raise
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    log.info("ready", node=identity.node_id, address=f"{identity.host}:{identity.port}", pid=os.getpid())
    if options.ready_file is not None:
        _write_ready(options.ready_file, identity)
    ended = loop.create_task(node.ended.wait())
    waited: set[asyncio.Future[Any]] = {ended, node.catalog.failed}
    await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
    failed = node.catalog.failed.done()
    if failed:
        log.critical("the catalog failed, this process ends", error=repr(node.catalog.failed.exception()))
    log.info("stopping", node=identity.node_id)
    ended.cancel()
    await node.stop()
    return EXIT_DISK_FAILED if failed else 0


def _write_ready(path: Path, identity: NodeIdentity) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(
        json.dumps({"id": identity.node_id, "host": identity.host, "port": identity.port, "pid": os.getpid()})
    )
    temporary.rename(path)


def main(arguments: Sequence[str] | None = None) -> int:
    """The process."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    _log_to_stderr()
    sys.setswitchinterval(SWITCH_S)
    try:
        return uvloop.run(serve(options))
    except HeadraceError as error:
        print(f"headrace: {error}", file=sys.stderr)
        return EXIT_REFUSED
    except OSError as error:
        print(f"headrace: cannot start in {options.data}: {error}", file=sys.stderr)
        return EXIT_REFUSED


class _Lossy(io.TextIOBase):
    """A stream for the log: where the disk that it goes to is full, lines are lost, and nothing else."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write what can be written."""
        with contextlib.suppress(OSError):
            return self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Write out what is buffered, or drop it."""
        with contextlib.suppress(OSError):
            self._stream.flush()


def _log_to_stderr() -> None:
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            structlog.processors.LogfmtRenderer(key_order=("timestamp", "level", "event")),
        ],
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, _Lossy(sys.stderr))),
        cache_logger_on_first_use=True,
    )


if __name__ == "__main__":
    sys.exit(main())
