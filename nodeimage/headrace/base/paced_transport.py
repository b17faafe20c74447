"""A transport over TLS that encrypts large answers step by step.

A loop's own encrypts all that it is given at once: an answer of 50 MiB would hold up everybody else for a tenth of a
second, and be in memory twice, although its client may not read it for a while. Here `STEP` bytes are encrypted in one
turn of the loop, and none while the transport below is full.

While bytes wait here, its protocol counts as paused: `hold` and `drained` say so. The protocol passes `pause_writing`
and `resume_writing` of the transport below on, by `pause` and `resume`. What is small goes straight through.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

STEP: Final = 1 << 20

Buffer = bytes | bytearray | memoryview


class PacedTransport(asyncio.Transport):
    """Over another transport. Of the loop thread."""

    def __init__(self, below: asyncio.Transport, *, hold: Callable[[], None], drained: Callable[[], None]) -> None:
        super().__init__()
        self._below = below
        self._hold = hold
        self._drained = drained
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[memoryview] = deque()
        self._is_full = False
        self._step_comes = False
        self._is_closing = False

    def write(self, data: Buffer) -> None:
        """See Transport."""
        self.writelines((data,))

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        """See Transport."""
        pieces = list(list_of_data)
        if self._is_closing:
            return
        if self._waiting:
            self._waiting.extend(map(memoryview, pieces))
        elif sum(map(len, pieces)) <= STEP:
            self._below.writelines(pieces)
        else:
            self._waiting.extend(map(memoryview, pieces))
            self._hold()
            self._step()

    def pause(self) -> None:
        """The transport below is full."""
        self._is_full = True

    def resume(self) -> bool:
        """The transport below has room again; whether bytes wait here, so that the protocol goes on to be paused."""
        self._is_full = False
        self._step_soon()
        return bool(self._waiting)

    def _step_soon(self) -> None:
        if self._waiting and not self._step_comes and not self._is_full:
            self._step_comes = True
            self._loop.call_soon(self._come)

    def _come(self) -> None:
        self._step_comes = False
        if self._waiting and not self._is_full:
            self._step()

    def _step(self) -> None:
        pieces: list[memoryview] = []
        room = STEP
        while self._waiting and room:
            piece = self._waiting.popleft()
            if len(piece) > room:
                self._waiting.appendleft(piece[room:])
                piece = piece[:room]
            pieces.append(piece)
            room -= len(piece)
        self._below.writelines(pieces)
        if self._waiting:
            self._step_soon()
        elif self._is_closing:
            self._below.close()
        elif not self._is_full:
            self._drained()

    def close(self) -> None:
        """Close behind what waits."""
        self._is_closing = True
        if not self._waiting:
            self._below.close()

    def abort(self) -> None:
        """Close at once."""
        self.forget()
        self._below.abort()

    def forget(self) -> None:
        """The connection is gone: what waits never goes out, and nobody is told of it."""
        self._waiting.clear()
        self._hold = self._drained = _nothing

    def get_write_buffer_size(self) -> int:
        """Bytes that wait here or in the transport below; what that has encrypted and handed on may be unsent still."""
        return sum(map(len, self._waiting)) + self._below.get_write_buffer_size()

    def is_closing(self) -> bool:
        """See Transport."""
        return self._is_closing or self._below.is_closing()

    def pause_reading(self) -> None:
        """See Transport."""
        self._below.pause_reading()

    def resume_reading(self) -> None:
        """See Transport."""
        self._below.resume_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """See Transport."""
        return self._below.get_extra_info(name, default)


def _nothing() -> None:
    """Said to nobody."""
