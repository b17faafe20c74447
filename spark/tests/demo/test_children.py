import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace_spark.demo.children import Child, ProcessEnded, end_all, session_members
from headrace_spark.demo.reports import PressReport


def wait_for(condition: Callable[[], bool], *, timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def press(tmp_path: Path) -> Iterator[Child]:
    child = Child("press", "press", {}, logs=tmp_path)
    wait_for(lambda: child.report is not None)
    yield child
    child.kill()


def test_the_press_works_for_as_long_as_it_is_told(press: Child) -> None:
    press.order("work", 0.3)
    wait_for(lambda: isinstance(press.report, PressReport) and press.report.ended > 0)
    assert isinstance(press.report, PressReport)
    assert 300 <= press.report.ended - press.report.began < 5_000


def test_a_process_goes_when_it_is_asked(press: Child) -> None:
    press.ask_to_go()
    assert press.wait(30)
    press.check()
    assert session_members(press.pid) == []


def test_a_process_that_ends_unasked_is_noticed(press: Child) -> None:
    os.kill(press.pid, signal.SIGKILL)
    wait_for(lambda: not press.running)
    with pytest.raises(ProcessEnded, match="press ended with SIGKILL"):
        press.check()


def test_a_process_that_stays_is_killed(press: Child) -> None:
    os.kill(press.pid, signal.SIGSTOP)
    assert end_all([press], grace_s=0.1) == ["press"]
    assert session_members(press.pid) == []


def test_orders_to_a_process_that_is_gone_are_lost_quietly(press: Child) -> None:
    os.kill(press.pid, signal.SIGKILL)
    wait_for(lambda: not press.running)
    before = press.report
    press.order("work", 0.01)
    assert press.report == before
    with pytest.raises(ProcessEnded):
        press.check()
    press.kill()
    press.order("work", 0.01)  # through a pipe that is closed on this side
    assert press.report == before


def test_a_wrong_start_tells_its_last_lines(tmp_path: Path) -> None:
    child = Child("feed", "feed", {}, logs=tmp_path)
    wait_for(lambda: not child.running)
    with pytest.raises(ProcessEnded) as raised:
        child.check()
    assert "--bootstrap" in raised.value.log[-1]


PARENT = """
import sys, time
from pathlib import Path
from headrace_spark.demo.children import Child
child = Child("press", "press", {}, logs=Path(sys.argv[1]))
while child.report is None:
    time.sleep(0.01)
print(child.pid, flush=True)
time.sleep(600)
"""


def test_a_process_does_not_outlive_a_parent_that_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert session_members(pid) == [pid]
        parent.kill()
    wait_for(lambda: session_members(pid) == [])
