"""What a node's file descriptors are for: so many for clients, for other nodes, for files that are read now and then,
and a reserve that no connection gets, so that a file can always be opened.

    reserve   a part in eight, 96 to 4,096   logs that are written to, SQLite, indexes, helpers
    chunks    a part in sixteen, 16 to 4,096 closed chunks that stay open for the next read, two descriptors each
    peers     a part in eight, 64 to 16,384  sessions with other nodes, either way
    http      32                             health and metrics
    clients   the rest                       and at most half of the mappings that the kernel allows a process: each
                                             connection, and each closed chunk that is open, has one

A plan is made of limits alone. Whatever is really used, connections are refused once only the reserve is left
(admission.py).
"""

import resource
from dataclasses import dataclass
from pathlib import Path
from typing import Final

LEAST: Final = 256
"""Descriptors below which a node works, if at all, with very few clients."""
_MAPPINGS: Final = 65_530
"""Linux's default."""
_HTTP: Final = 32
_LEAST_CLIENTS: Final = 16


@dataclass(frozen=True, slots=True)
class DescriptorPlan:
    """`limit`: descriptors of the process. `chunks`: closed chunks that are open at a time. The rest: descriptors."""

    limit: int
    reserve: int
    chunks: int
    peers: int
    http: int
    clients: int


def descriptor_plan(limit: int, *, mappings: int = _MAPPINGS) -> DescriptorPlan:
    """For a process that may have `limit` descriptors and `mappings` mappings. Pure."""
    reserve = _within(limit // 8, 96, 4_096)
    chunks = _within(min(limit // 16, mappings // 8), 16, 4_096)
    peers = _within(limit // 8, 64, 16_384)
    left = limit - reserve - 2 * chunks - peers - _HTTP
    clients = max(min(left, mappings // 2), _LEAST_CLIENTS)
    return DescriptorPlan(limit=limit, reserve=reserve, chunks=chunks, peers=peers, http=_HTTP, clients=clients)


def plan_of_process() -> DescriptorPlan:
    """[blocking] For this process, as its limits are now."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        mappings = int(Path("/proc/sys/vm/max_map_count").read_text())
    except (OSError, ValueError):
        mappings = _MAPPINGS
    return descriptor_plan(soft if soft != resource.RLIM_INFINITY else 1 << 30, mappings=mappings)


def raise_limit() -> int:
    """Let this process have as many descriptors as it may; how many that are."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most


def _within(value: int, least: int, most: int) -> int:
    return min(max(value, least), most)
