"""Starts and stops the embedded cluster of a folder: nodes as processes, each in its own session.

Nodes belong to no terminal: Ctrl-C reaches `headrace up`, which then stops them cleanly, and they survive if it is
detached or killed. Which nodes run is read from `cluster.json` and checked with the operating system each time, never
remembered. Every function blocks; callers call `Started.check` from time to time. A start that fails, or that
`stopping()` cancels, leaves no process behind.
"""

import contextlib
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from headrace.base.errors import FolderRefused, HeadraceError
from headrace.local import secure_folder
from headrace.local.folder import (
    ClusterFile,
    ClusterNotRunning,
    NodeProcess,
    expanded,
    node_folders,
    open_folder,
    read_cluster_file,
    start_lock,
    write_cluster_file,
)
from headrace.local.founding import ensure_nodes, opened_store, removed_nodes
from headrace.local.hints import quoted
from headrace.local.ports import Ports, PortTaken
from headrace.local.processes import end, is_alive, port_is_free
from headrace.local.starting import (
    ANY_ADDRESS,
    HOST,
    POLL_S,
    READY_TIMEOUT_S,
    Child,
    NodeDied,
    Progress,
    StartGivenUp,
    await_ready,
    log_path,
    spawn,
)

STOP_TIMEOUT_S = 30.0
ENDING_S = 1.0
"""Seconds that `check` waits for a process that is already a zombie, whose threads are still ending."""
PORT_TRIES = 5


class AlreadyRunning(HeadraceError):
    """The folder's cluster already runs, or an earlier start of it was interrupted."""


class Unprotected(HeadraceError):
    """The cluster would be open to others than this machine's users, without the user having asked for that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOptions:
    """How to start an embedded cluster."""

    nodes: int | None = None
    """Number of nodes. None: one for a new folder, the existing ones for a folder that has nodes."""
    port: int | None = None
    """Port of the first node; the others follow. None: the ports of the last start, otherwise from 9092 on; 0: free
    ports."""
    node_options: Sequence[str] = ()
    """Further arguments for `python -m headrace.node`."""
    secure: bool = False
    """Make the folder secure from now on (local/secure_folder.py)."""
    hosts: Sequence[str] = ()
    """Names and addresses by which clients elsewhere reach the nodes; clients receive the first. Empty: those of the
    last start of a secure folder, otherwise loopback."""
    allow_anonymous: bool = False
    """Let clients elsewhere connect without proving who they are."""
    ready_timeout_s: float = READY_TIMEOUT_S


class Started:
    """An embedded cluster that this process has started, and the state of its nodes since."""

    def __init__(self, folder: Path, cluster: ClusterFile, children: Sequence[Child]) -> None:
        self.folder = folder
        self.cluster = cluster
        """The cluster as it was started."""
        self.children: dict[str, subprocess.Popen[bytes]] = {child.name: child.process for child in children}
        self.log_offsets = {child.name: child.log_offset for child in children}
        self._children = tuple(children)
        self._ended: set[str] = set()
        self._deaths: list[NodeDied] = []

    def log_path(self, name: str) -> Path:
        """The path of the node's output."""
        return log_path(self.folder, name)

    def now(self) -> ClusterFile:
        """The folder's current nodes: others may have been added, restarted or removed."""
        return read_cluster_file(self.folder) or self.cluster

    def check(self) -> bool:
        """Whether any node runs; False once the last was stopped cleanly. Raises NodeDied if it was not."""
        for child in self._children:
            code = child.process.poll()
            if code is None and not is_alive(child.node):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    code = child.process.wait(ENDING_S)
            if code is not None and child.name not in self._ended:
                self._ended.add(child.name)
                if code != 0:
                    self._deaths.append(child.death(code))
        if len(self._ended) < len(self._children) or any(is_alive(node) for node in self.now().nodes):
            return True
        deaths = self.deaths()
        if deaths:
            raise deaths[-1]
        return False

    def deaths(self) -> list[NodeDied]:
        """The unexpected ends of nodes that `check` found since the last call."""
        found, self._deaths = self._deaths, []
        return found

    def stop(self, *, timeout_s: float = STOP_TIMEOUT_S) -> tuple[str, ...]:
        """Stop all nodes of the folder; returns the names of those that had to be killed."""
        try:
            nodes = self.now().nodes
        except FolderRefused:
            nodes = self.cluster.nodes
        killed = end_processes(nodes, timeout_s=timeout_s)
        for child in self._children:
            child.end()
        return killed


def running_cluster(folder: Path) -> ClusterFile | None:
    """The cluster that serves the folder now, with its running nodes; None if none runs."""
    cluster = read_cluster_file(expanded(folder))
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
    """Start all nodes of the folder's cluster, and return once each answers on its port.

    Raises Unprotected, AlreadyRunning, PortTaken, NodeDied, StartGivenUp (when `stopping()` turns true), OtherNodes,
    FolderRefused.
    """
    secure_folder.check_hosts(options.hosts)
    folder = open_folder(folder)
    open_to_all = secure_folder.secured(folder) is None and not options.secure
    if open_to_all and not options.allow_anonymous and _bind(folder, options) != HOST:
        raise Unprotected(
            f"anybody who reaches {options.hosts[0]} could do everything: add --secure, or --allow-anonymous"
        )
    with start_lock(folder):
        _refuse_running(folder)
        if options.secure or (options.hosts and secure_folder.secured(folder) is not None):
            if node_folders(folder):
                with opened_store(folder) as store:
                    secure_folder.check_level(store)
            secure_folder.make_secure(folder, options.hosts)
        for tries_left in reversed(range(PORT_TRIES)):
            try:
                return _start_once(folder, options, progress=progress, stopping=stopping)
            except NodeDied:
                # A process that took a port since it was chosen still has it; leftovers of our nodes release theirs in
                # a moment.
                cluster = read_cluster_file(folder)
                nodes = cluster.nodes if cluster else ()
                taken = [node.port for node in nodes if not port_is_free(_bind(folder, options), node.port)]
                if options.port or not taken or not tries_left:
                    raise
                progress(f"port {taken[0]} was taken in the meantime; trying another")
    raise AssertionError("the last try returns or raises")


