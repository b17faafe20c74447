"""The cluster store in memory, and each node's connection to it: slow, away, or with unknown outcomes.

A put that fails may have been lost, may have taken effect, or may take effect seconds later, if the record is then
still at the expected version. A call reads at one moment and writes at another, and others write in between.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from headrace.store.protocol import Changes, ClusterStore, StoreUnavailable, VersionConflict, Versioned
from headrace.store.view import ClusterView
from simulation.loop import PROCESS, Process, SimulatedLoop, fail
from simulation.network import WORLD
from simulation.odd_calls import OddCalls
from simulation.old_version import as_old

T = TypeVar("T")

WATCH_S = 1.0
AGAIN_S = 0.2


class MemoryStore:
    """A `ClusterStore`. `on_put` sees every change before anybody reads it."""

    def __init__(self) -> None:
        self.revision = 0
        self.records: dict[str, Versioned] = {}
        self.removed: dict[str, int] = {}
        self.on_put: Callable[[str, bytes | None, bytes], None] = lambda _key, _before, _after: None
        self.views: dict[StoreView, None] = {}
        self.falls = 0
        """How often the store was set back."""
        self.lands_late = False
        """Whether the current put was sent long ago."""

    def copy(self) -> "MemoryStore":
        """The complete contents, as a backup has them."""
        copy = MemoryStore()
        copy.revision, copy.records, copy.removed = self.revision, dict(self.records), dict(self.removed)
        return copy

    def set_back(self, copy: "MemoryStore") -> None:
        """Continue from a copy, with its versions."""
        self.revision, self.records, self.removed = copy.revision, dict(copy.records), dict(copy.removed)
        self.falls += 1
        self._tell()

    def get(self, key: str) -> Versioned | None:
        return self.records.get(key)

    def list(self, prefix: str) -> list[Versioned]:
        return [self.records[key] for key in sorted(self.records) if key.startswith(prefix)]

    def put(self, key: str, value: bytes, expected_version: int | None) -> int:
        before = self._expect(key, expected_version)
        self.on_put(key, None if before is None else before.value, value)
        self.revision += 1
        self.records[key] = Versioned(key, value, self.revision)
        self.removed.pop(key, None)
        self._tell()
        return self.revision

    def delete(self, key: str, expected_version: int) -> None:
        self._expect(key, expected_version)
        self.revision += 1
        del self.records[key]
        self.removed[key] = self.revision
        self._tell()

    def watch(self, prefix: str, *, since: int, timeout_s: float) -> Changes:
        whole = not 0 < since <= self.revision
        changed = [each for each in self.list(prefix) if whole or each.version > since]
        removed = {key: at for key, at in self.removed.items() if at > since and key.startswith(prefix)}
        return Changes(self.revision, changed, {} if whole else removed, whole=whole, one_count=True)

    def _expect(self, key: str, expected: int | None) -> Versioned | None:
        found = self.records.get(key)
        version = None if found is None else found.version
        if version != expected:
            raise VersionConflict(key, expected=expected, found=version)
        return found

    def _tell(self) -> None:
        for view in self.views:
            view.there_is_news()


class StoreLink:
    """One node's connection to the store. `away`: it reaches nothing. `unsure`: how often the outcome of a put is not
    reported.
    """

    def __init__(self, store: MemoryStore, loop: SimulatedLoop, chance: random.Random, odd: OddCalls) -> None:
        self.away = 0
        self.unsure = 0.0
        self.is_old = False
        """Whether the connection is an older version's (simulation.versions)."""
        self.keeps_unknown = False
        """Whether fields that an older version does not know stay in a record."""
        self.store = store
        self._loop = loop
        self._chance = chance
        self._odd = odd

    async def call(self, change: Callable[[ClusterStore], T]) -> T:
        """Run the change as a call in a thread."""
        chance, process = self._chance, PROCESS.get()
        assert process is not None
        done: asyncio.Future[T] = self._loop.create_future()
        # A call in flight reaches the store even if its node freezes or dies meanwhile, or it is lost.
        where = process.context if chance.random() < 0.5 else WORLD
        if self.away and chance.random() < 0.7:
            self._loop.call_later(0.1 + chance.random() * 2, fail, done, _unavailable())
        else:
            self._loop.call_later(self.delay(), self._read, change, process, done, where, context=where)
        return await done

    def _read(self, change: Callable[[ClusterStore], T], process: Process, done: Any, where: Any) -> None:
        # The rest sees the present store.
        reading = _Call(self, dict(self.store.records))
        pause_s = self._chance.random() * 0.002
        if not process.dead:  # a process that died before reading writes nothing
            self._loop.call_later(pause_s, self._write, change, reading, process, done, context=where)

    def _write(self, change: Callable[[ClusterStore], T], reading: "_Call", process: Process, done: Any) -> None:
        answer: Callable[[], None]
        odd = self._odd.raises()
        try:
            result = change(reading)
            if odd is not None:
                raise odd
            answer = lambda: done.done() or done.set_result(result)  # noqa: E731
        except Exception as failure:
            error = failure
            answer = lambda: fail(done, error)  # noqa: E731
        if not process.dead:
            self._loop.call_later(self.delay(), answer, context=process.context)

    def delay(self) -> float:
        roll = self._chance.random()
        return 0.0005 + roll * 0.004 if roll < 0.97 else roll * 0.2

    def put(self, key: str, value: bytes, expected_version: int | None) -> int:
        """A put as the node's call experiences it."""
        if self.is_old:
            present = self.store.get(key)
            value = as_old(key, value, present and present.value, keeps=self.keeps_unknown)
        if self.away or (self.unsure and self._chance.random() < self.unsure):
            roll = self._chance.random()
            if roll < 0.4:
                falls = self.store.falls
                self._loop.call_later(
                    self._chance.random() * 6, self._land_late, key, value, expected_version, falls, context=WORLD
                )
            elif roll < 0.7:
                self._land(key, value, expected_version, self.store.falls)
            raise _unavailable()
        return self.store.put(key, value, expected_version)

    def _land_late(self, key: str, value: bytes, expected_version: int | None, falls: int) -> None:
        self.store.lands_late = True
        try:
            self._land(key, value, expected_version, falls)
        finally:
            self.store.lands_late = False

    def _land(self, key: str, value: bytes, expected_version: int | None, falls: int) -> None:
        if falls != self.store.falls:
            return  # calls in flight to the server were lost with it
        try:
            self.store.put(key, value, expected_version)
        except VersionConflict:
            pass


