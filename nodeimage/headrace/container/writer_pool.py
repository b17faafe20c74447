"""What writes the logs of one node: a few threads that its containers share, so that one which rests costs none.

Two kinds of threads, of each as many as are needed at a time, up to `THREADS`:

- native ones (native/_writer.c), for jobs that are one write to an open file, which nearly all are. They never hold the
  interpreter's lock, so a write begins when the disk can take it, not when the loop's thread lets go of the lock: on a
  busy node that wait was more than half of a cycle, and took as much processor time as the write. None of these where
  the native pieces are not built;
- threads of Python, for every other job, and for marks of what is synced.

First come, first served; a log has one job under way at most, so no log can crowd out another. The disk is one: where
it hangs, they all do.
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
"""Writes that a disk is given at a time."""
WRITE_CALL = 0
"""What the native threads call instead of pwritev2, by its address; 0: that. For tests, whose disks fail."""

Done = Callable[[Exception | None], None]
Written = Callable[[int, float], None]


class Pool(Protocol):
    """What a `Writer` asks for. Each is done once, and then told on the loop."""

    @property
    def is_native(self) -> bool:
        """Whether there is `write`."""

    def write(self, write: DirectWrite, written: Written) -> None:
        """Tell the bytes that were written or an errno below 0, and the seconds that it took."""

    def write_job(self, container_log: ContainerLog, job: WriteJob, done: Done) -> None:
        """Have the log write a job; tell what it raised."""

    def mark(self, container_log: ContainerLog, done: Done) -> None:
        """Have the log keep how far it is synced; tell what it raised."""


class WriterPool:
    """Of one node, made on its loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="log-writer")
        self._native: writer.Writer[tuple[DirectWrite, Written]] | None = None
        if writer is not None:
            self._native = writer.Writer(THREADS, WRITE_CALL)
            self._loop.add_reader(self._native.fileno(), self._take)

    def close(self) -> None:
        """[blocking] Let what is under way finish, and end the threads."""
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
        # The token holds the file: its descriptor stays open, whatever becomes of the log.
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
        except Exception as failure:  # whatever it is, nobody knows what the disk holds
            error = failure
        try:
            self._loop.call_soon_threadsafe(done, error)
        except RuntimeError:  # the loop is closed: nobody waits for an answer any more
            pass

    def _take(self) -> None:
        if self._native is None:
            return
        for (_, written), result, seconds in self._native.take():
            try:
                written(result, seconds)
            except Exception as error:  # the others are told all the same
                log.error("what follows a write failed", error=repr(error), exc_info=error)
