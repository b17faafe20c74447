"""Runs the sync cycles of one replica's log, whatever the replica's role: its writer writes and syncs pending frames.

Frames that arrive while a job runs form the next job: group commit without a timer. As a rule one job runs at a time.
If the disk takes longer than `parallel_write_after_s` for a job, the next one starts beside it, provided both are
single writes (writer.py states the invariants): otherwise, frames that arrive just after a job has begun would wait for
two syncs. The owner, which is the leader half or the follower half, is notified of each job when it starts and when it
is on disk, both in order. The cycle outlives a change of owner, so a replica that is promoted continues with its log.

Also responsible for room: the next chunk is preallocated in a thread before the open one is full. All methods run on
the loop's thread, unless marked [blocking].
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Final, Protocol

import structlog

from headrace.base.errors import Code, KafkaError, OutOfDescriptors, StorageFull
from headrace.base.ids import ContainerId
from headrace.container.writer import Writer
from headrace.container.writer_pool import Pool
from headrace.log.container_log import ContainerLog, SecondFile, WriteJob

log = structlog.get_logger()

RETRY_FULL_S = 1.0
"""Seconds for which appends are refused after the disk was found full, before it is checked again."""
RETRY_JOB_S: Final = 0.2
"""Seconds before a job for which no file could be opened is written again."""
LOOK_S: Final = 0.001
"""Shortest delay, in seconds, of the check whether a job can start beside another: the loop's timers are not finer."""
RETRY_BESIDE_S: Final = 1.0
"""Seconds before the second open file for jobs beside another is opened again after a failure."""
HANGS_S = 5.0
"""Seconds without progress of a job after which the disk counts as hanging; it may never report an error."""


class Room(Protocol):
    """The node's disk quota."""

    def check(self, length: int, *, from_reserve: bool = False) -> None:
        """Raise `StorageFull` if `length` more bytes may not be preallocated.

        `from_reserve`: for frames that are needed to free space.
        """

    def lacked(self) -> None:
        """The disk was full although `check` had allowed the allocation."""


class Owner(Protocol):
    """The half of a replica that appends to its log."""

    def cycle_starts(self, job: WriteJob) -> None:
        """`job` is about to be written."""

    def cycle_done(self) -> None:
        """Everything below the log's `synced` is on disk."""


