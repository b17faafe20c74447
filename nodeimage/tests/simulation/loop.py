"""An event loop without time, sockets or threads: virtual time jumps to the next timer, and the seed orders the rest.

All nodes share the loop. The process to which a callback belongs is in its context (`PROCESS`), which tasks and futures
inherit; so a process can be killed (its callbacks are dropped), frozen (they queue until it wakes) and given a separate
clock, while the code in it is the node's own and unaware of this.
"""

import asyncio
import random
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from heapq import heappop, heappush
from itertools import chain, islice
from typing import Any, Protocol

from headrace.base.errors import HeadraceError

TICK_S = 1e-9
"""The shortest time that a timer waits, if it waits, in seconds."""
PROCESS: ContextVar["Process | None"] = ContextVar("PROCESS", default=None)


class Machine(Protocol):
    """The machine of a process: how long its threads take, and which faults they meet."""

    def thread_s(self) -> float: ...

    def before_thread(self, function: Callable[..., Any]) -> None: ...


class Process:
    """The unit that a kill ends: one run of a node. `offset` and `rate` define its clock."""

    def __init__(self, name: str, node: Any = None, *, offset: float = 0.0, rate: float = 1.0) -> None:
        self.name = name
        self.node = node
        """The process's `Machine`."""
        self.offset = offset
        self.rate = rate
        self.dead = False
        self.frozen = False
        self.waiting: list[Handle] = []
        """Callbacks that came due while it was frozen."""
        self.context: Context = copy_context()
        self.context.run(PROCESS.set, self)


class Handle:
    """A scheduled callback; also stands for asyncio's TimerHandle, apart from its `when`."""

    __slots__ = ("args", "callback", "context", "process")

    def __init__(
        self, callback: Callable[..., Any], args: tuple[Any, ...], context: Context, process: Process | None
    ) -> None:
        self.callback: Callable[..., Any] | None = callback
        """None: cancelled."""
        self.args = args
        self.context = context
        self.process = process

    def cancel(self) -> None:
        self.callback = None
        self.args = ()

    def cancelled(self) -> bool:
        return self.callback is None


class Task(asyncio.Task[Any]):
    """A task whose position in a set does not depend on its address in memory."""

    serial = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        Task.serial += 1
        self._serial = Task.serial
        context = kwargs.get("context")
        self._process = PROCESS.get() if context is None else context.get(PROCESS)
        super().__init__(*args, **kwargs)

    def __hash__(self) -> int:
        return self._serial

    @property
    def failed_unheard(self) -> bool:
        """Whether the task ended with an error that nobody has retrieved. A dead process may have been about to
        retrieve it.
        """
        if not self.done() or self.cancelled() or not self._log_traceback:
            return False
        ended = self._process is not None and self._process.dead
        return not (ended and isinstance(self.exception(), HeadraceError))


class Event(asyncio.Event):
    """An event whose position in a set does not depend on its address in memory."""

    serial = 0

    def __init__(self) -> None:
        Event.serial += 1
        self._serial = Event.serial
        super().__init__()

    def __hash__(self) -> int:
        return self._serial

    def __eq__(self, other: object) -> bool:
        return self is other


def fail(future: asyncio.Future[Any], error: BaseException) -> None:
    """Fail the future unless it is already done, since its waiter has then moved on or got another result."""
    if not future.done():
        future.set_exception(error)


async def _nowhere(_factory: Callable[[], Any], host: str, port: int) -> Any:
    raise ConnectionRefusedError(f"nobody listens at {host}:{port}")


