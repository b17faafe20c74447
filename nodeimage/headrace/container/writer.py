"""One thread that writes and syncs one container's log, a sync cycle at a time (DESIGN section 4, write path).

The loop hands over a job with `submit`; `done(job, error)` is called back on the loop. A job is everything that was
pending, so one `fdatasync` covers the messages of thousands of topics. While there is none, and at the end, it keeps
how far the log is synced.
"""

import asyncio
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

from headrace.log.container_log import ContainerLog, WriteJob


class Writer:
    """Runs write jobs in order. The owner submits a job only after the last one is done."""

    def __init__(self, *, name: str, log: ContainerLog, done: Callable[[WriteJob, Exception | None], None]) -> None:
        self._log = log
        self._done = done
        self._loop = asyncio.get_running_loop()
        self._jobs: SimpleQueue[WriteJob | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: WriteJob) -> None:
        """Write and sync `job`."""
        self._jobs.put(job)

    def close(self) -> None:
        """[blocking] Let the job under way finish, then end the thread."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (job := self._next()) is not None:
            error: Exception | None = None
            try:
                self._log.write_job(job)
            except Exception as failure:  # whatever it is, nobody knows what the disk holds
                error = failure
            try:
                self._loop.call_soon_threadsafe(self._done, job, error)
            except RuntimeError:  # the loop is closed: nobody waits for an answer any more
                return
        self._log.mark_synced()

    def _next(self) -> WriteJob | None:
        if self._log.wants_mark:
            try:
                return self._jobs.get(timeout=self._log.options.mark_s)
            except Empty:
                self._log.mark_synced()
        return self._jobs.get()
