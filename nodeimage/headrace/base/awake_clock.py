"""A clock that stands while this process does, and timers that go by it: for limits on how long others may be silent.

A process that is stopped, swapped out, or kept from its processor hears nobody. What others sent meanwhile waits in the
kernel, and whoever takes them for silent then ends logins, sessions and groups that did all in time. So

1. seconds in which the loop did not run are not counted: a tick that comes `LATE_S` late or later says how many;
2. a timer that is due lets the loop read what has come before it rings.

Not for what others rely on to be over, such as leases: these end while this process stands still. Until `start`, and
after `close`, it is the loop's own clock.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol

EVERY_S: Final = 0.5
LATE_S: Final = 0.5


class Timer(Protocol):
    """One that has not rung."""

    def cancel(self) -> None:
        """It does not ring. To be told twice, or when it has rung, does no harm."""


class Timers(Protocol):
    """What limits go by: this clock, or a loop."""

    def time(self) -> float:
        """Seconds since some moment."""

    def call_at(self, when: float, callback: Callable[..., object], /, *arguments: Any) -> Timer:
        """Call back at `when` of `time`."""

    def call_later(self, delay: float, callback: Callable[..., object], /, *arguments: Any) -> Timer:
        """Call back after so many seconds."""


class AwakeClock:
    """Of one loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._stood_s = 0.0
        """All that is not counted."""
        self._due: float | None = None
        """When the next tick comes, by the loop's clock; None: there are none."""
        self._tick: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Tick."""
        self._next()

    def close(self) -> None:
        """Tick no longer."""
        if self._tick is not None:
            self._tick.cancel()
        self._due = self._tick = None

    def time(self) -> float:
        """Seconds in which this process ran. Somebody may ask before the tick has come that is late."""
        now = self._loop.time()
        if self._due is not None and now - self._due >= LATE_S:
            self._stood_s += now - self._due
            self._due = now + EVERY_S
        return now - self._stood_s

    def call_at(self, when: float, callback: Callable[..., object], /, *arguments: Any) -> "AwakeTimer":
        """Call back at `when` of `time`."""
        return AwakeTimer(self, self._loop, when, lambda: callback(*arguments))

    def call_later(self, delay: float, callback: Callable[..., object], /, *arguments: Any) -> "AwakeTimer":
        """Call back after so many seconds of `time`."""
        return self.call_at(self.time() + delay, callback, *arguments)

    def _next(self) -> None:
        self._due = self._loop.time() + EVERY_S
        self._tick = self._loop.call_at(self._due, self._ticked)

    def _ticked(self) -> None:
        self.time()
        self._next()


@asynccontextmanager
async def limited(seconds: float, clock: Timers | None) -> AsyncIterator[None]:
    """As asyncio.timeout, by a clock; None: the loop's. Raises TimeoutError."""
    if clock is None:
        async with asyncio.timeout(seconds):
            yield
        return
    async with asyncio.timeout(None) as limit:
        timer = clock.call_later(seconds, limit.reschedule, 0.0)
        try:
            yield
        finally:
            timer.cancel()


class AwakeTimer:
    """One timer."""

    __slots__ = ("_callback", "_clock", "_handle", "_loop", "_when")

    def __init__(
        self, clock: AwakeClock, loop: asyncio.AbstractEventLoop, when: float, callback: Callable[[], object]
    ) -> None:
        self._clock = clock
        self._loop = loop
        self._when = when
        self._callback = callback
        self._handle: asyncio.Handle
        self._arm()

    def cancel(self) -> None:
        """It does not ring."""
        self._handle.cancel()
        self._callback = _nothing  # what it would have called may hold whoever holds this

    def _arm(self) -> None:
        left = self._when - self._clock.time()
        self._handle = self._loop.call_later(max(left, 0.0), self._is_due)

    def _is_due(self) -> None:
        if self._when - self._clock.time() > 0.001:  # this process stood still; uvloop's clock has whole milliseconds
            self._arm()
            return
        # Loops look at timers before sockets, or after them, and at what is to be called soon in between: by the second
        # turn from now they have read.
        self._handle = self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._handle = self._loop.call_soon(self._ring)

    def _ring(self) -> None:
        self._callback()


def _nothing() -> None:
    pass
