"""Since when each container has all the replicas in sync that its volume asks for, by the records alone.

Every node keeps this for itself, so it is known whichever node dies, the controller's too. Times are wall clock, for
people; how long something lasted goes by a clock that does not jump. A replica that died while the in-sync set was at
its minimum stays in the set (invariant 6), and is not missed here; `cluster_rules.lacks`, which asks the nodes, does
miss it.
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


@dataclass(frozen=True, slots=True)
class Turn:
    """Redundancy was `lost`, or is `whole` again."""

    at: Millis
    kind: str
    reason: str


class Redundancy:
    """Follows a view from now on. `whole` is so `since` then; None: since before this node looked."""

    def __init__(self, view: ClusterView) -> None:
        self.whole = True
        self.since: Millis | None = None
        self._turned_at: float | None = None
        self._view = view
        self._turns: deque[Turn] = deque(maxlen=KEPT)
        self._lacking: set[ContainerId] = set()
        self._lacked: set[ContainerId] = set()
        """Since redundancy was lost."""
        view.on_change(self._changed)
        self._look_at(view.containers.values())
        self._lacked |= self._lacking
        self.whole = not self._lacked

    def __iter__(self) -> Iterator[Turn]:
        return iter(tuple(self._turns))

    def _changed(self, changed: Changed) -> None:
        if changed.containers:
            view = self._view.containers
            self._lacking -= changed.containers - view.keys()
            present = [record for each in changed.containers if (record := view.get(each)) is not None]
            self.see(present, now=_now(), at=time.monotonic())

    def see(self, containers: Iterable[ContainerRecord], *, now: Millis, at: float) -> None:
        """Records that changed, as they are at `now`, which is at `at` seconds of a monotonic clock.

        Not all that there are: those may be tens of thousands, and changes come by the thousand.
        """
        self._look_at(containers)
        lacking = self._lacking
        self._lacked |= lacking
        if self.whole == (not lacking):
            return
        lasted = None if self._turned_at is None else at - self._turned_at
        self.whole, self.since, self._turned_at = not lacking, now, at
        if lacking:
            have = "containers have" if len(lacking) > 1 else "container has"
            reason = f"{len(lacking)} {have} fewer replicas in sync than asked for (such as container {min(lacking)})"
        else:
            after = "" if lasted is None else f", after {lasted:.1f} s"
            reason = f"all containers have all of their replicas in sync again; {len(self._lacked)} had not{after}"
            self._lacked.clear()
        self._turns.append(Turn(now, "whole" if self.whole else "lost", reason))
        log.info("redundancy", whole=self.whole, reason=reason)

    def _look_at(self, containers: Iterable[ContainerRecord]) -> None:
        for each in containers:
            if each.state != "deleted" and len(each.in_sync) < each.wanted:
                self._lacking.add(each.container_id)
            else:
                self._lacking.discard(each.container_id)


def _now() -> Millis:
    return Millis(time.time_ns() // 1_000_000)
