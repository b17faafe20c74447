"""Child processes: how they end, which output is kept, and that none is left after a cancellation at any time."""

import asyncio
import contextlib
import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.base.child_processes import ChildProcess
from headrace.base.errors import OutOfDescriptors

SLEEPS = [sys.executable, "-c", "import time; time.sleep(1000)"]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list["subprocess.Popen[bytes]"]:
    """The processes that a test has started."""
    found: list[subprocess.Popen[bytes]] = []
    begin = subprocess.Popen

    def begun(*arguments: Any, **more: Any) -> "subprocess.Popen[bytes]":
        found.append(begin(*arguments, **more))
        return found[-1]

    monkeypatch.setattr(subprocess, "Popen", begun)
    return found


@pytest.fixture
def may_begin(started: list[Any], monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """An event for which processes wait before they start."""
    begin, allowed = subprocess.Popen, threading.Event()

    def late(*arguments: Any, **more: Any) -> "subprocess.Popen[bytes]":
        allowed.wait(100)
        return begin(*arguments, **more)

    monkeypatch.setattr(subprocess, "Popen", late)
    return allowed


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(100):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


def is_gone(process: "subprocess.Popen[bytes]") -> bool:
    """Whether a process has ended and left no zombie."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(process.pid, os.WNOHANG)
        return False
    return process.returncode is not None


def says(text: str) -> list[str]:
    return [sys.executable, "-c", f"import sys; {text}"]


async def test_a_child_ends_with_its_status_and_what_it_wrote() -> None:
    assert await ChildProcess(says("print('a'); sys.exit(3)"), output_limit=100).run() == (3, b"a\n", False)


async def test_a_child_whose_output_is_not_asked_for_writes_where_its_parent_does(capfd: Any) -> None:
    assert await ChildProcess(says("print('seen')")).run() == (0, b"", False)
    assert capfd.readouterr().out == "seen\n"


async def test_of_what_a_child_writes_so_much_is_kept_and_the_rest_keeps_it_not_waiting() -> None:
    child = ChildProcess(says("sys.stdout.write('x' * (1 << 22)); sys.exit(1)"), output_limit=100_000)
    assert await child.run() == (1, b"x" * 100_000, True)
    child = ChildProcess(says("sys.stdout.write('x' * 100)"), output_limit=100)
    assert await child.run() == (0, b"x" * 100, False)


async def test_a_child_that_is_killed_has_the_signal_as_its_status(started: list[Any]) -> None:
    child = ChildProcess(SLEEPS)
    running = asyncio.ensure_future(child.run())
    await until(lambda: started)
    child.kill()
    assert (await running).status == -signal.SIGKILL
    child.kill()
    assert is_gone(started[0])


async def test_a_child_that_is_killed_before_it_starts_ends_as_soon_as_it_does(started: list[Any]) -> None:
    child = ChildProcess(SLEEPS, output_limit=10)
    child.kill()
    assert await child.run() == (-signal.SIGKILL, b"", False)
    assert is_gone(started[0])


async def test_a_child_that_is_stopped_is_gone_then(started: list[Any]) -> None:
    child = ChildProcess(SLEEPS)
    running = asyncio.ensure_future(child.run())
    await until(lambda: started)
    await child.stop()
    assert is_gone(started[0])
    assert (await running).status == -signal.SIGKILL


@pytest.mark.parametrize("output_limit", [0, 10])
async def test_a_child_whose_time_is_over_is_gone_then(started: list[Any], output_limit: int) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await ChildProcess(SLEEPS, output_limit=output_limit).run()
    assert is_gone(started[0])


async def test_who_is_cancelled_while_a_child_runs_leaves_none(started: list[Any]) -> None:
    running = asyncio.ensure_future(ChildProcess(SLEEPS).run())
    await until(lambda: started)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert is_gone(started[0])


async def test_who_is_cancelled_while_a_child_starts_leaves_none(
    started: list[Any], may_begin: threading.Event
) -> None:
    running = asyncio.ensure_future(ChildProcess(SLEEPS).run())
    await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait([running], timeout=0.05)
    assert not running.done(), "it waits until it can be sure"
    may_begin.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert is_gone(started[0])


async def test_who_is_cancelled_twice_waits_for_nothing_and_leaves_no_child_either(
    started: list[Any], may_begin: threading.Event
) -> None:
    running = asyncio.ensure_future(ChildProcess(SLEEPS).run())
    for _ in range(2):
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not started
    may_begin.set()
    await until(lambda: started and is_gone(started[0]))


async def test_a_child_that_has_ended_when_who_waits_is_cancelled_is_gone(started: list[Any]) -> None:
    running = asyncio.ensure_future(ChildProcess(["true"]).run())
    await until(lambda: started and started[0].returncode is not None)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    assert is_gone(started[0])


async def test_a_child_that_cannot_be_started_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"cannot be started: No such file .*/nothing-there'"):
        await ChildProcess([str(tmp_path / "nothing-there")]).run()
    plain = tmp_path / "plain"
    plain.write_text("")
    with pytest.raises(PermissionError, match="cannot be started"):
        await ChildProcess([str(plain)], output_limit=10).run()


@pytest.mark.parametrize("lacking", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN])
async def test_a_child_for_which_nothing_is_left_is_put_off(monkeypatch: pytest.MonkeyPatch, lacking: int) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError(lacking, os.strerror(lacking))

    monkeypatch.setattr(subprocess, "Popen", fails)
    with pytest.raises(OutOfDescriptors, match=os.strerror(lacking)):
        await ChildProcess(["true"]).run()


async def test_a_child_for_which_no_thread_is_left_is_put_off(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    child = ChildProcess(["true"])
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", fails)
        with pytest.raises(OutOfDescriptors, match="can't start new thread"):
            await child.run()
    await child.stop()


async def test_the_thread_that_started_a_child_stays_as_long_as_the_child() -> None:
    """For a child that asked to be killed with its parent, the end of the thread that started it counts."""
    ends_with_parent = f"from headrace.log.parent_death import end_with_parent; end_with_parent({os.getpid()})"
    goes_on = "import time; time.sleep(0.3); print('to its end')"
    child = ChildProcess([sys.executable, "-c", f"{ends_with_parent}; {goes_on}"], output_limit=100)
    assert await child.run() == (0, b"to its end\n", False)


def test_the_loop_goes_on_while_a_child_starts_though_much_memory_is_mapped() -> None:
    """A fork copies the page tables of all mapped memory, which takes some 8 ms in this test."""
    measured = r"""
import asyncio, mmap, sys, time
from headrace.base.child_processes import ChildProcess

async def measure():
    used = []
    for _ in range(5):
        child = asyncio.ensure_future(ChildProcess(["true"]).run())
        before = time.process_time()
        await child
        used.append(time.process_time() - before)
    return min(used)

few = asyncio.run(measure())
mapped = mmap.mmap(-1, 256 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
mapped.madvise(mmap.MADV_NOHUGEPAGE)  # an entry in the page tables for each page
for at in range(0, len(mapped), mmap.PAGESIZE):
    mapped[at] = 1
many = asyncio.run(measure())
print(few, many)
sys.exit(many > few + 0.004)
"""
    ran = subprocess.run([sys.executable, "-c", measured], check=False, capture_output=True, text=True)
    assert ran.returncode == 0, (ran.stdout, ran.stderr)
