"""For how long the record at an offset of a partition is there, from when its end was seen where. Pure.

The end of a partition is noted now and then. Between two notes it is taken to have risen steadily. Of a partition 64
notes are kept, the older the sparser, so that they reach back for hours.
"""

from typing import Final

MOST_NOTES: Final = 64
MOST_PARTITIONS: Final = 2_000
"""Followed at a time; some 8 KiB each."""

Key = tuple[bytes, int]
"""A topic's id and a partition."""


class LagHistory:
    """Of the partitions that groups consume."""

    def __init__(self) -> None:
        self._notes: dict[Key, list[tuple[float, int]]] = {}
        """Times and ends, both rising."""

    def note(self, key: Key, end: int, *, now: float) -> None:
        """A partition ends there now, by a clock that does not go back."""
        notes = self._notes.get(key)
        if notes is None:
            if len(self._notes) < MOST_PARTITIONS:
                self._notes[key] = [(now, end)]
            return
        if end < notes[-1][1]:  # cut by an unclean recovery, or made anew
            notes.clear()
        if len(notes) > 1 and notes[-1][1] == notes[-2][1] == end:
            notes[-1] = (now, end)
        else:
            notes.append((now, end))
        if len(notes) > MOST_NOTES:
            half = MOST_NOTES // 2
            notes[:half] = notes[:half:2]

    def age_s(self, key: Key, offset: int, *, now: float) -> float | None:
        """For how long the record at `offset` is there, at least; 0.0: there is none; None: it is not known."""
        notes = self._notes.get(key)
        if not notes:
            return None
        if offset >= notes[-1][1]:
            return 0.0
        if offset < notes[0][1]:
            return now - notes[0][0]
        index = max(number for number, (_, end) in enumerate(notes) if end <= offset)
        (began, low), (ended, high) = notes[index], notes[index + 1]
        return now - (began + (ended - began) * (offset - low) / (high - low))

    def forget_others(self, keys: set[Key]) -> None:
        """Keep nothing of partitions that no group consumes."""
        for key in self._notes.keys() - keys:
            del self._notes[key]
