"""The lag of the event loop: how long clients wait because something else keeps the loop busy.

Measured as the lateness of a tick every 10 ms. `own` counts only time in which this process used a processor, so that a
machine that is busy with other processes is not mistaken for a node that stalls. Stored as a histogram of fixed size;
one timer for the whole node.
"""

import asyncio
import time
from collections.abc import Mapping
from typing import Final

EVERY_S: Final = 0.01
_BOUNDS_MS: Final = (1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100, 150, 200, 300, 500, 1000, 2000, 5000)


class LoopLag:
    """Measures from `start` to `close`."""

    bounds_s: Final = tuple(bound / 1000 for bound in _BOUNDS_MS)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._used = 0.0
        self.counts = [0] * (len(_BOUNDS_MS) + 1)
        """The number of ticks by lateness: up to each of `bounds_s`, and beyond."""
        self.sum_s = 0.0
        """The sum of the lateness of all ticks, in seconds."""
        self._ticks = 0
        self._worst = 0.0
        self._worst_own = 0.0

    def start(self) -> None:
        """Starts or restarts measuring."""
        self.close()
        self.counts = [0] * (len(_BOUNDS_MS) + 1)
        self.sum_s = 0.0
        self._ticks = 0
        self._worst = self._worst_own = 0.0
        self._next()

    def close(self) -> None:
        """Stops measuring."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def shown(self) -> Mapping[str, float]:
        """The lag since the start of measuring, in milliseconds: `worst`, `worst_own`, and `p99` (the upper bound of
        its bucket)."""
        below, p99 = 0, 0.0
        for bound, count in zip((*_BOUNDS_MS, self._worst * 1000), self.counts, strict=True):
            below += count
            if below >= 0.99 * self._ticks:
                p99 = min(float(bound), self._worst * 1000)
                break
        return {
            "worst": round(self._worst * 1000, 1),
            "worst_own": round(self._worst_own * 1000, 1),
            "p99": round(p99, 1),
        }

    def _next(self) -> None:
        self._due = time.monotonic() + EVERY_S
        self._used = time.process_time()
        self._timer = self._loop.call_later(EVERY_S, self._tick)

    def _tick(self) -> None:
        late = max(0.0, time.monotonic() - self._due)
        self._ticks += 1
        if late > self._worst:
            self._worst = late
        own = min(late, time.process_time() - self._used)
        if own > self._worst_own:
            self._worst_own = own
        row, millis = 0, late * 1000
        while row < len(_BOUNDS_MS) and millis > _BOUNDS_MS[row]:
            row += 1
        self.counts[row] += 1
        self.sum_s += late
        self._next()
