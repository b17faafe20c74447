"""A node's data folder: whose it is, which format it has, and that only one process uses it.

    node-1/
      node.json     {"format": 2, "cluster": …, "node": 1, "id": uuid, "level": 1, "runs": [uuid, …], "stopped": uuid};
                    at feature level 0 the format is 1, without runs
      node.json.new the same, until the node has registered
      *.room        space reserved for the next write of these files, as the disk may be full then
      lock          held by flock while a process runs
      containers/N/ one folder per container (see headrace.log)
      catalog/      the catalog's SQLite file and snapshots
      chunk-gc      how far garbage collection of chunks has come (storage/gc_mark.py)

Raises `FolderRefused` with one line that says what to do.
"""

import fcntl
import json
import os
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from headrace.base.errors import FolderRefused, NewerFormat
from headrace.base.levels import FORMAT, NEWEST, Level, format_of
from headrace.base.sealed_json import seal, unseal
from headrace.log.files import rewrite_file


@dataclass(frozen=True, slots=True)
class Identity:
    """The contents of node.json."""

    cluster_id: str
    node_id: int
    folder_id: str
    """The uuid written when the folder was created (invariant 5, `format`)."""
    level: int = 0
    """The highest feature level that this folder has seen (store.features); its files may be of that level."""
    runs: tuple[str, ...] = ()
    """The runs of the node's latest processes, newest last. Each is noted before it registers."""
    stopped: str = ""
    """The latest run that reported that it stops; noted before the report."""

    def is_older_than(self, run: str, *, stopping: bool) -> bool:
        """Whether the folder was restored from an older copy, such as a volume's snapshot or a backup.

        `run`, `stopping`: what the cluster store knows of this node: the run that registered last, and whether it
        reported that it stops. An older copy lacks them.
        """
        if not self.runs:
            return False
        return run not in self.runs or (stopping and run == self.runs[-1] != self.stopped)


MAX_RUNS: Final = 62
"""Number of the node's former runs that a folder keeps. A cluster store restored from a copy within this many runs does
not make the folder look old."""
FORMER_S: Final = 5.0
"""Seconds to wait for files, sockets and locks of a killed process. If it was killed while starting a child process,
the child holds them until it runs another program, which takes long if it closes files for the last time on a busy
disk."""


