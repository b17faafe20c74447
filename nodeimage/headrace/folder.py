"""A node's data folder: whose it is, which format it has, and that only one process uses it.

    node-1/
      node.json     {"format": 1, "cluster": …, "node": 1, "id": uuid}
      lock          held by flock while a process runs
      containers/N/ one folder per container (see headrace.log)
      catalog/      the catalog's SQLite file and snapshots

Raises `FolderRefused` with one line that says what to do.
"""

import fcntl
import json
import os
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import FolderRefused

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Identity:
    """What node.json says."""

    cluster_id: str
    node_id: int
    folder_id: str
    """The uuid written when the folder was made (invariant 5, `format`)."""


class DataFolder:
    """One node's folder, locked for this process from `open` to `close`."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def open(cls, path: Path) -> "DataFolder":
        """Make the folder if it is missing, and lock it."""
        try:
            path.mkdir(parents=True, exist_ok=True)
            lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise FolderRefused(f"cannot use {path}: {error.strerror}; choose another folder with --data") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(lock, 32, 0).decode(errors="replace").strip() or "another process"
            os.close(lock)
            raise FolderRefused(
                f"{path} is in use by process {holder}; stop it with `headrace down`, or choose another folder"
            ) from None
        # In this order it takes no new room, which a full disk has not.
        os.ftruncate(lock, os.pwrite(lock, str(os.getpid()).encode(), 0))
        return cls(path, lock)

    def identity(self) -> Identity | None:
        """What the folder says of itself; None if it is new."""
        try:
            text = (self.path / "node.json").read_text()
        except FileNotFoundError:
            if (self.path / "node.json.removed").exists():
                raise FolderRefused(
                    f"{self.path} is of a node that was removed from its cluster, and none takes it up again; delete"
                    " it, or choose another folder"
                ) from None
            if (self.path / "containers").exists():
                raise FolderRefused(
                    f"{self.path} holds containers but no node.json; restore it, or move the folder away"
                ) from None
            return None
        try:
            fields = json.loads(text)
            written = int(fields["format"])
            if written > FORMAT:
                raise FolderRefused(
                    f"{self.path} has format {written}; this version reads {FORMAT} at most: use a newer headrace"
                )
            return Identity(str(fields["cluster"]), int(fields["node"]), str(fields["id"]))
        except (ValueError, KeyError, TypeError) as error:
            raise FolderRefused(f"{self.path}/node.json is damaged ({error!r}); restore it from a copy") from error

    def claim(self, *, cluster_id: str, node_id: int, folder_id: str) -> Identity:
        """Write node.json: from now on the folder is this node's."""
        identity = Identity(cluster_id, node_id, folder_id)
        fields = {"format": FORMAT, "cluster": cluster_id, "node": node_id, "id": folder_id}
        temporary = self.path / "node.json.tmp"
        with temporary.open("w") as file:
            json.dump(fields, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(self.path / "node.json")
        folder = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        return identity

    def check_cluster(self, identity: Identity, cluster_id: str) -> None:
        """Raise `FolderRefused` if the folder belongs to another cluster."""
        if identity.cluster_id != cluster_id:
            raise FolderRefused(
                f"{self.path} belongs to cluster {identity.cluster_id}, not to {cluster_id}; choose another folder"
            )

    def close(self) -> None:
        """Let another process have it."""
        os.close(self._lock)
