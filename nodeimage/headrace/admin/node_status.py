"""What a node tells of itself: its replicas, what it stores and what it is doing.

Figures come from memory; sizes on disk and the process's memory are read in a reader thread.
"""

import os
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace import __version__
from headrace.base.errors import HeadraceError
from headrace.base.ids import ContainerId
from headrace.container.local_replica import LocalReplica
from headrace.storage.disk_usage import allocated, chunk_paths

if TYPE_CHECKING:
    from headrace.kafka.dispatch import Broker

_PAGE: Final = os.sysconf("SC_PAGESIZE")


class _OnDisk(NamedTuple):
    """Read in a thread: bytes by container, the process's memory, and the filesystem's room."""

    containers: Mapping[ContainerId, int]
    resident: int
    total: int
    free: int
    descriptors: int


async def node_status(broker: "Broker") -> dict[str, object]:
    """The status as plain fields; names end in their unit."""
    streams, topics, partitions = await _totals(broker)
    replicas = broker.cluster.replicas.all()
    disk = await _measured(broker)
    uptime_s = max(time.monotonic() - broker.node.started_at, 0.001)
    counters = broker.counters
    return {
        "node": broker.node.node_id,
        "cluster": broker.node.cluster_id,
        "version": __version__,
        "uptime_ms": int(uptime_s * 1000),
        "streams": streams,
        "topics": topics,
        "partitions": partitions,
        "topics_in_memory": len(broker.topics),
        "clients": {
            "connected": len(broker.connections),
            "connections_since_start": counters.connections,
            "most_connections": broker.admission.most,
            "refused_since_start": broker.admission.refused,
            "made_way_since_start": broker.admission.made_way,
            "silent_since_start": broker.admission.timed_out,
            "requests_since_start": counters.requests,
            "produce_requests_since_start": counters.produce_requests,
            "fetch_requests_since_start": counters.fetch_requests,
            "requests_per_second_since_start": round(counters.requests / uptime_s, 1),
            "in_since_start_bytes": counters.bytes_in,
            "out_since_start_bytes": counters.bytes_out,
        },
        "loop_lag_ms": dict(broker.loop_lag.shown()),
        "memory": {"resident_bytes": disk.resident},
        "descriptors": {"open": disk.descriptors, "limit": broker.descriptors.limit},
        "disk": {
            "free_bytes": disk.free,
            "total_bytes": disk.total,
            "stored_bytes": sum(disk.containers.values()),
            "waiting_bytes": sum(replica.log.pending_bytes for replica in replicas),
            "scanned_at_start_bytes": sum(replica.log.scanned_bytes for replica in replicas),
        },
        "maintenance": {
            "chunks_regrouped_since_start": broker.space.regrouped,
            "given_back_since_start_bytes": broker.space.freed_bytes,
        },
        "scrub": scrub_shown(broker),
        "catalog": {"damage": broker.catalog.damage, "damaged": int(bool(broker.catalog.damage))},
        "containers": _containers(broker, disk.containers),
    }


async def _totals(broker: "Broker") -> tuple[int, int, int]:
    """Streams, topics and partitions; zeros where the catalog is damaged so that they cannot be counted."""
    try:
        return await broker.catalog.query(lambda reader: reader.totals())
    except HeadraceError:
        if not broker.catalog.damage:
            raise
        return 0, 0, 0


def scrub_shown(broker: "Broker") -> dict[str, object]:
    """How the scrub stands, or how the last one ended; `errors` are what it found, one line each."""
    state = broker.scrub.status()
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


def _containers(broker: "Broker", sizes: Mapping[ContainerId, int]) -> list[dict[str, object]]:
    return [
        _replica_shown(broker, replica, sizes.get(replica.id, 0))
        for replica in sorted(broker.cluster.replicas.all(), key=lambda each: each.id)
    ]


def _replica_shown(broker: "Broker", replica: LocalReplica, size: int) -> dict[str, object]:
    """A replica: what the record says of its container, and what its log has here."""
    record = broker.cluster.record(replica.id)
    return {
        "id": replica.id,
        "kind": replica.kind,
        "state": record.state if record is not None else None,
        "role": "primary" if replica.container is not None else "follower",
        "primary": record.primary if record is not None else None,
        "epoch": record.epoch if record is not None else None,
        "in_sync": ",".join(str(node) for node, _ in record.in_sync) if record is not None else "",
        "start": replica.log.start,
        "end": replica.log.end,
        "committed": replica.committed,
        "on_disk_bytes": size,
        "chunks": len(replica.log.chunks()),
    }


async def _measured(broker: "Broker") -> _OnDisk:
    replicas = broker.cluster.replicas
    # Every node has a replica of the catalog.
    folder = replicas.all()[0].folder.parent
    return await broker.loop.run_in_executor(broker.executor, _on_disk, folder, chunk_paths(replicas))


def _on_disk(folder: Path, paths: Mapping[ContainerId, Sequence[Path]]) -> _OnDisk:
    """[blocking]"""
    usage = shutil.disk_usage(folder)
    return _OnDisk(allocated(paths), _resident_bytes(), usage.total, usage.free, _descriptors())


def _descriptors() -> int:
    """[blocking] That this process has open; 0 where the system does not tell, or has none for the question."""
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 0


def _resident_bytes() -> int:
    """[blocking] Of this process (proc(5)); 0 where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE
    except OSError:
        return 0