class SyncCycle:
    """One replica's log and its writer."""

    def __init__(
        self,
        *,
        container_id: ContainerId,
        container_log: ContainerLog,
        executor: Executor,
        pool: Pool,
        room: Room,
        fatal: Callable[[str], None],
    ) -> None:
        self.id = container_id
        self.log = container_log
        self._owner: Owner | None = None
        self.wants_spares = True
        self._executor = executor
        self._room = room
        self._fatal = fatal
        self._loop = asyncio.get_running_loop()
        self._begun = 0
        self._done = 0
        """Numbers of the jobs that have begun, and of those that are on disk; the difference is in progress."""
        self._begun_at = 0.0
        """When the last job began (time.monotonic)."""
        self._beside_timer: asyncio.TimerHandle | None = None
        """The timer for the next check whether a job can start beside the one in progress."""
        self._opening_beside = False
        self._beside_retry_at = 0.0
        """Earliest loop time at which to open the second file again."""
        self._stalled_s = 0.0
        """Seconds since the job in progress last made progress."""
        self._put_off = False
        """The job in progress is waiting for descriptors."""
        self._written = container_log.written
        self._due = False
        self._closed = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._jobs_over: deque[tuple[int, asyncio.Future[None]]] = deque()
        """Futures to complete once the given number of jobs is on disk."""
        self._making_spare: asyncio.Future[None] | None = None
        self._full_until = 0.0
        self._writer = Writer(log=container_log, pool=pool, done=self._job_done)
        container_log.on_sync_failed(lambda error: fatal(f"container {container_id}: {error}"))

    @property
    def owner(self) -> Owner | None:
        """The half that is notified of jobs."""
        return self._owner

    def hand_to(self, owner: Owner | None) -> None:
        """Notify `owner` of jobs from now on; None: nobody."""
        self._owner = owner

    # --- writing

    def kick(self) -> None:
        """Write what is pending, at the end of this turn of the loop."""
        if not self._due:
            self._due = True
            self._loop.call_soon(self._cycle)

    @property
    def _under_way(self) -> int:
        return self._begun - self._done

    def _cycle(self) -> None:
        self._due = False
        if self._closed or (self._under_way and not self._goes_beside()):
            return
        job = self.log.take_job()
        if job is None:
            return
        if not self._under_way:
            self._stalled_s = 0.0
        self._begun += 1
        self._begun_at = time.monotonic()
        self._idle.clear()
        try:
            if self._owner is not None:
                self._owner.cycle_starts(job)
        finally:  # even if the owner failed: without this call nothing more would be written
            self._writer.submit(job)

    def _job_done(self, job: WriteJob, error: Exception | None) -> None:
        if isinstance(error, OutOfDescriptors):  # nothing was written; the job is neither counted nor acknowledged
            if not self._put_off:
                log.warning("writing the log waits for file descriptors", container=self.id, reason=str(error))
            self._put_off = True
            self._loop.call_later(RETRY_JOB_S, self._writer.write_again)
            return
        if self._put_off and error is None:
            log.info("writing the log continues", container=self.id)
        self._put_off = False
        if error is not None:
            # Invariant 13 (docs/architecture.md, Invariants): after a failed write or sync, only a restart can find out
            # what the disk holds.
            self._fatal(f"container {self.id}: writing the log failed: {error!r}")
            return
        self.log.options.times.sync.observe(job.took)
        self.log.job_done(job)
        self._done += 1
        while self._jobs_over and self._jobs_over[0][0] <= self._done:
            self._jobs_over.popleft()[1].set_result(None)
        if self._owner is not None:
            self._owner.cycle_done()
        if not self._due:
            self._cycle()
        if not self._under_way:
            self._idle.set()
        if self.wants_spares and self.log.wants_spare():
            self.spare()

    # --- a job beside the one under way

    def _goes_beside(self) -> bool:
        """Return whether to write the pending frames now; if not yet, schedule another check."""
        options = self.log.options
        if not options.fsync or not self._writer.takes_another or not self.log.pending_fits_one_write:
            return False
        wait = self._begun_at + options.parallel_write_after_s - time.monotonic()
        if wait > 0:
            if self._beside_timer is None:
                self._beside_timer = self._loop.call_later(max(wait, LOOK_S), self._look_again)
            return False
        if not self.log.can_write_in_parallel:
            self._open_beside()
            return False
        return True

    def _look_again(self) -> None:
        self._beside_timer = None
        if not self._due:
            self._cycle()

    def _open_beside(self) -> None:
        if self._opening_beside or self._loop.time() < self._beside_retry_at:
            return
        self._opening_beside = True
        opened = self._loop.run_in_executor(self._executor, self.log.open_second_file)
        opened.add_done_callback(self._beside_opened)

    def _beside_opened(self, opened: "asyncio.Future[SecondFile | None]") -> None:
        self._opening_beside = False
        if opened.cancelled():
            return
        if opened.exception() is None:
            self.log.use_second_file(opened.result())
        if not self.log.can_write_in_parallel:  # no descriptor, or a new chunk: one job at a time is correct too
            self._beside_retry_at = self._loop.time() + RETRY_BESIDE_S
        self._look_again()

    def tick(self, seconds: float) -> None:
        """The loop has run for `seconds`. Time during which the process was suspended does not count: the writer was
        too."""
        self._stalled_s += seconds
        if self._written != self.log.written:
            self._written = self.log.written
            self._stalled_s = 0.0

    @property
    def is_stuck(self) -> bool:
        """A job in progress has made no progress for `HANGS_S`."""
        return self._under_way > 0 and self._stalled_s >= HANGS_S

    @property
    def is_busy(self) -> bool:
        """Frames are being written, or are pending."""
        return self._under_way > 0 or self._due or self.log.pending_bytes > 0

    @property
    def is_closed(self) -> bool:
        """Nothing more is written."""
        return self._closed

    async def jobs_under_way(self) -> None:
        """Return when all jobs that have begun are done. Does not wait for later ones."""
        if self._under_way:
            over: asyncio.Future[None] = self._loop.create_future()
            self._jobs_over.append((self._begun, over))
            await asyncio.shield(over)

    async def flush(self) -> None:
        """Return when all that has been appended is on disk."""
        while self._under_way or self.log.pending_bytes:
            self._cycle()
            await self._idle.wait()

    async def close(self) -> None:
        """Write and sync what is pending, and close the files."""
        await self.flush()
        was_closed, self._closed = self._closed, True
        if self._beside_timer is not None:
            self._beside_timer.cancel()
        await self._writer.close()
        if not was_closed:  # otherwise the log may have been cut, and a mark would claim frames that were cut
            await self._loop.run_in_executor(self._executor, self.log.mark_synced)
        await self._loop.run_in_executor(self._executor, self.log.close)

    # --- room

    async def make_room(self) -> None:
        """Wait until a new chunk is ready. Raises `StorageFull`."""
        await asyncio.shield(self.spare())

    def spare(self, *, from_reserve: bool = False) -> asyncio.Future[None]:
        """Return the preparation of the next chunk; begin it if none is in progress.

        `from_reserve`: see Room.check.
        """
        if self._making_spare is None or self._making_spare.done():
            future: asyncio.Future[None] = self._loop.create_future()
            future.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._making_spare = future
            if self._loop.time() < self._full_until and not from_reserve:
                future.set_exception(StorageFull(f"container {self.id}: no room for another chunk just now"))
                return future
            made = self._loop.run_in_executor(self._executor, self._make_spare, from_reserve)
            made.add_done_callback(lambda ended: self._spare_made(ended, future))
        return self._making_spare

    def _make_spare(self, from_reserve: bool) -> None:
        self._room.check(self.log.spare_bytes, from_reserve=from_reserve)
        try:
            self.log.make_spare()
        except OutOfDescriptors:
            raise
        except StorageFull:
            self._room.lacked()
            raise

    def _spare_made(self, ended: asyncio.Future[None], future: asyncio.Future[None]) -> None:
        error = None if ended.cancelled() else ended.exception()
        if error is None:
            if not future.done():
                future.set_result(None)
            return
        if isinstance(error, OSError) and self._closed:  # its folder may be gone
            error = KafkaError(Code.NOT_LEADER_OR_FOLLOWER, f"container {self.id}: this replica is closed")
        if isinstance(error, StorageFull):
            if self._full_until < self._loop.time() - 10 * RETRY_FULL_S:
                what = "out of file descriptors" if isinstance(error, OutOfDescriptors) else "disk full"
                log.warning(what, container=self.id, error=str(error))
            self._full_until = self._loop.time() + RETRY_FULL_S
        if not future.done():
            future.set_exception(error)
