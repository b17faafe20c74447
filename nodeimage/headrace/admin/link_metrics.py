"""The metrics of this node's links, computed periodically for scrapes, since a link may have 100,000 partitions.

At most MAX_LINKS links are reported, those that are furthest behind first; of the others only the number
(`SERIES_DROPPED`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Final

import structlog

from headrace.base.runtime import Runtime
from headrace.links.pull.lag import CATCHING_UP, CAUGHT_UP, CONNECTING, FAILED, PAUSED, Overall
from headrace.metrics import declarations as declared
from headrace.metrics.readings import Reading

log = structlog.get_logger()

LOOK_S: Final = 10.0
SHARE: Final = 50
MAX_LINKS: Final = 50
STATES: Final = (CONNECTING, CATCHING_UP, CAUGHT_UP, PAUSED, FAILED)


class LinkReadings:
    """Computes the link metrics of one node."""

    def __init__(self, *, runtime: Runtime, look: Callable[[], Awaitable[Mapping[str, Overall]]]) -> None:
        """`look`: returns the overall figures of each link, by name."""
        self._runtime = runtime
        self._look = look
        self._found: Mapping[str, Overall] = {}

    def start(self) -> None:
        """Compute them repeatedly, as long as the node runs."""
        self._runtime.spawn(self._scan_forever())

    async def look(self) -> None:
        """Compute the figures of all links now."""
        self._found = await self._look()

    def readings(self) -> Iterator[Reading]:
        """The readings of links for `/metrics`."""
        told = sorted(self._found.items(), key=lambda each: (-each[1].lag.seconds, each[0]))
        if len(told) > MAX_LINKS:
            yield Reading(declared.SERIES_DROPPED, float(len(told) - MAX_LINKS), ("links",))
        for name, each in told[:MAX_LINKS]:
            for state in STATES:
                yield Reading(declared.LINK_STATE, float(each.state == state), (name, state))
            for metric, value in (
                (declared.LINK_LAG_RECORDS, each.lag.records),
                (declared.LINK_LAG_BYTES, each.lag.bytes),
                (declared.LINK_LAG_SECONDS, each.lag.seconds),
                (declared.LINK_RECORDS, each.records),
                (declared.LINK_BYTES, each.bytes),
                (declared.LINK_FAILURES, each.failures),
                (declared.LINK_BLOCKED, each.blocked),
            ):
                yield Reading(metric, float(value), (name,))

    async def _scan_forever(self) -> None:
        while True:
            began = self._runtime.loop.time()
            try:
                await self.look()
            except Exception:
                log.exception("reading the lag of links failed")
            took = self._runtime.loop.time() - began
            await asyncio.sleep(max(LOOK_S, SHARE * took))
