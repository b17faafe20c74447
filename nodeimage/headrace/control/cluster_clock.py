"""What time it is in the cluster, where the clocks of its nodes may differ.

    the cluster's time: the latest that more than half of the nodes' clocks have reached

So a minority of clocks moves it neither forward nor back, and of two clocks the one that is behind counts. Kept are the
last readings; each goes on by this process's monotonic clock, so that a clock that jumps moves nothing before it is
read again. A reading counts as taken when its answer came: it is late by what the answer was under way, never early.

Only what is compared with the times of records goes by it: which have outlived their time to live, and what topics with
log-append times stamp. Nothing else in the cluster compares the times of two nodes. Knows nothing of probes.
"""

import time
from collections.abc import Callable
from typing import Final

from headrace.base.ids import Millis, NodeId

OFF_S: Final = 5.0
"""A clock that differs from the cluster's time by more is reported."""
RIGHT_S: Final = 3.0
"""By less, it is right again."""


class Clocks:
    """The nodes' clocks as this node knows them, its own among them. `wall` and `monotonic` give seconds."""

    def __init__(
        self, *, own: NodeId, monotonic: Callable[[], float], wall: Callable[[], float] = lambda: time.time()
    ) -> None:
        self._own = own
        self._monotonic = monotonic
        self.wall = wall
        self._shown: dict[NodeId, float | None] = {}
        """What the others' clocks showed when ours, the monotonic one, was at 0; None: not read yet."""
        self._agreed: float | None = None
        """The cluster's time then; None: not known."""
        self._off: dict[NodeId, float] = {}

    # --- reading them

    def expect(self, node: NodeId) -> None:
        """There is another node, whose clock counts."""
        self._shown.setdefault(node, None)

    def forget(self, node: NodeId) -> None:
        """There is no such node any more."""
        self._shown.pop(node, None)

    def told(self, node: NodeId, clock: Millis) -> None:
        """A node's answer has come, which said what its clock shows. 0: it does not tell, and does not count."""
        if clock:
            self._shown[node] = clock / 1000 - self._monotonic()
        else:
            self.forget(node)
        self.look()

    def look(self) -> None:
        """Read this node's own clock, and see which are off."""
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

    # --- what they say

    def now(self) -> Millis:
        """The cluster's time; this node's own where it has not read enough of the others' clocks."""
        if self._agreed is None or not self._shown:
            return Millis(int(self.wall() * 1000))
        return Millis(int((self._agreed + self._monotonic()) * 1000))

    def own(self) -> Millis:
        """What this node's own clock shows."""
        return Millis(int(self.wall() * 1000))

    def agreed(self) -> Millis | None:
        """The cluster's time; None where it is not known, as too few of the others' clocks have been read."""
        return None if self._shown and self._agreed is None else self.now()

    def off(self) -> dict[NodeId, float]:
        """By how many seconds clocks are ahead of the cluster's time (or behind, below 0), of those that are off."""
        return dict(self._off)
