"""The threads that write the logs of one node; its containers share them, so an idle container costs no thread.

There are two kinds of threads, each with as many threads as are needed at a time, up to `THREADS`:

- native threads (native/_writer.c), for jobs that are a single write to an open file, as nearly all are. They never
  hold the interpreter's lock, so a write begins when the disk can take it, not when the loop's thread releases the
  lock: on a busy node that wait was more than half of a cycle, and took as much processor time as the write. There are
  none if the native code is not built;
- Python threads, for every other job, and for recording how far a log is synced.

First come, first served; a log has one job in progress as a rule, two at most, so no log can crowd out another. All
share one disk: if it hangs, all writes hang.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, Protocol

import structlog

from headrace.log.container_log import ContainerLog, WriteJob
from headrace.log.writing import DirectWrite
from headrace.native import writer

log = structlog.get_logger()

THREADS: Final = 16
"""The maximum number of writes given to a disk at a time, by each kind of thread."""
WRITE_CALL = 0
"""Address of the function that native threads call instead of pwritev2; 0 for pwritev2 itself. For tests, whose disks
fail."""

Done = Callable[[Exception | None], None]
"""Called on the loop with the exception that a call raised, or None."""
Written = Callable[[int, float], None]
"""Called on the loop with the number of bytes written, or an errno below 0, and the seconds that the write took."""


class Pool(Protocol):
    """What a `Writer` needs. Each request is carried out once, and its callback is called on the loop."""

    @property
    def is_native(self) -> bool:
        """Whether `write` is available."""

    def write(self, write: DirectWrite, written: Written) -> None:
        """Write; report the number of bytes written, or an errno below 0, and the seconds that it took."""

    def write_job(self, container_log: ContainerLog, job: WriteJob, done: Done) -> None:
        """Have the log write a job; report the exception raised, or None."""

    def mark(self, container_log: ContainerLog, done: Done) -> None:
        """Have the log record how far it is synced; report the exception raised, or None."""


class WriterPool:
    """The pool of one node, created on its loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="log-writer")
        self._native: writer.Writer[tuple[DirectWrite, Written]] | None = None
        if writer is not None:
            self._native = writer.Writer(THREADS, WRITE_CALL)
            self._loop.add_reader(self._native.fileno(), self._take)

    def close(self) -> None:
        """[blocking] Let writes in progress finish, and end the threads."""
        if self._native is not None:
            self._loop.remove_reader(self._native.fileno())
            self._native.close()
            self._native = None
        self._threads.shutdown()

    @property
    def is_native(self) -> bool:
        """See Pool."""
        return self._native is not None

    def write(self, write: DirectWrite, written: Written) -> None:
        """See Pool."""
        assert self._native is not None
        # The token refers to the file, so the descriptor stays open whatever happens to the log.
        self._native.submit(write.file.fd, write.buffers, write.offset, write.flags, (write, written))

    def write_job(self, container_log: ContainerLog, job: WriteJob, done: Done) -> None:
        """See Pool."""
        self._threads.submit(self._run, partial(container_log.write_job, job), done)

    def mark(self, container_log: ContainerLog, done: Done) -> None:
        """See Pool."""
        self._threads.submit(self._run, container_log.mark_synced, done)

    def _run(self, call: Callable[[], None], done: Done) -> None:
        error: Exception | None = None
        try:
            call()
        except Exception as failure:  # after any failure the content of the disk is unknown
            error = failure
        try:
            self._loop.call_soon_threadsafe(done, error)
        except RuntimeError:  # the loop is closed: nothing waits for the result any longer
            pass

    def _take(self) -> None:
        if self._native is None:
            return
        for (_, written), result, seconds in self._native.take():
            try:
                written(result, seconds)
            except Exception as error:  # the other writes are still reported
                log.error("the callback of a write failed", error=repr(error), exc_info=error)
