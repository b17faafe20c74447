"""What a node carries, for the controller: rates between two looks, and the disk."""

import time
from collections.abc import Collection

from headrace.container.leader import Leader
from headrace.kafka.counters import Counters
from headrace.peer.reports import NodeLoad

_SMOOTHING = 0.5


class LoadMeter:
    """Rates are smoothed over the last looks, which come about once a second."""

    def __init__(self) -> None:
        self._at = time.monotonic()
        self._counts = (0, 0, 0)
        self._rates = (0.0, 0.0, 0.0)

    def read(self, counters: Counters, led: Collection[Leader], *, disk_used: int, disk_total: int) -> NodeLoad:
        """The load now."""
        now = time.monotonic()
        counts = (counters.bytes_in, counters.bytes_out, counters.requests)
        passed = now - self._at
        if passed >= 0.2:
            self._rates = tuple(
                _SMOOTHING * old + (1 - _SMOOTHING) * (new - before) / passed
                for old, new, before in zip(self._rates, counts, self._counts, strict=True)
            )  # type: ignore[assignment]  # three of them
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
