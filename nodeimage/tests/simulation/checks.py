"""What must hold at every moment of a run, and what must hold when all is quiet again (docs/architecture.md,
Invariants).

There is one truth for each container: by position, the commands below the highest position that any replica has ever
considered committed. All replicas' committed prefixes, and every acknowledgement that a client received, must agree
with it at all times.
"""

from bisect import bisect_left
from collections import defaultdict
from typing import TYPE_CHECKING

import msgspec

from headrace.base.errors import CorruptLog
from headrace.base.ids import ContainerId, Epoch, Position
from headrace.container.leader import Leader
from headrace.container.local_replica import LocalReplica
from headrace.log.scrub import Scrubbed, scrub
from headrace.node.catalog_log import commands_in
from headrace.store.records import CATALOG_ID, CONTAINER_PREFIX, FEATURES_KEY, NODE_PREFIX, ContainerRecord

if TYPE_CHECKING:
    from simulation.cluster import Cluster
    from simulation.loop import Process
    from simulation.node import Node


class Violation(AssertionError):
    """An invariant does not hold."""


class _Truth:
    """The committed commands of one container."""

    def __init__(self) -> None:
        self.until = Position(0)
        self.positions: list[int] = []
        self.payloads: list[bytes] = []
        self.holes: list[tuple[Position, Position]] = []
        """Ranges that were trimmed everywhere before they were observed: after the first position, up to the second."""

    def is_known(self, position: int) -> bool:
        """Whether the truth contains the command that ends at the position."""
        return position <= self.until and not any(after < position <= until for after, until in self.holes)


class _Compared:
    """How far one replica has been compared, and in which process."""

    def __init__(self) -> None:
        self.committed = Position(0)
        self.compared = Position(0)


