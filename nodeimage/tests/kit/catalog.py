"""A command log in memory that can lead and follow, commit late, lose uncommitted commands, trim, and start over."""

import asyncio
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

from headrace.base.errors import Code, KafkaError, TrimmedLog
from headrace.base.ids import ContainerId, Epoch, Millis, Position
from headrace.catalog.catalog import Catalog
from headrace.catalog.command import CatalogCommand
from headrace.catalog.policy import StreamPolicy
from headrace.catalog.reader import Reader
from headrace.catalog.streams import CreateStream
from headrace.catalog.tables import SCHEMA, open_tables
from headrace.catalog.topics import CreateTopics, NewTopic
from headrace.tables.transactions import apply_all

NOW = Millis(1)
FRAME = 50
"""Bytes of a frame besides its payload."""


class Still:
    """A cluster's clock that stands still."""

    def now(self) -> int:
        return int(NOW)


class MemoryLog:
    """One replica. As the leader it commits at once, or, if `held`, when `commit` is called."""

    def __init__(self, *, leads: bool = True) -> None:
        self.leads = leads
        self.frames: list[tuple[Position, bytes]] = []
        self.end = Position(0)
        self.committed = Position(0)
        self.trimmed = Position(0)
        self.held = False
        self.in_memory_from = Position(0)
        """Commands that begin below this position are read from the disk."""
        self.disk_reads = 0
        self.broken_reads = 0
        """The number of next reads from the disk that fail."""
        self._waiting: list[tuple[asyncio.Future[Position], Position]] = []
        self._callbacks: list[Callable[[], None]] = []

    # --- what the catalog asks

    def append_command(self, payload: bytes) -> asyncio.Future[Position]:
        future: asyncio.Future[Position] = asyncio.get_running_loop().create_future()
        if not self.leads:
            future.set_exception(KafkaError(Code.NOT_CONTROLLER, "does not lead"))
            return future
        self._waiting.append((future, self.write(payload)))
        if not self.held:
            self.commit()
        return future

    def recent(self, after: Position) -> list[tuple[Position, bytes]] | None:
        return None if after < self.in_memory_from else self._between(after, self.committed)

    def commands(self, after: Position, until: Position) -> Iterator[tuple[Position, bytes]]:
        assert until <= self.committed
        self.disk_reads += 1
        if self.broken_reads:
            self.broken_reads -= 1
            raise ValueError("the file is closed")
        if after < self.trimmed:
            raise TrimmedLog(f"commands from {after} are trimmed up to {self.trimmed}")
        return iter(self._between(after, until))

    def on_committed(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    def trim(self, until: Position) -> None:
        self.trimmed = until
        self.frames = [frame for frame in self.frames if frame[0] > until]

    # --- what tests do to it

    def write(self, payload: bytes) -> Position:
        """Append a command that is not committed yet; returns the position after it."""
        self.end = Position(self.end + FRAME + len(payload))
        self.frames.append((self.end, payload))
        return self.end

    def commit(self) -> None:
        """Commit everything."""
        self.committed = self.end
        waiting, self._waiting = self._waiting, []
        for callback in self._callbacks:
            callback()
        for future, position in waiting:
            if not future.done():
                future.set_result(position)

    def lose(self, error: Exception) -> None:
        """Cut off everything that was appended and not committed."""
        self.frames = [frame for frame in self.frames if frame[0] <= self.committed]
        self.end = self.committed
        self._fail(error)

    def step_down(self) -> None:
        """Cease to lead. Uncommitted commands stay, for the next leader to commit or to cut off."""
        self.leads = False
        self._fail(KafkaError(Code.NOT_CONTROLLER, "stepped down"))

    def begin_anew(self, position: Position) -> None:
        """Become empty from this position on, like a follower's log that got a snapshot."""
        self.frames.clear()
        self.end = self.committed = self.trimmed = self.in_memory_from = position

    def follow(self, leader: "MemoryLog") -> None:
        """Copy the commands of `leader`, and its committed position."""
        self.frames = [frame for frame in leader.frames if frame[0] > self.trimmed]
        self.end = leader.end
        if leader.committed > self.committed:
            self.committed = leader.committed
            for callback in self._callbacks:
                callback()

    def _between(self, after: Position, until: Position) -> list[tuple[Position, bytes]]:
        return [frame for frame in self.frames if after < frame[0] <= until]

    def _fail(self, error: Exception) -> None:
        waiting, self._waiting = self._waiting, []
        for future, _ in waiting:
            if not future.done():
                future.set_exception(error)


def stream(path: str) -> CreateStream:
    return CreateStream(path, StreamPolicy(), NOW)


def topics(count: int, *, path: str = "/s") -> CreateTopics:
    return CreateTopics(
        [
            NewTopic(path, uuid.uuid4().hex, uuid.uuid4().bytes, 1, {}, [ContainerId(1)], [Epoch(1)])
            for _ in range(count)
        ],
        NOW,
    )


async def paths(catalog: Catalog) -> list[str]:
    def read(reader: Reader) -> list[str]:
        return [row.path for row in reader.streams.page()]

    return await catalog.query(read)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(100):
        while not condition():  # noqa: ASYNC110  # the conditions are of other threads
            await asyncio.sleep(0.001)


class Tables:
    """A catalog's tables, with a position that counts up."""

    def __init__(self, path: Path, *, sums: bool = True) -> None:
        self.connection = open_tables(path, sums=sums)
        self.reader = Reader(path)
        self.position = 0

    def apply(self, command: CatalogCommand[Any]) -> Any:
        self.position += 100
        (decided,) = apply_all(self.connection, [(Position(self.position), command)], SCHEMA)
        if isinstance(decided, KafkaError):
            raise decided
        return decided

    def close(self) -> None:
        self.reader.close()
        self.connection.close()


class SmallDisk:
    """Limits the file of a catalog's tables: SQLite then returns SQLITE_FULL, as on a full disk.

    The limit is set in the catalog's own thread, also while that thread waits for room: if two threads used a
    connection at the same time, one could wait in it for the interpreter's lock, and the other, which holds that lock,
    for SQLite's.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._closing = catalog._applier._closing
        self._wanted: int | None = None
        catalog._applier._closing = cast(threading.Event, self)

    async def limit(self, pages: int) -> None:
        """Set the limit at once, or at the next attempt of a catalog that waits for room."""
        self._wanted = pages
        if not self._catalog.full:
            await self._catalog._applier._in_thread(self._apply)

    def _apply(self) -> None:
        pages, self._wanted = self._wanted, None
        if pages is not None:
            self._catalog._connection.execute(f"PRAGMA max_page_count={pages}")

    def wait(self, timeout: float | None = None) -> bool:
        """See `Event`; called while the disk is full."""
        self._apply()
        return self._closing.wait(timeout)

    def is_set(self) -> bool:
        """See `Event`."""
        return self._closing.is_set()

    def set(self) -> None:
        """See `Event`."""
        self._closing.set()
