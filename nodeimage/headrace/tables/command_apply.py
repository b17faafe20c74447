"""Applies the commands that this node's replica has committed, in the order of its log, whichever node submitted them.

    `committed` moves -> read the commands from memory, or from disk -> the catalog thread applies them in one
    transaction -> `on_applied` on the loop: notify listeners, then submitters, then waiters for a position

When the tables turn out to be damaged, applying stops and `on_damaged` is called; everything waits until the tables are
rebuilt (`rebuild` or `install`), or until `go_on_damaged` is called because no node has undamaged tables. From then on
a command that meets damage is refused, and others are applied.

The catalog thread applies all commands that are committed at that time, up to the limit of one transaction. Everything
else runs on the loop thread. Invariant 2: nothing above the log's `committed` is read.
"""

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import structlog

from headrace.base.errors import CorruptLog, HeadraceError, OutOfDescriptors, StorageFull, TrimmedLog
from headrace.base.ids import Position
from headrace.base.levels import Level
from headrace.tables import snapshots
from headrace.tables.command_log import CommandLog, Written, next_batch, replay, shortened
from headrace.tables.deaths import DeathReport
from headrace.tables.live_copy import Room
from headrace.tables.outcomes import CatalogFailed, Outcomes
from headrace.tables.row_checksums import Mark, Tables
from headrace.tables.schema import Command, Decided, Schema
from headrace.tables.sqlite_errors import cannot_open, is_damage, is_full
from headrace.tables.transactions import apply_all

log = structlog.get_logger(__name__)

T = TypeVar("T")

_FULL_DISK_RETRY_S = 1.0
_OPEN_RETRIES: Final = 10
"""Limit of attempts to open a file that SQLite cannot open although file descriptors are left; SQLite gives no
reason."""
_READ_RETRY_S = 0.2
_READ_RETRIES: Final = 10
"""Limit of attempts to read the log, which is closed for a moment while it is cut or restarted."""
_DAMAGED_RETRY_S = 5.0
"""Longest pause, in seconds, between two attempts to read a damaged log, which is fetched again once other nodes have
its contents."""
_SUM_PAUSE_S: Final = 0.02
"""Seconds between two batches of rows that get their checksums."""
_TRIMMED_S: Final = 60.0
"""Seconds without progress after which the catalog fails if its log has been trimmed beyond the position of the tables.
The tables are then fetched from another node, and none seems to have them."""


class AppliedCommand(NamedTuple):
    """A command that was applied, the position after it, and its outcome."""

    position: Position
    payload: bytes
    command: Command
    decided: Decided


