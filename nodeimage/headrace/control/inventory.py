"""The containers and their replicas as the controller knows them, and what of it a plan has to look at.

    records    of the cluster store, with their versions
    replicas   as their nodes told of them last

Both are indexed, by node and by volume, as they change: with tens of thousands of containers nobody can go through all
of them once a second. A container is *at rest* if neither a plan nor the conditions say anything of it, whatever time
passes, until something that it depends on changes: its record, what its replicas tell, its volume, or how the nodes
with its replicas are. A plan looks at the others only; `control.plan` says the same of all (invariant 2).

1. What is looked up here is what the records and replicas that were put in say, whatever was there before.
2. A plan made of the containers that are not at rest is the plan made of all (tests/control/test_inventory.py).

No I/O, no clock. It does not change while a plan is made of it.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from headrace.base.ids import ContainerId, NodeId
from headrace.control.container_states import CATALOG, CLOSED, DATA, DELETED, OPEN
from headrace.control.placement import Held
from headrace.peer.reports import ReplicaState
from headrace.store.container_records import has_trace
from headrace.store.records import ContainerRecord, VolumeRecord

_NOTHING: Final[Mapping[NodeId, ReplicaState]] = {}


class NodeState(NamedTuple):
    """What matters of a node to whether its containers are at rest."""

    leads: bool
    """What it leads may stay with it: it lives, stays, and its disk writes."""
    stays: bool
    """What it holds may stay on it."""
    heard: bool
    """Since the cluster store was set back, if it was."""


class Inventory:
    """Fed with records and replicas, one by one."""

    def __init__(self) -> None:
        self.containers: dict[ContainerId, ContainerRecord] = {}
        self.versions: dict[ContainerId, int] = {}
        self.deleted: set[ContainerId] = set()
        self.catalogs: set[ContainerId] = set()
        """This and all that follows: of containers that are not deleted."""
        self.short: set[ContainerId] = set()
        """Those that have fewer replicas in sync than they want."""
        self.led: Counter[NodeId] = Counter()
        self.data_led: Counter[tuple[NodeId, str]] = Counter()
        """Of records, by leader and volume."""
        self.open_led: Counter[tuple[NodeId, str]] = Counter()
        """Open ones of these."""
        self.held = Held()
        self._of_node: defaultdict[NodeId, set[ContainerId]] = defaultdict(set)
        """Those whose record names the node."""
        self._of_volume: defaultdict[str, set[ContainerId]] = defaultdict(set)
        self._open_data: defaultdict[str, set[ContainerId]] = defaultdict(set)
        self._closed_led: defaultdict[NodeId, set[ContainerId]] = defaultdict(set)
        self._lagging: defaultdict[NodeId, set[ContainerId]] = defaultdict(set)
        """Those not open of which a node has a replica that is not in sync."""
        self._replicas: dict[ContainerId, dict[NodeId, ReplicaState]] = {}
        self._stuck: Counter[NodeId] = Counter()
        self._better: dict[ContainerId, list[NodeId]] = {}
        self._astir: set[ContainerId] = set()
        """Those not at rest, as far as they have been looked at."""
        self._unseen: set[ContainerId] = set()
        """To be looked at again."""
        self._node_states: dict[NodeId, NodeState] = {}
        self._volumes: dict[str, VolumeRecord] = {}

    @classmethod
    def of(
        cls,
        containers: Mapping[ContainerId, ContainerRecord],
        versions: Mapping[ContainerId, int],
        replicas: Iterable[tuple[NodeId, ReplicaState]],
    ) -> "Inventory":
        """One with all of these. None of the containers counts as at rest."""
        inventory = cls()
        for container, record in containers.items():
            inventory.put(container, record, versions.get(container, 0))
        for node, replica in replicas:
            inventory.tell(node, replica.container, replica)
        return inventory

    # --- what changes

    def put(self, container: ContainerId, record: ContainerRecord | None, version: int) -> None:
        """A container's record is so now; None: there is none."""
        before = self.containers.pop(container, None)
        if before is not None:
            self._count(before, -1)
        self.versions.pop(container, None)
        if record is not None:
            self.containers[container] = record
            self.versions[container] = version
            self._count(record, 1)
        self._compare(container)
        self._unseen.add(container)

    def tell(self, node: NodeId, container: ContainerId, replica: ReplicaState | None) -> None:
        """A node told of a replica; None: it has none, or is not asked any more."""
        of_container = self._replicas.get(container)
        before = None if of_container is None else of_container.get(node)
        if before is not None and before.stuck:
            self._stuck[node] -= 1
        if replica is None:
            if of_container is not None and of_container.pop(node, None) is not None and not of_container:
                del self._replicas[container]
        else:
            self._stuck[node] += replica.stuck
            self._replicas.setdefault(container, {})[node] = replica
        if before is None or replica is None or _tells_else(before, replica):
            self._compare(container)
            self._unseen.add(container)

    def _count(self, record: ContainerRecord, by: int) -> None:
        """Enter a record in what is looked up, or (-1) take it out."""
        container, volume, leader = record.container_id, record.volume, record.leader

        def enter(containers: set[ContainerId]) -> None:
            if by > 0:
                containers.add(container)
            else:
                containers.discard(container)

        in_sync = {node for node, _ in record.in_sync}
        for node in {leader, *record.replicas, *in_sync}:
            enter(self._of_node[node])
        if record.state == DELETED:
            enter(self.deleted)
            return
        enter(self._of_volume[volume])
        self.held.add(record, record.replicas, by=by)
        self.led[leader] += by
        if record.kind == CATALOG:
            enter(self.catalogs)
        if len(record.in_sync) < record.wanted:
            enter(self.short)
        if record.state != OPEN:
            for node in record.replicas:
                if node not in in_sync:
                    enter(self._lagging[node])
        if record.kind == DATA:
            self.data_led[leader, volume] += by
            if record.state == OPEN:
                self.open_led[leader, volume] += by
                enter(self._open_data[volume])
            elif record.state == CLOSED:
                enter(self._closed_led[leader])

    def _compare(self, container: ContainerId) -> None:
        record = self.containers.get(container)
        told = self._replicas.get(container)
        self._better.pop(container, None)
        if record is None or told is None:
            return
        better = [
            node
            for node, replica in told.items()
            if not has_trace(record, change=replica.change, recovered=replica.recovered)
        ]
        if better:
            self._better[container] = better

    # --- what is looked up

    def replica(self, node: NodeId, container: ContainerId) -> ReplicaState | None:
        """A replica, as its node told of it last."""
        return self._replicas.get(container, _NOTHING).get(node)

    def nodes(self, container: ContainerId) -> Collection[NodeId]:
        """The nodes that told of a replica of it."""
        return self._replicas.get(container, _NOTHING).keys()

    def know_better(self, container: ContainerId) -> Collection[NodeId]:
        """The nodes that know a change of a container's record of which the record has no trace."""
        return self._better.get(container, ())

    def set_back(self) -> Collection[ContainerId]:
        """The containers of which some node knows better."""
        return self._better.keys()

    def is_stuck(self, node: NodeId) -> bool:
        """Whether one of a node's replicas says that its disk hangs."""
        return self._stuck[node] > 0

    def volumes(self) -> set[str]:
        """The names of the volumes that have containers."""
        return {name for name, containers in self._of_volume.items() if containers}

    def open_data(self, volume: str | None = None) -> list[ContainerId]:
        """Open containers of records, of one volume or of all; by id."""
        if volume is not None:
            return sorted(self._open_data.get(volume, ()))
        return sorted(container for containers in self._open_data.values() for container in containers)

    def closed_led(self, node: NodeId) -> list[ContainerId]:
        """Closed containers of records that a node leads, by id."""
        return sorted(self._closed_led.get(node, ()))

    def lagging(self, nodes: Iterable[NodeId]) -> set[ContainerId]:
        """Containers that are not open, and have a replica on one of these nodes that is not in sync."""
        return {container for node in nodes for container in self._lagging.get(node, ())}

    # --- what a plan looks at

    def find_at_rest(
        self, node_states: Mapping[NodeId, NodeState], volumes: Mapping[str, VolumeRecord]
    ) -> Iterator[None]:
        """Find out which containers are at rest, as nodes and volumes are now. In steps of some hundred microseconds;
        it counts once all have been taken."""
        for node in node_states.keys() | self._node_states.keys():
            if node_states.get(node) != self._node_states.get(node):
                self._unseen |= self._of_node.get(node, set())
        for name in volumes.keys() | self._volumes.keys():
            if volumes.get(name) != self._volumes.get(name):
                self._unseen |= self._of_volume.get(name, set())
        self._node_states, self._volumes = dict(node_states), dict(volumes)
        unseen, self._unseen = self._unseen, set()
        try:
            count = 0
            while unseen:
                container = unseen.pop()
                record = self.containers.get(container)
                if record is None or record.state == DELETED or self._rests(record):
                    self._astir.discard(container)
                else:
                    self._astir.add(container)
                count += 1
                if count % _STEP == 0:
                    yield
        finally:
            self._unseen |= unseen  # of one that is given up half way

    def astir(self) -> Iterable[ContainerId]:
        """The containers that are not known to be at rest, and not deleted; in no order. Some may be by now."""
        return self._astir | {each for each in self._unseen if each in self.containers and each not in self.deleted}

    def _rests(self, record: ContainerRecord) -> bool:
        """Whether the leader leads it as it should, and its replicas are as many as are wanted, on nodes that stay.

        Where each step of control.plan and control.replica_plan leaves such a container alone:

            frozen         no replica knows better than the record, and all have been heard
            leader         lives and stays, and its replica is in sync, leads, and is neither stalled nor cramped
            replicas       follow the volume; none is missing, has to leave, or is one too many

        The catalog's may move for more reasons, and never rests. Whether followers are in sync, or alive, matters to
        none of this.
        """
        if record.kind == CATALOG or record.container_id in self._better:
            return False
        state = self._node_states.get(record.leader)
        replica = self.replica(record.leader, record.container_id)
        if state is None or not state.leads or replica is None:
            return False
        if replica.role != "primary" or replica.stalled or replica.cramped:
            return False
        if not any(
            node == record.leader and str(incarnation) == replica.format for node, incarnation in record.in_sync
        ):
            return False
        for node in record.replicas:
            state = self._node_states.get(node)
            if state is None or not (state.stays and state.heard):
                return False
        volume = self._volumes.get(record.volume)
        return (
            len(record.replicas) == record.wanted
            and record.leader in record.replicas
            and (volume is None or (volume.replicas, volume.min_in_sync) == (record.wanted, record.min_in_sync))
        )


_STEP: Final = 64
"""Containers that are looked at between two steps."""


def _tells_else(before: ReplicaState, after: ReplicaState) -> bool:
    """Whether a replica tells something on which it depends that its container is at rest, or set back."""
    return (
        before.role != after.role
        or before.stalled != after.stalled
        or before.cramped != after.cramped
        or before.format != after.format
        or before.change != after.change
        or before.recovered != after.recovered
    )
