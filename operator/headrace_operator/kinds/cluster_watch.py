"""Triggers a StreamCluster's reconcile as soon as the cluster's own status changes.

A reconcile makes some two dozen requests to the API server, so a cluster at rest is reconciled every half minute. No
Kubernetes event reports what happens inside the cluster meanwhile (a silent node, containers that take no writes, a
full disk). So each cluster that answered its last reconcile is asked for its status every few seconds, which costs the
API server nothing; a cluster whose answer has changed, or which does not answer, is reconciled. A cluster that did not
answer its last reconcile is reconciled often enough anyway.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

import structlog

from headrace.base.errors import HeadraceError
from headrace_operator.admin import Calls
from headrace_operator.builders.digest import digest
from headrace_operator.builders.names import bootstrap
from headrace_operator.engine import Key

log = structlog.get_logger()

LOOK_S: Final = 3.0
PATIENCE_S: Final = 5.0
"""Seconds that a node has to answer: it waits for the other nodes for a second at most."""
AT_ONCE: Final = 4
"""Clusters that are asked concurrently."""


class ClusterWatch:
    """Watches the status of all clusters."""

    def __init__(self, *, admin: Calls, wake: Callable[[Key], None], every_s: float = LOOK_S) -> None:
        """`wake`: called to have a cluster reconciled."""
        self._admin = admin
        self._wake = wake
        self._every_s = every_s
        self._seen: dict[Key, str] = {}
        self._task: asyncio.Task[None] | None = None

    def saw(self, key: Key, status: Mapping[str, Any] | None) -> None:
        """Record the status that a reconcile found; None if the cluster did not answer, or is not to be watched."""
        if status is None:
            self._seen.pop(key, None)
        else:
            self._seen[key] = mark(status)

    def start(self) -> None:
        """Start to ask the clusters."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="cluster-watch")

    async def close(self) -> None:
        """Stop asking."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        turns = asyncio.Semaphore(AT_ONCE)
        while True:
            await asyncio.sleep(self._every_s)
            asked = dict(self._seen)
            found = await asyncio.gather(*(self._look(key, turns) for key in asked), return_exceptions=True)
            for key, now in zip(asked, found, strict=True):
                if isinstance(now, BaseException):
                    log.error("a cluster's status could not be read", of=f"{key.namespace}/{key.name}", error=repr(now))
                elif self._seen.get(key) == asked[key] != now:
                    del self._seen[key]  # until the next reconcile
                    self._wake(key)

    async def _look(self, key: Key, turns: asyncio.Semaphore) -> str:
        async with turns:
            try:
                where = bootstrap(key.name, key.namespace)
                return mark(await self._admin.call(where, "cluster.status", patience_s=PATIENCE_S))
            except HeadraceError:
                return ""


def mark(status: Mapping[str, Any]) -> str:
    """Return a digest of what most conditions depend on: redundancy, the nodes' states, damage of their catalogs, the
    controller, and whether the cluster store is reached and was set back. Pure.
    """
    redundancy = status["redundancy"]
    set_back = status.get("set_back") or {}
    return digest(
        [
            [redundancy.get(name) for name in ("whole", "containers", "catalog", "lacking", "below_minimum")],
            sorted([node["node"], node["state"], bool(node.get("catalog_damage"))] for node in status["nodes"]),
            status.get("controller"),
            [set_back.get(name) for name in ("containers", "such_as", "nodes")],
            bool((status.get("store") or {}).get("silent_ms")),  # not for how long, which changes all the time
        ]
    )
