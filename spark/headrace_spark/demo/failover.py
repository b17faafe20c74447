"""The failover of the containers of a killed node: who leads them now, and when all have their replicas again.

Observes the cluster by the admin calls that any node answers, and derives when each change happened. Starts and kills
no processes. Times are seconds of the monotonic clock.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from headrace.base.errors import KafkaError
from headrace.kafka_client.blocking_client import BrokerConnection
from headrace_spark.demo.places import Unsound

ANSWER_S: Final = 5.0

Address = tuple[str, int]


class ContainerState(NamedTuple):
    """One container in the cluster's records."""

    container: int
    kind: str
    leader: int
    epoch: int
    in_sync: int
    wanted: int


class ClusterState(NamedTuple):
    """The cluster at the moment `at`. `whole`: all containers have all replicas in sync, on living nodes."""

    at: float
    containers: tuple[ContainerState, ...]
    whole: bool


class ClusterProbe:
    """Reads the state of a cluster from any node that answers."""

    def __init__(self, addresses: Callable[[], Mapping[int, Address]]) -> None:
        """`addresses`: returns the nodes' current addresses."""
        self._addresses = addresses

    def look(self) -> ClusterState | None:
        """Return the present state; None if no node can report it at the moment."""
        containers = self._ask("container.list")
        at = time.monotonic()
        status = self._ask("cluster.status")
        if status is None or containers is None:
            return None
        return ClusterState(
            at,
            tuple(
                ContainerState(
                    each["container"], each["kind"], each["primary"], each["epoch"], len(each["in_sync"]),
                    each["wanted"],
                )
                for each in containers
            ),
            bool(status["redundancy"]["whole"]),
        )  # fmt: skip

    def written(self) -> dict[int, int]:
        """Return the log size in bytes of each data container, as reported by leaders that answer."""
        found: dict[int, int] = {}
        for address in self._addresses().values():
            status = _ask(address, "status")
            for each in status["containers"] if status is not None else ():
                if each["kind"] == "data" and each["role"] == "primary":
                    found[each["id"]] = each["end"]
        return found

    def _ask(self, method: str) -> Any:
        return next((answer for at in self._addresses().values() if (answer := _ask(at, method)) is not None), None)


def _ask(address: Address, method: str) -> Any:
    try:
        with BrokerConnection(*address, client_id="demo", timeout_s=ANSWER_S) as connection:
            return connection.admin(method)
    except (ConnectionError, TimeoutError, KafkaError):
        return None


def busiest(before: Mapping[int, int], after: Mapping[int, int]) -> tuple[int, int]:
    """Return the container that grew most, and by how many bytes. Raises Unsound if there is none."""
    if not after:
        raise Unsound("no leader of a container with data answers: see the nodes' logs")
    grown = {container: end - before.get(container, 0) for container, end in after.items()}
    found = max(grown, key=lambda container: (grown[container], -container))
    return found, grown[found]


class NewLeader(NamedTuple):
    """The new leader of one of the dead node's containers, and how long after the kill it was first seen."""

    container: ContainerState
    after_s: float


class Failover:
    """The failover after the kill of `node` at `killed_at`. `before` is the last state of the cluster with the node."""

    def __init__(self, node: int, before: ClusterState, *, killed_at: float) -> None:
        self.node = node
        self.new_leaders: dict[int, NewLeader] = {}
        """By container; complete once `taken_over`."""
        self.started_at: float | None = None
        """When the node was started again."""
        self.whole_at: float | None = None
        """When every container had all of its replicas in sync again."""
        self.containers = len(before.containers)
        self._led = {each.container for each in before.containers if each.leader == node}
        self._killed_at = killed_at

    def see(self, look: ClusterState) -> None:
        """Record the cluster's present state."""
        for each in look.containers:
            if each.container in self._led and each.container not in self.new_leaders and each.leader != self.node:
                self.new_leaders[each.container] = NewLeader(each, look.at - self._killed_at)
        if look.whole and self.started_at is not None and self.whole_at is None:
            self.whole_at = look.at

    def starts_again(self, now: float) -> None:
        """Record that the node is being started again."""
        self.started_at = now

    @property
    def taken_over(self) -> bool:
        """Whether other nodes lead everything that the dead node led."""
        return self.new_leaders.keys() == self._led

    @property
    def took_over_s(self) -> float:
        """Seconds from the kill until the last of the node's containers had another leader."""
        return max((new_leader.after_s for new_leader in self.new_leaders.values()), default=0.0)

    @property
    def whole_s(self) -> float | None:
        """Seconds from the node's restart until redundancy was restored; None before."""
        if self.whole_at is None or self.started_at is None:
            return None
        return self.whole_at - self.started_at


def summary(new_leaders: Iterable[NewLeader]) -> str:
    """Return which node leads what, as a sentence without its full stop; the catalog is named."""
    by_node: dict[int, list[str]] = {}
    for new_leader in sorted(new_leaders, key=lambda each: each.container.container):
        container = new_leader.container
        named = "the catalog" if container.kind == "catalog" else f"container {container.container}"
        by_node.setdefault(container.leader, []).append(named)
    return ", ".join(f"node {node} leads {' and '.join(names)}" for node, names in sorted(by_node.items()))
