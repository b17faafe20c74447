"""Closes client connections on which nothing has happened for long, as Kafka's brokers do; stock clients reconnect.

Seconds in which this process stood still do not count (base.awake_clock): what came meanwhile waits to be read. A round
over all connections now and then: no timer belongs to a connection, and a request costs one assignment. Where
there are nearly as many as there may be, a round also says which have been idle for longest: they make way for others.
"""

from collections import deque
from collections.abc import Callable, Collection
from operator import attrgetter
from typing import Final

from headrace.base.awake_clock import Timer, Timers
from headrace.kafka.connection import Connection

IDLE_S: Final = 600.0
"""Kafka's `connections.max.idle.ms`."""
EVERY_S: Final = 30.0


class IdleConnections:
    """Of one node, from `start` to `close`."""

    def __init__(
        self,
        connections: Collection[Connection],
        clock: Timers,
        *,
        idle_s: float = IDLE_S,
        scarce: Callable[[], bool] = lambda: False,
    ) -> None:
        """`connections`: those there are now, whenever it is asked. `scarce`: there are nearly as many as may be."""
        self._connections = connections
        self._clock = clock
        self._idle_s = idle_s
        self._every_s = min(EVERY_S, idle_s)
        self._scarce = scarce
        self._longest: deque[Connection] = deque()
        """Those that were idle through a whole round, while they are scarce; the longest first."""
        self._timer: Timer | None = None

    def start(self) -> None:
        """Begin."""
        self._timer = self._clock.call_later(self._every_s, self._due)

    def close(self) -> None:
        """Stop."""
        if self._timer is not None:
            self._timer.cancel()

    def _due(self) -> None:
        self.look(self._clock.time())
        self.start()

    def look(self, now: float) -> None:
        """Close what has been idle for so long by now."""
        idle: list[Connection] = []
        for connection in list(self._connections):
            if connection.heard or connection.has_work:
                connection.heard = False
                connection.idle_since = now
            elif now - connection.idle_since >= self._idle_s:
                connection.drop()
            else:
                idle.append(connection)
        self._longest = deque(sorted(idle, key=attrgetter("idle_since")) if self._scarce() else ())

    def drop_longest(self) -> bool:
        """Close the one that has been idle for longest, a whole round at least; whether there was one."""
        while self._longest:
            connection = self._longest.popleft()
            if not (connection.closed or connection.heard or connection.has_work):
                connection.drop()
                return True
        return False
