"""The parts of one storage node, assembled in the right order.

The order is folder, cluster store, peers, replicas, catalog, the parts that serve clients, listeners. The node reports
when it is ready, answers the other nodes' probes, and hands over what it leads before it stops.
"""

import asyncio
import contextlib
import errno
import os
import socket
import time
import uuid
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import structlog
from msgspec import structs

from headrace import __version__
from headrace.base.acceptor import Acceptor, Factory
from headrace.base.awake_clock import AwakeClock
from headrace.base.descriptor_plan import plan_of_process
from headrace.base.errors import Code, FolderRefused, HeadraceError, KafkaError, NewerFormat, StorageFull
from headrace.base.ids import ContainerId, Millis, NodeId
from headrace.base.levels import Level
from headrace.base.runtime import Runtime
from headrace.base.sockets import keep_alive
from headrace.catalog.catalog import Catalog
from headrace.catalog.names import DEFAULT_STREAM
from headrace.container import replica_folder
from headrace.container.leader import Leader
from headrace.container.replicas import Replicas
from headrace.container.writer_pool import WriterPool
from headrace.control.controller import Controller
from headrace.control.observations import Settings
from headrace.links.failover.forwarding import Forwarding
from headrace.links.pull.home_links import HomeLinks
from headrace.log.descriptors import OPENED
from headrace.metrics.log_times import LogTimes
from headrace.node import peer_listener, securing
from headrace.node.admin_calls import serve_admin_calls
from headrace.node.bootstrap_admin import BootstrapAdmin, read_bootstrap_admin
from headrace.node.catalog import NodeCatalog
from headrace.node.changes import Changes
from headrace.node.client_apis import serve_clients
from headrace.node.client_listeners import ClientListener, ClientListeners, read
from headrace.node.containers import NodeContainers
from headrace.node.disk import NodeDisk
from headrace.node.environment import NodeEnvironment
from headrace.node.folder import FORMER_S, DataFolder, Identity
from headrace.node.health import why_not_ready, why_not_safe
from headrace.node.links import make_forwarding, make_links, serve_links
from headrace.node.load import LoadMeter
from headrace.node.metrics_port import MetricsPort
from headrace.node.open_listeners import check_open
from headrace.node.options import KubernetesCluster, Options
from headrace.node.parts import NodeParts
from headrace.node.peer_listener import PeerListener
from headrace.node.registration import Registration
from headrace.node.sasl_logins import SaslLogins
from headrace.node.store_recovery import StoreRecovery
from headrace.node.tracing import Tracing
from headrace.partitions.cluster_client import ClusterClient
from headrace.partitions.cluster_layout import NodeIdentity
from headrace.partitions.forwarding import Forwards
from headrace.partitions.home_check import HomeAddresses
from headrace.partitions.peer_apis import PeerApis
from headrace.peer.client import PeerClient
from headrace.peer.messages import (
    Follow,
    PairUp,
    Prepare,
    Prepared,
    Probe,
    ProbeAnswer,
    ReadMarks,
    ReadSnapshot,
    Submit,
    Unrecorded,
)
from headrace.peer.reports import NodeLoad
from headrace.peer.server import PeerServer
from headrace.peer.session import Session
from headrace.storage.disk_room import DiskRoom
from headrace.store import features, records
from headrace.store.protocol import ClusterStore, StoreCall, StoreUnavailable
from headrace.store.record_types import default_min_in_sync, default_replicas
from headrace.store.records import CATALOG_ID, ClusterRecord, NodeRecord
from headrace.store.sqlite import SqliteStore
from headrace.store.view import Changed, ClusterView

if TYPE_CHECKING:
    from headrace.admin.http import HttpPort
    from headrace.node.metrics import NodeScrape
    from headrace.store.kubernetes.store import KubernetesStore

log = structlog.get_logger()

T = TypeVar("T")

READERS = 4
STORE_SILENT_S: Final = 2.0
STORE_CALLS: Final = 2
KUBERNETES_CALLS: Final = 16
"""Concurrent calls to Kubernetes' API. A call takes some milliseconds, and a failover makes hundreds of calls, of which
control.put_queue has the same number in progress at a time."""
STORE_AGAIN_S: Final = 1.0

