"""One replica on this node: its folder, its log and sync cycle, and the epochs that it knows, whatever its role.

The replica outlives changes of role: `Leader` and `Follower` are its two halves, one at a time. What happens to the
replica and its halves is reported as `ReplicaEvents`; only the catalog is notified of commits. Cutting the log closes
it, cuts the files and reopens them (invariant 9: the index, the state of producers and everything else go with the
frames). Changes of `replica.json` and cuts run one at a time, and each runs to completion even if its caller is
cancelled.
"""

import asyncio
import dataclasses
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from typing import Final, Protocol

import msgspec
import structlog
from msgspec import structs

from headrace.base.errors import CorruptLog, HeadraceError, OutOfDescriptors, SyncFailed
from headrace.base.ids import ContainerId, Epoch, NodeId, Position
from headrace.container import replica_folder
from headrace.container.command_tail import CommandTail
from headrace.container.follower_feed import Recent
from headrace.container.history import History, begin_epoch, clip, last_epoch
from headrace.container.leader import Leader
from headrace.container.leader_state import Member
from headrace.container.replica_events import ReplicaEvents
from headrace.container.replica_folder import ReplicaFile, decode_record
from headrace.container.replica_opening import Opened, open_empty, open_folder
from headrace.container.sync_cycle import Owner, Room, SyncCycle
from headrace.container.writer_pool import Pool
from headrace.log.container_log import ContainerLog, LogOptions
from headrace.store.container_records import descends_from
from headrace.store.records import ContainerRecord

log = structlog.get_logger()

CATALOG: Final = "catalog"
RETRY_S: Final = 1.0
"""Seconds before files that could not be recreated for lack of descriptors are tried again."""


class FollowerHalf(Owner, Protocol):
    """The follower half of a replica (follower.py)."""

    epoch: Epoch
    observer: bool

    @property
    def is_current(self) -> bool:
        """It has all that was committed when the leader accepted it."""

    @property
    def rests(self) -> bool:
        """Its node's heartbeats count as its own; no timer checks it."""

    def start(self) -> None:
        """Begin to follow the leader."""

    def tick(self, *, beats: bool) -> None:
        """Called every now and then while the follower does not rest; with `beats`, it sends a heartbeat."""

    async def close(self, *, newer: Epoch = Epoch(-1)) -> None:  # noqa: B008
        """Stop following. `newer`: the higher epoch that ends this role."""


class AppliedTables(Protocol):
    """The catalog's tables on this node, to which the commands of its catalog replica are applied."""

    @property
    def reach(self) -> Position:
        """The position up to which commands are applied, or are about to be."""

    @property
    def damage(self) -> str:
        """Why the tables are damaged, although the log may be whole; empty if they are not."""


