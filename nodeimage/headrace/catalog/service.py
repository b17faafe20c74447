"""The catalog of one node: commands in, outcomes out, in the order of the catalog container's log.

    submit -> append to the container -> committed -> applied by the catalog thread -> on_applied -> the submitter wakes

The catalog thread takes all commands that are committed by then into one SQLite transaction. Queries run in a few
reader threads. Nothing here blocks the loop. Knows the container only as a CommandLog, and nothing of Kafka's protocol.

What happens when: a crash between commit and apply: replay at `open` applies the command once (the applied position
moves with the rows). A cancelled submit: the command is applied all the same. A full disk: the log has the commands,
applying waits and tries again each second, submitters wait with it. A damaged file: commands and queries fail with
CatalogFailed, and the next start restores the newest snapshot and replays (`failed` tells the node to end).
Invariant 2: only committed commands are applied, since the log's futures resolve at commit.
"""

import asyncio
import contextlib
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeVar, overload

import structlog

from headrace.catalog import snapshots
from headrace.catalog.command_log import AT_ONCE, CommandLog, open_and_replay
from headrace.catalog.commands import (
    AlterStream,
    AlterTopic,
    Command,
    CommitCursors,
    CreatePartitions,
    CreateStream,
    CreateTopics,
    DeleteCursors,
    DeleteGroups,
    DeleteStream,
    DeleteTopics,
    ExpireCursors,
    PutGroup,
    RollDone,
    RollIntent,
    SetLogStart,
    encode,
)
from headrace.catalog.reader import Reader
from headrace.catalog.rows import (
    Decided,
    Expired,
    GroupRow,
    LogStartOutcome,
    Outcome,
    RollOutcome,
    StreamOutcome,
    TopicOutcome,
)
from headrace.catalog.tables import applied, apply_all
from headrace.errors import Code, HeadraceError, KafkaError, StorageFull
from headrace.ids import Position

log = structlog.get_logger(__name__)

T = TypeVar("T")

READERS = 2
_FULL_DISK_RETRY_S = 1.0
_SNAPSHOT_RETRY_S = 60.0


class CatalogFailed(HeadraceError):
    """The catalog is closed, or its file is damaged. Clients try again, at this node after its restart or another."""

    code = Code.COORDINATOR_NOT_AVAILABLE


class _Committed(NamedTuple):
    position: Position
    command: Command
    waiter: asyncio.Future[Outcome]


Applied = Callable[[Sequence[tuple[Command, Outcome]]], None]
"""Told, on the loop and in order, what was applied; refused commands are left out."""


