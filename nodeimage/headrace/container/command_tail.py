"""The newest catalog commands of a replica's log, in memory, so that applying them needs no read from the disk.

What it holds is always the newest commands without a gap, committed or not; who asks says what is committed. The loop
thread's own.
"""

from collections import deque

from headrace.base.ids import Position

MOST_BYTES = 8 * 1024 * 1024


class CommandTail:
    """Commands by the position after their frame."""

    def __init__(self, floor: Position) -> None:
        self._floor = floor
        self._commands: deque[tuple[Position, bytes]] = deque()
        self._bytes = 0

    def add(self, position: Position, payload: bytes) -> None:
        """The newest command."""
        self._commands.append((position, payload))
        self._bytes += len(payload)
        while self._bytes > MOST_BYTES and len(self._commands) > 1:
            self._floor, dropped = self._commands.popleft()
            self._bytes -= len(dropped)

    def read(self, after: Position, until: Position) -> list[tuple[Position, bytes]] | None:
        """The commands behind `after`, up to `until`; None: some of them are not in memory."""
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
        """The log was cut, or begins anew, at `floor`."""
        self._commands.clear()
        self._bytes = 0
        self._floor = floor
