"""The parts of a node that serve clients, assembled here: each receives its collaborators when it is created.

No part knows this module. Changes in the cluster arrive by `container_led`, `container_left` and `records_changed`,
which notify the parts in a fixed order.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import structlog

from headrace.admin.admin_api import AdminApi
from headrace.admin.feature_levels import FeatureCalls
from headrace.admin.node_status import NodeStatus
from headrace.admin.stream_metrics import StreamMetrics
from headrace.base.descriptor_plan import plan_of_process
from headrace.base.errors import KafkaError
from headrace.base.ids import ContainerId
from headrace.base.log_limits import AUDIT
from headrace.base.loop_lag import LoopLag
from headrace.base.runtime import Runtime
from headrace.catalog.catalog import Catalog
from headrace.container.commit_wait import committed_to
from headrace.container.leader import Leader
from headrace.coordination.limits import GroupLimits
from headrace.coordination.service import make_service
from headrace.coordination.takeover import Coordination
from headrace.kafka.authorization import Authorization
from headrace.kafka.back_pressure import BackPressure
from headrace.kafka.counters import Counters
from headrace.kafka.dispatch import Connections, Dispatcher
from headrace.kafka.fetch import FetchApi
from headrace.kafka.fetch_sessions import FetchSessions
from headrace.kafka.init_producer_id import ProducerIds
from headrace.kafka.list_offsets import ListOffsetsApi
from headrace.kafka.metadata import MetadataApi
from headrace.kafka.produce import ProduceApi
from headrace.kafka.throttle import Throttle
from headrace.links.failover.quarantine import OnceAppender
from headrace.links.serving.change_feed import ChangeFeed
from headrace.metrics.traffic import Traffic
from headrace.node.audit_stream import AuditStream, tell_now_and_then
from headrace.node.tracing import Tracing
from headrace.partitions.access_control import AccessControl
from headrace.partitions.applied_changes import AppliedChanges
from headrace.partitions.authorizer import Authorizer
from headrace.partitions.batch_comparison import BatchComparison
from headrace.partitions.cluster_client import ClusterClient, ControllerLink
from headrace.partitions.cluster_layout import Layout, NodeIdentity
from headrace.partitions.forwarding import Forwards
from headrace.partitions.home_check import HomeAddresses, HomeCheck
from headrace.partitions.login_audit import LoginAudit
from headrace.partitions.partition_states import PartitionStates
from headrace.partitions.partitions import Partitions
from headrace.partitions.placement import Placement
from headrace.partitions.quotas import ClientQuotas
from headrace.partitions.reads.fetch_planner import FetchPlanner
from headrace.partitions.reads.remote_reads import RemoteReads
from headrace.partitions.redundancy import Redundancy
from headrace.partitions.rolls.rolls import Rolls
from headrace.partitions.topics import Topics
from headrace.partitions.unclean_recovery import UncleanRecoveries
from headrace.security.audit import AuditLog
from headrace.storage.container_closing import ContainerChanges
from headrace.storage.maintenance import Maintenance
from headrace.storage.scrub import Scrub
from headrace.storage.volume_limits import VolumeLimits
from headrace.store.protocol import StoreCall
from headrace.tracing.tracer import NO_TRACER, Tracer

log = structlog.get_logger()
audit_log = structlog.get_logger("audit")

AUDIT_FLUSH_S = 10.0
"""Seconds between two reports of what the audit has left out."""
GC_MARK = "chunk-gc"
"""Name of the file, beside the replicas' folder, that stores how far garbage collection of chunks has come."""
CLOSE_S = 2.0
"""Seconds that an ending node waits for followers, so that it can answer what it has appended."""


