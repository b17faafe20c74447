"""The controller's loop: observe, plan, apply, repeat. Every node runs one; the node that holds the lease acts.

    prober     which nodes answer (control.prober), on every node
    lease      which node is the controller (control.controller_lease), on every node
    inventory  the view's records and the replicas reported by probes, indexed (control.inventory), on every node: a
               new controller has all of it at once
    planning   while this node holds the lease: plan and balance, pure, from the inventory and the probe results; each
               change is applied by compare-and-set, in a thread, the most urgent first (control.put_queue)

Planning runs as soon as records or probe results change, and in any case once a second. It examines what is not at
rest, and yields to other tasks every few milliseconds. The inventory only changes between two plans, so a plan reflects
a single moment however long it takes, and its first changes are applied while it continues.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

import structlog

from headrace.base.backoff import Backoff
from headrace.base.errors import HeadraceError
from headrace.base.ids import ContainerId, NodeId
from headrace.base.levels import Level
from headrace.control.balance import BalanceState, balance
from headrace.control.changes import Change, CreateContainer, PutContainer, Roll, Wait
from headrace.control.cluster_clock import Clocks
from headrace.control.container_creation import Begun, Creation, Peers, create
from headrace.control.container_states import DATA
from headrace.control.controller_lease import ControllerLease
from headrace.control.events import Events, Status
from headrace.control.inventory import Inventory
from headrace.control.lasting_conditions import finding, forgettable
from headrace.control.leader_changes import LeaderChanges
from headrace.control.level_raise import BeginRaising, FinishRaising, LevelStep, NoteAble, level_step
from headrace.control.observations import Condition, Life, Observed, ProbeResult, Settings, cut_off
from headrace.control.placement import choose_members
from headrace.control.plan import planning
from headrace.control.prober import Prober
from headrace.control.put_queue import PutQueue
from headrace.peer.messages import NO_REPLICAS, Probe, ProbeAnswer, RollAway
from headrace.peer.replica_pages import Change as ReplicaChange
from headrace.peer.replica_pages import ReportedReplicas
from headrace.peer.reports import ReplicaState
from headrace.store import container_records, features
from headrace.store.protocol import StoreCall
from headrace.store.records import NOBODY, ContainerRecord, VolumeRecord
from headrace.store.view import Changed, ClusterView
from headrace.tracing.tracer import NO_TRACER, Tracer

log = structlog.get_logger()

TICK_S: Final = 1.0
"""Seconds between two plans when nothing changes."""
DOUBT_TICK_S: Final = 0.1
"""Seconds between two plans while a node is in doubt or a change is in progress."""
STEPS_AT_ONCE: Final = 4
"""Steps of a plan, of about a millisecond each, before other tasks get their turn."""
TAKEN_AT_ONCE: Final = 128
"""The maximum number of changed records, and of changed replicas, that enter the inventory in one step."""
OWN_S: Final = 0.5
"""Seconds between two readings of this node's own replicas while it does not hold the lease."""
PUTS_S: Final = 1.0
"""Longest time, in seconds, that the next plan waits for the puts of the last one."""
WAITS_TOLD: Final = 20
"""The maximum number of containers that begin to wait at the same time and get an event each; a last event counts the
others."""
ROLL_S: Final = 10.0
"""Seconds for which the answer to an order to roll partitionlets is awaited."""
MAX_ROLLED: Final = 64
"""The maximum number of partitionlets rolled by one order."""
SHOWN_S: Final = 3.0
"""Seconds within which a new container should appear in the view."""
FAILED_PAUSE_S: Final = 0.5
"""Seconds of pause after something failed; also the longest pause between two plans that take long."""
FORGOTTEN_AT_ONCE: Final = 64
"""The maximum number of records of deleted containers removed at once."""
FORGET_AGAIN_S: Final = 30.0
"""Seconds before the removal of records of deleted containers is tried again after a failure."""
YIELD_AGAIN_S: Final = 10.0
"""Seconds after which a cut-off node gives the lease up again, if no other node has taken it; doubled each time."""
LONGEST_YIELD_S: Final = 320.0
"""Longest pause, in seconds, before a cut-off node gives the lease up again."""
DEAD_LOOK_S: Final = 0.5
"""Seconds for which the result of `Controller.dead` is reused."""
HELD_RENEWALS: Final = 6
"""Renewals by another node after which its hold on the lease counts as stable."""