PeerHandlers = dict[type, Callable[[Any, memoryview, Session], Awaitable[Any]]]
ANY_ADDRESS: Final = frozenset({"", "0.0.0.0", "::"})
"""Addresses that name no machine."""
DAMAGE_SHOWN: Final = 200
"""Largest length of the description of damage that other nodes receive, in characters."""


class Node:
    """One node's parts, from the folder up."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._settings = options.settings
        self._folder = DataFolder.open(options.data)
        self._executor = ThreadPoolExecutor(READERS, thread_name_prefix="reader")
        at_once = STORE_CALLS if isinstance(options.store, Path) else KUBERNETES_CALLS
        self._store_executor = ThreadPoolExecutor(at_once, thread_name_prefix="store")
        self._lease_executor = ThreadPoolExecutor(1, thread_name_prefix="lease")
        self._room = DiskRoom(options.data, self._settings)
        self._disk = NodeDisk(
            self._room, chunk_bytes=self._settings.chunk_bytes, executor=self._executor, tell=self._tell_full
        )
        self._tracing = Tracing(options.tracing_endpoint, environment=os.environ, executor=self._executor)
        self._load = LoadMeter()
        self._log_times = LogTimes()
        self._scrape: NodeScrape | None = None
        """None until metrics are first requested."""
        self._started_s = time.time()
        self._closing = contextlib.AsyncExitStack()
        """Everything that has been started, to be stopped in reverse order."""
        self._acceptors: list[Acceptor] = []
        self._listeners = ClientListeners([], self._executor)
        self._peer_listener: PeerListener | None = None
        self._ready = False
        self._keeps_replicas = False
        """Whether `replicas`, and what belongs to them, have been created."""
        self._serves = False
        """Whether `parts` have been created."""
        self._waits_for = "its folder"
        """What the node waits for until it is ready."""
        self.admin_port: int | None = None
        self.metrics_port: int | None = None
        self._changes = Changes()
        self._fenced = 0
        """The highest feature level that the folder has seen."""
        self._noted = 0
        """The feature level that the catalog's log is known to have reached."""
        self._level_task: asyncio.Task[None] | None = None
        self.ended = asyncio.Event()
        self._run = uuid.uuid4()

    async def start(self) -> NodeIdentity:
        """Recover and serve. Raises `HeadraceError`, `OSError`."""
        options = self._options
        self._closing.callback(self._folder.close)
        self._closing.callback(self._executor.shutdown)
        bind = options.bind or options.host
        loop = asyncio.get_running_loop()
        self._awake = AwakeClock(loop)
        self._awake.start()
        self._closing.callback(self._awake.close)
        taken = options.listeners.keys()
        configured = await loop.run_in_executor(self._executor, partial(read, options.listeners_file, taken=taken))
        configs = [each.config for each in configured]
        allowed = options.allow_anonymous
        check_open(bind, named=taken, configured=configs, allowed=allowed, secure=options.secure)
        admin = None
        if options.bootstrap_admin is not None:
            admin = await loop.run_in_executor(self._executor, read_bootstrap_admin, options.bootstrap_admin)
        self._peer_listener = await loop.run_in_executor(
            self._executor, partial(peer_listener.read, options.peer_tls, options.peer_tls_mode, options.peer_secrets)
        )
        self._listeners = ClientListeners(configured, self._executor, peer=self._peer_listener)
        main = next((each.name for each in configs if each.is_main), "")
        listening = {main: await _listen(bind, options.port)}
        self._closing.callback(listening[main].close)
        peer_listening = await _listen(bind, options.peer_port, option="--peer-port")
        self._closing.callback(peer_listening.close)
        for name, asked in options.listeners.items():
            listening[name] = await _listen(bind, asked, option="--listener")
            self._closing.callback(listening[name].close)
        for listener in configured:
            name = listener.config.name
            if name != main:
                listening[name] = await _listen(bind, listener.config.port, option="--listeners")
                self._closing.callback(listening[name].close)
            listener.port = int(listening[name].getsockname()[1])
        if options.admin_port is not None:
            self.admin_port = await self._serve_http(bind, options.admin_port)
        if options.metrics_port is not None:
            metrics_port = MetricsPort(self._serve_metrics)
            self.metrics_port = metrics_port.start(options.metrics_port)
            self._closing.push_async_callback(metrics_port.close)
        OPENED.limit(plan_of_process().chunks)
        self._waits_for = "the cluster store"
        self._store = await loop.run_in_executor(self._executor, _open_store, options.store)
        self._closing.callback(self._store.close)
        self._closing.callback(self._store_executor.shutdown)
        self._closing.callback(self._lease_executor.shutdown)
        port, peer_port = int(listening[main].getsockname()[1]), int(peer_listening.getsockname()[1])
        cluster, record = await self._registered(port, peer_port)
        self._record = record
        self.identity = NodeIdentity(
            node_id=record.node_id,
            cluster_id=cluster.cluster_id,
            host=options.host,
            port=port,
            settings=self._settings,
            rack=options.zone or None,
        )
        await self._tracing.start(
            {
                "service.version": __version__,
                "service.instance.id": str(self._run),
                "headrace.cluster": cluster.cluster_id,
                "headrace.node": str(record.node_id),
            }
        )
        self._closing.push_async_callback(self._tracing.close)
        self.view = ClusterView(self._store)
        self._closing.push_async_callback(self.view.close)
        await self.view.start()
        self._listeners.start()  # joining may wait until files that others refuse are replaced
        self._closing.push_async_callback(self._listeners.close)
        await self._join(cluster, peer_listening)
        self._waits_for = "the catalog"
        replica = await self._catalog.replica()
        self.catalog = await self._catalog.open(replica)
        self._closing.push_async_callback(self._catalog.close)
        self._closing.push_async_callback(self.catalog.close)
        runtime = Runtime(executor=self._executor, clock=self.controller.clocks, awake=self._awake)
        home_links = HomeLinks()
        forwarding = make_forwarding(home_links, runtime=runtime, own_cluster=cluster.cluster_id, secret=cluster.secret)
        self.parts = make_parts(
            identity=self.identity,
            runtime=runtime,
            data=options.data,
            catalog=self.catalog,
            producer_block=self._producer_block,
            link=ClusterClient(node_id=record.node_id, view=self.view, replicas=self.replicas, peers=self.peers),
            store=self.store,
            controller=self.controller,
            containers=self.containers,
            handlers=self._handlers,
            home_addresses=home_links.addresses,
            forwards=forwarding,
            listeners=self._listeners.shown,
            audit_allowed=options.audit_allowed,
            tracing=self._tracing,
        )
        self._serves = True
        self._closing.push_async_callback(self.parts.close)
        await self._catalog.caught_up(replica)
        await self._catalog.ensure_default_stream(Millis(self.parts.runtime.now()))
        await self._ensure_security(admin)
        await self.parts.start()
        self.replicas.add_container_listener(_LevelListener(self._follow_level))
        self._follow_level()
        await self._start_links(home_links, forwarding, cluster.secret)
        self._waits_for = "a container for new partitions"
        await self.containers.taken_up(self.parts.cluster.open_data)
        logins = SaslLogins(
            runtime=runtime,
            catalog=self.catalog,
            secret=cluster.secret,
            handler=self.parts.dispatcher,
            audit=self.parts.logins,
        )
        self._closing.callback(logins.close)
        by_name = {each.config.name: each for each in configured}
        for name, each in listening.items():
            self._accept(name, each, by_name.get(name), logins)
        self._ready = True
        return self.identity

    async def _join(self, cluster: ClusterRecord, listening: socket.socket) -> None:
        """Join the other nodes: start the replicas, the controller's role, and the listener for peers."""
        record = self._record
        secret = {"cluster_id": cluster.cluster_id, "secret": cluster.secret}
        tls = None if self._peer_listener is None else self._peer_listener.tls
        self.peers = PeerClient(**secret, node=record.node_id, run=record.run, tls=tls, clock=self._awake)
        self._closing.push_async_callback(self.peers.close)
        writer_pool = WriterPool()
        self._closing.callback(writer_pool.close)
        self._environment = NodeEnvironment(
            node_id=record.node_id,
            node_format=str(record.format),
            executor=self._executor,
            writer_pool=writer_pool,
            view=self.view,
            folder=self._options.data / "containers",
            settings=self._settings,
            disk_room=self._room,
            store=self.store,
            peers=self.peers,
            times=self._log_times,
        )
        self.controller = Controller(
            own=record.node_id,
            run=record.run,
            view=self.view,
            store_call=self.store,
            peers=self.peers,
            own_probe=self.probe,
            settings=Settings(rebuild_after_s=self._options.rebuild_after_s),
            lease_call=self.lease_call,
            tracer=self._tracing.tracer,
        )
        if self._tracing.problem:
            problem = f"node {record.node_id} has no traces: {self._tracing.problem}"
            self.controller.events.add("tracing", problem, node=record.node_id)
        self.replicas = Replicas(
            self._environment,
            others=self.controller,
            receive=lambda position, size: self._catalog.receive(position, size),
            snapshot=lambda least: self._catalog.snapshot(least),
        )
        self._catalog = NodeCatalog(
            node_id=record.node_id,
            run=record.run,
            data=self._options.data,
            executor=self._executor,
            view=self.view,
            replicas=self.replicas,
            peers=self.peers,
            changes=self._changes,
            room=self._room.check_copy,
            snapshot_rate=self._settings.snapshot_rate,
            tell=lambda kind, reason: self.controller.events.add(kind, reason, node=record.node_id),
        )
        self._closing.push_async_callback(self.replicas.close)
        self._recovery = StoreRecovery(
            node=record.node_id, replicas=self.replicas, peers=self.peers, store=self.store, view=self.view
        )
        self._keeps_replicas = True
        self._handlers: PeerHandlers = {
            Probe: self._probed,
            Prepare: self._prepare,
            Submit: self._catalog.submitted,
            ReadSnapshot: self._catalog.snapshot_read,
            ReadMarks: self._catalog.marks_read,
            Unrecorded: self._recovery.answer,
        }
        self._peer_server = PeerServer(
            listening,
            cluster_id=cluster.cluster_id,
            secret=cluster.secret,
            node=record.node_id,
            run=record.run,
            handlers=self._handlers,
            streams={Follow: self.replicas.accept, PairUp: self.replicas.accept_pair},
            tls=tls,
            clock=self._awake,
        )
        if self._peer_listener is not None:
            self._peer_listener.serves(self._peer_server, self.peers, secret=cluster.secret)
        await self._peer_server.start()
        self._closing.push_async_callback(self._peer_server.close)
        self.containers = NodeContainers(
            node=record,
            view=self.view,
            replicas=self.replicas,
            controller=self.controller,
            store=self.store,
            changes=self._changes,
            note_stop=lambda: self._folder.stops(str(self._run)),
        )
        self._registration = Registration(
            record,
            view=self.view,
            store=self.store,
            folder_level=lambda: self._fenced,
            full=lambda: self._disk.full,
            removed=self._removed,
        )
        self.view.on_change(self._view_changed)
        self.controller.on_answer(self.replicas.told)
        self.replicas.add_replica_listener(self._changes)
        self.replicas.add_container_listener(self._changes)
        self.replicas.start()
        self.controller.start()
        self._closing.push_async_callback(self._disk.close)
        self._closing.push_async_callback(self.controller.close)
        self._closing.push_async_callback(self._registration.close)

    async def _ensure_security(self, admin: BootstrapAdmin | None) -> None:
        """Make the cluster secure and give it an administrator, if this node's options ask for that."""
        if not self._options.secure and admin is None:
            return
        self._waits_for = securing.WAITS_FOR
        await securing.until_level(self.view.may)
        self._waits_for = "the catalog"
        if admin is not None:
            now = Millis(self.parts.runtime.now())
            await securing.ensure_admin(self.catalog, admin, executor=self._executor, now=now)
        if self._options.secure:
            await securing.secure(self.catalog)

    def _accept(self, name: str, listening: socket.socket, listener: ClientListener | None, logins: SaslLogins) -> None:
        identify = None if listener is None else listener.identify()
        sasl = None if listener is None or listener.config.sasl is None else logins.gate(listener)
        accepted = self.parts.dispatcher.accepted if sasl is None else sasl.accepted
        default_stream = DEFAULT_STREAM if listener is None else listener.default_stream
        if listener is None:
            handshakes = None
        else:
            room = () if sasl is None else (logins.unproven.make_room,)
            handshakes = listener.handshakes(self._awake, *room)
        protocols = partial(accepted, listener=name, default_stream=default_stream, identify=identify)
        acceptor = Acceptor(
            listening,
            cast(Factory, protocols),  # a Connection has a protocol's methods; uvloop needs no more
            self.parts.connections.admission,
            handshakes,
            delay_s=self.parts.throttle.connection_delay_s,
        )
        acceptor.start()
        self._closing.callback(acceptor.close)
        self._acceptors.append(acceptor)

    async def _start_links(self, home_links: HomeLinks, forwarding: Forwarding, secret: str) -> None:
        self.links = make_links(self.parts, home_links=home_links, forwarding=forwarding, secret=secret)
        self._closing.push_async_callback(self.links.close)
        self._handlers.update(self.links.handlers())
        self.replicas.add_container_listener(self.links)
        await self.links.start()

    async def _serve_http(self, host: str, port: int) -> int:
        served = self._http_port(is_read_only=False)
        self._closing.push_async_callback(served.close)
        return await served.start(host, port)

    async def _serve_metrics(self, listening: socket.socket) -> None:
        """Serve health and metrics at a socket, once the modules for it are loaded in a thread."""
        loop = asyncio.get_running_loop()
        for module in ("headrace.admin.http", "headrace.node.metrics"):
            await loop.run_in_executor(self._executor, import_module, module)
        served = self._http_port(is_read_only=True)
        self._closing.push_async_callback(served.close)
        await served.serve(listening)

    def _http_port(self, *, is_read_only: bool) -> "HttpPort":
        from headrace.admin.http import HttpPort  # loaded only by nodes with such a port

        return HttpPort(
            ready=self._why_not_ready,
            safe=self._why_not_safe,
            metrics=self._metrics,
            kafka_metrics=self._kafka_metrics,
            hand_over=self._hand_over,
            recover_store=self._recover_store,
            token_file=self._options.admin_token_file,
            names={self._options.host, self._options.peer_host, self._options.bind} - ANY_ADDRESS,
            is_read_only=is_read_only,
            clock=self._awake,
        )

    def _why_not_ready(self) -> str:
        if not self._ready:
            return f"the node {'stops' if self.ended.is_set() else f'waits for {self._waits_for}'}{self._trouble()}"
        return why_not_ready(
            self.view, self._record.node_id, led=self.replicas.led.keys(), heard=self.controller.heard()
        )

    def _trouble(self) -> str:
        """Why this node's replica of the catalog could not take its role, which may be why the node is not ready; "":
        it could."""
        problem = self.replicas.problem(CATALOG_ID) if self._keeps_replicas else ""
        return f": {problem}" if problem else ""

    def _why_not_safe(self) -> str:
        if not self._ready:
            return self._why_not_ready()
        return why_not_safe(self.view, self._record.node_id, heard=self.controller.heard())

    async def _metrics(self) -> bytes | None:
        return await self._scraped().text() if self._ready else None

    async def _kafka_metrics(self) -> bytes | None:
        return await self._scraped().kafka_text() if self._ready else None

    def _scraped(self) -> "NodeScrape":
        """The object that answers scrapes; it samples groups and links from its first use on."""
        if self._scrape is None:
            from headrace.node.metrics import NodeScrape  # loaded at the first scrape

            self._scrape = NodeScrape(
                self.parts,
                status=self._status,
                log_times=self._log_times,
                links=self.links,
                peers=self.peers,
                controller=self.controller,
                tracing=self._tracing,
            )
            self._scrape.start()
        return self._scrape

    async def _status(self) -> dict[str, Any]:
        silent_s = asyncio.get_running_loop().time() - self.view.reachable_at
        return {
            **await self.parts.status.status(),
            "ready": int(not self._why_not_ready()),
            "controller": int(self.controller.holds_lease),
            "store_silent_s": round(silent_s, 3),
            "started_s": self._started_s,
            "cpu_s": time.process_time(),
            "now_s": time.time(),
        }

    async def _hand_over(self) -> None:
        if self._ready:
            await self.containers.hand_over()

    async def _recover_store(self, apply: bool) -> dict[str, Any]:
        if not self._keeps_replicas:
            raise KafkaError(Code.BROKER_NOT_AVAILABLE, f"the node waits for {self._waits_for}")
        return await self._recovery.recover(apply=apply)

    async def stop(self) -> None:
        """Hand over leadership, answer what can be answered, sync, and unlock the folder."""
        if self._ready:
            self._ready = False
            await self.containers.hand_over()
            for acceptor in self._acceptors:
                acceptor.close()
        await self._closing.aclose()

    # --- the cluster store

    async def _registered(self, port: int, peer_port: int) -> tuple[ClusterRecord, NodeRecord]:
        """Register this node, and wait for the store if it is on another machine and unavailable. Raises
        HeadraceError."""
        has_warned = False
        while True:
            try:
                return await self.store(lambda store: self._register(store, port, peer_port))
            except StoreUnavailable as error:
                if isinstance(self._options.store, Path):
                    raise
                self._waits_for = f"the cluster store: {error}"
                if not has_warned:
                    log.warning("waits for the cluster store", reason=str(error))
                has_warned = True
            await asyncio.sleep(STORE_AGAIN_S)

    async def store(self, change: Callable[[ClusterStore], T]) -> T:
        """Run a blocking call on the cluster store in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._store_executor, change, self._store)

    async def lease_call(self, change: Callable[[ClusterStore], T]) -> T:
        """Run a blocking call about the controller's lease in a thread of its own. When a node has died, hundreds of
        other calls may be queued, and the lease decides who handles them.
        """
        return await asyncio.get_running_loop().run_in_executor(self._lease_executor, change, self._store)

    def _register(self, store: ClusterStore, port: int, peer_port: int) -> tuple[ClusterRecord, NodeRecord]:
        """[blocking]"""
        options = self._options
        cluster = records.ensure_cluster(store, first_nodes=options.first_nodes)
        level_record = features.get_features(store)
        features.check_level(level_record)
        level = level_record.required
        replicas = cluster.replicas or default_replicas(cluster.first_nodes)
        minimum = cluster.min_in_sync or default_min_in_sync(replicas)
        records.ensure_volume(store, records.VolumeRecord("default", replicas=replicas, min_in_sync=minimum))
        present = self._folder.identity()
        lost = False
        if present is not None:
            self._folder.check_cluster(present, cluster.cluster_id)
            self._check_old_copy(store, present)
            lost = records.may_be_lost(store, NodeId(present.node_id), folder_level=present.level)
            if lost or records.get_node(store, NodeId(present.node_id)) is not None:
                self._fenced = self._folder.fence(level)  # not a removed node's folder: see may_be_lost
        identity = present or self._reserved(store, cluster.cluster_id)
        run = self._run
        record = records.register_node(
            store,
            node_id=NodeId(identity.node_id),
            new=present is None or lost,
            format=uuid.UUID(identity.folder_id),
            run=run,
            host=options.host,
            port=port,
            peer_host=options.peer_host,
            peer_port=peer_port,
            slot=options.slot,
            failure_host=options.failure_host or socket.gethostname(),
            zone=options.zone,
            labels=options.labels,
            supports=features.own_range(run),
            listeners={each.config.name: each.port for each in self._listeners.listeners if not each.config.is_main},
        )
        if present is None:
            self._fenced = level
            runs = (str(run),) if level >= Level.FENCED else ()
            self._folder.claim(replace(identity, level=level, runs=runs))
        return cluster, record

    def _check_old_copy(self, store: ClusterStore, present: Identity) -> None:
        """[blocking] If the folder was restored from an older copy, mark its replicas as not in sync; then note this
        run in the folder.

        Raises StorageFull if the run cannot be noted: once the run had registered, the folder would pass for an older
        copy.
        """
        known = records.get_node(store, NodeId(present.node_id))
        if known is not None and present.is_older_than(str(known.run), stopping=known.stopping):
            changed = replica_folder.all_as_others(self._options.data / "containers")
            log.error(
                "the data folder is an older copy of itself: its replicas are not in sync, and catch up with others",
                node=present.node_id,
                replicas=changed,
                newest_run_here=present.runs[-1],
                newest_run=str(known.run),
            )
        try:
            self._folder.begins(str(self._run), after="" if known is None else str(known.run))
        except StorageFull as error:
            if present.runs:
                raise
            log.warning(
                "process incarnations are not recorded in the data folder yet", reason=str(error)
            )  # it has no runs yet

    def _producer_block(self, size: int) -> range:
        """[blocking]"""
        least = self.view.highest.get(records.PRODUCER_IDS_KEY, 0)
        return records.next_producer_block(self._store, size, least=least)

    def _reserved(self, store: ClusterStore, cluster_id: str) -> Identity:
        """[blocking] The identity for a new folder. A cluster store that was set back may hand out an id that is
        taken."""
        while True:
            reserved = self._folder.reserved(cluster_id, lambda: records.take_node_id(store))
            known = records.get_node(store, NodeId(reserved.node_id))
            if known is None or str(known.format) == reserved.folder_id:
                return reserved
            self._folder.drop_reserved()

    def _view_changed(self, changed: Changed) -> None:
        self._changes.wake()
        self.replicas.records_changed(changed.containers)
        self.replicas.volumes_changed(changed.volumes)
        if self._serves and (changed.containers or changed.nodes):
            self.parts.records_changed(changed.containers)
        if changed.features or changed.nodes:
            self._follow_level()
        self._registration.look()

    def _removed(self, reason: str) -> None:
        log.critical("this node was removed from the cluster; it stops", node=self._record.node_id, reason=reason)
        self.ended.set()

    def _follow_level(self) -> None:
        """Follow the cluster's feature level: make older versions refuse this node's folder as soon as the level is
        about to be raised, and make sure that the cluster knows which levels this run supports."""
        level_record = self.view.features
        try:
            features.check_level(level_record)
        except NewerFormat as error:
            self._environment.too_new(error)
        if self._level_task is None and self._next_level_step() is not None:
            self._level_task = asyncio.get_running_loop().create_task(self._follow_steps(), name="feature level")
            self._closing.callback(self._level_task.cancel)

    def _next_level_step(self) -> Callable[[], Awaitable[None]] | None:
        """The next step towards what the view shows; None: all is done."""
        level_record, own = self.view.features, self.view.nodes.get(self._record.node_id)
        if level_record.required > self._fenced:
            return partial(self._fence, level_record.required)
        if own is not None and own.run == self._record.run and own.supports != self._record.supports:
            return self._say_range
        if level_record.required < self._fenced:
            return partial(self._raise_again, self._fenced)
        # Before the tables are open this would have no effect; `start` follows the level once they are.
        if level_record.level > self._noted and CATALOG_ID in self.replicas.led and self._catalog.is_open:
            return partial(self._note_level, level_record.level)
        return None

    async def _follow_steps(self) -> None:
        try:
            while (step := self._next_level_step()) is not None:
                try:
                    await step()
                except (HeadraceError, OSError) as error:
                    level = self.view.features.required
                    log.warning("the cluster's feature level is not applied yet", level=level, reason=str(error))
                    await asyncio.sleep(STORE_AGAIN_S)
                except Exception:
                    log.exception("following the cluster's feature level failed")
                    await asyncio.sleep(STORE_AGAIN_S)
        finally:
            self._level_task = None

    async def _fence(self, level: int) -> None:
        fence = partial(self._folder.fence, level)
        self._fenced = await asyncio.get_running_loop().run_in_executor(self._executor, fence)
        log.info("older versions refuse this folder from now on", level=level)

    async def _raise_again(self, level: int) -> None:
        await self.store(lambda store: features.raise_again(store, level))
        log.warning("the feature level is raised again, as the cluster store was set back", level=level)
        self.view.refresh()
        await asyncio.sleep(STORE_AGAIN_S)

    async def _say_range(self) -> None:
        supports = self._record.supports
        assert supports is not None
        await self.store(lambda store: features.publish_range(store, self._record.node_id, supports))
        self.view.refresh()
        await asyncio.sleep(STORE_AGAIN_S)

    async def _note_level(self, level: int) -> None:
        await self._catalog.raise_level(level)
        self._noted = level

    # --- the other nodes

    async def _prepare(self, asked: Prepare, _payload: memoryview, _session: Session) -> Prepared:
        return Prepared(format=await self.replicas.prepare(ContainerId(asked.container)))

    async def _probed(self, asked: Probe, _payload: memoryview, _session: Session) -> ProbeAnswer:
        if asked.doubted:
            await self.controller.look_and_tell(asked.doubted)
        return self.probe(asked)

    def probe(self, asked: Probe) -> ProbeAnswer:
        """This node's state, and the answers about its replicas."""
        return self.replicas.teller().answer(asked, self._alive())

    def _alive(self) -> ProbeAnswer:
        now = asyncio.get_running_loop().time()
        load = None
        if self._serves:
            self._disk.look()
            load = self._load.read(
                self.parts.counters,
                self.parts.containers.values(),
                disk_used=self._disk.used,
                disk_total=self._disk.total,
            )
            if self.parts.access.is_current:
                load = structs.replace(load, applied=self.parts.catalog.applied)
            if damage := self._catalog.damage:
                load = structs.replace(load, catalog_damage=damage[:DAMAGE_SHOWN])
        return ProbeAnswer(
            node=self._record.node_id,
            run=self._record.run,
            replicas=[],
            load=load or NodeLoad(),
            reaches_store=now - self.view.reachable_at < STORE_SILENT_S,
            ready=self._ready,
            heard=sorted(self.controller.heard()),
            clock=self.controller.clocks.own(),
            fenced=self._fenced,
        )

    async def _tell_full(self, full: bool) -> None:
        """Record in the cluster store whether this node has hardly any room left."""
        await self.store(lambda store: records.set_full(store, self._record.node_id, full, run=self._record.run))
        self.view.refresh()


