"""The sync cycle of one replica's log, whoever leads: pending frames are written and synced by its writer.

One job at a time; frames that arrive while a job runs form the next one: group commit without a timer. The owner, which
is the leader's or the follower's half, hears of each job when it starts and when it is on disk. The cycle outlives a
change of owner, so that a replica that is promoted goes on with the log that it has.

Also responsible for room: the next chunk is preallocated in a thread before the open one is full. All methods belong to
the loop thread, unless marked [blocking].
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Final, Protocol

import structlog

from headrace.base.errors import Code, KafkaError, OutOfDescriptors, StorageFull
from headrace.base.ids import ContainerId
from headrace.container.writer import Writer
from headrace.container.writer_pool import Pool
from headrace.log.container_log import ContainerLog, WriteJob

log = structlog.get_logger()

RETRY_FULL_S = 1.0
"""How long appends are refused after a full disk before the disk is asked again."""
RETRY_JOB_S: Final = 0.2
"""Until a job is written again that no file could be opened for."""
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
        self._writing = False
        self._waited_s = 0.0
        """Since the job under way last got on."""
        self._put_off = False
        """The job under way waits for descriptors."""
        self._written = container_log.written
        self._due = False
        self._closed = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._job_over: asyncio.Future[None] | None = None
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

    def _cycle(self) -> None:
        self._due = False
        if self._writing or self._closed:
            return
        job = self.log.take_job()
        if job is None:
            return
        self._writing = True
        self._waited_s = 0.0
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
            self._loop.call_later(RETRY_JOB_S, self._writer.submit, job)
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
        self._writing = False
        if self._job_over is not None:
            self._job_over.set_result(None)
            self._job_over = None
        if self._owner is not None:
            self._owner.cycle_done()
        if not self._due:
            self._cycle()
        if not self._writing:
            self._idle.set()
        if self.wants_spares and self.log.wants_spare():
            self.spare()

    def tick(self, seconds: float) -> None:
        """The loop has gone on for `seconds`. Only these count: while the process stood still, so did the writer."""
        self._waited_s += seconds
        if self._written != self.log.written:
            self._written = self.log.written
            self._waited_s = 0.0

    @property
    def is_stuck(self) -> bool:
        """A job is under way that has not got on for `HANGS_S`."""
        return self._writing and self._waited_s >= HANGS_S

    @property
    def is_closed(self) -> bool:
        """It writes nothing more."""
        return self._closed

    async def job_under_way(self) -> None:
        """Return when the job that is being written, if there is one, is done. Later ones are not waited for."""
        if self._writing:
            self._job_over = self._job_over or self._loop.create_future()
            await asyncio.shield(self._job_over)

    async def flush(self) -> None:
        """Return when all that has been appended is on disk."""
        while self._writing or self.log.pending_bytes:
            self._cycle()
            await self._idle.wait()

    async def close(self) -> None:
        """Write and sync what is pending, and close the files."""
        await self.flush()
        was_closed, self._closed = self._closed, True
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
