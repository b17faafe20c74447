"""The leader's side of one follower: what the follower has, and how the follower gets the rest.

A follower asks to follow with the history of its log. The leader answers with the position from which the two logs
differ (history.py, invariant 7) and sends frames from there. A follower that is behind is fed from the disk, a piece at
a time, in a thread. Once it has all frames up to those that the running sync cycle began with, it is *live*, and gets
each cycle's frames from memory as soon as the leader begins to write them. It falls back to the disk if too much is in
flight to it. A follower of the catalog that is so far behind that the log no longer reaches back to its position first
gets a snapshot of the tables (snapshot_transfer.py); until it has caught up from there, the log is kept for it.

When the connection ends on either side, the follower asks again. When this node ceases to lead, all feeds end, and the
followers find the next leader by the container's record.
"""

import asyncio
import struct
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

import structlog

from headrace.base.errors import Code, CorruptLog, HeadraceError, NewerFormat
from headrace.base.ids import Epoch, NodeId, Position
from headrace.container import snapshot_transfer
from headrace.container.history import History, match_point
from headrace.container.leader import Leader
from headrace.container.leader_state import Member, Vouch
from headrace.container.snapshot_transfer import OutgoingSnapshot, Snapshot
from headrace.log.container_log import Layouts, WriteJob
from headrace.peer.framing import Buffer
from headrace.peer.messages import Acked, Commit, Follow, Following, Frames, Message, Refused, Resting, SnapshotPiece
from headrace.peer.session import SessionListener

log = structlog.get_logger()

WINDOW_BYTES: Final = 64 * 1024 * 1024
"""The maximum number of bytes sent to a follower and not yet on its disk; the rest is sent later, from the disk."""
PIECE_BYTES = 1024 * 1024
"""The maximum number of bytes read from the disk at a time."""
PREPARING_S: Final = 0.5
"""Seconds between two heartbeats to a follower whose snapshot is being prepared."""
KEPT_BYTES = 32 * 1024 * 1024
"""Bytes of the newest frames kept in memory for followers that have nearly caught up."""
MAX_AT_ONCE: Final = 32 * 1024 * 1024
"""The maximum number of bytes in one message; a peer refuses messages larger than 80 MiB."""
_LENGTH: Final = struct.Struct("<4xI")
"""The length field of a frame's header."""


class Session(Protocol):
    """A connection to a peer (headrace.peer.session)."""

    @property
    def closed(self) -> asyncio.Future[str]: ...

    def hand_to(self, listener: SessionListener) -> None: ...

    def send(self, message: Message, buffers: Sequence[Buffer] = ()) -> None: ...

    async def drained(self) -> None: ...

    def close(self) -> None: ...


class Piece(NamedTuple):
    """Frames of one sync cycle."""

    start: int
    end: int
    buffers: Sequence[Buffer]


