"""The replicas of one node. Which exist and which node leads them follows from the containers' records.

Responsible for carrying out what the cluster store says: when a container's record changes, its replica becomes leader,
follows (roles.py), or is removed; and for the one change that a leader makes itself, the in-sync set
(in_sync_writer.py; invariants 3, 5, 6). It is notified of what happens to replicas (ReplicaEvents), and notifies other
parts of the node (listeners.py). One task per replica applies its changes of role one after the other. One timer sends
heartbeats and checks for silence: one by one for the replicas that do not rest, and once per pair of nodes for those
that rest (pairs.py).
"""

import asyncio
import uuid
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import Final
from weakref import WeakValueDictionary

import structlog

from headrace.base.errors import (
    Code,
    CorruptLog,
    HeadraceError,
    KafkaError,
    NewerFormat,
    OutOfDescriptors,
    StorageFull,
    StoreSetBack,
)
from headrace.base.ids import ContainerId, Epoch, NodeId, Position
from headrace.container import follower_feed, replica_folder, roles
from headrace.container.damaged_replica import Damage
from headrace.container.environment import Environment
from headrace.container.in_sync_writer import InSyncWriter
from headrace.container.leader import Leader
from headrace.container.leader_state import Member
from headrace.container.listeners import ContainerListener, OtherNodes, ReplicaListener
from headrace.container.local_replica import CATALOG, LocalReplica
from headrace.container.lost_record import FoundReplica, found_replica
from headrace.container.pair_roster import FedFollower
from headrace.container.pairs import Pairs
from headrace.container.snapshot_transfer import Receive, Snapshot
from headrace.log.container_log import ContainerLog
from headrace.peer.messages import Follow, PairUp, Resting
from headrace.peer.replica_pages import Change, ReplicaReporter
from headrace.peer.reports import ReplicaState
from headrace.peer.session import Session
from headrace.store import container_records
from headrace.store.container_records import descends_from, has_trace
from headrace.store.lineage import is_given_up
from headrace.store.records import ContainerRecord

log = structlog.get_logger()

TICK_S: Final = 0.1
"""Seconds between two ticks of the timer."""
BEAT_EVERY: Final = 3
"""Ticks between two heartbeats."""
STORE_RETRY_S: Final = 0.3
"""Seconds before a change of role that failed is tried again."""
DAMAGED_RETRY_S: Final = 1.0
"""Seconds between two attempts to replace a damaged replica."""
STOOD_STILL_S: Final = 0.6
"""Seconds of delay of the timer that show that this process was suspended."""
CUT_OFF_S: Final = 3.0
"""Seconds without the cluster store after which this node may have missed that another node leads."""
SUPERSEDED_S: Final = 1.0
"""Seconds that a superseded leader waits for the record of the higher epoch, before its replica's role is checked again
and it may claim a still higher epoch."""
SET_BACK_RETRY_S: Final = 5.0
"""Seconds between two checks whether the store is still an old copy; a changed record is checked at once."""

LOOKED_AT: Final = 64
"""Replicas whose reported state is refreshed in a tick; a tenth of those that do not rest, if that is more, so that a
reported state is at most a second old. Nodes with no more replicas than this refresh all of them on each request."""
ROUND_TICKS: Final = 3_000
"""Ticks within which every replica is checked, including those that rest, to find changes that no event reported."""


class _Slot:
    """One replica, and the task that changes its role."""

    __slots__ = ("_check_timer", "changed", "damage", "problem", "replica", "set_back", "task")

    def __init__(self) -> None:
        self.replica: LocalReplica | None = None
        self.damage = Damage()
        self.changed = asyncio.Event()
        self.changed.set()
        self.problem = ""
        self.set_back = False
        """The replica has no role, because the store has no trace of a change of the record that this node knows."""
        self.task: asyncio.Task[None] | None = None
        self._check_timer: asyncio.TimerHandle | None = None

    def check_after(self, seconds: float) -> None:
        """Have the replica checked in `seconds`, whatever happens until then. Replaces an earlier request: otherwise
        every check would request one more."""
        if self._check_timer is not None:
            self._check_timer.cancel()
        self._check_timer = asyncio.get_running_loop().call_later(seconds, self.changed.set)

    @property
    def is_damaged(self) -> bool:
        """Whether the replica is known to be damaged."""
        return self.replica is not None and self.damage.is_of(self.replica.incarnation)


