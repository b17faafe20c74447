"""The sync cycle of one replica's log, whoever leads: pending frames are written and synced by its writer.

Frames that arrive while a job runs form the next one: group commit without a timer. One job at a time, as a rule; where
the disk takes longer than `beside_s` for it, the next one begins beside it, if both are single writes (writer.py says
what holds then): frames that came just after a job began would else wait for two syncs. The owner, which is the
leader's or the follower's half, hears of each job when it starts and when it is on disk, both in order. The cycle
outlives a change of owner, so that a replica that is promoted goes on with the log that it has.

Also responsible for room: the next chunk is preallocated in a thread before the open one is full. All methods belong to
the loop thread, unless marked [blocking].
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
from headrace.log.container_log import Beside, ContainerLog, WriteJob

log = structlog.get_logger()

RETRY_FULL_S = 1.0
"""How long appends are refused after a full disk before the disk is asked again."""
RETRY_JOB_S: Final = 0.2
"""Until a job is written again that no file could be opened for."""
LOOK_S: Final = 0.001
"""Until it is looked again whether a job goes beside another, where nothing comes meanwhile: the loop's timers are not
finer."""
RETRY_BESIDE_S: Final = 1.0
"""Until the file is opened once more for that, where it could not be."""
HANGS_S = 5.0
"""A job that has not got on for so long: the disk hangs, and may never say so by an error."""


class Room(Protocol):
    """The node's disk quota: may `length` more bytes be preallocated?"""

    def check(self, length: int, *, from_reserve: bool = False) -> None:
        """Raise `StorageFull` if not. `from_reserve`: for frames without which no room can be made."""

    def lacked(self) -> None:
        """There was none, although `check` had seen some."""


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
        """Jobs that have ever begun, and that are on the disk; between them, those under way."""
        self._begun_at = 0.0
        """When the last one began."""
        self._next: asyncio.TimerHandle | None = None
        """When it is time for a job beside it."""
        self._opening_beside = False
        self._beside_from = 0.0
        """Not before then is the file opened for that."""
        self._waited_s = 0.0
        """Since the job under way last got on."""
        self._put_off = False
        """The job under way waits for descriptors."""
        self._written = container_log.written
        self._due = False
        self._closed = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._jobs_over: deque[tuple[int, asyncio.Future[None]]] = deque()
        """Who waits until so many jobs are on the disk."""
        self._making_spare: asyncio.Future[None] | None = None
        self._full_until = 0.0
        self._writer = Writer(log=container_log, pool=pool, done=self._job_done)
        container_log.on_sync_failed(lambda error: fatal(f"container {container_id}: {error}"))

    @property
    def owner(self) -> Owner | None:
        """Who hears of jobs."""
        return self._owner

    def hand_to(self, owner: Owner | None) -> None:
        """Have `owner` hear of jobs from now on; None: nobody."""
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
            self._waited_s = 0.0
        self._begun += 1
        self._begun_at = time.monotonic()
        self._idle.clear()
        try:
            if self._owner is not None:
                self._owner.cycle_starts(job)
        finally:  # whatever that comes to: without it nothing more would be written
            self._writer.submit(job)

    def _job_done(self, job: WriteJob, error: Exception | None) -> None:
        if isinstance(error, OutOfDescriptors):  # nothing is half written; what waits is neither counted nor answered
            if not self._put_off:
                log.warning("writing the log waits for file descriptors", container=self.id, reason=str(error))
            self._put_off = True
            self._loop.call_later(RETRY_JOB_S, self._writer.write_again)
            return
        if self._put_off and error is None:
            log.info("writing the log goes on", container=self.id)
        self._put_off = False
        if error is not None:
            # Invariant 13: after a failed write or sync nobody knows what the disk holds. Only a fresh start does.
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
        """Whether what is pending is to be written now; else that is looked at again in time."""
        options = self.log.options
        if not options.fsync or not self._writer.takes_another or not self.log.pends_one_write:
            return False
        wait = self._begun_at + options.beside_s - time.monotonic()
        if wait > 0:
            if self._next is None:
                self._next = self._loop.call_later(max(wait, LOOK_S), self._look_again)
            return False
        if not self.log.can_write_beside:
            self._open_beside()
            return False
        return True

    def _look_again(self) -> None:
        self._next = None
        if not self._due:
            self._cycle()

    def _open_beside(self) -> None:
        if self._opening_beside or self._loop.time() < self._beside_from:
            return
        self._opening_beside = True
        opened = self._loop.run_in_executor(self._executor, self.log.open_beside)
        opened.add_done_callback(self._beside_opened)

    def _beside_opened(self, opened: "asyncio.Future[Beside | None]") -> None:
        self._opening_beside = False
        if opened.cancelled():
            return
        if opened.exception() is None:
            self.log.take_beside(opened.result())
        if not self.log.can_write_beside:  # no descriptor, or a new chunk by now: one job at a time is right too
            self._beside_from = self._loop.time() + RETRY_BESIDE_S
        self._look_again()

    def tick(self, seconds: float) -> None:
        """The loop has gone on for `seconds`. Only these count: while the process stood still, so did the writer."""
        self._waited_s += seconds
        if self._written != self.log.written:
            self._written = self.log.written
            self._waited_s = 0.0

    @property
    def is_stuck(self) -> bool:
        """A job is under way that has not got on for `HANGS_S`."""
        return self._under_way > 0 and self._waited_s >= HANGS_S

    @property
    def is_busy(self) -> bool:
        """Something is being written, or is to be."""
        return self._under_way > 0 or self._due or self.log.pending_bytes > 0

    @property
    def is_closed(self) -> bool:
        """It writes nothing more."""
        return self._closed

    async def jobs_under_way(self) -> None:
        """Return when all jobs that have begun are done. Later ones are not waited for."""
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
        if self._next is not None:
            self._next.cancel()
        await self._writer.close()
        if not was_closed:  # else the log may have been cut, and a mark would tell of what was there before
            await self._loop.run_in_executor(self._executor, self.log.mark_synced)
        await self._loop.run_in_executor(self._executor, self.log.close)

    # --- room

    async def make_room(self) -> None:
        """Wait until a new chunk is ready. Raises `StorageFull`."""
        await asyncio.shield(self.spare())

    def spare(self, *, from_reserve: bool = False) -> asyncio.Future[None]:
        """The preparation of the next chunk, begun now if none is under way."""
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
