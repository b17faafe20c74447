"""How a log is written: one job at a time, each answered on the loop, and a mark where the log rests."""

import asyncio
import errno
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.container.writer import Writer
from headrace.container.writer_pool import Done, Written


class Log:
    """Notes what is done to it. `direct`: its jobs are single writes."""

    def __init__(self, *, direct: bool) -> None:
        self.direct = direct
        self.written: list[Any] = []
        self.wants_mark = False
        self.mark_in_s = 0.0

    def direct_write(self, job: Any) -> Any:
        return f"write of {job.name}" if self.direct else None

    def written_directly(self, job: Any, took: float) -> None:
        self.written.append((job.name, took))


class Pool:
    """Does what it is asked for when the test says so."""

    def __init__(self, *, is_native: bool = True) -> None:
        self.is_native = is_native
        self.asked: list[tuple[str, Any]] = []

    def write(self, write: Any, written: Written) -> None:
        self.asked.append((write, written))

    def write_job(self, container_log: Any, job: Any, done: Done) -> None:
        self.asked.append((f"job {job.name}", done))

    def mark(self, container_log: Any, done: Done) -> None:
        self.asked.append(("mark", done))

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.asked]

    def end(self, name: str, *outcome: Any) -> None:
        """What was asked for first is done."""
        found, done = self.asked.pop(0)
        assert found == name
        done(*outcome)


