"""What `headrace status` shows: the node, its containers, what it stores and what it is doing.

Figures come from memory; sizes on disk and the process's memory are read in a reader thread.
"""

import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace import __version__
from headrace.broker.admin_steps import data_folder
from headrace.ids import ContainerId

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

_BLOCK: Final = 512
"""What st_blocks counts in, whatever the filesystem's own blocks are (stat(2))."""
_PAGE: Final = os.sysconf("SC_PAGESIZE")


class _OnDisk(NamedTuple):
    """Read in a thread: bytes by container, the process's memory, and the filesystem's room."""

    containers: Mapping[ContainerId, int]
    resident: int
    total: int
    free: int


async def node_status(broker: "Broker") -> dict[str, object]:
    """The status as plain fields; names end in their unit."""
    streams, topics, partitions = await broker.catalog.query(lambda reader: reader.totals())
    folder = data_folder(broker)
    paths = {container.id: [chunk.path for chunk in container.log.chunks()] for container in broker.containers.values()}
    disk = await broker.loop.run_in_executor(broker.executor, _on_disk, folder, paths)
    uptime_s = max(time.time() - broker.node.started_at, 0.001)
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
            "requests_since_start": counters.requests,
            "produce_requests_since_start": counters.produce_requests,
            "fetch_requests_since_start": counters.fetch_requests,
            "requests_per_second_since_start": round(counters.requests / uptime_s, 1),
            "in_since_start_bytes": counters.bytes_in,
            "out_since_start_bytes": counters.bytes_out,
        },
        "loop_lag_ms": dict(broker.loop_lag.shown()),
        "memory": {"resident_bytes": disk.resident},
        "disk": {
            "free_bytes": disk.free,
            "total_bytes": disk.total,
            "stored_bytes": sum(disk.containers.values()),
            "waiting_bytes": sum(container.log.pending_bytes for container in broker.containers.values()),
            "scanned_at_start_bytes": sum(container.log.scanned_bytes for container in broker.containers.values()),
        },
        "maintenance": {
            "chunks_regrouped_since_start": broker.space.regrouped,
            "given_back_since_start_bytes": broker.space.freed_bytes,
        },
        "scrub": scrub_shown(broker),
        "containers": _containers(broker, disk.containers),
    }


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
        {
            "id": container.id,
            "kind": "catalog" if container.id == broker.space.catalog_id else "data",
            "state": "closed" if container.closing else "open",
            "primary": broker.node.node_id,
            "epoch": container.epoch,
            "in_sync": ",".join(str(member.node) for member in container.primary.in_sync),
            "start": container.log.start,
            "end": container.log.end,
            "committed": container.committed,
            "on_disk_bytes": sizes.get(container.id, 0),
            "chunks": len(container.log.chunks()),
        }
        for _, container in sorted(broker.containers.items())
    ]


def _on_disk(folder: Path, paths: dict[ContainerId, list[Path]]) -> _OnDisk:
    """[blocking]"""
    usage = shutil.disk_usage(folder)
    sizes = {container: sum(map(_allocated, chunks)) for container, chunks in paths.items()}
    return _OnDisk(sizes, _resident_bytes(), usage.total, usage.free)


def _allocated(path: Path) -> int:
    """[blocking] The bytes that a file takes up, holes left out; 0 if it has just been given back."""
    try:
        return path.stat().st_blocks * _BLOCK
    except FileNotFoundError:
        return 0


def _resident_bytes() -> int:
    """[blocking] Of this process (proc(5)); 0 where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE
    except OSError:
        return 0