class SimulatedLoop(asyncio.AbstractEventLoop):
    """Runs until what it was asked to run is done. `steps` counts callbacks."""

    def __init__(self, chance: random.Random, *, most_steps: int) -> None:
        self.now = 0.0
        self.steps = 0
        self.stopped = False
        """Whether the run has ended early, and should not continue."""
        self.chance = chance
        self._uncaught: list[str] = []
        self.tasks: list[Task] = []
        """Keeps all tasks alive, so that none is garbage-collected at a moment that no seed determines."""
        self._is_over = False
        self.dial: Callable[[Callable[[], Any], str, int], Coroutine[Any, Any, Any]] = _nowhere
        """Opens connections that are byte streams, in runs that have them."""
        self._most_steps = most_steps
        self._ready: deque[Handle] = deque()
        self._timers: list[tuple[float, int, Handle]] = []
        self._serial = 0
        self._current: Process | None = None

    # --- running

    def run_until_complete(self, work: Any) -> Any:
        events._set_running_loop(self)
        try:
            task = self.create_task(work)
            while not task.done() and not self.stopped:
                self._turn()
            return None if self.stopped else task.result()
        finally:
            events._set_running_loop(None)
            self._current = None

    def _turn(self) -> None:
        """Advance to the next timer and run its callbacks. Everything that happens passes through here, so it is
        written for speed.
        """
        ready, timers = self._ready, self._timers
        next_ready, most_steps = ready.popleft, self._most_steps
        while not ready:
            if not timers:
                raise AssertionError("nothing will ever happen again")
            when, _, handle = heappop(timers)
            if handle.callback is not None:
                self.now = max(self.now, when)
                ready.append(handle)
        while ready and not self.stopped:
            handle = next_ready()
            callback = handle.callback
            if callback is None:
                continue
            process = handle.process
            if process is not None:
                if process.dead:
                    continue
                if process.frozen:
                    process.waiting.append(handle)
                    continue
            self._current = process
            self.steps += 1
            if self.steps > most_steps:
                raise AssertionError(f"{self.steps} steps by {self.now:.3f} s: this seems never to end")
            try:
                handle.context.run(callback, *handle.args)
            except Exception as error:
                self._uncaught.append(f"{process.name if process else 'world'}: {error!r} in {callback}")
        self._current = None

    def with_uncaught(self, problem: str) -> str:
        """A problem, and the first uncaught error: in a callback, or in a task that nobody awaited."""
        failed = (task for task in self.tasks if task.failed_unheard)
        lost = (f"nobody waited for {task.get_coro()}: {task.exception()!r}" for task in failed)
        return "\n".join(filter(None, [problem, *islice(chain(self._uncaught, lost), 1)]))

    def end(self) -> None:
        """Release everything, since leftover objects hold files open."""
        self._ready.clear()
        self._timers.clear()
        self.tasks.clear()
        self._is_over = True

    def wake(self, process: Process) -> None:
        """A frozen process continues: callbacks that came due meanwhile run now, in order."""
        process.frozen = False
        self._ready.extend(process.waiting)
        process.waiting.clear()

    # --- what asyncio asks for

    def time(self) -> float:
        process = self._current
        return self.now if process is None else process.offset + self.now * process.rate

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> Any:
        if context is None:
            process = self._current
            context = copy_context()
        else:
            process = context.get(PROCESS)
        handle = Handle(callback, args, context, process)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> Any:
        if context is None:
            process = self._current
            context = copy_context()
        else:
            process = context.get(PROCESS)
        handle = Handle(callback, args, context, process)
        self._serial += 1
        if 0 < delay < TICK_S:  # a process's clock would stand still, and its waiters would loop
            delay = TICK_S
        when = self.now + (delay if process is None else delay / process.rate)
        heappush(self._timers, (when, self._serial, handle))
        return handle

    def call_at(self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> Any:
        process = self._current if context is None else context.get(PROCESS)
        now = self.now if process is None else process.offset + self.now * process.rate
        return self.call_later(when - now, callback, *args, context=context)

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None) -> Any:
        task = Task(coro, loop=self, name=name, context=context)
        self.tasks.append(task)
        return task

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        """Run the function at one moment, and return its result later; neither keeps the order of the calls."""
        future = self.create_future()
        process = PROCESS.get()
        if self._is_over:
            return future  # collected objects close the files that they have open
        assert process is not None, "threads belong to a process"
        node = process.node

        def run() -> None:
            if future.cancelled() and self.chance.random() < 0.5:
                return  # no thread had begun it yet
            try:
                node.before_thread(func)
                result, error = func(*args), None
            except BaseException as failure:
                if getattr(executor, "_shutdown", False):
                    future.cancel()  # a real executor finishes all of its work at shutdown, before files are closed
                    return
                result, error = None, failure
            self.call_later(self.chance.random() * 0.0005, done, result, error)

        def done(result: Any, error: BaseException | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        self.call_later(node.thread_s(), run)
        return future

    async def create_connection(self, factory: Callable[[], Any], host: str, port: int, **_options: Any) -> Any:
        """Connect to a node of another cluster; see `dial`."""
        return await self.dial(factory, host, port)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self._uncaught.append(f"{context.get('message')}: {context.get('exception')!r}")

    def spawn(self, work: Coroutine[Any, Any, Any], process: Process | None = None) -> Task:
        """Start a task of a process."""
        context = process.context.copy() if process is not None else None
        task: Task = self.create_task(work, context=context)
        return task
