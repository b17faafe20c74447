"""The catalog's snapshots as this node gives them to others: held open while they are read, and paced.

All that is read of them, for whomever, goes through one `Pacer`: joining nodes must not take the disk and the network
from clients. Nodes that follow read one on their stream (container.snapshot_transfer); those that have lost their
tables read one by calls, each of which finds again the file that the first one found.
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
"""A snapshot that is read by calls is let go of when none has come for so long."""


class Pacer:
    """Lets so many bytes a second through, in the order in which they were asked for. 0: as many as there are."""

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
        """Raises HeadraceError where its bytes are not those any more that were checked."""
        try:
            found = await asyncio.get_running_loop().run_in_executor(self._executor, self._shared.summed())
        except OSError as error:
            raise HeadraceError(f"the snapshot at {self.position} cannot be read: {error}") from error
        if found != (self.size, self.crc):
            self.damaged()
            raise HeadraceError(f"the snapshot at {self.position} has changed on the disk; ask anew")

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
    """Those that are read by calls."""

    def __init__(self) -> None:
        self._lent: dict[Position, GivenSnapshot] = {}
        self._timers: dict[Position, asyncio.TimerHandle] = {}

    async def lend(self, snapshot: GivenSnapshot) -> Position:
        """Keep a snapshot for the calls that read it; its position. Raises HeadraceError where it is damaged by now."""
        position = snapshot.position
        if position in self._lent:
            snapshot.close()
        else:
            self._lent[position] = snapshot
            self._keep(position)
            try:
                await snapshot.verify()
            except HeadraceError:
                self._let_go(position)
                raise
        return position

    async def part(self, position: Position, at: int) -> tuple[SnapshotPart, list[bytes]]:
        """The bytes of one from `at` on. Raises HeadraceError where it has been let go of, or cannot be read."""
        snapshot = self._lent.get(position)
        if snapshot is None:
            raise HeadraceError(f"the snapshot at {position} is not held here any more; ask anew")
        self._keep(position)
        try:
            piece = await snapshot.read(at, PIECE_BYTES)
        except OSError as error:
            raise HeadraceError(f"the snapshot at {position} cannot be read: {error}") from error
        return SnapshotPart(position, snapshot.size, snapshot.crc), [piece]

    def close(self) -> None:
        """Let go of all."""
        for position in list(self._lent):
            self._let_go(position)

    def _keep(self, position: Position) -> None:
        timer = self._timers.pop(position, None)
        if timer is not None:
            timer.cancel()
        self._timers[position] = asyncio.get_running_loop().call_later(LENT_S, self._let_go, position)

    def _let_go(self, position: Position) -> None:
        timer = self._timers.pop(position, None)
        if timer is not None:
            timer.cancel()
        snapshot = self._lent.pop(position, None)
        if snapshot is not None:
            snapshot.close()
