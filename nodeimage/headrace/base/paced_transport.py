"""A transport over TLS that encrypts large responses step by step.

The event loop's own transport encrypts all that it is given at once: a response of 50 MiB would block everything else
for a tenth of a second, and be in memory twice, although its client may not read it for a while. This transport
encrypts `STEP` bytes per turn of the loop, and none while the transport below is full.

While bytes wait here, the protocol counts as paused, which is signalled by `hold` and `drained`. The protocol forwards
`pause_writing` and `resume_writing` of the transport below by calling `pause` and `resume`. Small writes are passed on
directly.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

STEP: Final = 1 << 20

Buffer = bytes | bytearray | memoryview


class PacedTransport(asyncio.Transport):
    """Writes to another transport step by step. For the loop thread only."""

    def __init__(self, below: asyncio.Transport, *, hold: Callable[[], None], drained: Callable[[], None]) -> None:
        super().__init__()
        self._below = below
        self._hold = hold
        self._drained = drained
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[memoryview] = deque()
        self._is_full = False
        self._is_step_scheduled = False
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
        """Reports that the transport below is full."""
        self._is_full = True

    def resume(self) -> bool:
        """Reports that the transport below has room again. Returns whether bytes wait here, so that the protocol is
        still paused."""
        self._is_full = False
        self._schedule_step()
        return bool(self._waiting)

    def _schedule_step(self) -> None:
        if self._waiting and not self._is_step_scheduled and not self._is_full:
            self._is_step_scheduled = True
            self._loop.call_soon(self._scheduled_step)

    def _scheduled_step(self) -> None:
        self._is_step_scheduled = False
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
            self._schedule_step()
        elif self._is_closing:
            self._below.close()
        elif not self._is_full:
            self._drained()

    def close(self) -> None:
        """Closes the transport after the waiting bytes were sent."""
        self._is_closing = True
        if not self._waiting:
            self._below.close()

    def abort(self) -> None:
        """Closes the transport at once, and drops the waiting bytes."""
        self.forget()
        self._below.abort()

    def forget(self) -> None:
        """Drops the waiting bytes, without further callbacks, as the connection is gone."""
        self._waiting.clear()
        self._hold = self._drained = _nothing

    def get_write_buffer_size(self) -> int:
        """The bytes that wait here or in the transport below. Bytes that it has already encrypted and passed on are not
        counted, even if they are unsent."""
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
    """The callback after `forget`."""
