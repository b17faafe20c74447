"""Closes client connections on which nothing has happened for long, as Kafka's brokers do; stock clients reconnect.

A round over all connections now and then: no timer belongs to a connection, and a request costs one assignment.
"""

import asyncio
from collections.abc import Collection
from typing import Final

from headrace.broker.listener import Connection

IDLE_S: Final = 600.0
"""Kafka's `connections.max.idle.ms`."""
EVERY_S: Final = 30.0


class IdleConnections:
    """Of one node, from `start` to `close`."""

    def __init__(self, connections: Collection[Connection], loop: asyncio.AbstractEventLoop) -> None:
        """`connections`: those there are now, whenever it is asked."""
        self._connections = connections
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin."""
        self._timer = self._loop.call_later(EVERY_S, self._due)

    def close(self) -> None:
        """Stop."""
        if self._timer is not None:
            self._timer.cancel()

    def _due(self) -> None:
        self.look(self._loop.time())
        self.start()

    def look(self, now: float) -> None:
        """Close what has been idle for `IDLE_S` by now."""
        for connection in list(self._connections):
            if connection.heard or connection.has_work:
                connection.heard = False
                connection.idle_since = now
            elif now - connection.idle_since >= IDLE_S:
                connection.drop()
