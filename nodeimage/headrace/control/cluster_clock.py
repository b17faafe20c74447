"""The cluster's time, while the clocks of its nodes may differ.

    the cluster's time: the latest that more than half of the nodes' clocks have reached

A minority of clocks therefore moves it neither forward nor back, and of two clocks the slower one counts. The last
reading of each clock is kept and advanced by this process's monotonic clock, so that a clock that jumps has no effect
before it is read again. A reading is assigned to the moment when its answer arrived: it may be late by the time of
transfer, but never early.

The cluster's time decides which records have exceeded their time to live, and how long the raise of a feature level
waits (level_raise.py); it stamps the records of topics with log-append time, committed offsets and audit events.
Nothing else in the cluster compares the times of two nodes. Knows nothing of probes.
"""

import time
from collections.abc import Callable
from typing import Final

from headrace.base.ids import Millis, NodeId

OFF_S: Final = 5.0
"""Seconds by which a clock must differ from the cluster's time to be reported as off."""
RIGHT_S: Final = 3.0
"""Seconds of difference below which a clock that was off counts as right again."""


class Clocks:
    """The nodes' clocks as this node knows them, including its own. `wall` and `monotonic` return seconds."""

    def __init__(
        self, *, own: NodeId, monotonic: Callable[[], float], wall: Callable[[], float] = lambda: time.time()
    ) -> None:
        self._own = own
        self._monotonic = monotonic
        self.wall = wall
        self._shown: dict[NodeId, float | None] = {}
        """Difference, in seconds, between each other node's clock and this node's monotonic clock; None if not read
        yet."""
        self._agreed: float | None = None
        """Difference, in seconds, between the cluster's time and this node's monotonic clock; None if it is not known.
        """
        self._off: dict[NodeId, float] = {}
        """Seconds by which each clock that is off is ahead of the cluster's time."""

    # --- reading them

    def expect(self, node: NodeId) -> None:
        """Add another node, whose clock counts."""
        self._shown.setdefault(node, None)

    def forget(self, node: NodeId) -> None:
        """Remove a node that no longer exists."""
        self._shown.pop(node, None)

    def told(self, node: NodeId, clock: Millis) -> None:
        """Record the clock value in a node's answer that has just arrived. 0: the node reports no clock, and does not
        count."""
        if clock:
            self._shown[node] = clock / 1000 - self._monotonic()
        else:
            self.forget(node)
        self.look()

    def look(self) -> None:
        """Read this node's own clock, and determine which clocks are off."""
        at = self._monotonic()
        shown = {node: each for node, each in self._shown.items() if each is not None}
        shown[self._own] = self.wall() - at
        majority = (1 + len(self._shown)) // 2 + 1
        if len(shown) < majority:
            self._agreed = None
            return
        agreed = self._agreed = sorted(shown.values(), reverse=True)[majority - 1]
        self._off = {
            node: each - agreed
            for node, each in shown.items()
            if abs(each - agreed) > (RIGHT_S if node in self._off else OFF_S)
        }

    # --- results

    def now(self) -> Millis:
        """Return the cluster's time, or this node's own if too few of the other clocks have been read."""
        if self._agreed is None or not self._shown:
            return Millis(int(self.wall() * 1000))
        return Millis(int((self._agreed + self._monotonic()) * 1000))

    def own(self) -> Millis:
        """Return the time of this node's own clock."""
        return Millis(int(self.wall() * 1000))

    def agreed(self) -> Millis | None:
        """Return the cluster's time; None if it is unknown because too few of the other clocks have been read."""
        return None if self._shown and self._agreed is None else self.now()

    def off(self) -> dict[NodeId, float]:
        """Return the seconds by which each clock that is off is ahead of the cluster's time (behind, if negative)."""
        return dict(self._off)
