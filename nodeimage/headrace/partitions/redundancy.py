"""Redundancy of the cluster: whether every container has as many replicas in sync as its volume demands, and since
when.

Judged by the containers' records alone. Every node keeps track by itself, so the answer survives the death of any node,
including the controller's. Times are wall-clock times, for users; durations come from a monotonic clock. A replica that
died while the in-sync set was at its minimum stays in the set (invariant 6), so it is not noticed here;
`cluster_rules.lacks`, which considers the nodes, notices it.
"""

import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import structlog

from headrace.base.ids import ContainerId, Millis
from headrace.store.records import ContainerRecord
from headrace.store.view import Changed, ClusterView

log = structlog.get_logger()

KEPT: Final = 100
"""Number of latest turns that are kept."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A change of redundancy; `kind`: "lost", or "whole" when it is restored."""

    at: Millis
    kind: str
    reason: str


class Redundancy:
    """Follows the redundancy of a view's containers. `whole` has had its value since `since`; None: since before this
    node's start."""

    def __init__(self, view: ClusterView) -> None:
        self.whole = True
        self.since: Millis | None = None
        self._turned_at: float | None = None
        self._view = view
        self._turns: deque[Turn] = deque(maxlen=KEPT)
        self._lacking: set[ContainerId] = set()
        self._affected: set[ContainerId] = set()
        """Containers that have lacked replicas at any time since redundancy was lost."""
        view.on_change(self._changed)
        self._update(view.containers.values())
        self._affected |= self._lacking
        self.whole = not self._affected

    def __iter__(self) -> Iterator[Turn]:
        return iter(tuple(self._turns))

    def _changed(self, changed: Changed) -> None:
        if changed.containers:
            view = self._view.containers
            self._lacking -= changed.containers - view.keys()
            present = [record for each in changed.containers if (record := view.get(each)) is not None]
            self.see(present, now=_now(), at=time.monotonic())

    def see(self, containers: Iterable[ContainerRecord], *, now: Millis, at: float) -> None:
        """Take note of changed records, at the wall-clock time `now`, which is `at` seconds on a monotonic clock.

        Pass changed records only: there may be tens of thousands of containers, and thousands of changes.
        """
        self._update(containers)
        lacking = self._lacking
        self._affected |= lacking
        if self.whole == (not lacking):
            return
        lasted = None if self._turned_at is None else at - self._turned_at
        self.whole, self.since, self._turned_at = not lacking, now, at
        if lacking:
            have = "containers have" if len(lacking) > 1 else "container has"
            reason = f"{len(lacking)} {have} fewer replicas in sync than asked for (such as container {min(lacking)})"
        else:
            after = "" if lasted is None else f", after {lasted:.1f} s"
            reason = f"all containers have all of their replicas in sync again; {len(self._affected)} had not{after}"
            self._affected.clear()
        self._turns.append(Turn(now, "whole" if self.whole else "lost", reason))
        log.info("redundancy", whole=self.whole, reason=reason)

    def _update(self, containers: Iterable[ContainerRecord]) -> None:
        for each in containers:
            if each.state != "deleted" and len(each.in_sync) < each.wanted:
                self._lacking.add(each.container_id)
            else:
                self._lacking.discard(each.container_id)


def _now() -> Millis:
    return Millis(time.time_ns() // 1_000_000)
