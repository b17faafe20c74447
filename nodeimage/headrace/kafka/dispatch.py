"""The broker: what all Kafka APIs share, and the table that says who answers which.

Responsible for dispatch: Produce, Fetch and Metadata have codecs and start functions of their own; every other API is
decoded by `wire.cold`, answered by an `async` handler with plain fields, and encoded by `wire.cold`. While a handler
runs, its connection starts nothing else.

Owns the caches of topics and partitions, the fetch sessions, the deadlines, and all tasks that are started on behalf
of clients. What changes in the cluster comes in by `container_led`, `container_left` and `records_changed`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import structlog

from headrace.admin.admin_api import AdminApi
from headrace.admin.cluster import ClusterCalls
from headrace.admin.containers import ContainerCalls
from headrace.admin.feature_levels import FeatureCalls
from headrace.admin.group_lag import GroupCalls
from headrace.admin.node_probes import NodeProbes
from headrace.admin.node_status import NodeStatus
from headrace.admin.nodes import NodeCalls
from headrace.admin.stream_metrics import StreamFigures
from headrace.admin.streams import StreamCalls
from headrace.admin.topics import TopicCalls
from headrace.admin.volumes import VolumeCalls
from headrace.base.admission import Admission, Place
from headrace.base.deadlines import Deadline
from headrace.base.descriptor_plan import plan_of_process
from headrace.base.errors import Code, CorruptLog, KafkaError
from headrace.base.ids import ContainerId, Epoch, NodeId
from headrace.base.levels import FEATURE, NEWEST, OLDEST
from headrace.base.loop_lag import LoopLag
from headrace.base.runtime import Runtime
from headrace.catalog.catalog import Catalog
from headrace.catalog.names import DEFAULT_STREAM
from headrace.container.commit_wait import committed_to
from headrace.container.leader import Container
from headrace.coordination.limits import GroupLimits
from headrace.coordination.service import GroupService
from headrace.coordination.takeover import Coordination
from headrace.kafka import fetch, groups, init_producer_id, list_offsets, metadata, produce
from headrace.kafka.answer_budget import AnswerBudget
from headrace.kafka.configs import HANDLERS as CONFIG_HANDLERS
from headrace.kafka.connection import Connection, Slot
from headrace.kafka.fetch_sessions import FetchSessions
from headrace.kafka.idle_connections import IdleConnections
from headrace.kafka.init_producer_id import ProducerIds
from headrace.kafka.topics import HANDLERS as ADMIN_HANDLERS
from headrace.links.serving.change_feed import ChangeFeed
from headrace.partitions.applied_changes import AppliedChanges
from headrace.partitions.caller import Caller
from headrace.partitions.cluster_client import ClusterLink, ControllerLink
from headrace.partitions.cluster_layout import Address, Layout, NodeIdentity, NodeSettings
from headrace.partitions.duplicate_check import Repeats
from headrace.partitions.forwarding import Forwards
from headrace.partitions.home_check import HomeAddresses, HomeCheck
from headrace.partitions.partition_states import PartitionStates
from headrace.partitions.partitions import Partitions
from headrace.partitions.placement import Placing
from headrace.partitions.reads.fetch_planner import FetchPlanner
from headrace.partitions.reads.remote_reads import OldReads
from headrace.partitions.redundancy import Redundancy
from headrace.partitions.rolls.rolls import Rolls
from headrace.partitions.topics import Topics
from headrace.partitions.unclean_recovery import UncleanRecoveries
from headrace.storage.container_closing import ContainerChanges
from headrace.storage.maintenance import Space
from headrace.storage.scrub import Scrub
from headrace.storage.volume_limits import VolumeLimits
from headrace.store.protocol import StoreCall
from headrace.wire import generic_codec
from headrace.wire.api_keys import SUPPORTED, ApiKey
from headrace.wire.api_versions import Finalized
from headrace.wire.api_versions import encode_response as encode_api_versions
from headrace.wire.header import RequestHeader

__all__ = ["Broker", "Counters", "Handler", "NodeIdentity", "NodeSettings"]

log = structlog.get_logger()

T = TypeVar("T")

MOST_PENDING_BYTES = 128 * 1024 * 1024
"""Bytes that wait for the disk; above this, producers wait."""
PENDING_LOOK_BYTES = 1024 * 1024
"""Bytes of requests between two looks at what waits for the disk."""
SATURATED_S = 0.5
CLOSE_S = 2.0
"""How long a node that ends waits for followers, to answer what it has appended."""

LONG_BODY_BYTES = 32 * 1024
LONG_ANSWERS = frozenset(
    {ApiKey.DESCRIBE_CONFIGS, ApiKey.DESCRIBE_LOG_DIRS, ApiKey.LIST_GROUPS, ApiKey.DESCRIBE_PRODUCERS}
)
"""APIs whose short requests may have long answers."""


@dataclass(slots=True)
class Counters:
    """Counts since the start, for `status`."""

    connections: int = 0
    requests: int = 0
    produce_requests: int = 0
    fetch_requests: int = 0
    bytes_in: int = 0
    bytes_out: int = 0


Handler = Callable[["Broker", Any, Connection], Awaitable[Mapping[str, object]]]


class Broker:
    """One node's Kafka listener."""

    default_stream = DEFAULT_STREAM

    def __init__(
        self,
        *,
        node: NodeIdentity,
        runtime: Runtime,
        folder: Path,
        catalog: Catalog,
        cluster: ClusterLink,
        producer_block: Callable[[int], range],
        store: StoreCall,
        controller: ControllerLink,
        home_addresses: HomeAddresses,
        forwards: Forwards,
        container_changes: ContainerChanges,
        catalog_id: ContainerId,
        regroup_enabled: bool = True,
    ) -> None:
        """`runtime` is closed with the broker. `folder`: where this node's replicas lie. `producer_block` blocks, and
        raises StoreUnavailable.
        """
        self.node = node
        self.folder = folder
        self.catalog = catalog
        self.cluster = cluster
        self.containers: Mapping[ContainerId, Container] = cluster.replicas.led
        """Every container that this node leads, the catalog's among them."""
        self.layout = Layout(cluster, node)
        self.runtime = runtime
        self.executor = runtime.executor
        self.unpacking = asyncio.Semaphore(1)
        """Of large batches one at a time is checked: a packed one may take the memory and the time of 128 MiB."""
        self.producer_block = producer_block
        self.store = store
        self.controller = controller
        self.clocks = controller.clocks
        self.redundancy = Redundancy(cluster.view)
        self.loop = self.runtime.loop
        self.counters = Counters()
        self.connections: dict[Connection, None] = {}
        """In the order in which they came, which is that in which they are closed."""
        self.answer_budget = AnswerBudget(self.connections, time=self.loop.time)
        self.descriptors = plan_of_process()
        self.admission = Admission(
            kind="clients",
            most=(most := node.settings.max_connections or self.descriptors.clients),
            most_of_address=node.settings.max_connections_per_ip or max(most // 2, 1),
            descriptors=self.descriptors.limit - self.descriptors.reserve,
            time=self.loop.time,
            drop_idle=lambda: self.idle_connections.drop_longest(),
        )
        self.idle_connections = IdleConnections(
            self.connections,
            self.loop,
            idle_s=node.settings.connections_max_idle_ms / 1000,
            scarce=lambda: self.admission.is_nearly_full,
        )
        self.home_addresses = home_addresses
        self.forwards = forwards
        self.deadlines = self.runtime.deadlines
        self.loop_lag = LoopLag(self.loop)
        self.fetch_sessions = FetchSessions(time=self.loop.time)
        self.placement = Placing(cluster)
        self.topics = Topics(catalog=catalog, placement=self.placement)
        self.changes = ChangeFeed(catalog=catalog, topics=self.topics, led=self.containers, runtime=self.runtime)
        self.unclean = UncleanRecoveries(
            runtime=self.runtime, catalog=catalog, cluster=cluster, own_cluster=node.cluster_id
        )
        self.partitions = Partitions(
            runtime=self.runtime,
            catalog=catalog,
            cluster=cluster,
            topics=self.topics,
            unclean=self.unclean,
            feed=self.changes,
            read_failed=self.read_failed,
        )
        self.rolls = Rolls(
            runtime=self.runtime,
            catalog=catalog,
            cluster=cluster,
            topics=self.topics,
            partitions=self.partitions,
            placement=self.placement,
            limit=node.settings.partitionlet_bytes,
        )
        self.home_check = HomeCheck(
            runtime=self.runtime, own_cluster=node.cluster_id, addresses=self.home_addresses, due=self.rolls.due
        )
        self.old_reads = OldReads(runtime=self.runtime, cluster=cluster, read_failed=self.read_failed)
        self.fetch_planner = FetchPlanner(runtime=self.runtime, led=self.containers, old_reads=self.old_reads)
        self.partition_states = PartitionStates(
            catalog=catalog, cluster=cluster, topics=self.topics, old_reads=self.old_reads
        )
        self.repeats = Repeats(runtime=self.runtime, old_reads=self.old_reads)
        self.volume_limits = VolumeLimits(runtime=self.runtime, cluster=cluster, catalog_id=catalog_id)
        self.scrub = Scrub(runtime=self.runtime, replicas=cluster.replicas)
        self.space = Space(
            runtime=self.runtime,
            catalog=catalog,
            cluster=cluster,
            cluster_time=controller.clocks,
            settings=node.settings,
            topics=self.topics,
            partitions=self.partitions,
            rolls=self.rolls,
            remote_reads=self.old_reads,
            scrub=self.scrub,
            volume_limits=self.volume_limits,
            changes=container_changes,
            catalog_id=catalog_id,
            regroup_enabled=regroup_enabled,
        )
        self.applied_changes = AppliedChanges(
            runtime=self.runtime, cluster=cluster, topics=self.topics, partitions=self.partitions, space=self.space
        )
        for applied in (self.applied_changes.applied, self.changes.applied, self.rolls.applied):  # in this order
            catalog.on_applied(applied)
        self.stream_figures = StreamFigures(runtime=self.runtime, catalog=catalog, remote_reads=self.old_reads)
        self.producer_ids = ProducerIds(self)
        limits = GroupLimits(initial_rebalance_delay_ms=node.settings.rebalance_delay_ms)
        self.coordination = Coordination(
            runtime=self.runtime,
            catalog=catalog,
            cluster=cluster,
            make=lambda: groups.make_service(runtime=self.runtime, catalog=catalog, limits=limits),
        )
        self.status = NodeStatus(
            runtime=self.runtime,
            node=node,
            catalog=catalog,
            cluster=cluster,
            topics=self.topics,
            space=self.space,
            scrub=self.scrub,
            connections=self.connections,
            counters=self.counters,
            admission=self.admission,
            descriptors=self.descriptors,
            loop_lag=self.loop_lag,
        )
        self.volumes = VolumeCalls(
            cluster=cluster, store=store, controller=controller, volume_limits=self.volume_limits
        )
        self.features = FeatureCalls(runtime=self.runtime, cluster=cluster, store=store)
        probes = NodeProbes(cluster)
        nodes = NodeCalls(cluster=cluster, store=store, controller=controller, probes=probes)
        cluster_calls = ClusterCalls(
            runtime=self.runtime,
            cluster_id=node.cluster_id,
            cluster=cluster,
            store=store,
            controller=controller,
            redundancy=self.redundancy,
            volume_limits=self.volume_limits,
            probes=probes,
            nodes=nodes,
        )
        container_calls = ContainerCalls(
            runtime=self.runtime, cluster=cluster, catalog=catalog, store=store, probes=probes
        )
        self.admin = AdminApi(
            [
                StreamCalls(catalog=catalog, volumes=self.volumes, figures=self.stream_figures).methods(),
                TopicCalls(
                    catalog=catalog,
                    cluster=cluster,
                    topics=self.topics,
                    partitions=self.partitions,
                    rolls=self.rolls,
                    states=self.partition_states,
                    remote_reads=self.old_reads,
                    home_check=self.home_check,
                ).methods(),
                self.status.methods(),
                GroupCalls(catalog=catalog, coordination=self.coordination, states=self.partition_states).methods(),
                cluster_calls.methods(),
                nodes.methods(),
                self.volumes.methods(),
                self.features.methods(),
                container_calls.methods(),
            ]
        )
        self._led: set[Container] = set()
        self._was_saturated = False
        self._looked_at = 0
        """So many bytes of requests had come when it was found out whether too much waits for the disk."""
        self._handlers: dict[ApiKey, Handler] = {
            **init_producer_id.HANDLERS,
            **list_offsets.HANDLERS,
            **groups.HANDLERS,
            **ADMIN_HANDLERS,
            **CONFIG_HANDLERS,
        }

    # --- requests

    def handle(self, session: Connection, header: RequestHeader, request: memoryview, slot: Slot) -> None:
        """Start to answer one request. Raises `HeadraceError` where the connection must end."""
        self.counters.requests += 1
        key, version = header.api_key, header.api_version
        span = SUPPORTED.get(key)  # type: ignore[call-overload]  # an int that may be no ApiKey
        if span is None or not span[0] <= version <= span[1]:
            if key == ApiKey.API_VERSIONS:  # the answer says which are
                self._api_versions(session, header, request, slot)
                return
            raise KafkaError(Code.UNSUPPORTED_VERSION, f"api {key} version {version} is not supported")
        if key == ApiKey.PRODUCE:
            self.counters.bytes_in += len(request)
            produce.handle(self, session, header, request, slot)
        elif key == ApiKey.FETCH:
            fetch.handle(self, session, header, request, slot)
        elif key == ApiKey.METADATA:
            metadata.handle(self, session, header, request, slot)
        elif key == ApiKey.API_VERSIONS:
            self._api_versions(session, header, request, slot)
        elif key == ApiKey.HEADRACE_ADMIN:
            session.park(self._headrace_admin(session, bytes(request[header.body :]), slot))
        else:
            session.park(self._cold(session, ApiKey(key), version, request[header.body :], slot))

    def _api_versions(self, session: Connection, header: RequestHeader, request: memoryview, slot: Slot) -> None:
        low, high = SUPPORTED[ApiKey.API_VERSIONS]
        version = header.api_version
        if low <= version <= high and version >= 3:  # from 3 on clients name themselves
            if not generic_codec.is_prepared(ApiKey.API_VERSIONS, version):
                session.park(self._api_versions_prepared(session, header, request, slot))
                return
            asked = generic_codec.decode_request(ApiKey.API_VERSIONS, version, request[header.body :])
            name = generic_codec.field(asked, "client_software_name", "")
            session.software = f"{name} {generic_codec.field(asked, 'client_software_version', '')}".strip()
        told = self.cluster.view.features
        feature = Finalized(FEATURE, told.level, OLDEST, NEWEST, told.epoch)
        slot.answer([encode_api_versions(version, feature)])

    async def _api_versions_prepared(
        self, session: Connection, header: RequestHeader, request: memoryview, slot: Slot
    ) -> None:
        await self.loop.run_in_executor(self.executor, generic_codec.prepare, ApiKey.API_VERSIONS, header.api_version)
        self._api_versions(session, header, request, slot)

    async def _cold(self, session: Connection, key: ApiKey, version: int, body: memoryview, slot: Slot) -> None:
        if not generic_codec.is_prepared(key, version):
            await self.loop.run_in_executor(self.executor, generic_codec.prepare, key, version)
        long = len(body) > LONG_BODY_BYTES
        if long:  # a thread shares the processor with the loop, a long step on the loop stalls it
            asked = await self.loop.run_in_executor(self.executor, generic_codec.decode_request, key, version, body)
        else:
            asked = generic_codec.decode_request(key, version, body)
        fields = await self._handlers[key](self, asked, session)
        if long or key in LONG_ANSWERS:
            answer = await self.loop.run_in_executor(self.executor, generic_codec.encode_response, key, version, fields)
        else:
            answer = generic_codec.encode_response(key, version, fields)
        slot.answer([answer])

    async def _headrace_admin(self, session: Connection, body: bytes, slot: Slot) -> None:
        slot.answer([await self.admin.handle(body, session)])

    def accepted(self, place: Place, *, listener: str) -> Connection:
        """The protocol of a connection that has a place."""
        return Connection(self, listener=listener, place=place)

    def connected(self, session: Connection) -> None:
        """A client connected."""
        self.connections[session] = None
        self.counters.connections += 1

    def disconnected(self, session: Connection) -> None:
        """A client is gone."""
        self.connections.pop(session, None)

    def address(self, node_id: NodeId, session: Caller) -> Address | None:
        """The address by which this session's client reaches a node; None for one that is not known."""
        return self.layout.address(node_id, session.listener)

    # --- the cluster

    def container_led(self, container: Container) -> None:
        """This node leads a container from now on."""
        if container in self._led or container.lost:
            return
        self._led.add(container)
        self.layout.changed()
        self.unclean.container_led(container)
        self.partitions.container_led(container)
        self.changes.restart()
        self.space.container_led(container)
        self.coordination.container_led(container)
        self.rolls.take_up(container)

    def container_left(self, container: Container) -> None:
        """This node leads a container no more; whoever waited for it has been told."""
        self._led.discard(container)
        self.layout.changed()
        self.unclean.container_left(container)
        self.partitions.container_left(container)
        self.space.container_left(container)
        self.coordination.container_left(container)

    def records_changed(self, containers: Collection[ContainerId] = ()) -> None:
        """The records of these containers have changed, or those of nodes."""
        self.layout.changed()
        self.unclean.records_changed()
        self.partitions.records_changed()
        self.coordination.records_changed()
        for container in self.containers.values():
            container.leaving = self.placement.leaves(container.id)

    def look_around(self) -> None:
        """See which nodes are dead, before clients are told of the cluster."""
        self.layout.see(self.controller.dead())

    # --- what handlers use

    @property
    def node_id(self) -> NodeId:
        """This node's broker id."""
        return self.node.node_id

    @property
    def host(self) -> str:
        """The host name that clients are told."""
        return self.node.host

    @property
    def port(self) -> int:
        """The port that clients are told."""
        return self.node.port

    @property
    def node_count(self) -> int:
        """Storage nodes of the cluster."""
        return max(1, len(self.cluster.view.nodes))

    @property
    def groups(self) -> GroupService:
        """The group service, where this node is the coordinator. Raises KafkaError NOT_COORDINATOR."""
        return self.coordination.present

    @property
    def catalog_container(self) -> Container | None:
        """The catalog's container, where this node leads it."""
        return self.cluster.catalog_container

    def now(self) -> int:
        """The cluster's time, in milliseconds since 1970; this node's own where it does not know that."""
        return self.runtime.now()

    def monotonic_ms(self) -> int:
        """The loop's clock, in milliseconds."""
        return self.runtime.monotonic_ms()

    def call_at(self, deadline_ms: int, callback: Callable[[], None]) -> Deadline:
        """Call `callback` at `deadline_ms` of `monotonic_ms`."""
        return self.runtime.call_at(deadline_ms, callback)

    def spawn(self, coroutine: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """A task that the broker owns: it is cancelled, and waited for, when the broker closes."""
        return self.runtime.spawn(coroutine)

    def place(
        self, count: int, volume: str = "default", *, avoid: ContainerId | None = None
    ) -> list[tuple[ContainerId, Epoch]]:
        """Containers of the whole cluster for `count` new partitionlets; `avoid` only if there is no other.

        Raises KafkaError LEADER_NOT_AVAILABLE while there is none.
        """
        return self.placement.place(count, volume, avoid=avoid)

    def read_failed(self, error: Exception, container: ContainerId) -> None:
        """A read from disk failed; the client gets a storage error."""
        log.error("read failed", container=container, error=repr(error))
        if isinstance(error, CorruptLog):
            self.scrub.suspect(container)

    # --- back-pressure

    @property
    def saturated(self) -> bool:
        """More waits for the disk than memory should hold."""
        pending = 0
        for container in self.containers.values():
            pending += container.log.pending_bytes
        return pending > MOST_PENDING_BYTES

    @property
    def was_saturated(self) -> bool:
        """The same, as of the last MiB that came in requests: a node may lead very many containers."""
        if self._was_saturated or self.counters.bytes_in - self._looked_at >= PENDING_LOOK_BYTES:
            self._looked_at = self.counters.bytes_in
            self._was_saturated = self.saturated
        return self._was_saturated

    async def not_saturated(self) -> None:
        """Return when the disk has caught up."""
        while self.saturated:
            busiest = max(self.containers.values(), key=lambda container: container.log.pending_bytes)
            try:
                await committed_to(busiest, busiest.log.end, timeout_s=SATURATED_S)
            except KafkaError:
                await asyncio.sleep(0)  # its followers lag, or another node leads it: the disk alone counts here

    # --- life

    async def start(self) -> None:
        """Begin the background work, and serve what this node leads by now."""
        self.space.start()
        self.loop_lag.start()
        self.idle_connections.start()
        for container in list(self.containers.values()):
            self.container_led(container)

    async def close(self) -> None:
        """End connections, tasks and background work."""
        await self.scrub.close()
        await self.space.close()
        self.coordination.close()
        await self.changes.close()
        appended = [self._all_answered(container) for container in list(self.containers.values())]
        await asyncio.gather(*appended)
        for connection in list(self.connections):
            connection.end()
        await self.runtime.end_tasks()
        self.loop_lag.close()
        self.idle_connections.close()
        self.runtime.close()

    async def _all_answered(self, container: Container) -> None:
        """What has been appended is answered, if its followers let it."""
        try:
            await committed_to(container, container.log.end, timeout_s=CLOSE_S)
        except KafkaError as error:
            log.info("some producers get no answer", container=container.id, reason=str(error))
