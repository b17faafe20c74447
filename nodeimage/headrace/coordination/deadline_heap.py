"""The deadlines of all groups and members of a node in one heap.

Knows nothing of groups, and has no clock: the caller passes the monotonic time in milliseconds.

A heartbeat moves a deadline to later, and there are thousands of them a second, so moving to later touches no heap:
the entry stays where it is, and is put back at the true time when its own comes up. Moving to earlier pushes a second
entry, and the old one is skipped when it comes up. Entries of cancelled alarms are skipped likewise, and swept out
once they are the larger part.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import count

SWEEP_ABOVE = 1_024
"""Fewer stale entries than this are not worth a sweep."""


@dataclass(slots=True, eq=False)
class Alarm:
    """Something that happens at `due` (None: not set). `owner` is for the caller."""

    owner: object
    ring: Callable[[int], None]
    due: int | None = None
    entered: int | None = field(default=None, repr=False)
    """The time under which the heap holds this alarm."""


class Deadlines:
    """A heap of alarms; `set` to a later time and `cancel` cost nothing."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Alarm]] = []
        self._serial = count()
        self._stale = 0

    def set(self, alarm: Alarm, due: int) -> None:
        """Let the alarm ring at `due`, and no longer at the time set before."""
        if alarm.due is None and alarm.entered is not None:
            self._stale -= 1
        alarm.due = due
        if alarm.entered is None or due < alarm.entered:
            if alarm.entered is not None:
                self._stale += 1
            self._enter(alarm, due)

    def cancel(self, alarm: Alarm) -> None:
        """The alarm does not ring. Cancelling one that is not set is nothing."""
        if alarm.due is None:
            return
        alarm.due = None
        if alarm.entered is not None:
            self._stale += 1
        if self._stale > SWEEP_ABOVE and self._stale * 2 > len(self._heap):
            self._sweep()

    def next(self) -> int | None:
        """When to call `pop` next; perhaps too early, never too late."""
        return self._heap[0][0] if self._heap else None

    def pop(self, now: int) -> Alarm | None:
        """An alarm that is due, or None. It is no longer set."""
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
        kept = []
        for entry in self._heap:
            at, _, alarm = entry
            if alarm.entered != at:
                continue
            if alarm.due is None:
                alarm.entered = None
            else:
                kept.append(entry)
        heapify(kept)
        self._heap = kept
        self._stale = 0
