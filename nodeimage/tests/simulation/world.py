"""Replacements, for a run, of what the code calls on its own: randomness, pauses, the log, the writer thread."""

import asyncio
import gc
import inspect
import itertools
import os
import random
import sys
import tempfile
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import msgspec
import structlog

from headrace.base.child_processes import Ended
from headrace.base.errors import OutOfDescriptors
from headrace.base.ids import Position, StreamNumber
from headrace.base.loop_lag import LoopLag
from headrace.catalog.catalog import Catalog
from headrace.catalog.queries.streams import StreamQueries
from headrace.catalog.rows import Retention, StreamRetention
from headrace.container.leader import Leader
from headrace.log.descriptors import OPENED
from headrace.log.folder import chunk_path
from headrace.log.regroup import rewrite
from headrace.log.scrub import Scrubbed, scrub
from headrace.storage.scrub import Scrub
from headrace.wire import records
from simulation.disk import open_within_limits
from simulation.loop import PROCESS, Event, Task
from simulation.odd_calls import OddError

if TYPE_CHECKING:
    from simulation.cluster import Cluster


TODAY = 1.8e9
"""The start of each run, in seconds since 1970."""
TTL_S = TODAY + 100.0
"""Time to live of all records, which have timestamps in the first millisecond of 1970: they expire after the run,
although some clocks may be further ahead."""
LONG_TTL_S = TODAY + 10_000.0
"""The same for longer runs."""
SNAPSHOT_BYTES = 1024
"""Bytes of the catalog's log between two snapshots."""
SNAPSHOT_PIECE_BYTES = 16_384
"""Bytes of a piece of a snapshot, which has some ten times as many, so that faults also occur between two pieces."""
OPENED_AT_A_TIME = 4
"""Closed chunks that all nodes, which share a process here, may have open: so chunks are reopened again and again."""


class _Random(random.Random):
    """A replacement for `secrets`, drawing from the seed."""

    def token_bytes(self, count: int) -> bytes:
        return self.randbytes(count)

    def token_hex(self, count: int) -> str:
        return self.randbytes(count).hex()

    def randbelow(self, below: int) -> int:
        return self.randrange(below)

    def SystemRandom(self) -> "_Random":
        return self


class _Clock:
    """A replacement for `time`, with the node's clocks: the wall clock may be minutes off."""

    def __init__(self, cluster: "Cluster") -> None:
        self._loop = cluster.loop

    def time(self) -> float:
        process = PROCESS.get()
        return TODAY + self._loop.now + (0.0 if process is None else process.node.wall_ahead)

    def time_ns(self) -> int:
        return int(self.time() * 1e9)

    def monotonic(self) -> float:
        return self._loop.time()

    def sleep(self, _seconds: float) -> None:
        """Does nothing, since threads take no real time here."""


