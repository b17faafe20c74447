"""What runs the reconcilers: level-triggered, one at a time for a resource, with bounded workers.

An event says only that something may be other than it should be: it leaves the resource, as it is now, in the cache and
its key in the queue. A worker takes the key and calls the kind's `reconcile` with what the cache has then. Whatever
goes wrong is tried again, later each time; a reconcile may also ask to be called again after a while; and a sweep lists
everything now and then, and queues it: so an event that was missed is made up for, and watches that miss events are
found out. Everything is listed before the first reconcile too: by a cache that is half full, a cluster that has not
been heard of yet would be one that is gone.

1. Of one resource, one reconcile runs at a time, and one begins after every change of what it asks for.
2. A change of status alone begins none: what is written there is ours.
3. The queue holds each resource once; there are never more workers than WORKERS, and URGENT_WORKERS for urgent kinds,
   which wait for none of the others: these may all hang on a cluster that does not answer, which somebody has to say.
4. A resource that fails waits before it is tried again, however many events there are about it.

Knows nothing of what the kinds mean.
"""

import asyncio
import heapq
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from headrace_operator.cache import Body, Cache, Key, News, key_of

__all__ = ["Body", "Cache", "Key", "News", "key_of"]

log = structlog.get_logger()

WORKERS: Final = 8
URGENT_WORKERS: Final = 4
SWEEP_S: Final = 300.0
BACKOFF_S: Final = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
STALE_S: Final = 120.0
"""A key that has waited for a worker for so long makes the operator unhealthy."""
SLOW_S: Final = 120.0
"""So does a reconcile that takes so long."""
SPREAD: Final = 0.2
"""Of back-offs, so that what failed together is not tried again together."""
DEAF_SWEEPS: Final = 3
"""Sweeps that had to make up for missed events, and none between them that found all as told: watches are deaf."""
SWEEPS_LATE: Final = 4
FIRST_LOOK_S: Final = 60.0
"""So long the first reconcile waits until everything has been listed; then it goes by what was heard."""
FIRST_LOOK_AGAIN_S: Final = 1.0

Reconcile = Callable[[Key, Body | None], Awaitable[float | None]]
"""Makes things as a resource asks for; None: it is gone. After how many seconds to be called again, if at all."""
Listing = Callable[[str], AsyncIterator[Body]]
"""All resources of a kind, from the API server. Raises Refused at its end."""
Referrers = Callable[[Key, Body], Iterable[Key]]
"""The resources that a change of this one concerns."""
Done = Callable[[str, float, Exception | None], None]
"""Hears of each reconcile that has ended: its kind, its seconds, and why it failed."""


class Refused(Exception):
    """Some namespaces may not be looked at (any more). What is known of them stays; the others have been listed."""

    def __init__(self, namespaces: Collection[str]) -> None:
        super().__init__(f"no right to look at {', '.join(sorted(namespaces))}")
        self.namespaces = namespaces


@dataclass(slots=True)
class _Work:
    since: float
    running_since: float | None = None
    again: bool = False


