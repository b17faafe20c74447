"""How full the node's disk is: for the controller, and for the cluster store, which says so to all while it is full.

Full means that few chunks more have room, or that one had none just now. Other nodes' partitions and replicas go
elsewhere then, before writes fail; it ends when there is room for some more, so that it does not flutter: by the
filesystem's figures, and for a file that is made to see.
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
"""While there is little room, it is looked at so often."""
FULL_CHUNKS: Final = 2
ROOMY_CHUNKS: Final = 6


class NodeDisk:
    """One node's."""

    def __init__(
        self, room: DiskRoom, *, chunk_bytes: int, executor: Executor, tell: Callable[[bool], Awaitable[object]]
    ) -> None:
        """`tell`: say in the cluster store that this node is full, or no more; it is repeated where it fails."""
        self.used = 0
        self.total = 0
        self.full = False
        self._room = room
        self._chunk_bytes = chunk_bytes
        self._executor = executor
        self._tell = tell
        self._told: bool | None = False
        """What the store was told last; None: that failed, and may have landed."""
        self._due = 0.0
        self._looking: asyncio.Task[None] | None = None

    def look(self) -> None:
        """Look at the disk again, if it is time for it; returns at once."""
        if self._looking is not None and not self._looking.done():
            return
        if time.monotonic() >= self._due or (self._room.refused and not self.full):
            self._looking = asyncio.get_running_loop().create_task(self._look())

    async def close(self) -> None:
        """Look no more."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    async def _look(self) -> None:
        refused, self._room.refused = self._room.refused, False
        loop = asyncio.get_running_loop()
        try:
            self.used, left = await loop.run_in_executor(self._executor, self._room.measure)
        except (HeadraceError, OSError) as error:
            self._room.refused = self._room.refused or refused
            self._due = time.monotonic() + LOOK_S
            log.warning("the disk was not looked at", reason=str(error))
            return
        self.total = self.used + left
        enough = (ROOMY_CHUNKS if self.full else FULL_CHUNKS) * self._chunk_bytes
        if self.full and not refused and left >= enough:
            refused = not await loop.run_in_executor(self._executor, self._room.has, enough)
        self.full = refused or left < enough
        nearly = self.full or left < 4 * ROOMY_CHUNKS * self._chunk_bytes
        self._due = time.monotonic() + (NEARLY_S if nearly else LOOK_S)
        if self.full == self._told:
            return
        try:
            await self._tell(self.full)
        except HeadraceError as error:
            self._told = None
            log.warning("the cluster store was not told about the disk", full=self.full, reason=str(error))
            return
        except Exception:
            self._told = None
            log.exception("telling the cluster store about the disk went wrong", full=self.full)
            return
        self._told = self.full
        log.warning("the disk is full" if self.full else "the disk has room again", used=self.used, left=left)
