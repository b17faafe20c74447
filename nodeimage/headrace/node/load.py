"""A node's load, for the controller: rates between two readings, and disk use."""

import time
from collections.abc import Collection

from headrace.container.leader import Leader
from headrace.kafka.counters import Counters
from headrace.peer.reports import NodeLoad

_SMOOTHING = 0.5


class LoadMeter:
    """Measures a node's load. Rates are smoothed over the latest readings, which are about one second apart."""

    def __init__(self) -> None:
        self._at = time.monotonic()
        self._counts = (0, 0, 0)
        self._rates = (0.0, 0.0, 0.0)

    def read(self, counters: Counters, led: Collection[Leader], *, disk_used: int, disk_total: int) -> NodeLoad:
        """The current load."""
        now = time.monotonic()
        counts = (counters.bytes_in, counters.bytes_out, counters.requests)
        passed = now - self._at
        if passed >= 0.2:
            self._rates = tuple(
                _SMOOTHING * old + (1 - _SMOOTHING) * (new - before) / passed
                for old, new, before in zip(self._rates, counts, self._counts, strict=True)
            )  # type: ignore[assignment]  # a tuple of three
            self._at, self._counts = now, counts
        bytes_in, bytes_out, requests = self._rates
        return NodeLoad(
            bytes_in_per_s=bytes_in,
            bytes_out_per_s=bytes_out,
            requests_per_s=requests,
            disk_used=disk_used,
            disk_total=disk_total,
            led_containers=sum(not container.closing for container in led),
        )
