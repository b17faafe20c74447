"""The folder of an embedded cluster, and `cluster.json` in it, which says which processes serve it.

    DIR/cluster.json      this module's file: nodes, ports, processes
    DIR/cluster.sqlite    the cluster store
    DIR/node-1/           one node's data; the number is the node's id
    DIR/logs/node-1.log   what the node prints
    DIR/room              reserves disk space for rebuilding the cluster store (local/store_recovery.py)
    DIR/client.properties the administrator's login, for clients of a secure cluster (local/secure_folder.py)
    DIR/security/         its authorities and passwords
    DIR/start.lock        held by flock while nodes are being started, added or removed

`cluster.json` is written before a node is ready, so that an interrupted start leaves nothing that `down` cannot find.
It outlives the processes: nodes and ports are kept for the next start. This module knows nothing of how processes are
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
"""Size of the room file: more than the store of a thousand containers takes, with SQLite's own files."""


class ClusterNotRunning(HeadraceError):
    """No embedded cluster runs in the given folder."""


class NodeProcess(msgspec.Struct, frozen=True, kw_only=True):
    """One node of the embedded cluster. `pid` and `birth` together name one process."""

    name: str
    port: int
    pid: int
    """The process id; 0: the node was stopped on request."""
    created: float
    """Creation time in seconds since 1970. Identifies the process if `birth` is empty; shifts when the clock is set."""
    birth: str = ""
    """Identifies the process's birth by the kernel's data (processes.py). Empty if the system has none, and in files of
    former versions."""
    node_id: int | None = None
    """The node's id; None until the node is ready."""
    metrics_port: int | None = None
    """The port of its metrics, on loopback; None: not served, or not ready."""
    options: tuple[str, ...] = ()
    """Arguments for this node only, at each of its starts."""


class ClusterFile(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of `cluster.json`."""

    version: int = FILE_VERSION
    state: Literal["starting", "ready"] = "starting"
    host: str = "127.0.0.1"
    """The host in the addresses that clients receive."""
    bind: str = "127.0.0.1"
    """The address that the nodes listen at."""
    nodes: tuple[NodeProcess, ...] = ()
    options: tuple[str, ...] = ()
    """Arguments that all nodes were started with; nodes that are started later get them too."""

    @property
    def bootstrap(self) -> str:
        """The addresses of all nodes, as Kafka clients take them."""
        return ",".join(f"{self.host}:{node.port}" for node in self.nodes)

    def node(self, name: str) -> NodeProcess | None:
        """The node of that name; None: there is none."""
        return next((node for node in self.nodes if node.name == name), None)

    def with_node(self, node: NodeProcess) -> "ClusterFile":
        """A copy with this node added, or in place of the one with its name."""
        others = [each for each in self.nodes if each.name != node.name]
        ordered = sorted([*others, node], key=lambda each: node_number(each.name))
        return msgspec.structs.replace(self, nodes=tuple(ordered))

    def without_node(self, name: str) -> "ClusterFile":
        """A copy without the node of that name."""
        return msgspec.structs.replace(self, nodes=tuple(each for each in self.nodes if each.name != name))


_files = msgspec.json.Decoder(ClusterFile)
_fields = msgspec.json.Decoder(dict[str, object])


def node_name(number: int) -> str:
    """The name of a node's folder, log and process, from the node's id."""
    return f"node-{number}"


def node_number(name: str) -> int:
    """The id in a node's name; -1 for another name."""
    prefix, _, number = name.partition("-")
    return int(number) if prefix == "node" and number.isdecimal() else -1


def node_folders(folder: Path) -> list[str]:
    """The names of the nodes whose data lie in the folder, ordered by number."""
    names = [path.parent.name for path in folder.glob("node-*/node.json")]
    return sorted((name for name in names if node_number(name) > 0), key=node_number)


def default_folder() -> Path:
    """`$HEADRACE_DATA`, otherwise `~/.headrace`. Raises FolderRefused if there is no home directory."""
    named = os.environ.get(DATA_VARIABLE)
    return Path(named) if named else expanded(Path("~")) / ".headrace"


def expanded(folder: Path) -> Path:
    """The folder with `~` replaced by the home directory. Raises FolderRefused if there is none: HOME is unset or
    empty, and the system does not know the user, as in many containers."""
    try:
        if folder.parts[:1] == ("~",) and not os.environ.get("HOME", "?"):
            raise RuntimeError("HOME is empty")
        return folder.expanduser()
    except RuntimeError as error:
        raise FolderRefused(
            f"there is no home directory for {folder}: set HOME or {DATA_VARIABLE}, or name a folder with --data"
        ) from error


def read_cluster_file(folder: Path) -> ClusterFile | None:
    """The folder's `cluster.json`; None if there is none. Raises FolderRefused if it cannot be read or understood."""
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
            raise FolderRefused(f"{path} has version {version}, this headrace supports {FILE_VERSION}: use a newer one")
        return _files.decode(written)
    except msgspec.DecodeError as error:
        raise FolderRefused(
            f"{path} is damaged ({error}): delete it once no node of this folder runs; the data stay"
        ) from error


def write_cluster_file(folder: Path, cluster: ClusterFile) -> None:
    """Replace `cluster.json` in one step: a reader sees the old file or the new one, even after a crash."""
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
    """Create the folder (only its owner may enter), and return its full path. Raises FolderRefused with the reason."""
    try:
        folder = expanded(folder).resolve()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        (folder / "logs").mkdir(exist_ok=True)
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of symbolic links
        why = error.strerror if isinstance(error, OSError) else error
        raise FolderRefused(f"{folder} cannot be made: {why}: name another with --data") from error
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise FolderRefused(f"{folder} may not be written by this user: name another with --data")
    return folder


def client_properties_path(folder: Path) -> Path:
    """The file with a secure cluster's addresses and administrator, for clients; exists only if the cluster is
    secure."""
    return folder / "client.properties"


def room_file(folder: Path) -> Path:
    """The file that reserves disk space: it is deleted when a new cluster store is written, on a disk that may be
    full."""
    return folder / "room"


def keep_room(folder: Path) -> None:
    """Create the room file if it is missing and there is room for it."""
    path = room_file(folder)
    if path.exists():
        return
    try:
        with path.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, ROOM_BYTES)
    except OSError:  # the next start tries again
        path.unlink(missing_ok=True)


@contextmanager
def start_lock(folder: Path) -> Iterator[None]:
    """Lock the folder against another start or stop. Raises FolderRefused if one is under way."""
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
