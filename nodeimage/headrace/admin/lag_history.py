"""Estimates how long the record at an offset of a partition has existed, from past ends of the partition. Pure.

The end of a partition is noted now and then, and is assumed to have risen steadily between two notes. For each
partition 64 notes are kept, fewer the further back, so that they cover hours."""

from array import array
from bisect import bisect_right
from collections.abc import Set
from typing import Final

MAX_NOTES: Final = 64
MAX_PARTITIONS: Final = 2_000
"""The maximum number of partitions with notes at a time; 1 KiB each."""

Key = tuple[bytes, int]
"""A topic's id and a partition."""


class _Notes:
    """The notes of one partition."""

    __slots__ = ("ends", "times")

    def __init__(self) -> None:
        self.times = array("d")
        self.ends = array("q")
        """`times` and `ends` are both in ascending order."""

    def add(self, now: float, end: int) -> None:
        times, ends = self.times, self.ends
        if ends and end < ends[-1]:  # cut by an unclean recovery, or recreated
            del times[:], ends[:]
        if len(ends) > 1 and ends[-1] == ends[-2] == end:
            times[-1] = now
            return
        times.append(now)
        ends.append(end)
        if len(times) > MAX_NOTES:
            half = MAX_NOTES // 2
            times[:half] = times[:half:2]
            ends[:half] = ends[:half:2]


class LagHistory:
    """The notes of all partitions that groups consume."""

    def __init__(self) -> None:
        self._notes: dict[Key, _Notes] = {}

    def note(self, key: Key, end: int, *, now: float) -> None:
        """Note that a partition ends at `end` now, by a monotonic clock in seconds."""
        notes = self._notes.get(key)
        if notes is None:
            if len(self._notes) >= MAX_PARTITIONS:
                return
            notes = self._notes[key] = _Notes()
        notes.add(now, end)

    def age_s(self, key: Key, offset: int, *, now: float) -> float | None:
        """About how many seconds the record at `offset` has existed, a lower bound if it is older than all notes; 0.0
        if there is no such record, None if unknown."""
        notes = self._notes.get(key)
        if notes is None:
            return None
        times, ends = notes.times, notes.ends
        if offset >= ends[-1]:
            return 0.0
        index = bisect_right(ends, offset) - 1
        if index < 0:
            return now - times[0]
        share = (offset - ends[index]) / (ends[index + 1] - ends[index])
        return now - (times[index] + (times[index + 1] - times[index]) * share)

    def forget_others(self, keys: Set[Key]) -> None:
        """Forget all partitions but these."""
        for key in self._notes.keys() - keys:
            del self._notes[key]
