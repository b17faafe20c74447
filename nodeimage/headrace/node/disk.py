"""How full the node's disk is: for the controller, and for the cluster store, which shows it to all nodes while the
disk is full.

The disk counts as full when there is room for only a few more chunks, or when a chunk was just refused. Other nodes
then place partitions and replicas elsewhere, before writes fail. To avoid flapping, the state ends only when there is
room for several more chunks, by the filesystem's figures and by creating a file of that size.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import Final

import structlog

from headrace.base.errors import HeadraceError
from headrace.storage.disk_room import DiskRoom

log = structlog.get_logger()

LOOK_S: Final = 5.0
NEARLY_S: Final = 1.0
"""Seconds between two looks at the disk while little room is left."""
FULL_CHUNKS: Final = 2
ROOMY_CHUNKS: Final = 6


class NodeDisk:
    """Watches one node's disk."""

    def __init__(
        self, room: DiskRoom, *, chunk_bytes: int, executor: Executor, tell: Callable[[bool], Awaitable[object]]
    ) -> None:
        """`tell`: records in the cluster store whether this node is full; repeated after a failure."""
        self.used = 0
        self.total = 0
        self.full = False
        self._room = room
        self._chunk_bytes = chunk_bytes
        self._executor = executor
        self._tell = tell
        self._told: bool | None = False
        """What was last recorded in the cluster store; None: the last call failed, and may have taken effect."""
        self._due = 0.0
        self._looking: asyncio.Task[None] | None = None

    def look(self) -> None:
        """Start a look at the disk, if one is due; returns at once."""
        if self._looking is not None and not self._looking.done():
            return
        if time.monotonic() >= self._due or (self._room.refused and not self.full):
            self._looking = asyncio.get_running_loop().create_task(self._look())

    async def close(self) -> None:
        """Stop watching the disk."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    async def _look(self) -> None:
        refused, self._room.refused = self._room.refused, False
        loop = asyncio.get_running_loop()
        try:
            self.used, left = await loop.run_in_executor(self._executor, self._room.measure)
            self.total = self.used + left
            enough = (ROOMY_CHUNKS if self.full else FULL_CHUNKS) * self._chunk_bytes
            if self.full and not refused and left >= enough:
                refused = not await loop.run_in_executor(self._executor, self._room.has, enough)
        except (HeadraceError, OSError) as error:
            self._room.refused = self._room.refused or refused
            self._due = time.monotonic() + LOOK_S
            log.warning("the disk could not be checked", reason=str(error))
            return
        self.full = refused or left < enough
        nearly = self.full or left < 4 * ROOMY_CHUNKS * self._chunk_bytes
        self._due = time.monotonic() + (NEARLY_S if nearly else LOOK_S)
        if self.full == self._told:
            return
        try:
            await self._tell(self.full)
        except HeadraceError as error:
            self._told = None
            log.warning("the disk's state was not recorded in the cluster store", full=self.full, reason=str(error))
            return
        except Exception:
            self._told = None
            log.exception("recording the disk's state in the cluster store failed", full=self.full)
            return
        self._told = self.full
        log.warning("the disk is full" if self.full else "the disk has room again", used=self.used, left=left)
