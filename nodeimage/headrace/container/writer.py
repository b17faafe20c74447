"""How one container's log is written, job by job (a job is one sync cycle of docs/replication.md).

The loop hands over a job with `submit`; `done(job, error)` is called back on the loop. A job is everything that was
pending, so one `fdatasync` covers the messages of thousands of topics. Most jobs are a single write to an open file,
and go to the native threads of the pool (writer_pool.py) if there are any. If such a write is incomplete - the kernel
cannot sync what it writes, or wrote less than the whole - the entire job is repeated by the log's own `write_job` in a
Python thread, which also runs all other jobs. A disk error is reported unchanged.

Two single writes may be in progress at a time, and the second may reach the disk first. The owner decides when to start
the second (sync_cycle.py). These invariants hold whenever it does:

- Jobs are reported in the order of submission: a job that is on disk waits for the one before it (invariant 1; numbers:
  docs/architecture.md, Invariants). Until then the log counts it neither as written nor as synced, so no mark and no
  reader passes a hole.
- After an error nothing more is reported, whatever else has reached the disk (invariant 13).
- A job that takes more than one call has the log to itself: it begins when nothing is in progress, and nothing starts
  beside it.
- Each of the two writes uses an open file of its own. The kernel reports a failed write-back once to each open file
  that syncs: if both writes shared a file, one could get the error of the other, and the other success.

From time to time a *mark* records how far the log is synced: it is written in a thread, never beside `write_job`, but
possibly beside a single write, which counts as written only afterwards.
"""

import asyncio
import errno
import os
from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from typing import Final

from headrace.base.errors import OutOfDescriptors
from headrace.container.writer_pool import Pool
from headrace.log.container_log import ContainerLog, WriteJob

_CANNOT: Final = frozenset({-errno.EOPNOTSUPP, -errno.ENOSYS})
"""Results of a native write that mean that the kernel cannot sync while it writes."""


class _State(Enum):
    """The state of a job."""

    WRITES = auto()
    """A native thread is writing it."""
    WRITTEN = auto()
    """It is on the disk."""
    WAITS = auto()
    """It waits for a Python thread, and to have the log to itself."""
    IN_THREAD = auto()
    """A Python thread is writing it."""
    PUT_OFF = auto()
    """It ran out of descriptors, and this was reported; `write_again` will restart it."""


class _PendingJob:
    """A job that was submitted and is not reported yet."""

    __slots__ = ("in_second_file", "job", "seconds", "state", "writer")

    def __init__(self, writer: "Writer", job: WriteJob, *, in_second_file: bool) -> None:
        self.writer = writer
        self.job = job
        self.in_second_file = in_second_file
        """Whether it writes with the second of the log's two open files; two jobs in progress use different ones."""
        self.state = _State.WAITS
        self.seconds = 0.0

    def written(self, result: int, seconds: float) -> None:
        """See writer_pool.Written."""
        self.seconds = seconds
        self.writer.write_ended(self, result)

    def job_written(self, error: Exception | None) -> None:
        """See writer_pool.Done."""
        self.writer.job_ended(self, error)


class Writer:
    """Runs write jobs in order. Used only on the loop's thread."""

    def __init__(self, *, log: ContainerLog, pool: Pool, done: Callable[[WriteJob, Exception | None], None]) -> None:
        self._log = log
        self._pool = pool
        self._done = done
        self._loop = asyncio.get_running_loop()
        self._jobs: deque[_PendingJob] = deque()
        """In order; at most two."""
        self._failed = False
        self._in_thread = False
        """A Python thread is using the log, in `write_job` or `mark_synced`."""
        self._mark_timer: asyncio.TimerHandle | None = None
        self._closing: asyncio.Future[None] | None = None
        """Set when closing: completes when nothing is in progress."""

    @property
    def takes_another(self) -> bool:
        """Whether a single-write job may start beside the one in progress."""
        return len(self._jobs) == 1 and self._jobs[0].state is _State.WRITES and not self._failed

    def submit(self, job: WriteJob) -> None:
        """Write and sync `job`. Requires that nothing is in progress, or `takes_another`."""
        assert not self._jobs or self.takes_another, "two jobs at a time, single writes both"
        under_way = _PendingJob(self, job, in_second_file=bool(self._jobs) and not self._jobs[0].in_second_file)
        self._jobs.append(under_way)
        write = self._log.direct_write(job, beside=under_way.in_second_file) if self._pool.is_native else None
        if write is None:
            self._advance()
        else:
            under_way.state = _State.WRITES
            self._pool.write(write, under_way.written)

    def write_again(self) -> None:
        """Write again the job that was reported with `OutOfDescriptors`."""
        self._jobs[0].state = _State.WAITS
        self._advance()

    async def close(self) -> None:
        """Let jobs in progress finish. Nothing may be submitted any longer, and no thread uses the log afterwards."""
        if self._closing is None:
            self._closing = self._loop.create_future()
            if self._mark_timer is not None:
                self._mark_timer.cancel()
            self._advance()
        await asyncio.shield(self._closing)

    def write_ended(self, under_way: _PendingJob, result: int) -> None:
        """A native thread has finished; `result` is the number of bytes written, or an errno below 0."""
        if result == under_way.job.nbytes:
            under_way.state = _State.WRITTEN
        elif result >= 0 or result in _CANNOT:
            under_way.state = _State.WAITS
        else:
            self._fail(under_way, OSError(-result, os.strerror(-result)))
            return
        self._advance()

    def job_ended(self, under_way: _PendingJob, error: Exception | None) -> None:
        """A Python thread has finished a job."""
        self._in_thread = False
        if error is None:
            self._report(under_way)
        elif isinstance(error, OutOfDescriptors):
            under_way.state = _State.PUT_OFF
            try:
                self._done(under_way.job, error)
            finally:
                self._advance()
        else:
            self._fail(under_way, error)

    def _fail(self, under_way: _PendingJob, error: Exception) -> None:
        self._jobs.remove(under_way)
        was_reported, self._failed = self._failed, True
        try:
            if not was_reported:
                self._done(under_way.job, error)
        finally:
            self._advance()

    def _report(self, under_way: _PendingJob) -> None:
        """The first job is on disk: report it."""
        self._jobs.popleft()
        try:
            self._done(under_way.job, None)
        finally:
            self._advance()

    def _advance(self) -> None:
        """Take the next step after a job has ended or was submitted."""
        first = self._jobs[0] if self._jobs else None
        if first is not None and self._failed:
            if first.state is not _State.WRITES:
                self._jobs.popleft()  # not reported
                self._advance()
                return
        elif first is not None and first.state is _State.WRITTEN:
            self._log.written_directly(first.job, first.seconds)
            self._report(first)
            return
        elif first is not None and first.state is _State.WAITS:
            if not self._in_thread and all(each.state is not _State.WRITES for each in self._jobs):
                first.state = _State.IN_THREAD
                self._in_thread = True
                self._pool.write_job(self._log, first.job, first.job_written)
            return
        if self._closing is not None:
            if first is None and not self._in_thread and not self._closing.done():
                self._closing.set_result(None)
        elif self._mark_timer is None and not self._in_thread and self._log.wants_mark:
            self._mark_timer = self._loop.call_later(self._log.mark_in_s, self._mark)

    def _mark(self) -> None:
        self._mark_timer = None
        if not self._in_thread:  # otherwise the end of that job schedules the mark again
            self._in_thread = True
            self._pool.mark(self._log, self._marked)

    def _marked(self, error: Exception | None) -> None:
        self._in_thread = False
        self._advance()
        if error is not None:
            raise error  # unexpected; without the mark only the proof of what is synced is missing
