"""The engine that runs the reconcilers: level-triggered, one at a time for each resource, with bounded workers.

An event only says that something may differ from what it should be: it puts the resource's current state into the cache
and its key into the queue. A worker takes the key and calls the kind's `reconcile` with the state that the cache has
then. Failures are retried after growing delays; a reconcile may also ask to be called again after a while; and a sweep
lists and queues everything periodically, which makes up for missed events and detects watches that miss them.
Everything is also listed before the first reconcile: with a half-filled cache, a cluster that has not been seen yet
would look deleted.

1. For each resource, one reconcile runs at a time, and one begins after every change of its spec.
2. A change of status alone triggers none: the operator writes the status itself.
3. The queue holds each resource once. There are WORKERS workers, and URGENT_WORKERS more for urgent kinds, so that
   these never wait for the others, which may all hang on a cluster that does not answer: reporting that is an urgent
   kind's work.
4. A resource whose reconcile failed waits before its retry, unless the resource itself changes.

The engine does not interpret kinds.
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
"""Seconds after which a key that still waits for a worker makes the operator unhealthy."""
SLOW_S: Final = 120.0
"""Seconds after which a reconcile that still runs makes the operator unhealthy."""
SPREAD: Final = 0.2
"""Random share added to back-offs, so that resources that failed together are not retried together."""
DEAF_SWEEPS: Final = 3
"""Sweeps that found missed events, without one between them that found none, after which watches count as deaf."""
SWEEPS_LATE: Final = 4
FIRST_LOOK_S: Final = 60.0
"""The maximum number of seconds that the first reconcile waits until everything has been listed; then it works with
what is known.
"""
FIRST_LOOK_AGAIN_S: Final = 1.0

Reconcile = Callable[[Key, Body | None], Awaitable[float | None]]
"""Brings the cluster to the state that a resource asks for; None: the resource is deleted. Returns after how many
seconds to be called again, if at all.
"""
Listing = Callable[[str], AsyncIterator[Body]]
"""Lists all resources of a kind from the API server. Raises Refused at its end."""
Referrers = Callable[[Key, Body], Iterable[Key]]
"""Returns the resources that a change of this one affects."""
Done = Callable[[str, float, Exception | None], None]
"""Called after each reconcile with its kind, its seconds, and its error if it failed."""


class Refused(Exception):
    """Some namespaces may not be listed. Their known resources are kept; all other namespaces have been listed."""

    def __init__(self, namespaces: Collection[str]) -> None:
        super().__init__(f"no permission to read {', '.join(sorted(namespaces))}")
        self.namespaces = namespaces


@dataclass(slots=True)
class _Work:
    since: float
    running_since: float | None = None
    again: bool = False
    """Whether something asked for another reconcile while this one ran."""
    changed: bool = False
    """Whether the resource itself changed meanwhile: the next reconcile waits for no back-off."""


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
        """`listing`: for the sweep; without it a sweep queues what the cache has. `referrers`: returns the other
        resources that a change affects. `others`: kinds that are listed before the first reconcile, but not reconciled.
        `urgent`: kinds with their own workers.
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
        """Resources whose change a sweep (by number) found, and which no event has reported since."""
        self.reconciled = 0
        self.failed = 0
        self.missed = 0
        """Changes that a sweep found and that no event had reported."""
        self.seconds = 0.0
        """Seconds spent in reconciles."""

    @property
    def queued(self) -> int:
        """Resources that wait for a worker, or have one."""
        return len(self._work)

    @property
    def has_looked(self) -> bool:
        """Whether everything has been listed, so that reconciles run."""
        return self._looked.is_set()

    @property
    def kinds(self) -> Sequence[str]:
        """The kinds that are reconciled."""
        return list(self._reconcilers)

    def start(self) -> None:
        """Start the workers, the clock and the sweep."""
        loop = asyncio.get_running_loop()
        queues = [self._waiting] * WORKERS + [self._urgent] * (URGENT_WORKERS if self._urgent_kinds else 0)
        self._tasks = [
            loop.create_task(self._worker(queue), name=f"worker-{number}") for number, queue in enumerate(queues)
        ]
        self._tasks += [loop.create_task(self._clock(), name="clock"), loop.create_task(self._sweep(), name="sweep")]

    async def close(self) -> None:
        """Stop the workers, the clock and the sweep."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def seen(self, body: Body, *, deleted: bool = False) -> None:
        """Record a resource's current state."""
        self._unheard.pop(key_of(body), None)
        if self.cache.take(body, deleted=deleted) is News.CHANGED:
            self._changed(key_of(body), body)

    def enqueue(self, key: Key) -> None:
        """Reconcile a resource soon; one whose reconcile failed, when its back-off ends."""
        if key.kind in self._reconcilers and key not in self._attempts:
            self._enqueue(key)

    def _changed(self, key: Key, body: Body) -> None:
        self._attempts.pop(key, None)
        if key.kind in self._reconcilers:
            self._enqueue(key)
            work = self._work[key]
            work.changed = work.running_since is not None
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
        """Reconcile a resource after a delay, or sooner if something else asks for that."""
        at = time.monotonic() + delay_s
        if at < self._scheduled.get(key, float("inf")):
            self._scheduled[key] = at
            self._turn += 1
            heapq.heappush(self._due, (at, self._turn, key))
            self._sooner.set()

    def stale(self) -> str:
        """Return why this operator is deaf or stuck; "" if it is neither."""
        now = time.monotonic()
        if self._missed_in_a_row >= DEAF_SWEEPS:
            return f"the last {self._missed_in_a_row} sweeps found changes that no watch had reported"
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
            delay = await self._reconcile_one(key)
            del self._work[key]
            if work.changed:
                self._attempts.pop(key, None)
            if work.again and key not in self._attempts:
                self._enqueue(key)
            elif delay is not None:
                self.later(key, delay)

    async def _reconcile_one(self, key: Key) -> float | None:
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
        """List everything, or as much as can be listed within FIRST_LOOK_S; events arrive meanwhile."""
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
                        log.warning("the first listing of a kind failed", kind=left[0], error=repr(error))
                        left.append(left.pop(0))
                        await asyncio.sleep(FIRST_LOOK_AGAIN_S)
        except TimeoutError:
            log.warning("not everything could be listed: continuing with what is known", kinds=left)
        self._looked.set()

    async def _list(self, kind: str) -> tuple[Mapping[Key, bool], Collection[str]]:
        """Return the listed resources of a kind, each with whether its state was news of a known resource; and the
        namespaces that could not be listed.
        """
        assert self._listing is not None
        found = {}
        try:
            async for body in self._listing(kind):
                key = key_of(body)
                known = self.cache.get(key) is not None
                is_news = self.cache.take(body) is News.CHANGED
                if is_news:
                    self._changed(key, body)  # its event will be no news when it arrives
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
        """Queue all resources of a kind, as listed now. Raises whatever the listing raises."""
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
        """Count changes found by an earlier sweep that no event has reported since as missed; newer ones may just be
        late.
        """
        missed = [key for key, sweep in self._unheard.items() if sweep < self._sweeps]
        for key in missed:
            del self._unheard[key]
            log.info(
                "a sweep found a change that no watch had reported", kind=key.kind, of=f"{key.namespace}/{key.name}"
            )
        self.missed += len(missed)
        if missed:
            self._missed_in_a_row += 1
        elif not self._unheard:
            self._missed_in_a_row = 0
        self._sweeps += 1
