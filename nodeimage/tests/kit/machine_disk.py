"""Whether the machine's own disk stands still: where it is virtual a sync may take twenty seconds, for everybody on it.

etcd, which syncs to the same disk, logs it then ("slow fdatasync"). No cluster acknowledges anything meanwhile, so what
is measured against the clock is measured without such times. A node's disk that a test lets hang is not seen here.
"""

import itertools
import os
import tempfile
import threading
import time
from collections.abc import Sequence
from functools import cache

SLOW_S = 2.0
"""A sync that takes so long is none that a load alone makes slow."""
EACH_S = 0.25


def overlap(spans: Sequence[tuple[float, float]], since: float, until: float) -> float:
    """Seconds between `since` and `until` that lie in the spans, which lie apart."""
    return sum(max(min(end, until) - max(begin, since), 0.0) for begin, end in spans)


class MachineDisk(threading.Thread):
    """Syncs a byte four times a second, for as long as the process runs."""

    def __init__(self) -> None:
        super().__init__(daemon=True, name="machine's disk")
        self._fd, path = tempfile.mkstemp()
        os.unlink(path)
        self._slow: list[tuple[float, float]] = []
        self._began = time.monotonic()

    def run(self) -> None:
        for number in itertools.count():
            self._began = time.monotonic()
            os.pwrite(self._fd, bytes([number % 256]), 0)
            os.fdatasync(self._fd)
            ended = time.monotonic()
            if ended - self._began >= SLOW_S:
                print(f"the machine's disk stood still for {ended - self._began:.1f} s, until {ended:.3f}")
                self._slow.append((self._began, ended))
            self._began = float("inf")
            time.sleep(EACH_S)

    def stood_still(self, since: float, until: float) -> float:
        """For how many seconds of that time it did."""
        began, now = self._began, time.monotonic()
        spans = [*self._slow, *([(began, now)] if now - began >= SLOW_S else [])]
        return overlap(spans, since, until)


@cache
def machine_disk() -> MachineDisk:
    """The one of this process; it is watched from the first call on."""
    disk = MachineDisk()
    disk.start()
    return disk