T = TypeVar("T")

AnswerListener = Callable[[NodeId, Sequence[ReplicaChange], bool], None]
"""Called with the node that answered a probe, the changes of its replicas, and whether it has reported all of them."""


class Controller:
    """This node's part in controlling the cluster.

    `view` must be started. `peers` reaches every other node; probes of this node itself are answered by `own_probe`.
    """

    def __init__(
        self,
        *,
        own: NodeId,
        run: uuid.UUID,
        view: ClusterView,
        store_call: StoreCall,
        peers: Peers,
        own_probe: Callable[[Probe], ProbeAnswer],
        settings: Settings | None = None,
        lease_call: StoreCall | None = None,
        tracer: Tracer = NO_TRACER,
    ) -> None:
        """`lease_call`: used for the lease, so that it does not wait behind other calls of `store_call`."""
        self._own = own
        self._run = run
        self._view = view
        self._store_call = store_call
        self._lease_call = lease_call or store_call
        self._peers = peers
        self._own_probe = own_probe
        self._settings = settings or Settings()
        self._wake = asyncio.Event()
        self._since: dict[Condition, float] = {}
        self._lives: dict[NodeId, Life] = {}
        self._clocks_off: set[NodeId] = set()
        """Nodes whose clock was reported as off by an event."""
        self._asked_about: dict[NodeId, float] = {}
        """When other nodes were last asked whether they hear a node that refuses connections."""
        self._waits: dict[ContainerId, str] = {}
        self._set_back = False
        """An event reported that the cluster store was restored to an old copy."""
        self._creating: set[Creation] = set()
        self._begun: Begun = {}
        """Containers whose creation failed: the next attempt continues with the existing folders."""
        self._balance = BalanceState()
        self._removing_deleted = False
        self._levelling = False
        self._yields = Backoff(YIELD_AGAIN_S, LONGEST_YIELD_S)
        """How often the lease was left to nodes that hear more, since this node last heard enough or another node held
        the lease."""
        self._yields_at = float("-inf")
        """Loop time from which the lease may be given up again. If no other node takes it, none hears more at the
        moment, and this node continues."""
        self._dead: frozenset[NodeId] = frozenset()
        self._dead_at = float("-inf")
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._changes_seen: dict[asyncio.Event, None] = {}
        self._inventory = Inventory()
        self._records_changed: set[ContainerId] = set(view.containers)
        """Containers whose records changed since the inventory was last updated."""
        self._replicas_changed: dict[tuple[NodeId, ContainerId], ReplicaState | None] = {}
        """Replicas reported since the inventory was last updated; None: the node no longer has the replica."""
        self._own_told = ReportedReplicas()
        self._own_looked_at = float("-inf")
        self._answer_listeners: list[AnswerListener] = []
        self.events = Events()
        """What was done and why, oldest first."""
        self._leader_changes = LeaderChanges(tracer=tracer, time=lambda: self._loop.time(), replica=self._replica_told)

    def on_answer(self, listener: AnswerListener) -> None:
        """From now on call `listener` with each answer to a probe."""
        self._answer_listeners.append(listener)

    def start(self) -> None:
        """Probe, and take the lease when it is free, until `close`."""
        self._loop = asyncio.get_running_loop()
        self._started_at = self._loop.time()
        self._prober = Prober(
            own=self._own, view=self._view, peers=self._peers, changed=self._wake.set, told=self._answered
        )
        self._puts = PutQueue(
            view=self._view,
            store_call=self._store_call,
            events=self.events,
            may_put=lambda: self.holds_lease,
            changed=self._wake.set,
            spawn=self._spawn,
            appointed=self._leader_changes.appointed,
        )
        self._lease = ControllerLease(
            own=self._own,
            run=self._run,
            view=self._view,
            store_call=self._lease_call,
            probe_result=lambda node: self._prober.results().get(node),
            changed=self._lease_changed,
            reluctant=self._is_cut_off,
        )
        self._records_changed.update(self._view.containers)  # the view may have changed meanwhile
        self._view.on_change(self._view_changed)
        self._spawn(self._lease.keep(), "office")
        self._spawn(self._plan_always(), "controller")

    async def close(self) -> None:
        """Give the lease back and stop."""
        if self._closed or not self._tasks:
            return
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._prober.close()
        await self._lease.give_back()

    @property
    def holds_lease(self) -> bool:
        """Whether this node is the controller."""
        return self._lease.is_held()

    @property
    def clocks(self) -> Clocks:
        """The clocks of the nodes, and the cluster's time."""
        return self._prober.clocks

    def clocks_off(self) -> dict[NodeId, float]:
        """Return the seconds by which clocks are ahead of the cluster's time (behind, if negative), for nodes that
        answer."""
        heard = {self._own} | self._prober.heard()
        return {node: ahead_s for node, ahead_s in self.clocks.off().items() if node in heard}

    def heard(self) -> set[NodeId]:
        """Return the nodes that answered this node's probes within the last 2 s; probe answers contain them."""
        return self._prober.heard()

    def gone(self) -> set[NodeId]:
        """Return the nodes whose host reports that their process is not running."""
        return {node for node, result in self._prober.results().items() if result.refused_twice}

    def dead(self) -> frozenset[NodeId]:
        """Return the registered nodes that are dead as far as this node can tell; at most `DEAD_LOOK_S` old."""
        now = self._loop.time()
        if now - self._dead_at >= DEAD_LOOK_S:
            observed = self._observe(now)
            self._dead = frozenset(node for node in observed.nodes if observed.life(node, now) is Life.DEAD)
            self._dead_at = now
        return self._dead

    async def look_and_tell(self, nodes: Iterable[NodeId]) -> None:
        """Probe `nodes`, which refuse another node's connections, so that `heard` shows whether they answer
        this one."""
        await self._prober.look_and_tell(nodes)

    def look_at(self, node: NodeId) -> None:
        """Probe a node now because something seems wrong with it, such as a session that ended."""
        self._prober.look_at(node)

    async def create(self, *, first: NodeId, volume: VolumeRecord) -> ContainerRecord:
        """Create an open data container now, led by `first`, with or without the lease; return once the view shows it.

        Raises HeadraceError if `first` is not registered or does not answer, StoreUnavailable.
        """
        if first not in self._view.nodes:
            raise HeadraceError(f"there is no node {first}")
        now = self._loop.time()
        observed = self._observe(now)
        members = choose_members(
            [node for key, node in sorted(observed.nodes.items()) if key == first or observed.takes_roles(key, now)],
            (),
            first=first,
            count=volume.replicas,
            volume=volume,
            loads=observed.loads(),
            held=observed.inventory.held,
        )
        key = (DATA, first, volume.name)
        self._creating.add(key)
        try:
            record = await self._make(DATA, members, volume)
            self.events.add("container", f"made for volume {volume.name}", container=record.container_id, node=first)
            return record
        finally:
            self._creating.discard(key)

    def status(self) -> Status:
        """Return the state of the cluster as seen from this node."""
        now = self._loop.time()
        observed = self._observe(now)
        lease = self._view.lease
        return Status(
            holds_lease=self.holds_lease,
            controller=None if lease is None or lease.node == NOBODY else lease.node,
            term=self._lease.term,
            nodes={node: observed.life(node, now).value for node in sorted(observed.nodes)},
            waiting=dict(self._waits),
            creating=len(self._creating),
            balance_paused=self._view.balance.paused,
        )

    # --- events from outside

    def _view_changed(self, changed: Changed) -> None:
        if self._closed:
            return
        self._records_changed |= changed.containers
        if changed.nodes:
            self._prober.nodes_changed()
        if changed.lease or changed.nodes:
            self._lease.lease_changed()
        lease = self._view.lease
        if lease is not None and lease.node not in (self._own, NOBODY) and lease.renewal >= HELD_RENEWALS:
            self._forget_yields()
        settings = changed.balance or changed.cluster or changed.features
        if changed.nodes or changed.containers or changed.volumes or settings:
            self._wake.set()
        for each in self._changes_seen:
            each.set()

    def _told(self, node: NodeId, changes: Iterable[ReplicaChange]) -> None:
        for container, replica in changes:
            self._replicas_changed[node, container] = replica
            self._leader_changes.told(node, container, replica)

    def _answered(self, node: NodeId, changes: Sequence[ReplicaChange], whole: bool) -> None:
        self._told(node, changes)
        for listener in self._answer_listeners:
            try:
                listener(node, changes, whole)
            except Exception:  # a fault in a listener must not make the node count as silent
                log.exception("a node's report of its replicas was not processed", node=node)

    def told_of(self, container: ContainerId) -> list[ReplicaState]:
        """Return the replicas of a container on other nodes, as last reported."""
        record = self._view.containers.get(container)
        nodes = {*self._inventory.nodes(container), *(() if record is None else record.replicas)} - {self._own}
        found = (self._replica_told(node, container) for node in nodes)
        return [each for each in found if each is not None]

    def _replica_told(self, node: NodeId, container: ContainerId) -> ReplicaState | None:
        return self._replicas_changed.get((node, container), self._inventory.replica(node, container))

    def _lease_changed(self, held: bool) -> None:
        self._since.clear()
        self._lives.clear()
        self._clocks_off.clear()
        self._waits.clear()
        self._puts.forget()
        self._leader_changes.forget()
        self._balance = BalanceState()
        text = f"node {self._own} is the controller now" if held else f"node {self._own} is no longer the controller"
        self.events.add("office", f"{text} (term {self._lease.term})", node=self._own)
        self._wake.set()

    # --- planning

    async def _plan_always(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._pause()):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            began = self._loop.time()
            try:
                if self.holds_lease:
                    await self._plan_once()
                else:
                    await self._update_inventory()
            except Exception:
                log.exception("planning failed unexpectedly")
                await asyncio.sleep(FAILED_PAUSE_S)
            if self.holds_lease:
                # With thousands of containers a plan takes a while, and there is other work on this loop.
                await asyncio.sleep(min(self._loop.time() - began, FAILED_PAUSE_S))

    def _pause(self) -> float:
        if not self.holds_lease:
            return TICK_S
        busy = self._prober.is_in_doubt() or self._creating or self._puts.is_unsure
        return DOUBT_TICK_S if busy else TICK_S

    async def _plan_once(self) -> None:
        term = self._lease.term
        await self._update_inventory()
        now = self._loop.time()
        observed = self._observe(now)
        self._ask_witnesses(observed, now)
        self._report_lives(observed, now)
        self._report_clocks()
        why = cut_off(observed, now) or ("" if observed.reaches_store(self._own) else "does not reach the store")
        if not why:
            self._forget_yields()
        elif len(observed.nodes) > 1 and now >= self._yields_at:
            self._yields_at = now + self._yields.failed()
            self.events.add("office", f"node {self._own} {why}: it gives up the controller lease", node=self._own)
            await self._lease.give_back()
            return
        async for _ in self._in_turns(observed.find_at_rest(now)):
            pass
        since = {
            each: self._since.get(each, now) async for found in self._in_turns(finding(observed, now)) for each in found
        }
        if not self._still_holds_lease(term):
            return
        self._since = since
        observed = replace(observed, since=since)
        changes: list[Change] = []
        self._puts.begin()
        async for some in self._in_turns(planning(observed, now)):
            if not self._still_holds_lease(term):
                return
            changes += some
            self._apply(some)
        self._report_waits(changes)
        if all(isinstance(each, Wait) for each in changes):
            changes, self._balance = balance(observed, self._balance, now, self._view.balance)
            self._apply(changes)
        self._leader_changes.planned(changes)
        await self._puts.rest(PUTS_S)
        if not self._levelling and (
            step := level_step(observed, self._view.features, now=now, time=self.clocks.agreed())
        ):
            self._levelling = True
            self._spawn(self._take_level_step(step), "feature level")
        if not self._removing_deleted and (old := forgettable(observed, now)):
            self._removing_deleted = True
            self._spawn(self._remove_deleted(old[:FORGOTTEN_AT_ONCE]), "forget containers")

    def _still_holds_lease(self, term: int) -> bool:
        """Return whether this node has held the lease without interruption since it took it in `term`."""
        return self.holds_lease and self._lease.term == term

    async def _in_turns(self, steps: Iterable[T]) -> AsyncIterator[T]:
        """Yield the steps, and let other tasks run after every few.

        Steps are counted instead of timed, so that runs of the simulator are reproducible.
        """
        for count, step in enumerate(steps, 1):
            yield step
            if count % STEPS_AT_ONCE == 0:
                await asyncio.sleep(0)

    async def _update_inventory(self) -> None:
        """Bring the inventory up to date with the view and the prober."""
        now = self._loop.time()
        if self.holds_lease or now - self._own_looked_at >= OWN_S:
            self._own_looked_at = now
            self._told(self._own, self._own_changes())
        async for _ in self._in_turns(self._inventory_steps()):
            pass

    def _own_changes(self) -> Iterator[ReplicaChange]:
        """Return the changes of this node's replicas, as another node would receive them."""
        told, more = self._own_told, True
        while more:
            since = told.since
            answer = self._own_probe(Probe(since, told.begun))
            yield from told.take(answer, asked_since=since)[0].changes
            more = answer.more and told.since > since

    def _inventory_steps(self) -> Iterator[None]:
        records, replicas = self._records_changed, self._replicas_changed
        while records or replicas:
            for _ in range(min(len(records), TAKEN_AT_ONCE)):
                container = records.pop()
                self._inventory.put(
                    container, self._view.containers.get(container), self._view.versions.get(container, 0)
                )
            for _ in range(min(len(replicas), TAKEN_AT_ONCE)):
                (node, container), replica = replicas.popitem()
                self._inventory.tell(node, container, replica)
            yield

    async def _remove_deleted(self, containers: Sequence[ContainerId]) -> None:
        try:
            await self._store_call(lambda store: container_records.forget_deleted(store, containers))
            self._view.refresh()
        except HeadraceError as error:
            log.warning("records of deleted containers stay for now", containers=len(containers), reason=str(error))
            await asyncio.sleep(FORGET_AGAIN_S)
        except Exception:
            log.exception("removing records of deleted containers failed unexpectedly", containers=len(containers))
            await asyncio.sleep(FORGET_AGAIN_S)
        finally:
            self._removing_deleted = False

    async def _take_level_step(self, step: LevelStep) -> None:
        try:
            match step:
                case NoteAble(since=since):
                    await self._store_call(lambda store: features.note_able(store, since))
                case BeginRaising(level=level, reason=reason):
                    await self._store_call(lambda store: features.begin_raising(store, level))
                    self.events.add("level", f"the cluster is about to go to feature level {level}, {reason}")
                    await self._store_call(lambda store: features.refuse_older(store, level))
                case FinishRaising(level=level):
                    await self._store_call(lambda store: features.refuse_older(store, level))
                    await self._store_call(lambda store: features.finish_raising(store, level))
                    self.events.add("level", f"the cluster is at feature level {level}: older versions are refused")
            self._view.refresh()
        except HeadraceError as error:
            log.warning("the cluster's feature level stays for now", reason=str(error))
        finally:
            # By then the view should show the change; each step checks the view's state again.
            self._loop.call_later(FAILED_PAUSE_S, self._allow_level_step)

    def _allow_level_step(self) -> None:
        self._levelling = False
        self._wake.set()

    def _forget_yields(self) -> None:
        self._yields.succeeded()
        self._yields_at = float("-inf")

    def _is_cut_off(self) -> bool:
        now = self._loop.time()
        return bool(cut_off(self._observe(now), now))

    def _observe(self, now: float) -> Observed:
        """Return what is known now; for containers and replicas, the inventory as of the last plan."""
        probes = self._prober.results()
        probes[self._own] = ProbeResult(self._own_probe(Probe(NO_REPLICAS)), now)
        cluster = self._view.cluster
        return Observed(
            own=self._own,
            nodes=dict(self._view.nodes),
            containers=self._inventory.containers,
            versions=self._inventory.versions,
            volumes=dict(self._view.volumes),
            probes=probes,
            first_nodes=1 if cluster is None else cluster.first_nodes,
            lease_since=self._lease.taken_at,
            started_at=self._started_at,
            counted_from=self._prober.counted_from(),
            since=self._since,
            creating=frozenset(self._creating),
            settings=self._settings,
            fell_at=self._view.fell_at,
            kept=self._inventory,
        )

    def _ask_witnesses(self, observed: Observed, now: float) -> None:
        for node, result in observed.probes.items():
            if result.refused_twice and self._asked_about.get(node, float("-inf")) < result.refused_at:
                self._asked_about[node] = now
                self._prober.ask_about(node, observed.witnesses(node, now))

    def _report_lives(self, observed: Observed, now: float) -> None:
        lives = {node: observed.life(node, now) for node in observed.nodes}
        for node, life in lives.items():
            before = self._lives.get(node)
            # A node in doubt gets no event: it soon is alive or dead.
            if life is Life.DEAD and before is not Life.DEAD:
                result = observed.probes.get(node)
                how = "refuses connections" if result is not None and result.refused_twice else "is silent"
                self.events.add("node", f"node {node} {how}", node=node)
            elif life is Life.ALIVE and before is Life.DEAD:
                self.events.add("node", f"node {node} answers again", node=node)
        self._lives = {
            node: self._lives.get(node, life) if life is Life.DOUBT and self._lives.get(node) is Life.DEAD else life
            for node, life in lives.items()
        }

    def _report_clocks(self) -> None:
        off = self.clocks_off()
        for node, ahead_s in off.items():
            if node not in self._clocks_off:
                where = "ahead of" if ahead_s > 0 else "behind"
                self.events.add(
                    "clock", f"node {node}'s clock is {abs(ahead_s):.0f} s {where} the cluster's time", node=node
                )
        for node in self._clocks_off & ({self._own} | self._prober.heard()) - off.keys():
            self.events.add("clock", f"node {node}'s clock is right again", node=node)
            self._clocks_off.discard(node)
        self._clocks_off |= off.keys()

    def _report_waits(self, changes: Iterable[Change]) -> None:
        waiting = [each for each in changes if isinstance(each, Wait)]
        waits = {each.container: each.reason for each in waiting}
        set_back = {each.container: each.reason for each in waiting if each.set_back}
        new = [
            container
            for container, reason in waits.items()
            if self._waits.get(container) != reason and container not in set_back
        ]
        for container in new[:WAITS_TOLD]:
            self.events.add("wait", waits[container], container=container)
        if len(new) > WAITS_TOLD:
            self.events.add("wait", f"{len(new) - WAITS_TOLD} more containers wait, such as container {new[-1]}")
        self._waits = waits
        self._report_set_back(set_back)

    def _report_set_back(self, waits: Mapping[ContainerId, str]) -> None:
        """Report with a single event for all containers: there may be tens of thousands."""
        if bool(waits) == self._set_back:
            return
        self._set_back = bool(waits)
        if waits:
            container, reason = next(iter(waits.items()))
            self.events.add("frozen", f"{len(waits)} containers are frozen, such as {container}: {reason}")
        else:
            self.events.add(
                "thawed", "no container is frozen any longer: the cluster store has the newest records again"
            )

    # --- applying

    def _apply(self, changes: Iterable[Change]) -> None:
        for change in changes:
            match change:
                case PutContainer():
                    known = self._view.containers.get(change.record.container_id)
                    self._leader_changes.decided(change, None if known is None else known.leader)
                    self._puts.put(change)
                case CreateContainer(kind=kind, members=members, volume=volume):
                    key = (kind, members[0], volume)
                    if key not in self._creating:
                        self._creating.add(key)
                        self._spawn(self._create(change, key), "create container")
                case Roll():
                    self._spawn(self._roll(change), "roll away")

    async def _create(self, change: CreateContainer, key: Creation) -> None:
        try:
            volume = self._view.volumes.get(change.volume) or VolumeRecord(change.volume)
            try:
                record = await self._make(change.kind, change.members, volume)
            except HeadraceError as error:
                log.warning("a container was not created", kind=change.kind, node=change.members[0], reason=str(error))
                await asyncio.sleep(FAILED_PAUSE_S)
                return
            except Exception:
                log.exception("creating a container failed unexpectedly", kind=change.kind, node=change.members[0])
                await asyncio.sleep(FAILED_PAUSE_S)
                return
            self.events.add("container", change.reason, container=record.container_id, node=record.leader)
        finally:
            self._creating.discard(key)
            self._wake.set()

    async def _make(self, kind: str, members: Sequence[NodeId], volume: VolumeRecord) -> ContainerRecord:
        nodes = [self._view.nodes[node] for node in members if node in self._view.nodes]
        for each in list(self._begun):
            if each in self._view.containers or self._view.is_deleted(each):
                del self._begun[each]  # the abandoned put was stored after all
        record = await create(
            self._store_call,
            self._peers,
            kind=kind,
            members=nodes,
            volume=volume,
            begun=self._begun,
            traced=self._view.may(Level.FENCED),
            least_id=self._view.highest.get("next/container", 0),
        )
        self._view.refresh()
        await self._wait_for_view(record.container_id)
        return record

    async def _wait_for_view(self, container: ContainerId) -> None:
        """Return when the view shows the container, or should: a plan that does not see it would create another."""
        seen = asyncio.Event()
        self._changes_seen[seen] = None
        try:
            async with asyncio.timeout(SHOWN_S):
                while container not in self._view.containers:
                    await seen.wait()
                    seen.clear()
        except TimeoutError:
            log.warning("a new container does not appear in the cluster store", container=container)
        finally:
            self._changes_seen.pop(seen, None)

    async def _roll(self, change: Roll) -> None:
        node = self._view.nodes.get(change.node)
        if node is None:
            return
        order = RollAway(change.container, MAX_ROLLED, change.to, change.reason, share=change.share, limit=change.limit)
        try:
            answer, _ = await self._peers.call(node.peer_address, order, timeout_s=ROLL_S)
        except HeadraceError as error:
            log.warning("partitionlets were not rolled", container=change.container, reason=str(error))
            return
        if answer.count:
            self.events.balance_moves += answer.count
            self.events.add(
                "roll", f"{change.reason} ({answer.count} rolled)", container=change.container, node=change.node
            )

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = self._loop.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a task of the controller ended", task=task.get_name(), error=repr(error))
