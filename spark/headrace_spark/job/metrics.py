"""A job's lag, throughput and batch times. Pure; times are monotonic seconds.

Lag is the number of records that are committed in the cluster and not yet processed: a batch under way is not
processed. In seconds, lag is how long ago the job had processed everything that had arrived by then, measured by looks
at the ends of partitions; records from before the first look count from that look.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from headrace_spark.options import Partition

RATE_S: Final = 60.0
"""Seconds over which the rate is measured."""
LOOKS: Final = 64
BATCH_BOUNDS_S: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""The bounds of the histogram of batch times, in seconds."""
ENTRIES: Final = 200_000
"""The maximum number of offsets kept in all looks together: with many partitions fewer looks are kept, so that the lag
in seconds is coarser.
"""


@dataclass(slots=True)
class Lag:
    """The lag of one input."""

    records: int = 0
    seconds: float = 0.0
    _looks: deque[tuple[float, Mapping[Partition, int]]] = field(default_factory=deque)

    def look(self, ends: Mapping[Partition, int], positions: Mapping[Partition, int], *, now: float) -> None:
        """Record where partitions end, and how far the job is. A partition without a position counts from 0."""
        self.records = sum(max(end - positions.get(partition, 0), 0) for partition, end in ends.items())
        if not self._looks or dict(self._looks[-1][1]) != dict(ends):
            self._looks.append((now, ends))
        while len(self._looks) > 1 and _covers(positions, self._looks[1][1]):
            self._looks.popleft()
        most = min(max(ENTRIES // max(len(ends), 1), 4), LOOKS)
        if len(self._looks) > most:
            self._thin()
        if not self.records:
            self._looks = deque([(now, ends)])
        self.seconds = now - self._looks[0][0] if self.records else 0.0

    def _thin(self) -> None:
        """Drop every other look, except the first and the last."""
        kept = list(self._looks)
        self._looks = deque([*kept[:-1:2], kept[-1]])


def _covers(positions: Mapping[Partition, int], ends: Mapping[Partition, int]) -> bool:
    return all(positions.get(partition, 0) >= end for partition, end in ends.items())


@dataclass(slots=True)
class Rate:
    """Records per second over the last minute, and batch times."""

    batch_s: float = 0.0
    records: int = 0
    """Records since the driver started."""
    batch_counts: list[int] = field(default_factory=lambda: [0] * (len(BATCH_BOUNDS_S) + 1))
    """Batches with records by duration: one count for each bound, and one for longer batches."""
    batches_s: float = 0.0
    """The total duration of these batches."""
    _began: float | None = None
    _batches: deque[tuple[float, int]] = field(default_factory=deque)

    def start(self, *, now: float) -> None:
        """Record that queries start."""
        if self._began is None:
            self._began = now

    def batch(self, records: int, seconds: float, *, now: float) -> None:
        """Record a finished batch."""
        self._began = now - seconds if self._began is None else self._began
        if records:
            self.records += records
            self.batch_s = seconds
            self.batches_s += seconds
            self.batch_counts[bisect_left(BATCH_BOUNDS_S, seconds)] += 1
            self._batches.append((now, records))

    def per_second(self, *, now: float) -> float:
        """Return the rate over the last minute, or since the start if that is shorter."""
        while self._batches and self._batches[0][0] <= now - RATE_S:
            self._batches.popleft()
        if self._began is None or not self._batches:
            return 0.0
        over = min(max(now - self._began, 1.0), RATE_S)
        return sum(records for _, records in self._batches) / over
