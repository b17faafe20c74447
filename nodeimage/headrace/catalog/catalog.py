"""The catalog of one node: commands in, outcomes out, in the order of the catalog container's log.

    submit -> the container's log, here or at the node that leads it -> committed in this node's replica
           -> applied by the catalog thread -> on_applied -> the submitter wakes

Every node applies the commands that its own replica has committed, whichever node submitted them (command_apply.py);
submission.py gets commands into the log. Queries run in a few reader threads. Nothing here blocks the loop. Knows the
container only as a CommandLog, other nodes only as a Route, and nothing of Kafka's protocol.

Failures:

- Crash between commit and apply: the replay at `open` applies the command once (the applied position moves with the
  rows).
- Cancelled submit: the command is applied nevertheless.
- Leader that steps down: the submitter tries again at the next leader.
- Full disk: the log has the commands; applying waits and is retried each second, and submitters wait with it.
- Damaged tables, detected by queries, applying, the scrub, writing a snapshot, and the comparison between nodes
  (`found_damage`): nothing more is applied, queries of undamaged rows are answered, other queries fail, and
  `on_damage` notifies the component that has the tables rebuilt (`rebuild`, `install`). Without such a component the
  catalog fails (`failed` lets the node stop), and the next start, which does not trust tables that were found damaged,
  rebuilds them.
- Replica too far behind for the leader's log: `install`.
"""

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import structlog

from headrace.base.errors import Code, FolderRefused, HeadraceError, KafkaError, StorageFull
from headrace.base.ids import Position
from headrace.base.levels import Level
from headrace.catalog.chains import ShortenChains
from headrace.catalog.command import CatalogCommand
from headrace.catalog.commands import decode, encode
from headrace.catalog.reader import Reader
from headrace.catalog.rows import Replaced
from headrace.catalog.tables import SCHEMA
from headrace.tables import snapshots
from headrace.tables.command_apply import AppliedCommand, Applier, mark_suspect
from headrace.tables.command_log import CommandLog, open_and_replay
from headrace.tables.deaths import UNKNOWN, DeathReport
from headrace.tables.live_copy import Room, plenty
from headrace.tables.outcomes import CatalogFailed, Outcomes
from headrace.tables.query_threads import ReaderThreads
from headrace.tables.row_checksums import Mark, Tables
from headrace.tables.snapshot_pool import SharedSnapshot, SnapshotPool
from headrace.tables.submission import Route, Submitter
from headrace.tables.table_scrub import TablesScrub

__all__ = ["Applied", "Catalog", "CatalogFailed", "Change"]

log = structlog.get_logger(__name__)

T = TypeVar("T")

_SNAPSHOT_RETRY_S = 60.0
_CLOSING_POLL_S = 0.2
MAX_COMMAND_BYTES: Final = 32 << 20
"""Limit of a command's bytes: a command is one frame of the log, and every node holds it in memory as a whole."""


Change = tuple[CatalogCommand[Any], Any] | tuple[Replaced, None]
"""An applied command and its outcome; or, alone in its list, that all rows have been replaced."""

Applied = Callable[[Sequence[Change]], None]
"""Called on the loop with applied commands, in order; refused commands are left out."""


