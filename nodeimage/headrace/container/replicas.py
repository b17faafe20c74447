"""The replicas of one node: which there are and who leads them follows from the containers' records.

Responsible for carrying out what the cluster store says: a replica becomes leader, follows (roles.py), or goes, as its
record changes; and for the one change that a leader makes itself, the in-sync set (in_sync_writer.py; invariants 3,
5, 6). It hears of what happens to replicas (ReplicaEvents), and tells the other parts of the node (listeners.py).
One task per replica makes its changes of role one after the other; one timer for all looks after silent followers and
heartbeats, of those replicas alone that do not rest (pairs.py).
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
from headrace.peer.replica_pages import Change, ReplicaTeller
from headrace.peer.reports import ReplicaState
from headrace.peer.session import Session
from headrace.store import container_records
from headrace.store.container_records import descends_from, has_trace
from headrace.store.lineage import is_given_up
from headrace.store.records import ContainerRecord

log = structlog.get_logger()

TICK_S: Final = 0.1
BEAT_EVERY: Final = 3
STORE_RETRY_S: Final = 0.3
DAMAGED_RETRY_S: Final = 1.0
STOOD_STILL_S: Final = 0.6
"""A timer that is so late says that this process stood still."""
CUT_OFF_S: Final = 3.0
"""Without the cluster store for so long, a node may have missed that another leads."""
SUPERSEDED_S: Final = 1.0
"""Until a node that was told of a higher epoch claims one of its own, if it has not seen the other's record by then."""
SET_BACK_RETRY_S: Final = 5.0
"""Until the store is asked again whether it is still an old copy; a record that changes is looked at at once."""

LOOKED_AT: Final = 64
"""Replicas whose states are looked at in a tick, or a tenth of those that do not rest, if that is more: what is told of
one is no older than a second. Where there are no more, all are looked at whenever somebody asks."""
ROUND_TICKS: Final = 3_000
"""Ticks within which each replica is looked at, also those that rest: what tells nobody that it changed shows then."""


