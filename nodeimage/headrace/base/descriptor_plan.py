"""The plan of a node's file descriptors: shares for clients, for other nodes and for files that are read now and then,
and a reserve that no connection gets, so that a file can always be opened.

    reserve   one eighth, 96 to 4,096        logs that are written to, SQLite, indexes, child processes
    chunks    one sixteenth, 16 to 4,096     closed chunks that stay open for the next read, two descriptors each
    peers     one eighth, 64 to 16,384       sessions with other nodes, in either direction
    http      32                             health and metrics
    clients   the rest                       and at most half of the memory mappings that the kernel allows a process:
                                             each connection, and each closed chunk whose file is open, has one

A plan depends on limits only. Whatever is actually in use, connections are refused once only the reserve is left
(admission.py).
"""

import resource
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MIN_DESCRIPTORS: Final = 256
"""The number of descriptors below which a node works, if at all, with very few clients."""
_MAPPINGS: Final = 65_530
"""The most memory mappings of a process by Linux's default."""
_HTTP: Final = 32
_MIN_CLIENTS: Final = 16


@dataclass(frozen=True, slots=True)
class DescriptorPlan:
    """The shares of descriptors. `limit`: descriptors of the process. `chunks`: the most closed chunks open at a time;
    all others are numbers of descriptors."""

    limit: int
    reserve: int
    chunks: int
    peers: int
    http: int
    clients: int


def descriptor_plan(limit: int, *, mappings: int = _MAPPINGS) -> DescriptorPlan:
    """The plan for a process that may have `limit` descriptors and `mappings` memory mappings. Pure."""
    reserve = _within(limit // 8, 96, 4_096)
    chunks = _within(min(limit // 16, mappings // 8), 16, 4_096)
    peers = _within(limit // 8, 64, 16_384)
    left = limit - reserve - 2 * chunks - peers - _HTTP
    clients = max(min(left, mappings // 2), _MIN_CLIENTS)
    return DescriptorPlan(limit=limit, reserve=reserve, chunks=chunks, peers=peers, http=_HTTP, clients=clients)


def plan_of_process() -> DescriptorPlan:
    """[blocking] The plan for this process according to its current limits."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        mappings = int(Path("/proc/sys/vm/max_map_count").read_text())
    except (OSError, ValueError):
        mappings = _MAPPINGS
    return descriptor_plan(soft if soft != resource.RLIM_INFINITY else 1 << 30, mappings=mappings)


def raise_limit() -> int:
    """Raises this process's limit of descriptors to the highest allowed; returns the new limit."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most


def _within(value: int, least: int, most: int) -> int:
    return min(max(value, least), most)