class Recent:
    """The frames of a container's newest sync cycles, without a gap."""

    def __init__(self) -> None:
        self._pieces: deque[Piece] = deque()
        self._bytes = 0

    def add(self, job: WriteJob) -> list[Piece]:
        """Add the pieces of a job that starts now, and return them."""
        added = []
        for portion in job.portions:
            if portion.nbytes:
                start = portion.chunk.start + portion.at
                added.append(Piece(start, start + portion.nbytes, tuple(portion.buffers)))
        for piece in added:
            self.keep(piece)
        return added

    def keep(self, piece: Piece) -> None:
        """Add a piece, and drop the oldest ones beyond `KEPT_BYTES`."""
        if self._pieces and self._pieces[-1].end != piece.start:
            self.clear()
        self._pieces.append(piece)
        self._bytes += piece.end - piece.start
        while self._bytes > KEPT_BYTES and len(self._pieces) > 1:
            gone = self._pieces.popleft()
            self._bytes -= gone.end - gone.start

    def clear(self) -> None:
        """Forget all pieces: followers that need them read them from disk."""
        self._pieces.clear()
        self._bytes = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the frames that are kept."""
        return self._bytes

    def since(self, position: int) -> list[Piece] | None:
        """Return the pieces from `position` on; None if `position` is not the start of a piece."""
        found = [piece for piece in self._pieces if piece.start >= position]
        return found if found and found[0].start == position else None


class FollowerFeed:
    """Feeds one follower of one container."""

    def __init__(
        self,
        *,
        leader: Leader,
        member: Member,
        session: Session,
        begin: Position,
        recent: Recent,
        executor: Executor,
        observer: bool = False,
        snapshot: OutgoingSnapshot | None = None,
    ) -> None:
        """`snapshot`, if given, is sent first and closed here; `begin` is then its position."""
        self.member = member
        self._leader = leader
        self._session = session
        self._recent = recent
        self._executor = executor
        self._observer = observer
        self._snapshot = snapshot
        self._sends_snapshot = snapshot is not None
        self._sent: int = begin
        self._acked: int = begin
        self._live = False
        self._closed = False
        self._rests = False
        self._stirred: Callable[[], None] = _nothing
        """Called when the follower leaves rest."""
        self._moved = asyncio.Event()
        self._catching_up: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to send, if not sending already."""
        if not self._closed and (self._catching_up is None or self._catching_up.done()):
            self._catching_up = asyncio.get_running_loop().create_task(self._catch_up(), name="feed")

    # --- leader.Feed

    def job_starts(self, job: WriteJob) -> None:
        """See leader.Feed. `Recent` has the job already."""
        self.stir()  # the follower itself must acknowledge the frames of this job
        self._moved.set()
        if not self._live:
            return
        try:
            for portion in job.portions:
                if portion.nbytes:
                    self._send(portion.buffers, portion.chunk.start + portion.at + portion.nbytes)
        except Exception:  # affects this follower only: the job is still written and sent to the others
            log.exception("a follower is not fed", container=self._leader.id, node=self.member.node)
            self.close()
            return
        if self._sent - self._acked > WINDOW_BYTES:
            self._live = False
            self.start()

    def committed_moved(self) -> None:
        """See leader.Feed. Followers of the catalog learn of each commit at once, because they apply committed
        commands."""
        self._moved.set()
        if self._leader.commands_at_once and self._live:
            self._session.send(Commit(committed=self._leader.committed))

    def beat(self) -> None:
        """Send a heartbeat."""
        if self._closed or self._rests:
            return
        if self._sends_snapshot:
            self._session.send(SnapshotPiece(last=False))  # versions at level 0 take no other message in between
        else:
            now = asyncio.get_running_loop().time()
            self._session.send(Commit(committed=self._leader.committed, sent_at=now))

    def close(self) -> None:
        """See leader.Feed."""
        self._end()
        self._session.close()

    # --- rest (pair_roster.FedFollower)

    @property
    def rests(self) -> bool:
        """See leader.Feed."""
        return self._rests

    def spoken_for(self, vouch: Vouch, resting: Resting, stirred: Callable[[int], None]) -> bool:
        """See FedFollower."""
        if self._closed or not self._live or self._observer or self._leader.lost or self._leader.commands_at_once:
            return False
        if not self._sent == self._acked == resting.position:
            return False
        self._rests = self._leader.state.vouched(self.member, resting.position, vouch)
        self._stirred = partial(stirred, resting.number)
        return self._rests

    def stir(self) -> None:
        """See FedFollower."""
        if self._rests:
            self._rests = False
            self._stirred()
            self._leader.follower_stirs(self.member)

    def look_at(self) -> None:
        """See FedFollower."""
        self._leader.stir()

    # --- sending

    def _send(self, buffers: Sequence[Buffer], end: int) -> None:
        size = sum(map(len, buffers))
        for part in in_parts(buffers) if size > MAX_AT_ONCE else (buffers,):
            self._session.send(Frames(committed=self._leader.committed), part)
        self._sent = end

    async def _catch_up(self) -> None:
        container_log = self._leader.log
        loop = asyncio.get_running_loop()
        layouts = Layouts()
        try:
            if self._sends_snapshot:
                await self._send_snapshot()
            while not self._closed:
                self._moved.clear()
                if self._sent - self._acked > WINDOW_BYTES:
                    await self._moved.wait()
                    continue
                if self._sent >= self._leader.state.end:
                    self._live = True
                    return
                pieces = self._recent.since(self._sent)
                if pieces is not None:
                    for piece in pieces:
                        self._send(piece.buffers, piece.end)
                    continue
                until = container_log.synced
                if self._sent >= until:
                    await self._moved.wait()
                    continue
                position = Position(self._sent)
                read = partial(container_log.read_frames, position, until=until, max_bytes=PIECE_BYTES, layouts=layouts)
                frames = await loop.run_in_executor(self._executor, read)
                if self._closed:
                    return
                if self._leader.commands_at_once and position < container_log.start:
                    # The log may have been trimmed during the read. The follower would get a gap in place of commands,
                    # and its tables would lack them.
                    log.info("a follower starts over", container=self._leader.id, node=self.member.node)
                    self.close()
                    return
                self._send(frames, frames.end)
                await self._session.drained()
        except (HeadraceError, OSError, ConnectionError) as error:
            # The log here is damaged, or the follower has gone: it asks again, and the others are still served.
            log.warning("a follower is not fed", container=self._leader.id, node=self.member.node, error=str(error))
            self.close()
            if isinstance(error, CorruptLog):
                self._leader.events.unreadable(self._leader.id)
            elif isinstance(error, NewerFormat):
                self._leader.events.newer(error)
        except Exception:  # a programming error: the follower would get heartbeats but no frames
            log.exception("feeding a follower failed unexpectedly", container=self._leader.id, node=self.member.node)
            self.close()

    async def _send_snapshot(self) -> None:
        assert self._snapshot is not None
        await snapshot_transfer.send(self._snapshot, self._session)
        self._sends_snapshot = False
        log.info("a snapshot was sent", container=self._leader.id, node=self.member.node, begin=self._sent)
        if not self._observer:
            self._leader.state.follows(self.member, Position(0), now=asyncio.get_running_loop().time())
        self.beat()

    # --- SessionListener

    def message_received(self, message: Message, _payload: memoryview) -> None:
        """See SessionListener."""
        if isinstance(message, Acked) and not self._closed and not self._sends_snapshot:
            self._acked = message.position
            self._moved.set()
            if self._live and self._snapshot is not None:  # the snapshot is installed, and all later frames are sent
                self._snapshot.close()
                self._snapshot = None
            if not self._leader.follower_has(self.member, Position(message.position), beat=message.beat):
                log.error("a follower reports a position beyond the end of the log", container=self._leader.id,
                          node=self.member.node, position=message.position)  # fmt: skip
                self._session.close()
        elif isinstance(message, Refused) and not self._closed and message.epoch > self._leader.epoch:
            self._leader.events.superseded(self._leader.id, Epoch(message.epoch))

    def session_closed(self) -> None:
        """See SessionListener."""
        if not self._closed:
            self._end()
            self._leader.follower_gone(self.member)

    def _end(self) -> None:
        self._closed = True
        self.stir()
        self._moved.set()
        if self._snapshot is not None:
            self._snapshot.close()
        if self._catching_up is not None:
            self._catching_up.cancel()
        if self in self._leader.feeds:
            self._leader.feeds.remove(self)


