"""Applies what this node's replica has committed, in the order of its log, whoever submitted it.

    committed moves -> the commands from memory, or from the disk -> the catalog thread applies them in one transaction
    -> `told` on the loop: listeners, then submitters, then those who wait for a position

Tables that turn out damaged are not applied to: `damaged` hears of it, and all waits until they are made anew
(`rebuild` or `install`), or `go_on_damaged` says that nobody has others. Then a command that meets damage is refused,
alone.

The catalog thread takes all commands that are committed by then, as many as one transaction takes. Everything else is
of the loop thread. Invariant 2: nothing above the log's `committed` is asked for.
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
from headrace.tables.deaths import Died
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
"""Of a file that SQLite cannot open though others can be opened: SQLite does not say why."""
_READ_RETRY_S = 0.2
_READ_RETRIES: Final = 10
"""Of the log: it is closed for a moment while it is cut or begins anew."""
_DAMAGED_RETRY_S = 5.0
"""At most between two tries of a log that is damaged: it is fetched anew as soon as others have what it holds."""
_SUM_PAUSE_S: Final = 0.02
"""Between two pieces of rows that get their checksums."""
_TRIMMED_S: Final = 60.0
"""Of a log that begins behind what the tables have, as they were lost: they are fetched. Where nothing of them has come
for so long, nobody has them."""


class AppliedCommand(NamedTuple):
    """A command as it was applied."""

    position: Position
    payload: bytes
    command: Command
    decided: Decided


class Applier:
    """Owns the tables' connection and the catalog thread."""

    def __init__(
        self,
        *,
        folder: Path,
        command_log: CommandLog,
        connection: Tables,
        outcomes: Outcomes,
        schema: Schema,
        told: Callable[[Sequence[AppliedCommand]], None],
        replaced: Callable[[Position], None],
        died: Callable[[Died], None],
        damaged: Callable[[sqlite3.Error], None],
        may: Callable[[int], bool],
        room: Room,
    ) -> None:
        """`told` hears of every batch that was applied, `replaced` of tables from elsewhere, in order. `died` hears
        before that of the partitionlets that lost records. `damaged` hears what applying met; `may`: whether what
        belongs to a feature level may be written; `room` is asked before a snapshot is installed."""
        self.connection = connection
        """Of the tables. The catalog thread's, while there is one."""
        self.paused = False
        """The tables are damaged, and nothing is applied to them."""
        self.generation = 0
        """Rises when readers have to open the tables again."""
        self.full = False
        """Committed commands wait for room on the disk, and so do those who submitted them."""
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Resolves with the error if nothing can be applied any more."""
        self._folder = folder
        self._log = command_log
        self._damaged = damaged
        self._may = may
        self._outcomes = outcomes
        self._schema = schema
        self._told = told
        self._died = died
        self._replaced = replaced
        self._room = room
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="catalog")
        self._turn = asyncio.Lock()
        """Held by whoever changes the tables."""
        self._wake = asyncio.Event()
        self._wake.set()
        self._closing = threading.Event()
        self._read_failures = 0
        self._unread_since = 0.0
        self._until = Position(0)
        """While something is being applied, or installed: up to where. The log may be cut below that meanwhile."""
        self._waiting: list[tuple[Position, asyncio.Future[None]]] = []
        command_log.on_committed(self._wake.set)
        self._task = asyncio.create_task(self._run(), name="catalog-apply")

    @property
    def applied(self) -> Position:
        """Everything below is applied, and visible to queries."""
        return self._outcomes.applied

    @property
    def reach(self) -> Position:
        """Nothing above is applied, nor will be by what is under way."""
        return max(self.applied, self._until)

    async def wait(self, position: Position) -> None:
        """Return once everything below `position` is applied here. Raises CatalogFailed."""
        if self._outcomes.failure is not None:
            raise self._outcomes.failure
        if position > self.applied:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiting.append((position, waiter))
            await waiter

    async def let_append(self) -> None:
        """Return when this node may append: at once, unless the log that it leads lost its end."""
        if self._log.end >= self.reach:
            return
        async with self._turn:
            end = self._log.end
            if self._log.leads and end < self.applied and self._outcomes.failure is None:
                await self._in_thread(lambda: self._shortened(end))
                self._outcomes.applied = end

    def tables_come(self) -> None:
        """Some of the tables that were lost has come: they are waited for longer."""
        self._unread_since = self._loop.time()

    async def install(self, snapshot: Path, position: Position, *, log_stays: bool) -> None:
        """Replace the tables by those of `snapshot`, of which `position` was the applied position. `log_stays`: the
        log has what was committed behind that; else it is about to begin there.

        Queries under way go on in the old tables. Raises HeadraceError for a bad file, StorageFull; nothing has changed
        then.
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
            self._until = position
            try:
                self.connection = await self._in_thread(
                    lambda: snapshots.install(
                        self._folder,
                        self.connection,
                        snapshot,
                        position,
                        self._schema,
                        sums=self._sums(),
                        damaged=self.paused or self.connection.tolerates,
                        room=self._room,
                        stop=self._closing,
                    )
                )
            finally:
                self._until = Position(0)
            self._come(position)

    async def rebuild(self, snapshot: Path | None, position: Position, *, keep: bool) -> None:
        """Make damaged tables anew, of a snapshot that is whole (None: of nothing, at position 0) and of the log.

        `keep`: the snapshot is another node's, and becomes the only one here. Raises HeadraceError for a damaged
        snapshot, and where the log does not have all from there up to what is applied (TrimmedLog); OSError,
        StorageFull, sqlite3.Error. Nothing has changed then, or the applier has `failed`.
        """
        async with self._turn:
            if self._outcomes.failure is not None:
                raise self._outcomes.failure
            until = self._log.committed
            if not position <= until or until < self.applied:
                raise HeadraceError(
                    f"the tables, applied up to {self.applied}, cannot be made of a snapshot at {position} and a log "
                    f"that is committed up to {until}"
                )
            self._until = until
            before = self.connection

            def made() -> Tables:
                return snapshots.rebuild(
                    self._folder,
                    before,
                    snapshot,
                    lambda tables: replay(tables, self._log.commands(position, until), self._schema),
                    self._schema,
                    sums=self._sums(),
                    keep=position if keep else None,
                    room=self._room,
                    stop=self._closing,
                )

            try:
                self.connection = await self._in_thread(made)
            except Exception as error:
                if _is_closed(before):
                    self.fail(error)
                raise
            finally:
                self._until = Position(0)
            self._come(until)

    def pause(self) -> None:
        """Apply nothing from now on: the tables are damaged."""
        self.paused = True

    def go_on_damaged(self) -> None:
        """Apply to damaged tables what does not meet the damage: nobody has others."""
        self.paused = False
        self.connection.tolerates = True
        self._wake.set()

    async def marks(self) -> list[Mark]:
        """What the tables came to at some positions, the newest last; nothing while that cannot be told."""
        if self.paused or self.connection.tolerates or self._outcomes.failure is not None or self._closing.is_set():
            return []
        async with self._turn:
            tables = self.connection
            if not tables.summed or not tables.filled:
                return []
            return [*tables.marks, tables.now()]

    def _sums(self) -> bool:
        """Whether rows get checksums."""
        return self._may(Level.FENCED)

    def _come(self, position: Position) -> None:
        """The tables are others, at `position`."""
        log.info("catalog_replaced", folder=str(self._folder), position=position)
        self.paused = self.connection.tolerates = False
        self.generation += 1
        self._outcomes.applied = position
        self._read_failures = 0
        self.connection.deaths.take()
        self._replaced(position)
        self._outcomes.jump(position)
        self._reached()
        self._wake.set()

    async def close(self) -> None:
        """Apply what is committed, then let go of the thread and the connection."""
        self._closing.set()
        self._wake.set()
        await asyncio.wait([self._task])  # unlike awaiting it, does not hand a cancellation on
        async with self._turn:
            await asyncio.to_thread(self._thread.shutdown)

    def fail(self, error: Exception) -> None:
        """Nothing can be applied any more."""
        if not self._closing.is_set():
            log.error("catalog_failed", folder=str(self._folder), error=repr(error))
        failure = CatalogFailed(f"the catalog cannot go on: {error}; what is committed is applied at the next start")
        failure.__cause__ = error
        if not self.failed.done():
            self.failed.set_exception(failure)
            self.failed.exception()  # whoever awaits it gets it; nobody has to
        self._end(failure)

    def _reached(self) -> None:
        """Wake those who wait for what is applied by now."""
        if self._waiting:
            applied = self.applied
            due = [waiter for position, waiter in self._waiting if position <= applied]
            self._waiting = [each for each in self._waiting if each[0] > applied and not each[1].done()]
            for waiter in due:
                if not waiter.done():
                    waiter.set_result(None)

    def _end(self, failure: CatalogFailed) -> None:
        self._outcomes.fail(failure)
        for _, waiter in self._waiting:
            if not waiter.done():
                waiter.set_exception(failure)
                waiter.exception()
        self._waiting.clear()

    async def _run(self) -> None:
        """The one that feeds the catalog thread; ends when closing and nothing is left, or at an error."""
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while await self._apply_some():
                    pass
                await self._sum_some()
                if self._closing.is_set():
                    self._end(CatalogFailed("the catalog is closed; what is committed is applied at the next start"))
                    return
        except Exception as error:  # whatever it is, those who wait must hear of it
            self.fail(error)

    async def _apply_some(self) -> bool:
        """Apply some of what is committed; whether there may be more."""
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
                self._damaged(error)
                return False
            finally:
                self._until = Position(0)

    async def _sum_some(self) -> None:
        """Give the rows of older tables their checksums, some at a time, once the cluster's level lets them have
        any."""
        if self.paused or self.full or (self.connection.summed and self.connection.filled) or not self._sums():
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
                    self._damaged(error)
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
        died = self.connection.deaths.take()  # the catalog thread rests
        if died.pairs:
            self._died(died)
        if done:
            self._told(done)
        self._reached()
        return not last or self._log.committed > until

    async def _read(self, after: Position, until: Position) -> tuple[list[Written], bool] | None:
        """Commands from the disk; None if it should be tried again."""
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
        """[catalog thread]"""
        snapshots.drop_above(self._folder, end)
        shortened(self.connection, end)

    def _apply(self, batch: list[Written]) -> list[AppliedCommand] | None:
        """[catalog thread] Apply in one transaction, and wait while the disk is full, or SQLite can open no file. None
        if it closed meanwhile."""
        commands = [self._outcomes.command(payload) or self._schema.decode(payload) for _, payload in batch]
        work = [(position, command) for (position, _), command in zip(batch, commands, strict=True)]
        waited = False
        unopened = 0
        while True:
            try:
                decided = apply_all(self.connection, work, self._schema)
            except sqlite3.Error as error:
                if not is_full(error):
                    unopened += 1  # by now there may be descriptors again
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


def _is_closed(connection: sqlite3.Connection) -> bool:
    try:
        connection.total_changes  # noqa: B018
    except sqlite3.ProgrammingError:
        return True
    return False


def mark_suspect(folder: Path) -> None:
    """[blocking] The next start does not trust the tables."""
    with contextlib.suppress(OSError):
        snapshots.suspect(folder)
