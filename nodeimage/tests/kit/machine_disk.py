"""Whether the machine's own disk hangs: on a virtual disk a sync may take twenty seconds, for everybody who uses it.

etcd, which syncs to the same disk, then logs "slow fdatasync". No cluster acknowledges anything meanwhile, so such
times are left out of measurements against the clock. A node's disk that a test makes hang does not show here.
"""

import itertools
import os
import tempfile
import threading
import time
from collections.abc import Sequence
from functools import cache

SLOW_S = 2.0
"""Seconds from which a sync is too slow to be explained by load."""
EACH_S = 0.25


def overlap(spans: Sequence[tuple[float, float]], since: float, until: float) -> float:
    """Seconds between `since` and `until` that are in the spans, which do not overlap."""
    return sum(max(min(end, until) - max(begin, since), 0.0) for begin, end in spans)


class MachineDisk(threading.Thread):
    """Syncs a byte four times a second, as long as the process runs."""

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
        """The seconds of that time in which the disk hung."""
        began, now = self._began, time.monotonic()
        spans = [*self._slow, *([(began, now)] if now - began >= SLOW_S else [])]
        return overlap(spans, since, until)


@cache
def machine_disk() -> MachineDisk:
    """This process's disk watcher, which starts at the first call."""
    disk = MachineDisk()
    disk.start()
    return disk
