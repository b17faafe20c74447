"""A cache of the newest batches in memory, so that consumers at the end of a partition cause no disk reads.

Only the event-loop thread uses it. The cache always holds the newest batches of a partitionlet without a gap: batches
leave in the order in which they were added. Each batch counts ENTRY_COST in addition to its bytes, about the memory
that the interpreter needs for it, so that a hundred thousand small batches respect the limit too. A partitionlet with
only one batch in the cache, the usual case with very many topics, is kept as a plain tuple.
"""

from bisect import bisect_left, bisect_right
from collections import deque
from typing import Final

ENTRY_COST: Final = 512
_COMPACT_FROM: Final = 64


class _Run:
    """A partitionlet's batches. Rows below `head` have been dropped."""

    __slots__ = ("batches", "ends", "floor", "head", "lasts")

    def __init__(self, floor: int) -> None:
        self.floor = floor  # from this offset on, all batches are in the cache
        self.head = 0
        self.lasts: list[int] = []
        self.ends: list[int] = []  # running sum of batch bytes
        self.batches: list[memoryview | None] = []


_Single = tuple[int, int, memoryview]
"""A partitionlet's only batch in the cache: (first offset, last offset, batch)."""


class TailCache:
    """Keeps the newest batches up to `limit` bytes in total; 0: none."""

    __slots__ = ("_limit", "_order", "_runs", "used")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._runs: dict[int, _Run | _Single] = {}
        self._order: deque[int] = deque()
        self.used = 0

    def add(self, partitionlet: int, first: int, last: int, batch: memoryview) -> None:
        """Adds the newest batch of `partitionlet`; drops the oldest batches of all partitionlets beyond the limit."""
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
        """Drops the oldest batches until the limit is respected."""
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
        """The batches that end below `limit`, from the one that holds `offset` on: up to `max_bytes`, but at least one.

        None: the batch with `offset` is not in the cache. Empty: no batch at or after `offset` ends below `limit`.
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


def _run_of(single: _Single) -> _Run:
    """The run that replaces a partitionlet's single batch, so that more batches can be added."""
    first, last, batch = single
    run = _Run(first)
    run.lasts.append(last)
    run.ends.append(len(batch))
    run.batches.append(batch)
    return run
