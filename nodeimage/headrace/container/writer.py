"""How one container's log is written, a sync cycle at a time (DESIGN section 4, write path).

The loop hands over a job with `submit`; `done(job, error)` is called back on the loop. A job is everything that was
pending, so one `fdatasync` covers the messages of thousands of topics. Most jobs are one write to a file that is open,
and go to the native threads of the pool (writer_pool.py), where there are any. What such a write does not do for lack
of something - the kernel cannot sync what it writes, or wrote less than all - is done once more, as a whole, by
the log's own `write_job` in a thread of Python, which does all other jobs as well. An error of the disk is told as it
is.

Two single writes may be under way at a time, and the second may be on the disk first. The owner says when
(sync_cycle.py); what holds whenever it does stands here:

- Jobs are told in the order in which they came: one that is on the disk waits for the one before it (invariant 1).
  Until then the log counts it neither as written nor as synced, so no mark and no reader gets past a hole.
- After an error nothing more is told, whatever else reached the disk (invariant 13).
- What takes more than one call has the log to itself: it begins when nothing is under way, and nothing goes beside it.
- Each of the two writes by an open file of its own. The kernel tells a failed write-back once to each open file that
  syncs: of two writes by one, either could be told of the other's failure, and that other one of success.

Once in a while the log keeps how far it is synced: in a thread, not beside `write_job`, but beside a write, which
counts as written only afterwards.
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


class _State(Enum):
    """Where a job stands."""

    WRITES = auto()
    """A native thread has it."""
    WRITTEN = auto()
    """It is on the disk."""
    WAITS = auto()
    """It takes a thread of Python, and the log to itself."""
    IN_THREAD = auto()
    """It has both."""
    PUT_OFF = auto()
    """It was told that it is to be written again later."""


class _UnderWay:
    """A job that was submitted and is not told yet."""

    __slots__ = ("beside", "job", "seconds", "state", "writer")

    def __init__(self, writer: "Writer", job: WriteJob, *, beside: bool) -> None:
        self.writer = writer
        self.job = job
        self.beside = beside
        """Which of the log's two open files it writes by."""
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
    """Runs write jobs in order. The loop thread's own."""

    def __init__(self, *, log: ContainerLog, pool: Pool, done: Callable[[WriteJob, Exception | None], None]) -> None:
        self._log = log
        self._pool = pool
        self._done = done
        self._loop = asyncio.get_running_loop()
        self._jobs: deque[_UnderWay] = deque()
        """In order; two at most."""
        self._failed = False
        self._in_thread = False
        """A thread of Python has the log in hand: `write_job`, or `mark_synced`."""
        self._marks: asyncio.TimerHandle | None = None
        self._rests: asyncio.Future[None] | None = None
        """Once it is to be closed: done when nothing is under way."""

    @property
    def takes_another(self) -> bool:
        """Whether a job that is a single write may go beside the one under way."""
        return len(self._jobs) == 1 and self._jobs[0].state is _State.WRITES and not self._failed

    def submit(self, job: WriteJob) -> None:
        """Write and sync `job`. Nothing is under way, or `takes_another`."""
        assert not self._jobs or self.takes_another, "two jobs at a time, single writes both"
        under_way = _UnderWay(self, job, beside=bool(self._jobs) and not self._jobs[0].beside)
        self._jobs.append(under_way)
        write = self._log.direct_write(job, beside=under_way.beside) if self._pool.is_native else None
        if write is None:
            self._go_on()
        else:
            under_way.state = _State.WRITES
            self._pool.write(write, under_way.written)

    def write_again(self) -> None:
        """Write the job of which `OutOfDescriptors` was told."""
        self._jobs[0].state = _State.WAITS
        self._go_on()

    async def close(self) -> None:
        """Let what is under way finish. Nothing is submitted any more, and no thread has the log in hand afterwards."""
        if self._rests is None:
            self._rests = self._loop.create_future()
            if self._marks is not None:
                self._marks.cancel()
            self._go_on()
        await asyncio.shield(self._rests)

    def write_ended(self, under_way: _UnderWay, result: int) -> None:
        """What a native thread has come to."""
        if result == under_way.job.nbytes:
            under_way.state = _State.WRITTEN
        elif result >= 0 or result in _CANNOT:
            under_way.state = _State.WAITS
        else:
            self._fail(under_way, OSError(-result, os.strerror(-result)))
            return
        self._go_on()

    def job_ended(self, under_way: _UnderWay, error: Exception | None) -> None:
        """What a thread of Python has come to."""
        self._in_thread = False
        if error is None:
            self._tell(under_way)
        elif isinstance(error, OutOfDescriptors):
            under_way.state = _State.PUT_OFF
            try:
                self._done(under_way.job, error)
            finally:
                self._go_on()
        else:
            self._fail(under_way, error)

    def _fail(self, under_way: _UnderWay, error: Exception) -> None:
        self._jobs.remove(under_way)
        was_told, self._failed = self._failed, True
        try:
            if not was_told:
                self._done(under_way.job, error)
        finally:
            self._go_on()

    def _tell(self, under_way: _UnderWay) -> None:
        """The first job is on the disk."""
        self._jobs.popleft()
        try:
            self._done(under_way.job, None)
        finally:
            self._go_on()

    def _go_on(self) -> None:
        """Something has ended, or is to begin; what is to follow by itself?"""
        first = self._jobs[0] if self._jobs else None
        if first is not None and self._failed:
            if first.state is not _State.WRITES:
                self._jobs.popleft()  # nobody hears of it
                self._go_on()
                return
        elif first is not None and first.state is _State.WRITTEN:
            self._log.written_directly(first.job, first.seconds)
            self._tell(first)
            return
        elif first is not None and first.state is _State.WAITS:
            if not self._in_thread and all(each.state is not _State.WRITES for each in self._jobs):
                first.state = _State.IN_THREAD
                self._in_thread = True
                self._pool.write_job(self._log, first.job, first.job_written)
            return
        if self._rests is not None:
            if first is None and not self._in_thread and not self._rests.done():
                self._rests.set_result(None)
        elif self._marks is None and not self._in_thread and self._log.wants_mark:
            self._marks = self._loop.call_later(self._log.mark_in_s, self._mark)

    def _mark(self) -> None:
        self._marks = None
        if not self._in_thread:  # else the job there is followed by another look
            self._in_thread = True
            self._pool.mark(self._log, self._marked)

    def _marked(self, error: Exception | None) -> None:
        self._in_thread = False
        self._go_on()
        if error is not None:
            raise error  # nobody expects one, and nothing is lost by it but proof
