"""The demo's processes: each is started in its own session, read from, sent orders, and ended reliably.

Handles the parent's end of the pipes (reports.py handles the child's). A child is asked to exit by closing its stdin,
which also happens when the parent dies; one that stays is killed with all of its session, including Java and Spark's
workers. Ctrl-C in a terminal reaches only the parent.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import psutil

from headrace_spark.demo.reports import AnyReport, decode_report

POLL_S = 0.05
LAST_LINES = 8


class ProcessEnded(Exception):
    """A process of the demo ended without being asked to, or with an error. `log` holds its last lines."""

    def __init__(self, name: str, code: int, log: Sequence[str]) -> None:
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        super().__init__(f"the process {name} ended with {how}")
        self.log = tuple(log)


class Child:
    """One process. `report` is its newest report, None before the first."""

    def __init__(self, name: str, module: str, arguments: Mapping[str, str | Path], *, logs: Path) -> None:
        self.name = name
        self.report: AnyReport | None = None
        self._log = logs / f"{name}.log"
        command = [sys.executable, "-m", f"headrace_spark.demo.{module}"]
        for option, value in arguments.items():
            command += [f"--{option}", str(value)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True
            )
        self._asked = False
        self._reader = threading.Thread(target=self._read, name=f"reports of {name}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def order(self, *words: object) -> None:
        """Send the process a line. A process that has ended ignores it; `check` reports the end."""
        self._write(" ".join(map(str, words)) + "\n")

    def ask_to_go(self) -> None:
        """Close the process's stdin: it finishes its work and exits."""
        self._asked = True
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()

    def check(self) -> None:
        """Raise ProcessEnded if the process ended without being asked to."""
        code = self._process.poll()
        if code is not None and not self._asked:
            raise ProcessEnded(self.name, code, self.last_lines())

    def wait(self, timeout_s: float) -> bool:
        """Wait for the process to end, after `ask_to_go`. Return False if it still runs. Raises ProcessEnded on an
        error.
        """
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        self._reader.join(timeout_s)
        if code != 0:
            raise ProcessEnded(self.name, code, self.last_lines())
        return True

    def kill(self) -> None:
        """Kill the process and all of its session."""
        self._asked = True
        end_session(self.pid)
        self._process.wait()
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()

    def last_lines(self) -> tuple[str, ...]:
        """Return the last lines that the process wrote to stderr."""
        with contextlib.suppress(OSError):
            return tuple(self._log.read_text(errors="replace").splitlines()[-LAST_LINES:])
        return ()

    def _write(self, line: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # the process has ended
            if self._process.stdin is not None:
                self._process.stdin.write(line.encode())
                self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with contextlib.suppress(msgspec.DecodeError):  # a library that prints
                self.report = decode_report(line)


def end_all(children: Sequence[Child], *, grace_s: float) -> list[str]:
    """Ask all to exit, and kill those that stay; return the names of the latter. None of their processes is left."""
    for child in children:
        child.ask_to_go()
    deadline = time.monotonic() + grace_s
    while any(child.running for child in children) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    late = [child.name for child in children if child.running]
    for child in children:
        child.kill()
    return late


def end_session(session: int, *, timeout_s: float = 10.0) -> None:
    """Kill every process of a session, including those that start meanwhile."""
    deadline = time.monotonic() + timeout_s
    while (members := session_members(session)) and time.monotonic() < deadline:
        for pid in members:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(POLL_S)


def session_members(session: int) -> list[int]:
    """Return the ids of a session's running processes."""
    found = []
    for pid in psutil.pids():
        with contextlib.suppress(ProcessLookupError, PermissionError, psutil.Error):
            if os.getsid(pid) == session and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.append(pid)
    return found