class Applier:
    """Applies commands to the tables; owns the tables' connection and the catalog thread."""

    def __init__(
        self,
        *,
        folder: Path,
        command_log: CommandLog,
        connection: Tables,
        outcomes: Outcomes,
        schema: Schema,
        on_applied: Callable[[Sequence[AppliedCommand]], None],
        on_replaced: Callable[[Position], None],
        on_dead_records: Callable[[DeathReport], None],
        on_damaged: Callable[[sqlite3.Error], None],
        may: Callable[[int], bool],
        room: Room,
    ) -> None:
        """`on_applied` is called with every applied batch, and `on_replaced` after the tables were replaced, in order;
        `on_dead_records` before `on_applied`, with the partitionlets that lost records; `on_damaged` with damage that
        was met while applying. `may`: whether data of a feature level may be written. `room` is checked before a
        snapshot is installed."""
        self.connection = connection
        """The connection to the tables; used only by the catalog thread while it runs."""
        self.paused = False
        """Whether nothing is applied because the tables are damaged."""
        self.generation = 0
        """Rises when readers have to open the tables again."""
        self.full = False
        """Whether committed commands, and thus their submitters, wait for room on the disk."""
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done with the error if nothing can be applied any more."""
        self._folder = folder
        self._log = command_log
        self._on_damaged = on_damaged
        self._may = may
        self._outcomes = outcomes
        self._schema = schema
        self._on_applied = on_applied
        self._on_dead_records = on_dead_records
        self._on_replaced = on_replaced
        self._room = room
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="catalog")
        self._turn = asyncio.Lock()
        """Held while the tables are changed."""
        self._wake = asyncio.Event()
        self._wake.set()
        self._closing = threading.Event()
        self._read_failures = 0
        self._unread_since = 0.0
        self._until = Position(0)
        """The position up to which commands are being applied, or a snapshot installed; 0 otherwise. The log may be cut
        below it meanwhile."""
        self._waiting: list[tuple[Position, asyncio.Future[None]]] = []
        command_log.on_committed(self._wake.set)
        self._task = asyncio.create_task(self._run(), name="catalog-apply")

    @property
    def applied(self) -> Position:
        """The position below which everything is applied, and visible to queries."""
        return self._outcomes.applied

    @property
    def reach(self) -> Position:
        """The position up to which commands are applied or being applied."""
        return max(self.applied, self._until)

    async def wait(self, position: Position) -> None:
        """Wait until everything below `position` is applied here. Raises CatalogFailed."""
        if self._outcomes.failure is not None:
            raise self._outcomes.failure
        if position > self.applied:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiting.append((position, waiter))
            await waiter

    async def let_append(self) -> None:
        """Wait until this node may append: it may at once, unless the log that it leads has lost its end."""
        if self._log.end >= self.reach:
            return
        async with self._turn:
            end = self._log.end
            if self._log.leads and end < self.applied and self._outcomes.failure is None:
                await self._in_thread(lambda: self._shortened(end))
                self._outcomes.applied = end

    def tables_come(self) -> None:
        """A part of the lost tables has arrived: the time limit for them starts again."""
        self._unread_since = self._loop.time()

    async def install(self, snapshot: Path, position: Position, *, log_stays: bool) -> None:
        """Replace the tables by those of `snapshot`, whose applied position is `position`. `log_stays`: the log has the
        commands committed after that position; otherwise it is about to begin there.

        Queries under way continue in the old tables. Raises HeadraceError for a bad file, StorageFull, both with
        nothing changed, OSError, sqlite3.Error. After an error nothing has changed, or the applier has `failed`.
        """
        async with self._turn:
            if self._outcomes.failure is not None:
                raise self._outcomes.failure
            committed = self._log.committed
            if log_stays and not self.applied < position <= committed:
                raise HeadraceError(
                    f"a snapshot at {position} does not lie between the tables, at {self.applied}, and what is "
                    f"committed of this log, up to {committed}"
                )
            if not log_stays and committed > position:
                raise HeadraceError(f"a snapshot at {position} is older than this log, committed to {committed}")
            before = self.connection
            await self._replace(
                lambda: snapshots.install(
                    self._folder,
                    before,
                    snapshot,
                    position,
                    self._schema,
                    sums=self._may_add_sums(),
                    damaged=self.paused or before.tolerates,
                    room=self._room,
                    stop=self._closing,
                ),
                position,
            )

    async def rebuild(self, snapshot: Path | None, position: Position, *, keep: bool) -> None:
        """Rebuild damaged tables from an undamaged snapshot (None: from empty tables at position 0) and from the log.

        `keep`: the snapshot is another node's, and replaces all of this node's. Raises HeadraceError for a damaged
        snapshot, and if the log does not reach from there to the applied position (TrimmedLog); OSError, StorageFull,
        sqlite3.Error. After an error nothing has changed, or the applier has `failed`.
        """
        async with self._turn:
            if self._outcomes.failure is not None:
                raise self._outcomes.failure
            until = self._log.committed
            if not position <= until or until < self.applied:
                raise HeadraceError(
                    f"the tables, applied up to {self.applied}, cannot be rebuilt from a snapshot at {position} and a "
                    f"log that is committed up to {until}"
                )
            before = self.connection

            def made() -> Tables:
                return snapshots.rebuild(
                    self._folder,
                    before,
                    snapshot,
                    lambda tables: replay(tables, self._log.commands(position, until), self._schema),
                    self._schema,
                    sums=self._may_add_sums(),
                    keep=position if keep else None,
                    room=self._room,
                    stop=self._closing,
                )

            await self._replace(made, until)

    async def _replace(self, made: Callable[[], Tables], until: Position) -> None:
        """Continue with the tables that `made` returns, in a thread; they are applied up to `until`. After an error the
        present ones stay, unless they are closed: then the applier has `failed`.
        """
        before = self.connection
        self._until = until
        try:
            self.connection = await self._in_thread(made)
        except Exception as error:
            if before.is_closed:
                self.fail(error)
            raise
        finally:
            self._until = Position(0)
        self._tables_replaced(until)

    def pause(self) -> None:
        """Stop applying, since the tables are damaged."""
        self.paused = True

    def go_on_damaged(self) -> None:
        """Continue applying commands that do not meet the damage, since no node has undamaged tables."""
        self.paused = False
        self.connection.tolerates = True
        self._wake.set()

    async def marks(self) -> list[Mark]:
        """Digests of the tables at some positions, the newest last; empty while they are not known."""
        if self.paused or self.connection.tolerates or self._outcomes.failure is not None or self._closing.is_set():
            return []
        async with self._turn:
            tables = self.connection
            if not tables.summed or not tables.filled:
                return []
            return [*tables.marks, tables.now()]

    def _may_add_sums(self) -> bool:
        """Whether rows get checksums."""
        return self._may(Level.FENCED)

    def _tables_replaced(self, position: Position) -> None:
        """The tables were replaced by others that are applied up to `position`."""
        log.info("catalog_replaced", folder=str(self._folder), position=position)
        self.paused = self.connection.tolerates = False
        self.generation += 1
        self._outcomes.applied = position
        self._read_failures = 0
        self.connection.deaths.take()
        self._on_replaced(position)
        self._outcomes.jump(position)
        self._wake_waiters()
        self._wake.set()

    async def close(self) -> None:
        """Apply what is committed, then end the thread."""
        self._closing.set()
        self._wake.set()
        await asyncio.wait([self._task])  # unlike awaiting the task, does not propagate a cancellation to it
        async with self._turn:
            await asyncio.to_thread(self._thread.shutdown)

    def fail(self, error: Exception) -> None:
        """Stop applying after an error; all waiters get CatalogFailed."""
        if not self._closing.is_set():
            log.error("catalog_failed", folder=str(self._folder), error=repr(error))
        failure = CatalogFailed(f"the catalog cannot continue: {error}; what is committed is applied at the next start")
        failure.__cause__ = error
        if not self.failed.done():
            self.failed.set_exception(failure)
            self.failed.exception()  # mark the error as seen, in case nothing awaits the future
        self._fail_waiters(failure)

    def _wake_waiters(self) -> None:
        """Wake waiters for positions that are applied now."""
        if self._waiting:
            applied = self.applied
            due = [waiter for position, waiter in self._waiting if position <= applied]
            self._waiting = [each for each in self._waiting if each[0] > applied and not each[1].done()]
            for waiter in due:
                if not waiter.done():
                    waiter.set_result(None)

    def _fail_waiters(self, failure: CatalogFailed) -> None:
        self._outcomes.fail(failure)
        for _, waiter in self._waiting:
            if not waiter.done():
                waiter.set_exception(failure)
                waiter.exception()
        self._waiting.clear()

    async def _run(self) -> None:
        """Feed the catalog thread, until an error occurs, or the applier closes and nothing is left to apply."""
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while await self._apply_some():
                    pass
                await self._sum_some()
                if self._closing.is_set():
                    self._fail_waiters(
                        CatalogFailed("the catalog is closed; what is committed is applied at the next start")
                    )
                    return
        except Exception as error:  # waiters must get any error
            self.fail(error)

    async def _apply_some(self) -> bool:
        """Apply some of the committed commands; returns whether there may be more."""
        async with self._turn:
            until = self._log.committed
            if until <= self.applied or self.paused:
                return False
            self._until = until
            try:
                return await self._apply_up_to(until)
            except sqlite3.DatabaseError as error:
                if not is_damage(error):
                    raise
                self.paused = True
                self._on_damaged(error)
                return False
            finally:
                self._until = Position(0)

    async def _sum_some(self) -> None:
        """Add checksums to some rows of older tables, once the cluster's feature level permits checksums."""
        if self.paused or self.full or (self.connection.summed and self.connection.filled) or not self._may_add_sums():
            return
        async with self._turn:
            tables = self.connection
            try:
                if not tables.summed:
                    await self._in_thread(tables.add_sums)
                    log.info("catalog_sums", folder=str(self._folder))
                    self.generation += 1
                if await self._in_thread(tables.fill_some):
                    self._loop.call_later(_SUM_PAUSE_S, self._wake.set)
                else:
                    self.generation += 1
            except (StorageFull, sqlite3.DatabaseError) as error:
                if isinstance(error, sqlite3.DatabaseError) and is_damage(error):
                    self.paused = True
                    self._on_damaged(error)
                    return
                log.warning("catalog_sums_wait", folder=str(self._folder), error=str(error))
                self._loop.call_later(_FULL_DISK_RETRY_S, self._wake.set)

    async def _apply_up_to(self, until: Position) -> bool:
        found = self._log.recent(self.applied)
        if found is not None:
            batch, last = next_batch(iter(found))
        else:
            read = await self._read(self.applied, until)
            if read is None:
                return False
            batch, last = read
        self._read_failures = 0
        done: list[AppliedCommand] | None = []
        if batch:
            done = await self._loop.run_in_executor(self._thread, self._apply, batch)
            if done is None:
                raise CatalogFailed("the catalog closed on a full disk")
        self._outcomes.applied = until if last else batch[-1][0]
        died = self.connection.deaths.take()  # the catalog thread is idle
        if died.pairs:
            self._on_dead_records(died)
        if done:
            self._on_applied(done)
        self._wake_waiters()
        return not last or self._log.committed > until

    async def _read(self, after: Position, until: Position) -> tuple[list[Written], bool] | None:
        """Read commands from disk, and whether they are the last; None if the read failed and is to be retried."""
        try:
            return await self._in_thread(lambda: next_batch(self._log.commands(after, until)))
        except Exception as error:
            if not self._read_failures:
                self._unread_since = self._loop.time()
            self._read_failures += 1
            is_corrupt = isinstance(error, CorruptLog)
            waits = is_corrupt or isinstance(error, OutOfDescriptors)
            if isinstance(error, TrimmedLog):
                is_over = self._loop.time() - self._unread_since > _TRIMMED_S
            else:
                is_over = self._read_failures > _READ_RETRIES and not waits
            if is_over:
                raise
            log.warning("catalog_log_unread", after=after, until=until, error=repr(error))
            retry_s = min(_READ_RETRY_S * self._read_failures, _DAMAGED_RETRY_S) if waits else _READ_RETRY_S
            self._loop.call_later(retry_s, self._wake.set)
            return None

    async def _in_thread(self, work: Callable[[], T]) -> T:
        try:
            return await self._loop.run_in_executor(self._thread, work)
        except sqlite3.Error as error:
            if cannot_open(error):
                raise OutOfDescriptors(f"{self._folder}: a file cannot be opened just now: {error}") from error
            if is_full(error):
                raise StorageFull(f"{self._folder} has no room for the catalog; free some") from error
            raise

    def _shortened(self, end: Position) -> None:
        """[catalog thread] Continue with the tables as they are, although the log now ends at `end`, before them."""
        snapshots.drop_above(self._folder, end)
        shortened(self.connection, end)

    def _apply(self, batch: list[Written]) -> list[AppliedCommand] | None:
        """[catalog thread] Apply a batch in one transaction, retrying while the disk is full or SQLite cannot open a
        file. None if the applier closed meanwhile."""
        commands = [self._outcomes.command(payload) or self._schema.decode(payload) for _, payload in batch]
        work = [(position, command) for (position, _), command in zip(batch, commands, strict=True)]
        waited = False
        unopened = 0
        while True:
            try:
                decided = apply_all(self.connection, work, self._schema)
            except sqlite3.Error as error:
                if not is_full(error):
                    unopened += 1  # retried, since descriptors may be available again by now
                    if not cannot_open(error) or unopened > _OPEN_RETRIES:
                        raise
                if not waited:
                    log.error("catalog_disk_full", folder=str(self._folder), commands=len(work), reason=str(error))
                    waited = self.full = True
                if self._closing.wait(_FULL_DISK_RETRY_S):
                    return None
            else:
                if waited:
                    self.full = False
                    log.info("catalog_disk_has_room", folder=str(self._folder))
                return [
                    AppliedCommand(position, payload, command, each)
                    for (position, payload), command, each in zip(batch, commands, decided, strict=True)
                ]


def mark_suspect(folder: Path) -> None:
    """[blocking] Mark the tables, so that the next start does not trust them."""
    with contextlib.suppress(OSError):
        snapshots.suspect(folder)