class Catalog:
    """The catalog of one node. Created by `open`; all other methods are called on the loop's thread."""

    def __init__(
        self,
        folder: Path,
        command_log: CommandLog,
        connection: Tables,
        *,
        applied: Position,
        route: Route | None,
        snapshot_bytes: int,
        may: Callable[[int], bool],
        room: Room,
    ) -> None:
        self._folder = folder
        self._log = command_log
        self._snapshot_bytes = snapshot_bytes
        self._loop = asyncio.get_running_loop()
        self._reading = ReaderThreads(
            lambda: snapshots.live_file(folder),
            Reader,
            generation=lambda: self._applier.generation,
            damaged=self.found_damage,
        )
        self._read_threads = self._reading.executor
        self._closing = threading.Event()
        self._callbacks: list[Applied] = []
        self._died_callbacks: list[Callable[[DeathReport], None]] = []
        self.deaths_at_open = connection.deaths.count_at_open
        """The tables' count of deaths before the commands that were replayed at their opening; UNKNOWN if deaths were
        not counted, or if the tables were replaced before the first `on_dead_records`."""
        self.death_report_at_open = connection.deaths.take()
        """The partitionlets that lost records through that replay, and since then until the first `on_dead_records`."""
        self._set_snapshot_at(Position(0))
        self._snapshot_thread = ThreadPoolExecutor(1, thread_name_prefix="catalog-snapshot")
        self._snapshots = SnapshotPool(
            folder,
            executor=self._snapshot_thread,
            room=room,
            stop=self._closing,
            written=self._set_snapshot_at,
            trim=command_log.trim,
            damaged=self.found_damage,
        )
        self._room = room
        self._scrub_thread = ThreadPoolExecutor(1, thread_name_prefix="catalog-scrub")
        self._snapshot_task: asyncio.Task[None] | None = None
        self._may = may
        self.damage = ""
        """Why the tables cannot be trusted; empty if they can."""
        self.restored = connection.restored
        """Why the tables were rebuilt when they were opened; empty if they were used as they were."""
        self.served_damaged = False
        """Whether damaged tables are in use because no node has others: only their undamaged rows are served."""
        self._on_damage: list[Callable[[], None]] = []
        self._outcomes = Outcomes(applied)
        self._applier = Applier(
            folder=folder,
            command_log=command_log,
            connection=connection,
            outcomes=self._outcomes,
            schema=SCHEMA,
            on_applied=self._notify_applied,
            on_replaced=self._notify_replaced,
            on_dead_records=self._notify_died,
            on_damaged=lambda error: self.found_damage(str(error)),
            may=may,
            room=room,
        )
        self._submitter = Submitter(
            command_log=command_log, applier=self._applier, outcomes=self._outcomes, route=route
        )
        self._scrub = TablesScrub(
            check_rows=self._check_rows,
            check_file=self._check_file,
            found=self.found_damage,
            is_small=lambda: snapshots.is_live_small(folder),
        )

    @property
    def _connection(self) -> Tables:
        return self._applier.connection

    @classmethod
    async def open(
        cls,
        folder: Path,
        command_log: CommandLog,
        *,
        route: Route | None = None,
        snapshot_bytes: int = 64 << 20,
        may: Callable[[int], bool] = lambda _level: True,
        room: Room = plenty,
    ) -> "Catalog":
        """Open the tables, or restore them from a snapshot, and apply the committed commands that they lack.

        `route` forwards commands to the catalog's leader while this node does not lead. A snapshot is written after
        each `snapshot_bytes` of log. `may`: whether commands of a feature level may be written. `room` is checked
        before a snapshot is written or installed. Raises FolderRefused for a newer format, StorageFull.
        """
        open_tables = partial(open_and_replay, folder, command_log, SCHEMA, sums=may(Level.FENCED))
        connection, position = await asyncio.to_thread(open_tables)
        catalog = cls(
            folder,
            command_log,
            connection,
            applied=position,
            route=route,
            snapshot_bytes=snapshot_bytes,
            may=may,
            room=room,
        )
        held = await asyncio.to_thread(snapshots.positions, folder)
        if held:
            catalog._set_snapshot_at(held[-1])
        return catalog

    @staticmethod
    def applied_in(folder: Path) -> Position:
        """[blocking] The position up to which the tables in `folder` are applied, before they are opened; everything
        below it was committed.

        A replica's log that is opened later may use this as its `committed`. Raises as `open`.
        """
        return snapshots.applied_in(folder, SCHEMA)

    @property
    def applied(self) -> Position:
        """Commands below this position are applied, and visible to queries."""
        return self._applier.applied

    @property
    def reach(self) -> Position:
        """The position up to which commands are applied or being applied; what is above it is applied only after a
        further commit."""
        return self._applier.reach

    @property
    def full(self) -> bool:
        """Whether committed commands, and thus their submitters, wait for room on the disk."""
        return self._applier.full

    @property
    def failed(self) -> asyncio.Future[None]:
        """Done with the error if the catalog cannot continue; the process should then end."""
        return self._applier.failed

    async def submit(self, command: CatalogCommand[T], *, here: bool = False) -> T:
        """Get a command into the log, wait until it is committed and applied on this node, and return its outcome.

        While another node leads, the command is sent to that node; attempts are repeated for 15 s at most. `here`:
        submit only if this node leads, and do not repeat.

        Raises KafkaError as decided when the command was applied, KafkaError(MESSAGE_TOO_LARGE),
        KafkaError(NOT_COORDINATOR) with `here` if this node does not lead, KafkaError(REQUEST_TIMED_OUT) after those 15
        s, CatalogFailed, StorageFull while `full`, or the container's error. After a cancellation or a timeout the
        command may still be applied.
        """
        self._check_usable()
        self._check_level(command)
        try:
            payload = encode(command)
        except ValueError as error:
            raise KafkaError(Code.INVALID_REQUEST, f"the request holds text that is not Unicode: {error}") from error
        _check_size(payload)
        return cast(T, await self._submitter.submit(command, payload, here=here))

    async def append(self, payload: bytes, *, admit: Callable[[], None] = lambda: None) -> Position:
        """Append a command, forwarded by another node's `route`, to the log that this node leads; returns its position
        once committed.

        `admit` is called just before, and may raise to refuse the command. Raises KafkaError(NOT_CONTROLLER) if this
        node does not lead, UNSUPPORTED_VERSION for a command that it does not know, and otherwise as `submit`; the
        command may be committed nevertheless.
        """
        self._check_usable()
        if not self._log.leads:
            raise KafkaError(Code.NOT_CONTROLLER, "this node does not lead the catalog")
        try:
            self._check_level(decode(payload))
        except FolderRefused as error:  # in the log it would stop every replica
            raise KafkaError(Code.UNSUPPORTED_VERSION, str(error)) from error
        _check_size(payload)
        appended = await self._submitter.append(payload, admit=admit)
        return await asyncio.shield(appended)

    def _check_level(self, command: CatalogCommand[Any]) -> None:
        if not self._may(command.since):
            raise KafkaError(
                Code.UNSUPPORTED_VERSION,
                f"{type(command).__name__} belongs to feature level {command.since:d}, which the cluster is not at "
                "yet: `headrace features show`",
            )

    async def catch_up(self) -> None:
        """Wait until everything that any node has committed by now is applied on this node. Raises as `submit`."""
        await self.submit(ShortenChains(items=[]))

    async def wait_applied(self, position: Position) -> None:
        """Wait until everything below `position` is applied on this node. Raises CatalogFailed."""
        await self._applier.wait(position)

    async def query(self, fn: Callable[[Reader], T]) -> T:
        """Run `fn` in a reader thread, on a consistent view of the tables, and return its result."""
        if self._closing.is_set():
            raise CatalogFailed("the catalog is closed")
        return await self._reading.run(fn)

    def on_applied(self, callback: Applied) -> None:
        """Call `callback` with applied commands, in order, on the loop, before the submitters wake.

        It gets commands of all nodes, and `Replaced` after the tables were replaced by `install` or `rebuild`.
        """
        self._callbacks.append(callback)

    def on_dead_records(self, callback: Callable[[DeathReport], None]) -> None:
        """Call `callback` with the partitionlets that lost records through applied commands, on the loop, before the
        callbacks of `on_applied`. It is not called for records lost through `Replaced`."""
        self._died_callbacks.append(callback)

    @property
    def deaths(self) -> int:
        """How many times commands made a partitionlet in these tables lose records; UNKNOWN if that is not counted."""
        return self._connection.deaths.count

    async def snapshot(self) -> Position:
        """Write a snapshot and return its position. The log is trimmed to the older of the two snapshots that are kept.

        Raises StorageFull, OSError or sqlite3.Error, with nothing lost.
        """
        return await self._snapshots.write()

    async def newest_snapshot(self, least: Position, *, keeps_log: bool) -> SharedSnapshot:
        """The newest snapshot, held open, for a replica that is too far behind for the log: see SnapshotPool.newest.

        Also raises CatalogFailed while the tables are damaged, as no snapshot of damaged tables is given away.
        """
        if self._closing.is_set():
            raise CatalogFailed("the catalog is closed")
        if self.damage:
            raise CatalogFailed("the catalog's tables are damaged here, and no snapshot of them is given away")
        return await self._snapshots.newest(least, keeps_log=keeps_log)

    def tables_come(self) -> None:
        """A part of the snapshot that will replace lost tables has arrived."""
        self._applier.tables_come()

    async def install(self, snapshot: Path, position: Position, *, log_stays: bool = False) -> None:
        """Replace the tables with a snapshot from the leader, applied up to `position`. The file is kept.

        To be called before the log is emptied to begin at `position`, and while nothing new is committed in it: a
        crash in between leaves tables that are ahead of the log, which is safe. Queries under way see the old rows,
        later ones the new rows. Listeners get `Replaced`. Submitters whose command lies below `position` repeat it to
        get an outcome.

        `log_stays`: set if the tables were lost. The log is kept as it is, with the commands committed after
        `position`.

        Raises HeadraceError, StorageFull or OSError with nothing changed, unless the catalog has `failed`.
        """
        self._check_usable()
        await self._run_to_completion(self._install(snapshot, position, log_stays=log_stays))

    # --- damage

    def on_damage(self, callback: Callable[[], None]) -> None:
        """Call `callback`, on the loop, when the tables turn out to be damaged: it has to get them rebuilt."""
        self._on_damage.append(callback)

    def found_damage(self, reason: str) -> None:
        """The tables differ from what was written, or from what the log yields: apply nothing more to them."""
        if self.damage or self.failed.done() or self._closing.is_set():
            return
        self.damage = reason
        log.error("catalog_damaged", folder=str(self._folder), error=reason)
        self._applier.pause()
        marked = self._loop.run_in_executor(self._read_threads, mark_suspect, self._folder)
        if self._on_damage:
            for callback in self._on_damage:
                callback()
        else:
            marked.add_done_callback(lambda _: self._applier.fail(sqlite3.DatabaseError(reason)))

    async def marks(self) -> list[Mark]:
        """Checksums of the tables at some positions of the log, the newest last, for comparison between nodes.

        Empty if they are not known: rows have no checksums yet, or the tables are damaged.
        """
        return [] if self.damage or self._closing.is_set() else await self._applier.marks()

    async def rebuild(self, snapshot: Path, position: Position) -> None:
        """Rebuild damaged tables from another node's snapshot at `position`, whose file is kept, and from this node's
        log. The snapshot replaces this node's own ones.

        Listeners get `Replaced`. Raises HeadraceError for a snapshot that is damaged or older than the log's beginning,
        StorageFull, OSError, all with nothing changed, unless the catalog has `failed`.
        """
        self._check_usable()
        await self._run_to_completion(self._rebuild(snapshot, position, keep=True))

    async def rebuild_alone(self) -> None:
        """Rebuild damaged tables where no other node has any: from this node's newest snapshot, if all of its rows
        are undamaged, and from its log, never from the damaged tables themselves. Raises as `rebuild` if that is not
        possible."""
        self._check_usable()
        newest = await self._snapshots.newest_kept()
        await self._run_to_completion(self._rebuild(*(newest or (None, Position(0))), keep=False))

    def serve_damaged(self) -> None:
        """Continue with damaged tables, as no node has others: only their undamaged rows are served."""
        if self.damage and not self.served_damaged:
            # No other copy is known; the remedy is to put a copy of the node's folder back.
            log.critical("catalog_served_damaged", folder=str(self._folder), error=self.damage)
        self.served_damaged = bool(self.damage)
        if self.damage:
            self._applier.go_on_damaged()

    async def _rebuild(self, snapshot: Path | None, position: Position, *, keep: bool) -> None:
        async with self._snapshots.turn:
            await self._applier.rebuild(snapshot, position, keep=keep)
            self._clear_damage()
            if keep:
                self._set_snapshot_at(position)

    def _clear_damage(self) -> None:
        if self.damage:
            log.info("catalog_repaired", folder=str(self._folder), was=self.damage)
        self.damage = ""
        self.served_damaged = False

    async def _run_to_completion(self, change: Coroutine[None, None, None]) -> None:
        changing = asyncio.create_task(change, name="catalog-install")
        changing.add_done_callback(lambda done: done.cancelled() or done.exception())  # the caller may be gone
        await asyncio.shield(changing)  # an interrupted change would leave memory and tables inconsistent

    async def _check_rows(self, table: str, after: tuple[object, ...], limit: int) -> tuple[object, ...]:
        if self.damage:
            return ()
        return await self.query(lambda reader: reader.check_rows(table, after=after, limit=limit))

    async def _check_file(self) -> None:
        if not self.damage and not self._closing.is_set():
            check = partial(snapshots.check_live, self._folder, room=self._room, stop=self._closing)
            await self._loop.run_in_executor(self._scrub_thread, check)

    async def close(self) -> None:
        """Apply what is committed, then release files and threads. Submitters that still wait get CatalogFailed."""
        if self._closing.is_set():
            return
        self._closing.set()
        await self._scrub.close()
        await self._applier.close()
        if self._snapshot_task is not None:
            await asyncio.gather(self._snapshot_task, return_exceptions=True)
        await self._snapshots.close()
        await asyncio.to_thread(self._snapshot_thread.shutdown)
        await asyncio.to_thread(self._scrub_thread.shutdown)
        await asyncio.to_thread(self._read_threads.shutdown)
        await asyncio.to_thread(self._close_files)

    async def _install(self, snapshot: Path, position: Position, *, log_stays: bool) -> None:
        async with self._snapshots.turn:
            await self._applier.install(snapshot, position, log_stays=log_stays)
            self._clear_damage()
            self._set_snapshot_at(position)

    def _check_usable(self) -> None:
        if self._closing.is_set() or self.failed.done():
            raise CatalogFailed("the catalog is closed")
        if self.full:
            raise StorageFull(f"{self._folder} has no room for the catalog; free some")

    def _set_snapshot_at(self, position: Position) -> None:
        self._snapshot_at = position
        self._snapshot_due = Position(position + self._snapshot_bytes)

    def _close_files(self) -> None:
        self._reading.close_files()
        self._connection.close()

    def _notify_applied(self, done: Sequence[AppliedCommand]) -> None:
        decided = [each for each in done if not isinstance(each.decided, KafkaError)]
        self._call_listeners([(cast(CatalogCommand[Any], each.command), each.decided) for each in decided])
        for each in done:
            self._outcomes.tell(each.position, each.payload, each.decided)
        self._snapshot_if_due()

    def _notify_died(self, died: DeathReport) -> None:
        if not self._died_callbacks:
            self.death_report_at_open = DeathReport(self.death_report_at_open.pairs + died.pairs, died.total)
        for callback in self._died_callbacks:
            callback(died)

    def _notify_replaced(self, position: Position) -> None:
        if not self._died_callbacks:
            self.deaths_at_open = UNKNOWN
        self._call_listeners([(Replaced(position), None)])

    def _call_listeners(self, changes: Sequence[Change]) -> None:
        if changes:
            for callback in self._callbacks:
                try:
                    callback(changes)
                except Exception:  # one listener's error must not stop the catalog or its submitters
                    log.exception("catalog_listener_failed")

    def _snapshot_if_due(self) -> None:
        if self.applied >= self._snapshot_due and self._snapshot_task is None:
            self._snapshot_task = asyncio.create_task(self._write_due_snapshot(), name="catalog-snapshot")

    async def _write_due_snapshot(self) -> None:
        try:
            # The log must have grown by the tables' own size, or a big catalog would be copied for every few changes.
            size = await asyncio.to_thread(lambda: snapshots.live_file(self._folder).stat().st_size)
            due = Position(self._snapshot_at + size)
            if self.applied < due:
                self._snapshot_due = due
            else:
                await self.snapshot()
        except (sqlite3.Error, OSError, HeadraceError) as error:
            if self._closing.is_set():
                return
            log.error("catalog_snapshot_failed", folder=str(self._folder), error=repr(error))
            until = self._loop.time() + _SNAPSHOT_RETRY_S
            while not self._closing.is_set() and self._loop.time() < until:  # noqa: ASYNC110  # a thread may set it
                await asyncio.sleep(_CLOSING_POLL_S)
        finally:
            self._snapshot_task = None


def _check_size(payload: bytes | memoryview) -> None:
    if len(payload) > MAX_COMMAND_BYTES:
        raise KafkaError(
            Code.MESSAGE_TOO_LARGE, f"a command of {len(payload)} bytes; at most {MAX_COMMAND_BYTES} are accepted"
        )
