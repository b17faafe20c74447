"""The changes to make now, from what is observed. Pure: no I/O, no clock; the same input gives the same plan.

Changes are planned in this order, at most one for each container; the next plan sees the results:

    frozen       nothing is decided for a container if the store has, or may have, only an older copy of its record
    leaders      that stall or do not lead, or are on nodes that are dead, stopping, drained or have a stuck disk, are
                 replaced by a member of the in-sync set
    replicas     there are as many as the volume wants, on nodes that stay (control.replica_plan)
    containers   there is a catalog, and every node leads an open container of each volume; nodes with full disks lead
                 none if others have room

A plan examines the containers that are not at rest (control.inventory), and counts of the others. It is made in steps,
so that other tasks get their turn in between; its first changes can be applied meanwhile.

Safety does not depend on the plan: a change is a compare-and-set, and a new leader is always in sync. A wrong plan
costs a change of role, but no record.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from headrace.base.ids import ContainerId, Epoch, NodeId
from headrace.control.candidates import candidates, hand_over, has_another, is_in_sync
from headrace.control.changes import Change, CreateContainer, PutContainer, Wait
from headrace.control.container_states import CATALOG, DATA, OPEN
from headrace.control.lasting_conditions import (
    apart,
    conditions,
    forgettable,
    idle,
    in_steps,
    openless,
    set_back,
    volumes_in_use,
)
from headrace.control.observations import DEFAULT_VOLUME, Life, Observed
from headrace.control.placement import Held, choose_members
from headrace.control.replica_plan import Replication, is_abandoned
from headrace.store.records import CATALOG_ID, ContainerRecord, NodeRecord, Room, VolumeRecord

__all__ = ["conditions", "forgettable", "plan", "planning"]


def plan(observed: Observed, now: float) -> list[Change]:
    """Return the changes to make now, most urgent first."""
    return [change for changes in planning(observed, now) for change in changes]


def planning(observed: Observed, now: float) -> Iterator[list[Change]]:
    """Yield the same changes in steps: what each step adds, often nothing."""
    return _Plan(observed, now).make()


class _Plan:
    """A plan in progress. It describes containers as they will be after its changes."""

    def __init__(self, observed: Observed, now: float) -> None:
        inventory = observed.inventory
        self._observed = observed
        self._settings = observed.settings
        self._now = now
        self._changes: list[Change] = []
        self._yielded = 0
        """Number of changes that have been yielded."""
        self._changed: dict[ContainerId, ContainerRecord] = {}
        self._touched: set[int] = set()
        self._led = inventory.led.copy()
        self._data_led = inventory.data_led.copy()
        self._open_led = inventory.open_led.copy()
        self._held: Held | None = None
        """Replicas by node, after the changes of this plan; computed when a place for a container is first needed."""
        self._waiting: set[int] = set()
        self._frozen: set[int] = set()
        self._full = {node.node_id for node in observed.nodes.values() if node.full}
        """Nodes without room; if some disks are full, dead and removed nodes count as having no room either."""
        if self._full:
            members = [node for node, weight in inventory.held.total.items() if weight > 0]
            self._full |= {node for node in members if observed.life(node, now) is Life.DEAD}

    def make(self) -> Iterator[list[Change]]:
        astir = self._by_weight()
        for containers in in_steps(astir):
            for container in containers:
                record = self._record(container)
                if self._is_frozen(record):
                    continue
                change = self._change_of_leader(record)
                if change is not None:
                    self._add(change)
            yield self._take_new()
        replication = Replication(self._observed, self._now)
        for containers in in_steps(astir):
            for container in containers:
                if container in self._frozen:
                    continue
                record = self._record(container)
                if container not in self._touched or is_abandoned(self._observed, record):
                    change = replication.step(record)
                    if change is not None:
                        self._add(change)
            yield self._take_new()
        yield from self._plan_containers()

    def _take_new(self) -> list[Change]:
        new = self._changes[self._yielded :]
        self._yielded = len(self._changes)
        return new

    def _record(self, container: ContainerId) -> ContainerRecord:
        """Return a container's record after the changes of this plan."""
        return self._changed.get(container) or self._observed.containers[container]

    def _by_weight(self) -> list[ContainerId]:
        """Return the containers to examine: the catalog first, then open containers."""

        def weight(container: ContainerId) -> tuple[bool, bool, ContainerId]:
            record = self._observed.containers[container]
            return record.kind != CATALOG, record.state != OPEN, container

        return sorted(self._observed.active_containers(), key=weight)

    def _add(self, change: Change) -> None:
        self._changes.append(change)
        match change:
            case PutContainer(record=record):
                self._touched.add(record.container_id)
                before = self._record(record.container_id)
                for each, by in ((before, -1), (record, 1)):
                    self._led[each.leader] += by
                    if each.kind == DATA:
                        self._data_led[each.leader, each.volume] += by
                        self._open_led[each.leader, each.volume] += by * (each.state == OPEN)
                    if self._held is not None:
                        self._held.add(each, each.replicas, by=by)
                self._changed[record.container_id] = record
            case Wait(container=container):
                self._touched.add(container)
                self._waiting.add(container)
            case CreateContainer():
                if self._held is not None:
                    made = _as_record(change)
                    self._held.add(made, made.replicas)

    # --- a store restored to an old copy

    def _is_frozen(self, record: ContainerRecord) -> bool:
        """Return whether nothing may be decided for a container.

        A leader appointed by an old record would cut what others acknowledged under newer ones. The state is reported
        once it can no longer be explained by a view that lags for a moment.
        """
        container = record.container_id
        better = self._observed.know_better(container)
        unheard = self._observed.unheard_since_fall(record)
        if not better and not unheard:
            return False
        self._frozen.add(container)
        self._touched.add(container)
        if better:
            began = self._observed.since.get(set_back(container), self._now)
            if self._now - began >= self._settings.set_back_s:
                names = ", ".join(map(str, sorted(better)))
                text = f"the cluster store was set back: node {names} knows newer changes of its record"
                self._add(Wait(container, f"{text}. Bring them back with `headrace recover-store`", set_back=True))
        else:
            names = ", ".join(map(str, sorted(unheard)))
            text = f"the cluster store was set back, and node {names}, silent since then, may know better"
            self._add(Wait(container, f"{text}: bring it back, or remove it", set_back=True))
        return True

    # --- leaders

    def _change_of_leader(self, record: ContainerRecord) -> PutContainer | Wait | None:
        observed, leader, now = self._observed, record.leader, self._now
        able = candidates(observed, record, self._led.__getitem__, now)
        match observed.life(leader, now):
            case Life.DOUBT:
                return None
            case Life.DEAD:
                reason = self._why_dead(leader)
                if able:
                    return replace(self._hand_over(record, able[0], reason), began=self._heard_at(leader))
                if self._has_yet_to_tell(record):
                    return None
                names = ", ".join(str(node) for node, _ in record.in_sync)
                return Wait(record.container_id, f"{reason}, and none of those in sync (nodes {names}) can lead")
        if has_another(observed, record, leader):
            reason = f"node {leader} has lost the replica that was in sync"
            if able:  # any candidate, even on a drained or new node: there are no reads until one leads
                return self._hand_over(record, able[0], reason)
            if self._has_yet_to_tell(record):
                return None
            return Wait(record.container_id, f"{reason}, and no other that is in sync can lead")
        willing = [node for node in able if node != leader and observed.takes_roles(node, now)]
        registered = observed.nodes[leader]
        if registered.stopping or registered.draining:
            what = "is stopping" if registered.stopping else "is drained"
            if willing:
                return replace(self._hand_over(record, willing[0], f"node {leader} {what}"), is_planned=True)
            # A drained node's container first needs another replica, which the replicas' step provides.
            return None
        if willing and observed.is_stuck(leader):
            return self._hand_over(record, willing[0], f"the disk of node {leader} hangs")
        replica = observed.replica(leader, record.container_id)
        # Partitions leave a full data container by themselves, unless not even their seals have room.
        is_shut_in = record.kind == CATALOG or (replica is not None and replica.cramped)
        if is_shut_in and (relieved := self._relieve_full(record, willing)):
            return relieved
        if replica is not None and replica.stalled:
            return self._relieve(record, willing)
        began = observed.since.get(idle(record))
        if willing and began is not None and now - began >= self._settings.idle_s:
            return replace(self._hand_over(record, willing[0], f"node {leader} does not lead it"), began=began)
        return self._reconcile(record, willing)

    def _has_yet_to_tell(self, record: ContainerRecord) -> bool:
        """Return whether a living member has not reported all of its replicas yet, so that it may be able to lead."""
        return any(
            self._observed.is_alive(node, self._now) and not self._observed.is_told(node) for node, _ in record.in_sync
        )

    def _relieve(self, record: ContainerRecord, willing: list[NodeId]) -> PutContainer | None:
        """Hand over a container that cannot commit to a member that hears more of its followers."""
        seen = self._followers_seen(record.leader, record.replicas)
        best = max(willing, key=lambda node: self._followers_seen(node, record.replicas), default=None)
        if best is None or self._followers_seen(best, record.replicas) <= seen:
            return None
        reason = (
            f"node {record.leader} stalls: it hears {seen} followers,"
            f" node {best} hears {self._followers_seen(best, record.replicas)}"
        )
        return self._hand_over(record, best, reason)

    def _relieve_full(self, record: ContainerRecord, willing: list[NodeId]) -> PutContainer | None:
        """Hand over a container that takes no records because of full disks to a member on which it does."""
        if record.room(self._full) > Room.NONE:
            return None
        for node in willing:
            if record.room(self._full, leader=node) == Room.NONE or not self._hears_as_much(node, record):
                continue
            # The catalog uses the reserve meanwhile, so it need not move to a node that comes and goes.
            if record.kind != CATALOG or self._observed.is_steady(node, self._now):
                return self._hand_over(record, node, f"the disk of node {record.leader} is full")
        return None

    def _hears_as_much(self, node: NodeId, record: ContainerRecord) -> bool:
        """Return whether a node hears as much as the leader: otherwise the container would soon be handed back."""
        observed, leader, now = self._observed, record.leader, self._now
        return len(observed.unheard_by(node, now)) <= len(observed.unheard_by(leader, now)) and self._followers_seen(
            node, record.replicas
        ) >= self._followers_seen(leader, record.replicas)

    def _followers_seen(self, node: NodeId, replicas: Collection[NodeId]) -> int:
        """Return how many of its future followers a node hears."""
        return len(self._observed.heard_by(node) & set(replicas) - {node})

    def _could_commit(self, node: NodeId, members: Collection[NodeId], least: int) -> bool:
        """Return whether a node hears enough of its future followers with room.

        Otherwise it would lead only for a moment: a container that stalls is handed to a member that hears more
        (`_relieve`).
        """
        return self._followers_seen(node, set(members) - self._full) + 1 >= least

    def _reconcile(self, record: ContainerRecord, willing: list[NodeId]) -> PutContainer | None:
        """If the catalog's leader does not hear some living node, hand the catalog over to a member that hears more.

        While the network is cut, that node could submit nothing, and would learn nothing of what others submit.
        """
        began = self._observed.since.get(apart(record))
        if began is None or self._now - began < self._settings.apart_s:
            return None
        unheard = {node: self._observed.unheard_by(node, self._now) for node in (record.leader, *willing)}
        best = min(willing, key=lambda node: len(unheard[node]), default=None)
        if best is None or len(unheard[best]) >= len(unheard[record.leader]):
            return None
        names = ", ".join(map(str, sorted(unheard[record.leader])))
        reason = f"node {record.leader} does not hear nodes {names}, and node {best} hears more"
        return self._hand_over(record, best, reason)

    def _hand_over(self, record: ContainerRecord, candidate: NodeId, reason: str) -> PutContainer:
        return hand_over(self._observed, record, candidate, f"{reason}; node {candidate} leads now", self._now)

    def _heard_at(self, node: NodeId) -> float | None:
        result = self._observed.probes.get(node)
        return None if result is None else result.silent_since if result.heard_at is None else result.heard_at

    def _why_dead(self, node: NodeId) -> str:
        if node not in self._observed.nodes:
            return f"node {node} was removed"
        if self._observed.probes[node].refused_twice:
            return f"node {node} refuses connections"
        return f"node {node} is silent"

    # --- containers

    def _plan_containers(self) -> Iterator[list[Change]]:
        """Create the catalog, and an open container for every node that leads none."""
        observed, now = self._observed, self._now
        nodes = [node for key, node in sorted(observed.nodes.items()) if observed.takes_roles(key, now)]
        if not observed.inventory.catalogs:
            if lost := self._lost_catalog():
                self._add(lost)
            elif self._have_gathered(nodes):
                self._make_catalog(nodes)
            else:
                return
            yield self._take_new()
            if lost:
                return
        for volume in volumes_in_use(observed):
            admitted = [node for node in nodes if volume.admits(node)]
            self._ensure_room(volume, admitted)
            for node in admitted:
                if self._open_led[node.node_id, volume.name] <= 0:
                    self._ensure_open_container(node, volume, nodes)
                    yield self._take_new()
            yield self._take_new()

    def _make_catalog(self, nodes: list[NodeRecord]) -> None:
        volume = self._observed.volumes.get(DEFAULT_VOLUME) or VolumeRecord(DEFAULT_VOLUME)
        able = [node for node in nodes if volume.admits(node)]
        if able and not any(kind == CATALOG for kind, _, _ in self._observed.creating):
            own = next((node for node in able if node.node_id == self._observed.own), able[0])
            self._create(CATALOG, own, volume, nodes, "the cluster has no catalog yet")

    def _lost_catalog(self) -> Wait | None:
        """Return why nothing is created: a catalog exists, but the store has no record of it. Whatever is created would
        conflict with it."""
        observed = self._observed
        replicas = {node: observed.replica(node, CATALOG_ID) for node in sorted(observed.nodes)}
        holders = [str(node) for node, replica in replicas.items() if replica is not None and replica.epoch > 0]
        if not holders:
            return None
        text = f"the cluster store has lost its record, and nodes {', '.join(holders)} have replicas of it"
        return Wait(CATALOG_ID, f"{text}: bring it back with `headrace recover-store`")

    def _have_gathered(self, nodes: list[NodeRecord]) -> bool:
        if any(kind == CATALOG for kind, _, _ in self._observed.creating):
            return True
        if not all(self._observed.is_told(node.node_id) for node in nodes):
            return False  # a node may have a replica of the catalog
        waited = self._now - self._observed.lease_since
        return len(nodes) >= self._observed.first_nodes or waited >= self._settings.gather_s

    def _ensure_room(self, volume: VolumeRecord, nodes: list[NodeRecord]) -> None:
        """If full disks keep every open container of the volume from taking records, let some take records again.

        While one container takes records, partitions move to it by themselves.
        """
        if not self._full:
            return
        opened = self._opened(volume)
        if self._take_records(opened):
            return
        handed = [self._hand_to_room(each) for each in opened if each.container_id not in self._touched]
        if any(handed):
            return
        leads = {each.leader for each in opened}
        roomy = [node for node in nodes if not node.full]
        if not opened or not roomy or not leads.issuperset(node.node_id for node in roomy):
            return  # a node that leads none gets one anyway
        touched = [each.container_id for each in opened if each.container_id in self._touched]
        changing = any(container not in self._waiting for container in touched)
        if changing or any(name == volume.name for _, _, name in self._observed.creating):
            return
        first = min(roomy, key=lambda node: (self._led[node.node_id], node.node_id))
        for choice in (nodes, roomy):  # the second ignores zones and hosts if necessary
            members = self._members(first, volume, choice)
            if len(set(members) - self._full) >= volume.min_in_sync:
                reason = f"disks are full, and no container of volume {volume.name} takes records"
                self._add(CreateContainer(DATA, tuple(members), volume.name, reason))
                return

    def _opened(self, volume: VolumeRecord) -> list[ContainerRecord]:
        """Return the open containers of a volume, by id."""
        return [self._record(each) for each in self._observed.inventory.open_data(volume.name)]

    def _take_records(self, opened: Iterable[ContainerRecord]) -> bool:
        """Return whether one of the containers takes records: full disks do not prevent it, and it can be led."""
        return any(each.room(self._full) > Room.NONE for each in opened if each.container_id not in self._waiting)

    def _hand_to_room(self, record: ContainerRecord) -> bool:
        """Hand a container over to a member with room, if possible; return whether it is handed over."""
        if not self._observed.is_alive(record.leader, self._now):
            return False
        able = candidates(self._observed, record, self._led.__getitem__, self._now)
        change = self._relieve_full(record, [node for node in able if self._observed.takes_roles(node, self._now)])
        if change is None:
            return False
        self._add(change)
        return True

    def _ensure_open_container(self, node: NodeRecord, volume: VolumeRecord, nodes: list[NodeRecord]) -> None:
        """Give an open container to a node that leads none: hand one back, or create one."""
        observed, key = self._observed, node.node_id
        if (DATA, key, volume.name) in observed.creating:
            return
        opened = self._opened(volume)
        if node.full and any(observed.is_alive(each.leader, self._now) for each in opened):
            return  # a container led there would take no records
        leads = Counter(each.leader for each in opened)
        spare = [each for each in opened if leads[each.leader] > 1 and key in each.replicas]
        back = [
            each
            for each in spare
            if each.container_id not in self._touched
            and self._can_come_back(each, key)
            and self._could_commit(key, each.replicas, each.min_in_sync)
        ]
        waited = self._now - observed.since.get(openless(key, volume), self._now)
        if back and observed.is_steady(key, self._now):
            chosen = max(back, key=lambda each: (leads[each.leader], -each.container_id))
            reason = f"node {key} leads no open container, node {chosen.leader} leads {leads[chosen.leader]}"
            self._add(replace(self._hand_over(chosen, key, reason), is_planned=True))
            return
        patience = 0.0
        if self._full and not self._take_records(opened):
            pass  # do not wait: nothing can be written until there is one
        elif spare:
            patience = self._settings.return_s
        elif self._data_led[key, volume.name] > 0:
            patience = self._settings.openless_s
        if waited < patience:
            return
        able = nodes
        if opened and not self._could_commit(key, self._members(node, volume, nodes), volume.min_in_sync):
            # Zones, hosts and load are ignored if necessary.
            heard = observed.heard_by(key) - self._full
            able = [each for each in nodes if each.node_id == key or each.node_id in heard]
        self._create(DATA, node, volume, able, f"node {key} leads no open container of volume {volume.name}")

    def _can_come_back(self, record: ContainerRecord, node: NodeId) -> bool:
        replica = self._observed.replica(node, record.container_id)
        able = replica is not None and not replica.damaged and is_in_sync(self._observed, record, node)
        return able and self._observed.is_alive(record.leader, self._now)

    def _create(self, kind: str, first: NodeRecord, volume: VolumeRecord, nodes: list[NodeRecord], reason: str) -> None:
        members = self._members(first, volume, nodes)
        # Once there is a catalog, a container that could commit nothing is useless.
        if not self._observed.inventory.catalogs or len(members) >= volume.min_in_sync:
            self._add(CreateContainer(kind, tuple(members), volume.name, reason))

    def _members(self, first: NodeRecord, volume: VolumeRecord, nodes: list[NodeRecord]) -> list[NodeId]:
        if self._held is None:
            self._held = self._observed.inventory.held.copy()
            for record in self._changed.values():
                before = self._observed.containers[record.container_id]
                self._held.add(before, before.replicas, by=-1)
                self._held.add(record, record.replicas)
        return choose_members(
            nodes,
            (),
            first=first.node_id,
            count=volume.replicas,
            volume=volume,
            loads=self._observed.loads(),
            held=self._held,
        )


def _as_record(change: CreateContainer) -> ContainerRecord:
    return ContainerRecord(
        container_id=ContainerId(0),
        kind=change.kind,
        leader=change.members[0],
        epoch=Epoch(0),
        in_sync=(),
        replicas=change.members,
        volume=change.volume,
    )
