"""The leader's side of one follower: what it has, and how it gets the rest.

A follower asks to follow with the history of its log; the leader answers from which position on the two differ
(history.py, invariant 7) and sends frames from there. Behind, it is fed from the disk, a piece at a time, in a thread;
once it has all that the running sync cycle began with it is *live*, and gets each cycle's frames from memory at the
moment when the leader begins to write them. It falls back to the disk where too much is under way to it. One of the
catalog that the log reaches back to no more gets a snapshot of the tables first (snapshot_transfer.py); until it has
caught up from there, the log is kept for it.

What happens when the connection ends, here or there: the follower asks again. When this node ceases to lead: all feeds
end, and the followers find the next leader by the container's record.
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
"""Sent to a follower and not yet on its disk, at most; the rest it gets later, from the disk."""
PIECE_BYTES = 1024 * 1024
PREPARING_S: Final = 0.5
KEPT_BYTES = 32 * 1024 * 1024
"""Of the newest frames in memory, for followers that have nearly caught up."""
MOST_AT_ONCE: Final = 32 * 1024 * 1024
"""In one message; a peer takes no larger ones than 80 MiB."""
_LENGTH: Final = struct.Struct("<4xI")


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
    """The newest cycles of one container, without a gap."""

    def __init__(self) -> None:
        self._pieces: deque[Piece] = deque()
        self._bytes = 0

    def add(self, job: WriteJob) -> list[Piece]:
        """The pieces of a job that starts now."""
        added = []
        for portion in job.portions:
            if portion.nbytes:
                start = portion.chunk.start + portion.at
                added.append(Piece(start, start + portion.nbytes, tuple(portion.buffers)))
        for piece in added:
            self.keep(piece)
        return added

    def keep(self, piece: Piece) -> None:
        """One more, and the oldest no longer."""
        if self._pieces and self._pieces[-1].end != piece.start:
            self.clear()
        self._pieces.append(piece)
        self._bytes += piece.end - piece.start
        while self._bytes > KEPT_BYTES and len(self._pieces) > 1:
            gone = self._pieces.popleft()
            self._bytes -= gone.end - gone.start

    def clear(self) -> None:
        """Forget them: followers that need them read them from disk."""
        self._pieces.clear()
        self._bytes = 0

    @property
    def nbytes(self) -> int:
        """Of the frames that it keeps."""
        return self._bytes

    def since(self, position: int) -> list[Piece] | None:
        """The pieces from `position` on; None where it is not a piece's start."""
        found = [piece for piece in self._pieces if piece.start >= position]
        return found if found and found[0].start == position else None


class FollowerFeed:
    """One follower of one container."""

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
        """`snapshot` goes first, and is closed here; `begin` is its position then."""
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
        """Told when it does, after it rested."""
        self._moved = asyncio.Event()
        self._catching_up: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to send."""
        if not self._closed and (self._catching_up is None or self._catching_up.done()):
            self._catching_up = asyncio.get_running_loop().create_task(self._catch_up(), name="feed")

    # --- container.Feed

    def job_starts(self, job: WriteJob) -> None:
        """See container.Feed. `Recent` has the job already."""
        self.stir()  # what it is sent now it acknowledges itself
        self._moved.set()
        if not self._live:
            return
        try:
            for portion in job.portions:
                if portion.nbytes:
                    self._send(portion.buffers, portion.chunk.start + portion.at + portion.nbytes)
        except Exception:  # of this follower alone: the job is to be written, and the others are to have it
            log.exception("a follower is not fed", container=self._leader.id, node=self.member.node)
            self.close()
            return
        if self._sent - self._acked > WINDOW_BYTES:
            self._live = False
            self.start()

    def committed_moved(self) -> None:
        """Catalogs are applied as they are committed, so their followers hear of it at once."""
        self._moved.set()
        if self._leader.commands_at_once and self._live:
            self._session.send(Commit(committed=self._leader.committed))

    def beat(self) -> None:
        """The leader lives."""
        if self._closed or self._rests:
            return
        if self._sends_snapshot:
            self._session.send(SnapshotPiece(last=False))  # versions at level 0 take no other message in between
        else:
            now = asyncio.get_running_loop().time()
            self._session.send(Commit(committed=self._leader.committed, sent_at=now))

    def close(self) -> None:
        """See container.Feed."""
        self._end()
        self._session.close()

    # --- rest (pair_roster.FedFollower)

    @property
    def rests(self) -> bool:
        """See container.Feed."""
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
        for part in in_parts(buffers) if size > MOST_AT_ONCE else (buffers,):
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
                    # Trimmed while it was read, maybe: of commands it would get a gap, and its tables would lack them.
                    log.info("a follower begins anew", container=self._leader.id, node=self.member.node)
                    self.close()
                    return
                self._send(frames, frames.end)
                await self._session.drained()
        except (HeadraceError, OSError, ConnectionError) as error:
            # Damage here, or it went away: the follower asks again, and others are served.
            log.warning("a follower is not fed", container=self._leader.id, node=self.member.node, error=str(error))
            self.close()
            if isinstance(error, CorruptLog):
                self._leader.events.unreadable(self._leader.id)
            elif isinstance(error, NewerFormat):
                self._leader.events.newer(error)
        except Exception:  # a fault of ours: nothing would be sent any more, while the follower hears that we live
            log.exception("feeding a follower went wrong", container=self._leader.id, node=self.member.node)
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
            if self._live and self._snapshot is not None:  # it has installed it, and what came after is on its way
                self._snapshot.close()
                self._snapshot = None
            if not self._leader.follower_has(self.member, Position(message.position), beat=message.beat):
                log.error("a follower says that it has more than there is", container=self._leader.id,
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
    """Where the follower's log goes on, and whether it must begin anew there: what lies below is gone here."""
    own = leader.log
    begin = match_point(history, own.end, asked.history, asked.end)
    if begin < own.start or begin < asked.start or asked.snapshot:
        return own.start, True
    return begin, False


