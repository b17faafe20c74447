"""The deadlines of all groups and members of a node in one heap.

Knows nothing of groups, and has no clock: the caller passes the monotonic time in milliseconds.

A heartbeat postpones a deadline, and there are thousands of heartbeats per second, so postponing does not touch the
heap: the entry stays where it is, and is pushed again at the true time when it is popped. Bringing a deadline forward
pushes a second entry, and the old one is skipped when popped. Entries of cancelled alarms are skipped likewise, and
removed together once they are the majority.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import count

SWEEP_ABOVE = 1_024
"""The number of stale entries up to which removing them is not worthwhile."""


@dataclass(slots=True, eq=False)
class Alarm:
    """A callback for the time `due` (None: not set). `owner` is for the caller's use."""

    owner: object
    ring: Callable[[int], None]
    due: int | None = None
    entered: int | None = field(default=None, repr=False)
    """The time of this alarm's entry in the heap."""


class Deadlines:
    """A heap of alarms, in which `set` to a later time and `cancel` are almost free."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Alarm]] = []
        self._serial = count()
        self._stale = 0

    def set(self, alarm: Alarm, due: int) -> None:
        """Set the alarm to `due`, replacing any earlier time."""
        if alarm.due is None and alarm.entered is not None:
            self._stale -= 1
        alarm.due = due
        if alarm.entered is None or due < alarm.entered:
            if alarm.entered is not None:
                self._stale += 1
            self._enter(alarm, due)

    def cancel(self, alarm: Alarm) -> None:
        """Unset the alarm. Does nothing if the alarm is not set."""
        if alarm.due is None:
            return
        alarm.due = None
        if alarm.entered is not None:
            self._stale += 1
        if self._stale > SWEEP_ABOVE and self._stale * 2 > len(self._heap):
            self._sweep()

    def next(self) -> int | None:
        """The time at which to call `pop` next; perhaps too early, never too late."""
        return self._heap[0][0] if self._heap else None

    def pop(self, now: int) -> Alarm | None:
        """Unset and return an alarm that is due, or None."""
        while self._heap and self._heap[0][0] <= now:
            at, _, alarm = heappop(self._heap)
            if alarm.entered != at:
                self._stale -= 1
                continue
            alarm.entered = None
            if alarm.due is None:
                self._stale -= 1
            elif alarm.due > now:
                self._enter(alarm, alarm.due)
            else:
                alarm.due = None
                return alarm
        return None

    def __len__(self) -> int:
        return len(self._heap)

    def _enter(self, alarm: Alarm, at: int) -> None:
        alarm.entered = at
        heappush(self._heap, (at, next(self._serial), alarm))

    def _sweep(self) -> None:
        kept: dict[Alarm, tuple[int, int, Alarm]] = {}
        for entry in self._heap:
            at, _, alarm = entry
            if alarm.entered != at:
                continue
            if alarm.due is None:
                alarm.entered = None
            else:
                kept[alarm] = entry  # one only: an alarm brought forward and back has two of the same time
        self._heap = list(kept.values())
        heapify(self._heap)
        self._stale = 0
