"""Starts and stops the nodes of an embedded cluster, each `python -m headrace.node` in a session of its own.

Nodes belong to nobody's terminal: Ctrl-C reaches `headrace up`, which then ends them in order, and they outlive it
when it is detached or killed. What runs is known from `cluster.json` and asked of the operating system each time,
never remembered. Every function blocks; `Started.check` is the one to call now and then. A start that fails, or that
`stopping()` gives up, leaves no process behind.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from headrace.errors import HeadraceError
from headrace.local.folder import (
    ClusterFile,
    ClusterNotRunning,
    NodeProcess,
    open_folder,
    read_cluster_file,
    start_lock,
    write_cluster_file,
)
from headrace.local.processes import created_at, end, free_port, is_alive, port_holder, port_is_free
from headrace.local.tail import last_lines

HOST = "127.0.0.1"
DEFAULT_PORT = 9092
NODE_NAME = "node-1"
READY_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 30.0
POLL_S = 0.02
PORT_WAIT_S = 2.0
LOG_KEPT_BYTES = 8 << 20
"""A longer log is set aside as `.log.1` at the next start."""
PORT_TRIES = 5

Progress = Callable[[str], None]


class AlreadyRunning(HeadraceError):
    """The folder's cluster runs already, or a start of it was cut short."""


class PortTaken(HeadraceError):
    """Another process listens on the port that was asked for."""


class NodeDied(HeadraceError):
    """A node ended without having been asked to. `log` holds its last lines."""

    def __init__(self, message: str, *, log: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.log = tuple(log)


class StartGivenUp(HeadraceError):
    """A stop was asked for before the nodes were ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOptions:
    """How to start an embedded cluster."""

    port: int | None = None
    """None: the port of the last start, else 9092, else a free one."""
    node_options: Sequence[str] = ()
    """More arguments for `python -m headrace.node`."""
    ready_timeout_s: float = READY_TIMEOUT_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """An embedded cluster whose processes are children of this process."""

    folder: Path
    cluster: ClusterFile
    children: dict[str, subprocess.Popen[bytes]] = field(repr=False)
    log_offsets: dict[str, int] = field(repr=False)

    def log_path(self, name: str) -> Path:
        """Where the node's output goes."""
        return _log_path(self.folder, name)

    def check(self) -> bool:
        """True while all nodes run; False once all were stopped cleanly. Raises NodeDied for one that was not."""
        codes = {name: child.poll() for name, child in self.children.items()}
        for name, code in codes.items():
            if code is not None and code != 0:
                raise _death(self.folder, name, code=code, offset=self.log_offsets[name])
        return any(code is None for code in codes.values())

    def stop(self, *, timeout_s: float = STOP_TIMEOUT_S) -> tuple[str, ...]:
        """Stops all nodes; the names of those that had to be killed."""
        killed = end_processes(self.cluster.nodes, timeout_s=timeout_s)
        for child in self.children.values():
            child.wait()
        return killed


def running_cluster(folder: Path) -> ClusterFile | None:
    """The cluster that serves the folder now: its nodes that are alive; None where none is."""
    cluster = read_cluster_file(folder.expanduser())
    if cluster is None:
        return None
    alive = tuple(node for node in cluster.nodes if is_alive(node))
    return msgspec.structs.replace(cluster, nodes=alive) if alive else None


def start(
    folder: Path,
    options: StartOptions,
    *,
    progress: Progress,
    stopping: Callable[[], bool] = lambda: False,
) -> Started:
    """Starts the folder's cluster and returns once it answers on its port.

    Raises AlreadyRunning, PortTaken, NodeDied, StartGivenUp (when `stopping()` turns true), FolderRefused.
    """
    folder = open_folder(folder)
    with start_lock(folder):
        _refuse_running(folder)
        for tries_left in reversed(range(PORT_TRIES)):
            port = _choose_port(folder, options.port, progress)
            try:
                return _start_on(folder, port, options, progress=progress, stopping=stopping)
            except NodeDied:
                lost_the_port = options.port is None and not port_is_free(HOST, port)
                if not lost_the_port or not tries_left:
                    raise
                progress(f"port {port} was taken in the meantime; trying another")
    raise AssertionError("the last try returns or raises")


def stop(folder: Path, *, timeout_s: float = STOP_TIMEOUT_S) -> tuple[ClusterFile, tuple[str, ...]]:
    """Stops the folder's cluster: the nodes that ran, and the names of those that had to be killed.

    Raises ClusterNotRunning.
    """
    cluster = running_cluster(folder)
    if cluster is None:
        raise ClusterNotRunning(f"no cluster runs in {folder}: nothing to stop")
    return cluster, end_processes(cluster.nodes, timeout_s=timeout_s)


def end_processes(nodes: Sequence[NodeProcess], *, timeout_s: float) -> tuple[str, ...]:
    """SIGTERM to all, SIGKILL to those that still run after `timeout_s`; gives the names of the latter."""
    for node in nodes:
        end(node, signal.SIGTERM)
    late = _await_end(nodes, timeout_s=timeout_s)
    for node in late:
        end(node, signal.SIGKILL)
    _await_end(late, timeout_s=timeout_s)
    return tuple(node.name for node in late)


def _await_end(nodes: Sequence[NodeProcess], *, timeout_s: float) -> list[NodeProcess]:
    deadline = time.monotonic() + timeout_s
    left = list(nodes)
    while left := [node for node in left if is_alive(node)]:
        if time.monotonic() >= deadline:
            break
        time.sleep(POLL_S)
    return left


def _refuse_running(folder: Path) -> None:
    cluster = running_cluster(folder)
    if cluster is None:
        return
    if cluster.state == "starting":
        raise AlreadyRunning(f"a start of the cluster in {folder} was cut short: run `headrace down --data {folder}`")
    raise AlreadyRunning(f"the cluster in {folder} already runs at {cluster.bootstrap}")


def _choose_port(folder: Path, asked: int | None, progress: Progress) -> int:
    if asked is not None:
        if not _soon_free(asked):
            holder = port_holder(asked)
            by = f" by {holder}" if holder else ""
            raise PortTaken(f"port {asked} is taken{by}: leave --port away, or name another")
        return asked
    before = read_cluster_file(folder)
    wanted = before.nodes[0].port if before and before.nodes else DEFAULT_PORT
    if _soon_free(wanted) if before else port_is_free(HOST, wanted):
        return wanted
    port = free_port(HOST)
    progress(f"port {wanted} is taken by {port_holder(wanted) or 'another process'}; using {port}")
    return port


def _soon_free(port: int) -> bool:
    """Whether the port is free within a moment: what is left of a killed node may hold it a little longer."""
    until = time.monotonic() + PORT_WAIT_S
    while not port_is_free(HOST, port):
        if time.monotonic() >= until:
            return False
        time.sleep(POLL_S)
    return True


def _start_on(
    folder: Path, port: int, options: StartOptions, *, progress: Progress, stopping: Callable[[], bool]
) -> Started:
    """One try on one port. Whatever goes wrong, no process stays."""
    ready_file = folder / f"{NODE_NAME}.ready"
    ready_file.unlink(missing_ok=True)
    log_path = _log_path(folder, NODE_NAME)
    log_offset = _open_log(log_path)
    child = _spawn(folder, port, log_path=log_path, ready_file=ready_file, node_options=options.node_options)
    try:
        node = NodeProcess(name=NODE_NAME, port=port, pid=child.pid, created=created_at(child.pid) or time.time())
        write_cluster_file(folder, ClusterFile(host=HOST, nodes=(node,)))
        progress(f"starting {NODE_NAME} on port {port}, data in {folder}")
        node_id = _await_ready(
            folder,
            child,
            ready_file=ready_file,
            offset=log_offset,
            timeout_s=options.ready_timeout_s,
            stopping=stopping,
        )
        cluster = ClusterFile(state="ready", host=HOST, nodes=(msgspec.structs.replace(node, node_id=node_id),))
        write_cluster_file(folder, cluster)
    except BaseException:
        _end_child(child)
        raise
    return Started(folder=folder, cluster=cluster, children={NODE_NAME: child}, log_offsets={NODE_NAME: log_offset})


def _log_path(folder: Path, name: str) -> Path:
    return folder / "logs" / f"{name}.log"


def _open_log(path: Path) -> int:
    """Sets a long log aside; the length of what is there, where this start's lines begin."""
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        return 0
    if size <= LOG_KEPT_BYTES:
        return size
    path.replace(path.with_suffix(".log.1"))
    return 0


def _spawn(
    folder: Path, port: int, *, log_path: Path, ready_file: Path, node_options: Sequence[str]
) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "headrace.node", "--data", str(folder / NODE_NAME)]
    command += ["--store", str(folder / "cluster.sqlite")]
    command += ["--host", HOST, "--port", str(port), "--ready-file", str(ready_file), *node_options]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with log_path.open("ab") as log:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env=environment
        )