def refuse(session: Session, code: Code, reason: str, *, epoch: Epoch) -> None:
    """Tell a follower why not, and close."""
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
    """Take a follower on. `snapshot` gives the catalog's newest one."""
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
            refuse(session, Code.NOT_LEADER_OR_FOLLOWER, "this node leads no more", epoch=leader.epoch)
            return
        begin = outgoing.position
        if not leader.log.start <= begin <= leader.log.end:
            # Of before an unclean recovery, that had more: who follows from there would seem to have what is not here.
            outgoing.close()
            refuse(session, Code.NOT_LEADER_OR_FOLLOWER, "its snapshot is of another log", epoch=leader.epoch)
            return
    if leader.lost:
        refuse(session, Code.NOT_LEADER_OR_FOLLOWER, "this node leads no more", epoch=leader.epoch)
        return
    member = Member(NodeId(asked.node), asked.format)
    for older in [feed for feed in leader.feeds if isinstance(feed, FollowerFeed) and feed.member.node == member.node]:
        older.close()
    if member in leader.state.in_sync and begin < leader.committed and not asked.observer:
        log.error("a replica in sync lacks what was acknowledged, and is let go", container=leader.id,
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
        # Its position counts from its first acknowledgement on, which comes when it has cut what differs.
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
    """The snapshot, which may have to be written first; None: this node leads no more, or the follower has gone."""
    taking = asyncio.ensure_future(snapshot(leader.log.start))
    leaving: asyncio.Future[Any] = session.closed
    wanted = False
    try:
        while not (taking.done() or leaving.done() or leader.lost):
            await asyncio.wait({taking, leaving}, timeout=PREPARING_S, return_when=asyncio.FIRST_COMPLETED)
            session.send(Commit(committed=leader.committed))  # it takes a while, and the follower is to wait
        if leaving.done() or leader.lost:
            return None
        wanted = True
        return taking.result()
    finally:
        leaving.cancel()
        if not wanted and not taking.cancel() and taking.exception() is None:
            taking.result().close()


def in_parts(buffers: Sequence[Buffer]) -> list[list[Buffer]]:
    """The frames of a sync cycle, each in one buffer or in several of its own, in parts of `MOST_AT_ONCE` bytes."""
    parts: list[list[Buffer]] = [[]]
    size = left = 0
    for buffer in buffers:
        if left == 0:
            (left,) = _LENGTH.unpack_from(buffer)
            if size + left > MOST_AT_ONCE and parts[-1]:
                parts.append([])
                size = 0
            size += left
        parts[-1].append(buffer)
        left = max(0, left - len(buffer))
    return parts
