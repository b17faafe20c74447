"""The catalog's snapshot on its way from the leader to a follower, on the stream on which the frames come after it.

    Following{snapshot_position, snapshot_bytes}     what is going to come
    SnapshotPiece{last: false} + bytes               in order; without bytes it only says that the leader lives
    SnapshotPiece{last: true, crc} + bytes           the end, with the CRC-32C of all

Neither side has more than some pieces in memory: the leader reads the next one when the socket has taken most of what
was sent, the follower writes each to a file before it takes the next. Versions at feature level 0 hold all of it in
memory, send it at once without a sum, and take what is sent here as theirs.

Knows nothing of the tables: the file is read and written by what the node gives (NodeCatalog).
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from crc32c import crc32c

from headrace.base.errors import CorruptLog, HeadraceError
from headrace.base.ids import Position
from headrace.peer.messages import SnapshotPiece

PIECE_BYTES: Final = 256 * 1024
"""A follower asks anew where no message has come for 2 s: so much comes in time over 1 Mbit/s."""
STALLED_S: Final = 30.0
"""A follower that takes nothing for so long is let go; it asks again if it lives."""
LOW_BYTES: Final = 1024 * 1024
HIGH_BYTES: Final = 4 * 1024 * 1024
"""Received and not in the file yet: above, the connection is not read."""


class OutgoingSnapshot(Protocol):
    """A snapshot that a follower is sent. Held open, and the log behind it kept, until it is closed."""

    @property
    def position(self) -> Position: ...

    @property
    def size(self) -> int: ...

    @property
    def crc(self) -> int: ...

    async def read(self, at: int, length: int) -> bytes:
        """The bytes from `at` on, at the pace at which snapshots may be sent. Raises HeadraceError, OSError."""

    def damaged(self) -> None:
        """The bytes are not those of which `crc` is the sum."""

    def sent(self) -> None:
        """Nothing more is read."""

    def close(self) -> None:
        """The follower has gone, or has caught up with the log. May be called again."""


class IncomingSnapshot(Protocol):
    """A snapshot that is being received."""

    async def write(self, piece: memoryview, /) -> None:
        """Raises HeadraceError for too many bytes, StorageFull, OSError."""

    async def check(self, crc: int | None, /) -> None:
        """All has come, and its sum is this one, if that is known. Raises HeadraceError, StorageFull, OSError."""

    async def install(self) -> None:
        """Take it over. Raises HeadraceError, StorageFull, OSError; all is as it was then."""

    def close(self) -> None:
        """Whatever has come of it: nothing is left behind."""


Snapshot = Callable[[Position], Awaitable[OutgoingSnapshot]]
"""The catalog's newest snapshot that is not older than a position, to be closed by whoever asks."""

Receive = Callable[[Position, int], Awaitable[IncomingSnapshot]]
"""Begins to receive a snapshot of a position, of so many bytes. Raises StorageFull, HeadraceError, OSError."""


class Session(Protocol):
    """What a snapshot is sent on (peer.session)."""

    def send(self, message: SnapshotPiece, buffers: list[bytes]) -> None: ...

    async def drained(self) -> None: ...


async def send(snapshot: OutgoingSnapshot, session: Session) -> None:
    """Send all of it. Raises TimeoutError where the follower stands still, HeadraceError where it has gone, or where
    the file is not what it was: then the end is never sent."""
    at = crc = 0
    while at < snapshot.size:
        piece = await snapshot.read(at, min(PIECE_BYTES, snapshot.size - at))
        at += len(piece)
        crc = crc32c(piece, crc)
        last = at == snapshot.size
        if not piece or (last and crc != snapshot.crc):
            snapshot.damaged()
            raise HeadraceError(f"the snapshot at {snapshot.position} has changed on the disk; another one is sent")
        session.send(SnapshotPiece(last=last, crc=crc if last else None), [piece])
        async with asyncio.timeout(STALLED_S):
            await session.drained()
    snapshot.sent()


async def receive(incoming: IncomingSnapshot, next_message: Callable[[], Awaitable[tuple[object, memoryview]]]) -> None:
    """Receive all of it, and check it. Raises as `next_message` and `incoming`."""
    while True:
        message, payload = await next_message()
        if not isinstance(message, SnapshotPiece):
            raise CorruptLog(f"the primary sent a {type(message).__name__} within its snapshot")
        await incoming.write(payload)
        if message.last:
            await incoming.check(message.crc)
            return
