"""A clock that stops while this process does not run, and timers based on it: for limits on the silence of others.

A process that is stopped, swapped out, or starved of processor time receives nothing. What others sent meanwhile waits
in the kernel, so a limit by the wall clock would end logins, sessions and groups that did everything in time. Therefore

1. seconds in which the loop did not run are not counted: a tick that is late by `LATE_S` or more shows how many;
2. before a timer that is due calls back, the loop reads what has arrived.

Not for limits on which others rely, such as leases: these expire even while this process does not run. Before `start`
and after `close`, the clock advances exactly as the loop's own clock does.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol

EVERY_S: Final = 0.5
LATE_S: Final = 0.5


class Timer(Protocol):
    """A timer that can be cancelled."""

    def cancel(self) -> None:
        """Cancels the callback. Idempotent, and without effect after the callback."""


class Timers(Protocol):
    """A source of time for limits: an `AwakeClock`, or an event loop."""

    def time(self) -> float:
        """Seconds since an arbitrary moment."""

    def call_at(self, when: float, callback: Callable[..., object], /, *arguments: Any) -> Timer:
        """Calls `callback` when `time` reaches `when`."""

    def call_later(self, delay: float, callback: Callable[..., object], /, *arguments: Any) -> Timer:
        """Calls `callback` after `delay` seconds."""


class AwakeClock:
    """The clock of one event loop, which counts only time in which the loop ran."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._skipped_s = 0.0
        """The seconds in which the loop did not run."""
        self._due: float | None = None
        """When the next tick is due, by the loop's clock; None: the clock is not started."""
        self._tick: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Starts to watch for time in which the loop does not run."""
        self._next()

    def close(self) -> None:
        """Stops ticking."""
        if self._tick is not None:
            self._tick.cancel()
        self._due = self._tick = None

    def time(self) -> float:
        """Seconds in which this process ran. Correct even before a late tick has been handled."""
        now = self._loop.time()
        if self._due is not None and now - self._due >= LATE_S:
            self._skipped_s += now - self._due
            self._due = now + EVERY_S
        return now - self._skipped_s

    def call_at(self, when: float, callback: Callable[..., object], /, *arguments: Any) -> "AwakeTimer":
        """Calls `callback` when `time` reaches `when`."""
        return AwakeTimer(self, self._loop, when, lambda: callback(*arguments))

    def call_later(self, delay: float, callback: Callable[..., object], /, *arguments: Any) -> "AwakeTimer":
        """Calls `callback` when `time` has advanced by `delay` seconds."""
        return self.call_at(self.time() + delay, callback, *arguments)

    def _next(self) -> None:
        self._due = self._loop.time() + EVERY_S
        self._tick = self._loop.call_at(self._due, self._ticked)

    def _ticked(self) -> None:
        self.time()
        self._next()


@asynccontextmanager
async def limited(seconds: float, clock: Timers | None) -> AsyncIterator[None]:
    """As asyncio.timeout, but measured by `clock`; None: by the loop's clock. Raises TimeoutError."""
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
    """A timer of an `AwakeClock`."""

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
        """Cancels the callback."""
        self._handle.cancel()
        self._callback = _nothing  # the callback may reference the owner of this timer

    def _arm(self) -> None:
        left = self._when - self._clock.time()
        self._handle = self._loop.call_later(max(left, 0.0), self._is_due)

    def _is_due(self) -> None:
        if self._when - self._clock.time() > 0.001:  # the process was stopped; uvloop's clock has whole milliseconds
            self._arm()
            return
        # Some loops handle timers before sockets, some after, and callbacks of `call_soon` in between: by the second
        # turn from now the loop has read from its sockets.
        self._handle = self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._handle = self._loop.call_soon(self._ring)

    def _ring(self) -> None:
        self._callback()


def _nothing() -> None:
    pass