class _Kept:
    """One replica and the task that changes its role."""

    __slots__ = ("_again", "changed", "damage", "problem", "replica", "set_back", "task")

    def __init__(self) -> None:
        self.replica: LocalReplica | None = None
        self.damage = Damage()
        self.changed = asyncio.Event()
        self.changed.set()
        self.problem = ""
        self.set_back = False
        """It stands still, as the store has no trace of a change of its record that it knows."""
        self.task: asyncio.Task[None] | None = None
        self._again: asyncio.TimerHandle | None = None

    def look_again(self, seconds: float) -> None:
        """Have it be looked at in so long, whatever happens until then. Not besides the last time that was asked for:
        each look would ask for one more."""
        if self._again is not None:
            self._again.cancel()
        self._again = asyncio.get_running_loop().call_later(seconds, self.changed.set)

    @property
    def is_damaged(self) -> bool:
        """Whether it is known that the replica is."""
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
        """`receive` takes over the catalog's snapshot that a leader sends; `snapshot` gives the newest one, for a
        follower that is too far behind the log. None: this node has no tables of the catalog."""
        self._env = environment
        self._others = others
        self._receive = receive
        self._snapshot = snapshot
        self._loop = asyncio.get_running_loop()
        self._kept: dict[ContainerId, _Kept] = {}
        self._making: WeakValueDictionary[ContainerId, asyncio.Lock] = WeakValueDictionary()
        self._in_sync = InSyncWriter(environment, self)
        self._tasks: set[asyncio.Task[None]] = set()
        self._ticks = 0
        self._ticking: asyncio.Task[None] | None = None
        self._closed = False
        self._disk_writes = asyncio.Event()
        self._disk_writes.set()
        self._teller = ReplicaTeller()
        self._to_look_at: list[ContainerId] = []
        """The rest of a round of looking at the states of those that do not rest."""
        self._all_to_look_at: list[ContainerId] = []
        """The rest of a round of looking at all."""
        self._astir: set[ContainerId] = set()
        """Those that the timer looks after: all that do not rest. One rests where nothing is under way, and all that
        can change anything is an event that is heard of here (`stirs`)."""
        self._left: set[NodeId] = set()
        """Nodes that stop, or whose process has gone, when the timer looked last."""
        self._cut_off = ""
        self._pairs = Pairs(environment, self._fed, self.lost_touch)
        self.led: dict[ContainerId, Leader] = {}
        """The containers that this node leads."""
        self._container_listeners: list[ContainerListener] = []
        self._replica_listeners: list[ReplicaListener] = []
        self._told_at: dict[NodeId, float] = {}
        """When each node last said what it knows."""
        self._led_at: dict[ContainerId, float] = {}
        self._better: dict[ContainerId, ReplicaState] = {}
        """Of containers here, what another node knows that the records seen here have no trace of."""

    def add_container_listener(self, listener: ContainerListener) -> None:
        """Tell it of the containers that this node leads, or leaves, from now on."""
        self._container_listeners.append(listener)

    def add_replica_listener(self, listener: ReplicaListener) -> None:
        """Tell it of what happens to the replicas here from now on."""
        self._replica_listeners.append(listener)

    # --- life

    def start(self) -> None:
        """Carry out what the records say, from now on."""
        self._loop.run_in_executor(self._env.executor, replica_folder.sweep, self._env.folder)
        self._ticking = self._loop.create_task(self._tick_always(), name="replicas")
        view = self._env.view
        for container_id in replica_folder.listed(self._env.folder):
            if container_id in view.containers or view.is_deleted(container_id):
                self._kept[container_id] = _Kept()  # also one that was given to others meanwhile, or deleted: it goes
        self.records_changed({*view.containers, *self._kept})

    async def close(self) -> None:
        """Lead and follow nothing more; let go of all files."""
        self._closed = True
        await self._in_sync.close()
        await self._pairs.close()
        for task in [self._ticking, *(kept.task for kept in self._kept.values()), *self._tasks]:
            if task is not None:
                task.cancel()
        await asyncio.gather(
            *(task for task in [self._ticking, *self._tasks] if task is not None),
            *(kept.task for kept in self._kept.values() if kept.task is not None),
            return_exceptions=True,
        )
        for kept in list(self._kept.values()):
            if kept.replica is not None:
                if kept.replica.leader is not None:
                    await kept.replica.cycle.flush()
                await kept.replica.close()
        self.led.clear()

    def records_changed(self, containers: set[ContainerId]) -> None:
        """These containers' records are new, changed or gone."""
        for container_id in containers:
            kept = self._kept.get(container_id)
            if kept is None:
                if not self._is_wanted(self._env.view.containers.get(container_id)) and not self._is_left(container_id):
                    continue
                kept = self._kept[container_id] = _Kept()
            self._heed(container_id)
            for told in self._others.told_of(container_id):
                self._compare(container_id, told)
            kept.changed.set()
            if kept.task is None or kept.task.done():
                kept.task = self._loop.create_task(self._keep(container_id, kept), name=f"replica-{container_id}")

    def _is_left(self, container_id: ContainerId) -> bool:
        """Whether there is a folder still of a container that was deleted so long ago that it has no record."""
        view = self._env.view
        gone = container_id not in view.containers and view.is_deleted(container_id)
        return gone and (self._env.folder / str(container_id)).exists()

    def volumes_changed(self, volumes: set[str]) -> None:
        """These volumes' records are new, changed or gone: their replicas may have to be kept otherwise."""
        if not volumes:
            return
        containers = self._env.view.containers.items()
        self.records_changed({container_id for container_id, record in containers if record.volume in volumes})

    def _heed(self, container_id: ContainerId) -> None:
        """What a record's change means for a container that is led here, at once: an old leader stops now."""
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
        log.info("leads no more", container=leader.id, epoch=leader.epoch)
        for listener in self._container_listeners:
            listener.container_left(leader)

    def _is_wanted(self, record: ContainerRecord | None) -> bool:
        if record is None or record.state == "deleted":
            return False
        # Every node follows the catalog, to apply its commands.
        return record.kind == CATALOG or self._env.node_id in record.replicas or record.leader == self._env.node_id

    # --- one replica

    async def _keep(self, container_id: ContainerId, kept: _Kept) -> None:
        while not self._closed:
            await kept.changed.wait()
            await self._disk_writes.wait()  # what a role writes would hang too, in a thread that others need
            kept.changed.clear()
            record = self._env.view.containers.get(container_id)
            try:
                if not self._is_wanted(record):
                    if record is not None:
                        await self._check_kept(record, kept)
                    if not self._may_go(container_id, record):
                        await asyncio.sleep(STORE_RETRY_S)
                        kept.changed.set()
                        continue
                    await self._remove(container_id, kept)
                    if self._is_wanted(self._env.view.containers.get(container_id)):
                        self.records_changed({container_id})  # given to this node again while it was being removed
                    return
                assert record is not None
                await self._carry_out(record, kept)
                kept.problem = ""
                if kept.is_damaged:
                    kept.look_again(DAMAGED_RETRY_S)
            except asyncio.CancelledError:
                raise
            except NewerFormat as error:
                self._env.too_new(error)
                return
            except StoreSetBack as error:
                if kept.problem != str(error):
                    log.error("a replica stands still", container=container_id, reason=str(error))
                kept.problem = str(error)
                kept.look_again(SET_BACK_RETRY_S)
            except (HeadraceError, OSError) as error:
                if kept.problem != str(error):
                    log.warning("a replica is not as it should be", container=container_id, reason=str(error))
                kept.problem = str(error)
                if isinstance(error, CorruptLog | StorageFull) and not isinstance(error, OutOfDescriptors):
                    for listener in self._replica_listeners:
                        listener.replica_unusable(container_id, error)
                await asyncio.sleep(STORE_RETRY_S)
                kept.changed.set()
            except Exception as error:
                log.exception("a replica's change of role went wrong", container=container_id)
                kept.problem = repr(error)
                await asyncio.sleep(STORE_RETRY_S)
                kept.changed.set()
            finally:
                self._note(container_id)
                self._astir.add(container_id)

    async def _check_kept(self, record: ContainerRecord, kept: _Kept) -> None:
        """Raises StoreSetBack where a replica that is about to go knows better than its record: it stays, and is told
        of."""
        if kept.replica is None:
            folder = self._env.folder / str(record.container_id)
            state = await self._loop.run_in_executor(self._env.executor, replica_folder.read, folder)
            if state is None or not state.record or descends_from(record, replica_folder.decode_record(state.record)):
                return
            kept.replica = await self._open(record)
            self._note(record.container_id)
        await self._newest(record, kept, kept.replica)

    async def _newest(self, record: ContainerRecord, kept: _Kept, replica: LocalReplica) -> ContainerRecord:
        """The record to go by: the view's, or what the store has, where the view is behind what this node put there.

        Raises StoreSetBack, with the replica standing still, where the store has been set back to before what is known
        here (DESIGN section 13): who leads by it may lack what was acknowledged.
        """
        known, better = replica.known_record, self._better.get(record.container_id)
        if not _is_newest(record, known, better):
            found = await self._env.store(lambda store: container_records.get_container(store, record.container_id))
            self._env.view.refresh()
            if found is None:
                raise KafkaError(Code.NOT_LEADER_OR_FOLLOWER, "its record has gone from the cluster store")
            record = found
            if not _is_newest(record, known, better):
                kept.set_back = True
                leader = self.led.get(record.container_id)
                if leader is not None:
                    self._leave(leader)
                await replica.stop()
                if known is not None:
                    container_records.check_descent(record, known)
                raise StoreSetBack(
                    f"the cluster store has no trace of a change of container {record.container_id} that others know: "
                    "it is an old copy. Nothing is led; build it anew with `headrace recover-store`"
                )
        kept.set_back = False
        if better is not None and self._better.get(record.container_id) is better:
            del self._better[record.container_id]
        return record

    def _may_go(self, container_id: ContainerId, record: ContainerRecord | None) -> bool:
        """A replica goes only when the store says so; a record that is missing may be back in a moment."""
        if record is None or record.state == "deleted":
            return self._env.view.is_deleted(container_id)
        return self._env.node_id not in {node for node, _ in record.in_sync}

    async def _remove(self, container_id: ContainerId, kept: _Kept) -> None:
        async with self._making_of(container_id):
            if kept.replica is not None:
                await kept.replica.remove()
                log.info("replica removed", container=container_id)
            else:
                folder = self._env.folder / str(container_id)
                await self._loop.run_in_executor(self._env.executor, replica_folder.remove, folder)
        self._kept.pop(container_id, None)
        self._note(container_id)
        self._better.pop(container_id, None)
        self._led_at.pop(container_id, None)

    async def _carry_out(self, record: ContainerRecord, kept: _Kept) -> None:
        replica = kept.replica
        if replica is None:
            replica = kept.replica = await self._open(record)
            self._note(record.container_id)
        record = await self._newest(record, kept, replica)
        if kept.is_damaged:
            await self._renew(record.container_id, kept.damage, replica)
        await self._check_parted(record, replica)
        await replica.set_durability(fsync=self._env.options(record.kind, record.volume).fsync)
        await _remember(record, replica)
        self._note(record.container_id)
        if record.leader == self._env.node_id:
            await self._lead(record, replica)
        else:
            await self._follow(record, replica)

    async def _check_parted(self, record: ContainerRecord, replica: LocalReplica) -> None:
        """Begin anew where the replica went on by an old copy of the store, and the record by what others knew: its
        history does not tell what it wrote in an epoch from what they wrote in the same (container.lost_record)."""
        known, own = replica.known_record, (self._env.node_id, uuid.UUID(replica.incarnation))
        if known is not None and is_given_up(record.changes, known.changes) and own not in record.in_sync:
            log.error("a replica that went on by an old copy of the cluster store begins anew", container=replica.id)
            await replica.renew()

    async def _renew(self, container_id: ContainerId, damage: Damage, replica: LocalReplica) -> None:
        """Make a damaged replica anew, if enough others have what it holds (invariant 14); else it stays as it is."""
        leader = self.led.get(container_id)
        left = await damage.leave(self._env.store, container_id, self._env.node_id, leader, known=replica.known_record)
        self._env.view.refresh()
        if not left:
            return
        if leader is not None and not leader.lost:
            self._leave(leader)
        log.error("a damaged replica is fetched anew", container=container_id, format=replica.incarnation)
        await replica.renew()

    async def _open(self, record: ContainerRecord) -> LocalReplica:
        async with self._making_of(record.container_id):
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
        self._heed(leader.id)

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
        """What this node's replica of a container holds is damaged below its synced mark (invariant 14).

        It is made anew as another incarnation, as soon as others are in sync.
        """
        kept = self._kept.get(container_id)
        if kept is not None and kept.replica is not None:
            kept.damage.found(kept.replica.incarnation)
            self._note(container_id)
            kept.changed.set()

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
        """See ReplicaEvents. Nothing more is committed here, and the view is behind."""
        leader = self.led.get(container_id)
        if leader is None or leader.epoch >= epoch:
            return
        log.info("another node leads by now", container=container_id, epoch=epoch)
        self._leave(leader)
        self._env.view.refresh()
        kept = self._kept.get(container_id)
        if kept is not None:
            kept.look_again(SUPERSEDED_S)

    def lost_touch(self, node: NodeId) -> None:
        """See ReplicaEvents."""
        if not self._closed:
            self._others.look_at(node)

    def stirs(self, container_id: ContainerId) -> None:
        """See ReplicaEvents."""
        self._astir.add(container_id)

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
                self._look_at_states()
                self._look_after(beats=self._ticks % BEAT_EVERY == 0)
            except Exception:
                log.exception("looking after the followers went wrong")

    def _look_after(self, *, beats: bool) -> None:
        """Look after the replicas that do not rest, and at what concerns all."""
        self._pairs.tick(beats=beats)
        silent_s = self._loop.time() - self._env.view.reachable_at
        cut_off = f"the cluster store has not answered for {silent_s:.0f} s" if silent_s >= CUT_OFF_S else ""
        if cut_off != self._cut_off:
            self._cut_off = cut_off
            for leader in self.led.values():
                leader.cut_off = cut_off
        left = {node.node_id for node in self._env.view.nodes.values() if node.stopping}
        left.update(self._others.gone())
        if left != self._left:
            self._left = left
            self._stir_all()
        stuck = []
        for container_id in list(self._astir):
            kept = self._kept.get(container_id)
            replica = None if kept is None else kept.replica
            if replica is None:
                self._astir.discard(container_id)
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
                self._astir.discard(container_id)
                self._note(container_id)
        self._look_at_disk(stuck)

    def _look_at_led(self, leader: Leader, left: Collection[NodeId], *, beats: bool) -> bool:
        """Whether it rests."""
        record = self._env.view.containers.get(leader.id)
        if beats:
            for each in leader.feeds:
                each.beat()
        self._in_sync.look_at(leader, record, left)
        leader.rests = leader.may_rest and self._in_sync.is_settled(leader, record)
        if leader.rests:
            leader.forget_recent()  # all followers have all
        return leader.rests

    def _stir_all(self) -> None:
        for leader in self.led.values():
            leader.stir()

    def _look_at_states(self) -> None:
        if len(self._kept) <= LOOKED_AT:
            return  # see teller
        if not self._to_look_at:
            self._to_look_at = list(self._astir)
        for _ in range(min(len(self._to_look_at), max(LOOKED_AT, len(self._astir) // 10))):
            self._note(self._to_look_at.pop())
        if not self._all_to_look_at:
            self._all_to_look_at = list(self._kept)
        for _ in range(min(len(self._all_to_look_at), 1 + len(self._kept) // ROUND_TICKS)):
            container_id = self._all_to_look_at.pop()
            self._note(container_id)
            self._astir.add(container_id)

    def _note(self, container_id: ContainerId) -> None:
        """Have told of a replica here what it is like now."""
        kept = self._kept.get(container_id)
        if kept is None or kept.replica is None:
            self._teller.note(container_id, None)
        else:
            self._teller.note(
                container_id, _state(kept.replica, damaged=kept.is_damaged or kept.replica.are_tables_damaged)
            )

    def _look_at_disk(self, stuck: Sequence[ContainerId]) -> None:
        if stuck and self._disk_writes.is_set():
            self._disk_writes.clear()
            for container_id in stuck:
                self._note(container_id)
            log.error("the disk hangs, no role is changed here", containers=len(stuck), such_as=stuck[:5])
        elif not stuck and not self._disk_writes.is_set():
            self._disk_writes.set()
            log.info("the disk writes again")

    # --- asked by others

    def accept(self, asked: Follow, session: Session) -> None:
        """A follower wants to follow a container that this node leads."""
        leader = self.led.get(ContainerId(asked.container))
        kept = self._kept.get(ContainerId(asked.container))
        if leader is None or kept is None or kept.replica is None or asked.epoch != leader.epoch:
            epoch = leader.epoch if leader is not None else Epoch(-1)
            if leader is None or asked.epoch > leader.epoch:
                self._env.view.refresh()
            follower_feed.refuse(session, Code.NOT_LEADER_OR_FOLLOWER, "another epoch", epoch=epoch)
            return
        replica = kept.replica
        snapshot = self._snapshot if replica.kind == CATALOG else None
        task = self._loop.create_task(self._accept(leader, asked, session, replica, snapshot), name="accept")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def accept_pair(self, asked: PairUp, session: Session) -> None:
        """A node wants the heartbeats of this one, for its followers of what is led here."""
        self._pairs.accept(asked, session)

    def _fed(self, node: NodeId, resting: Resting) -> FedFollower | None:
        """A follower on another node, where it is fed from here in that epoch."""
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
            log.warning("a follower was not taken on", container=leader.id, node=asked.node, reason=str(error))
            session.close()

    async def prepare(self, container_id: ContainerId) -> str:
        """Make an empty replica for a container that is about to be created; its incarnation. Idempotent.

        Raises KafkaError (FENCED_LEADER_EPOCH) where it has been in use: then the container's record was lost.
        """
        folder = self._env.folder / str(container_id)
        async with self._making_of(container_id):  # who asked may have given up, and ask again
            state = await self._loop.run_in_executor(self._env.executor, replica_folder.prepare, folder)
        if state.seen and container_id not in self._env.view.containers:
            raise KafkaError(
                Code.FENCED_LEADER_EPOCH,
                f"container {container_id} is to be made, but its replica here has seen epoch {state.seen}: "
                "the cluster store has lost its record; put it back, at a higher epoch",
            )
        # It goes again where the container is made without it, or has been: on a slow disk this may take long.
        self._kept.setdefault(container_id, _Kept())
        if container_id in self._env.view.containers or self._env.view.is_deleted(container_id):
            self.records_changed({container_id})
        return state.format

    def _making_of(self, container_id: ContainerId) -> asyncio.Lock:
        """Of two that make a folder at a time, each would have another incarnation, in the same file; and one that is
        being made is not to be removed from under who makes it."""
        return self._making.setdefault(container_id, asyncio.Lock())

    def set_back(self) -> list[ContainerId]:
        """The containers whose replicas here stand still, as the store has no trace of what they know."""
        return sorted(container_id for container_id, kept in self._kept.items() if kept.set_back)

    def highest_id(self) -> ContainerId:
        """The highest id of a container that has a replica here; 0: there is none."""
        return max(replica_folder.listed(self._env.folder), default=ContainerId(0))

    async def unrecorded(
        self, recorded: Collection[ContainerId], *, seen: bool = False
    ) -> tuple[list[ContainerId], list[FoundReplica], list[str]]:
        """Replicas here of containers that have no record: those of which this node still sees one, or leads them;
        what all others hold (and these, with `seen`); what cannot be read."""
        lost = sorted(replica_folder.listed(self._env.folder).difference(recorded))
        unseen = [each for each in lost if each in self._env.view.containers or each in self.led]
        found, warnings = [], []
        for container_id in lost:
            if container_id in unseen and not seen:
                continue
            try:
                told = await self._found(container_id)
            except CorruptLog as error:
                warnings.append(f"node {self._env.node_id}: {error}; it is left out")
                continue
            if told is not None:
                found.append(told)
        return unseen, found, warnings

    async def _found(self, container_id: ContainerId) -> FoundReplica | None:
        """See found_replica. A log that is not open is opened for it, and must not be for a role meanwhile: of two that
        open it, the one removes what the other is about to use."""
        async with self._making_of(container_id):
            kept = self._kept.get(container_id)
            replica = None if kept is None else kept.replica
            opened = None if replica is None else (replica.log.end, replica.history)
            look = partial(found_replica, self._env.folder / str(container_id), self._env.node_id, opened=opened)
            return await self._loop.run_in_executor(self._env.executor, look)

    def told(self, node: NodeId, changes: Iterable[Change], whole: bool) -> None:
        """Another node says what it knows; `whole`: all of it by now. Who leads by an old copy of the store learns of
        it, and stands still."""
        if whole:
            self._told_at[node] = self._loop.time()
        for container, state in changes:
            if state is not None:
                self._compare(container, state)

    def _compare(self, container: ContainerId, told: ReplicaState) -> None:
        kept = self._kept.get(container)
        record = self._env.view.containers.get(container)
        if kept is None or record is None or has_trace(record, change=told.change, recovered=told.recovered):
            return
        self._better[container] = told
        kept.changed.set()

    def unasked(self, leader: Leader, wanted: Collection[Member]) -> set[NodeId]:
        """Nodes that are to leave the in-sync set, live, and have not said what they know since the container is led
        here: the store may have been set back, and they may know better."""
        led_at = self._led_at.get(leader.id, float("-inf"))
        leaving = {member.node for member in leader.state.in_sync} - {member.node for member in wanted}
        living = leaving.intersection(self._others.heard())
        return {node for node in living if self._told_at.get(node, led_at) <= led_at}

    def is_damaged(self, container_id: ContainerId) -> bool:
        """Whether it is known that the replica here is."""
        kept = self._kept.get(container_id)
        return kept is not None and kept.is_damaged

    def problem(self, container_id: ContainerId) -> str:
        """Why a replica here is not as it should be; empty if it is."""
        kept = self._kept.get(container_id)
        return kept.problem if kept is not None else ""

    def replica(self, container_id: ContainerId) -> LocalReplica | None:
        """This node's replica of a container, if it has one and it is open."""
        kept = self._kept.get(container_id)
        return kept.replica if kept is not None else None

    @property
    def count(self) -> int:
        """Of replicas, open or not."""
        return len(self._kept)

    def all(self) -> Sequence[LocalReplica]:
        """All replicas that are open."""
        return [kept.replica for kept in self._kept.values() if kept.replica is not None]

    def followed(self) -> Sequence[LocalReplica]:
        """Those that another node leads."""
        return [replica for replica in self.all() if replica.leader is None]

    def any_log(self, container_id: ContainerId) -> tuple[ContainerLog, Position] | None:
        """The log of this node's replica and what of it is committed; None: there is no replica here."""
        replica = self.replica(container_id)
        return None if replica is None else (replica.log, replica.committed)

    def teller(self) -> ReplicaTeller:
        """What controllers are told of the replicas here; of many, it may be a second old, but for their roles."""
        if len(self._kept) <= LOOKED_AT:
            for container_id in self._kept.keys() | self._teller.containers():
                self._note(container_id)
        return self._teller

    def states(self) -> list[ReplicaState]:
        """The same, of all replicas at once."""
        return self.teller().all()

    # --- see in_sync.KeptRecords

    def known_record(self, container_id: ContainerId) -> ContainerRecord | None:
        """The record in the folder of a replica here, if it is open."""
        replica = self.replica(container_id)
        return None if replica is None else replica.known_record

    async def remember(self, record: ContainerRecord) -> None:
        """Keep a record that this node has put into the store. Raises HeadraceError, OSError."""
        replica = self.replica(record.container_id)
        known = None if replica is None else replica.known_record
        if replica is not None and (known is None or not descends_from(known, record)):
            await _remember(record, replica)
            self._note(record.container_id)


def _is_newest(record: ContainerRecord, known: ContainerRecord | None, better: ReplicaState | None) -> bool:
    if known is not None and not descends_from(record, known):
        return False
    return better is None or has_trace(record, change=better.change, recovered=better.recovered)


async def _remember(record: ContainerRecord, replica: LocalReplica) -> None:
    """Keep the record: the cluster store may have to be built anew from those.

    Raises FENCED_LEADER_EPOCH for an epoch that is over, or was another node's. A store that says so is an old copy of
    itself, and whoever leads by it may lack what was acknowledged. Raises StoreSetBack likewise.
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
            f"epoch {known.epoch}: it is an old copy. Stop all nodes, then build it anew with `headrace recover-store`",
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
