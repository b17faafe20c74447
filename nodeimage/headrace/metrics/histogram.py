"""A histogram of durations to which adding a value takes a tenth of a microsecond. Pure.

One thread adds values; others may read, and may miss values that are added meanwhile. prometheus-client's own histogram
takes a lock and looks up its labels each time, which takes ten times as long.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

BOUNDS_S: Final[Sequence[float]] = (
    *(0.0001, 0.0002, 0.0005),
    *(0.001, 0.002, 0.005),
    *(0.01, 0.02, 0.05),
    *(0.1, 0.2, 0.5),
    *(1.0, 2.0, 5.0),
    *(10.0, 30.0),
)
"""The upper bounds of the buckets, in seconds; one more bucket has no bound."""


class Histogram:
    """Counts of durations by bucket, and their sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float] = BOUNDS_S) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """The number of durations in each bucket, not cumulative."""
        self.sum = 0.0

    def observe(self, seconds: float, times: int = 1) -> None:
        """Adds a duration `times` times."""
        self.counts[bisect_left(self.bounds, seconds)] += times
        self.sum += seconds * times

    @property
    def count(self) -> int:
        """The number of durations."""
        return sum(self.counts)