class Checks:
    """The observer that sees everything."""

    def __init__(self, cluster: "Cluster") -> None:
        self._cluster = cluster
        self._truths: defaultdict[ContainerId, _Truth] = defaultdict(_Truth)
        self._looked: dict[tuple[LocalReplica, str], _Compared] = {}
        self._writers: dict[tuple[ContainerId, Epoch], Process] = {}
        self.acknowledged: defaultdict[ContainerId, dict[Position, bytes]] = defaultdict(dict)
        self.latest: defaultdict[ContainerId, Position] = defaultdict(lambda: Position(0))
        """By container, the highest position whose acknowledgement a client has received."""
        self.sent: set[bytes] = set()
        self.failure: Violation | None = None

    def fail(self, text: str) -> None:
        """Keep the first violation, and end the run: the code under test might catch an exception raised here."""
        if self.failure is None:
            self.failure = Violation(f"{self._cluster.loop.now:.3f} s: {text}")
            self._cluster.trace(f"VIOLATION {text}")
            self._cluster.loop.stopped = True

    # --- as it goes

    def look(self, node: "Node") -> None:
        """Compare what a node's replicas call committed."""
        if node.replicas is not None:
            for replica in node.replicas.all():
                self.look_at(node, replica)

    def look_at(self, node: "Node", replica: LocalReplica) -> None:
        """Invariants 1, 2, 7: one truth, and it only grows."""
        if replica.cycle.is_closed:
            return  # its log is being cut or reset, and will be another one
        looked = self._looked.setdefault((replica, replica.incarnation), _Compared())
        committed = replica.committed
        where = f"container {replica.id} on node {node.number}"
        if committed < looked.committed:
            self.fail(f"{where}: committed fell from {looked.committed} to {committed}")
        looked.committed = committed
        if committed > replica.log.synced:
            self.fail(f"{where}: committed {committed} is not on its disk, which has {replica.log.synced}")
        looked.compared = max(looked.compared, replica.log.start)  # it started over after a snapshot, or was trimmed
        if committed <= looked.compared:
            return
        truth = self._truths[replica.id]
        try:
            found = list(commands_in(replica.log, looked.compared, committed))
        except CorruptLog as error:
            if not self._cluster.is_flipped(node, replica.id):
                self.fail(f"{where}: {error}")
            return
        low, high = (bisect_left(truth.positions, each + 1) for each in (looked.compared, committed))
        known = list(zip(truth.positions[low:high], truth.payloads[low:high], strict=True))
        new = [each for each in found if each[0] > truth.until]
        if [each for each in found if truth.is_known(each[0])] != known:
            self.fail(f"{where}: committed {_differing(found, known)}")
            return
        if committed > truth.until:
            if looked.compared > truth.until:
                truth.holes.append((truth.until, looked.compared))
            truth.positions += [position for position, _ in new]
            truth.payloads += [payload for _, payload in new]
            truth.until = committed
        looked.compared = committed

    def led(self, node: "Node", process: "Process", container: Leader) -> None:
        """No epoch has two writers, except for epochs of an old copy of the store, in which nothing is committed."""
        if self._cluster.set_back:
            return
        key = container.id, container.epoch
        before = self._writers.setdefault(key, process)
        if before is not process:
            self.fail(f"epoch {container.epoch} of container {container.id}: {before.name}, and {process.name}")

    def acknowledge(self, container_id: ContainerId, position: Position, payload: bytes) -> None:
        """A client's command was acknowledged: it must be on every member of the in-sync set (invariant 1)."""
        self.acknowledged[container_id][position] = payload
        self.latest[container_id] = max(self.latest[container_id], position)
        if self._cluster.set_back:
            return  # the record is an old copy: the valid one is in the leader's folder
        record = self._cluster.record(container_id)
        if record is None:
            self.fail(f"container {container_id} acknowledges, and has no record")
            return
        for node_id, format in record.in_sync:
            node = self._cluster.by_id(node_id)
            held, synced = node.holds(container_id)
            if held == str(format) and synced < position:
                self.fail(
                    f"container {container_id}: {payload[:20]!r} is acknowledged at {position}, "
                    f"and node {node.number}, which is in sync, has {synced}"
                )

    def read_latest(self, node: "Node", container_id: ContainerId, known: Position, found: Position) -> None:
        """Invariants 8, 16: a node that serves knows of everything that was acknowledged before the request."""
        if found < known:
            self.fail(
                f"container {container_id}: node {node.number} says that {found} is the latest, "
                f"{known} was acknowledged before"
            )

    def served(
        self, node: "Node", container_id: ContainerId, after: Position, found: list[tuple[Position, bytes]]
    ) -> None:
        """A replica returns only true records, whatever happened to its disk."""
        truth = self._truths[container_id]
        low = bisect_left(truth.positions, after + 1)
        known = list(zip(truth.positions[low:], truth.payloads[low:], strict=True))
        found = [each for each in found if truth.is_known(each[0])]
        if found != known[: len(found)]:
            self.fail(f"container {container_id}: node {node.number} served {_differing(found, known)}")

    def some_position(self, container_id: ContainerId, roll: float) -> Position:
        """A position to read from."""
        positions = self._truths[container_id].positions
        return Position(positions[int(roll * len(positions))]) if positions else Position(0)

    def put(self, key: str, before: bytes | None, after: bytes) -> None:
        """Invariants 3, 5, 6: how a record may change."""
        if key == FEATURES_KEY:
            self._cluster.levels.put(before, after)
        if key.startswith(NODE_PREFIX):
            self._cluster.levels.registers(after)
        if not key.startswith(CONTAINER_PREFIX):
            return
        new = msgspec.json.decode(after, type=ContainerRecord)
        if self._cluster.tracing:
            names = ",".join(f"{node}" for node, _ in new.in_sync)
            self._cluster.trace(
                f"store: container {new.container_id} epoch {new.epoch} primary {new.leader} "
                f"in sync {names} of {new.replicas}"
            )
        if before is None:
            return
        old = msgspec.json.decode(before, type=ContainerRecord)
        if new.recovered > old.recovered:
            return  # by an operator, who was told the possible cost (invariant 15)
        what = f"container {new.container_id} from {old} to {new}"
        if new.epoch < old.epoch or (new.epoch == old.epoch and new.leader != old.leader):
            self.fail(f"the epoch does not rise: {what}")
        if new.epoch > old.epoch and not set(new.in_sync) <= set(old.in_sync):
            self.fail(f"somebody came in sync with an epoch: {what}")
        if not any(node == new.leader for node, _ in old.in_sync):
            self.fail(f"a primary that was not in sync: {what}")
        if len(new.in_sync) < min(new.min_in_sync, len(old.in_sync)):
            self.fail(f"below the minimum in sync: {what}")

    # --- when all is quiet

    def quiet(self, container_id: ContainerId) -> str:
        """Why a container is not whole yet; "": it is whole."""
        record = self._cluster.record(container_id)
        assert record is not None
        leader = self._cluster.by_id(record.leader)
        container = leader.replicas.led.get(container_id) if leader.replicas is not None else None
        if container is None or not container.serves:
            return f"node {leader.number} does not serve it"
        able = sum(1 for node in self._cluster.nodes if node.is_up and node.number not in self._cluster.drained)
        wanted = min(record.wanted, able)
        if len(record.in_sync) < wanted or len(record.in_sync) != len(record.replicas):
            return f"{len(record.in_sync)} in sync of {record.replicas}"
        for node_id in record.replicas:
            node = self._cluster.by_id(node_id)
            replica = node.replicas.replica(container_id) if node.replicas is not None else None
            if replica is None or replica.cycle.is_closed:
                return f"node {node.number} has no replica"
            if not container.end == replica.log.synced == replica.committed:
                return f"node {node.number} has {replica.log.synced}, the primary {container.end}"
            if not self._same(replica, container):
                return f"node {node.number} has another history"
        return ""

    @staticmethod
    def _same(replica: LocalReplica, container: Leader) -> bool:
        return replica.log.end == container.end

    def at_the_end(self, container_id: ContainerId) -> None:
        """Everything that was acknowledged is in the truth, at its position, and exists only once."""
        truth = self._truths[container_id]
        held = dict(zip(truth.positions, truth.payloads, strict=True))
        for position, payload in self.acknowledged[container_id].items():
            if held.get(position) != payload:
                self.fail(
                    f"container {container_id}: {payload[:20]!r} was acknowledged at {position}, "
                    f"where {held.get(position, b'nothing')[:20]!r} is"
                )
        if self._cluster.shape.topics and container_id == CATALOG_ID:
            return  # a command may occur twice
        if len(set(truth.payloads)) < len(truth.payloads):
            self.fail(f"container {container_id}: something is there twice")
        if not set(truth.payloads) <= self.sent:
            self.fail(f"container {container_id}: something is there that nobody sent")

    def scrubbed(self, container_id: ContainerId) -> None:
        """No replica that can be spared is still damaged."""
        if self._cluster.is_needed(container_id):
            return
        for node in self._cluster.nodes:
            folder = node.folder / str(container_id)
            replica = node.replicas.replica(container_id) if node.replicas is not None else None
            if replica is None:
                continue
            for finding in scrub(folder, Scrubbed(), synced=replica.log.synced):
                self.fail(f"container {container_id} on node {node.number}: {finding}")


def _differing(found: list[tuple[Position, bytes]], known: list[tuple[int, bytes]]) -> str:
    for one, other in zip(found, known, strict=False):
        if one != other:
            return f"{one[1][:20]!r} at {one[0]}, another has {other[1][:20]!r} at {other[0]}"
    return f"{len(found)} commands, another has {len(known)} there"
