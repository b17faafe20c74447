"""The thread that writes a log: jobs in order, each answered on the loop, and a mark where the log rests."""

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

from headrace.container.writer import Writer


class Log:
    """Notes what its writer thread does; `fails` is raised by the next job."""

    def __init__(self, *, mark_s: float = 60.0) -> None:
        self.done: list[str] = []
        self.threads: set[str] = set()
        self.fails: Exception | None = None
        self.wants_mark = False
        self.marked = threading.Event()
        self.options = SimpleNamespace(mark_s=mark_s)

    def write_job(self, job: Any) -> None:
        self.threads.add(threading.current_thread().name)
        if self.fails is not None:
            raise self.fails
        self.done.append(str(job))

    def mark_synced(self) -> None:
        self.done.append("mark")
        self.wants_mark = False
        self.marked.set()


class Answers:
    """What the loop hears of jobs."""

    def __init__(self) -> None:
        self.heard: list[tuple[Any, Exception | None]] = []
        self.more = asyncio.Event()
        self.thread = threading.current_thread()

    def __call__(self, job: Any, error: Exception | None) -> None:
        assert threading.current_thread() is self.thread
        self.heard.append((job, error))
        self.more.set()

    async def until(self, count: int) -> None:
        async with asyncio.timeout(60):
            while len(self.heard) < count:
                self.more.clear()
                await self.more.wait()


async def test_jobs_are_written_in_order_by_one_thread_of_their_own() -> None:
    log: Any = Log()
    answers = Answers()
    writer = Writer(name="container-7", log=log, done=answers)
    jobs: Any = ["first", "second", "third"]
    for job in jobs:
        writer.submit(job)
    await answers.until(3)
    writer.close()
    assert answers.heard == [(job, None) for job in jobs]
    assert log.done == [*jobs, "mark"], "how far it is synced is kept as it ends"
    assert log.threads == {"container-7"}


async def test_a_job_that_fails_is_answered_with_its_error_and_the_thread_goes_on() -> None:
    log: Any = Log()
    answers = Answers()
    writer = Writer(name="container-7", log=log, done=answers)
    first: Any = "first"
    second: Any = "second"
    log.fails = failure = OSError("the disk is gone")
    writer.submit(first)
    await answers.until(1)
    log.fails = None
    writer.submit(second)
    await answers.until(2)
    writer.close()
    assert answers.heard == [(first, failure), (second, None)]


async def test_a_log_that_rests_is_marked_without_another_job() -> None:
    log: Any = Log(mark_s=0.001)
    answers = Answers()
    writer = Writer(name="container-7", log=log, done=answers)
    job: Any = "job"
    log.wants_mark = True
    writer.submit(job)
    await answers.until(1)
    assert await asyncio.to_thread(log.marked.wait, 60)
    assert log.done[:2] == ["job", "mark"]
    writer.close()
