"""The newest catalog commands of a replica's log, kept in memory so that applying them needs no disk read.

The tail always holds the newest commands without a gap, committed or not; the caller knows up to where they are
committed. Used only on the loop thread.
"""

from collections import deque

from headrace.base.ids import Position

MAX_BYTES = 8 * 1024 * 1024
"""Size in bytes of the payloads kept; older commands are dropped beyond it, but the newest one always stays."""


class CommandTail:
    """The newest commands, each with the position after its frame."""

    def __init__(self, floor: Position) -> None:
        self._floor = floor
        self._commands: deque[tuple[Position, bytes]] = deque()
        self._bytes = 0

    def add(self, position: Position, payload: bytes) -> None:
        """Append the newest command; `position` is the position after its frame."""
        self._commands.append((position, payload))
        self._bytes += len(payload)
        while self._bytes > MAX_BYTES and len(self._commands) > 1:
            self._floor, dropped = self._commands.popleft()
            self._bytes -= len(dropped)

    def read(self, after: Position, until: Position) -> list[tuple[Position, bytes]] | None:
        """Return the commands after `after`, up to and including `until`; None if some of them are no longer
        in memory."""
        if after < self._floor:
            return None
        found: list[tuple[Position, bytes]] = []
        for each in reversed(self._commands):
            if each[0] <= after:
                break
            if each[0] <= until:
                found.append(each)
        found.reverse()
        return found

    def restart(self, floor: Position) -> None:
        """Forget all commands: the log was cut to `floor`, or starts again there."""
        self._commands.clear()
        self._bytes = 0
        self._floor = floor
