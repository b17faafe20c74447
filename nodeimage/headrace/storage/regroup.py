"""Regrouping: helper processes sort closed chunks by partitionlet, one chunk at a time.

The process writes a new file beside the old one (headrace.log.regroup); readers continue with the old file until the
new one is opened. A process that fails or is killed leaves the chunk unchanged; it is retried later. The processes
pause for a part of each round and leave the disk to writes that are being acknowledged, except for a replica that has
many chunks to regroup.

The new file takes as much room beside the old one as is still live in it. It may use half of the reserve, since
afterwards everything dead can be freed. The other half is the catalog's.
"""

import math
import time
from collections.abc import Callable, Iterable
from functools import partial

import structlog

from headrace.base.child_processes import ChildProcess
from headrace.base.runtime import Runtime
from headrace.log.container_log import Chunk, ContainerLog
from headrace.storage.chunk_inventory import ChunkKey, Held

log = structlog.get_logger()

REGROUP_RETRY_S = 60.0
"""Seconds for which a chunk is left alone after regrouping it, or checking whether it needs it, has failed."""
PAUSES_S = 5.0
"""Seconds of pauses of all processes in one round: the other steps wait for them, such as expiry and closing of full
chunks."""
HURRY_CHUNKS = 4
"""Number of one replica's chunks waiting to be regrouped at which processes stop pausing, because the backlog grows."""


class Regrouping:
    """Regroups the chunks of this node's replicas, one at a time."""

    def __init__(self, *, runtime: Runtime, disk_reserve: int, done: Callable[[ChunkKey], None]) -> None:
        """`disk_reserve`: bytes, see disk_room; `done` is called for each chunk that has been regrouped."""
        self._runtime = runtime
        self._disk_reserve = disk_reserve
        self._done = done
        self._helper: ChildProcess | None = None
        self._again_at: dict[ChunkKey, float] = {}
        """When a chunk may be tried or checked again; never (inf) if it needs no regrouping."""
        self._roomy = True
        """Whether the disk had room for the last chunk that was to be regrouped."""
        self.regrouped = 0

    async def step(self, replicas: Iterable[Held]) -> None:
        """Regroup one chunk of each replica that has one to regroup."""
        behind = [held for held in replicas if self._waiting(held)]
        for held in behind:
            await self._regroup_one(held, pauses_s=PAUSES_S / len(behind))

    def forget(self, keys: Callable[[ChunkKey], bool]) -> None:
        """Forget the chunks for which `keys` returns True: they are gone."""
        for key in [key for key in self._again_at if keys(key)]:
            del self._again_at[key]

    async def close(self) -> None:
        """End a running process; its work is redone later."""
        if self._helper is not None:
            await self._helper.stop()

    async def _regroup_one(self, held: Held, *, pauses_s: float) -> None:
        """Regroup the oldest chunk of this replica that needs it, in a helper process."""
        for chunk in held.log.closed_chunks():
            key = (held.id, chunk.start)
            if chunk.body.regrouped or chunk.end is None or self._runtime.loop.time() < self._again_at.get(key, 0.0):
                continue
            if chunk.end > held.committed:
                return
            self._again_at[key] = self._runtime.loop.time() + REGROUP_RETRY_S
            look = partial(_check, held.log, chunk, leave=self._disk_reserve // 2)
            needed, roomy = await self._runtime.loop.run_in_executor(self._runtime.executor, look)
            if not needed:
                self._again_at[key] = math.inf
                continue
            if roomy != self._roomy:
                self._roomy = roomy
                log.info("regrouping continues" if roomy else "no room for regrouping", container=held.id)
            if not roomy:
                return
            began = time.monotonic()
            if self._waiting(held) >= HURRY_CHUNKS:
                pauses_s = 0.0
            self._helper = ChildProcess(held.log.regroup_command(chunk, pauses_s=pauses_s))
            try:
                status, *_ = await self._helper.run()
            finally:
                self._helper = None
            if status:
                log.warning("regrouping failed", container=held.id, chunk=chunk.start, status=status)
                return
            await self._runtime.loop.run_in_executor(self._runtime.executor, held.log.reopen_chunk, chunk)
            self.regrouped += 1
            log.info(
                "chunk regrouped", container=held.id, chunk=chunk.start, seconds=round(time.monotonic() - began, 2)
            )
            self._done(key)
            return

    def _waiting(self, held: Held) -> int:
        """The number of a replica's chunks that need regrouping, as far as known."""
        return sum(
            not chunk.body.regrouped and self._again_at.get((held.id, chunk.start)) != math.inf
            for chunk in held.log.closed_chunks()
        )


def _check(log: ContainerLog, chunk: Chunk, *, leave: int) -> tuple[bool, bool]:
    """[blocking] Whether a closed chunk needs regrouping; and if so, whether there is room for that and `leave` bytes
    beyond."""
    needed = log.needs_regroup(chunk)
    return needed, needed and log.has_room_to_regroup(chunk, leave=leave)
