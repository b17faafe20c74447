"""Ports of loopback that are kept for a test's life, and bound later."""

import os

from headrace.local.processes import free_port

HOST = "127.0.0.1"
_chosen: set[int] = set()
_worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))


def own_port() -> int:
    """A free port that nobody else who asks here gets, in whichever process of these tests."""
    while (port := free_port(HOST)) in _chosen or port % _workers != _worker:
        pass
    _chosen.add(port)
    return port
