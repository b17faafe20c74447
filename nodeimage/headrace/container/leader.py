"""The leader of one container: it orders the frames, has them written and sent to the followers, and reports commits.

Responsible for a replica's leader half: frames join the pending job in the order of the `append_*` calls; the sync
cycle writes and syncs them while they are sent to the followers; `committed` advances when every member of the in-sync
set has them, and all waiters for a position up to it are notified in order (invariants 1, 2; commit_waiters.py).
leader_state.py decides what is committed and which replicas are in sync.

Knows nothing of topics, clients or the catalog's commands: partitionlets are numbers and payloads are bytes. All
methods run on the loop's thread.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from time import monotonic
from typing import Any, Protocol

from headrace.base.errors import StorageFull
from headrace.base.ids import ContainerId, Epoch, NodeId, Offset, PartitionletId, Position
from headrace.container.command_tail import CommandTail
from headrace.container.commit_waiters import CommitQueue, Waiting, WaitingFuture, not_leader
from headrace.container.leader_state import LeaderState, Member
from headrace.container.replica_events import ReplicaEvents
from headrace.container.sync_cycle import Room, SyncCycle
from headrace.container.writer_pool import Pool
from headrace.log.container_log import ContainerLog, WriteJob
from headrace.log.frames import FrameType


class Feed(Protocol):
    """A follower, as the leader feeds it (follower_feed.py)."""

    def job_starts(self, job: WriteJob) -> None:
        """The frames of `job` are about to be written here; a follower that is up to date gets them now."""

    def committed_moved(self) -> None:
        """`committed` has moved."""

    def beat(self) -> None:
        """Send a heartbeat."""

    @property
    def rests(self) -> bool:
        """The follower has the whole log, and its node's heartbeats count as its own (pair_roster.py)."""

    def close(self) -> None:
        """This node no longer leads."""


class Remembers(Protocol):
    """Keeps the frames of the newest sync cycles in memory (follower_feed.py)."""

    def add(self, job: WriteJob) -> object:
        """Add a job that starts now."""

    def clear(self) -> None:
        """Forget all frames."""


