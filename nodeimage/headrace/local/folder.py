"""The folder of an embedded cluster, and `cluster.json` in it, which says which processes serve it.

    DIR/cluster.json      this module's file: nodes, ports, processes
    DIR/cluster.sqlite    the cluster store
    DIR/node-1/           one node's data; the number is the node's id
    DIR/logs/node-1.log   what the node prints
    DIR/room              keeps room on the disk for a cluster store that is built anew (local/store_recovery.py)
    DIR/client.properties who the administrator is, for clients; of a secure cluster (local/secure_folder.py)
    DIR/security/         its authorities and passwords
    DIR/start.lock        held by flock while nodes are being started, added or removed

The file is written before a node is ready, so that a start that is killed halfway leaves nothing that `down` cannot
find. It outlives the processes: nodes and ports are kept for the next start. Knows nothing of how processes are
started.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import msgspec

from headrace.base.errors import FolderRefused, HeadraceError

FILE_VERSION = 1
DATA_VARIABLE = "HEADRACE_DATA"
ROOM_BYTES = 4 << 20
"""More than a store of a thousand containers takes, with SQLite's own files beside it."""


class ClusterNotRunning(HeadraceError):
    """No embedded cluster runs in the folder that was named."""


class NodeProcess(msgspec.Struct, frozen=True, kw_only=True):
    """One node of the embedded cluster. `pid` and `birth` together name one process."""

    name: str
    port: int
    pid: int
    """0: it was stopped on request."""
    created: float
    """Seconds since 1970. Names the process where `birth` is empty; moves with the clock."""
    birth: str = ""
    """Of the process, in the kernel's words (processes.py). Empty where it has none, and in a former version's file."""
    node_id: int | None = None
    """Unknown until the node is ready."""
    metrics_port: int | None = None
    """Where it serves its metrics, on loopback; None: nowhere, or it is not ready."""
    options: tuple[str, ...] = ()
    """Arguments of this node alone, for each of its starts."""


class ClusterFile(msgspec.Struct, frozen=True, kw_only=True):
    """What `cluster.json` holds."""

    version: int = FILE_VERSION
    state: Literal["starting", "ready"] = "starting"
    host: str = "127.0.0.1"
    """Of the addresses that clients are told."""
    bind: str = "127.0.0.1"
    """Where the nodes listen."""
    nodes: tuple[NodeProcess, ...] = ()
    options: tuple[str, ...] = ()
    """Arguments that all nodes were started with, for those that are started later."""

    @property
    def bootstrap(self) -> str:
        """The addresses of all nodes, as Kafka clients take them."""
        return ",".join(f"{self.host}:{node.port}" for node in self.nodes)

    def node(self, name: str) -> NodeProcess | None:
        """The node of that name."""
        return next((node for node in self.nodes if node.name == name), None)

    def with_node(self, node: NodeProcess) -> "ClusterFile":
        """The same with this node in place of the one of its name, or added."""
        others = [each for each in self.nodes if each.name != node.name]
        ordered = sorted([*others, node], key=lambda each: node_number(each.name))
        return msgspec.structs.replace(self, nodes=tuple(ordered))

    def without_node(self, name: str) -> "ClusterFile":
        """The same without the node of that name."""
        return msgspec.structs.replace(self, nodes=tuple(each for each in self.nodes if each.name != name))


_files = msgspec.json.Decoder(ClusterFile)
_fields = msgspec.json.Decoder(dict[str, object])


def node_name(number: int) -> str:
    """The name of a node's folder, log and process here, by the node's id."""
    return f"node-{number}"


def node_number(name: str) -> int:
    """The id in a node's name; -1 for another name."""
    prefix, _, number = name.partition("-")
    return int(number) if prefix == "node" and number.isdecimal() else -1


def node_folders(folder: Path) -> list[str]:
    """The names of the nodes whose data lie in the folder, by number."""
    names = [path.parent.name for path in folder.glob("node-*/node.json")]
    return sorted((name for name in names if node_number(name) > 0), key=node_number)


def default_folder() -> Path:
    """`$HEADRACE_DATA`, else `~/.headrace`. Raises FolderRefused where there is no home directory."""
    named = os.environ.get(DATA_VARIABLE)
    return Path(named) if named else expanded(Path("~")) / ".headrace"


def expanded(folder: Path) -> Path:
    """The folder with `~` as the home directory that it means. Raises FolderRefused where there is none: HOME is not
    set or empty, and the user is unknown to the system, as in many containers."""
    try:
        if folder.parts[:1] == ("~",) and not os.environ.get("HOME", "?"):
            raise RuntimeError("HOME is empty")
        return folder.expanduser()
    except RuntimeError as error:
        raise FolderRefused(
            f"there is no home directory for {folder}: set HOME or {DATA_VARIABLE}, or name a folder with --data"
        ) from error


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
        version = _fields.decode(written).get("version")
        if version != FILE_VERSION:
            raise FolderRefused(f"{path} has version {version}, this headrace knows {FILE_VERSION}: use a newer one")
        return _files.decode(written)
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
        folder = expanded(folder).resolve()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        (folder / "logs").mkdir(exist_ok=True)
    except (OSError, RuntimeError) as error:  # RuntimeError: links that lead round in a circle
        why = error.strerror if isinstance(error, OSError) else error
        raise FolderRefused(f"{folder} cannot be made: {why}: name another with --data") from error
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise FolderRefused(f"{folder} may not be written by this user: name another with --data")
    return folder


def client_properties_path(folder: Path) -> Path:
    """By what a secure cluster's clients know it and its administrator; there where the cluster is secure alone."""
    return folder / "client.properties"


def room_file(folder: Path) -> Path:
    """Holds nothing: it goes when a new cluster store is written, on a disk that may be full."""
    return folder / "room"


def keep_room(folder: Path) -> None:
    """Makes the room file where it is missing and there is room for it."""
    path = room_file(folder)
    if path.exists():
        return
    try:
        with path.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, ROOM_BYTES)
    except OSError:  # the next start makes it
        path.unlink(missing_ok=True)


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
