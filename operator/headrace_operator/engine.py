"""What runs the reconcilers: level-triggered, one at a time for a resource, with bounded workers.

An event says only that something may be other than it should be: it leaves the resource, as it is now, in the cache and
its key in the queue. A worker takes the key and calls the kind's `reconcile` with what the cache has then. Whatever
goes wrong is tried again, later each time; a reconcile may also ask to be called again after a while; and a sweep puts
everything into the queue now and then, should an event have been missed.

Knows nothing of what the kinds mean.
"""

import asyncio
import heapq
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import structlog

log = structlog.get_logger()

WORKERS: Final = 8
SWEEP_S: Final = 300.0
BACKOFF_S: Final = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
STALE_S: Final = 120.0
"""A key that has waited for a worker for so long makes the operator unhealthy."""
SLOW_S: Final = 120.0
"""So does a reconcile that takes so long."""

Body = Mapping[str, Any]


class Key(NamedTuple):
    """A resource."""

    kind: str
    namespace: str
    name: str


def key_of(body: Body) -> Key:
    """Of a resource as the API server gives it."""
    meta = body["metadata"]
    return Key(str(body["kind"]), str(meta.get("namespace", "")), str(meta["name"]))


Reconcile = Callable[[Key, Body | None], Awaitable[float | None]]
"""Makes things as a resource asks for; None: it is gone. Returns after how many seconds to be called again, if at all."""


@dataclass(slots=True)
class _Work:
    since: float
    running_since: float | None = None
    again: bool = False


@dataclass(slots=True)
class Cache:
    """The resources of all kinds, as last seen."""

    _by_kind: dict[str, dict[tuple[str, str], Body]] = field(default_factory=dict)

    def take(self, body: Body, *, deleted: bool) -> bool:
        """Whether that was news: not the state, or an older one than, that is here."""
        key = key_of(body)
        of_kind = self._by_kind.setdefault(key.kind, {})
        at = (key.namespace, key.name)
        known = of_kind.get(at)
        if deleted:
            return of_kind.pop(at, None) is not None
        if known is not None and known["metadata"]["resourceVersion"] == body["metadata"]["resourceVersion"]:
            return False
        of_kind[at] = body
        return True

    def get(self, key: Key) -> Body | None:
        """One resource."""
        return self._by_kind.get(key.kind, {}).get((key.namespace, key.name))

    def all(self, kind: str) -> Iterable[Body]:
        """All of a kind."""
        return list(self._by_kind.get(kind, {}).values())


class Engine:
    """The queue and its workers."""

    def __init__(self, reconcilers: Mapping[str, Reconcile], *, cache: Cache, sweep_s: float = SWEEP_S) -> None:
        self.cache = cache
        self._reconcilers = reconcilers
        self._sweep_s = sweep_s
        self._due: list[tuple[float, int, Key]] = []
        self._scheduled: dict[Key, float] = {}
        self._work: dict[Key, _Work] = {}
        self._waiting: asyncio.Queue[Key] = asyncio.Queue()
        self._turn = 0
        self._attempts: dict[Key, int] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._sooner = asyncio.Event()
        self.reconciled = 0
        self.failed = 0

    def start(self) -> None:
        """Run the workers, the clock and the sweep."""
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._worker(), name=f"worker-{number}") for number in range(WORKERS)]
        self._tasks += [loop.create_task(self._clock(), name="clock"), loop.create_task(self._sweep(), name="sweep")]

    async def close(self) -> None:
        """End them."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def seen(self, body: Body, *, deleted: bool = False) -> None:
        """A resource of ours is so now."""
        if self.cache.take(body, deleted=deleted):
            self.enqueue(key_of(body))

    def enqueue(self, key: Key) -> None:
        """Look at a resource soon."""
        if key.kind not in self._reconcilers:
            return
        work = self._work.get(key)
        if work is None:
            self._work[key] = _Work(since=time.monotonic())
            self._waiting.put_nowait(key)
        elif work.running_since is not None:
            work.again = True

    def later(self, key: Key, delay_s: float) -> None:
        """Look at it after a while, or sooner if something else asks for that."""
        at = time.monotonic() + delay_s
        if at < self._scheduled.get(key, float("inf")):
            self._scheduled[key] = at
            self._turn += 1
            heapq.heappush(self._due, (at, self._turn, key))
            self._sooner.set()

    def stale(self) -> str:
        """Why this operator is deaf, or stuck; "": it is neither."""
        now = time.monotonic()
        for key, work in self._work.items():
            if work.running_since is not None and now - work.running_since > SLOW_S:
                return f"{key.kind} {key.namespace}/{key.name} has been reconciled for {now - work.running_since:.0f} s"
            if work.running_since is None and now - work.since > STALE_S:
                return f"{key.kind} {key.namespace}/{key.name} has waited for {now - work.since:.0f} s"
        dead = [task.get_name() for task in self._tasks if task.done()]
        return f"{', '.join(dead)} ended" if dead else ""

    # --- inside

    async def _worker(self) -> None:
        while True:
            key = await self._waiting.get()
            work = self._work[key]
            work.running_since = time.monotonic()
            work.again = False
            delay = await self._one(key)
            del self._work[key]
            if work.again:
                self._work[key] = _Work(since=time.monotonic())
                self._waiting.put_nowait(key)
            elif delay is not None:
                self.later(key, delay)

    async def _one(self, key: Key) -> float | None:
        attempts = self._attempts.get(key, 0)
        try:
            delay = await self._reconcilers[key.kind](key, self.cache.get(key))
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self.failed += 1
            self._attempts[key] = attempts + 1
            delay = BACKOFF_S[min(attempts, len(BACKOFF_S) - 1)]
            log.warning("a reconcile failed", kind=key.kind, of=f"{key.namespace}/{key.name}", error=repr(error), again_s=delay)
            return delay
        self.reconciled += 1
        self._attempts.pop(key, None)
        return delay

    async def _clock(self) -> None:
        while True:
            self._sooner.clear()
            now = time.monotonic()
            while self._due and self._due[0][0] <= now:
                at, _, key = heapq.heappop(self._due)
                if self._scheduled.get(key) == at:
                    del self._scheduled[key]
                    self.enqueue(key)
            wait = max(0.0, self._due[0][0] - now) if self._due else self._sweep_s
            try:
                async with asyncio.timeout(wait):
                    await self._sooner.wait()
            except TimeoutError:
                pass

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(self._sweep_s)
            for kind in self._reconcilers:
                for body in self.cache.all(kind):
                    self.enqueue(key_of(body))
