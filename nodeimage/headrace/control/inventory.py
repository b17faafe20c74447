"""The containers and replicas that the controller knows, and which of them a plan has to examine.

    records    of the cluster store, with their versions
    replicas   as last reported by their nodes

Both are indexed, by node and by volume, as they change: tens of thousands of containers cannot all be examined once a
second. A container is *at rest* if neither a plan nor the conditions would report anything about it, however much time
passes, until something that it depends on changes: its record, its replicas' reports, its volume, or the state of the
nodes that hold its replicas. A plan examines only the other containers, with the same result as for all (2 below).

1. Look-ups depend only on the records and replicas that were entered last, not on earlier ones.
2. A plan for the containers that are not at rest equals the plan for all (tests/control/test_inventory.py).

No I/O, no clock. The inventory does not change while a plan uses it.
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
    """What decides whether a node's containers can be at rest."""

    leads: bool
    """The node may keep its leaders: it is alive, is not leaving, and its disk is not stuck."""
    stays: bool
    """The node may keep its replicas."""
    heard: bool
    """The node has been heard from since the cluster store was restored to an old copy, if it was."""


class Inventory:
    """Records and replicas, entered one by one, and indexes of them.

    Deleted containers appear only in `containers`, `versions`, `deleted` and `_of_node`.
    """

    def __init__(self) -> None:
        self.containers: dict[ContainerId, ContainerRecord] = {}
        self.versions: dict[ContainerId, int] = {}
        self.deleted: set[ContainerId] = set()
        self.catalogs: set[ContainerId] = set()
        """Containers of the catalog."""
        self.short: set[ContainerId] = set()
        """Containers with fewer replicas in sync than wanted."""
        self.led: Counter[NodeId] = Counter()
        self.data_led: Counter[tuple[NodeId, str]] = Counter()
        """Number of data containers, by leader and volume."""
        self.open_led: Counter[tuple[NodeId, str]] = Counter()
        """Number of open data containers, by leader and volume."""
        self.held = Held()
        self._of_node: defaultdict[NodeId, set[ContainerId]] = defaultdict(set)
        """Containers whose record names the node."""
        self._of_volume: defaultdict[str, set[ContainerId]] = defaultdict(set)
        self._open_data: defaultdict[str, set[ContainerId]] = defaultdict(set)
        self._closed_led: defaultdict[NodeId, set[ContainerId]] = defaultdict(set)
        self._lagging: defaultdict[NodeId, set[ContainerId]] = defaultdict(set)
        """Containers that are not open and of which the node has a replica that is not in sync."""
        self._replicas: dict[ContainerId, dict[NodeId, ReplicaState]] = {}
        self._stuck: Counter[NodeId] = Counter()
        """Number of replicas that report a stuck disk, by node."""
        self._newer_known: dict[ContainerId, list[NodeId]] = {}
        """Nodes that know a change of the container's record that the record has no trace of."""
        self._active: set[ContainerId] = set()
        """Containers that were not at rest when last examined."""
        self._unexamined: set[ContainerId] = set()
        """Containers to examine again."""
        self._node_states: dict[NodeId, NodeState] = {}
        self._volumes: dict[str, VolumeRecord] = {}

    @classmethod
    def of(
        cls,
        containers: Mapping[ContainerId, ContainerRecord],
        versions: Mapping[ContainerId, int],
        replicas: Iterable[tuple[NodeId, ReplicaState]],
    ) -> "Inventory":
        """Return an inventory with these records and replicas. None of the containers counts as at rest."""
        inventory = cls()
        for container, record in containers.items():
            inventory.put(container, record, versions.get(container, 0))
        for node, replica in replicas:
            inventory.tell(node, replica.container, replica)
        return inventory

    # --- what changes

    def put(self, container: ContainerId, record: ContainerRecord | None, version: int) -> None:
        """Enter a container's current record; None if it has none."""
        before = self.containers.pop(container, None)
        if before is not None:
            self._count(before, -1)
        self.versions.pop(container, None)
        if record is not None:
            self.containers[container] = record
            self.versions[container] = version
            self._count(record, 1)
        self._compare(container)
        self._unexamined.add(container)

    def tell(self, node: NodeId, container: ContainerId, replica: ReplicaState | None) -> None:
        """Enter a replica as its node reported it; None if the node has none, or is no longer asked."""
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
        if before is None or replica is None or _matters(before, replica):
            self._compare(container)
            self._unexamined.add(container)

    def _count(self, record: ContainerRecord, by: int) -> None:
        """Add a record to the indexes, or remove it with `by=-1`."""
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
        self._newer_known.pop(container, None)
        if record is None or told is None:
            return
        better = [
            node
            for node, replica in told.items()
            if not has_trace(record, change=replica.change, recovered=replica.recovered)
        ]
        if better:
            self._newer_known[container] = better

    # --- look-ups

    def replica(self, node: NodeId, container: ContainerId) -> ReplicaState | None:
        """Return a replica as last reported by its node."""
        return self._replicas.get(container, _NOTHING).get(node)

    def nodes(self, container: ContainerId) -> Collection[NodeId]:
        """Return the nodes that reported a replica of a container."""
        return self._replicas.get(container, _NOTHING).keys()

    def know_better(self, container: ContainerId) -> Collection[NodeId]:
        """Return the nodes that know a change of a container's record of which the record has no trace."""
        return self._newer_known.get(container, ())

    def set_back(self) -> Collection[ContainerId]:
        """Return the containers whose records lack a change that some node knows."""
        return self._newer_known.keys()

    def is_stuck(self, node: NodeId) -> bool:
        """Return whether one of a node's replicas reports that its disk hangs."""
        return self._stuck[node] > 0

    def volumes(self) -> set[str]:
        """Return the names of the volumes that have containers."""
        return {name for name, containers in self._of_volume.items() if containers}

    def open_data(self, volume: str | None = None) -> list[ContainerId]:
        """Return the open data containers of one volume, or of all, by id."""
        if volume is not None:
            return sorted(self._open_data.get(volume, ()))
        return sorted(container for containers in self._open_data.values() for container in containers)

    def closed_led(self, node: NodeId) -> list[ContainerId]:
        """Return the closed data containers that a node leads, by id."""
        return sorted(self._closed_led.get(node, ()))

    def lagging(self, nodes: Iterable[NodeId]) -> set[ContainerId]:
        """Return the containers that are not open and have a replica on one of these nodes that is not in sync."""
        return {container for node in nodes for container in self._lagging.get(node, ())}

    # --- what a plan examines

    def find_at_rest(
        self, node_states: Mapping[NodeId, NodeState], volumes: Mapping[str, VolumeRecord]
    ) -> Iterator[None]:
        """Determine which containers are at rest with these nodes and volumes.

        Runs in steps of some hundred microseconds; the result is complete once all steps have been taken.
        """
        for node in node_states.keys() | self._node_states.keys():
            if node_states.get(node) != self._node_states.get(node):
                self._unexamined |= self._of_node.get(node, set())
        for name in volumes.keys() | self._volumes.keys():
            if volumes.get(name) != self._volumes.get(name):
                self._unexamined |= self._of_volume.get(name, set())
        self._node_states, self._volumes = dict(node_states), dict(volumes)
        unseen, self._unexamined = self._unexamined, set()
        try:
            count = 0
            while unseen:
                container = unseen.pop()
                record = self.containers.get(container)
                if record is None or record.state == DELETED or self._is_at_rest(record):
                    self._active.discard(container)
                else:
                    self._active.add(container)
                count += 1
                if count % _STEP == 0:
                    yield
        finally:
            self._unexamined |= unseen  # the rest, if the caller stops early

    def active_containers(self) -> Iterable[ContainerId]:
        """Return the containers not known to be at rest and not deleted, in no order. Some may be at rest by now."""
        unexamined = {each for each in self._unexamined if each in self.containers and each not in self.deleted}
        return self._active | unexamined

    def _is_at_rest(self, record: ContainerRecord) -> bool:
        """Return whether a container's leader leads it properly, and it has all its replicas, on nodes that stay.

        Each step of control.plan and control.replica_plan leaves such a container alone:

            frozen         no replica knows a newer record, and all have been heard
            leader         is alive and stays; its replica is in sync, leads, and is neither stalled nor cramped
            replicas       match the volume; none is missing, has to leave, or is surplus

        The catalog's container may move for more reasons, and never rests. Whether followers are in sync or alive is
        irrelevant here.
        """
        if record.kind == CATALOG or record.container_id in self._newer_known:
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
"""Containers that are examined between two steps."""


def _matters(before: ReplicaState, after: ReplicaState) -> bool:
    """Return whether a report changes something that decides whether its container is at rest, or its record is
    outdated."""
    return (
        before.role != after.role
        or before.stalled != after.stalled
        or before.cramped != after.cramped
        or before.format != after.format
        or before.change != after.change
        or before.recovered != after.recovered
    )
