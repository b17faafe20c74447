"""How long Kafka's clients wait for their answers, by API and phase, and what they are refused. Pure.

    queue      from the bytes' arrival to the request's start: it waits behind others of its connection, or for a quota
    append     until the batches are in the log's pending job: decoding, checks, and waits for what is not in memory
    sync       until this node has them on its disk
    replicate  until every replica in sync has them; only where there are followers
    handle     instead of these three, where nothing is appended: of a Fetch with what it waits for records
    answer     until the answer is handed to the socket: it waits for the answers before it

One call adds a request in all of its phases, since a small request takes 40 us and this may not cost 2 % of it.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import Protocol

from headrace.metrics.histogram import BOUNDS_S, Histogram

QUEUE, APPEND, SYNC, REPLICATE, HANDLE, ANSWER = "queue", "append", "sync", "replicate", "handle", "answer"


class Instants(Protocol):
    """When a request came how far: seconds of one clock that does not go back; 0.0 where it did not come there."""

    arrived: float
    started: float
    appended: float
    synced: float
    ready: float


class ApiTimes:
    """The answers of one API."""

    __slots__ = ("errors", "total")

    def __init__(self) -> None:
        self.total = Histogram()
        self.errors: dict[int, int] = {}
        """By error code, how often."""

    def answered(self, request: Instants, now: float) -> None:
        """A request's answer is written."""
        self.total.observe(now - request.arrived)

    def failed(self, code: int) -> None:
        """A request, or a part of it, is refused."""
        self.errors[code] = self.errors.get(code, 0) + 1

    def phases(self) -> Iterator[tuple[str, Histogram]]:
        """Those that are told apart."""
        return iter(())


class PhasedTimes(ApiTimes):
    """The same, with phases."""

    __slots__ = ("answer", "handle", "queue")

    def __init__(self) -> None:
        super().__init__()
        self.queue, self.handle, self.answer = Histogram(), Histogram(), Histogram()

    def answered(self, request: Instants, now: float) -> None:
        """See ApiTimes."""
        self.queue.observe(request.started - request.arrived)
        self.handle.observe(request.ready - request.started)
        self.answer.observe(now - request.ready)
        self.total.observe(now - request.arrived)

    def phases(self) -> Iterator[tuple[str, Histogram]]:
        """See ApiTimes."""
        yield from ((QUEUE, self.queue), (HANDLE, self.handle), (ANSWER, self.answer))


class ProduceTimes(ApiTimes):
    """Those of Produce."""

    __slots__ = ("_answer", "_append", "_queue", "_replicate", "_sync", "_total")

    def __init__(self) -> None:
        super().__init__()
        self._queue, self._append, self._sync, self._replicate, self._answer = (Histogram() for _ in range(5))
        self._total = self.total

    def answered(self, request: Instants, now: float) -> None:
        """See ApiTimes."""
        # Written out: five calls of `observe` would cost as much again.
        bounds, bisect = BOUNDS_S, bisect_left
        arrived, started, appended, ready = request.arrived, request.started, request.appended, request.ready
        phase, took = self._queue, started - arrived
        phase.counts[bisect(bounds, took)] += 1
        phase.sum += took
        if appended:
            synced = request.synced
            if synced > appended:
                phase, took = self._replicate, ready - synced
                phase.counts[bisect(bounds, took)] += 1
                phase.sum += took
            else:
                synced = ready
            phase, took = self._sync, synced - appended
            phase.counts[bisect(bounds, took)] += 1
            phase.sum += took
        else:
            appended = ready
        phase, took = self._append, appended - started
        phase.counts[bisect(bounds, took)] += 1
        phase.sum += took
        phase, took = self._answer, now - ready
        phase.counts[bisect(bounds, took)] += 1
        phase.sum += took
        phase, took = self._total, now - arrived
        phase.counts[bisect(bounds, took)] += 1
        phase.sum += took

    def phases(self) -> Iterator[tuple[str, Histogram]]:
        """See ApiTimes."""
        yield from ((QUEUE, self._queue), (APPEND, self._append), (SYNC, self._sync), (ANSWER, self._answer))
        yield REPLICATE, self._replicate


def errors_of(times: Mapping[str, ApiTimes]) -> Iterator[tuple[str, int, int]]:
    """By API and code, how often."""
    for api, each in times.items():
        for code, count in list(each.errors.items()):
            yield api, code, count
