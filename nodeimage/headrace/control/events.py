"""What the controller did and why, for people: the latest events, each also written to the log."""

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import structlog

from headrace.base.ids import ContainerId, Millis, NodeId

log = structlog.get_logger()

KEPT: Final = 200
"""Events kept."""


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened."""

    at: Millis
    kind: str
    """`office` (the controller's lease), `node`, `clock`, `primary`, `replicas`, `container`, `roll`, `level`, `wait`;
    `frozen` and `thawed` for a cluster store that was restored to an old copy; `damaged` and `repaired` for a node's
    tables of the catalog; `tracing` if a node has no traces."""
    reason: str
    container: ContainerId | None = None
    node: NodeId | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """The state of the cluster, as this node's controller sees it."""

    holds_lease: bool
    controller: NodeId | None
    """The node that holds the lease."""
    term: int
    nodes: dict[NodeId, str]
    """`alive`, `in doubt` or `dead`."""
    waiting: dict[ContainerId, str] = field(default_factory=dict)
    """Containers for which nothing can be done now, and why. Filled only on the controller."""
    creating: int = 0
    balance_paused: bool = False


class Events:
    """The last 200 events, oldest first."""

    def __init__(self) -> None:
        self._kept: deque[Event] = deque(maxlen=KEPT)
        self.failovers = 0
        """Containers that were given to another leader because theirs had failed."""
        self.hand_overs = 0
        """Containers whose leader was well but was changed: it stopped, was drained, or led more than its share."""
        self.balance_moves = 0
        """Containers and partitionlets that were moved for balance."""

    def __iter__(self) -> Iterator[Event]:
        return iter(tuple(self._kept))

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, kind: str, reason: str, *, container: ContainerId | None = None, node: NodeId | None = None) -> None:
        """Keep an event, and log it."""
        self._kept.append(Event(Millis(time.time_ns() // 1_000_000), kind, reason, container, node))
        where = {name: value for name, value in (("container", container), ("node", node)) if value is not None}
        log.info("controller", kind=kind, reason=reason, **where)
