"""What should change now, from what is observed. Pure: no I/O, no clock; the same input gives the same plan.

In this order, with at most one change for a container; the next plan sees what came of it:

    primaries    of nodes that are dead, stop, are drained, stall or do not lead go to a member of the in-sync set
    replicas     there are as many as the volume wants, on nodes that stay (control.replicas)
    containers   the catalog, and for every node an open container of each volume that it leads

Nothing here makes it safe to be wrong: a change is a compare and set, and a new primary is always in sync. Being wrong
costs a change of role, no record.
"""

from collections import Counter
from collections.abc import Iterable

from headrace.control.changes import Change, CreateContainer, PutContainer, Wait
from headrace.control.heirs import hand_over, has_another, heirs, is_in_sync
from headrace.control.observed import CATALOG, DATA, DEFAULT_VOLUME, DELETED, OPEN, Condition, Life, Observed, up
from headrace.control.placement import choose_members
from headrace.control.replicas import Replication, is_abandoned
from headrace.ids import ContainerId, Epoch, NodeId
from headrace.store.records import CATALOG_ID, ContainerRecord, NodeRecord, VolumeRecord


def plan(observed: Observed, now: float) -> list[Change]:
    """The changes to make now, most urgent first."""
    return _Plan(observed, now).make()


def conditions(observed: Observed, now: float) -> set[Condition]:
    """What is so at present and matters to a plan only if it lasts; the caller keeps since when."""
    found: set[Condition] = set()
    for record in observed.containers.values():
        if record.state != DELETED and observed.is_alive(record.primary, now):
            replica = observed.replica(record.primary, record.container_id)
            if replica is None or replica.role != "primary":
                found.add(_idle(record))
            if record.kind == CATALOG and observed.unheard_by(record.primary, now):
                found.add(_apart(record))
    leads = {(each.primary, each.volume) for each in observed.containers.values() if _is_open_data(each)}
    able = [node for node in observed.nodes if observed.takes_roles(node, now)]
    found.update(map(up, able))
    for volume in volumes_in_use(observed):
        found.update(_openless(node, volume) for node in able if (node, volume.name) not in leads)
    return found


def volumes_in_use(observed: Observed) -> list[VolumeRecord]:
    """The default volume, and those that have containers; by name. Their nodes each lead an open container."""
    used = {each.volume for each in observed.containers.values() if each.state != DELETED} | {DEFAULT_VOLUME}
    return [observed.volumes.get(name) or VolumeRecord(name) for name in sorted(used)]


