"""Back-pressure: producers and links wait while more bytes are pending for the disk than memory should hold."""

import asyncio
from collections.abc import Mapping
from typing import Final

from headrace.base.errors import KafkaError
from headrace.base.ids import ContainerId
from headrace.container.commit_wait import committed_to
from headrace.container.leader import Leader
from headrace.kafka.counters import Counters

MAX_PENDING_BYTES: Final = 128 * 1024 * 1024
"""Bytes pending for the disk above which producers wait."""
PENDING_LOOK_BYTES: Final = 1024 * 1024
"""Bytes of received requests between two checks of the pending bytes."""
SATURATED_S: Final = 0.5


class BackPressure:
    """The back-pressure of the containers that one node leads."""

    def __init__(self, *, led: Mapping[ContainerId, Leader], counters: Counters) -> None:
        self._led = led
        self._counters = counters
        self._was_saturated = False
        self._checked_at_bytes = 0
        """The count of received bytes at the time of the last check."""

    @property
    def saturated(self) -> bool:
        """Whether more bytes are pending for the disk than memory should hold."""
        pending = 0
        for container in self._led.values():
            pending += container.log.pending_bytes
        return pending > MAX_PENDING_BYTES

    @property
    def was_saturated(self) -> bool:
        """Whether the node was saturated at the last check. A node that is not saturated is checked once per MiB of
        received requests, because it may lead very many containers; a saturated one is checked at each call."""
        if self._was_saturated or self._counters.bytes_in - self._checked_at_bytes >= PENDING_LOOK_BYTES:
            self._checked_at_bytes = self._counters.bytes_in
            self._was_saturated = self.saturated
        return self._was_saturated

    async def not_saturated(self) -> None:
        """Return once the pending bytes are within the limit."""
        while self.saturated:
            busiest = max(self._led.values(), key=lambda container: container.log.pending_bytes)
            try:
                await committed_to(busiest, busiest.log.end, timeout_s=SATURATED_S)
            except KafkaError:
                await asyncio.sleep(0)  # followers lag, or another node leads now: only the disk counts here