def _nothing() -> None:
    pass


def answer(leader: Leader, history: History, asked: Follow) -> tuple[Position, bool]:
    """Return the position where the follower's log continues, and whether its log must start over there.

    It must start over if the frames below that position are gone from this log.
    """
    own = leader.log
    begin = match_point(history, own.end, asked.history, asked.end)
    if begin < own.start or begin < asked.start or asked.snapshot:
        return own.start, True
    return begin, False


def refuse(session: Session, code: Code, reason: str, *, epoch: Epoch) -> None:
    """Refuse a follower with a reason, and close the session."""
    session.send(Refused(code=int(code), reason=reason, epoch=epoch))
    session.close()


async def accept(
    leader: Leader,
    asked: Follow,
    session: Session,
    *,
    history: History,
    recent: Recent,
    executor: Executor,
    snapshot: Snapshot | None,
) -> None:
    """Accept a follower, or refuse it. `snapshot` returns the catalog's newest snapshot."""
    begin, anew = answer(leader, history, asked)
    outgoing: OutgoingSnapshot | None = None
    if anew and snapshot is not None and (begin > 0 or asked.snapshot):
        try:
            outgoing = await _prepared(leader, session, snapshot)
        except (HeadraceError, OSError) as error:
            log.warning("a follower gets no snapshot", container=leader.id, node=asked.node, reason=str(error))
            code = error.code if isinstance(error, HeadraceError) else Code.KAFKA_STORAGE_ERROR
            refuse(session, code, str(error), epoch=leader.epoch)
            return
        if outgoing is None:
            refuse(session, Code.NOT_LEADER_OR_FOLLOWER, "this node no longer leads the container", epoch=leader.epoch)
            return
        begin = outgoing.position
        if not leader.log.start <= begin <= leader.log.end:
            # The snapshot dates from before an unclean recovery, when the log was longer. A follower that starts from
            # it would seem to have frames that are not in this log.
            outgoing.close()
            refuse(session, Code.NOT_LEADER_OR_FOLLOWER, "its snapshot belongs to another log", epoch=leader.epoch)
            return
    if leader.lost:
        refuse(session, Code.NOT_LEADER_OR_FOLLOWER, "this node no longer leads the container", epoch=leader.epoch)
        return
    member = Member(NodeId(asked.node), asked.format)
    for older in [feed for feed in leader.feeds if isinstance(feed, FollowerFeed) and feed.member.node == member.node]:
        older.close()
    if member in leader.state.in_sync and begin < leader.committed and not asked.observer:
        log.error("an in-sync replica lacks acknowledged frames, and leaves the set", container=leader.id,
                  node=member.node, has=begin, committed=leader.committed)  # fmt: skip
    feed = FollowerFeed(
        leader=leader,
        member=member,
        session=session,
        begin=begin,
        recent=recent,
        executor=executor,
        observer=asked.observer,
        snapshot=outgoing,
    )
    session.hand_to(feed)
    if not asked.observer and outgoing is None:
        # Its position counts from its first acknowledgement on, which arrives when it has cut diverging frames.
        leader.state.follows(member, Position(0), now=asyncio.get_running_loop().time())
    session.send(
        Following(
            epoch=leader.epoch,
            history=list(history),
            begin=begin,
            committed=leader.committed,
            snapshot_position=outgoing.position if outgoing is not None else Position(-1),
            snapshot_bytes=outgoing.size if outgoing is not None else 0,
        )
    )
    leader.feeds.append(feed)
    leader.stir()
    feed.beat()
    feed.start()
    log.info("follower", container=leader.id, node=asked.node, begin=begin, end=leader.log.end, anew=anew)