class _LevelListener:
    """A ContainerListener that has the node check the cluster's feature level."""

    def __init__(self, follow_level: Callable[[], None]) -> None:
        self._follow_level = follow_level

    def container_led(self, _container: Leader) -> None:
        """See ContainerListener."""
        self._follow_level()

    def container_left(self, _container: Leader) -> None:
        """See ContainerListener."""


def make_parts(
    *,
    identity: NodeIdentity,
    runtime: Runtime,
    data: Path,
    catalog: Catalog,
    producer_block: Callable[[int], range],
    link: ClusterClient,
    store: StoreCall,
    controller: Controller,
    containers: NodeContainers,
    handlers: PeerHandlers,
    home_addresses: HomeAddresses,
    forwards: Forwards,
    listeners: Callable[[], Sequence[Mapping[str, object]]] = tuple,
    audit_allowed: Collection[str] = (),
    tracing: Tracing | None = None,
) -> NodeParts:
    """The parts that serve clients from the containers that the node leads, now and later. Peers reach them through
    `handlers`."""
    parts = NodeParts(
        node=identity,
        runtime=runtime,
        folder=data / "containers",
        catalog=catalog,
        producer_block=producer_block,
        cluster=link,
        store=store,
        controller=controller,
        home_addresses=home_addresses,
        forwards=forwards,
        listeners=listeners,
        container_changes=containers,
        catalog_id=CATALOG_ID,
        audit_allowed=audit_allowed,
        tracing=tracing,
    )
    serve_admin_calls(parts)
    serve_clients(parts)
    serve_links(parts)
    replicas = link.replicas
    for container in list(replicas.led.values()):
        parts.container_led(container)
    replicas.add_container_listener(parts)
    apis = PeerApis(
        runtime=parts.runtime,
        cluster=link,
        rolls=parts.rolls,
        sent=parts.counters,
        read_failed=parts.scrub.read_failed,
        held_bytes=parts.volume_limits.led_here,
        coordinator=lambda: parts.coordination.named,
    )
    handlers.update(apis.handlers())
    return parts


