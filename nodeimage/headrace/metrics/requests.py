"""How long Kafka clients wait for responses, by API and phase, and which errors they get. No I/O but the clock.

    queue      from the arrival of the request's last bytes to its start: it waits behind others, or for a quota
    append     until the batches are in the log's pending job: decoding, checks, and waiting for state not in memory
    sync       until the batches are on this node's disk
    replicate  until all in-sync replicas have the batches; only if there are followers
    handle     of a Fetch, instead of these three; it includes waiting for records
    answer     until the response is passed to the socket: it waits for earlier responses

A small request takes 34 us, and measuring must cost less than 2 % of that. So for an API with many requests only some
are measured, about five hundred a second; each of them counts for all requests since the previous measured one. For an
API with fewer requests all are measured.
"""

from collections.abc import Iterator, Mapping
from time import monotonic
from typing import Final, Protocol

from headrace.metrics.histogram import Histogram

QUEUE, APPEND, SYNC, REPLICATE, HANDLE, ANSWER = "queue", "append", "sync", "replicate", "handle", "answer"

MAX_MEASURED: Final = 500
"""The approximate number of requests of an API that are measured per second."""
MAX_WEIGHT: Final = 64
"""The most requests for which one measured request counts."""


class Synced(Protocol):
    """The container to which a batch is appended."""

    synced_at: float
    """The time at which the batches that are just being reported as committed were on this node's disk; 0.0: there was
    no follower to wait for."""


class Timed:
    """A measured request and the times at which it reached its phases, in seconds of the monotonic clock; 0.0: not
    reached, or not yet."""

    __slots__ = ("_container", "_times", "appended", "arrived", "ready", "started", "synced", "weight")

    def __init__(self, times: "ApiTimes", *, weight: int, arrived: float, started: float) -> None:
        self._times = times
        self._container: Synced | None = None
        self.weight = weight
        """The number of requests for which this one counts."""
        self.arrived = arrived
        self.started = started
        self.appended = self.synced = self.ready = 0.0

    def mark_appended(self, container: Synced) -> None:
        """Reports that a batch of the request is in the pending job of a container."""
        self._container = container
        self.appended = monotonic()

    def mark_ready(self) -> None:
        """Reports that the response is ready."""
        self.ready = monotonic()
        if self._container is not None:
            self.synced = self._container.synced_at

    def mark_answered(self) -> None:
        """Reports that the response was passed to the socket."""
        self._times.answered(self, monotonic())


class ApiTimes:
    """The times and errors of one API."""

    __slots__ = ("_begun", "_weight", "errors", "left", "total")

    def __init__(self) -> None:
        self.left = 1
        """Requests until the next measured one. The caller decrements it for each request, and calls `begin` at 0."""
        self._weight = 1
        """The weight of the next measured request."""
        self._begun = 0.0
        self.total = Histogram()
        self.errors: dict[int, int] = {}
        """The number of errors by error code."""

    def begin(self, arrived: float) -> Timed:
        """Starts to measure a request. `arrived`: when it arrived; 0.0: now."""
        now = monotonic()
        took, self._begun = now - self._begun, now
        weight = self._weight
        timed = Timed(self, weight=weight, arrived=arrived or now, started=now)
        if took < 1 / MAX_MEASURED:
            weight = min(2 * weight, MAX_WEIGHT)
        elif took > 4 / MAX_MEASURED:
            weight = max(1, weight // 2)
        self.left = self._weight = weight
        return timed

    def answered(self, request: Timed, now: float) -> None:
        """Records the times of a request whose response was passed to the socket at `now`."""
        self.total.observe(now - request.arrived, request.weight)

    def failed(self, code: int) -> None:
        """Counts an error of a request or of a part of it."""
        self.errors[code] = self.errors.get(code, 0) + 1

    def phases(self) -> Iterator[tuple[str, Histogram]]:
        """The phases that are measured separately, with their histograms."""
        return iter(())


class PhasedTimes(ApiTimes):
    """The times of an API with the phases queue, handle and answer."""

    __slots__ = ("answer", "handle", "queue")

    def __init__(self) -> None:
        super().__init__()
        self.queue, self.handle, self.answer = Histogram(), Histogram(), Histogram()

    def answered(self, request: Timed, now: float) -> None:
        """See ApiTimes."""
        weight = request.weight
        self.queue.observe(request.started - request.arrived, weight)
        self.handle.observe(request.ready - request.started, weight)
        self.answer.observe(now - request.ready, weight)
        self.total.observe(now - request.arrived, weight)

    def phases(self) -> Iterator[tuple[str, Histogram]]:
        """See ApiTimes."""
        yield from ((QUEUE, self.queue), (HANDLE, self.handle), (ANSWER, self.answer))


class ProduceTimes(ApiTimes):
    """The times of Produce, with all its phases."""

    __slots__ = ("_answer", "_append", "_queue", "_replicate", "_sync")

    def __init__(self) -> None:
        super().__init__()
        self._queue, self._append, self._sync, self._replicate, self._answer = (Histogram() for _ in range(5))

    def answered(self, request: Timed, now: float) -> None:
        """See ApiTimes."""
        weight, started, appended, ready = request.weight, request.started, request.appended, request.ready
        self._queue.observe(started - request.arrived, weight)
        if appended:
            synced = request.synced
            if synced > appended:
                self._replicate.observe(ready - synced, weight)
            else:
                synced = ready
            self._sync.observe(synced - appended, weight)
        else:
            appended = ready
        self._append.observe(appended - started, weight)
        self._answer.observe(now - ready, weight)
        self.total.observe(now - request.arrived, weight)

    def phases(self) -> Iterator[tuple[str, Histogram]]:
        """See ApiTimes."""
        yield from ((QUEUE, self._queue), (APPEND, self._append), (SYNC, self._sync), (ANSWER, self._answer))
        yield REPLICATE, self._replicate


def errors_of(times: Mapping[str, ApiTimes]) -> Iterator[tuple[str, int, int]]:
    """The (API, error code, number of errors) of all APIs."""
    for api, each in times.items():
        for code, count in list(each.errors.items()):
            yield api, code, count
