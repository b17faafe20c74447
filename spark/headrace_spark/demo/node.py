"""The embedded node as a user has it: by the command `headrace`.

Responsible for the commands' words and for a free port; what it does is shown before it is done.
"""

import json
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

HOST: Final = "127.0.0.1"
PORTS: Final = range(20_000, 32_000)
"""Below the range from which outgoing connections take theirs, so that the port is free again after a restart."""
COMMAND_TIMEOUT_S: Final = 150.0
CLEAN_UP_S: Final = 40.0


class CommandFailed(Exception):
    """A `headrace` command failed; the message is its own."""


@dataclass(slots=True)
class Node:
    """The node whose data lie in `data`. `pid` is 0 while it is down."""

    data: Path
    show: Callable[[str], None]
    port: int = field(default_factory=lambda: free_port())
    pid: int = 0

    @property
    def bootstrap(self) -> str:
        """Its address."""
        return f"{HOST}:{self.port}"

    def up(self) -> None:
        """Start it. Raises CommandFailed."""
        said = self.run("up", "--detach", "--port", str(self.port), "--output", "json")
        self.pid = json.loads(said)["nodes"][0]["pid"]

    def down(self) -> None:
        """Stop it politely. Raises CommandFailed."""
        self.run("down")
        self.pid = 0

    def stop_all(self) -> int | None:
        """Stop whatever node runs in the folder; the id of a process that is left all the same."""
        pid = self.pid
        try:
            self.run("down", shown=bool(pid))
        except CommandFailed:
            pass  # none runs
        self.pid = 0
        return pid if pid and _runs(pid) else None

    def kill(self) -> None:
        """kill -9."""
        self.show(f"kill -9 {self.pid}")
        process = psutil.Process(self.pid)
        os.kill(self.pid, signal.SIGKILL)
        process.wait(30)
        self.pid = 0

    def ask(self, *words: str) -> Any:
        """What a command says as JSON. Raises CommandFailed."""
        return json.loads(self.run(*words, "--output", "json", shown=False))

    def run(self, *words: str, shown: bool = True) -> str:
        """Run `headrace WORDS --data DIR`; its stdout. Raises CommandFailed."""
        command = [*words, "--data", str(self.data)]
        if shown:
            self.show("headrace " + " ".join(_short(command)))
        return run_command(command)


def run_command(command: Sequence[str]) -> str:
    """Run `headrace COMMAND`; its stdout. Raises CommandFailed. An interrupted one cleans up after itself first."""
    process = subprocess.Popen(
        [sys.executable, "-m", "headrace.cli.main", *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        said, noted = process.communicate(timeout=COMMAND_TIMEOUT_S)
    except BaseException as error:
        process.send_signal(signal.SIGINT)
        try:
            process.communicate(timeout=CLEAN_UP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            raise CommandFailed(f"headrace {command[0]}: no end after {COMMAND_TIMEOUT_S:.0f} s") from None
        raise
    if process.returncode != 0:
        raise CommandFailed(noted.strip().splitlines()[-1] if noted.strip() else f"exit code {process.returncode}")
    return said


def free_port() -> int:
    """A port of this machine that is free now. Raises OSError."""
    for port in random.sample(PORTS, 100):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port
    raise OSError(f"no free port of {HOST} found between {PORTS.start} and {PORTS.stop}")


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _short(command: Sequence[str]) -> list[str]:
    """The command as a user would type it: paths below this folder are relative, and no --output."""
    here = f"{Path.cwd()}/"
    return [word.removeprefix(here) for word in command if word not in ("--output", "json")]
