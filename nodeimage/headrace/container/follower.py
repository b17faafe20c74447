"""The follower half of a replica: receives the leader's frames, writes and syncs them, and acknowledges them.

Responsible for one replica's connection to its leader: it asks to follow, sending its history, cuts what the leader
does not have (invariant 7), appends the frames that arrive, and acknowledges what is on disk. Before it sends anything
in an epoch, it has recorded that it has seen this epoch, and it does not follow a leader of a lower epoch (invariant
4). It retries while it is a follower. When no frames arrive and it has the whole log, it rests: the heartbeats between
the two nodes then count as its own (pair_roster.py).

Failures:
- The connection ends, or the leader falls silent: it asks again, from what it has on disk.
- The disk is full: it stops reading, the leader removes it from the in-sync set, and it continues when there is room.
- The checksum of a frame does not match: the connection is closed, and the frames are sent again.
- A frame is of a type that this version does not know: the process ends, with nothing appended.
- The process dies: what was not acknowledged is cut or completed at the next start.
- A snapshot of the catalog breaks off, fails its checksum, or finds no room here or at the leader: the tables stay as
  they are, and the snapshot is requested again.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from headrace.base.errors import Code, CorruptLog, HeadraceError, NewerFormat, StorageFull
from headrace.base.ids import ContainerId, Epoch, NodeId, Position
from headrace.container import snapshot_transfer
from headrace.container.history import History, clip, match_point
from headrace.container.local_replica import CATALOG, LocalReplica
from headrace.container.pair_roster import FollowersRoster
from headrace.container.snapshot_transfer import Receive
from headrace.log.container_log import ContainerLog, WriteJob
from headrace.log.frames import HEADER_BYTES, FrameType
from headrace.peer.messages import Acked, Commit, Follow, Following, Frames, Message, Refused
from headrace.peer.session import Session

log = structlog.get_logger()

BEAT_S: Final = 0.3
"""Seconds between two heartbeats."""
REST_AFTER_S = 1.0
"""Seconds without frames after which a follower may rest."""
SILENCE_S: Final = 2.0
"""Seconds of silence after which a follower closes the connection to its leader and asks again."""
RETRY_S: tuple[float, ...] = (0.02, 0.05, 0.1, 0.2, 0.3)
"""Seconds before each new attempt to follow; the last value repeats."""
FULL_RETRY_S = 1.0
"""Seconds before a follower whose disk is full tries again."""
LOW_BYTES: Final = 8 * 1024 * 1024
"""Bytes received and not yet taken for writing, below which a paused connection is read again."""
HIGH_BYTES: Final = 32 * 1024 * 1024
"""Bytes received and not yet taken for writing, above which the connection is no longer read."""


class Follower:
    """A replica that follows. Started when it begins to follow, closed when it leads or leaves."""

    def __init__(
        self,
        replica: LocalReplica,
        *,
        epoch: Epoch,
        node: NodeId,
        observer: bool,
        leader: NodeId,
        connect: Callable[[], Awaitable[Session]],
        receive: Receive | None,
        roster: Callable[[NodeId], FollowersRoster | None] = lambda _node: None,
    ) -> None:
        """`connect` opens a session with the leader. `receive`: see snapshot_transfer; None if this node has no tables.
        `roster`: finds the roster of the followers of a node's leaders; None if there is no pair at present."""
        self.replica = replica
        self.id: ContainerId = replica.id
        self.epoch = epoch
        self._leader = leader
        self._node = node
        self.observer = observer
        """The follower reads along, and never counts for the in-sync set."""
        self._connect = connect
        self._receive = receive
        self._find_roster = roster
        self._roster: FollowersRoster | None = None
        self._number = 0
        """The follower's number on the roster; 0 if it has none."""
        self._rests = False
        self._moved_at = 0.0
        """Loop time, in seconds, of the last frames, or of the last time it left rest."""
        self._silence_limit: asyncio.Timeout | None = None
        """Limits the leader's silence while the follower waits for a message."""
        self._session: Session | None = None
        self._incoming: deque[tuple[object, memoryview]] = deque()
        self._incoming_bytes = 0
        self._low, self._high = LOW_BYTES, HIGH_BYTES
        self._full_reported = False
        self._arrived = asyncio.Event()
        self._following = False
        self._last_beat = 0.0
        """Time on the leader's clock at which the last heartbeat received on this connection was sent."""
        self._current_from = Position(0)
        self._acknowledged_at = 0.0
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to follow the leader."""
        self._task = self._loop.create_task(self._run(), name=f"follow-{self.id}")

    @property
    def log(self) -> ContainerLog:
        """The replica's log."""
        return self.replica.cycle.log

    @property
    def committed(self) -> Position:
        """The end of what is known to be committed and is on this disk."""
        return self.replica.committed

    @property
    def is_current(self) -> bool:
        """It has all that was committed when the leader accepted it."""
        return self._following and self.replica.committed >= self._current_from

    async def close(self, *, newer: Epoch = Epoch(-1)) -> None:  # noqa: B008
        """Stop following: nothing is acknowledged from now on. Received frames are written out.

        `newer`: the higher epoch that ends this role. It is sent to the leader, which may not reach the cluster store.
        """
        self._following = False
        self._stir()
        task = self._task
        if task is not None:
            task.cancel()
        if self._session is not None:
            if newer > self.epoch and not self._session.is_closed:
                code = int(Code.NOT_LEADER_OR_FOLLOWER)
                self._session.send(Refused(code=code, reason="another node leads now", epoch=newer))
            self._session.close()
        if task is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        await self.replica.cycle.flush()
        if self.replica.cycle.owner is self:
            self.replica.cycle.hand_to(None)

    # --- sync_cycle.Owner

    def cycle_starts(self, job: WriteJob) -> None:
        """See sync_cycle.Owner."""

    def cycle_done(self) -> None:
        """See sync_cycle.Owner. The earliest moment at which these frames may be acknowledged (invariant 1)."""
        self._acknowledge()
        self.replica.committed_moved()

    def _acknowledge(self) -> None:
        if self._following and self._session is not None:
            self._acknowledged_at = self._loop.time()
            self._session.send(Acked(position=self.log.synced, epoch=self.epoch, beat=self._last_beat))

    # --- the connection

    async def _run(self) -> None:
        attempt = 0
        while True:
            followed = full = False
            try:
                try:
                    followed = await self._follow()
                except NewerFormat as error:
                    self.replica.events.newer(error)
                    return
                except CorruptLog as error:  # such as frames that arrived damaged
                    log.error("not following", container=self.id, reason=str(error))
                    self.replica.events.lost_touch(self._leader)
                except StorageFull as error:  # here, or at the leader when it cannot write a snapshot
                    if not self._full_reported:
                        log.warning("a follower waits for room on the disk", container=self.id, reason=str(error))
                    self._full_reported = full = True
                except (HeadraceError, OSError, TimeoutError) as error:
                    log.debug("not following", container=self.id, reason=str(error))
                    self.replica.events.lost_touch(self._leader)
                except Exception:  # a programming error must not end the one task that keeps this replica alive
                    log.exception("following failed unexpectedly", container=self.id)
                if full:  # not within `except`: compiled, a wait there shows the exception to all other tasks
                    await asyncio.sleep(FULL_RETRY_S)
            finally:
                self._following = False
                self._stir()
                if self._session is not None:
                    self._session.close()
                    self._session = None
                self._incoming.clear()
                self._incoming_bytes = 0
                self._low, self._high = LOW_BYTES, HIGH_BYTES
            attempt = 0 if followed else attempt + 1
            await asyncio.sleep(RETRY_S[min(attempt, len(RETRY_S) - 1)])

    async def _follow(self) -> bool:
        """Use one connection, from the request to follow until it ends; return whether the leader accepted this
        follower."""
        if self._receive is not None:  # the open tables show whether they are ahead of the log and need a snapshot
            await self.replica.tables_open.wait()
        await self.replica.saw(self.epoch)
        await self.replica.ready()
        await self.replica.cycle.flush()
        session = self._session = await self._connect()
        self._last_beat = 0.0
        session.hand_to(self)
        end = self.log.end
        session.send(
            Follow(
                container=self.id,
                epoch=self.epoch,
                node=self._node,
                format=self.replica.incarnation,
                observer=self.observer,
                history=list(clip(self.replica.history, end)),
                end=end,
                start=self.log.start,
                snapshot=self.replica.is_cut_below_applied,
            )
        )
        first, _ = await self._next()
        while isinstance(first, Commit):  # the leader is preparing a snapshot
            first, _ = await self._next()
        if isinstance(first, Refused):
            log.debug("refused", container=self.id, reason=first.reason, epoch=first.epoch)
            self.replica.events.other_epoch(self.id, Epoch(first.epoch))
            if first.code == Code.KAFKA_STORAGE_ERROR:
                raise StorageFull(f"the primary: {first.reason}")
            return False
        if not isinstance(first, Following) or first.epoch != self.epoch:
            return False
        # Nothing is acknowledged before diverging frames are cut (invariant 7): a position in an earlier leader's log
        # would count as a copy of what this leader has there (KIP-101).
        await self._take_up(first)
        self._following = True
        self._full_reported = False
        self._moved_at = self._loop.time()
        self._acknowledge()
        while True:
            message, payload = await self._next()
            match message:
                case Frames():
                    await self._append(payload)
                    self.replica.learn_committed(Position(message.committed))
                case Commit():
                    self.replica.learn_committed(Position(message.committed))
                    if message.sent_at:
                        self._last_beat = message.sent_at
                        self._acknowledge()
                case _:
                    return True

    async def _take_up(self, following: Following) -> None:
        """Bring this log to the position from which the leader sends frames."""
        begin = Position(following.begin)
        self.replica.check_cut(begin)
        if following.snapshot_position >= 0:
            await self._take_snapshot(Position(following.snapshot_position), following.snapshot_bytes, begin)
        history: History = tuple((Epoch(epoch), Position(start)) for epoch, start in following.history)
        same = match_point(history, begin, self.replica.history, self.log.end)
        if begin < self.log.start or same < begin:
            # The leader no longer has the frames in between, and those here may exist only in an earlier leader's log
            # (KIP-101).
            log.info("starts over", container=self.id, end=self.log.end, begin=begin, same=same)
            await self.replica.reset(begin)
        elif begin < self.log.end:
            log.info("cut", container=self.id, end=self.log.end, begin=begin)
            await self.replica.cut(begin)
        if self.log.end != begin:
            self.replica.report_damage()
            raise CorruptLog(f"container {self.id}: ends at {self.log.end}, not at {begin}. It is fetched again.")
        if self.replica.is_cut_below_applied:
            raise HeadraceError("the catalog's tables are ahead of the log that was cut; a snapshot is asked for")
        self.replica.forget_beyond()
        await self.replica.set_history(history)
        self._current_from = Position(following.committed)
        self.replica.learn_committed(Position(following.committed))

    async def _take_snapshot(self, position: Position, size: int, begin: Position) -> None:
        """Replace the catalog's tables with those that the leader sends, before the log restarts at `begin`."""
        if self._receive is None:
            raise HeadraceError(f"a snapshot came for container {self.id}, which has no tables here")
        self._low, self._high = snapshot_transfer.LOW_BYTES, snapshot_transfer.HIGH_BYTES
        incoming = await self._receive(position, size)
        try:
            await snapshot_transfer.receive(incoming, self._next)
            self._low, self._high = LOW_BYTES, HIGH_BYTES
            if begin < self.replica.committed:
                # This follows an unclean recovery. The tables refuse a snapshot older than their log, because they
                # would continue with the commands that follow it in this log.
                log.info("cut", container=self.id, end=self.log.end, begin=begin)
                await self.replica.cut(begin)
            await incoming.install()
        finally:
            incoming.close()

    async def _append(self, frames: memoryview) -> None:
        container_log = self.log
        before = container_log.end
        has_room = container_log.room(len(frames))
        while True:
            if not has_room:
                await self._make_room()
            try:
                container_log.append_frames(frames)
                break
            except StorageFull:  # gap frames take more room than their bytes here; the next chunk is large enough
                has_room = False
        if self.replica.commands is not None:
            for position, payload in commands_of(frames, before):
                self.replica.commands.add(position, payload)
        self.replica.cycle.kick()

    async def _make_room(self) -> None:
        """Wait until a new chunk is ready, for as long as the disk has no room for it."""
        told = False
        while True:
            try:
                await self.replica.cycle.make_room()
                return
            except StorageFull as error:
                if not told:
                    log.warning("a follower waits for room on the disk", container=self.id, reason=str(error))
                told = True
            await asyncio.sleep(FULL_RETRY_S)  # not within the handler: a compiled coroutine would leak the exception

    # --- heartbeats and rest

    def tick(self, *, beats: bool) -> None:
        """Called every now and then while the follower does not rest; with `beats`, every `BEAT_S`."""
        if not self._following:
            return
        now = self._loop.time()
        if beats and now - self._acknowledged_at > BEAT_S / 2:
            self._acknowledge()
        if not self._number and now - self._moved_at >= REST_AFTER_S and self._may_rest:
            roster = self._find_roster(self._leader)
            if roster is not None:
                self._roster = roster
                self._number = roster.add(
                    self, container=self.id, epoch=self.epoch, format=self.replica.incarnation, position=self.log.end
                )

    @property
    def rests(self) -> bool:
        """The heartbeats of the pair of nodes replace those of its leader and its own; no timer checks it."""
        return self._rests

    @property
    def _may_rest(self) -> bool:
        """It waits for messages, all it has received is on its disk, and it knows that all of that is committed."""
        return (
            self._silence_limit is not None
            and not self._incoming
            and not self.observer
            and self.replica.kind != CATALOG
            and not self.replica.cycle.is_busy
            and self.log.end == self.log.synced == self.replica.committed
        )

    def rest(self, number: int) -> None:
        """See RestingFollower."""
        if number == self._number:
            self._rests = True
            if self._silence_limit is not None:
                self._silence_limit.reschedule(None)
            if self._session is not None:
                self._session.shrink()

    def stir(self, number: int, *, silent: bool) -> None:
        """See RestingFollower."""
        if number != self._number:
            return
        self._stir()
        if silent and self._silence_limit is not None:
            self._silence_limit.reschedule(self._loop.time())

    def _stir(self) -> None:
        number, self._number = self._number, 0
        if not number:
            return
        assert self._roster is not None
        self._roster.take_back(number)
        self._roster = None
        self._moved_at = self._loop.time()
        if self._rests:
            self._rests = False
            if self._silence_limit is not None:
                self._silence_limit.reschedule(self._moved_at + SILENCE_S)
            self.replica.events.stirs(self.id)

    # --- SessionListener

    def message_received(self, message: Message, payload: memoryview) -> None:
        """See SessionListener."""
        if not isinstance(message, Commit):  # an earlier heartbeat may arrive late
            self._moved_at = self._loop.time()
            self._stir()
        self._incoming.append((message, payload))
        self._incoming_bytes += len(payload)
        if self._incoming_bytes > self._high and self._session is not None:
            self._session.pause()
        self._arrived.set()

    def session_closed(self) -> None:
        """See SessionListener."""
        self._arrived.set()

    async def _next(self) -> tuple[object, memoryview]:
        while not self._incoming:
            session = self._session
            if session is None or session.is_closed:
                raise HeadraceError("the primary closed the connection")
            self._arrived.clear()
            async with asyncio.timeout(None if self._rests else SILENCE_S) as limit:
                self._silence_limit = limit
                try:
                    await self._arrived.wait()
                finally:
                    self._silence_limit = None
        message, payload = self._incoming.popleft()
        self._incoming_bytes -= len(payload)
        if self._incoming_bytes < self._low and self._session is not None:
            self._session.resume()
        return message, payload


def commands_of(frames: memoryview, position: int) -> list[tuple[Position, bytes]]:
    """Return the catalog commands among whole frames that start at `position`, as (position after the frame,
    payload)."""
    found: list[tuple[Position, bytes]] = []
    at = 0
    while at < len(frames):
        length = int.from_bytes(frames[at + 4 : at + 8], "little")
        kind = frames[at + 8]
        position += length
        if kind == FrameType.COMMAND:
            found.append((Position(position), bytes(frames[at + HEADER_BYTES : at + length])))
        at += HEADER_BYTES if kind == FrameType.GAP else length
    return found