class _ReadyFile(msgspec.Struct, frozen=True):
    id: int


def _await_ready(
    folder: Path,
    child: subprocess.Popen[bytes],
    *,
    ready_file: Path,
    offset: int,
    timeout_s: float,
    stopping: Callable[[], bool],
) -> int:
    """Waits until the node says that it serves; its id."""
    deadline = time.monotonic() + timeout_s
    while True:
        code = child.poll()
        if code is not None:
            raise _death(folder, NODE_NAME, code=code, offset=offset)
        try:
            return msgspec.json.decode(ready_file.read_bytes(), type=_ReadyFile).id
        except (FileNotFoundError, msgspec.DecodeError):
            pass  # not there yet, or not whole yet
        if stopping():
            raise StartGivenUp("stopped before the cluster was ready")
        if time.monotonic() >= deadline:
            path = _log_path(folder, NODE_NAME)
            raise NodeDied(
                f"{NODE_NAME} was not ready after {timeout_s:.0f} s and was stopped: its log is {path}",
                log=last_lines(path, count=10, offset=offset),
            )
        time.sleep(POLL_S)


def _death(folder: Path, name: str, *, code: int, offset: int) -> NodeDied:
    path = _log_path(folder, name)
    log = last_lines(path, count=10, offset=offset)
    if code == 2 and log:  # the node's own word for a refusal is its last line
        return NodeDied(f"{name} refused to start: {log[-1].removeprefix('headrace: ')}")
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    return NodeDied(f"{name} {how}: its log is {path}", log=log)


def _end_child(child: subprocess.Popen[bytes]) -> None:
    child.terminate()
    try:
        child.wait(timeout=10)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
