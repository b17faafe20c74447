"""The folder of an embedded cluster, and `cluster.json` in it, which says which processes serve it.

    DIR/cluster.json      this module's file: nodes, ports, processes
    DIR/cluster.sqlite    the cluster store
    DIR/node-1/           one node's data
    DIR/logs/node-1.log   what the node prints
    DIR/start.lock        held by flock while nodes are being started or stopped

The file is written before a node is ready, so that a start that is killed halfway leaves nothing that `down` cannot
find. It outlives the processes: ports are kept for the next start. Knows nothing of how processes are started.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import msgspec

from headrace.errors import FolderRefused, HeadraceError

FILE_VERSION = 1
DATA_VARIABLE = "HEADRACE_DATA"


class ClusterNotRunning(HeadraceError):
    """No embedded cluster runs in the folder that was named."""


class NodeProcess(msgspec.Struct, frozen=True, kw_only=True):
    """One node of the embedded cluster. `pid` and `created` (seconds since 1970) together name one process."""

    name: str
    port: int
    pid: int
    created: float
    node_id: int | None = None
    """Unknown until the node is ready."""


class ClusterFile(msgspec.Struct, frozen=True, kw_only=True):
    """What `cluster.json` holds."""

    version: int = FILE_VERSION
    state: Literal["starting", "ready"] = "starting"
    host: str = "127.0.0.1"
    nodes: tuple[NodeProcess, ...] = ()

    @property
    def bootstrap(self) -> str:
        """The addresses of all nodes, as Kafka clients take them."""
        return ",".join(f"{self.host}:{node.port}" for node in self.nodes)


def default_folder() -> Path:
    """`$HEADRACE_DATA`, else `~/.headrace`."""
    named = os.environ.get(DATA_VARIABLE)
    return Path(named) if named else Path.home() / ".headrace"


def read_cluster_file(folder: Path) -> ClusterFile | None:
    """The folder's `cluster.json`, or None where there is none. Raises FolderRefused when it cannot be understood."""
    path = folder / "cluster.json"
    try:
        written = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise FolderRefused(f"{path} cannot be read: {error.strerror}") from error
    try:
        version = msgspec.json.decode(written, type=dict[str, object]).get("version")
        if version != FILE_VERSION:
            raise FolderRefused(f"{path} has version {version}, this headrace knows {FILE_VERSION}: use a newer one")
        return msgspec.json.decode(written, type=ClusterFile)
    except msgspec.DecodeError as error:
        raise FolderRefused(
            f"{path} is damaged ({error}): delete it once no node of this folder runs; the data stay"
        ) from error


def write_cluster_file(folder: Path, cluster: ClusterFile) -> None:
    """Replaces `cluster.json` in one step: a reader sees the old file or the new one, also after a crash."""
    path = folder / "cluster.json"
    draft = path.with_suffix(f".{os.getpid()}.new")
    try:
        with draft.open("wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(cluster), indent=2))
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise FolderRefused(f"{path} cannot be written: {error.strerror}") from error


def open_folder(folder: Path) -> Path:
    """Makes the folder (only the owner may enter) and gives its full path. Raises FolderRefused with the reason."""
    try:
        folder = folder.expanduser().resolve()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        (folder / "logs").mkdir(exist_ok=True)
    except OSError as error:
        raise FolderRefused(f"{folder} cannot be made: {error.strerror}: name another with --data") from error
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise FolderRefused(f"{folder} may not be written by this user: name another with --data")
    return folder


@contextmanager
def start_lock(folder: Path) -> Iterator[None]:
    """Holds the folder against another start or stop. Raises FolderRefused when one is under way."""
    try:
        file = (folder / "start.lock").open("wb")
    except OSError as error:
        raise FolderRefused(f"{folder / 'start.lock'} cannot be written: {error.strerror}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise FolderRefused(f"another headrace is starting or stopping the cluster in {folder}") from error
        yield