class Answers:
    """What the owner hears of its jobs; it may submit the next one at once."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, Exception | None]] = []
        self.then: list[Any] = []
        self.writer: Any = None

    def __call__(self, job: Any, error: Exception | None) -> None:
        self.heard.append((job.name, error))
        if self.then:
            self.writer.submit(self.then.pop())


def job(name: str, nbytes: int = 100) -> Any:
    return SimpleNamespace(name=name, nbytes=nbytes)


class Parts:
    def __init__(self, *, direct: bool = True, is_native: bool = True) -> None:
        self.log = Log(direct=direct)
        self.pool = Pool(is_native=is_native)
        self.answers = Answers()
        log: Any = self.log
        self.writer = self.answers.writer = Writer(log=log, pool=self.pool, done=self.answers)


async def turns() -> None:
    """The loop does what is due."""
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.parametrize(("direct", "is_native"), [(False, True), (True, False)])
async def test_what_is_no_single_write_is_a_threads_and_so_is_all_without_native_ones(
    direct: bool, is_native: bool
) -> None:
    parts = Parts(direct=direct, is_native=is_native)
    parts.writer.submit(job("first"))
    assert parts.answers.heard == []
    parts.pool.end("job first", None)
    failure = OSError("the disk is gone")
    parts.writer.submit(job("second"))
    parts.pool.end("job second", failure)
    parts.writer.submit(job("third"))
    parts.pool.end("job third", None)
    assert parts.answers.heard == [("first", None), ("second", failure), ("third", None)]
    assert parts.log.written == [], "the log knows itself"


async def test_a_single_write_is_told_to_the_log_before_the_owner() -> None:
    parts = Parts()
    parts.answers.then = [job("second")]
    parts.writer.submit(job("first"))
    parts.pool.end("write of first", 100, 0.25)
    assert parts.log.written == [("first", 0.25)]
    assert parts.answers.heard == [("first", None)]
    assert parts.pool.names == ["write of second"], "the owner goes on at once"


@pytest.mark.parametrize("result", [0, 99, -errno.EOPNOTSUPP, -errno.ENOSYS])
async def test_what_a_single_write_did_not_do_is_done_as_a_whole(result: int) -> None:
    """Fewer bytes than all, or a kernel or file system that cannot sync what it writes."""
    parts = Parts()
    parts.writer.submit(job("first"))
    parts.pool.end("write of first", result, 0.25)
    assert parts.answers.heard == []
    parts.pool.end("job first", None)
    assert parts.answers.heard == [("first", None)]
    assert parts.log.written == []


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EBADF, errno.EROFS])
async def test_an_error_of_the_disk_is_told_and_not_tried_again(code: int) -> None:
    """Invariant 13."""
    parts = Parts()
    parts.writer.submit(job("first"))
    parts.pool.end("write of first", -code, 0.25)
    ((name, error),) = parts.answers.heard
    assert name == "first"
    assert isinstance(error, OSError)
    assert error.errno == code
    assert parts.pool.names == []
    assert parts.log.written == []


async def test_a_log_is_marked_once_it_is_time() -> None:
    parts = Parts()
    parts.log.wants_mark = True
    parts.log.mark_in_s = 1000.0
    parts.writer.submit(job("first"))
    parts.pool.end("write of first", 100, 0.25)
    await turns()
    assert parts.pool.names == [], "it is not time yet"
    other = Parts()
    other.log.wants_mark = True
    other.writer.submit(job("first"))
    other.pool.end("write of first", 100, 0.25)
    await turns()
    assert other.pool.names == ["mark"]
    other.log.wants_mark = False
    other.pool.end("mark", None)
    await turns()
    assert other.pool.names == []


async def test_a_single_write_goes_beside_a_mark_and_a_job_after_it() -> None:
    parts = Parts()
    parts.log.wants_mark = True
    parts.writer.submit(job("first"))
    parts.pool.end("write of first", 100, 0.25)
    await turns()
    parts.writer.submit(job("second"))
    assert parts.pool.names == ["mark", "write of second"]
    mark = parts.pool.asked.pop(0)
    parts.pool.end("write of second", 100, 0.25)
    parts.log.direct = False
    parts.writer.submit(job("third"))
    await turns()
    assert parts.pool.names == [], "two threads never have the log"
    mark[1](None)
    assert parts.pool.names == ["job third"]
    await turns()
    assert parts.pool.names == ["job third"], "nor does a mark go beside a job"
    parts.pool.end("job third", None)
    await turns()
    assert parts.pool.names == ["mark"]


async def test_a_mark_that_fails_holds_up_nothing() -> None:
    parts = Parts()
    parts.log.wants_mark = True
    parts.writer.submit(job("first"))
    parts.pool.end("write of first", 100, 0.25)
    await turns()
    parts.log.direct = False
    parts.writer.submit(job("second"))
    with pytest.raises(ZeroDivisionError):
        parts.pool.end("mark", ZeroDivisionError())
    parts.pool.end("job second", None)
    assert parts.answers.heard == [("first", None), ("second", None)]


@pytest.mark.parametrize("busy", ["write", "job", "mark", ""])
async def test_closing_waits_for_what_is_under_way(busy: str) -> None:
    parts = Parts(direct=busy == "write")
    ends: list[Any] = []
    if busy == "mark":
        parts.log.wants_mark = True
        parts.writer.submit(job("before"))
        parts.pool.end("job before", None)
        await turns()
        ends = ["mark", None]
    elif busy:
        parts.writer.submit(job("first"))
        ends = ["write of first", 100, 0.25] if busy == "write" else ["job first", None]
    closing = [asyncio.ensure_future(parts.writer.close()) for _ in range(2)]
    await turns()
    assert parts.pool.names == ends[:1]
    assert all(each.done() is not bool(ends) for each in closing)
    if ends:
        parts.pool.end(*ends)
    await asyncio.wait_for(asyncio.gather(*closing), 60)
    assert parts.pool.names == []


async def test_a_mark_that_was_still_to_come_does_not_come_after_closing() -> None:
    """The log may be cut by then, and its mark would tell of what was there before."""
    parts = Parts()
    parts.log.wants_mark = True
    parts.log.mark_in_s = 0.01
    parts.writer.submit(job("first"))
    parts.pool.end("write of first", 100, 0.25)
    await parts.writer.close()
    await asyncio.sleep(0.03)
    assert parts.pool.names == []
