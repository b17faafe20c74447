"""One container as its primary runs it: numbers nothing, orders everything, says what is committed.

Responsible for the sync cycle: frames join the pending job in the order of `append_*` calls, one job at a time is
written and synced by the writer thread, then `committed` moves and everybody who waited for a position below it is
called, in order (invariants 1, 2). Frames that arrive while a job runs form the next one: group commit without a timer.

Knows nothing of topics, clients or the catalog's commands: partitionlets are numbers and payloads are bytes. All
methods belong to the loop thread, unless marked [blocking].
"""

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, Protocol

import structlog

from headrace.container.replica import Member, Primary
from headrace.container.writer import Writer
from headrace.errors import CorruptLog, StorageFull
from headrace.ids import ContainerId, Epoch, Millis, Offset, PartitionletId, Position
from headrace.log.container_log import ContainerLog, LogOptions, WriteJob
from headrace.log.frames import HEADER_BYTES, Frame, FrameType

log = structlog.get_logger()

RETRY_FULL_S = 1.0
"""How long appends are refused after a full disk before the disk is asked again."""


class Waiting(Protocol):
    """Somebody who waits for a frame to be committed."""

    def committed(self) -> None: ...


class Room(Protocol):
    """The node's disk quota: may `length` more bytes be preallocated?"""

    def check(self, length: int, *, from_reserve: bool = False) -> None:
        """Raise `StorageFull` if not. `from_reserve`: for frames without which no room can be made."""