class Catalog:
    """Made by `open`; everything else is called on the loop's thread."""

    def __init__(
        self, folder: Path, command_log: CommandLog, connection: sqlite3.Connection, *, snapshot_bytes: int
    ) -> None:
        self._folder = folder
        self._log = command_log
        self._connection = connection
        self._snapshot_bytes = snapshot_bytes
        self._loop = asyncio.get_running_loop()
        self._apply_thread = ThreadPoolExecutor(1, thread_name_prefix="catalog")
        self._read_threads = ThreadPoolExecutor(READERS, thread_name_prefix="catalog-reader")
        self._of_thread = threading.local()
        self._readers: list[Reader] = []
        self._committed: deque[_Committed] = deque()
        self._wake = asyncio.Event()
        self._closing = threading.Event()
        self._callbacks: list[Applied] = []
        self._applied = applied(connection)
        self._seen = self._applied
        self._set_snapshot_at(Position(0))
        self._snapshot_lock = asyncio.Lock()
        self._snapshot_task: asyncio.Task[None] | None = None
        self._apply_task = asyncio.create_task(self._apply_as_committed(), name="catalog-apply")
        self.failed: asyncio.Future[None] = self._loop.create_future()
        """Resolves with the error if the catalog cannot go on; the process should then end."""
        self.full = False
        """Committed commands wait for room on the disk, and so do those who submitted them."""

    @classmethod
    async def open(cls, folder: Path, command_log: CommandLog, *, snapshot_bytes: int = 64 << 20) -> "Catalog":
        """Open the tables, or restore them from a snapshot, and apply the committed commands that they lack.

        A snapshot is written after each `snapshot_bytes` of log. Raises FolderRefused for a newer format,
        StorageFull.
        """
        connection = await asyncio.to_thread(open_and_replay, folder, command_log)
        catalog = cls(folder, command_log, connection, snapshot_bytes=snapshot_bytes)
        held = await asyncio.to_thread(snapshots.positions, folder)
        if held:
            catalog._set_snapshot_at(held[-1])
        return catalog

    @property
    def applied(self) -> Position:
        """Commands below this position are applied, and visible to queries."""
        return self._applied

    @overload
    async def submit(self, command: CreateStream | AlterStream | DeleteStream) -> StreamOutcome: ...

    @overload
    async def submit(self, command: CreateTopics | DeleteTopics) -> list[TopicOutcome]: ...

    @overload
    async def submit(self, command: CreatePartitions | AlterTopic) -> TopicOutcome: ...

    @overload
    async def submit(self, command: RollIntent | RollDone) -> list[RollOutcome]: ...

    @overload
    async def submit(self, command: SetLogStart) -> list[LogStartOutcome]: ...

    @overload
    async def submit(self, command: CommitCursors | DeleteCursors | DeleteGroups) -> list[Code]: ...

    @overload
    async def submit(self, command: PutGroup) -> GroupRow: ...

    @overload
    async def submit(self, command: ExpireCursors) -> Expired: ...

    async def submit(self, command: Command) -> Outcome:
        """Write the command to the log, wait until it is committed and applied; its outcome.

        Raises KafkaError as decided when it was applied, CatalogFailed, StorageFull while `full`, or what the container
        refuses it with. When cancelled the command still takes place.
        """
        if self._closing.is_set() or self.failed.done():
            raise CatalogFailed("the catalog is closed")
        if self.full:
            raise StorageFull(f"{self._folder} has no room for the catalog; free some")
        try:
            payload = encode(command)
        except ValueError as error:
            raise KafkaError(Code.INVALID_REQUEST, f"the request holds text that is not Unicode: {error}") from error
        waiter: asyncio.Future[Outcome] = self._loop.create_future()
        waiter.add_done_callback(_retrieve)
        appended = self._log.append_command(payload)
        appended.add_done_callback(lambda done: self._on_committed(done, command, waiter))
        return await waiter

    async def query(self, fn: Callable[[Reader], T]) -> T:
        """Run `fn` in a reader thread, where all that it reads is of one moment."""
        if self._closing.is_set():
            raise CatalogFailed("the catalog is closed")
        return await self._loop.run_in_executor(self._read_threads, self._read, fn)

    def on_applied(self, callback: Applied) -> None:
        """Call `callback` with what was applied, in order, on the loop, before the submitters wake."""
        self._callbacks.append(callback)

    async def snapshot(self) -> Position:
        """Write a snapshot; the position it holds. The log is trimmed to the older of the two that are kept.

        (To the older, so that one damaged snapshot is not the end.) Raises OSError or sqlite3.Error, with nothing lost.
        """
        async with self._snapshot_lock:
            position = await self._loop.run_in_executor(self._read_threads, snapshots.write_snapshot, self._folder)
            self._set_snapshot_at(position)
            held = await self._loop.run_in_executor(self._read_threads, snapshots.positions, self._folder)
            if len(held) >= snapshots.KEPT:
                self._log.trim(held[0])
            return position

    async def close(self) -> None:
        """Apply what is committed, then let go of files and threads. Submitters that still wait get CatalogFailed."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._wake.set()
        await asyncio.wait([self._apply_task])  # unlike awaiting it, does not hand a cancellation on
        if self._snapshot_task is not None:
            await asyncio.gather(self._snapshot_task, return_exceptions=True)
        await asyncio.to_thread(self._read_threads.shutdown)
        await asyncio.to_thread(self._apply_thread.shutdown)
        await asyncio.to_thread(self._close_files)

    def _set_snapshot_at(self, position: Position) -> None:
        self._snapshot_at = position
        self._snapshot_due = Position(position + self._snapshot_bytes)

    def _close_files(self) -> None:
        for reader in self._readers:
            reader.close()
        self._connection.close()

    def _on_committed(self, done: asyncio.Future[Position], command: Command, waiter: asyncio.Future[Outcome]) -> None:
        if done.cancelled():
            _fail(waiter, CatalogFailed("the container went away before the command was committed"))
        elif (error := done.exception()) is not None:
            _fail(waiter, error)
        elif self._apply_task.done():
            _fail(waiter, CatalogFailed("the catalog is closed; the command is applied at the next start"))
        else:
            position = done.result()
            assert position > self._seen, f"a command at {position} after {self._seen}: commits came out of order"
            self._seen = position
            self._committed.append(_Committed(position, command, waiter))
            self._wake.set()

    async def _apply_as_committed(self) -> None:
        """The one that feeds the catalog thread; ends when closing and nothing is left, or at an error."""
        batch: list[_Committed] = []
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._committed:
                    batch = [self._committed.popleft() for _ in range(min(AT_ONCE, len(self._committed)))]
                    work = [(each.position, each.command) for each in batch]
                    decided = await self._loop.run_in_executor(self._apply_thread, self._apply, work)
                    if decided is None:
                        raise CatalogFailed("the catalog closed on a full disk; the rest is applied at the next start")
                    self._applied = batch[-1].position
                    self._tell(batch, decided)
                    self._snapshot_if_due()
                if self._closing.is_set():
                    return
        except Exception as error:  # whatever it is, those who wait must hear of it
            await self._give_up(error, batch)

    def _apply(self, work: list[tuple[Position, Command]]) -> list[Decided] | None:
        """[catalog thread] Apply in one transaction, and wait while the disk is full. None if it closed meanwhile."""
        waited = False
        while True:
            try:
                decided = apply_all(self._connection, work)
            except sqlite3.Error as error:
                if not snapshots.is_full(error):
                    raise
                if not waited:
                    log.error("catalog_disk_full", folder=str(self._folder), commands=len(work))
                    waited = self.full = True
                if self._closing.wait(_FULL_DISK_RETRY_S):
                    return None
            else:
                if waited:
                    self.full = False
                    log.info("catalog_disk_has_room", folder=str(self._folder))
                return decided

    def _tell(self, batch: list[_Committed], decided: list[Decided]) -> None:
        applied_ones: list[tuple[Command, Outcome]] = [
            (each.command, outcome)
            for each, outcome in zip(batch, decided, strict=True)
            if not isinstance(outcome, KafkaError)
        ]
        if applied_ones:
            for callback in self._callbacks:
                try:
                    callback(applied_ones)
                except Exception:  # one listener's fault must not stop the catalog, nor those who wait for it
                    log.exception("catalog_listener_failed")
        for each, outcome in zip(batch, decided, strict=True):
            if isinstance(outcome, KafkaError):
                _fail(each.waiter, outcome)
            elif not each.waiter.done():
                each.waiter.set_result(outcome)

    async def _give_up(self, error: Exception, batch: list[_Committed]) -> None:
        if isinstance(error, sqlite3.DatabaseError) and snapshots.is_damage(error):
            await self._loop.run_in_executor(self._apply_thread, _mark_suspect, self._folder)
        if not self._closing.is_set():
            log.error("catalog_failed", folder=str(self._folder), error=repr(error))
        failure = CatalogFailed(f"the catalog cannot go on: {error}; its commands are applied at the next start")
        for each in [*batch, *self._committed]:
            _fail(each.waiter, failure)
        self._committed.clear()
        if not self.failed.done():
            self.failed.set_exception(failure)
            self.failed.exception()  # whoever awaits it gets it; nobody has to

    def _snapshot_if_due(self) -> None:
        if self._applied >= self._snapshot_due and self._snapshot_task is None:
            self._snapshot_task = asyncio.create_task(self._write_due_snapshot(), name="catalog-snapshot")

    async def _write_due_snapshot(self) -> None:
        try:
            # Not before as much log as the tables' own size, or a big catalog would be copied for every few changes.
            size = await asyncio.to_thread(lambda: snapshots.live_file(self._folder).stat().st_size)
            due = Position(self._snapshot_at + size)
            if self._applied < due:
                self._snapshot_due = due
            else:
                await self.snapshot()
        except (sqlite3.Error, OSError) as error:
            log.error("catalog_snapshot_failed", folder=str(self._folder), error=repr(error))
            await asyncio.to_thread(self._closing.wait, _SNAPSHOT_RETRY_S)
        finally:
            self._snapshot_task = None

    def _read(self, fn: Callable[[Reader], T]) -> T:
        reader: Reader | None = getattr(self._of_thread, "reader", None)
        if reader is None:
            reader = self._of_thread.reader = Reader(snapshots.live_file(self._folder))
            self._readers.append(reader)
        try:
            reader.begin()
            return fn(reader)
        except sqlite3.DatabaseError as error:
            if snapshots.is_damage(error):
                _mark_suspect(self._folder)
                self._loop.call_soon_threadsafe(self._fail_reading, error)
            raise
        finally:
            reader.end()

    def _fail_reading(self, error: sqlite3.DatabaseError) -> None:
        if not self.failed.done():
            log.error("catalog_damaged", folder=str(self._folder), error=str(error))
            self.failed.set_exception(CatalogFailed(f"the catalog's file is damaged: {error}"))
            self.failed.exception()


def _mark_suspect(folder: Path) -> None:
    with contextlib.suppress(OSError):
        snapshots.suspect(folder)


def _fail(waiter: asyncio.Future[Outcome], error: BaseException) -> None:
    if not waiter.done():
        waiter.set_exception(error)


def _retrieve(waiter: asyncio.Future[Outcome]) -> None:
    """Mark the error as seen: a cancelled submit leaves nobody to see it."""
    if not waiter.cancelled():
        waiter.exception()
