"""Has a StreamCluster looked at as soon as it is not as it was, by its own word.

A reconcile asks the API server some two dozen things, so a cluster at rest gets one every half minute. What happens
inside of it meanwhile (a node that is silent, containers that take no writes, a full disk) no event of Kubernetes tells
of. So each cluster that answered is asked how it is every few seconds, which costs the API server nothing, and one that
answers otherwise than when it was last looked at, or not at all, is reconciled. One that did not answer even then is
looked at often enough by its reconciles.
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
"""For an answer: a node asks the others first, for a second at most."""
AT_ONCE: Final = 4
"""Clusters that are asked at a time."""


class ClusterWatch:
    """Of all clusters."""

    def __init__(self, *, admin: Calls, wake: Callable[[Key], None], every_s: float = LOOK_S) -> None:
        """`wake`: have a cluster reconciled."""
        self._admin = admin
        self._wake = wake
        self._every_s = every_s
        self._seen: dict[Key, str] = {}
        self._task: asyncio.Task[None] | None = None

    def saw(self, key: Key, status: Mapping[str, Any] | None) -> None:
        """A reconcile found a cluster like this; None: it does not answer, or is not to be asked."""
        if status is None:
            self._seen.pop(key, None)
        else:
            self._seen[key] = mark(status)

    def start(self) -> None:
        """Ask from now on."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="cluster-watch")

    async def close(self) -> None:
        """Ask no more."""
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
                    log.error(
                        "a cluster could not be asked how it is", of=f"{key.namespace}/{key.name}", error=repr(now)
                    )
                elif self._seen.get(key) == asked[key] != now:
                    del self._seen[key]  # until it has been looked at
                    self._wake(key)

    async def _look(self, key: Key, turns: asyncio.Semaphore) -> str:
        async with turns:
            try:
                where = bootstrap(key.name, key.namespace)
                return mark(await self._admin.call(where, "cluster.status", patience_s=PATIENCE_S))
            except HeadraceError:
                return ""


def mark(status: Mapping[str, Any]) -> str:
    """What conditions are made of, and nothing that changes all the time. Pure."""
    redundancy = status["redundancy"]
    return digest(
        [
            [redundancy.get(name) for name in ("whole", "containers", "catalog", "lacking", "below_minimum")],
            sorted([node["node"], node["state"]] for node in status["nodes"]),
            status.get("controller"),
        ]
    )
