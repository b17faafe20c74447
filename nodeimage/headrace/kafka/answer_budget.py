"""How large an answer from disk may be, so that what slow clients have not read yet fits into the node's memory."""

from collections.abc import Callable, Collection
from typing import Final

from headrace.kafka.connection import Connection

SHARED_BYTES = 512 << 20
"""Shared by the clients that have much to read, or are about to."""
LEAST_BYTES: Final = 1 << 20
COUNTED_S: Final = 0.1
"""For how long a count of them holds."""


class AnswerBudget:
    """One node's."""

    def __init__(self, connections: Collection[Connection], *, time: Callable[[], float]) -> None:
        """`connections`: those there are now, whenever it is asked; `time`: the loop's."""
        self._connections = connections
        self._time = time
        self._counted_at = -COUNTED_S
        self._bytes = SHARED_BYTES

    def bytes(self) -> int:
        """Of the next answer, at most."""
        now = self._time()
        if now - self._counted_at >= COUNTED_S:
            behind = sum(connection.is_behind for connection in self._connections)
            self._counted_at = now
            self._bytes = max(LEAST_BYTES, SHARED_BYTES // (behind + 1))
        return self._bytes