class _Plan:
    """One plan in the making. `_records` has the containers as they will be."""

    def __init__(self, observed: Observed, now: float) -> None:
        self._observed = observed
        self._settings = observed.settings
        self._now = now
        self._changes: list[Change] = []
        self._records = {key: each for key, each in observed.containers.items() if each.state != DELETED}
        self._touched: set[int] = set()
        self._led: Counter[NodeId] = Counter(each.primary for each in self._records.values())

    def make(self) -> list[Change]:
        for record in self._by_weight():
            change = self._change_of_primary(record)
            if change is not None:
                self._add(change)
        replication = Replication(self._observed, self._records, self._now)
        for record in self._by_weight():
            if record.container_id not in self._touched or is_abandoned(self._observed, record):
                change = replication.step(record)
                if change is not None:
                    self._add(change)
        self._make_containers()
        return self._changes

    def _by_weight(self) -> list[ContainerRecord]:
        """The catalog first, then what is written to."""
        return sorted(
            self._records.values(), key=lambda each: (each.kind != CATALOG, each.state != OPEN, each.container_id)
        )

    def _add(self, change: Change) -> None:
        self._changes.append(change)
        match change:
            case PutContainer(record=record):
                self._touched.add(record.container_id)
                self._led[self._records[record.container_id].primary] -= 1
                self._led[record.primary] += 1
                self._records[record.container_id] = record
            case Wait(container=container):
                self._touched.add(container)

    # --- primaries

    def _change_of_primary(self, record: ContainerRecord) -> PutContainer | Wait | None:
        observed, primary, now = self._observed, record.primary, self._now
        able = heirs(observed, record, self._led.__getitem__, now)
        match observed.life(primary, now):
            case Life.DOUBT:
                return None
            case Life.DEAD:
                reason = self._why_dead(primary)
                if able:
                    return self._hand_over(record, able[0], reason)
                names = ", ".join(str(node) for node, _ in record.in_sync)
                return Wait(record.container_id, f"{reason}, and none of those in sync (nodes {names}) can lead")
        if has_another(observed, record, primary):
            reason = f"node {primary} has lost the replica that was in sync"
            if able:  # whoever it is: nobody can read until one leads, also where that node is drained or has just come
                return self._hand_over(record, able[0], reason)
            return Wait(record.container_id, f"{reason}, and no other that is in sync can lead")
        willing = [node for node in able if node != primary and observed.takes_roles(node, now)]
        registered = observed.nodes[primary]
        if registered.stopping or registered.draining:
            what = "is stopping" if registered.stopping else "is drained"
            if willing:
                return self._hand_over(record, willing[0], f"node {primary} {what}")
            # A drained node's container needs another replica first; the replicas' turn sees to it.
            return None
        replica = observed.replica(primary, record.container_id)
        if replica is not None and replica.stalled:
            return self._relieve(record, willing)
        began = observed.since.get(_idle(record))
        if willing and began is not None and now - began >= self._settings.idle_s:
            return self._hand_over(record, willing[0], f"node {primary} does not lead it")
        return self._reconcile(record, willing)

    def _relieve(self, record: ContainerRecord, willing: list[NodeId]) -> PutContainer | None:
        """Hand over a container that cannot commit, to a member that sees more of its followers."""

        def sees(node: NodeId) -> int:
            return len(self._observed.heard_by(node) & set(record.replicas) - {node})

        best = max(willing, key=sees, default=None)
        if best is None or sees(best) <= sees(record.primary):
            return None
        reason = (
            f"node {record.primary} stalls: it hears {sees(record.primary)} followers, node {best} hears {sees(best)}"
        )
        return self._hand_over(record, best, reason)

    def _reconcile(self, record: ContainerRecord, willing: list[NodeId]) -> PutContainer | None:
        """Hand over the catalog, whose primary does not hear some living node, to a member that hears more.

        That node could submit nothing, and would learn nothing of what others submit, for as long as the cut lasts.
        """
        began = self._observed.since.get(_apart(record))
        if began is None or self._now - began < self._settings.apart_s:
            return None
        unheard = {node: self._observed.unheard_by(node, self._now) for node in (record.primary, *willing)}
        best = min(willing, key=lambda node: len(unheard[node]), default=None)
        if best is None or len(unheard[best]) >= len(unheard[record.primary]):
            return None
        names = ", ".join(map(str, sorted(unheard[record.primary])))
        reason = f"node {record.primary} does not hear nodes {names}, and node {best} hears more"
        return self._hand_over(record, best, reason)

    def _hand_over(self, record: ContainerRecord, heir: NodeId, reason: str) -> PutContainer:
        return hand_over(self._observed, record, heir, f"{reason}; node {heir} leads now", self._now)

    def _why_dead(self, node: NodeId) -> str:
        if node not in self._observed.nodes:
            return f"node {node} was removed"
        if self._observed.probes[node].refused_twice:
            return f"node {node} refuses connections"
        return f"node {node} is silent"

    # --- containers

    def _make_containers(self) -> None:
        """The catalog, and an open container for every node that leads none."""
        observed, now = self._observed, self._now
        nodes = [node for key, node in sorted(observed.nodes.items()) if observed.takes_roles(key, now)]
        if not any(each.kind == CATALOG for each in self._records.values()):
            if lost := self._lost_catalog():
                self._add(lost)
                return
            if not self._have_gathered(nodes):
                return
            volume = observed.volumes.get(DEFAULT_VOLUME) or VolumeRecord(DEFAULT_VOLUME)
            able = [node for node in nodes if volume.admits(node)]
            if able and not any(kind == CATALOG for kind, _, _ in observed.creating):
                own = next((node for node in able if node.node_id == observed.own), able[0])
                self._create(CATALOG, own, volume, nodes, "the cluster has no catalog yet")
        for volume in volumes_in_use(observed):
            for node in nodes:
                if volume.admits(node):
                    self._see_to_open_container(node, volume, nodes)

    def _lost_catalog(self) -> Wait | None:
        """Why nothing is made: there is a catalog, and the store has no record of it. All else would be beside it."""
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
        waited = self._now - self._observed.office_at
        return len(nodes) >= self._observed.first_nodes or waited >= self._settings.gather_s

    def _see_to_open_container(self, node: NodeRecord, volume: VolumeRecord, nodes: list[NodeRecord]) -> None:
        observed, key = self._observed, node.node_id
        ours = [each for each in self._records.values() if each.kind == DATA and each.volume == volume.name]
        opened = [each for each in ours if each.state == OPEN]
        if any(each.primary == key for each in opened) or (DATA, key, volume.name) in observed.creating:
            return
        leads = Counter(each.primary for each in opened)
        spare = [each for each in opened if leads[each.primary] > 1 and key in each.replicas]
        back = [each for each in spare if each.container_id not in self._touched and self._can_come_back(each, key)]
        waited = self._now - observed.since.get(_openless(key, volume), self._now)
        if back and observed.is_settled(key, self._now):
            chosen = max(back, key=lambda each: (leads[each.primary], -each.container_id))
            reason = f"node {key} leads no open container, node {chosen.primary} leads {leads[chosen.primary]}"
            self._add(self._hand_over(chosen, key, reason))
            return
        patience = 0.0
        if spare:
            patience = self._settings.return_s
        elif any(each.primary == key for each in ours):
            patience = self._settings.openless_s
        if waited >= patience:
            self._create(DATA, node, volume, nodes, f"node {key} leads no open container of volume {volume.name}")

    def _can_come_back(self, record: ContainerRecord, node: NodeId) -> bool:
        replica = self._observed.replica(node, record.container_id)
        able = replica is not None and not replica.damaged and is_in_sync(self._observed, record, node)
        return able and self._observed.is_alive(record.primary, self._now)

    def _create(self, kind: str, first: NodeRecord, volume: VolumeRecord, nodes: list[NodeRecord], reason: str) -> None:
        members = choose_members(
            nodes,
            self._planned(),
            first=first.node_id,
            count=volume.replicas,
            volume=volume,
            loads=self._observed.loads(),
        )
        # Where there is a catalog already, a container that could commit nothing helps nobody.
        first_ones = not any(each.kind == CATALOG for each in self._records.values())
        if first_ones or len(members) >= volume.min_in_sync:
            self._add(CreateContainer(kind, tuple(members), volume.name, reason))

    def _planned(self) -> Iterable[ContainerRecord]:
        """The containers as they will be, with those that this plan makes, so that those spread too."""
        yield from self._records.values()
        for change in self._changes:
            if isinstance(change, CreateContainer):
                yield _as_record(change)


def _as_record(change: CreateContainer) -> ContainerRecord:
    return ContainerRecord(
        container_id=ContainerId(0),
        kind=change.kind,
        primary=change.members[0],
        epoch=Epoch(0),
        in_sync=(),
        replicas=change.members,
        volume=change.volume,
    )


def _is_open_data(record: ContainerRecord) -> bool:
    return record.kind == DATA and record.state == OPEN


def _idle(record: ContainerRecord) -> Condition:
    return "idle", record.container_id, str(record.epoch)


def _apart(record: ContainerRecord) -> Condition:
    return "apart", record.container_id, str(record.epoch)


def _openless(node: NodeId, volume: VolumeRecord) -> Condition:
    return "openless", node, volume.name