class _Logger:
    """A replacement for structlog's logger: a line of the trace. An unexpected error ends the run."""

    def __init__(self, cluster: "Cluster") -> None:
        self._cluster = cluster

    def _line(self, level: str, event: str, fields: dict[str, Any]) -> None:
        process = PROCESS.get()
        told = " ".join(f"{key}={value}" for key, value in fields.items())
        told = told.replace(str(self._cluster.folder), "")  # differs in each run
        self._cluster.trace(f"{process.name if process else 'world'} {level} {event} {told}")

    def debug(self, event: str, **fields: Any) -> None:
        pass

    def info(self, event: str, **fields: Any) -> None:
        self._line("info", event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        self._line("warning", event, fields)

    def error(self, event: str, **fields: Any) -> None:
        self._line("error", event, fields)

    critical = error

    def exception(self, event: str, **fields: Any) -> None:
        import traceback

        self._line("exception", event, fields)
        if isinstance(sys.exception(), OddError):
            return  # the error was caused on purpose, and is reported: the step is repeated, or the run fails otherwise
        self._cluster.checks.fail(f"{event}: {traceback.format_exc()}")


@contextmanager
def patched(cluster: "Cluster") -> Iterator[None]:
    """Replacements for one run, in which everything comes from the seed."""
    records._parser()  # otherwise only the first run of a process would wait for it
    seeded = _Random(cluster.seed + 7)

    def uuid4() -> uuid.UUID:
        return uuid.UUID(bytes=seeded.randbytes(16), version=4)

    logger = _Logger(cluster)
    Task.serial = Event.serial = 0
    loggers = [
        mock.patch.object(module, "log", logger)
        for name, module in list(sys.modules.items())
        if name.startswith("headrace.") and isinstance(getattr(module, "log", None), _LAZY)
    ]
    patches = [
        mock.patch("headrace.store.records.secrets", seeded),
        mock.patch("headrace.store.compare_and_set.secrets", seeded),
        mock.patch("headrace.store.lineage.secrets", seeded),
        mock.patch.object(uuid, "uuid4", uuid4),
        mock.patch.object(tempfile, "_name_sequence", (f"{number:08}" for number in itertools.count())),
        mock.patch.object(asyncio, "Event", Event),
        mock.patch.object(os, "fsync", _nothing),  # only the disk knows what has to be synced
        mock.patch.object(os, "fdatasync", _nothing),
        mock.patch.object(os, "open", open_within_limits),
        mock.patch.object(OPENED, "_files", deque()),
        mock.patch.object(OPENED, "most", OPENED_AT_A_TIME),
        mock.patch("headrace.container.follower.REST_AFTER_S", _rest_after_s(cluster.seed)),
        *_clocks(cluster),
        *loggers,
        *(_with_topics(cluster, seeded) if cluster.shape.topics else ()),
    ]
    for each in patches:
        each.start()
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        for each in reversed(patches):
            each.stop()
        for task in cluster.loop.tasks:
            task._log_destroy_pending = False
            work = task.get_coro()
            if task.done() or not inspect.iscoroutine(work):  # a coroutine of compiled code does not complain
                continue
            if inspect.getcoroutinestate(work) == inspect.CORO_CREATED:
                work.close()  # its process was killed before it began
        cluster.loop.end()
        if collecting:
            gc.enable()


def _rest_after_s(seed: int) -> float:
    """Runs are short: in most of them, followers go to rest earlier than in reality."""
    return random.Random(f"rests {seed}").choice((1.0, 0.3, 0.05, 0.0))


def _clocks(cluster: "Cluster") -> list[Any]:
    clock = _Clock(cluster)
    reached = (("time", time, clock), ("monotonic", time.monotonic, clock.monotonic))
    return [
        mock.patch.object(module, attribute, stand_in)
        for name, module in list(sys.modules.items())
        for attribute, real, stand_in in reached
        if name.startswith("headrace.") and getattr(module, attribute, None) is real
    ]


def expire_after(
    seconds: float,
) -> Callable[[StreamQueries, Iterable[StreamNumber]], dict[StreamNumber, StreamRetention]]:
    """Records expire, although none should in so short a time."""

    def retention(_queries: StreamQueries, streams: Iterable[StreamNumber]) -> dict[StreamNumber, StreamRetention]:
        return {stream: StreamRetention(Retention(ttl_ms=int(seconds * 1000), bytes=-1), {}) for stream in streams}

    return retention


def _with_topics(cluster: "Cluster", seeded: _Random) -> list[Any]:
    """Replace what catalog and broker call, and shorten their intervals to the length of a run."""
    return [
        mock.patch.object(StreamQueries, "retention_of", expire_after(TTL_S)),
        mock.patch("headrace.partitions.placement.random", seeded),
        mock.patch("headrace.storage.container_closing.REST_S", 2.0),
        mock.patch("headrace.storage.maintenance.EVERY_S", 2.0),
        mock.patch.object(Leader, "__hash__", lambda container: hash((container.id, container.epoch))),
        mock.patch.object(LoopLag, "start", _nothing),
        mock.patch.object(Scrub, "_read", _scrubbed),
        mock.patch("headrace.storage.regroup.ChildProcess", _RegroupProcess),
        mock.patch("headrace.container.snapshot_transfer.PIECE_BYTES", SNAPSHOT_PIECE_BYTES),
        mock.patch("headrace.node.snapshot_sending.PIECE_BYTES", SNAPSHOT_PIECE_BYTES),
        *([mock.patch("headrace.tables.table_scrub.REST_S", 5.0)] if cluster.table_faults else ()),
        mock.patch.dict(Catalog.open.__func__.__kwdefaults__, snapshot_bytes=SNAPSHOT_BYTES),  # type: ignore[attr-defined]
    ]


async def _scrubbed(_scrub: Scrub, folder: str, synced: Position) -> tuple[list[bytes], int]:
    """The output of the helper process."""
    read = partial(scrub, Path(folder), Scrubbed(), synced=synced)
    try:
        findings = await asyncio.get_running_loop().run_in_executor(None, lambda: list(read()))
    except OSError:  # the replica is gone, or being recreated
        return [], 2
    return [msgspec.json.encode({"finding": str(each)}) for each in findings], 1 if findings else 0


class _RegroupProcess:
    """The output of the other helper process."""

    def __init__(self, command: Sequence[str]) -> None:
        assert command[2] == "headrace.log.regroup", command
        self._path = chunk_path(Path(command[3]), int(command[4]))

    async def run(self) -> Ended:
        try:
            await asyncio.get_running_loop().run_in_executor(None, rewrite, self._path)
        except OutOfDescriptors:
            return Ended(1, b"", is_cut=False)
        return Ended(0, b"", is_cut=False)


_LAZY = type(structlog.get_logger())


def _nothing(_descriptor: int) -> None:
    pass
