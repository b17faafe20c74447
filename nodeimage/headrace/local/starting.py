"""Starts node processes, all at the same time, and waits until each reports that it serves.

A node reports that in its ready file. If a node ends before that, or is not ready in time, the start fails with the
last lines of its log; the caller ends the others. Everything here blocks.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from headrace.base.errors import HeadraceError
from headrace.local import secure_folder
from headrace.local.folder import NodeProcess
from headrace.local.founding import STORE_FILE
from headrace.local.processes import birth_of, created_at
from headrace.local.tail import last_lines

HOST = "127.0.0.1"
PEER_TLS = "peer-tls"
"""Name of the folder with the certificates that nodes show each other; without it they speak in clear."""
PEER_SECRETS = "peer-secrets"
"""Name of the file with the secrets by which nodes authenticate each other, once they have changed (node.peer_secrets).
"""
ANY_ADDRESS = "0.0.0.0"  # used with `headrace up --host`
READY_TIMEOUT_S = 30.0
POLL_S = 0.02
SHOWN_LINES = 10
LOG_KEPT_BYTES = 8 << 20
"""Size above which a log is renamed to `.log.1` at the next start."""

Progress = Callable[[str], None]


class NodeDied(HeadraceError):
    """A node ended unexpectedly. `log` holds its last lines."""

    def __init__(self, message: str, *, name: str, log: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.name = name
        self.log = tuple(log)


class StartGivenUp(HeadraceError):
    """A stop was requested before the nodes were ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """A node's process that this process started."""

    node: NodeProcess
    process: "subprocess.Popen[bytes]"
    log_path: Path
    log_offset: int
    """Offset in the log at which this start's lines begin."""

    @property
    def name(self) -> str:
        """The node's name."""
        return self.node.name

    def death(self, code: int) -> NodeDied:
        """The error for a node that ended with `code`."""
        log = last_lines(self.log_path, count=SHOWN_LINES, offset=self.log_offset)
        if code == 2 and log:  # a node explains its refusal in its last line
            return NodeDied(f"{self.name} refused to start: {log[-1].removeprefix('headrace: ')}", name=self.name)
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        last = f": {log[-1]}" if log and code > 0 else ""
        return NodeDied(f"{self.name} {how}{last}: its log is {self.log_path}", name=self.name, log=log)

    def end(self) -> None:
        """Send SIGTERM, then SIGKILL, and wait for the end."""
        self.process.terminate()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Ready(msgspec.Struct, frozen=True):
    """The contents of a node's ready file."""

    id: int
    metrics_port: int | None = None


_ready_files = msgspec.json.Decoder(Ready)


def log_path(folder: Path, name: str) -> Path:
    """The path of a node's output."""
    return folder / "logs" / f"{name}.log"


def ready_path(folder: Path, name: str) -> Path:
    """The file in which a node reports that it serves."""
    return folder / f"{name}.ready"


def spawn(
    folder: Path,
    name: str,
    *,
    port: int,
    options: Sequence[str],
    own_options: Sequence[str],
    first_nodes: int | None = None,
    host: str = HOST,
    bind: str = HOST,
) -> Child:
    """Start a node's process in its own session; it is not ready yet."""
    ready_path(folder, name).unlink(missing_ok=True)
    path = log_path(folder, name)
    offset = _open_log(path)
    command = [sys.executable, "-m", "headrace.node", "--data", str(folder / name)]
    command += ["--store", str(folder / STORE_FILE), "--host", host, "--port", str(port), "--peer-port", "0"]
    if bind != host:
        command += ["--bind", bind, "--peer-host", HOST]
    command += ["--failure-host", name]  # each process fails on its own
    command += ["--peer-secrets", str(folder / PEER_SECRETS)]
    if (folder / PEER_TLS).is_dir():
        command += ["--peer-tls", str(folder / PEER_TLS)]
    if first_nodes is not None:
        command += ["--first-nodes", str(first_nodes)]
    command += secure_folder.node_options(folder, name)
    command += ["--ready-file", str(ready_path(folder, name)), "--metrics-port", "0", *options, *own_options]
    with path.open("ab") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
    node = NodeProcess(
        name=name,
        port=port,
        pid=process.pid,
        created=created_at(process.pid) or time.time(),
        birth=birth_of(process.pid),
        options=tuple(own_options),
    )
    return Child(node=node, process=process, log_path=path, log_offset=offset)


def await_ready(
    folder: Path,
    children: Sequence[Child],
    *,
    progress: Progress,
    stopping: Callable[[], bool] = lambda: False,
    timeout_s: float = READY_TIMEOUT_S,
) -> Mapping[str, NodeProcess]:
    """Wait until all report that they serve; returns each by name, with its report. Raises NodeDied, StartGivenUp."""
    began = time.monotonic()
    ready: dict[str, NodeProcess] = {}
    while True:
        for child in children:
            if child.name not in ready and (found := _ready(folder, child)) is not None:
                reported = {"node_id": found.id, "metrics_port": found.metrics_port}
                ready[child.name] = msgspec.structs.replace(child.node, **reported)
                if len(children) > 1:
                    progress(f"{child.name} is ready ({time.monotonic() - began:.1f} s)")
        if len(ready) == len(children):
            return ready
        if stopping():
            raise StartGivenUp("stopped before the cluster was ready")
        if time.monotonic() - began >= timeout_s:
            raise _late(children, ready, timeout_s)
        time.sleep(POLL_S)


def _ready(folder: Path, child: Child) -> Ready | None:
    """A node's report if it serves; None if it does not yet. Raises NodeDied."""
    code = child.process.poll()
    if code is not None:
        raise child.death(code)
    try:
        return _ready_files.decode(ready_path(folder, child.name).read_bytes())
    except (FileNotFoundError, msgspec.DecodeError):
        return None  # the file is missing or incomplete so far


def _late(children: Sequence[Child], ready: Mapping[str, NodeProcess], timeout_s: float) -> NodeDied:
    late = [child for child in children if child.name not in ready]
    first = late[0]
    names = ", ".join(child.name for child in late)
    were = "was" if len(late) == 1 else "were"
    return NodeDied(
        f"{names} {were} not ready after {timeout_s:.0f} s and {were} stopped: the log is {first.log_path}",
        name=first.name,
        log=last_lines(first.log_path, count=SHOWN_LINES, offset=first.log_offset),
    )


def _open_log(path: Path) -> int:
    """Rename a long log, and return the present log's length, at which this start's lines begin."""
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        return 0
    if size <= LOG_KEPT_BYTES:
        return size
    path.replace(path.with_suffix(".log.1"))
    return 0