class Container:
    """A container that this node leads."""

    def __init__(
        self,
        *,
        container_id: ContainerId,
        member: Member,
        epoch: Epoch,
        container_log: ContainerLog,
        executor: Executor,
        room: Room,
        fatal: Callable[[str], None],
    ) -> None:
        self.id = container_id
        self.log = container_log
        self.opened_at: Position = container_log.end
        """Where this run began to write: what is younger was written by this process."""
        self.primary = Primary(epoch=epoch, in_sync=(member,), start=container_log.end, min_in_sync=1)
        self.closing = False
        """No new partitionlet opens here any more, and the open ones are rolled away before their next batch."""
        self.created_at = Millis(int(time.time() * 1000))
        self._member = member
        self._executor = executor
        self._room = room
        self._fatal = fatal
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[int, Waiting]] = deque()
        self._writing = False
        self._cycle_due = False
        self._closed = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._making_spare: asyncio.Future[None] | None = None
        self._full_until = 0.0
        self._later = 0
        """Control frames that wait for a new chunk: those after them wait too, so that none overtakes another."""
        self._writer = Writer(name=f"container-{container_id}", log=container_log, done=self._job_done)
        self.on_chunk_full: Callable[[Container], None] = lambda _container: None
        self.primary.on_disk(member, container_log.end)

    @property
    def epoch(self) -> Epoch:
        """The epoch that this node's frames carry."""
        return self.primary.epoch

    @property
    def committed(self) -> Position:
        """Everything below is on disk on every in-sync replica."""
        return self.primary.committed

    @property
    def end(self) -> Position:
        """Behind the last frame, committed or not."""
        return self.log.end

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
        """Add a stamped record batch to the next sync cycle. The caller has seen `has_room`."""
        position = self.log.append_batch(
            partitionlet=partitionlet,
            epoch=self.primary.epoch,
            first=first,
            last=last,
            max_timestamp=max_timestamp,
            batch=batch,
        )
        self._waiting.append((position, waiting))
        if not self._cycle_due:
            self._cycle_due = True
            self._loop.call_soon(self._cycle)

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
        """Add a control frame; the future has the position after it, once committed, or `StorageFull`.

        `from_reserve`: it may use the room that records leave free.
        """
        future: asyncio.Future[Position] = self._loop.create_future()
        if self._later or not self.has_room(len(payload)):
            self._append_later(frame_type, payload, partitionlet, first, last, future, from_reserve)
            return future
        position = self.log.append_control(
            type=frame_type,
            epoch=self.primary.epoch,
            partitionlet=partitionlet,
            payload=payload,
            first=Offset(first),
            last=Offset(last),
        )
        self.when_committed(position, _Future(future, position))
        return future

    def _append_later(
        self,
        frame_type: FrameType,
        payload: bytes,
        partitionlet: PartitionletId,
        first: int,
        last: int,
        future: asyncio.Future[Position],
        from_reserve: bool,
    ) -> None:
        """Append as soon as a new chunk is there, in the order of the calls."""
        self._later += 1
        reserve_tried = False

        def resume(done: asyncio.Future[None]) -> None:
            nonlocal reserve_tried
            error = asyncio.CancelledError() if done.cancelled() else done.exception()
            if isinstance(error, StorageFull) and from_reserve and not reserve_tried and not future.done():
                reserve_tried = True
                self._spare(from_reserve=True).add_done_callback(resume)
                return
            self._later -= 1
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
                return
            later, self._later = self._later, 0
            again = self.append_control(
                frame_type, payload, partitionlet=partitionlet, first=first, last=last, from_reserve=from_reserve
            )
            self._later += later
            again.add_done_callback(lambda ended: _copy(ended, future))

        self._spare().add_done_callback(resume)

    def append_command(self, payload: bytes) -> asyncio.Future[Position]:
        """Add a catalog command; the future has the position after it, once committed, in the order of the calls."""
        return self.append_control(FrameType.COMMAND, payload)

    def when_committed(self, position: Position, waiting: Waiting) -> None:
        """Call `waiting` once everything below `position` is committed: at once, if it is already."""
        if position <= self.primary.committed:
            waiting.committed()
            return
        self._waiting.append((position, waiting))
        self.kick()

    def has_room(self, length: int) -> bool:
        """Whether a frame of `length` bytes of payload can be appended right now."""
        return self.log.room(length)

    async def make_room(self) -> None:
        """Wait until a new chunk is ready. Raises `StorageFull`."""
        await asyncio.shield(self._spare())

    def _spare(self, *, from_reserve: bool = False) -> asyncio.Future[None]:
        if self._making_spare is None or self._making_spare.done():
            future: asyncio.Future[None] = self._loop.create_future()
            future.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._making_spare = future
            if self._loop.time() < self._full_until and not from_reserve:
                future.set_exception(StorageFull(f"container {self.id}: no room on the disk"))
                return future
            made = self._loop.run_in_executor(self._executor, self._make_spare, from_reserve)
            made.add_done_callback(lambda ended: self._spare_made(ended, future))
        return self._making_spare

    def _make_spare(self, from_reserve: bool) -> None:
        self._room.check(self.log.options.chunk_bytes, from_reserve=from_reserve)
        self.log.make_spare()

    def _spare_made(self, ended: asyncio.Future[None], future: asyncio.Future[None]) -> None:
        error = None if ended.cancelled() else ended.exception()
        if error is None:
            _settle(future, None)
            return
        if isinstance(error, StorageFull):
            if self._full_until < self._loop.time() - 10 * RETRY_FULL_S:
                log.warning("disk full", container=self.id, error=str(error))
            self._full_until = self._loop.time() + RETRY_FULL_S
        if not future.done():
            future.set_exception(error)

    # --- the sync cycle

    def _cycle(self) -> None:
        self._cycle_due = False
        if self._writing or self._closed:
            return
        job = self.log.take_job()
        if job is None:
            return
        self._writing = True
        self._idle.clear()
        self._writer.submit(job)

    def _job_done(self, job: WriteJob, error: Exception | None) -> None:
        if error is not None:
            # Invariant 13: after a failed write or sync nobody knows what the disk holds. Only a fresh start does.
            self._fatal(f"container {self.id}: writing the log failed: {error!r}")
            return
        self.log.job_done(job)
        self._writing = False
        if self.primary.on_disk(self._member, self.log.synced):
            committed = self.primary.committed
            waiting = self._waiting
            while waiting and waiting[0][0] <= committed:
                try:
                    waiting.popleft()[1].committed()
                except Exception:  # one listener's fault must not keep the others waiting
                    log.exception("who waited for a commit failed", container=self.id)
        if not self._cycle_due:
            self._cycle()
        if not self._writing:
            self._idle.set()
        if self.log.wants_spare() and not self.closing:
            self._spare()
        if self.log.chunks_to_close():
            self.on_chunk_full(self)

    # --- reading

    def read_tail(
        self, partitionlet: PartitionletId, offset: int, *, limit: int, max_bytes: int
    ) -> list[memoryview] | None:
        """Batches from memory, or None where the disk has to be asked."""
        return self.log.read_tail(partitionlet, Offset(offset), limit=Offset(limit), max_bytes=max_bytes)

    def commands(self, after: Position) -> Iterator[tuple[Position, bytes]]:
        """[blocking] The committed catalog commands from `after` on: (position after the frame, payload).

        Raises `CorruptLog` where commands from there on have been trimmed: going on would leave some out.
        """
        if after < self.log.start:
            raise CorruptLog(f"container {self.id} starts at {self.log.start}; what was at {after} has been trimmed")
        frames: Iterator[Frame] = self.log.control_frames(after, self.committed)
        for frame in frames:
            if frame.type == FrameType.COMMAND:
                yield Position(frame.position + HEADER_BYTES + len(frame.payload)), bytes(frame.payload)

    def trim(self, until: Position) -> None:
        """Whole chunks below `until` may go; they do in a thread."""
        trimmed = self._loop.run_in_executor(self._executor, self.log.trim, until)
        trimmed.add_done_callback(self._trimmed)

    def _trimmed(self, ended: asyncio.Future[None]) -> None:
        if not ended.cancelled() and (error := ended.exception()) is not None:
            log.warning("trimming failed, it is tried again at the next snapshot", container=self.id, error=str(error))

    def kick(self) -> None:
        """Write what is pending, at the end of this turn of the loop."""
        if not self._cycle_due:
            self._cycle_due = True
            self._loop.call_soon(self._cycle)

    # --- ending

    async def close(self) -> None:
        """Write and sync what is pending, answer those who wait, and close the files."""
        while self._writing or self.log.pending_bytes:
            self._cycle()
            await self._idle.wait()
        self._closed = True
        await self._loop.run_in_executor(self._executor, self._writer.close)
        await self._loop.run_in_executor(self._executor, self.log.close)


class _Future:
    """A future as somebody who waits."""

    __slots__ = ("_future", "_position")

    def __init__(self, future: asyncio.Future[Position], position: Position) -> None:
        self._future = future
        self._position = position

    def committed(self) -> None:
        _settle(self._future, self._position)


def _settle(future: "asyncio.Future[Any]", result: object) -> None:
    if not future.done():
        future.set_result(result)


def _copy(ended: "asyncio.Future[Any]", future: "asyncio.Future[Any]") -> None:
    if future.done():
        return
    if ended.cancelled():
        future.cancel()
    elif (error := ended.exception()) is not None:
        future.set_exception(error)
    else:
        future.set_result(ended.result())


def open_log(folder: Path, options: LogOptions) -> ContainerLog:
    """[blocking] The log in `folder`, recovered or new."""
    os.makedirs(folder, exist_ok=True)
    return ContainerLog.open(folder, options)