class Leader:
    """This node's replica of a container, as the container's leader."""

    def __init__(
        self,
        *,
        container_id: ContainerId,
        member: Member,
        epoch: Epoch,
        executor: Executor,
        events: ReplicaEvents,
        container_log: ContainerLog | None = None,
        pool: Pool | None = None,
        room: Room | None = None,
        fatal: Callable[[str], None] | None = None,
        cycle: SyncCycle | None = None,
        in_sync: Iterable[Member] | None = None,
        replicas: Iterable[NodeId] = (),
        min_in_sync: int = 1,
        volume: str = "default",
        recovered_epoch: Epoch = Epoch(0),  # noqa: B008
        closing: bool = False,
        committed: Position = Position(0),  # noqa: B008
        commands: CommandTail | None = None,
        commands_at_once: bool = False,
        recent: Remembers | None = None,
        committed_moved: Callable[[], None] | None = None,
    ) -> None:
        """With `cycle`, continue the log of an existing replica, which is notified by `committed_moved` when
        `committed` moves. Without it, `container_log`, `pool`, `room` and `fatal` are required."""
        if cycle is None:
            assert container_log is not None
            assert pool is not None
            assert room is not None
            assert fatal is not None
            cycle = SyncCycle(
                container_id=container_id,
                container_log=container_log,
                executor=executor,
                pool=pool,
                room=room,
                fatal=fatal,
            )
        self.id = container_id
        self.events = events
        self.cycle = cycle
        self.log = cycle.log
        self.opened_at: Position = self.log.end
        """The end of the log when this epoch began: frames from there on were written by this process."""
        self.closing = closing
        """No new partitionlet is opened here, and the open ones are rolled to other containers before their next batch.
        """
        self.leaving = False
        """While the container's nodes are full and others are not: no new partitionlet is opened here, and open ones
        are rolled to other containers before their next batch."""
        self.refuses = ""
        """Why the container accepts no records at present; empty if it accepts them."""
        self.cut_off = ""
        """Why this node would not notice that another node has become leader; empty if it would."""
        self.undecided = ""
        """Why no follower can be removed from the in-sync set at present; empty if followers can be removed."""
        self.volume = volume
        self.recovered_epoch = recovered_epoch
        """The last epoch that began without all of what had been acknowledged before (invariant 15)."""
        self.commands_tail = commands if commands is not None else CommandTail(self.log.end)
        self.commands_at_once = commands_at_once
        """Followers learn of each commit at once, because they apply committed commands."""
        self.recent = recent
        """The frames of the newest cycles, for followers that have nearly caught up; None if there are never any
        followers."""
        self.feeds: list[Feed] = []
        self.rests = False
        """No timer checks the container: only an event changes its state (replicas.py)."""
        self.lost = False
        """This node has ceased to lead the container."""
        self.handing_over = False
        """This node is handing over: another node may lead before this node notices."""
        self._executor = executor
        self._loop = asyncio.get_running_loop()
        self._member = member
        self._waiting = CommitQueue(container_id)
        self._cycles: deque[_Cycle] = deque()
        """Sync cycles whose frames were sent to followers and are not all committed yet."""
        self.synced_at = 0.0
        """When the frames being reported as committed were synced here (time.monotonic); 0.0 if no follower had to have
        them."""
        self.cramped = False
        """The last control frame that may use the reserve found no room: no partition can be moved off this container.
        """
        self._deferred: list[PartitionletId] = []
        """The partitionlets of control frames that wait for a new chunk. Later control frames wait too, so that none
        overtakes another; only a frame from the reserve, of another partitionlet, may be appended to the open chunk
        before them."""
        self._committed_moved = committed_moved
        now = self._loop.time()
        self.state = LeaderState(
            me=member,
            epoch=epoch,
            in_sync=(member,) if in_sync is None else in_sync,
            replicas=(member.node, *replicas),
            start=self.log.end,
            min_in_sync=min_in_sync,
            committed=committed,
            now=now,
        )
        cycle.hand_to(self)
        self.state.on_disk(member, self.log.synced, now=now)

    @property
    def member(self) -> Member:
        """This node's replica."""
        return self._member

    @property
    def epoch(self) -> Epoch:
        """The epoch that this node's frames carry."""
        return self.state.epoch

    @property
    def committed(self) -> Position:
        """Everything below this position is on disk on every in-sync replica."""
        return self.state.committed

    @property
    def end(self) -> Position:
        """The position after the last frame, committed or not."""
        return self.log.end

    @property
    def serves(self) -> bool:
        """Whether reads, latest offsets and committed offsets may be answered (invariant 8)."""
        return not self.lost and self.state.serves

    @property
    def in_touch(self) -> bool:
        """Whether it is certain that no other node has become leader meanwhile (invariant 16)."""
        return not self.lost and not self.handing_over and self.state.in_touch(self._loop.time())

    @property
    def is_hindered(self) -> bool:
        """Whether commits may be blocked; if so, `outcast` and `stalled` give the reason."""
        return self.state.stalled or bool(self.cut_off) or bool(self.undecided)

    @property
    def outcast(self) -> str:
        """Why another node may lead by now, so that nothing written here is committed; empty if nothing suggests it.

        The leader is out of touch both with a member that its commits wait for, and with the cluster store, which alone
        could show who leads and remove the member.
        """
        return self.cut_off if self.cut_off and not self.in_touch else ""

    @property
    def stalled(self) -> str:
        """Why nothing is committed until something changes; empty if commits proceed."""
        if self.state.stalled:
            return "it has too few replicas in sync"
        return self.undecided if self.undecided and not self.in_touch else ""

    # --- writing

    def append_batch(
        self,
        *,
        partitionlet: PartitionletId,
        first: int,
        last: int,
        max_timestamp: int,
        batch: memoryview,
        waiting: Waiting,
    ) -> None:
        """Add a stamped record batch to the next sync cycle. The caller has checked `has_room`."""
        position = self.log.append_batch(
            partitionlet=partitionlet,
            epoch=self.state.epoch,
            first=first,
            last=last,
            max_timestamp=max_timestamp,
            batch=batch,
        )
        self._waiting.add(position, waiting)
        self.cycle.kick()

    def append_control(
        self,
        frame_type: FrameType,
        payload: bytes,
        *,
        partitionlet: PartitionletId = PartitionletId(0),  # noqa: B008
        first: int = -1,
        last: int = -1,
        from_reserve: bool = False,
    ) -> asyncio.Future[Position]:
        """Add a control frame; return a future of the position after it, which completes once the frame is committed.

        The future fails with `StorageFull`, or with NOT_LEADER_OR_FOLLOWER if this node no longer leads.

        `from_reserve`: the frame may use the reserves that records leave free: one on the disk and, in case other
        software has filled the disk, one in the open chunk. It is then appended before frames of other partitionlets
        that wait for a chunk.
        """
        future: asyncio.Future[Position] = self._loop.create_future()
        if self.lost:
            future.set_exception(not_leader(self.id))
            return future
        waits = partitionlet in self._deferred if from_reserve else bool(self._deferred)
        if waits or not self.has_room(len(payload), from_reserve=from_reserve):
            self._append_deferred(frame_type, payload, partitionlet, first, last, future, from_reserve)
            return future
        position = self.log.append_control(
            type=frame_type,
            epoch=self.state.epoch,
            partitionlet=partitionlet,
            payload=payload,
            first=first,
            last=last,
        )
        if from_reserve:
            self.cramped = False
        if frame_type is FrameType.COMMAND:
            self.commands_tail.add(position, payload)
        self.when_committed(position, WaitingFuture(future, position, self.id))
        return future

    def _append_deferred(
        self,
        frame_type: FrameType,
        payload: bytes,
        partitionlet: PartitionletId,
        first: int,
        last: int,
        future: asyncio.Future[Position],
        from_reserve: bool,
    ) -> None:
        """Append as soon as a new chunk is ready, in the order of the calls."""
        self._deferred.append(partitionlet)
        reserve_tried = False

        def resume(done: asyncio.Future[None]) -> None:
            nonlocal reserve_tried
            error = asyncio.CancelledError() if done.cancelled() else done.exception()
            if isinstance(error, StorageFull) and from_reserve and not reserve_tried and not future.done():
                reserve_tried = True
                self.cycle.spare(from_reserve=True).add_done_callback(resume)
                return
            self._deferred.remove(partitionlet)
            if future.done():
                return
            if error is not None:
                if from_reserve and isinstance(error, StorageFull):
                    self.cramped = True
                    self.stir()
                future.set_exception(error)
                return
            # It is this frame's turn: hide those that still wait, or `append_control` would defer it again.
            later, self._deferred = self._deferred, []
            again = self.append_control(
                frame_type, payload, partitionlet=partitionlet, first=first, last=last, from_reserve=from_reserve
            )
            self._deferred += later
            again.add_done_callback(lambda ended: _copy(ended, future))

        self.cycle.spare().add_done_callback(resume)

    def append_command(self, payload: bytes) -> asyncio.Future[Position]:
        """Add a catalog command; return a future of the position after it, which completes once it is committed, in
        call order."""
        return self.append_control(FrameType.COMMAND, payload)

    def when_committed(self, position: Position, waiting: Waiting) -> None:
        """Notify `waiting` once everything below `position` is committed; at once if it already is."""
        if position <= self.state.committed:
            waiting.committed()
            return
        if self.lost:
            waiting.lost()
            return
        self._waiting.add(position, waiting)
        self.cycle.kick()

    async def all_committed(self) -> None:
        """Return once all that has been appended by now is committed. Raises NOT_LEADER_OR_FOLLOWER."""
        done: asyncio.Future[Position] = self._loop.create_future()
        self.when_committed(self.log.end, WaitingFuture(done, self.log.end, self.id))
        await done

    def has_room(self, length: int, *, from_reserve: bool = False) -> bool:
        """Return whether a frame with a payload of `length` bytes can be appended right now."""
        return self.log.room(length, to_the_end=from_reserve)

    async def make_room(self) -> None:
        """Wait until a new chunk is ready. Raises `StorageFull`."""
        await self.cycle.make_room()

    def kick(self) -> None:
        """Write what is pending, at the end of this turn of the loop."""
        self.cycle.kick()

    def forget_recent(self) -> None:
        """Drop the frames kept in memory for followers that are behind."""
        if self.recent is not None:
            self.recent.clear()

    # --- the sync cycle and the followers

    def cycle_starts(self, job: WriteJob) -> None:
        """See sync_cycle.Owner."""
        if self.rests:
            self.stir()
        self.state.end = Position(job.end)
        if not self.feeds:
            return
        self._cycles.append(_Cycle(Position(job.end)))
        if self.recent is not None:
            self.recent.add(job)
        for feed in list(self.feeds):
            feed.job_starts(job)

    def cycle_done(self) -> None:
        """See sync_cycle.Owner."""
        synced = self.log.appender.synced
        if self._cycles:
            _mark_synced(self._cycles, synced)
        if self.state.on_disk(self._member, synced, now=self._loop.time()):
            self.committed_moved()
        if self.log.chunks_to_close(self.state.committed):
            self.events.chunk_waits(self.id)

    def follower_has(self, member: Member, position: Position, *, beat: float) -> bool:
        """A follower reports that everything below `position` is on its disk, or only that it is alive; see Acked.

        Returns False if that cannot be, because this log is shorter. The report is then ignored (invariants 1, 7).
        """
        if self.lost:
            return True
        if not self.state.may_have(position):
            return False
        if beat:
            self.state.assured(member, beat)
        if self.state.on_disk(member, position, now=self._loop.time()):
            self.committed_moved()
        return True

    def follower_stirs(self, member: Member) -> None:
        """A follower leaves rest: from now on only its own messages count for it."""
        self.state.stirs(member)
        self.stir()

    def follower_gone(self, member: Member) -> None:
        """The connection to a follower has ended."""
        self.state.gone(member)
        self.stir()
        self.events.lost_touch(member.node)

    def committed_moved(self) -> None:
        """`committed` has moved: notify all waiters in order."""
        if self._cycles:
            self._notify_by_cycle()
        self._waiting.committed(self.state.committed)
        for feed in self.feeds:
            feed.committed_moved()
        if self._committed_moved is not None:
            self._committed_moved()

    def _notify_by_cycle(self) -> None:
        committed, now = self.state.committed, monotonic()
        while self._cycles and self._cycles[0].end <= committed:
            cycle = self._cycles.popleft()
            self.log.options.times.commit.observe(now - cycle.started)
            self.synced_at = cycle.synced
            self._waiting.committed(cycle.end)
        self.synced_at = self._cycles[0].synced if self._cycles else 0.0  # a part of this cycle may be committed

    # --- rest

    @property
    def may_rest(self) -> bool:
        """Whether nothing needs to be done here before the next event."""
        return (
            not self.cycle.is_busy
            and not self._deferred
            and not self.cramped
            and self.state.is_settled(self._loop.time())
            and all(feed.rests for feed in self.feeds)
        )

    def stir(self) -> None:
        """The container's state changes: the timer has to look after it again."""
        self.rests = False
        if not self.lost:
            self.events.stirs(self.id)

    # --- reading

    def read_tail(
        self, partitionlet: PartitionletId, offset: int, *, limit: int, max_bytes: int
    ) -> list[memoryview] | None:
        """Return batches from memory, or None if they have to be read from the disk."""
        return self.log.read_tail(partitionlet, Offset(offset), limit=Offset(limit), max_bytes=max_bytes)

    # --- ending

    def lose(self) -> None:
        """This node no longer leads the container; its log continues as a follower's."""
        if self.lost:
            return
        self.lost = True
        self.cycle.hand_to(None)
        for feed in list(self.feeds):
            feed.close()
        self.feeds.clear()
        self._cycles.clear()
        self._waiting.lost()

    async def close(self) -> None:
        """Write and sync what is pending, notify all waiters, and close the files."""
        await self.cycle.flush()
        self.lose()
        await self.cycle.close()


class _Cycle:
    """A sync cycle: the end of its frames, when it began, and when it was synced here (time.monotonic)."""

    __slots__ = ("end", "started", "synced")

    def __init__(self, end: Position) -> None:
        self.end = end
        self.started = monotonic()
        self.synced = 0.0


def _mark_synced(cycles: Iterable[_Cycle], position: Position) -> None:
    for cycle in cycles:
        if cycle.end > position:
            return
        cycle.synced = cycle.synced or monotonic()


def _copy(ended: "asyncio.Future[Any]", future: "asyncio.Future[Any]") -> None:
    if future.done():
        return
    if ended.cancelled():
        future.cancel()
    elif (error := ended.exception()) is not None:
        future.set_exception(error)
    else:
        future.set_result(ended.result())
