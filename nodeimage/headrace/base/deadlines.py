"""All deadlines of a node behind one timer: topics, connections and partitions have no timers of their own.

A heap of deadlines, ordered by time. Cancelling only marks an entry; the entry leaves the heap when its time comes, or
when the heap holds more cancelled entries than live ones.
"""

import asyncio
import heapq
from collections.abc import Callable
from typing import Final

TICK_S: Final = 0.001  # uvloop's clock has whole milliseconds, so the time read from it is up to this much behind


class Deadline:
    """A callback at a time. Call `cancel` when it is no longer needed."""

    __slots__ = ("_callback", "_owner", "when")

    def __init__(self, when: float, callback: Callable[[], None], owner: "Deadlines") -> None:
        self.when = when
        self._callback: Callable[[], None] | None = callback
        self._owner = owner

    def __lt__(self, other: "Deadline") -> bool:
        return self.when < other.when

    def cancel(self) -> None:
        """Prevents the callback. Idempotent."""
        if self._callback is not None:
            self._callback = None
            self._owner.cancelled()

    def run(self) -> None:
        """Calls back, unless cancelled."""
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()

    @property
    def live(self) -> bool:
        """Whether the callback is still to come: neither run nor cancelled."""
        return self._callback is not None


class Deadlines:
    """The heap of deadlines and its timer. Times are those of the loop (monotonic seconds)."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._heap: list[Deadline] = []
        self._cancelled = 0
        """Cancelled deadlines that are still in the heap."""
        self._timer: asyncio.TimerHandle | None = None

    def at(self, when: float, callback: Callable[[], None]) -> Deadline:
        """Calls `callback` at loop time `when`."""
        deadline = Deadline(when, callback, self)
        heapq.heappush(self._heap, deadline)
        if self._heap[0] is deadline:
            self._arm()
        return deadline

    def after(self, seconds: float, callback: Callable[[], None]) -> Deadline:
        """Calls `callback` in `seconds`, never sooner."""
        return self.at(self._loop.time() + TICK_S + seconds, callback)

    def cancelled(self) -> None:
        """Counts a cancelled deadline; called by `Deadline.cancel`."""
        self._cancelled += 1
        if self._cancelled > 64 and self._cancelled * 2 > len(self._heap):
            self._heap = [deadline for deadline in self._heap if deadline.live]
            heapq.heapify(self._heap)
            self._cancelled = 0

    def close(self) -> None:
        """Drops all deadlines without calling back."""
        self._heap.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._heap[0].when, self._due) if self._heap else None

    def _due(self) -> None:
        self._timer = None
        now = self._loop.time()
        try:
            while self._heap and self._heap[0].when <= now:
                deadline = heapq.heappop(self._heap)
                self._cancelled -= not deadline.live
                deadline.run()
        finally:  # an exception of a callback goes to the loop's handler, and must not stop the other deadlines
            self._arm()
