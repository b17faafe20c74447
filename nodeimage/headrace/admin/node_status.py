"""A node's report about itself: its replicas, what it stores and what it is doing.

Figures come from memory; sizes on disk and the process's memory are read in a reader thread.
"""

import dataclasses
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence, Sized
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from headrace import __version__
from headrace.base.admission import Admission
from headrace.base.build import build
from headrace.base.descriptor_plan import DescriptorPlan
from headrace.base.errors import HeadraceError
from headrace.base.ids import ContainerId
from headrace.base.loop_lag import LoopLag
from headrace.base.runtime import Runtime
from headrace.catalog.catalog import Catalog
from headrace.container.local_replica import LocalReplica
from headrace.metrics.traffic import Traffic
from headrace.partitions.admin_params import Method, Methods, NoParams
from headrace.partitions.admin_rights import CLUSTER_ADMIN
from headrace.partitions.cluster_client import ClusterClient
from headrace.partitions.cluster_layout import NodeIdentity
from headrace.storage.disk_usage import allocated, chunk_paths
from headrace.storage.maintenance import Maintenance
from headrace.storage.scrub import Scrub

_PAGE: Final = os.sysconf("SC_PAGESIZE")


class _OnDisk(NamedTuple):
    """Figures read in a thread: bytes by container, the process's memory, the filesystem's size and free space, and the
    process's open descriptors."""

    containers: Mapping[ContainerId, int]
    resident: int
    total: int
    free: int
    descriptors: int


class ClientCounters(Protocol):
    """Counters of clients since the node's start."""

    connections: int
    requests: int
    produce_requests: int
    fetch_requests: int
    bytes_in: int
    bytes_out: int


