"""What every part of a node runs on: the loop, a pool of threads, the cluster's time, deadlines, background tasks."""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, Protocol, TypeVar

import structlog

from headrace.base.awake_clock import AwakeClock, AwakeTimer
from headrace.base.deadlines import Deadlines
from headrace.base.errors import KafkaError, StorageFull

log = structlog.get_logger()

T = TypeVar("T")


class Clock(Protocol):
    """The cluster's time."""

    def now(self) -> int:
        """Milliseconds since 1970."""


class Runtime:
    """Of one node, made on its loop and closed with it."""

    def __init__(self, *, executor: Executor, clock: Clock, awake: AwakeClock | None = None) -> None:
        """`executor`: for calls that block. `awake`: for limits on what others do; None: it is the loop's own time."""
        self.loop = asyncio.get_running_loop()
        self.executor = executor
        self.clock = clock
        self.awake = AwakeClock(self.loop) if awake is None else awake
        self.deadlines = Deadlines(self.loop)
        self._tasks: set[asyncio.Task[Any]] = set()

    def now(self) -> int:
        """The cluster's time in milliseconds since 1970; this node's own where it does not know that."""
        return self.clock.now()

    def monotonic_ms(self) -> int:
        """The loop's clock, in milliseconds."""
        return int(self.loop.time() * 1000)

    def awake_ms(self) -> int:
        """The time in which this process ran, in milliseconds."""
        return int(self.awake.time() * 1000)

    def call_at(self, deadline_ms: int, callback: Callable[[], None]) -> AwakeTimer:
        """Call `callback` at `deadline_ms` of `awake_ms`."""
        return self.awake.call_at(deadline_ms / 1000, callback)

    def spawn(self, coroutine: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """A task that is cancelled, and waited for, when the runtime closes. What it fails with is logged, except for
        errors that are told to clients."""
        task = self.loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if not isinstance(error, KafkaError | StorageFull):
            log.error("task failed", error=repr(error), exc_info=error)

    async def end_tasks(self) -> None:
        """Cancel all tasks, and wait until they have ended."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def close(self) -> None:
        """End the deadlines."""
        self.deadlines.close()
