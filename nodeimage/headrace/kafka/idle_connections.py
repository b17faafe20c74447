"""Closes client connections that have been idle for long, as Kafka's brokers do; stock clients reconnect.

Seconds in which this process was suspended do not count (base.awake_clock): bytes that arrived meanwhile wait to be
read. All connections are visited in periodic rounds, so no connection needs a timer and a request costs one assignment.
When the number of connections is near its limit, a round also records which have been idle for longest: they make way
for others.
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
    """Closes the idle connections of one node, from `start` to `close`."""

    def __init__(
        self,
        connections: Collection[Connection],
        clock: Timers,
        *,
        idle_s: float = IDLE_S,
        scarce: Callable[[], bool] = lambda: False,
    ) -> None:
        """`connections`: a live view of the open connections. `scarce`: returns whether their number is near its
        limit."""
        self._connections = connections
        self._clock = clock
        self._idle_s = idle_s
        self._every_s = min(EVERY_S, idle_s)
        self._scarce = scarce
        self._longest: deque[Connection] = deque()
        """Connections that were idle through the whole last round, longest first; empty unless connections are
        scarce."""
        self._timer: Timer | None = None

    def start(self) -> None:
        """Start the rounds."""
        self._timer = self._clock.call_later(self._every_s, self._due)

    def close(self) -> None:
        """Stop the rounds."""
        if self._timer is not None:
            self._timer.cancel()

    def _due(self) -> None:
        self.look(self._clock.time())
        self.start()

    def look(self, now: float) -> None:
        """Close the connections that have been idle for too long at `now`, in seconds of the clock."""
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
        """Close the connection that has been idle for longest, for a whole round at least; returns whether there was
        one."""
        while self._longest:
            connection = self._longest.popleft()
            if not (connection.closed or connection.heard or connection.has_work):
                connection.drop()
                return True
        return False
