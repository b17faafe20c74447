"""A job's figures: how far behind it is, how fast it is, how long its batches take. Pure; times are monotonic seconds.

Lag is what is committed in the cluster and not yet done by the job: a batch under way counts as not done. In seconds it
is how long ago the job was at the end of what had come by then, judged by looks at the ends of partitions; what was
there before the first look counts from that look.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from headrace_spark.options import Partition

RATE_S: Final = 60.0
"""The rate is over so long."""
LOOKS: Final = 64
BATCH_BOUNDS_S: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""Of the histogram of batches."""
ENTRIES: Final = 200_000
"""Offsets kept in all looks together: with many partitions there are fewer looks, so seconds are coarser."""


@dataclass(slots=True)
class Lag:
    """Of one input."""

    records: int = 0
    seconds: float = 0.0
    _looks: deque[tuple[float, Mapping[Partition, int]]] = field(default_factory=deque)

    def look(self, ends: Mapping[Partition, int], positions: Mapping[Partition, int], *, now: float) -> None:
        """Partitions end there, and the job has come so far. A partition without a position counts from 0."""
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
        """Every other look goes; the first and the last stay."""
        kept = list(self._looks)
        self._looks = deque([*kept[:-1:2], kept[-1]])


def _covers(positions: Mapping[Partition, int], ends: Mapping[Partition, int]) -> bool:
    return all(positions.get(partition, 0) >= end for partition, end in ends.items())


@dataclass(slots=True)
class Rate:
    """Records per second over the last minute, and how long the last batch with records took."""

    batch_s: float = 0.0
    records: int = 0
    """Since the driver started."""
    batch_counts: list[int] = field(default_factory=lambda: [0] * (len(BATCH_BOUNDS_S) + 1))
    """Batches with records, by how long they took: up to each of the bounds, and longer."""
    batches_s: float = 0.0
    """All of them together."""
    _began: float | None = None
    _batches: deque[tuple[float, int]] = field(default_factory=deque)

    def start(self, *, now: float) -> None:
        """Queries begin."""
        if self._began is None:
            self._began = now

    def batch(self, records: int, seconds: float, *, now: float) -> None:
        """A batch is done."""
        self._began = now - seconds if self._began is None else self._began
        if records:
            self.records += records
            self.batch_s = seconds
            self.batches_s += seconds
            self.batch_counts[bisect_left(BATCH_BOUNDS_S, seconds)] += 1
            self._batches.append((now, records))

    def per_second(self, *, now: float) -> float:
        """Over the last minute, or since the start where that is shorter."""
        while self._batches and self._batches[0][0] <= now - RATE_S:
            self._batches.popleft()
        if self._began is None or not self._batches:
            return 0.0
        over = min(max(now - self._began, 1.0), RATE_S)
        return sum(records for _, records in self._batches) / over
