"""A storage node whose environment fails on command: `python faulty_node.py FAULTS ...`, otherwise like headrace.node.

FAULTS is a folder; a file with one of these names in it switches a fault on while the file exists:

- `full`: the disk has no room: every write to the log that needs new blocks fails with ENOSPC, whether in a new file or
  after the end of an existing one; preallocated blocks can be written;
- `over-quota`: the same with EDQUOT, while the filesystem's figures say that there is room;
- `nearly-full`: the filesystem's figures say that 384 KiB are left, all the time;
- `sync-fails`: fdatasync, and writes that sync, fail with EIO;
- `sync-hangs`: fdatasync, writes that sync, and fsync do not return while the file exists;
- `store-away`: the cluster store does not answer (each call takes a moment, then StoreUnavailable);
- `store-deaf`: writes to the cluster store take effect, but their answers are lost (StoreUnavailable afterwards).

A folder `unsynced` in it, if there is one, gets the former bytes of each write to a file of the log that is not synced
yet, which a power cut restores (`Cluster.cut_power`). Names of files are treated as durable at once.

`snapshot-bytes` in it, if it exists when the node starts, sets after how many bytes of log the catalog writes a
snapshot.

`routes` in it, if it exists, is a JSON object: by the port of another node, the port that leads there (cluster_ways). A
link's connections to a source use these routes too.

SIGUSR1 makes the node print what its threads and tasks wait for. Everything else is the unchanged node: replaced are
only calls to the operating system, from Python's threads and from the native ones, the store's methods, and the port of
an outgoing connection.
"""

import asyncio
import ctypes
import errno
import faulthandler
import itertools
import json
import os
import signal
import sys
import threading
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from headrace.catalog.catalog import Catalog
from headrace.container import writer_pool
from headrace.kafka_client import client as link_client
from headrace.kafka_client import connection_setup
from headrace.node import node, process
from headrace.peer import client
from headrace.storage import disk_room
from headrace.store.protocol import StoreUnavailable
from headrace.store.sqlite import SqliteStore

FAULTS = Path(sys.argv[1])
AWAY_S = 0.05


class Unsynced:
    """The contents of the log's files at their last sync, kept outside of this process.

    There is one file for each write, `serial-inode`: a line of JSON with the place of the write, the former and the new
    size of the file, and a checksum of the bytes written; then the former bytes.
    """

    def __init__(self) -> None:
        self._folder = FAULTS / "unsynced"
        self._lock = threading.Lock()
        self._kept: dict[int, list[Path]] = defaultdict(list)
        self._under_way: set[Path] = set()
        """Writes that sync their own bytes, but not those of a concurrent write."""
        self._on = self._folder.is_dir()
        before = sorted(self._folder.iterdir()) if self._on else []
        for path in before:  # left in the page cache by a process that was killed
            self._kept[int(path.name.partition("-")[2])].append(path)
        self._serial = itertools.count(int(before[-1].name.partition("-")[0]) + 1 if before else 0)

    def write(
        self, fd: int, offset: int, content: bytes, *, size: int | None = None, syncs: bool = False
    ) -> Path | None:
        """Bytes of a file are about to change, or its size to become `size`. Returns the record of the former state;
        `syncs`: pass it to `sync`.
        """
        if self._on:
            found = os.fstat(fd)
            end = max(found.st_size, offset + len(content)) if size is None else size
            place = {"offset": offset, "size": found.st_size, "end": end, "length": len(content)}
            head = json.dumps({**place, "crc": zlib.crc32(content)}).encode() + b"\n"
            path = self._folder / f"{next(self._serial):08}-{found.st_ino}"
            there = os.pread(fd, max(len(content), found.st_size - end), offset)
            path.write_bytes(head + there)
            with self._lock:
                self._kept[found.st_ino].append(path)
                if syncs:
                    self._under_way.add(path)
            return path
        return None

    @contextmanager
    def sync(self, fd: int, own: Path | None = None) -> Iterator[None]:
        """Within the context, earlier writes to a file become durable. `own`: the record that `write` returned for a
        write that syncs itself.
        """
        inode = os.fstat(fd).st_ino
        with self._lock:
            others = self._under_way - {own}
            before = [path for path in self._kept[inode] if path not in others]
        try:
            yield
        finally:
            with self._lock:
                self._under_way -= {own}
        self._forget(inode, before)

    def made(self, fd: int) -> None:
        """A file is new: it may have the inode of a deleted one."""
        found = os.fstat(fd)
        if found.st_size == 0:
            self._forget(found.st_ino, list(self._kept[found.st_ino]))

    def _forget(self, inode: int, paths: list[Path]) -> None:
        with self._lock:
            kept = self._kept[inode]
            gone = [path for path in kept if path in paths]  # another sync may have done it first
            self._kept[inode] = [path for path in kept if path not in paths]
        for path in gone:
            path.unlink()


