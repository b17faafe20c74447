"""Regrouping: closed chunks of many partitionlets are put in order by a helper process, one at a time.

The helper writes the chunk anew beside the old one (headrace.log.regroup); readers go on in the old file until the new
one is taken up. A helper that fails or is killed leaves the chunk as it was; it is tried again later.
"""

import asyncio
import math
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import structlog

from headrace.container.container import Container
from headrace.ids import ContainerId

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

log = structlog.get_logger()

REGROUP_RETRY_S = 60.0
"""How long a chunk is left alone after its regrouping failed."""

ChunkKey = tuple[ContainerId, int]
"""A container, and the position at which a chunk of it starts."""


class Regrouping:
    """One node's."""

    def __init__(self, broker: "Broker", *, done: Callable[[ChunkKey], None]) -> None:
        """`done` is told of each chunk that has been regrouped."""
        self._broker = broker
        self._done = done
        self._helper: asyncio.subprocess.Process | None = None
        self._again_at: dict[ChunkKey, float] = {}
        """When a chunk may be looked at again."""
        self.regrouped = 0

    async def step(self, containers: Iterable[Container]) -> None:
        """Regroup one chunk of each container that has one to regroup."""
        for container in containers:
            await self._regroup_one(container)

    def forget(self, container: ContainerId) -> None:
        """A container is gone."""
        for key in [key for key in self._again_at if key[0] == container]:
            del self._again_at[key]

    async def close(self) -> None:
        """End a helper that is at work; what it does is redone later."""
        helper = self._helper
        if helper is not None and helper.returncode is None:
            helper.kill()
            await helper.wait()

    async def _regroup_one(self, container: Container) -> None:
        """Regroup the oldest chunk of this container that needs it, in a helper process."""
        for chunk in container.log.closed_chunks():
            key = (container.id, chunk.start)
            if chunk.body.regrouped or chunk.end is None or self._broker.loop.time() < self._again_at.get(key, 0.0):
                continue
            if chunk.end > container.committed:
                return
            self._again_at[key] = math.inf
            if not await self._broker.loop.run_in_executor(self._broker.executor, container.log.needs_regroup, chunk):
                continue
            self._again_at[key] = self._broker.loop.time() + REGROUP_RETRY_S
            began = time.monotonic()
            self._helper = await asyncio.create_subprocess_exec(*container.log.regroup_command(chunk))
            status = await self._helper.wait()
            self._helper = None
            if status:
                log.warning("regrouping failed", container=container.id, chunk=chunk.start, status=status)
                return
            await self._broker.loop.run_in_executor(self._broker.executor, container.log.reopen_chunk, chunk)
            self.regrouped += 1
            log.info(
                "chunk regrouped", container=container.id, chunk=chunk.start, seconds=round(time.monotonic() - began, 2)
            )
            self._done(key)
            return