class _Call:
    """The store within one call: reads see it as it was when the call arrived, until a put fails."""

    def __init__(self, link: StoreLink, records: dict[str, Versioned]) -> None:
        self._link = link
        self._past = MemoryStore()
        self._past.records = records
        self._now = False

    def get(self, key: str) -> Versioned | None:
        return self._seen().get(key)

    def list(self, prefix: str) -> list[Versioned]:
        return self._seen().list(prefix)

    def put(self, key: str, value: bytes, expected_version: int | None) -> int:
        self._now = True
        return self._link.put(key, value, expected_version)

    def delete(self, key: str, expected_version: int) -> None:
        self._now = True
        self._link.store.delete(key, expected_version)

    def watch(self, prefix: str, *, since: int, timeout_s: float) -> Changes:
        return self._link.store.watch(prefix, since=since, timeout_s=timeout_s)

    def _seen(self) -> MemoryStore:
        if self._link.away:
            raise _unavailable()
        return self._link.store if self._now else self._past


class StoreView(ClusterView):
    """The node's view of the store, with simulated looks instead of threads. Two looks may overtake each other."""

    def __init__(self, link: StoreLink, loop: SimulatedLoop, chance: random.Random) -> None:
        super().__init__(link.store)
        self._link = link
        self._sim = loop
        self._chance = chance
        self._process = PROCESS.get()
        self._looking = False
        self._ended = False
        self._highest = 0
        """The highest revision seen, as kept by a store's client."""
        self._falls = 0
        self._looks = 0

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._link.store.views[self] = None
        self._watch_on()
        await self._started.wait()

    async def close(self) -> None:
        self.end()

    def end(self) -> None:
        """End the view's notifications."""
        self._ended = True
        self._link.store.views.pop(self, None)

    def refresh(self) -> None:
        self._later(self._chance.random() * 0.003, self._look_once)

    def there_is_news(self) -> None:
        """The store changed; its watchers notice soon."""
        if not self._looking:
            self._looking = True
            roll = self._chance.random()
            self._later(roll * 0.06 if roll < 0.97 else roll * 0.8, self._look_once)

    def _later(self, delay: float, what: Callable[[], None]) -> None:
        assert self._process is not None
        self._sim.call_later(delay, what, context=self._process.context)

    def _watch_on(self) -> None:
        if not self._ended:
            self._looks += 1
            # Now and then everything is read, as the view does (view.WHOLE_S).
            self._look_once(whole=self._link.store.falls > 0 and self._looks % 5 == 0)
            self._later(AGAIN_S if self._link.away else WATCH_S, self._watch_on)

    def _look_once(self, *, whole: bool = False) -> None:
        self._looking = False
        if self._link.away or self._ended:
            return
        store = self._link.store
        self._falls += store.revision < self._highest
        self._highest = store.revision
        changes = replace(store.watch("", since=0 if whole else self.revision, timeout_s=0), generation=self._falls)
        self._later(self._chance.random() * 0.002, lambda: self._ended or self._take(changes, _TAKEN))


class _Taken:
    def set(self) -> None:
        pass


_TAKEN: Any = _Taken()


def _unavailable() -> StoreUnavailable:
    return StoreUnavailable("the store does not answer")