class NodeStatus:
    """The admin calls on the node itself, and its status."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        node: NodeIdentity,
        catalog: Catalog,
        cluster: ClusterClient,
        topics: Sized,
        maintenance: Maintenance,
        scrub: Scrub,
        connections: Sized,
        counters: ClientCounters,
        admission: Admission,
        descriptors: DescriptorPlan,
        loop_lag: LoopLag,
        traffic: Traffic,
        listeners: Callable[[], Sequence[Mapping[str, object]]],
        tracing: Callable[[], Mapping[str, object]],
    ) -> None:
        """`topics`: those in memory; `connections`: those of clients; `listeners`: returns the state of the configured
        listeners; `tracing`: returns the state of tracing, empty if it is off."""
        self._runtime = runtime
        self._node = node
        self._catalog = catalog
        self._cluster = cluster
        self._topics = topics
        self._maintenance = maintenance
        self._scrub = scrub
        self._connections = connections
        self._counters = counters
        self._admission = admission
        self._descriptors = descriptors
        self._loop_lag = loop_lag
        self._traffic = traffic
        self._listeners = listeners
        self._tracing = tracing

    def methods(self) -> Methods:
        """By method name: its parameters, its handler, and the right that it requires."""
        return {
            "status": Method(NoParams, self._status, CLUSTER_ADMIN),
            "node.settings": Method(NoParams, self._settings, CLUSTER_ADMIN),
            "scrub.start": Method(NoParams, self._start_scrub, CLUSTER_ADMIN),
            "scrub.status": Method(NoParams, self._scrub_status, CLUSTER_ADMIN),
        }

    async def _status(self, params: NoParams) -> dict[str, object]:
        """The node, what it stores, what it is doing, and what clients write to streams and read from them."""
        return {**await self.status(), "traffic": self._traffic_shown()}

    async def _settings(self, params: NoParams) -> dict[str, object]:
        """The node's settings by name."""
        return dataclasses.asdict(self._node.settings)

    async def _start_scrub(self, params: NoParams) -> dict[str, object]:
        """Start a scrub, which reads everything back, unless one is running; returns its state."""
        self._scrub.start()
        return self._scrub_shown()

    async def _scrub_status(self, params: NoParams) -> dict[str, object]:
        """The state of the running scrub, or the result of the last one."""
        return self._scrub_shown()

    async def status(self) -> dict[str, object]:
        """The status as plain fields; names end in their unit."""
        streams, topics, partitions = await self._totals()
        replicas = self._cluster.replicas.all()
        disk = await self._measured()
        uptime_s = max(time.monotonic() - self._node.started_at, 0.001)
        counters = self._counters
        return {
            "node": self._node.node_id,
            "cluster": self._node.cluster_id,
            "version": __version__,
            "build": build(),
            "uptime_ms": int(uptime_s * 1000),
            "streams": streams,
            "topics": topics,
            "partitions": partitions,
            "topics_in_memory": len(self._topics),
            "clients": {
                "connected": len(self._connections),
                "connections_since_start": counters.connections,
                "most_connections": self._admission.most,
                "refused_since_start": self._admission.refused,
                "made_way_since_start": self._admission.made_way,
                "silent_since_start": self._admission.timed_out,
                "requests_since_start": counters.requests,
                "produce_requests_since_start": counters.produce_requests,
                "fetch_requests_since_start": counters.fetch_requests,
                "requests_per_second_since_start": round(counters.requests / uptime_s, 1),
                "in_since_start_bytes": counters.bytes_in,
                "out_since_start_bytes": counters.bytes_out,
            },
            "listeners": list(self._listeners()),
            "loop_lag_ms": dict(self._loop_lag.shown()),
            "process": {"cpu_since_start_ms": int(time.process_time() * 1000)},
            "memory": {"resident_bytes": disk.resident},
            "descriptors": {"open": disk.descriptors, "limit": self._descriptors.limit},
            "disk": {
                "free_bytes": disk.free,
                "total_bytes": disk.total,
                "stored_bytes": sum(disk.containers.values()),
                "waiting_bytes": sum(replica.log.pending_bytes for replica in replicas),
                "scanned_at_start_bytes": sum(replica.log.scanned_bytes for replica in replicas),
            },
            "maintenance": {
                "chunks_regrouped_since_start": self._maintenance.regrouped,
                "given_back_since_start_bytes": self._maintenance.freed_bytes,
            },
            "scrub": self._scrub_shown(),
            "catalog": {"damage": self._catalog.damage, "damaged": int(bool(self._catalog.damage))},
            **({"tracing": told} if (told := dict(self._tracing())) else {}),
            "containers": self._containers(disk.containers),
        }

    async def _totals(self) -> tuple[int, int, int]:
        """The number of streams, topics and partitions; zeros if damage of the catalog prevents counting."""
        try:
            return await self._catalog.query(lambda reader: reader.streams.totals())
        except HeadraceError:
            if not self._catalog.damage:
                raise
            return 0, 0, 0

    def _scrub_shown(self) -> dict[str, object]:
        """The state of the running scrub, or the result of the last one; `errors` has one line for each problem."""
        state = self._scrub.status()
        return {
            "running": state["state"] == "running",
            "state": state["state"],
            "containers": state["containers"],
            "containers_done": state["containers_done"],
            "frames": state["frames"],
            "read_bytes": state["bytes"],
            "seconds": state["seconds"],
            "errors": state["findings"],
        }

    def _traffic_shown(self) -> dict[str, object]:
        """Traffic by stream, the busiest first; streams that are not counted individually are summed."""
        streams = [each for each in self._traffic.flow_reports() if each is not None and each.topic is None]
        streams.sort(key=lambda each: each.flow.in_bytes + each.flow.out_bytes, reverse=True)
        return {
            "streams": [
                {
                    "stream": each.stream,
                    "in_since_start_bytes": each.flow.in_bytes,
                    "in_since_start_records": each.flow.in_records,
                    "out_since_start_bytes": each.flow.out_bytes,
                    "out_since_start_records": each.flow.out_records,
                }
                for each in streams
            ],
            "streams_in_others": self._traffic.dropped["streams"],
        }

    def _containers(self, sizes: Mapping[ContainerId, int]) -> list[dict[str, object]]:
        return [
            self._replica_shown(replica, sizes.get(replica.id, 0))
            for replica in sorted(self._cluster.replicas.all(), key=lambda each: each.id)
        ]

    def _replica_shown(self, replica: LocalReplica, size: int) -> dict[str, object]:
        """A replica: its container's record, and its log on this node."""
        record = self._cluster.record(replica.id)
        return {
            "id": replica.id,
            "kind": replica.kind,
            "state": record.state if record is not None else None,
            "role": "primary" if replica.leader is not None else "follower",
            "primary": record.leader if record is not None else None,
            "epoch": record.epoch if record is not None else None,
            "in_sync": ",".join(str(node) for node, _ in record.in_sync) if record is not None else "",
            "start": replica.log.start,
            "end": replica.log.end,
            "committed": replica.committed,
            "on_disk_bytes": size,
            "chunks": len(replica.log.chunks()),
        }

    async def _measured(self) -> _OnDisk:
        replicas = self._cluster.replicas
        # There is always one, since every node has a replica of the catalog.
        folder = replicas.all()[0].folder.parent
        return await self._runtime.loop.run_in_executor(self._runtime.executor, _on_disk, folder, chunk_paths(replicas))


def _on_disk(folder: Path, paths: Mapping[ContainerId, Sequence[Path]]) -> _OnDisk:
    """[blocking] The figures read from the filesystem and the system."""
    usage = shutil.disk_usage(folder)
    return _OnDisk(allocated(paths), _resident_bytes(), usage.total, usage.free, _descriptors())


def _descriptors() -> int:
    """[blocking] How many descriptors this process has open; 0 if the system does not report it, or has none left."""
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 0


def _resident_bytes() -> int:
    """[blocking] This process's resident memory in bytes (proc(5)); 0 if the system does not report it."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE
    except OSError:
        return 0
