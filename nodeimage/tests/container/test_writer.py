"""How a log is written: jobs are reported in order, at most two single writes run at a time, and an idle log gets a
mark."""

import asyncio
import errno
import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.base.errors import OutOfDescriptors
from headrace.container.writer import Writer
from headrace.container.writer_pool import Done, Written


class Log:
    """Records the calls it gets. `direct`: its jobs are single writes, except for those in `more`."""

    def __init__(self, *, direct: bool) -> None:
        self.direct = direct
        self.written: list[Any] = []
        self.wants_mark = False
        self.mark_in_s = 0.0

    def direct_write(self, job: Any, *, beside: bool = False) -> Any:
        if not self.direct or job.name == "more":
            return None
        return f"write of {job.name}{' beside' if beside else ''}"

    def written_directly(self, job: Any, took: float) -> None:
        self.written.append((job.name, took))


class Pool:
    """Carries out requests when the test allows it."""

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
        """The request has been carried out."""
        ((row, done),) = [(row, done) for row, (asked, done) in enumerate(self.asked) if asked == name]
        del self.asked[row]
        done(*outcome)


class Answers:
    """What is reported to the owner of jobs; it may submit the next one at once."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, Exception | None]] = []
        self.then: list[Any] = []
        self.writer: Any = None

    def __call__(self, job: Any, error: Exception | None) -> None:
        self.heard.append((job.name, error))
        if self.then and (not self.writer._jobs or self.writer.takes_another):
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
    """Let the loop run what is due."""
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.parametrize(("direct", "is_native"), [(False, True), (True, False)])
async def test_what_is_no_single_write_is_a_threads_and_so_is_all_without_native_ones(
    direct: bool, is_native: bool
) -> None:
    parts = Parts(direct=direct, is_native=is_native)
    parts.writer.submit(job("first"))
    assert parts.answers.heard == []
    assert not parts.writer.takes_another
    parts.pool.end("job first", None)
    failure = OSError("the disk is gone")
    parts.writer.submit(job("second"))
    parts.pool.end("job second", failure)
    assert parts.answers.heard == [("first", None), ("second", failure)]
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
    """An incomplete write, or a kernel or file system that cannot sync while it writes."""
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


def two(parts: Parts) -> None:
    """Two single writes in progress."""
    assert not parts.writer.takes_another, "nothing is under way: it takes any job"
    parts.writer.submit(job("first"))
    assert parts.writer.takes_another
    parts.writer.submit(job("second"))
    assert not parts.writer.takes_another
    assert parts.pool.names == ["write of first", "write of second beside"]


async def test_the_second_of_two_writes_is_told_after_the_first_whichever_is_on_the_disk_first() -> None:
    """Invariant 1: there is no hole below what is reported as done. Until then the log does not know of it either."""
    parts = Parts()
    two(parts)
    parts.pool.end("write of second beside", 100, 0.5)
    assert parts.answers.heard == parts.log.written == []
    assert not parts.writer.takes_another
    parts.pool.end("write of first", 100, 0.25)
    assert parts.log.written == [("first", 0.25), ("second", 0.5)]
    assert parts.answers.heard == [("first", None), ("second", None)]


async def test_a_write_beside_another_has_the_file_to_itself_that_the_other_does_not_use() -> None:
    """The kernel reports a failure once to each open file: see writer.py."""
    parts = Parts()
    two(parts)
    for before, name, beside in (
        ("first", "third", ""),
        ("second beside", "fourth", " beside"),
        ("third", "fifth", ""),
    ):
        parts.pool.end(f"write of {before}", 100, 0.25)
        assert parts.writer.takes_another
        parts.writer.submit(job(name))
        assert parts.pool.names[1:] == [f"write of {name}{beside}"]
    parts.pool.end("write of fourth beside", 100, 0.25)
    parts.writer.submit(job("sixth"))
    parts.pool.end("write of fifth", 100, 0.25)
    parts.pool.end("write of sixth beside", 100, 0.25)
    parts.writer.submit(job("seventh"))
    assert parts.pool.names == ["write of seventh"], "alone, it is the log's own file"


async def test_what_waits_to_be_told_is_told_before_another_job_begins() -> None:
    """So that the next decision is based on what is pending after both."""
    parts = Parts()
    two(parts)
    parts.answers.then = [job("third")]
    parts.pool.end("write of second beside", 100, 0.25)
    parts.pool.end("write of first", 100, 0.25)
    assert parts.answers.heard == [("first", None), ("second", None)]
    assert parts.pool.names == ["write of third"]


@pytest.mark.parametrize(
    ("failing", "other"), list(itertools.permutations(("write of first", "write of second beside")))
)
@pytest.mark.parametrize("other_first", [True, False])
async def test_after_an_error_nothing_is_told_whatever_else_is_on_the_disk(
    failing: str, other: str, other_first: bool
) -> None:
    """Invariant 13. Except for what was on disk, and reported, before."""
    parts = Parts()
    two(parts)
    before = []
    if other_first:
        parts.pool.end(other, 100, 0.25)
        before = [("first", None)] if other == "write of first" else []
    parts.pool.end(failing, -errno.EIO, 0.25)
    if not other_first:
        assert not parts.writer.takes_another
        parts.pool.end(other, 100, 0.25)
    *told, (name, error) = parts.answers.heard
    assert told == before
    assert name == failing.split()[2]
    assert isinstance(error, OSError)
    assert parts.log.written == [(name, 0.25) for name, _ in before]
    assert parts.pool.names == []
    await parts.writer.close()


async def test_of_two_errors_one_is_told() -> None:
    parts = Parts()
    two(parts)
    parts.pool.end("write of second beside", -errno.EIO, 0.25)
    closing = asyncio.ensure_future(parts.writer.close())
    await turns()
    assert not closing.done()
    parts.pool.end("write of first", -errno.EIO, 0.25)
    assert [name for name, _ in parts.answers.heard] == ["second"]
    await closing


@pytest.mark.parametrize("result", [0, 99, -errno.EOPNOTSUPP])
async def test_what_the_first_of_two_writes_did_not_do_waits_for_the_second_to_end(result: int) -> None:
    """A job that takes more than one call has the log to itself."""
    parts = Parts()
    two(parts)
    parts.pool.end("write of first", result, 0.25)
    assert parts.pool.names == ["write of second beside"]
    assert not parts.writer.takes_another
    parts.pool.end("write of second beside", 100, 0.5)
    assert parts.pool.names == ["job first"]
    assert parts.answers.heard == parts.log.written == []
    parts.pool.end("job first", None)
    assert parts.answers.heard == [("first", None), ("second", None)]
    assert parts.log.written == [("second", 0.5)]


@pytest.mark.parametrize("result", [0, 99, -errno.EOPNOTSUPP])
async def test_what_the_second_of_two_writes_did_not_do_comes_after_the_first(result: int) -> None:
    parts = Parts()
    two(parts)
    parts.pool.end("write of second beside", result, 0.5)
    assert parts.pool.names == ["write of first"]
    parts.pool.end("write of first", 100, 0.25)
    assert parts.answers.heard == [("first", None)]
    assert parts.pool.names == ["job second"]
    assert not parts.writer.takes_another
    parts.pool.end("job second", None)
    assert parts.answers.heard == [("first", None), ("second", None)]


async def test_both_of_two_writes_may_have_to_be_done_as_a_whole() -> None:
    parts = Parts()
    two(parts)
    parts.pool.end("write of second beside", 0, 0.5)
    parts.pool.end("write of first", 0, 0.5)
    for name in ("first", "second"):
        assert parts.pool.names == [f"job {name}"], "one at a time"
        parts.pool.end(f"job {name}", None)
    assert parts.answers.heard == [("first", None), ("second", None)]


async def test_a_job_that_turns_out_to_take_more_than_a_write_waits_for_the_one_before() -> None:
    parts = Parts()
    parts.writer.submit(job("first"))
    parts.writer.submit(job("more"))
    assert parts.pool.names == ["write of first"]
    parts.pool.end("write of first", 100, 0.25)
    assert parts.pool.names == ["job more"]
    assert not parts.writer.takes_another


async def test_a_job_that_is_put_off_is_written_again_and_nothing_overtakes_it() -> None:
    parts = Parts()
    two(parts)
    parts.pool.end("write of first", 0, 0.25)
    parts.pool.end("write of second beside", 100, 0.5)
    lacking = OutOfDescriptors("none left")
    parts.pool.end("job first", lacking)
    closing = asyncio.ensure_future(parts.writer.close())
    await turns()
    assert parts.answers.heard == [("first", lacking)]
    assert (parts.pool.names, parts.log.written, closing.done()) == ([], [], False)
    parts.writer.write_again()
    assert parts.pool.names == ["job first"]
    parts.pool.end("job first", None)
    assert parts.answers.heard == [("first", lacking), ("first", None), ("second", None)]
    await closing


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


async def test_closing_waits_for_both_of_two_writes() -> None:
    parts = Parts()
    two(parts)
    closing = asyncio.ensure_future(parts.writer.close())
    for name in ("write of second beside", "write of first"):
        await turns()
        assert not closing.done()
        parts.pool.end(name, 100, 0.25)
    await asyncio.wait_for(closing, 60)
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
    """The log may have been cut by then, and its mark would claim what was there before."""
    parts = Parts()
    parts.log.wants_mark = True
    parts.log.mark_in_s = 0.01
    parts.writer.submit(job("first"))
    parts.pool.end("write of first", 100, 0.25)
    await parts.writer.close()
    await asyncio.sleep(0.03)
    assert parts.pool.names == []