def stop(folder: Path, *, timeout_s: float = STOP_TIMEOUT_S) -> tuple[ClusterFile, tuple[str, ...]]:
    """Stop the folder's cluster; returns the nodes that ran, and the names of those that had to be killed.

    Raises ClusterNotRunning.
    """
    cluster = running_cluster(folder)
    if cluster is None:
        raise ClusterNotRunning(f"no cluster runs in {folder}: nothing to stop")
    return cluster, end_processes(cluster.nodes, timeout_s=timeout_s)


def end_processes(nodes: Sequence[NodeProcess], *, timeout_s: float) -> tuple[str, ...]:
    """Send SIGTERM to all, and SIGKILL to those that still run after `timeout_s`; returns the names of the latter."""
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
        raise AlreadyRunning(
            f"a start of the cluster in {folder} was cut short: run `headrace down --data {quoted(folder)}`"
        )
    whole = read_cluster_file(folder) or cluster
    stopped = [node for node in whole.nodes if cluster.node(node.name) is None]
    again = (
        f"; {stopped[0].name} does not: `headrace node start {stopped[0].name} --data {quoted(folder)}`"
        if stopped
        else ""
    )
    raise AlreadyRunning(f"the cluster in {folder} already runs at {cluster.bootstrap}{again}")


def _start_once(folder: Path, options: StartOptions, *, progress: Progress, stopping: Callable[[], bool]) -> Started:
    """Try once to start all nodes. On any failure no process stays."""
    before = read_cluster_file(folder) or ClusterFile(host=HOST)
    secure, bind = secure_folder.secured(folder), _bind(folder, options)
    hosts = secure.hosts if secure is not None else options.hosts
    host = hosts[0] if hosts else HOST
    choice = Ports(bind)
    if before.nodes:
        names = ensure_nodes(folder, options.nodes)
        ports = choice.choose([_kept_port(before, name) for name in names], options.port)
    else:  # choose ports first: a refused port leaves nothing behind in a new folder
        ports = choice.choose([None] * (options.nodes or 1), options.port)
        names = ensure_nodes(folder, options.nodes)
        if len(names) > len(ports):  # cluster.json is missing, but the nodes exist
            ports = Ports(bind).choose([None] * len(names), options.port)
    for line in choice.notices:
        progress(line)
    removed = removed_nodes(folder)
    for name in removed:
        progress(
            f"{name} was removed from the cluster and is not started; its data stay in {folder / name}: delete that "
            "folder once nothing in it is missed"
        )
    for known in before.nodes:
        if known.name not in (*names, *removed):
            progress(f"{known.name} has no data in {folder} and is not started: `headrace node add` gives another node")
    more = tuple(options.node_options)
    if secure is not None:
        for line in secure_folder.ensure(folder, names, now=time.time()):
            progress(line)
    elif options.allow_anonymous:
        more = ("--allow-anonymous", *more)
    progress(f"starting {_listed(names, ports)}, data in {folder}")
    children: list[Child] = []
    cluster = ClusterFile(host=host, bind=bind, options=more)
    try:
        for name, port in zip(names, ports, strict=True):
            former = before.node(name)
            own = former.options if former is not None else ()
            children.append(
                spawn(
                    folder,
                    name,
                    port=port,
                    options=more,
                    own_options=own,
                    first_nodes=len(names),
                    host=host,
                    bind=bind,
                )
            )
        for child in children:
            cluster = cluster.with_node(child.node)
        write_cluster_file(folder, cluster)
        ready = await_ready(folder, children, progress=progress, stopping=stopping, timeout_s=options.ready_timeout_s)
        for node in ready.values():
            cluster = cluster.with_node(node)
        cluster = msgspec.structs.replace(cluster, state="ready")
        write_cluster_file(folder, cluster)
        if secure is not None:
            secure_folder.write_client_files(folder, cluster.bootstrap)
    except BaseException:
        for child in children:
            child.process.terminate()
        for child in children:
            child.end()
        raise
    return Started(folder, cluster, children)


def _bind(folder: Path, options: StartOptions) -> str:
    """The address that the nodes listen at: loopback, unless clients elsewhere receive other addresses."""
    secure = secure_folder.secured(folder)
    hosts = secure.hosts if secure is not None else options.hosts
    return HOST if all(each in ("localhost", HOST) for each in hosts) else ANY_ADDRESS


def _kept_port(before: ClusterFile, name: str) -> int | None:
    known = before.node(name)
    return None if known is None else known.port


def _listed(names: Sequence[str], ports: Sequence[int]) -> str:
    if len(names) == 1:
        return f"{names[0]} on port {ports[0]}"
    return f"{len(names)} nodes on ports {', '.join(map(str, ports))}"


__all__ = [
    "AlreadyRunning",
    "NodeDied",
    "PortTaken",
    "StartGivenUp",
    "StartOptions",
    "Started",
    "end_processes",
    "running_cluster",
    "start",
    "stop",
]