class LocalReplica:
    """One replica on this node, created by `open`. Used only on the loop thread."""

    def __init__(
        self,
        *,
        container_id: ContainerId,
        kind: str,
        node: NodeId,
        folder: Path,
        options: LogOptions,
        executor: Executor,
        pool: Pool,
        room: Room,
        fatal: Callable[[str], None],
        events: ReplicaEvents,
        state: ReplicaFile,
        container_log: ContainerLog,
        aside: bool,
    ) -> None:
        self.id = container_id
        self.kind = kind
        self.folder = folder
        self.leader: Leader | None = None
        self.follower: FollowerHalf | None = None
        self.recent = Recent()
        self.events = events
        self.tables_open = asyncio.Event()
        """For the catalog: set once its tables are open."""
        self._tables: AppliedTables | None = None
        self._notify_catalog: Callable[[], None] | None = None
        self._node = node
        self._options = options
        self._executor = executor
        self._pool = pool
        self._room = room
        self._end_process = fatal
        self._state = state
        self._known: tuple[str, ContainerRecord | None] = ("", None)
        """The container's record as saved in the folder, and its decoded form."""
        self._known_committed = Position(0)
        self._gave_up = False
        """An operator promoted a replica that may lack frames known to be committed."""
        self._aside = aside
        """This node's former, damaged replica of the container is kept beside this one."""
        self._change_lock = asyncio.Lock()
        self._changes: set[asyncio.Task[None]] = set()
        """Changes of the files that are in progress."""
        self._loop = asyncio.get_running_loop()
        self.cycle = self._new_cycle(container_log)
        self.commands = CommandTail(container_log.end) if kind == CATALOG else None

    @classmethod
    async def open(
        cls,
        *,
        container_id: ContainerId,
        kind: str,
        node: NodeId,
        folder: Path,
        options: LogOptions,
        executor: Executor,
        pool: Pool,
        room: Room,
        fatal: Callable[[str], None],
        events: ReplicaEvents,
        replaceable: bool,
        unmarked: str = "",
    ) -> "LocalReplica":
        """Recover the replica in `folder`, or create an empty one.

        `replaceable`, `unmarked` and the errors raised: see replica_opening.
        """
        loop = asyncio.get_running_loop()

        find = partial(open_folder, container_id, folder, options, replaceable=replaceable, unmarked=unmarked)
        try:
            state, container_log, aside = await loop.run_in_executor(executor, find)
        except SyncFailed as error:
            replica_folder.note_unsynced(folder, held=Position(0))
            fatal(f"container {container_id}: {error}")  # invariant 13
            raise
        return cls(
            container_id=container_id,
            kind=kind,
            node=node,
            folder=folder,
            options=container_log.options,
            executor=executor,
            pool=pool,
            room=room,
            fatal=fatal,
            events=events,
            state=structs.replace(state, history=clip(state.history, container_log.end)),
            container_log=container_log,
            aside=aside,
        )

    def _new_cycle(self, container_log: ContainerLog) -> SyncCycle:
        return SyncCycle(
            container_id=self.id,
            container_log=container_log,
            executor=self._executor,
            pool=self._pool,
            room=self._room,
            fatal=self._fatal,
        )

    # --- state

    @property
    def log(self) -> ContainerLog:
        """The current log; a cut replaces it."""
        return self.cycle.log

    @property
    def incarnation(self) -> str:
        """The incarnation of the replica's folder (invariant 5)."""
        return self._state.format

    @property
    def member(self) -> Member:
        """The replica's identity in the in-sync set."""
        return Member(self._node, self._state.format)

    @property
    def seen(self) -> Epoch:
        """The highest epoch it has heard of."""
        return self._state.seen

    @property
    def led(self) -> Epoch:
        """The last epoch in which it was leader, in this process or an earlier one."""
        return self._state.led

    @property
    def history(self) -> History:
        """The epochs of its frames."""
        return self._state.history

    @property
    def last_epoch(self) -> Epoch:
        """The epoch of its last frame."""
        return last_epoch(self._state.history, self.log.end)

    @property
    def committed(self) -> Position:
        """The end of what is known to be committed and is on this disk."""
        if self.leader is not None:
            return self.leader.committed
        return min(self._known_committed, self.cycle.log.synced)

    @property
    def is_cut_below_applied(self) -> bool:
        """Whether the catalog's tables hold commands that the log lost: only after an unclean recovery
        (invariant 15)."""
        return self._tables is not None and self._tables.reach > self.log.end

    @property
    def are_tables_damaged(self) -> bool:
        """Whether the catalog's tables here are damaged, although the log may be whole: another node should lead."""
        return self._tables is not None and bool(self._tables.damage)

    def has_tables(self, tables: AppliedTables) -> None:
        """The catalog's tables are now open."""
        self._tables = tables
        self.tables_open.set()

    def learn_committed(self, position: Position) -> None:
        """Everything below `position` is committed."""
        if position > self._known_committed:
            self._known_committed = position
            self.committed_moved()

    def forget_beyond(self) -> None:
        """Limit the known committed position to the end of this log.

        An earlier leader reported it for its own log. Beyond the end of this log other frames may follow: after an
        unclean recovery, the next leader need not have the earlier leader's frames (invariant 2).
        """
        self._known_committed = min(self._known_committed, self.log.end)

    def give_up(self) -> None:
        """Allow frames known to be committed to be cut, until this log matches the leader's: there was an unclean
        recovery (invariant 15)."""
        self._gave_up = True

    def check_cut(self, begin: Position) -> None:
        """Raise CorruptLog if the leader would have this log cut to `begin`, below what is committed: such a node must
        not lead."""
        if begin < self.committed and not self._gave_up:
            raise CorruptLog(
                f"container {self.id}: the primary asks to cut it at {begin}, but everything up to {self.committed} is "
                "committed. Nothing is cut; look at `headrace containers`, and whether the cluster store was set back"
            )

    def committed_moved(self) -> None:
        """`committed` may have moved: notify the catalog, and report chunks that can be closed."""
        if self._notify_catalog is not None:
            self._notify_catalog()
        if self.log.chunks_to_close(self.committed):
            self.events.chunk_full(self.id)

    def on_committed(self, callback: Callable[[], None]) -> None:
        """Have the catalog's `callback` called whenever `committed` may have moved."""
        self._notify_catalog = callback

    def report_damage(self) -> None:
        """Report that the replica's data cannot be used (invariant 14). A repeated call changes nothing."""
        self.events.damaged(self.id)

    # --- epochs

    async def saw(self, epoch: Epoch) -> None:
        """Record durably that `epoch` exists (invariant 4). Raises CorruptLog if a higher one was seen."""
        if epoch < self._state.seen:
            raise CorruptLog(f"container {self.id}: epoch {epoch} after {self._state.seen}")
        if epoch > self._state.seen:
            await self._write(lambda state: structs.replace(state, seen=max(epoch, state.seen)))

    async def set_history(self, history: History) -> None:
        """Save the leader's history, before any of its frames is appended here.

        The leader has all that was committed, so a damaged replica set aside here is removed.
        """
        self._gave_up = False
        if history == self._state.history and not self._aside:
            return

        def replaced(state: ReplicaFile) -> ReplicaFile:
            return structs.replace(state, history=history)

        await self._write(replaced, drop_aside=self._aside)
        self._aside = False

    @property
    def known_record(self) -> ContainerRecord | None:
        """The container's record as last saved in the folder."""
        kept = self._state.record
        if kept != self._known[0]:
            self._known = (kept, decode_record(kept) if kept else None)
        return self._known[1]

    async def remember(self, record: ContainerRecord) -> None:
        """Save the container's record from the store, unless a later one has been saved by the time this change runs.

        The saved record shows if the store has since been restored to an earlier state.
        """
        text = msgspec.json.encode(record).decode()
        if text != self._state.record:
            await self._write(lambda state: structs.replace(state, record=_newer_record(state.record, record, text)))

    async def _write(self, change: Callable[[ReplicaFile], ReplicaFile], *, drop_aside: bool = False) -> None:
        await self._run_change(lambda: self._write_now(change, drop_aside=drop_aside))

    async def _write_now(self, change: Callable[[ReplicaFile], ReplicaFile], *, drop_aside: bool = False) -> None:
        state = change(self._state)

        def write() -> None:
            if drop_aside:
                replica_folder.drop_aside(self.folder)
            replica_folder.write(self.folder, state)

        await self._loop.run_in_executor(self._executor, write)
        self._state = state

    async def _run_change(self, change: Callable[[], Coroutine[None, None, None]]) -> None:
        """Change the files once all earlier changes are complete, and complete the change even if the caller is
        cancelled: the state in memory must match the files."""

        async def make() -> None:
            async with self._change_lock:
                await change()

        making = self._loop.create_task(make(), name=f"files-{self.id}")
        self._changes.add(making)
        making.add_done_callback(self._changes.discard)
        making.add_done_callback(lambda done: done.cancelled() or done.exception())  # its caller may be gone
        await asyncio.shield(making)

    # --- durability

    async def set_durability(self, *, fsync: bool) -> None:
        """Count appended frames as safe once they are synced, or (durability: memory) once they are written.

        Also handles a replica opened with frames that an earlier process had not synced: until they are synced, a
        reboot of the machine makes the replica another incarnation (invariant 5). Raises StorageFull; the replica is
        then as safe as before, or safer.
        """
        if fsync != self._options.fsync or (fsync and self._state.boot):
            await self._run_change(lambda: self._set_durability_now(fsync=fsync))

    async def _set_durability_now(self, *, fsync: bool) -> None:
        if not fsync:
            unsynced = partial(replica_folder.after_page_cache, self.folder, self._state)
            self._state = await self._loop.run_in_executor(self._executor, unsynced)
        self._options = dataclasses.replace(self._options, fsync=fsync)
        self.log.options = self._options
        if not fsync:
            return
        # Until the files are synced, a mark may claim more than is synced. While `boot` is set that is harmless: after
        # a reboot the replica is another incarnation anyway.
        await self.cycle.jobs_under_way()  # they may have begun without a sync
        held = self.log.synced
        # Noted in advance, in case the sync fails.
        await self._write_now(lambda state: structs.replace(state, unsynced=True, held=held))
        try:
            await self._loop.run_in_executor(self._executor, replica_folder.sync_files, self.folder)
        except OutOfDescriptors:  # not synced: the replica is as unsafe as before, and synced the next time
            raise
        except OSError as error:
            self._fatal(f"container {self.id}: unsynced files could not be synced: {error}")  # invariant 13
            raise
        await self._write_now(lambda state: structs.replace(state, boot="", unsynced=False, held=Position(0)))

    # --- roles

    async def lead(
        self,
        *,
        epoch: Epoch,
        in_sync: frozenset[Member],
        replicas: tuple[NodeId, ...],
        min_in_sync: int,
        volume: str = "default",
        recovered_epoch: Epoch = Epoch(0),  # noqa: B008
        closing: bool = False,
    ) -> Leader:
        """Become the leader in `epoch`, in which no node has written; the other arguments come from the container's
        record."""
        used = max(self._state.led + 1, self._state.seen)
        assert epoch >= used, f"container {self.id}: epoch {epoch} was used"
        await self.stop(newer=epoch)
        await self.ready()
        self.forget_beyond()
        end = self.log.end
        await self._write(
            lambda state: structs.replace(
                state, seen=epoch, led=epoch, history=begin_epoch(clip(state.history, end), epoch=epoch, start=end)
            )
        )
        self.leader = Leader(
            container_id=self.id,
            member=self.member,
            epoch=epoch,
            executor=self._executor,
            events=self.events,
            cycle=self.cycle,
            in_sync=in_sync,
            replicas=replicas,
            min_in_sync=min_in_sync,
            volume=volume,
            recovered_epoch=recovered_epoch,
            closing=closing,
            committed=min(self._known_committed, self.log.synced),
            commands=self.commands,
            commands_at_once=self.kind == CATALOG,
            recent=self.recent,
            committed_moved=self.committed_moved,
        )
        if self.leader.committed > self._known_committed:  # a single replica commits what it has
            self.committed_moved()
        return self.leader

    def follow(self, follower: FollowerHalf) -> None:
        """Follow from now on, by means of `follower`. The replica must have no role."""
        self.follower = follower
        self.cycle.hand_to(follower)
        follower.start()

    async def stop(self, *, newer: Epoch = Epoch(-1)) -> None:  # noqa: B008
        """Neither lead nor follow. Appended frames are written out. `newer`: see Follower.close."""
        if self.leader is not None:
            self._known_committed = max(self._known_committed, self.leader.committed)
            self.leader.lose()
            self.leader = None
        self.recent.clear()
        if self.follower is not None:
            follower, self.follower = self.follower, None
            await follower.close(newer=newer)
        while self._changes:
            await asyncio.wait(self._changes)
        await self.cycle.flush()
        self.cycle.hand_to(None)

    # --- the log's files

    async def cut(self, position: Position) -> None:
        """Remove all frames at or above `position`."""
        change = partial(ContainerLog.cut, self.folder, position, self._options)
        await self._run_change(lambda: self._reopen(change, begin=None, held=position))

    async def reset(self, begin: Position) -> None:
        """Remove all frames; the log starts over at `begin`, empty."""
        change = partial(ContainerLog.reset, self.folder, begin)
        await self._run_change(lambda: self._reopen(change, begin=begin, held=begin))

    async def renew(self) -> None:
        """Remove all data and continue, empty, as another incarnation (invariant 14)."""
        await self.stop()
        await self._run_change(self._renew_now)

    async def _renew_now(self) -> None:
        await self.cycle.close()

        def renewed() -> Opened:
            replica_folder.remove(self.folder)
            return open_empty(self.folder, self._options)

        try:
            while True:
                try:
                    state, container_log, _ = await self._loop.run_in_executor(self._executor, renewed)
                    break
                except OutOfDescriptors as error:
                    log.warning("a damaged replica is not recreated yet", container=self.id, reason=str(error))
                    await asyncio.sleep(RETRY_S)
        except (HeadraceError, OSError) as error:
            # The state in memory claims data that the disk no longer has. The next start finds an empty replica.
            self._fatal(f"container {self.id}: a damaged replica could not be recreated: {error}", held=Position(0))
            raise
        self._state = state
        self._known_committed = Position(0)
        self.cycle = self._new_cycle(container_log)
        if self.commands is not None:
            self.commands.restart(container_log.end)

    async def ready(self) -> None:
        """Reopen the log if a failed cut or reset has left it closed."""
        if self.cycle.is_closed:
            await self._run_change(lambda: self._reopen(lambda: None, begin=None, held=Position(0)))

    async def _reopen(self, change: Callable[[], None], *, begin: Position | None, held: Position) -> None:
        """Close the log, apply `change` to its files, and open it again.

        `held`: the position up to which the log must reach afterwards, as far as that is known.
        """
        owner = self.cycle.owner
        await self.cycle.close()

        def changed() -> ContainerLog:
            change()
            if begin is None:
                return ContainerLog.open(self.folder, self._options)
            return ContainerLog.open(self.folder, self._options, begin=begin)

        try:
            container_log = await self._loop.run_in_executor(self._executor, changed)
        except SyncFailed as error:
            self._fatal(f"container {self.id}: {error}", held=held)  # invariant 13
            raise
        except CorruptLog as error:
            log.warning("a replica cannot be reopened", container=self.id, error=str(error))
            self.report_damage()
            raise
        self.cycle = self._new_cycle(container_log)
        self.cycle.hand_to(owner)
        self.forget_beyond()
        if self.commands is not None:
            self.commands.restart(container_log.end)
        end = container_log.end
        await self._write_now(
            lambda state: structs.replace(state, history=clip(state.history, end), held=min(state.held, end))
        )

    async def close(self) -> None:
        """Stop, and close the files."""
        await self.stop()
        await self.cycle.close()
        if self._state.boot:
            await self._loop.run_in_executor(
                self._executor, partial(replica_folder.left_clean, self.folder, self._state, held=self.log.synced)
            )

    async def remove(self) -> None:
        """Remove the replica together with its folder."""
        await self.close()
        await self._loop.run_in_executor(self._executor, replica_folder.remove, self.folder)

    def _fatal(self, reason: str, *, held: Position | None = None) -> None:
        """[blocking] End the process because written data may not be on the disk: the next process has to write it
        again."""
        replica_folder.note_unsynced(self.folder, held=self.log.synced if held is None else held)
        self._end_process(reason)


def _newer_record(kept: str, record: ContainerRecord, text: str) -> str:
    """Return the saved record `kept`, or `text`, the JSON of `record`: the one to save."""
    known = decode_record(kept) if kept else None
    is_older = known is not None and (record.epoch < known.epoch or not descends_from(record, known))
    return kept if is_older else text
