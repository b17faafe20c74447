"""Detects that the API server went back to an older state, as after a restore of etcd from a backup.

The operator then remembers a state that no longer exists, at higher versions than anything that it receives from then
on: watches continue from versions that the server has yet to reach, and are silent until it has; listed objects seem
older than the known ones. So the operator reports itself as unhealthy, and Kubernetes restarts it, with
nothing remembered.

The revision of a list without a version is etcd's own: it rises with every write, and otherwise never falls.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from headrace.base.errors import HeadraceError

log = structlog.get_logger()

LOOK_S: Final = 10.0


class RevisionWatch:
    """Watches one API server, or several over one etcd."""

    def __init__(self, revision: Callable[[], Awaitable[int]], *, every_s: float = LOOK_S) -> None:
        """`revision`: returns the server's current revision. Raises HeadraceError if it is unavailable, ValueError if
        it is no number.
        """
        self.set_back = ""
        """Why the operator has to restart; "" if it need not."""
        self._revision = revision
        self._every_s = every_s
        self._highest = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to watch the revision."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="revision-watch")

    async def close(self) -> None:
        """Stop watching."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while not self.set_back:
            try:
                self._check(await self._revision())
            except (HeadraceError, ValueError) as error:
                log.debug("the revision of the API server is not known", error=str(error))
            except Exception:
                log.exception("reading the revision of the API server failed")
            await asyncio.sleep(self._every_s)

    def _check(self, revision: int) -> None:
        if revision < self._highest:
            self.set_back = (
                f"the API server went back from revision {self._highest} to {revision} (etcd was restored from a "
                "backup?): the operator has to restart and read everything again"
            )
            log.error("the API server was set back", highest=self._highest, revision=revision, reason=self.set_back)
        self._highest = max(self._highest, revision)