class FailingOs:
    """The module `os` with its disk."""

    def __init__(self) -> None:
        self._unsynced = Unsynced()

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, path: Any, flags: int, mode: int = 0o777) -> int:
        fd = os.open(path, flags, mode)
        if flags & os.O_CREAT:
            self._unsynced.made(fd)
        return fd

    def statvfs(self, path: Any) -> SimpleNamespace:
        found = os.statvfs(path)
        free = 0 if (FAULTS / "full").exists() else found.f_bavail
        if (FAULTS / "nearly-full").exists():
            free = 384 * 1024 // found.f_frsize
        return SimpleNamespace(f_bavail=free, f_frsize=found.f_frsize)

    def posix_fallocate(self, fd: int, offset: int, length: int) -> None:
        self._take(fd, offset + length)
        self._unsynced.write(fd, offset, b"", size=max(os.fstat(fd).st_size, offset + length))
        os.posix_fallocate(fd, offset, length)

    def ftruncate(self, fd: int, length: int) -> None:
        self._unsynced.write(fd, length, b"", size=length)
        os.ftruncate(fd, length)

    def pwrite(self, fd: int, content: Any, offset: int) -> int:
        self._take(fd, offset + len(content))
        self._unsynced.write(fd, offset, bytes(content))
        return os.pwrite(fd, content, offset)

    def fsync(self, fd: int) -> None:
        self._hang()
        with self._unsynced.sync(fd):
            os.fsync(fd)

    def fdatasync(self, fd: int) -> None:
        self._sync()
        with self._unsynced.sync(fd):
            os.fdatasync(fd)

    def pwritev(self, fd: int, buffers: Sequence[Any], offset: int, flags: int = 0) -> int:
        self._take(fd, offset + sum(map(len, buffers)))
        own = self._unsynced.write(fd, offset, b"".join(buffers), syncs=bool(flags))
        if not flags:
            return os.pwritev(fd, buffers, offset)
        with self._unsynced.sync(fd, own):
            self._sync()
            return os.pwritev(fd, buffers, offset, flags)

    def _take(self, fd: int, end: int) -> None:
        """Extend a file to that length."""
        if end <= os.fstat(fd).st_size:
            return
        if (FAULTS / "full").exists():
            raise OSError(errno.ENOSPC, "no space left on device")
        if (FAULTS / "over-quota").exists():
            raise OSError(errno.EDQUOT, "disk quota exceeded")

    def _sync(self) -> None:
        self._hang()
        if (FAULTS / "sync-fails").exists():
            raise OSError(errno.EIO, "input/output error")

    def _hang(self) -> None:
        while (FAULTS / "sync-hangs").exists():
            time.sleep(AWAY_S)


class Vector(ctypes.Structure):
    """struct iovec"""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


NATIVE_WRITE = ctypes.CFUNCTYPE(
    ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_int
)


def native_write(fd: int, vectors: int, count: int, offset: int, flags: int) -> int:
    """The native threads' write call: returns the bytes written, or a negative errno."""
    buffers = [ctypes.string_at(each.base, each.length) for each in (Vector * count).from_address(vectors)]
    try:
        return failing.pwritev(fd, buffers, offset, flags)
    except OSError as error:
        return -(error.errno or 0)


class FaultyStore(SqliteStore):
    """The cluster store over a connection that may be cut."""


def _cut(name: str) -> Callable[..., Any]:
    whole = getattr(SqliteStore, name)

    def call(self: SqliteStore, *arguments: Any, **named: Any) -> Any:
        if (FAULTS / "store-away").exists():
            time.sleep(AWAY_S)
            raise StoreUnavailable("the cluster store does not answer: timed out")
        result = whole(self, *arguments, **named)
        if (FAULTS / "store-away").exists() or (name in ("put", "delete") and (FAULTS / "store-deaf").exists()):
            raise StoreUnavailable("the cluster store's answer is lost")
        return result

    return call


for _name in ("get", "list", "put", "delete", "watch"):
    setattr(FaultyStore, _name, _cut(_name))


class RoutedClient(client.PeerClient):
    """A client whose connections to other nodes use the test's routes."""

    async def _connect(self, address: tuple[str, int]) -> Any:
        return await super()._connect((address[0], _routes().get(str(address[1]), address[1])))


async def _open_routed(host: str, port: int, **named: Any) -> Any:
    """Open a link's connection to a source over the test's routes."""
    return await connection_setup.open_connection(host, _routes().get(str(port), port), **named)


def _routes() -> dict[str, int]:
    try:
        return dict(json.loads((FAULTS / "routes").read_text()))
    except FileNotFoundError:
        return {}


def _snapshots_often() -> None:
    """Set the interval of snapshots from `snapshot-bytes`."""
    with suppress(FileNotFoundError):
        often = int((FAULTS / "snapshot-bytes").read_text())
        Catalog.open.__func__.__kwdefaults__["snapshot_bytes"] = often  # type: ignore[attr-defined]


def _show_stacks(_number: int, _frame: object) -> None:
    faulthandler.dump_traceback(sys.stderr)
    for task in asyncio.all_tasks(asyncio.get_event_loop()):
        waits: Any = task.get_coro()
        chain = []
        while waits is not None and (frame := getattr(waits, "cr_frame", None)) is not None:
            chain.append(f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno} {frame.f_code.co_name}")
            waits = waits.cr_await
        print("task", task.get_name(), "waits:", " > ".join(chain), "for", repr(waits)[:600], file=sys.stderr)
    print("these are all tasks", file=sys.stderr, flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, _show_stacks)
    _snapshots_often()
    failing = FailingOs()
    for name, module in list(sys.modules.items()):
        if hasattr(module, "os") and (name.startswith("headrace.log.") or module is disk_room):
            setattr(module, "os", failing)  # noqa: B010
    native_call = NATIVE_WRITE(native_write)
    setattr(writer_pool, "WRITE_CALL", ctypes.cast(native_call, ctypes.c_void_p).value)  # noqa: B010
    setattr(node, "SqliteStore", FaultyStore)  # noqa: B010
    setattr(node, "PeerClient", RoutedClient)  # noqa: B010
    setattr(link_client, "open_connection", _open_routed)  # noqa: B010
    sys.exit(process.main(sys.argv[2:]))