def _open_store(where: Path | KubernetesCluster) -> "SqliteStore | KubernetesStore":
    """[blocking]"""
    if isinstance(where, Path):
        return SqliteStore(where)
    from headrace.store.kubernetes.api import Access  # imports aiohttp: 10 MB that other nodes do not need
    from headrace.store.kubernetes.store import KubernetesStore

    return KubernetesStore(
        cluster=where.name,
        namespace=where.namespace,
        access=Access(where.api, where.token) if where.api else Access.in_cluster(),
        cluster_record=where.record.read_bytes(),
    )


async def _listen(host: str, port: int, *, option: str = "--port") -> socket.socket:
    """A bound socket, whose options connections inherit. Raises `FolderRefused` if the port is in use.

    A port in use is retried for a while: see folder.FORMER_S.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + FORMER_S
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # A client that vanished is found out after two minutes. There is no TCP_USER_TIMEOUT: it would cut off one that is
    # alive and does not read for a while.
    keep_alive(listening, idle_s=60, every_s=15, tries=4)
    while True:
        try:
            listening.bind((host, port))
            break
        except OSError as error:
            if error.errno != errno.EADDRINUSE or loop.time() >= deadline:
                listening.close()
                raise FolderRefused(
                    f"cannot listen on {host}:{port}: {error.strerror}; choose another with {option}"
                ) from error
        await asyncio.sleep(0.1)
    listening.setblocking(False)
    return listening