class Replicas:
    """All replicas of this node."""

    def __init__(
        self,
        environment: Environment,
        *,
        others: OtherNodes,
        receive: Receive | None,
        snapshot: Snapshot | None,
    ) -> None:
        """`receive` installs a catalog snapshot that a leader sends; `snapshot` returns the newest one, for a follower
        that is too far behind the log. Both are None if this node has no tables of the catalog."""
        self._env = environment
        self._others = others
        self._receive = receive
        self._snapshot = snapshot
        self._loop = asyncio.get_running_loop()
        self._slots: dict[ContainerId, _Slot] = {}
        self._folder_locks: WeakValueDictionary[ContainerId, asyncio.Lock] = WeakValueDictionary()
        self._in_sync = InSyncWriter(environment, self)
        self._tasks: set[asyncio.Task[None]] = set()
        self._ticks = 0
        self._ticking: asyncio.Task[None] | None = None
        self._closed = False
        self._disk_writes = asyncio.Event()
        self._disk_writes.set()
        self._reports = ReplicaReporter()
        self._active_round: list[ContainerId] = []
        """The rest of the current round over the replicas that do not rest."""
        self._full_round: list[ContainerId] = []
        """The rest of the current round over all replicas."""
        self._active: set[ContainerId] = set()
        """The replicas that the timer looks after: all that do not rest. A replica rests while nothing is in progress
        and every possible change is an event that is reported here (`stirs`)."""
        self._departed: set[NodeId] = set()
        """Nodes that were stopping, or whose process was gone, at the timer's last check."""
        self._cut_off = ""
        self._pairs = Pairs(environment, self._fed, self.lost_touch)
        self.led: dict[ContainerId, Leader] = {}
        """The containers that this node leads."""
        self._container_listeners: list[ContainerListener] = []
        self._replica_listeners: list[ReplicaListener] = []
        self._reported_at: dict[NodeId, float] = {}
        """Loop time at which each node's last complete report ended."""
        self._led_at: dict[ContainerId, float] = {}
        self._newer_reports: dict[ContainerId, ReplicaState] = {}
        """Reports of other nodes that know changes of which the records seen here have no trace."""

    def add_container_listener(self, listener: ContainerListener) -> None:
        """From now on notify `listener` when this node begins or ceases to lead a container."""
        self._container_listeners.append(listener)

    def add_replica_listener(self, listener: ReplicaListener) -> None:
        """From now on notify `listener` of what happens to the replicas here."""
        self._replica_listeners.append(listener)

    # --- life

    def start(self) -> None:
        """Begin to carry out what the records say."""
        self._loop.run_in_executor(self._env.executor, replica_folder.sweep, self._env.folder)
        self._ticking = self._loop.create_task(self._tick_always(), name="replicas")
        view = self._env.view
        for container_id in replica_folder.listed(self._env.folder):
            if container_id in view.containers or view.is_deleted(container_id):
                self._slots[container_id] = _Slot()  # also for replicas moved or deleted meanwhile: they are removed
        self.records_changed({*view.containers, *self._slots})

    async def close(self) -> None:
        """Stop leading and following; close all files."""
        self._closed = True
        await self._in_sync.close()
        await self._pairs.close()
        for task in [self._ticking, *(slot.task for slot in self._slots.values()), *self._tasks]:
            if task is not None:
                task.cancel()
        await asyncio.gather(
            *(task for task in [self._ticking, *self._tasks] if task is not None),
            *(slot.task for slot in self._slots.values() if slot.task is not None),
            return_exceptions=True,
        )
        for slot in list(self._slots.values()):
            if slot.replica is not None:
                if slot.replica.leader is not None:
                    await slot.replica.cycle.flush()
                await slot.replica.close()
        self.led.clear()

    def records_changed(self, containers: set[ContainerId]) -> None:
        """The records of these containers are new, changed or gone."""
        for container_id in containers:
            slot = self._slots.get(container_id)
            if slot is None:
                record = self._env.view.containers.get(container_id)
                if not self._is_wanted(record) and not self._has_stale_folder(container_id):
                    continue
                slot = self._slots[container_id] = _Slot()
            self._apply_to_leader(container_id)
            for told in self._others.told_of(container_id):
                self._compare(container_id, told)
            slot.changed.set()
            if slot.task is None or slot.task.done():
                changing = self._apply_changes(container_id, slot)
                slot.task = self._loop.create_task(changing, name=f"replica-{container_id}")

    def _has_stale_folder(self, container_id: ContainerId) -> bool:
        """Whether a folder remains of a container that was deleted so long ago that it has no record."""
        view = self._env.view
        gone = container_id not in view.containers and view.is_deleted(container_id)
        return gone and (self._env.folder / str(container_id)).exists()

    def volumes_changed(self, volumes: set[str]) -> None:
        """The records of these volumes are new, changed or gone: the settings of their replicas may have changed."""
        if not volumes:
            return
        containers = self._env.view.containers.items()
        self.records_changed({container_id for container_id, record in containers if record.volume in volumes})

    def _apply_to_leader(self, container_id: ContainerId) -> None:
        """Apply a record's change at once to a container that is led here: an old leader stops now."""
        leader = self.led.get(container_id)
        record = self._env.view.containers.get(container_id)
        if leader is None:
            return
        if record is None or record.state == "deleted" or record.epoch != leader.epoch:
            self._leave(leader)
            return
        leader.closing = record.state != "open"
        leader.state.placed(record.replicas, record.min_in_sync)
        leader.stir()

    def _leave(self, leader: Leader) -> None:
        if self.led.get(leader.id) is leader:
            del self.led[leader.id]
        leader.lose()
        self._note(leader.id)
        log.info("no longer leads", container=leader.id, epoch=leader.epoch)
        for listener in self._container_listeners:
            listener.container_left(leader)

    def _is_wanted(self, record: ContainerRecord | None) -> bool:
        if record is None or record.state == "deleted":
            return False
        # Every node follows the catalog, to apply its commands.
        return record.kind == CATALOG or self._env.node_id in record.replicas or record.leader == self._env.node_id

    # --- one replica

    async def _apply_changes(self, container_id: ContainerId, slot: _Slot) -> None:
        while not self._closed:
            await slot.changed.wait()
            await self._disk_writes.wait()  # a change of role would hang too, in a thread that others need
            slot.changed.clear()
            record = self._env.view.containers.get(container_id)
            try:
                if not self._is_wanted(record):
                    if record is not None:
                        await self._check_before_removal(record, slot)
                    if not self._may_go(container_id, record):
                        await asyncio.sleep(STORE_RETRY_S)
                        slot.changed.set()
                        continue
                    await self._remove(container_id, slot)
                    if self._is_wanted(self._env.view.containers.get(container_id)):
                        self.records_changed({container_id})  # given to this node again while it was being removed
                    return
                assert record is not None
                await self._apply_record(record, slot)
                slot.problem = ""
                if slot.is_damaged:
                    slot.check_after(DAMAGED_RETRY_S)
            except asyncio.CancelledError:
                raise
            except NewerFormat as error:
                self._env.too_new(error)
                return
            except StoreSetBack as error:
                if slot.problem != str(error):
                    log.error("a replica stands still", container=container_id, reason=str(error))
                slot.problem = str(error)
                slot.check_after(SET_BACK_RETRY_S)
            except (HeadraceError, OSError) as error:
                if slot.problem != str(error):
                    log.warning("a replica is not as it should be", container=container_id, reason=str(error))
                slot.problem = str(error)
                if isinstance(error, CorruptLog | StorageFull) and not isinstance(error, OutOfDescriptors):
                    for listener in self._replica_listeners:
                        listener.replica_unusable(container_id, error)
                await asyncio.sleep(STORE_RETRY_S)
                slot.changed.set()
            except Exception as error:
                log.exception("a replica's change of role failed unexpectedly", container=container_id)
                slot.problem = repr(error)
                await asyncio.sleep(STORE_RETRY_S)
                slot.changed.set()
            finally:
                self._note(container_id)
                self._active.add(container_id)

    async def _check_before_removal(self, record: ContainerRecord, slot: _Slot) -> None:
        """Raise StoreSetBack if a replica about to be removed knows a newer record: it stays, and is reported."""
        if slot.replica is None:
            folder = self._env.folder / str(record.container_id)
            state = await self._loop.run_in_executor(self._env.executor, replica_folder.read, folder)
            if state is None or not state.record or descends_from(record, replica_folder.decode_record(state.record)):
                return
            slot.replica = await self._open(record)
            self._note(record.container_id)
        await self._newest_record(record, slot, slot.replica)

    async def _newest_record(self, record: ContainerRecord, slot: _Slot, replica: LocalReplica) -> ContainerRecord:
        """Return the record to apply: the view's, or the store's if the view lags behind what this node put there.

        Raises StoreSetBack, and stops the replica, if the store has been restored to a state before what is known here:
        the leader in such a record may lack acknowledged frames.
        """
        known, better = replica.known_record, self._newer_reports.get(record.container_id)
        if not _is_up_to_date(record, known, better):
            found = await self._env.store(lambda store: container_records.get_container(store, record.container_id))
            self._env.view.refresh()
            if found is None:
                raise KafkaError(Code.NOT_LEADER_OR_FOLLOWER, "its record is missing from the cluster store")
            record = found
            if not _is_up_to_date(record, known, better):
                slot.set_back = True
                leader = self.led.get(record.container_id)
                if leader is not None:
                    self._leave(leader)
                await replica.stop()
                if known is not None:
                    container_records.check_descent(record, known)
                raise StoreSetBack(
                    f"the cluster store has no trace of a change of container {record.container_id} that others know: "
                    "it is an old copy. This node's replica of the container has stopped; rebuild the store with "
                    "`headrace recover-store`"
                )
        slot.set_back = False
        if better is not None and self._newer_reports.get(record.container_id) is better:
            del self._newer_reports[record.container_id]
        return record

    def _may_go(self, container_id: ContainerId, record: ContainerRecord | None) -> bool:
        """Return whether the replica may be removed: only if the store says so, since a missing record may return in a
        moment."""
        if record is None or record.state == "deleted":
            return self._env.view.is_deleted(container_id)
        return self._env.node_id not in {node for node, _ in record.in_sync}

    async def _remove(self, container_id: ContainerId, slot: _Slot) -> None:
        async with self._folder_lock(container_id):
            if slot.replica is not None:
                await slot.replica.remove()
                log.info("replica removed", container=container_id)
            else:
                folder = self._env.folder / str(container_id)
                await self._loop.run_in_executor(self._env.executor, replica_folder.remove, folder)
        self._slots.pop(container_id, None)
        self._note(container_id)
        self._newer_reports.pop(container_id, None)
        self._led_at.pop(container_id, None)

    async def _apply_record(self, record: ContainerRecord, slot: _Slot) -> None:
        """Open the replica if necessary, and bring it to the role that the record assigns."""
        replica = slot.replica
        if replica is None:
            replica = slot.replica = await self._open(record)
            self._note(record.container_id)
        record = await self._newest_record(record, slot, replica)
        if slot.is_damaged:
            await self._renew(record.container_id, slot.damage, replica)
        await self._check_diverged(record, replica)
        await replica.set_durability(fsync=self._env.options(record.kind, record.volume).fsync)
        await _remember(record, replica)
        self._note(record.container_id)
        if record.leader == self._env.node_id:
            await self._lead(record, replica)
        else:
            await self._follow(record, replica)

    async def _check_diverged(self, record: ContainerRecord, replica: LocalReplica) -> None:
        """Recreate the replica empty if it continued from an old copy of the store and the record gave up its changes.

        Its history cannot tell frames that it wrote in an epoch from frames that others wrote in the same epoch
        (container.lost_record).
        """
        known, own = replica.known_record, (self._env.node_id, uuid.UUID(replica.incarnation))
        if known is not None and is_given_up(record.changes, known.changes) and own not in record.in_sync:
            log.error("a replica that followed an old copy of the cluster store is recreated", container=replica.id)
            await replica.renew()

    async def _renew(self, container_id: ContainerId, damage: Damage, replica: LocalReplica) -> None:
        """Recreate a damaged replica if enough others have its data (invariant 14); otherwise leave it as it is."""
        leader = self.led.get(container_id)
        left = await damage.leave(self._env.store, container_id, self._env.node_id, leader, known=replica.known_record)
        self._env.view.refresh()
        if not left:
            return
        if leader is not None and not leader.lost:
            self._leave(leader)
        log.error("a damaged replica is fetched again", container=container_id, format=replica.incarnation)
        await replica.renew()

    async def _open(self, record: ContainerRecord) -> LocalReplica:
        async with self._folder_lock(record.container_id):
            replica = await roles.open_replica(self._env, record, self)
        for listener in self._replica_listeners:
            listener.replica_opened(replica)
        return replica

    async def _lead(self, record: ContainerRecord, replica: LocalReplica) -> None:
        leader = await roles.lead(self._env, record, replica)
        if leader is None:
            return
        self.led[leader.id] = leader
        self._led_at[leader.id] = self._loop.time()
        log.info("leads", container=leader.id, epoch=leader.epoch, start=leader.opened_at)
        for listener in self._container_listeners:
            listener.container_led(leader)
        self._apply_to_leader(leader.id)

    async def _follow(self, record: ContainerRecord, replica: LocalReplica) -> None:
        await roles.follow(
            self._env,
            record,
            replica,
            receive=self._receive if record.kind == CATALOG else None,
            roster=self._pairs.roster,
            open_session=self._pairs.connect,
        )

    # --- ReplicaEvents

    def chunk_full(self, container_id: ContainerId) -> None:
        """See ReplicaEvents."""
        for listener in self._replica_listeners:
            listener.chunk_full(container_id)

    def chunk_waits(self, container_id: ContainerId) -> None:
        """See ReplicaEvents."""
        for listener in self._replica_listeners:
            listener.chunk_waits(container_id)

    def damaged(self, container_id: ContainerId) -> None:
        """The data of this node's replica of a container is damaged below its synced mark (invariant 14).

        The replica is recreated as another incarnation as soon as others are in sync.
        """
        slot = self._slots.get(container_id)
        if slot is not None and slot.replica is not None:
            slot.damage.found(slot.replica.incarnation)
            self._note(container_id)
            slot.changed.set()

    def unreadable(self, container_id: ContainerId) -> None:
        """See ReplicaEvents."""
        for listener in self._replica_listeners:
            listener.replica_unreadable(container_id)

    def newer(self, error: NewerFormat) -> None:
        """See ReplicaEvents."""
        self._env.too_new(error)

    def other_epoch(self, container_id: ContainerId, epoch: Epoch) -> None:
        """See ReplicaEvents. The view may be behind."""
        self._env.view.refresh()

    def superseded(self, container_id: ContainerId, epoch: Epoch) -> None:
        """See ReplicaEvents. Nothing more is committed here; the view is out of date."""
        leader = self.led.get(container_id)
        if leader is None or leader.epoch >= epoch:
            return
        log.info("another node leads now", container=container_id, epoch=epoch)
        self._leave(leader)
        self._env.view.refresh()
        slot = self._slots.get(container_id)
        if slot is not None:
            slot.check_after(SUPERSEDED_S)

    def lost_touch(self, node: NodeId) -> None:
        """See ReplicaEvents."""
        if not self._closed:
            self._others.look_at(node)

    def stirs(self, container_id: ContainerId) -> None:
        """See ReplicaEvents."""
        self._active.add(container_id)

    # --- the timer

    async def _tick_always(self) -> None:
        last = self._loop.time()
        while True:
            await asyncio.sleep(TICK_S)
            self._ticks += 1
            late = self._loop.time() - last - TICK_S
            last = self._loop.time()
            try:
                if late >= STOOD_STILL_S:
                    log.warning("this process stood still", seconds=round(late, 1))
                    for leader in self.led.values():
                        leader.state.stood_still(late)
                    self._pairs.stood_still(late)
                    self._stir_all()
                self._refresh_states()
                self._check_in_turn()
                self._look_after(beats=self._ticks % BEAT_EVERY == 0)
            except Exception:
                log.exception("the replicas' timer failed unexpectedly")

    def _look_after(self, *, beats: bool) -> None:
        """Look after the replicas that do not rest, and after what concerns all replicas."""
        self._pairs.tick(beats=beats)
        silent_s = self._loop.time() - self._env.view.reachable_at
        cut_off = f"the cluster store has not answered for {silent_s:.0f} s" if silent_s >= CUT_OFF_S else ""
        if cut_off != self._cut_off:
            self._cut_off = cut_off
            for leader in self.led.values():
                leader.cut_off = cut_off
        left = {node.node_id for node in self._env.view.nodes.values() if node.stopping}
        left.update(self._others.gone())
        if left != self._departed:
            self._departed = left
            self._stir_all()
        stuck = []
        for container_id in list(self._active):
            slot = self._slots.get(container_id)
            replica = None if slot is None else slot.replica
            if replica is None:
                self._active.discard(container_id)
                continue
            replica.cycle.tick(TICK_S)
            if replica.cycle.is_stuck:
                stuck.append(container_id)
            led = self.led.get(container_id)
            if led is not None:
                rests = self._look_at_led(led, left, beats=beats)
            elif replica.follower is not None:
                replica.follower.tick(beats=beats)
                rests = replica.follower.rests
            else:
                rests = not replica.cycle.is_busy
            if rests and replica.kind != CATALOG:
                self._active.discard(container_id)
                self._note(container_id)
        self._look_at_disk(stuck)

    def _look_at_led(self, leader: Leader, left: Collection[NodeId], *, beats: bool) -> bool:
        """Look after a container that is led here; return whether it rests."""
        record = self._env.view.containers.get(leader.id)
        if beats:
            for each in leader.feeds:
                each.beat()
        self._in_sync.look_at(leader, record, left)
        leader.rests = leader.may_rest and self._in_sync.is_settled(leader, record)
        if leader.rests:
            leader.forget_recent()  # all followers have the whole log
        return leader.rests

    def _stir_all(self) -> None:
        for leader in self.led.values():
            leader.stir()

    def _refresh_states(self) -> None:
        if len(self._slots) <= LOOKED_AT:
            return  # `teller` refreshes all states
        if not self._active_round:
            self._active_round = list(self._active)
        for _ in range(min(len(self._active_round), max(LOOKED_AT, len(self._active) // 10))):
            self._note(self._active_round.pop())

    def _check_in_turn(self) -> None:
        """Have the next replicas looked after, even if they rest."""
        if len(self._slots) <= LOOKED_AT and self._ticks % (ROUND_TICKS // LOOKED_AT):
            return  # one at a time is enough to check all in ROUND_TICKS
        if not self._full_round:
            self._full_round = list(self._slots)
        for _ in range(min(len(self._full_round), 1 + len(self._slots) // ROUND_TICKS)):
            container_id = self._full_round.pop()
            self._note(container_id)
            self._active.add(container_id)

    def _note(self, container_id: ContainerId) -> None:
        """Refresh the reported state of a replica here."""
        slot = self._slots.get(container_id)
        if slot is None or slot.replica is None:
            self._reports.note(container_id, None)
        else:
            self._reports.note(
                container_id, _state(slot.replica, damaged=slot.is_damaged or slot.replica.are_tables_damaged)
            )

    def _look_at_disk(self, stuck: Sequence[ContainerId]) -> None:
        if stuck and self._disk_writes.is_set():
            self._disk_writes.clear()
            for container_id in stuck:
                self._note(container_id)
            log.error("the disk hangs, so no role is changed here", containers=len(stuck), such_as=stuck[:5])
        elif not stuck and not self._disk_writes.is_set():
            self._disk_writes.set()
            log.info("the disk writes again")

    # --- requests

    def accept(self, asked: Follow, session: Session) -> None:
        """A follower asks to follow a container that this node leads."""
        leader = self.led.get(ContainerId(asked.container))
        slot = self._slots.get(ContainerId(asked.container))
        if leader is None or slot is None or slot.replica is None or asked.epoch != leader.epoch:
            epoch = leader.epoch if leader is not None else Epoch(-1)
            if leader is None or asked.epoch > leader.epoch:
                self._env.view.refresh()
            follower_feed.refuse(session, Code.NOT_LEADER_OR_FOLLOWER, "another epoch", epoch=epoch)
            return
        replica = slot.replica
        snapshot = self._snapshot if replica.kind == CATALOG else None
        task = self._loop.create_task(self._accept(leader, asked, session, replica, snapshot), name="accept")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def accept_pair(self, asked: PairUp, session: Session) -> None:
        """A node asks for heartbeats of this node, for its followers of containers led here."""
        self._pairs.accept(asked, session)

    def _fed(self, node: NodeId, resting: Resting) -> FedFollower | None:
        """Return the follower on another node, if it is fed from here in that epoch."""
        leader = self.led.get(resting.container)
        if leader is None or leader.epoch != resting.epoch:
            return None
        member = Member(node, resting.format)
        for feed in leader.feeds:
            if isinstance(feed, follower_feed.FollowerFeed) and feed.member == member:
                return feed
        return None

    async def _accept(
        self,
        leader: Leader,
        asked: Follow,
        session: Session,
        replica: LocalReplica,
        snapshot: Snapshot | None,
    ) -> None:
        try:
            await follower_feed.accept(
                leader,
                asked,
                session,
                history=replica.history,
                recent=replica.recent,
                executor=self._env.executor,
                snapshot=snapshot,
            )
        except (HeadraceError, OSError) as error:
            log.warning("a follower was not accepted", container=leader.id, node=asked.node, reason=str(error))
            session.close()

    async def prepare(self, container_id: ContainerId) -> str:
        """Create an empty replica for a container that is about to be created; return its incarnation. Idempotent.

        Raises KafkaError (FENCED_LEADER_EPOCH) if the replica has been in use: then the container's record was lost.
        """
        folder = self._env.folder / str(container_id)
        async with self._folder_lock(container_id):  # an earlier request may have been abandoned and repeated
            state = await self._loop.run_in_executor(self._env.executor, replica_folder.prepare, folder)
        if state.seen and container_id not in self._env.view.containers:
            raise KafkaError(
                Code.FENCED_LEADER_EPOCH,
                f"container {container_id} is about to be created, but its replica here has seen epoch {state.seen}: "
                "the cluster store has lost its record; put it back, at a higher epoch",
            )
        # Preparing may take long on a slow disk: the replica is removed again if the container is created, or already
        # was, without it.
        self._slots.setdefault(container_id, _Slot())
        if container_id in self._env.view.containers or self._env.view.is_deleted(container_id):
            self.records_changed({container_id})
        return state.format

    def _folder_lock(self, container_id: ContainerId) -> asyncio.Lock:
        """Return the lock for the folder of a container's replica.

        Two tasks that created the folder at the same time would use different incarnations in the same file; and a
        folder must not be removed while it is being created.
        """
        return self._folder_locks.setdefault(container_id, asyncio.Lock())

    def set_back(self) -> list[ContainerId]:
        """Return the containers whose replicas here are stopped because the store has no trace of what they know."""
        return sorted(container_id for container_id, slot in self._slots.items() if slot.set_back)

    def highest_id(self) -> ContainerId:
        """Return the highest id of a container that has a replica here; 0 if there is none."""
        return max(replica_folder.listed(self._env.folder), default=ContainerId(0))

    async def unrecorded(
        self, recorded: Collection[ContainerId], *, also_still_recorded: bool = False
    ) -> tuple[list[ContainerId], list[FoundReplica], list[str]]:
        """Return what is known of replicas here whose containers have no record in the store.

        The result is: the containers of which this node still sees a record or which it leads; the replicas of all
        others (with `also_still_recorded`, of these too); warnings about replicas that cannot be read.
        """
        lost = sorted(replica_folder.listed(self._env.folder).difference(recorded))
        still_recorded = [each for each in lost if each in self._env.view.containers or each in self.led]
        found, warnings = [], []
        for container_id in lost:
            if container_id in still_recorded and not also_still_recorded:
                continue
            try:
                told = await self._found(container_id)
            except CorruptLog as error:
                warnings.append(f"node {self._env.node_id}: {error}; it is left out")
                continue
            if told is not None:
                found.append(told)
        return still_recorded, found, warnings

    async def _found(self, container_id: ContainerId) -> FoundReplica | None:
        """Return what `found_replica` finds, opening the log if it is not open.

        No role may open the log meanwhile: if two open it, one removes files that the other is about to use.
        """
        async with self._folder_lock(container_id):
            slot = self._slots.get(container_id)
            replica = None if slot is None else slot.replica
            opened = None if replica is None else (replica.log.end, replica.history)
            look = partial(found_replica, self._env.folder / str(container_id), self._env.node_id, opened=opened)
            return await self._loop.run_in_executor(self._env.executor, look)

    def told(self, node: NodeId, changes: Iterable[Change], whole: bool) -> None:
        """Another node reports what it knows; `whole`: its report is now complete.

        A replica that leads by an old copy of the store thereby learns of newer changes, and stops.
        """
        if whole:
            self._reported_at[node] = self._loop.time()
        for container, state in changes:
            if state is not None:
                self._compare(container, state)

    def _compare(self, container: ContainerId, told: ReplicaState) -> None:
        slot = self._slots.get(container)
        record = self._env.view.containers.get(container)
        if slot is None or record is None or has_trace(record, change=told.change, recovered=told.recovered):
            return
        self._newer_reports[container] = told
        slot.changed.set()

    def unasked(self, leader: Leader, wanted: Collection[Member]) -> set[NodeId]:
        """Return live nodes that would leave the in-sync set and have not completed a report since this node began to
        lead.

        The store may have been restored to an earlier state, and these nodes may know better.
        """
        led_at = self._led_at.get(leader.id, float("-inf"))
        leaving = {member.node for member in leader.state.in_sync} - {member.node for member in wanted}
        living = leaving.intersection(self._others.heard())
        return {node for node in living if self._reported_at.get(node, led_at) <= led_at}

    def is_damaged(self, container_id: ContainerId) -> bool:
        """Return whether the replica here is known to be damaged."""
        slot = self._slots.get(container_id)
        return slot is not None and slot.is_damaged

    def problem(self, container_id: ContainerId) -> str:
        """Return why the replica's last change of role failed; empty if it did not."""
        slot = self._slots.get(container_id)
        return slot.problem if slot is not None else ""

    def replica(self, container_id: ContainerId) -> LocalReplica | None:
        """Return this node's replica of a container; None if there is none or it is not open."""
        slot = self._slots.get(container_id)
        return slot.replica if slot is not None else None

    @property
    def count(self) -> int:
        """Number of replicas, open or not."""
        return len(self._slots)

    def all(self) -> Sequence[LocalReplica]:
        """Return all replicas that are open."""
        return [slot.replica for slot in self._slots.values() if slot.replica is not None]

    def followed(self) -> Sequence[LocalReplica]:
        """Return the open replicas that this node does not lead."""
        return [replica for replica in self.all() if replica.leader is None]

    def any_log(self, container_id: ContainerId) -> tuple[ContainerLog, Position] | None:
        """Return the log of this node's replica and its committed position; None if there is no open replica here."""
        replica = self.replica(container_id)
        return None if replica is None else (replica.log, replica.committed)

    def teller(self) -> ReplicaReporter:
        """Return the reported states of the replicas here. With many replicas, a state may be a second old, but its
        role is current."""
        if len(self._slots) <= LOOKED_AT:
            for container_id in self._slots.keys() | self._reports.containers():
                self._note(container_id)
        return self._reports

    def states(self) -> list[ReplicaState]:
        """Return the reported states of all replicas, as a list."""
        return self.teller().all()

    # --- in_sync_writer.KeptRecords

    def known_record(self, container_id: ContainerId) -> ContainerRecord | None:
        """Return the record in the folder of a replica here, if the replica is open."""
        replica = self.replica(container_id)
        return None if replica is None else replica.known_record

    async def remember(self, record: ContainerRecord) -> None:
        """Save a record that this node has put into the store. Raises HeadraceError, OSError."""
        replica = self.replica(record.container_id)
        known = None if replica is None else replica.known_record
        if replica is not None and (known is None or not descends_from(known, record)):
            await _remember(record, replica)
            self._note(record.container_id)


def _is_up_to_date(record: ContainerRecord, known: ContainerRecord | None, better: ReplicaState | None) -> bool:
    if known is not None and not descends_from(record, known):
        return False
    return better is None or has_trace(record, change=better.change, recovered=better.recovered)


async def _remember(record: ContainerRecord, replica: LocalReplica) -> None:
    """Save the record: the cluster store may have to be rebuilt from the saved ones.

    Raises FENCED_LEADER_EPOCH for an epoch that is over, or was another node's: a store with such a record is an old
    copy of itself, and the leader that it names may lack acknowledged frames. Raises StoreSetBack likewise.
    """
    known = replica.known_record
    if known is not None:
        container_records.check_descent(record, known)
    if known is not None and (
        record.epoch < known.epoch or (record.epoch == known.epoch and record.leader != known.leader)
    ):
        raise KafkaError(
            Code.FENCED_LEADER_EPOCH,
            f"the cluster store has node {record.leader} lead epoch {record.epoch}, but node {known.leader} led "
            f"epoch {known.epoch}: it is an old copy. Stop all nodes, then rebuild it with `headrace recover-store`",
        )
    await replica.remember(record)
    if known is not None and record.recovered > known.recovered:
        replica.give_up()


def _state(replica: LocalReplica, *, damaged: bool) -> ReplicaState:
    leader = replica.leader
    known = replica.known_record
    return ReplicaState(
        container=replica.id,
        role="primary" if leader is not None else "follower" if replica.follower is not None else "none",
        epoch=leader.epoch if leader is not None else replica.seen,
        last_epoch=replica.last_epoch,
        end=replica.log.end,
        committed=replica.committed,
        stalled=leader is not None and bool(leader.stalled or leader.outcast),
        in_sync=[member.node for member in leader.state.in_sync] if leader is not None else [],
        format=replica.incarnation,
        damaged=damaged,
        stuck=replica.cycle.is_stuck,
        cramped=leader is not None and leader.cramped,
        change=known.changes[-1] if known is not None and known.changes else "",
        recovered=0 if known is None else known.recovered,
    )
