"""The catalog's snapshots that this node sends to others: held open while they are read, and paced.

All reads of snapshots, for any receiver, pass one `Pacer`: joining nodes must not take the disk and the network from
clients. Followers receive a snapshot on their stream (container.snapshot_transfer). Nodes that have lost their tables
read one by separate calls, each of which finds the file that the first call opened.
"""

import asyncio
from concurrent.futures import Executor
from typing import Final

from headrace.base.errors import HeadraceError
from headrace.base.ids import Position
from headrace.container.snapshot_transfer import PIECE_BYTES
from headrace.log.files import is_lost
from headrace.peer.messages import SnapshotPart
from headrace.tables.snapshot_pool import SharedSnapshot

LENT_S: Final = 60.0
"""Seconds for which a snapshot stays open after the last call that reads it."""


class Pacer:
    """Limits reads to `rate` bytes per second, in the order of the calls. 0: no limit."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._loop = asyncio.get_running_loop()
        self._free_at = 0.0

    async def take(self, length: int) -> None:
        """Return when `length` bytes may be sent."""
        if not self._rate:
            return
        now = self._loop.time()
        begins = max(now, self._free_at)
        self._free_at = begins + length / self._rate
        if begins > now:
            await asyncio.sleep(begins - now)


class GivenSnapshot:
    """See container.snapshot_transfer.OutgoingSnapshot."""

    def __init__(self, shared: SharedSnapshot, pacer: Pacer, executor: Executor) -> None:
        self.position = shared.position
        self.size = shared.size
        self.crc = shared.crc
        self._shared = shared
        self._pacer = pacer
        self._executor = executor

    async def read(self, at: int, length: int) -> bytes:
        """See OutgoingSnapshot."""
        await self._pacer.take(length)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, self._shared.reader(), at, length)
        except OSError as error:
            if is_lost(error):
                self.damaged()
            raise

    async def verify(self) -> None:
        """Check the file's bytes against its checksum. Raises HeadraceError if they have changed."""
        try:
            found = await asyncio.get_running_loop().run_in_executor(self._executor, self._shared.summed())
        except OSError as error:
            raise HeadraceError(f"the snapshot at {self.position} cannot be read: {error}") from error
        if found != (self.size, self.crc):
            self.damaged()
            raise HeadraceError(f"the snapshot at {self.position} has changed on the disk; ask again")

    def damaged(self) -> None:
        """See OutgoingSnapshot."""
        self._shared.damaged()

    def sent(self) -> None:
        """See OutgoingSnapshot."""
        self._shared.sent()

    def close(self) -> None:
        """See OutgoingSnapshot."""
        self._shared.close()


class LentSnapshots:
    """Snapshots that other nodes read by separate calls."""

    def __init__(self) -> None:
        self._lent: dict[Position, GivenSnapshot] = {}
        self._timers: dict[Position, asyncio.TimerHandle] = {}

    async def lend(self, snapshot: GivenSnapshot) -> Position:
        """Hold a snapshot for the calls that read it, and return its position. Raises HeadraceError if it is
        damaged."""
        position = snapshot.position
        if position in self._lent:
            snapshot.close()
        else:
            self._lent[position] = snapshot
            self._restart_timer(position)
            try:
                await snapshot.verify()
            except HeadraceError:
                self._release(position)
                raise
        return position

    async def part(self, position: Position, at: int) -> tuple[SnapshotPart, list[bytes]]:
        """The bytes of the snapshot at `position`, from `at` on. Raises HeadraceError if it has been released, or
        cannot be read."""
        snapshot = self._lent.get(position)
        if snapshot is None:
            raise HeadraceError(f"the snapshot at {position} is no longer held here; ask again")
        self._restart_timer(position)
        try:
            piece = await snapshot.read(at, PIECE_BYTES)
        except OSError as error:
            raise HeadraceError(f"the snapshot at {position} cannot be read: {error}") from error
        return SnapshotPart(position, snapshot.size, snapshot.crc), [piece]

    def close(self) -> None:
        """Release all snapshots."""
        for position in list(self._lent):
            self._release(position)

    def _restart_timer(self, position: Position) -> None:
        timer = self._timers.pop(position, None)
        if timer is not None:
            timer.cancel()
        self._timers[position] = asyncio.get_running_loop().call_later(LENT_S, self._release, position)

    def _release(self, position: Position) -> None:
        timer = self._timers.pop(position, None)
        if timer is not None:
            timer.cancel()
        snapshot = self._lent.pop(position, None)
        if snapshot is not None:
            snapshot.close()