class DataFolder:
    """One node's folder, locked for this process from `open` to `close`."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def open(cls, path: Path) -> "DataFolder":
        """[blocking] Create the folder if it is missing, and lock it. Raises FolderRefused."""
        try:
            path.mkdir(parents=True, exist_ok=True)
            lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise FolderRefused(f"cannot use {path}: {error.strerror}; choose another folder with --data") from error
        deadline = time.monotonic() + FORMER_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                holder = os.pread(lock, 32, 0).decode(errors="replace").strip() or "another process"
                if _runs(holder) or time.monotonic() >= deadline:
                    os.close(lock)
                    raise FolderRefused(
                        f"{path} is in use by process {holder}; stop it with `headrace down`, or choose another folder"
                    ) from None
            time.sleep(0.05)
        # Write, then truncate: this order needs no new disk space, which a full disk lacks.
        os.ftruncate(lock, os.pwrite(lock, str(os.getpid()).encode(), 0))
        return cls(path, lock)

    def identity(self) -> Identity | None:
        """The identity in the folder; None if the folder is new. Raises FolderRefused."""
        found = self._read("node.json")
        if found is not None:
            self.drop_reserved()  # left by a process that ended before dropping it
        else:
            if (self.path / "node.json.removed").exists():
                raise FolderRefused(
                    f"{self.path} belonged to a node that was removed from its cluster, and no node can use it again;"
                    " delete it, or choose another folder"
                )
            if (self.path / "containers").exists():
                raise FolderRefused(
                    f"{self.path} holds containers but no node.json; restore it, or move the folder away"
                )
        return found

    def reserved(self, cluster_id: str, take_id: Callable[[], int]) -> Identity:
        """The identity that a new folder is going to have: the same at each call, in every process, until it is
        claimed.

        A node whose registration was not answered may have registered all the same, or may still be registered: it
        retries with the same identity, so that it leaves no stray node behind.
        """
        try:
            found = self._read("node.json.new")
        except FolderRefused:
            found = None  # it was never claimed, so a new one does no harm
        if found is None or found.cluster_id != cluster_id:
            found = Identity(cluster_id, take_id(), str(uuid.uuid4()))
            self._write("node.json.new", found)
        return found

    def claim(self, identity: Identity) -> None:
        """Write node.json: from now on the folder is this node's."""
        self._write("node.json", identity)
        self.drop_reserved()

    def fence(self, level: int) -> int:
        """[blocking] Make versions that do not support a feature level refuse the folder. Returns the highest level
        that the folder has seen. Raises FolderRefused and OSError (such as a full disk), which leave the folder as it
        was.
        """
        found = self._read("node.json")
        if found is None:
            raise FolderRefused(f"{self.path}/node.json is gone; restore it from a copy")
        if level > found.level:
            found = replace(found, level=level)
            self._write("node.json", found)
        return found.level

    def begins(self, run: str, *, after: str = "") -> None:
        """[blocking] Note that a process is about to register, if the folder's feature level has runs. `after`: the run
        that registered last. Raises FolderRefused, OSError.
        """
        found = self._read("node.json")
        if found is None or found.level < Level.FENCED or found.runs[-1:] == (run,):
            return
        kept = found.runs[-MAX_RUNS:]
        if after and after not in kept:
            kept = (after, *kept)
        self._write("node.json", replace(found, runs=(*kept, run)))

    def stops(self, run: str) -> None:
        """[blocking] Note that a process is about to report that it stops. Raises FolderRefused, OSError."""
        found = self._read("node.json")
        if found is not None and run in found.runs:
            self._write("node.json", replace(found, stopped=run))

    def drop_reserved(self) -> None:
        """Drop the reserved identity; `reserved` then returns a new one."""
        for name in ("node.json.new", "node.json.new.room"):
            (self.path / name).unlink(missing_ok=True)

    def _read(self, name: str) -> Identity | None:
        try:
            text = (self.path / name).read_bytes()
        except FileNotFoundError:
            return None
        try:
            fields = json.loads(unseal(text))
            written = int(fields["format"])
            if written > FORMAT:
                raise FolderRefused(
                    f"{self.path} has format {written}; this version reads {FORMAT} at most: use a newer headrace"
                )
            level = int(fields.get("level", 0))
            if level > NEWEST:
                raise NewerFormat(
                    f"{self.path} has seen feature level {level}; this version supports {NEWEST} at most: use a newer "
                    "headrace"
                )
            return Identity(
                str(fields["cluster"]),
                int(fields["node"]),
                str(fields["id"]),
                level,
                tuple(map(str, fields.get("runs", ()))),
                str(fields.get("stopped", "")),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise FolderRefused(f"{self.path}/{name} is damaged ({error!r}); restore it from a copy") from error

    def _write(self, name: str, identity: Identity) -> None:
        fields = {
            "format": format_of(identity.level),
            "cluster": identity.cluster_id,
            "node": identity.node_id,
            "id": identity.folder_id,
        }
        if identity.level:
            fields["level"] = identity.level
        if identity.runs:
            fields |= {"runs": identity.runs, "stopped": identity.stopped}
        rewrite_file(self.path / name, seal(json.dumps(fields).encode()))

    def check_cluster(self, identity: Identity, cluster_id: str) -> None:
        """Raise `FolderRefused` if the folder belongs to another cluster."""
        if identity.cluster_id != cluster_id:
            raise FolderRefused(
                f"{self.path} belongs to cluster {identity.cluster_id}, not to {cluster_id}; choose another folder"
            )

    def close(self) -> None:
        """Unlock the folder, so that another process can use it."""
        os.close(self._lock)


def level_seen(path: Path) -> int:
    """[blocking] The feature level that a node's folder has seen, whether or not a process uses it; 0 if it cannot be
    read."""
    try:
        return int(json.loads((path / "node.json").read_text()).get("level", 0))
    except (OSError, ValueError, TypeError, AttributeError):
        return 0


def _runs(holder: str) -> bool:
    """Whether the process that is noted as the lock's holder may still run."""
    if not holder.isdecimal():
        return True
    if int(holder) == os.getpid():
        return False  # in a container each process has the same pid
    try:
        os.kill(int(holder), 0)
    except ProcessLookupError:
        return False
    except OSError:  # it runs, as another user
        pass
    return True
