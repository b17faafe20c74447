"""Whether more waits for the disk than memory should hold: then producers and links wait."""

import asyncio
from collections.abc import Mapping
from typing import Final

from headrace.base.errors import KafkaError
from headrace.base.ids import ContainerId
from headrace.container.commit_wait import committed_to
from headrace.container.leader import Leader
from headrace.kafka.counters import Counters

MOST_PENDING_BYTES: Final = 128 * 1024 * 1024
"""Bytes that wait for the disk; above this, producers wait."""
PENDING_LOOK_BYTES: Final = 1024 * 1024
"""Bytes of requests between two looks at what waits for the disk."""
SATURATED_S: Final = 0.5


class BackPressure:
    """Of what a node's containers hold back."""

    def __init__(self, *, led: Mapping[ContainerId, Leader], counters: Counters) -> None:
        self._led = led
        self._counters = counters
        self._was_saturated = False
        self._looked_at = 0
        """So many bytes of requests had come when it was found out whether too much waits for the disk."""

    @property
    def saturated(self) -> bool:
        """More waits for the disk than memory should hold."""
        pending = 0
        for container in self._led.values():
            pending += container.log.pending_bytes
        return pending > MOST_PENDING_BYTES

    @property
    def was_saturated(self) -> bool:
        """The same, as of the last MiB that came in requests: a node may lead very many containers."""
        if self._was_saturated or self._counters.bytes_in - self._looked_at >= PENDING_LOOK_BYTES:
            self._looked_at = self._counters.bytes_in
            self._was_saturated = self.saturated
        return self._was_saturated

    async def not_saturated(self) -> None:
        """Return when the disk has caught up."""
        while self.saturated:
            busiest = max(self._led.values(), key=lambda container: container.log.pending_bytes)
            try:
                await committed_to(busiest, busiest.log.end, timeout_s=SATURATED_S)
            except KafkaError:
                await asyncio.sleep(0)  # its followers lag, or another node leads it: the disk alone counts here
