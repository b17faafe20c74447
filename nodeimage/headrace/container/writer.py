"""How one container's log is written, a sync cycle at a time (DESIGN section 4, write path).

The loop hands over a job with `submit`; `done(job, error)` is called back on the loop. A job is everything that was
pending, so one `fdatasync` covers the messages of thousands of topics. Most jobs are one write to a file that is open,
and go to the native threads of the pool (writer_pool.py), where there are any. What such a write does not do for lack
of something - the kernel cannot sync what it writes, or wrote less than all - is done once more, as a whole, by
the log's own `write_job` in a thread of Python, which does all other jobs as well. An error of the disk is told as it
is.

Once in a while the log keeps how far it is synced: in a thread, not beside `write_job`, but beside a write, which
counts as written only afterwards.
"""

import asyncio
import errno
import os
from collections.abc import Callable
from typing import Final

from headrace.container.writer_pool import Pool
from headrace.log.container_log import ContainerLog, WriteJob

_CANNOT: Final = frozenset({-errno.EOPNOTSUPP, -errno.ENOSYS})


class Writer:
    """Runs write jobs in order. The owner submits a job only after the last one is done. The loop thread's own."""

    def __init__(self, *, log: ContainerLog, pool: Pool, done: Callable[[WriteJob, Exception | None], None]) -> None:
        self._log = log
        self._pool = pool
        self._done = done
        self._loop = asyncio.get_running_loop()
        self._job: WriteJob | None = None
        """Under way."""
        self._in_thread = False
        """A thread of Python has the log in hand: `write_job`, or `mark_synced`."""
        self._waits = False
        """`_job` is for such a thread, when it is through with the mark."""
        self._marks: asyncio.TimerHandle | None = None
        self._rests: asyncio.Future[None] | None = None
        """Once it is to be closed: done when nothing is under way."""

    def submit(self, job: WriteJob) -> None:
        """Write and sync `job`."""
        assert self._job is None, "one job at a time"
        self._job = job
        write = self._log.direct_write(job) if self._pool.is_native else None
        if write is None:
            self._write_job(job)
        else:
            self._pool.write(write, self._written)

    async def close(self) -> None:
        """Let what is under way finish. Nothing is submitted any more, and no thread has the log in hand afterwards."""
        if self._rests is None:
            self._rests = self._loop.create_future()
            if self._marks is not None:
                self._marks.cancel()
            self._go_on()
        await asyncio.shield(self._rests)

    def _written(self, result: int, seconds: float) -> None:
        job = self._job
        assert job is not None
        if result == job.nbytes:
            self._log.written_directly(job, seconds)
            self._end(job, None)
        elif result >= 0 or result in _CANNOT:
            self._write_job(job)
        else:
            self._end(job, OSError(-result, os.strerror(-result)))

    def _write_job(self, job: WriteJob) -> None:
        self._waits = self._in_thread
        if not self._waits:
            self._in_thread = True
            self._pool.write_job(self._log, job, self._job_written)

    def _job_written(self, error: Exception | None) -> None:
        self._in_thread = False
        assert self._job is not None
        self._end(self._job, error)

    def _end(self, job: WriteJob, error: Exception | None) -> None:
        self._job = None
        try:
            self._done(job, error)
        finally:
            self._go_on()

    def _mark(self) -> None:
        self._marks = None
        if not self._in_thread:  # else the job there is followed by another look
            self._in_thread = True
            self._pool.mark(self._log, self._marked)

    def _marked(self, error: Exception | None) -> None:
        self._in_thread = False
        if self._waits and self._job is not None:
            self._write_job(self._job)
        self._go_on()
        if error is not None:
            raise error  # nobody expects one, and nothing is lost by it but proof

    def _go_on(self) -> None:
        """Something has ended; what is to follow by itself?"""
        if self._rests is not None:
            if self._job is None and not self._in_thread and not self._rests.done():
                self._rests.set_result(None)
        elif self._marks is None and not self._in_thread and self._log.wants_mark:
            self._marks = self._loop.call_later(self._log.mark_in_s, self._mark)
