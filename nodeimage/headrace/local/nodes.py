"""Single nodes of a running embedded cluster: adding one, restarting a stopped one, stopping and dropping one.

The cluster itself decides about draining and forgetting nodes, and is called over its port; this module handles only
processes, folders and `cluster.json`. Everything here blocks.
"""

import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from headrace.base.errors import HeadraceError
from headrace.local import secure_folder
from headrace.local.cluster import STOP_TIMEOUT_S, end_processes, running_cluster
from headrace.local.folder import (
    ClusterFile,
    ClusterNotRunning,
    NodeProcess,
    expanded,
    node_folders,
    node_name,
    open_folder,
    read_cluster_file,
    start_lock,
    write_cluster_file,
)
from headrace.local.founding import MAX_NODES, forget_if_new, new_node
from headrace.local.ports import Ports
from headrace.local.processes import is_alive
from headrace.local.starting import HOST, Progress, await_ready, ready_path, spawn


class NodeRefused(HeadraceError):
    """The folder has no such node, or the node is in the wrong state."""


def add_node(folder: Path, *, port: int | None, options: Sequence[str], progress: Progress) -> NodeProcess:
    """Start one more node, and return when it answers. If it never does, nothing of it is left behind.

    Raises ClusterNotRunning, PortTaken, NodeDied, FolderRefused.
    """
    folder = _opened(folder)
    with start_lock(folder):
        cluster = _running(folder)
        if len(cluster.nodes) >= MAX_NODES:
            raise NodeRefused(f"there are {len(cluster.nodes)} nodes, as many as one machine should have")
        choice = Ports(cluster.bind)
        highest = max(node.port for node in cluster.nodes)
        chosen = choice.next_to(highest) if port is None else choice.choose([None], port)[0]
        node = new_node(folder)
        progress(f"starting {node.name} on port {chosen}")
        try:
            return _start(folder, cluster, node.name, port=chosen, own_options=tuple(options), progress=progress)
        except BaseException:
            if forget_if_new(folder, node):
                write_cluster_file(folder, (read_cluster_file(folder) or cluster).without_node(node.name))
            raise


def start_node(folder: Path, asked: str, *, progress: Progress) -> NodeProcess:
    """Start a node of the folder that does not run, on its former port, and return when it answers.

    Raises ClusterNotRunning, NodeRefused, PortTaken, NodeDied, FolderRefused.
    """
    folder = _opened(folder)
    with start_lock(folder):
        cluster = _running(folder)
        name = known_name(folder, asked)
        known = cluster.node(name)
        if known is not None and is_alive(known):
            raise NodeRefused(f"{name} runs already, on port {known.port}")
        choice = Ports(cluster.bind)
        highest = max(node.port for node in cluster.nodes)
        port = choice.next_to(highest) if known is None else choice.choose([known.port], None)[0]
        for line in choice.notices:
            progress(line)
        progress(f"starting {name} on port {port}")
        own = known.options if known is not None else ()
        return _start(folder, cluster, name, port=port, own_options=own, progress=progress)


def stop_node(folder: Path, asked: str, *, timeout_s: float = STOP_TIMEOUT_S) -> tuple[str, bool]:
    """Stop one node; returns its name, and whether it had to be killed. Raises NodeRefused, FolderRefused."""
    folder = _opened(folder)
    with start_lock(folder):
        cluster = read_cluster_file(folder) or ClusterFile(host=HOST)
        name = known_name(folder, asked)
        node = cluster.node(name)
        if node is None or not is_alive(node):
            raise NodeRefused(f"{name} does not run")
        # Write the file first, so that `headrace up` in the foreground knows that the stop was requested.
        write_cluster_file(folder, cluster.with_node(msgspec.structs.replace(node, pid=0)))
        try:
            return name, bool(end_processes([node], timeout_s=timeout_s))
        finally:
            if is_alive(node):
                write_cluster_file(folder, cluster)


def drop_node(folder: Path, asked: str, *, erase: bool) -> None:
    """Remove a node that does not run from `cluster.json`; with `erase`, delete its data too. Raises FolderRefused."""
    folder = _opened(folder)
    with start_lock(folder):
        name = known_name(folder, asked)
        cluster = read_cluster_file(folder)
        if cluster is not None:
            write_cluster_file(folder, cluster.without_node(name))
        ready_path(folder, name).unlink(missing_ok=True)
        if erase:
            shutil.rmtree(folder / name, ignore_errors=True)
        else:
            (folder / name / "node.json").rename(folder / name / "node.json.removed")


def known_name(folder: Path, asked: str) -> str:
    """The name of the node that `3` or `node-3` means. Raises NodeRefused if the folder has no such node."""
    name = node_name(int(asked)) if asked.isdecimal() else asked
    present = node_folders(folder)
    if name not in present:
        has = ", ".join(present) or "none"
        raise NodeRefused(f"{folder} has no {name}; it has {has}")
    return name


def _opened(folder: Path) -> Path:
    """The full path of a cluster's folder; creates nothing in other folders. Raises ClusterNotRunning,
    FolderRefused."""
    path = expanded(folder)
    if read_cluster_file(path) is None and not node_folders(path):
        raise ClusterNotRunning(f"no cluster runs in {path}: start it with `headrace up`, or name one with --data")
    return open_folder(path)


def _running(folder: Path) -> ClusterFile:
    """All nodes of the folder, at least one of which runs. Raises ClusterNotRunning."""
    if running_cluster(folder) is None:
        raise ClusterNotRunning(f"no cluster runs in {folder}: start it with `headrace up`, or name one with --data")
    cluster = read_cluster_file(folder)
    assert cluster is not None
    return cluster


def _start(
    folder: Path,
    cluster: ClusterFile,
    name: str,
    *,
    port: int,
    own_options: Sequence[str],
    progress: Progress,
) -> NodeProcess:
    secure = secure_folder.secured(folder) is not None
    if secure:
        secure_folder.ensure(folder, node_folders(folder), now=time.time())
    child = spawn(
        folder,
        name,
        port=port,
        options=cluster.options,
        own_options=own_options,
        host=cluster.host,
        bind=cluster.bind,
    )
    try:
        write_cluster_file(folder, cluster.with_node(child.node))
        node = await_ready(folder, [child], progress=progress)[name]
        whole = cluster.with_node(node)
        write_cluster_file(folder, whole)
        if secure:
            secure_folder.write_client_files(folder, whole.bootstrap)
    except BaseException:
        child.end()
        raise
    return node