async def _prepared(leader: Leader, session: Session, snapshot: Snapshot) -> OutgoingSnapshot | None:
    """Return the snapshot, which may have to be written first; None if this node no longer leads or the follower has
    gone."""
    taking = asyncio.ensure_future(snapshot(leader.log.start))
    leaving: asyncio.Future[Any] = session.closed
    wanted = False
    try:
        while not (taking.done() or leaving.done() or leader.lost):
            await asyncio.wait({taking, leaving}, timeout=PREPARING_S, return_when=asyncio.FIRST_COMPLETED)
            session.send(Commit(committed=leader.committed))  # keeps the follower waiting
        if leaving.done() or leader.lost:
            return None
        wanted = True
        return taking.result()
    finally:
        leaving.cancel()
        if not wanted and not taking.cancel() and taking.exception() is None:
            taking.result().close()


def in_parts(buffers: Sequence[Buffer]) -> list[list[Buffer]]:
    """Split the frames of a sync cycle into parts of at most `MAX_AT_ONCE` bytes, unless a single frame is larger.

    Each frame is in one buffer, or in several buffers of its own.
    """
    parts: list[list[Buffer]] = [[]]
    size = left = 0
    for buffer in buffers:
        if left == 0:
            (left,) = _LENGTH.unpack_from(buffer)
            if size + left > MAX_AT_ONCE and parts[-1]:
                parts.append([])
                size = 0
            size += left
        parts[-1].append(buffer)
        left = max(0, left - len(buffer))
    return parts
