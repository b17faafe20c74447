"""The size limit of an answer read from disk, so that answers that slow clients have not read yet fit into the node's
memory."""

from collections.abc import Callable, Collection
from typing import Final

from headrace.kafka.connection import Connection

SHARED_BYTES = 512 << 20
"""Bytes that all clients with a backlog of answers share."""
MIN_BYTES: Final = 1 << 20
COUNTED_S: Final = 0.1
"""Seconds for which a count of clients with a backlog is reused."""


class AnswerBudget:
    """The size limit of answers from disk, for all connections of one node."""

    def __init__(self, connections: Collection[Connection], *, time: Callable[[], float]) -> None:
        """`connections`: a live view of the open connections; `time`: the loop's clock, in seconds."""
        self._connections = connections
        self._time = time
        self._counted_at = -COUNTED_S
        self._bytes = SHARED_BYTES

    def bytes(self) -> int:
        """The most bytes that the next answer may have."""
        now = self._time()
        if now - self._counted_at >= COUNTED_S:
            behind = sum(connection.is_behind for connection in self._connections)
            self._counted_at = now
            self._bytes = max(MIN_BYTES, SHARED_BYTES // (behind + 1))
        return self._bytes
