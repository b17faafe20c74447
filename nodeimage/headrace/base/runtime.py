"""The environment of all parts of a node: event loop, thread pool, the cluster's time, deadlines, background tasks."""

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
    """The runtime of one node. Created on the node's event loop, and closed with it."""

    def __init__(self, *, executor: Executor, clock: Clock, awake: AwakeClock | None = None) -> None:
        """`executor`: for calls that block. `awake`: the clock for limits on others; None: a new `AwakeClock`."""
        self.loop = asyncio.get_running_loop()
        self.executor = executor
        self.clock = clock
        self.awake = AwakeClock(self.loop) if awake is None else awake
        self.deadlines = Deadlines(self.loop)
        self._tasks: set[asyncio.Task[Any]] = set()

    def now(self) -> int:
        """The cluster's time in milliseconds since 1970; this node's own time if the cluster's is unknown."""
        return self.clock.now()

    def monotonic_ms(self) -> int:
        """The time of the loop's clock, in milliseconds."""
        return int(self.loop.time() * 1000)

    def awake_ms(self) -> int:
        """The time in which this process ran (awake_clock.py), in milliseconds."""
        return int(self.awake.time() * 1000)

    def call_at(self, deadline_ms: int, callback: Callable[[], None]) -> AwakeTimer:
        """Calls `callback` when `awake_ms` reaches `deadline_ms`."""
        return self.awake.call_at(deadline_ms / 1000, callback)

    def spawn(self, coroutine: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Starts a task, which `end_tasks` cancels and awaits. Its exceptions are logged, except errors that are sent
        to clients."""
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
        """Cancels all tasks, and waits until they have ended."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def close(self) -> None:
        """Drops all deadlines."""
        self.deadlines.close()
