"""The newest batches, in memory, so that consumers at the end of a partition read no disk.

The event-loop thread's own. What the cache holds of a partitionlet is always its newest batches without a gap: batches
leave in the order in which they came. Each counts ENTRY_COST on top of its bytes, which is about what the interpreter
spends on it, so that a hundred thousand small batches keep to the limit too. Of a partitionlet with one batch here, as
with very many topics, nothing else is kept.
"""

from bisect import bisect_left, bisect_right
from collections import deque
from typing import Final

ENTRY_COST: Final = 512
_COMPACT_FROM: Final = 64


class _Run:
    """A partitionlet's batches. Rows below `head` have left."""

    __slots__ = ("batches", "ends", "floor", "head", "lasts")

    def __init__(self, floor: int) -> None:
        self.floor = floor  # the first offset from which on all is here
        self.head = 0
        self.lasts: list[int] = []
        self.ends: list[int] = []  # running sum of batch bytes
        self.batches: list[memoryview | None] = []


_One = tuple[int, int, memoryview]
"""A single batch: its first offset, its last, and itself."""


class TailCache:
    """Keeps about `limit` bytes."""

    __slots__ = ("_limit", "_order", "_runs", "used")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._runs: dict[int, _Run | _One] = {}
        self._order: deque[int] = deque()
        self.used = 0

    def add(self, partitionlet: int, first: int, last: int, batch: memoryview) -> None:
        """Adds the newest batch of `partitionlet`; the oldest of all leave when the limit is reached."""
        if not self._limit:
            return
        run = self._runs.get(partitionlet)
        size = len(batch)
        if run is None:
            self._runs[partitionlet] = (first, last, batch)
        else:
            if isinstance(run, tuple):
                run = self._runs[partitionlet] = _run_of(run)
            ends = run.ends
            run.lasts.append(last)
            ends.append((ends[-1] if ends else 0) + size)
            run.batches.append(batch)
        self._order.append(partitionlet)
        used = self.used = self.used + size + ENTRY_COST
        if used > self._limit:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        """Drops until the limit is kept."""
        used, limit, order, runs = self.used, self._limit, self._order, self._runs
        while used > limit:
            partitionlet = order.popleft()
            run = runs[partitionlet]
            if isinstance(run, tuple):
                used -= len(run[2]) + ENTRY_COST
                del runs[partitionlet]
                continue
            head = run.head
            batch = run.batches[head]
            assert batch is not None
            used -= len(batch) + ENTRY_COST
            run.batches[head] = None
            run.floor = run.lasts[head] + 1
            run.head = head = head + 1
            if head == len(run.lasts):
                del runs[partitionlet]
            elif head >= _COMPACT_FROM and head * 2 >= len(run.lasts):
                del run.lasts[:head], run.ends[:head], run.batches[:head]
                run.head = 0
        self.used = used

    def read(self, partitionlet: int, offset: int, *, limit: int, max_bytes: int) -> list[memoryview] | None:
        """The batches from the one that holds `offset` on that end below `limit`, up to `max_bytes`, at least one.

        None: what holds `offset` is not here. Empty: there is nothing at or behind `offset` below `limit`.
        """
        run = self._runs.get(partitionlet)
        if run is None:
            return None
        if isinstance(run, tuple):
            first, last, batch = run
            if offset < first:
                return None
            return [batch] if offset <= last < limit else []
        if offset < run.floor:
            return None
        ends, lasts = run.ends, run.lasts
        start = bisect_left(lasts, offset, run.head)
        if start == len(lasts):
            return []
        before = ends[start] - len(run.batches[start] or b"")
        stop = max(bisect_right(ends, before + max_bytes, start), start + 1)
        stop = min(stop, bisect_left(lasts, limit, start))
        return [batch for batch in run.batches[start:stop] if batch is not None]

    def forget(self) -> None:
        """Empties the cache."""
        self._runs.clear()
        self._order.clear()
        self.used = 0


def _run_of(one: _One) -> _Run:
    """What holds one batch, and may hold more."""
    first, last, batch = one
    run = _Run(first)
    run.lasts.append(last)
    run.ends.append(len(batch))
    run.batches.append(batch)
    return run
