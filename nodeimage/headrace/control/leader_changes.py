"""How long changes of leaders take, as the controller sees it: a span for each, if there is a tracer.

    noticed     from when the former leader was last heard from, or when another problem began, to the first plan with
                the change
    appointed   until the cluster store has the record
    leading     until the new leader reports that it leads in that epoch

A change that is overtaken by another one, or that this node cannot follow to its end because it is no longer the
controller, ends there. Knows nothing of what is planned and why; `time` is the controller's clock. Pure, except for the
tracer.
"""

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from headrace.base.ids import ContainerId, NodeId
from headrace.control.changes import Change, PutContainer
from headrace.peer.reports import ReplicaState
from headrace.tracing.spans import FAILOVER, Span
from headrace.tracing.tracer import Tracer

MAX_APPOINTED: Final = 10_000
"""The maximum number of changes followed at the same time; further ones get no span."""
OVERTAKEN: Final = "OVERTAKEN"
CONTROLLER_LEFT: Final = "CONTROLLER_LEFT"


class _Appointed(NamedTuple):
    """A new leader that is not yet known to lead. Times are seconds of the controller's clock."""

    change: PutContainer
    former: NodeId
    began: float
    decided: float
    appointed: float


class LeaderChanges:
    """The changes of leaders made by one controller."""

    def __init__(
        self,
        *,
        tracer: Tracer,
        time: Callable[[], float],
        replica: Callable[[NodeId, ContainerId], ReplicaState | None],
    ) -> None:
        """`replica` returns a replica as last reported by its node."""
        self._tracer = tracer
        self._time = time
        self._replica = replica
        self._decided: dict[ContainerId, float] = {}
        """When plans first wanted another leader for the container."""
        self._appointed: dict[ContainerId, _Appointed] = {}

    def decided(self, change: PutContainer, leader: NodeId | None) -> None:
        """The current plan contains this change. `leader`: the container's present leader."""
        if self._tracer.is_on and change.record.leader != leader:
            self._decided.setdefault(change.record.container_id, self._time())

    def planned(self, changes: Iterable[Change]) -> None:
        """A plan is complete: changes that it does not contain are no longer wanted."""
        if self._decided:
            wanted = {change.record.container_id for change in changes if isinstance(change, PutContainer)}
            self._decided = {container: at for container, at in self._decided.items() if container in wanted}

    def appointed(self, change: PutContainer, former: NodeId) -> None:
        """The cluster store now has a record with another leader."""
        if not self._tracer.is_on:
            return
        container, now = change.record.container_id, self._time()
        if (other := self._appointed.pop(container, None)) is not None:
            self._end(other, now, OVERTAKEN)
        if len(self._appointed) >= MAX_APPOINTED:
            return
        decided = self._decided.pop(container, now)
        began = decided if change.began is None else min(change.began, decided)
        self._appointed[container] = _Appointed(change, former, began, decided, now)
        self.told(change.record.leader, container, self._replica(change.record.leader, container))

    def told(self, node: NodeId, container: ContainerId, replica: ReplicaState | None) -> None:
        """A node reported a replica. Costs only a look-up if no leader was appointed."""
        found = self._appointed.get(container)
        if found is None or replica is None or replica.role != "primary":
            return
        record = found.change.record
        if node == record.leader and replica.epoch >= record.epoch:
            del self._appointed[container]
            self._end(found, self._time())

    def forget(self) -> None:
        """This node has become or ceased to be the controller."""
        now = self._time()
        for each in self._appointed.values():
            self._end(each, now, CONTROLLER_LEFT)
        self._appointed.clear()
        self._decided.clear()

    def _end(self, found: _Appointed, now: float, error: str = "") -> None:
        change, record = found.change, found.change.record
        cause = "balance" if change.is_balance else "hand_over" if change.is_planned else "failure"
        self._tracer.ended(
            Span(
                FAILOVER,
                now - found.began,
                {
                    "headrace.container": record.container_id,
                    "headrace.container.kind": record.kind,
                    "headrace.cause": cause,
                    "headrace.from_node": found.former,
                    "headrace.to_node": record.leader,
                    "headrace.epoch": record.epoch,
                    "headrace.notice_seconds": found.decided - found.began,
                    "headrace.appoint_seconds": found.appointed - found.decided,
                    "headrace.lead_seconds": None if error else now - found.appointed,
                },
                error=error,
            )
        )