class Engine:
    """The queue and its workers."""

    def __init__(
        self,
        reconcilers: Mapping[str, Reconcile],
        *,
        cache: Cache,
        sweep_s: float = SWEEP_S,
        longest_backoff_s: float = BACKOFF_S[-1],
        listing: Listing | None = None,
        referrers: Referrers | None = None,
        others: Sequence[str] = (),
        urgent: Collection[str] = (),
        done: Done = lambda *_: None,
    ) -> None:
        """`listing`: for the sweep; None: it queues what the cache has. `referrers`: whom a change concerns too.

        `others`: kinds that are listed before the first reconcile, and not reconciled. `urgent`: kinds with workers of
        their own.
        """
        self.cache = cache
        cache.on_learnt(self._changed)
        self._reconcilers = reconcilers
        self._sweep_s = sweep_s
        self._longest_backoff_s = longest_backoff_s
        self._listing = listing
        self._referrers = referrers
        self._others = others
        self._done = done
        self._due: list[tuple[float, int, Key]] = []
        self._scheduled: dict[Key, float] = {}
        self._work: dict[Key, _Work] = {}
        self._urgent_kinds = urgent
        self._waiting: asyncio.Queue[Key] = asyncio.Queue()
        self._urgent: asyncio.Queue[Key] = asyncio.Queue()
        self._turn = 0
        self._attempts: dict[Key, int] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._looked = asyncio.Event()
        """Set once everything has been listed."""
        self._sooner = asyncio.Event()
        self._swept_at = time.monotonic()
        self._missed_in_a_row = 0
        self._sweeps = 0
        self._unheard: dict[Key, int] = {}
        """What a sweep found (its number), and no event has told of since."""
        self.reconciled = 0
        self.failed = 0
        self.missed = 0
        """Changes that a sweep found, and no event had told of."""
        self.seconds = 0.0
        """Spent in reconciles."""

    @property
    def queued(self) -> int:
        """Resources that wait for a worker, or have one."""
        return len(self._work)

    @property
    def has_looked(self) -> bool:
        """Whether everything has been listed, so that reconciles take place."""
        return self._looked.is_set()

    @property
    def kinds(self) -> Sequence[str]:
        """Those that it reconciles."""
        return list(self._reconcilers)

    def start(self) -> None:
        """Run the workers, the clock and the sweep."""
        loop = asyncio.get_running_loop()
        queues = [self._waiting] * WORKERS + [self._urgent] * (URGENT_WORKERS if self._urgent_kinds else 0)
        self._tasks = [
            loop.create_task(self._worker(queue), name=f"worker-{number}") for number, queue in enumerate(queues)
        ]
        self._tasks += [loop.create_task(self._clock(), name="clock"), loop.create_task(self._sweep(), name="sweep")]

    async def close(self) -> None:
        """End them."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def seen(self, body: Body, *, deleted: bool = False) -> None:
        """A resource of ours is so now."""
        self._unheard.pop(key_of(body), None)
        if self.cache.take(body, deleted=deleted) is News.CHANGED:
            self._changed(key_of(body), body)

    def enqueue(self, key: Key) -> None:
        """Look at a resource soon; at one that has failed, when its time comes."""
        if key.kind in self._reconcilers and key not in self._attempts:
            self._enqueue(key)

    def _changed(self, key: Key, body: Body) -> None:
        self._attempts.pop(key, None)
        if key.kind in self._reconcilers:
            self._enqueue(key)
        for each in self._referrers(key, body) if self._referrers is not None else ():
            self.enqueue(each)

    def _enqueue(self, key: Key) -> None:
        work = self._work.get(key)
        if work is None:
            self._work[key] = _Work(since=time.monotonic())
            (self._urgent if key.kind in self._urgent_kinds else self._waiting).put_nowait(key)
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
        if self._missed_in_a_row >= DEAF_SWEEPS:
            return f"the last {self._missed_in_a_row} sweeps found changes that no watch had told of"
        if now - self._swept_at > SWEEPS_LATE * self._sweep_s + STALE_S:
            return f"the last sweep ended {now - self._swept_at:.0f} s ago"
        for key, work in self._work.items():
            if work.running_since is not None and now - work.running_since > SLOW_S:
                return f"{key.kind} {key.namespace}/{key.name} has been reconciled for {now - work.running_since:.0f} s"
            if work.running_since is None and now - work.since > STALE_S:
                return f"{key.kind} {key.namespace}/{key.name} has waited for {now - work.since:.0f} s"
        dead = [task.get_name() for task in self._tasks if task.done()]
        return f"{', '.join(dead)} ended" if dead else ""

    # --- inside

    async def _worker(self, queue: asyncio.Queue[Key]) -> None:
        await self._looked.wait()
        while True:
            key = await queue.get()
            work = self._work[key]
            work.running_since = time.monotonic()
            work.again = False
            delay = await self._one(key)
            del self._work[key]
            if work.again and key not in self._attempts:
                self._enqueue(key)
            elif delay is not None:
                self.later(key, delay)

    async def _one(self, key: Key) -> float | None:
        attempts = self._attempts.pop(key, 0)
        begun = time.monotonic()
        failure: Exception | None = None
        try:
            delay = await self._reconcilers[key.kind](key, self.cache.get(key))
        except Exception as error:
            failure = error
            self.failed += 1
            self._attempts[key] = attempts + 1
            delay = min(BACKOFF_S[min(attempts, len(BACKOFF_S) - 1)], self._longest_backoff_s)
            delay *= random.uniform(1, 1 + SPREAD)
            of = f"{key.namespace}/{key.name}"
            log.warning("a reconcile failed", kind=key.kind, of=of, error=repr(error), again_s=round(delay, 1))
        else:
            self.reconciled += 1
        took = time.monotonic() - begun
        self.seconds += took
        self._done(key.kind, took, failure)
        return delay

    async def _clock(self) -> None:
        while True:
            self._sooner.clear()
            now = time.monotonic()
            while self._due and self._due[0][0] <= now:
                at, _, key = heapq.heappop(self._due)
                if self._scheduled.get(key) == at:
                    del self._scheduled[key]
                    self._enqueue(key)
            wait = max(0.0, self._due[0][0] - now) if self._due else self._sweep_s
            try:
                async with asyncio.timeout(wait):
                    await self._sooner.wait()
            except TimeoutError:
                pass

    async def _first_look(self) -> None:
        """List everything, or as much as can be listed by then; events come in meanwhile."""
        left = [*self._others, *self._reconcilers] if self._listing is not None else []
        try:
            async with asyncio.timeout(FIRST_LOOK_S):
                while left:
                    try:
                        _, refused = await self._list(left[0])
                        if refused:
                            raise Refused(refused)
                        del left[0]
                    except Exception as error:
                        log.warning("a first look failed", kind=left[0], error=repr(error))
                        left.append(left.pop(0))
                        await asyncio.sleep(FIRST_LOOK_AGAIN_S)
        except TimeoutError:
            log.warning("not everything could be listed: what was heard of has to do", kinds=left)
        self._looked.set()

    async def _list(self, kind: str) -> tuple[Mapping[Key, bool], Collection[str]]:
        """What there is of a kind by the listing, and whether that was news of something that was known; and the
        namespaces of which that could not be said.
        """
        assert self._listing is not None
        found = {}
        try:
            async for body in self._listing(kind):
                key = key_of(body)
                known = self.cache.get(key) is not None
                is_news = self.cache.take(body) is News.CHANGED
                if is_news:
                    self._changed(key, body)  # its event will be none when it comes
                found[key] = is_news and known
        except Refused as error:
            return found, error.namespaces
        return found, ()

    async def _sweep(self) -> None:
        await self._first_look()
        while True:
            await asyncio.sleep(self._sweep_s)
            try:
                for kind in self._reconcilers:
                    await self.sweep(kind)
            except Exception as error:
                log.warning("a sweep failed", error=repr(error))
                continue
            self._swept_at = time.monotonic()
            self._count_missed()

    async def sweep(self, kind: str) -> None:
        """Look at all of a kind, as they are listed now. Raises whatever the listing does."""
        refused: Collection[str] = ()
        if self._listing is not None:
            before = {key_of(body): body["metadata"]["resourceVersion"] for body in self.cache.all(kind)}
            listed, refused = await self._list(kind)
            for key, is_news in listed.items():
                if is_news and key in before:
                    self._miss(key)
            for key, version in before.items():
                present = self.cache.get(key)
                if key.namespace in refused:
                    continue
                if key not in listed and present is not None and present["metadata"]["resourceVersion"] == version:
                    self.cache.gone(key)
                    self._miss(key)
                    self._changed(key, present)
        for key in map(key_of, self.cache.all(kind)):
            if key.namespace not in refused:
                self.enqueue(key)

    def _miss(self, key: Key) -> None:
        self._unheard.setdefault(key, self._sweeps)

    def _count_missed(self) -> None:
        """A change that an earlier sweep found, and no event has told of since, was missed; a newer one may be late."""
        missed = [key for key, sweep in self._unheard.items() if sweep < self._sweeps]
        for key in missed:
            del self._unheard[key]
            log.info("a sweep found what no watch had told of", kind=key.kind, of=f"{key.namespace}/{key.name}")
        self.missed += len(missed)
        if missed:
            self._missed_in_a_row += 1
        elif not self._unheard:
            self._missed_in_a_row = 0
        self._sweeps += 1
