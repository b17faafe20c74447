"""The transfer of a catalog snapshot from the leader to a follower, on the connection on which the frames follow it.

    Following{snapshot_position, snapshot_bytes}     announces the snapshot
    SnapshotPiece{last: false} + bytes               in order; without bytes, a heartbeat of the leader
    SnapshotPiece{last: true, crc} + bytes           the end, with the CRC-32C of the whole snapshot

Neither side holds more than a few pieces in memory: the leader reads the next piece when the socket has taken most of
what was sent, and the follower writes each piece to a file before it takes the next. Versions at feature level 0 hold
the whole snapshot in memory and send it at once without a checksum; they accept what is sent here as their own format.

Knows nothing of the tables: the node provides the objects that read and write the file (NodeCatalog).
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from crc32c import crc32c

from headrace.base.errors import CorruptLog, HeadraceError
from headrace.base.ids import Position
from headrace.peer.messages import SnapshotPiece

PIECE_BYTES: Final = 128 * 1024
"""Bytes in one message. A follower asks again after 2 s without a message; a piece of this size arrives in half of
that time at 1 Mbit/s."""
STALLED_S: Final = 30.0
"""Seconds after which a follower that takes no data is disconnected; it asks again if it is alive."""
LOW_BYTES: Final = 1024 * 1024
"""Bytes received and not yet taken for writing, below which a paused connection is read again."""
HIGH_BYTES: Final = 4 * 1024 * 1024
"""Bytes received and not yet taken for writing, above which the connection is no longer read."""


class OutgoingSnapshot(Protocol):
    """A snapshot to send to a follower. It stays open, and the log from its position on is kept, until it is closed."""

    @property
    def position(self) -> Position: ...

    @property
    def size(self) -> int: ...

    @property
    def crc(self) -> int: ...

    async def read(self, at: int, length: int) -> bytes:
        """Return the bytes from `at` on, at the rate at which snapshots may be sent. Raises HeadraceError, OSError."""

    def damaged(self) -> None:
        """The bytes read do not match `crc`."""

    def sent(self) -> None:
        """All bytes have been read."""

    def close(self) -> None:
        """The follower has gone, or has caught up with the log. May be called repeatedly."""


class IncomingSnapshot(Protocol):
    """A snapshot that is being received."""

    async def write(self, piece: memoryview, /) -> None:
        """Write the next piece. Raises HeadraceError for too many bytes, StorageFull, OSError."""

    async def check(self, crc: int | None, /) -> None:
        """Check that the snapshot is complete and matches `crc`, if given. Raises HeadraceError, StorageFull,
        OSError."""

    async def install(self) -> None:
        """Replace the tables with the snapshot. Raises HeadraceError, StorageFull, OSError; the tables are then
        unchanged."""

    def close(self) -> None:
        """Remove what remains of the transfer, whatever its outcome."""


Snapshot = Callable[[Position], Awaitable[OutgoingSnapshot]]
"""Returns the catalog's newest snapshot that is not older than a position; the caller closes it."""

Receive = Callable[[Position, int], Awaitable[IncomingSnapshot]]
"""Begins to receive a snapshot of a given position and size in bytes. Raises StorageFull, HeadraceError, OSError."""


class Session(Protocol):
    """The connection on which a snapshot is sent (peer.session)."""

    def send(self, message: SnapshotPiece, buffers: list[bytes]) -> None: ...

    async def drained(self) -> None: ...


async def send(snapshot: OutgoingSnapshot, session: Session) -> None:
    """Send the whole snapshot.

    Raises TimeoutError if the follower stalls, HeadraceError if it has gone or the file has changed: the end is then
    never sent.
    """
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
    """Receive the whole snapshot and check it. Raises what `next_message` and `incoming` raise."""
    while True:
        message, payload = await next_message()
        if not isinstance(message, SnapshotPiece):
            raise CorruptLog(f"the primary sent a {type(message).__name__} within its snapshot")
        await incoming.write(payload)
        if message.last:
            await incoming.check(message.crc)
            return
