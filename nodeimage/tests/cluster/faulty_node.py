"""A storage node whose surroundings fail when told to: `python faulty_node.py FAULTS ...`, and then as headrace.node.

FAULTS is a folder; a file of one of these names in it switches a fault on while it is there:

- `full`: the disk has no room: whatever of the log needs new blocks fails with ENOSPC, be it a new file or bytes
  behind the end of one; what is preallocated can be written;
- `over-quota`: the same with EDQUOT, and the filesystem's figures say that there is room;
- `sync-fails`: fdatasync, and writing through, fail with EIO;
- `store-away`: the cluster store does not answer (each call takes a moment, then StoreUnavailable);
- `store-deaf`: what is written there takes place, but the answers are lost (StoreUnavailable after the fact).

`routes` in it, if there, is a JSON object: by the port of another node, the port that leads there (cluster_ways).
SIGUSR1 has it print what its threads and tasks wait for. Everything else is the node as it is: what is replaced here
are calls to the operating system, the store's methods, and the port of an outgoing connection.
"""

import asyncio
import errno
import faulthandler
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from headrace.broker import disk_room
from headrace.log import files, writing
from headrace.node import node, process
from headrace.peer import client
from headrace.store.protocol import StoreUnavailable
from headrace.store.sqlite import SqliteStore

FAULTS = Path(sys.argv[1])
AWAY_S = 0.05


class FailingOs:
    """The module `os` with its disk."""

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def statvfs(self, path: Any) -> SimpleNamespace:
        found = os.statvfs(path)
        free = 0 if (FAULTS / "full").exists() else found.f_bavail
        return SimpleNamespace(f_bavail=free, f_frsize=found.f_frsize)

    def posix_fallocate(self, fd: int, offset: int, length: int) -> None:
        self._take(fd, offset + length)
        os.posix_fallocate(fd, offset, length)

    def pwrite(self, fd: int, content: Any, offset: int) -> int:
        self._take(fd, offset + len(content))
        return os.pwrite(fd, content, offset)

    def fdatasync(self, fd: int) -> None:
        self._sync()
        os.fdatasync(fd)

    def pwritev(self, fd: int, buffers: Sequence[Any], offset: int, flags: int = 0) -> int:
        self._take(fd, offset + sum(map(len, buffers)))
        if flags:
            self._sync()
        return os.pwritev(fd, buffers, offset, flags)

    def _take(self, fd: int, end: int) -> None:
        """Make a file that long."""
        if end <= os.fstat(fd).st_size:
            return
        if (FAULTS / "full").exists():
            raise OSError(errno.ENOSPC, "no space left on device")
        if (FAULTS / "over-quota").exists():
            raise OSError(errno.EDQUOT, "disk quota exceeded")

    def _sync(self) -> None:
        if (FAULTS / "sync-fails").exists():
            raise OSError(errno.EIO, "input/output error")


class FaultyStore(SqliteStore):
    """The cluster store over a way that may be cut."""


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
    """Connections to other nodes go by the ways of the test."""

    async def _connect(self, address: tuple[str, int]) -> Any:
        return await super()._connect((address[0], _routes().get(str(address[1]), address[1])))


def _routes() -> dict[str, int]:
    try:
        return dict(json.loads((FAULTS / "routes").read_text()))
    except FileNotFoundError:
        return {}


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
    failing = FailingOs()
    for module in (files, writing, disk_room):
        setattr(module, "os", failing)  # noqa: B010
    setattr(node, "SqliteStore", FaultyStore)  # noqa: B010
    setattr(node, "PeerClient", RoutedClient)  # noqa: B010
    sys.exit(process.main(sys.argv[2:]))