class NodeParts:
    """One node's parts, from its start to its end."""

    def __init__(
        self,
        *,
        node: NodeIdentity,
        runtime: Runtime,
        folder: Path,
        catalog: Catalog,
        cluster: ClusterClient,
        producer_block: Callable[[int], range],
        store: StoreCall,
        controller: ControllerLink,
        home_addresses: HomeAddresses,
        forwards: Forwards,
        container_changes: ContainerChanges,
        catalog_id: ContainerId,
        listeners: Callable[[], Sequence[Mapping[str, object]]] = tuple,
        regroup_enabled: bool = True,
        audit_allowed: Collection[str] = (),
        tracing: Tracing | None = None,
    ) -> None:
        """`runtime` is closed with the parts. `folder`: where this node's replicas lie. `producer_block` blocks, and
        raises StoreUnavailable. `listeners`: the state of the listeners of the node's file, for its status.

        `audit_allowed`: actions that the audit also records when they are allowed. `tracing`: None: there are no
        traces.
        """
        self.tracer: Tracer = NO_TRACER if tracing is None else tracing.tracer
        self.node = node
        self.folder = folder
        self.catalog = catalog
        self.cluster = cluster
        self.containers: Mapping[ContainerId, Leader] = cluster.replicas.led
        """Every container that this node leads, including the catalog's."""
        self.layout = Layout(cluster, node)
        self.runtime = runtime
        self.store = store
        self.controller = controller
        self.redundancy = Redundancy(cluster.view)
        self.counters = Counters()
        self.descriptors = plan_of_process()
        self.connections = Connections(runtime=runtime, settings=node.settings, descriptors=self.descriptors)
        self.back_pressure = BackPressure(led=self.containers, counters=self.counters)
        self.home_addresses = home_addresses
        self.forwards = forwards
        self.loop_lag = LoopLag(runtime.loop)
        self.fetch_sessions = FetchSessions(time=runtime.loop.time)
        self.scrub = Scrub(runtime=self.runtime, replicas=cluster.replicas)
        self.placement = Placement(cluster)
        self.access = AccessControl(runtime=runtime, catalog=catalog)
        self.audit = AuditLog([_log_audit], monotonic=runtime.loop.time, allowed=audit_allowed)
        self.logins = LoginAudit(runtime=runtime, audit=self.audit)
        self.authorizer = Authorizer(runtime=runtime, access=self.access, audit=self.audit)
        self.authorization = Authorization(self.authorizer)
        self.quotas = ClientQuotas(runtime=runtime, catalog=catalog)
        self.throttle = Throttle(quotas=self.quotas, time=runtime.loop.time)
        self.traffic = Traffic(most_topics=node.settings.metrics_topics)
        self.topics = Topics(catalog=catalog, placement=self.placement, traffic=self.traffic)
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
            read_failed=self.scrub.read_failed,
        )
        self.rolls = Rolls(
            runtime=self.runtime,
            catalog=catalog,
            cluster=cluster,
            topics=self.topics,
            partitions=self.partitions,
            placement=self.placement,
            limit=node.settings.partitionlet_bytes,
            tracer=self.tracer,
        )
        self.audit_stream = AuditStream(
            runtime=runtime,
            catalog=catalog,
            cluster=cluster,
            led=self.containers,
            placement=self.placement,
            once=OnceAppender(topics=self.topics, partitions=self.partitions, rolls=self.rolls, runtime=runtime),
            is_on=lambda: self.authorizer.is_on,
        )
        self.audit.add_sink(self.audit_stream.take)
        self.home_check = HomeCheck(
            runtime=self.runtime, own_cluster=node.cluster_id, addresses=self.home_addresses, due=self.rolls.due
        )
        self.remote_reads = RemoteReads(runtime=self.runtime, cluster=cluster, read_failed=self.scrub.read_failed)
        self.fetch_planner = FetchPlanner(runtime=self.runtime, led=self.containers, remote_reads=self.remote_reads)
        self.partition_states = PartitionStates(
            catalog=catalog, cluster=cluster, topics=self.topics, remote_reads=self.remote_reads
        )
        self.batch_comparison = BatchComparison(runtime=self.runtime, remote_reads=self.remote_reads)
        self.volume_limits = VolumeLimits(runtime=self.runtime, cluster=cluster, catalog_id=catalog_id)
        self.maintenance = Maintenance(
            runtime=self.runtime,
            catalog=catalog,
            cluster=cluster,
            cluster_time=controller.clocks,
            settings=node.settings,
            topics=self.topics,
            partitions=self.partitions,
            rolls=self.rolls,
            remote_reads=self.remote_reads,
            scrub=self.scrub,
            volume_limits=self.volume_limits,
            changes=container_changes,
            catalog_id=catalog_id,
            mark=folder.with_name(GC_MARK),
            regroup_enabled=regroup_enabled,
        )
        self.applied_changes = AppliedChanges(
            runtime=self.runtime,
            cluster=cluster,
            topics=self.topics,
            partitions=self.partitions,
            maintenance=self.maintenance,
        )
        for applied in (  # in this order
            self.access.applied,
            self.quotas.applied,
            self.applied_changes.applied,
            self.changes.applied,
            self.rolls.applied,
        ):
            catalog.on_applied(applied)
        self.stream_metrics = StreamMetrics(runtime=self.runtime, catalog=catalog, remote_reads=self.remote_reads)
        self.producer_ids = ProducerIds(runtime=self.runtime, block=producer_block)
        limits = GroupLimits(initial_rebalance_delay_ms=node.settings.rebalance_delay_ms)
        self.coordination = Coordination(
            runtime=self.runtime,
            catalog=catalog,
            cluster=cluster,
            make=lambda: make_service(runtime=self.runtime, catalog=catalog, limits=limits),
        )
        self.status = NodeStatus(
            runtime=self.runtime,
            node=node,
            catalog=catalog,
            cluster=cluster,
            topics=self.topics,
            maintenance=self.maintenance,
            scrub=self.scrub,
            connections=self.connections.open,
            counters=self.counters,
            admission=self.connections.admission,
            descriptors=self.descriptors,
            loop_lag=self.loop_lag,
            traffic=self.traffic,
            listeners=listeners,
            tracing=dict if tracing is None else tracing.shown,
        )
        self.features = FeatureCalls(runtime=self.runtime, cluster=cluster, store=store)
        self.admin = AdminApi(authorizer=self.authorizer, tracer=self.tracer)
        """Its methods are added by `admin_calls` and `links`."""
        self._led: set[Leader] = set()
        self.list_offsets = ListOffsetsApi(
            topics=self.topics,
            partitions=self.partitions,
            runtime=self.runtime,
            rolls=self.rolls,
            remote_reads=self.remote_reads,
            read_failed=self.scrub.read_failed,
            authorization=self.authorization,
        )
        self.produce = ProduceApi(
            runtime=self.runtime,
            cluster=cluster,
            topics=self.topics,
            partitions=self.partitions,
            rolls=self.rolls,
            home_check=self.home_check,
            batch_comparison=self.batch_comparison,
            forwards=self.forwards,
            back_pressure=self.back_pressure,
            counters=self.counters,
            authorization=self.authorization,
            throttle=self.throttle,
        )
        self.fetch = FetchApi(
            runtime=self.runtime,
            topics=self.topics,
            partitions=self.partitions,
            planner=self.fetch_planner,
            sessions=self.fetch_sessions,
            answer_budget=self.connections.answer_budget,
            counters=self.counters,
            authorization=self.authorization,
            throttle=self.throttle,
            read_failed=self.scrub.read_failed,
        )
        self.metadata = MetadataApi(
            topics=self.topics,
            partitions=self.partitions,
            catalog=catalog,
            layout=self.layout,
            node=node,
            runtime=self.runtime,
            look_around=self.look_around,
            authorization=self.authorization,
        )
        self.dispatcher = Dispatcher(
            runtime=self.runtime,
            connections=self.connections,
            counters=self.counters,
            throttle=self.throttle,
            tracer=self.tracer,
        )
        """Its APIs are added by `client_apis`."""

    def look_around(self) -> None:
        """Find out which nodes are dead, before clients are sent the cluster's nodes."""
        self.layout.see(self.controller.dead())

    # --- the cluster

    def container_led(self, container: Leader) -> None:
        """Called when this node has begun to lead a container."""
        if container in self._led or container.lost:
            return
        self._led.add(container)
        self.layout.changed()
        self.unclean.container_led(container)
        self.partitions.container_led(container)
        self.changes.restart()
        self.maintenance.container_led(container)
        self.coordination.container_led(container)
        self.rolls.take_up(container)

    def container_left(self, container: Leader) -> None:
        """Called when this node no longer leads a container; everything that waited for it has been notified."""
        self._led.discard(container)
        self.layout.changed()
        self.unclean.container_left(container)
        self.partitions.container_left(container)
        self.maintenance.container_left(container)
        self.coordination.container_left(container)

    def records_changed(self, containers: Collection[ContainerId] = ()) -> None:
        """Called when the records of these containers, or of nodes, have changed."""
        self.layout.changed()
        self.unclean.records_changed()
        self.partitions.records_changed()
        self.coordination.records_changed()
        for container in self.containers.values():
            container.leaving = self.placement.leaves(container.id)

    # --- life

    async def start(self) -> None:
        """Start the background work, and serve what this node already leads."""
        await self.access.start()
        await self.quotas.start()
        self.runtime.spawn(self.audit_stream.run())
        self.runtime.spawn(tell_now_and_then(self.audit.flush, every_s=AUDIT_FLUSH_S))
        await self.maintenance.load()
        self.maintenance.start()
        self.loop_lag.start()
        self.connections.start()
        for container in list(self.containers.values()):
            self.container_led(container)

    async def close(self) -> None:
        """End connections, tasks and background work."""
        await self.scrub.close()
        await self.maintenance.close()
        self.coordination.close()
        await self.changes.close()
        appended = [self._all_answered(container) for container in list(self.containers.values())]
        await asyncio.gather(*appended)
        self.connections.end_all()
        await self.runtime.end_tasks()
        self.loop_lag.close()
        self.connections.close()
        self.runtime.close()

    async def _all_answered(self, container: Leader) -> None:
        """Wait until everything appended is answered, if followers allow it."""
        try:
            await committed_to(container, container.log.end, timeout_s=CLOSE_S)
        except KafkaError as error:
            log.info("some producers will get no answer", container=container.id, reason=str(error))


def _log_audit(fields: Mapping[str, object]) -> None:
    audit_log.info(AUDIT, **fields)
