"""What becomes of the containers of a node that was killed: who leads them, and when all have their replicas again.

Responsible for looking at the cluster, by the admin calls that any node answers, and for telling from what is seen when
each thing happened. Knows nothing of processes and kills nobody. Times are seconds of the monotonic clock.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from headrace.base.errors import KafkaError
from headrace.kafka_client.blocking_client import BrokerConnection

ANSWER_S: Final = 5.0

Address = tuple[str, int]


class Contained(NamedTuple):
    """One container, as the cluster's records have it."""

    container: int
    kind: str
    leader: int
    epoch: int
    in_sync: int
    wanted: int


class Look(NamedTuple):
    """The cluster at one moment, `at`. `whole`: all containers have all of their replicas in sync, on living nodes."""

    at: float
    containers: tuple[Contained, ...]
    whole: bool


class Eyes:
    """Looks at a cluster by way of whichever of its nodes answers."""

    def __init__(self, addresses: Callable[[], Mapping[int, Address]]) -> None:
        """`addresses`: where the nodes are by now."""
        self._addresses = addresses

    def look(self) -> Look | None:
        """How things are; None where no node can say just now."""
        containers = self._ask("container.list")
        at = time.monotonic()
        status = self._ask("cluster.status")
        if status is None or containers is None:
            return None
        return Look(
            at,
            tuple(
                Contained(
                    each["container"], each["kind"], each["primary"], each["epoch"], len(each["in_sync"]),
                    each["wanted"],
                )
                for each in containers
            ),
            bool(status["redundancy"]["whole"]),
        )  # fmt: skip

    def written(self) -> dict[int, int]:
        """How many bytes of log each data container has, as its leader says; those of nodes that answer."""
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
    """The container that grew most, and by how many bytes. Raises ValueError where there is none."""
    grown = {container: end - before.get(container, 0) for container, end in after.items()}
    found = max(grown, key=lambda container: (grown[container], -container))
    return found, grown[found]


class Heir(NamedTuple):
    """Who leads a container of the dead node now, and how long after the kill that was seen."""

    container: Contained
    after_s: float


class Failover:
    """What followed the kill of `node` at `killed_at`. `before` is the last look at the cluster with it."""

    def __init__(self, node: int, before: Look, *, killed_at: float) -> None:
        self.node = node
        self.heirs: dict[int, Heir] = {}
        """By container; complete once `taken_over`."""
        self.started_at: float | None = None
        """When the node was started again."""
        self.whole_at: float | None = None
        """When every container had all of its replicas in sync again."""
        self.containers = len(before.containers)
        self._led = {each.container for each in before.containers if each.leader == node}
        self._killed_at = killed_at

    def see(self, look: Look) -> None:
        """Take in how things are."""
        for each in look.containers:
            if each.container in self._led and each.container not in self.heirs and each.leader != self.node:
                self.heirs[each.container] = Heir(each, look.at - self._killed_at)
        if look.whole and self.started_at is not None and self.whole_at is None:
            self.whole_at = look.at

    def starts_again(self, now: float) -> None:
        """The node is being started again from now on."""
        self.started_at = now

    @property
    def taken_over(self) -> bool:
        """Whether everything that the dead node led is led by others."""
        return self.heirs.keys() == self._led

    @property
    def took_over_s(self) -> float:
        """How long after the kill the last of its containers had another leader."""
        return max((heir.after_s for heir in self.heirs.values()), default=0.0)

    @property
    def whole_s(self) -> float | None:
        """How long after the node was started again redundancy was whole; None while it is not."""
        if self.whole_at is None or self.started_at is None:
            return None
        return self.whole_at - self.started_at


def told(heirs: Iterable[Heir]) -> str:
    """Who took what over, as a sentence without its full stop; the catalog by its name."""
    by_node: dict[int, list[str]] = {}
    for heir in sorted(heirs, key=lambda each: each.container.container):
        named = "the catalog" if heir.container.kind == "catalog" else f"container {heir.container.container}"
        by_node.setdefault(heir.container.leader, []).append(named)
    return ", ".join(f"node {node} leads {' and '.join(names)}" for node, names in sorted(by_node.items()))
