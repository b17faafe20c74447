"""What the controller did and why, for people: the last events, each also a line of the log."""

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import structlog

from headrace.base.ids import ContainerId, Millis, NodeId

log = structlog.get_logger()

KEPT: Final = 200


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened."""

    at: Millis
    kind: str
    """`office`, `node`, `clock`, `primary`, `replicas`, `container`, `roll`, `level`, `wait`, of a cluster store that
    was set back `frozen` and `thawed`, of a node's tables of the catalog `damaged` and `repaired`, or of traces that
    are not to be had `tracing`."""
    reason: str
    container: ContainerId | None = None
    node: NodeId | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """How things are, as this node's controller sees them."""

    holds_lease: bool
    controller: NodeId | None
    """The node that holds the lease."""
    term: int
    nodes: dict[NodeId, str]
    """`alive`, `in doubt` or `dead`."""
    waiting: dict[ContainerId, str] = field(default_factory=dict)
    """Containers for which nothing can be done now, and why. Known to the controller alone."""
    creating: int = 0
    balance_paused: bool = False


class Events:
    """The last 200 events, oldest first."""

    def __init__(self) -> None:
        self._kept: deque[Event] = deque(maxlen=KEPT)
        self.failovers = 0
        """Containers that were given to another leader, as theirs had failed."""
        self.hand_overs = 0
        """Those whose leader was well: it stopped, was drained, or led more than its share."""
        self.balance_moves = 0
        """Containers and partitions that were moved for balance."""

    def __iter__(self) -> Iterator[Event]:
        return iter(tuple(self._kept))

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, kind: str, reason: str, *, container: ContainerId | None = None, node: NodeId | None = None) -> None:
        """Keep an event, and log it."""
        self._kept.append(Event(Millis(time.time_ns() // 1_000_000), kind, reason, container, node))
        where = {name: value for name, value in (("container", container), ("node", node)) if value is not None}
        log.info("controller", kind=kind, reason=reason, **where)
