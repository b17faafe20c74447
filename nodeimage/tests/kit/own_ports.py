"""Ports of loopback that are reserved for a test's life, and bound later.

They are below those that nodes choose by themselves (FREE_PORTS) and those that the kernel assigns to connections.
"""

import os
import random

from headrace.local.processes import port_is_free

HOST = "127.0.0.1"
PORTS = range(10_100, 20_000)
_chosen: set[int] = set()
_worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))


def own_port() -> int:
    """A free port that no other caller gets, in any process of these tests."""
    while (
        (port := random.choice(PORTS)) in _chosen
        or port % _workers != _worker % _workers
        or not port_is_free(HOST, port)
    ):
        pass
    _chosen.add(port)
    return port
