"""Processes of Python scripts that start with all of Headrace imported, since they are forked from such a process.

Importing takes a second of a core, and tests start hundreds of nodes. `Forked` represents such a process as
`subprocess.Popen` does; otherwise the script runs as if it had been started: with its own session, arguments,
environment and output.
"""

import contextlib
import functools
import gc
import importlib
import json
import math
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

IMPORTED = ("headrace.node.process", "headrace.node.node", "headrace.store.kubernetes.store")
POLL_S = 0.005


class ServerEnded(Exception):
    """The fork server has ended, so nothing is known of its processes any more."""


class Forked:
    """A process that was forked."""

    def __init__(self, server: "ForkServer", pid: int) -> None:
        self._server = server
        self.pid = pid
        self.returncode: int | None = None
        """As in subprocess.Popen: negative for a signal."""

    def poll(self) -> int | None:
        """The process's exit code; None while it runs."""
        self._server.hear()
        return self.returncode

    def wait(self, timeout_s: float = math.inf) -> int:
        """The process's exit code, once it has ended. Raises subprocess.TimeoutExpired."""
        deadline = time.monotonic() + timeout_s
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(str(self.pid), timeout_s)
            time.sleep(POLL_S)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal; does nothing for a process that has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                os.kill(self.pid, number)


class ForkServer:
    """The process that forks others, and reports which have ended."""

    def __init__(self, code: Path | None = None) -> None:
        """`code`: the code of another version of Headrace than the installed one."""
        self._environment = {} if code is None else {"PYTHONPATH": str(code)}
        self._control, there = socket.socketpair()
        self._lock = threading.RLock()
        self._running: dict[int, Forked] = {}
        self._heard = b""
        command = [sys.executable, __file__, str(there.fileno())]
        with there:
            subprocess.Popen(
                command,
                pass_fds=[there.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env={**os.environ, **self._environment},
            )

    def start(self, command: list[str], output: Path) -> Forked:
        """Run a script with its arguments; what it prints is added to a file."""
        asked = {"command": command, "output": str(output), "environment": {**os.environ, **self._environment}}
        with self._lock:
            self._control.sendall(json.dumps(asked).encode() + b"\n")
            while (started := self._hear(wait=True)) is None:
                pass
            return started

    def hear(self) -> None:
        """Record which processes have ended."""
        with self._lock, contextlib.suppress(ServerEnded):
            self._hear(wait=False)

    def _hear(self, *, wait: bool) -> Forked | None:
        """Read messages; returns the started process, if that was one of them."""
        started = None
        while select.select([self._control], [], [], 60.0 if wait and started is None else 0.0)[0]:
            received = self._control.recv(1 << 16)
            if not received:
                fork_server.cache_clear()
                raise ServerEnded("the process that forks nodes has ended")
            *lines, self._heard = (self._heard + received).split(b"\n")
            for line in lines:
                pid, code = json.loads(line)
                if code is None:
                    started = self._running[pid] = Forked(self, pid)
                else:
                    self._running.pop(pid).returncode = code
        return started


@functools.cache
def fork_server(code: Path | None = None) -> ForkServer:
    """This process's fork server for a version of Headrace."""
    return ForkServer(code)


# --- in the process that forks


def serve(control: socket.socket) -> None:
    """Fork on request, until the other end is closed."""
    for name in IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    ended, ends = os.pipe()
    os.set_blocking(ends, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(ends, warn_on_full_buffer=False)
    heard = b""
    while True:
        ready, _, _ = select.select([control, ended], [], [])
        if ended in ready:
            os.read(ended, 4096)
            _tell_of_ended(control)
        if control in ready:
            received = control.recv(1 << 16)
            if not received:
                return
            *lines, heard = (heard + received).split(b"\n")
            for line in lines:
                pid = os.fork()
                if pid == 0:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    for fd in (control.detach(), ended, ends):
                        os.close(fd)
                    _run(**json.loads(line))
                control.sendall(json.dumps([pid, None]).encode() + b"\n")


def _tell_of_ended(control: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        control.sendall(json.dumps([pid, os.waitstatus_to_exitcode(status)]).encode() + b"\n")


def _run(command: list[str], output: str, environment: dict[str, Any]) -> NoReturn:
    os.setsid()
    gc.unfreeze()
    fd = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = command
    sys.path[0] = str(Path(command[0]).parent)
    runpy.run_path(command[0], run_name="__main__")
    sys.exit(0)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
