"""How long Kafka's clients wait for their answers, by API and phase, and what they are refused. Pure.

    queue      from the last bytes of its connection to its start: it waits behind others, or for a quota
    append     until the batches are in the log's pending job: decoding, checks, and waits for what is not in memory
    sync       until this node has them on its disk
    replicate  until every replica in sync has them; only where there are followers
    handle     instead of these three, where nothing is appended: of a Fetch with what it waits for records
    answer     until the answer is handed to the socket: it waits for the answers before it

A small request takes 34 us, and measuring it may not cost 2 % of that. So of an API that is asked often only some are
measured, five hundred a second; each of them counts for those that came since the one before it, itself among them. Of
an API that is asked less than that, each is.
"""

from collections.abc import Iterator, Mapping
from time import monotonic
from typing import Final, Protocol

from headrace.metrics.histogram import Histogram

QUEUE, APPEND, SYNC, REPLICATE, HANDLE, ANSWER = "queue", "append", "sync", "replicate", "handle", "answer"

MOST_MEASURED: Final = 500
"""Requests of an API a second."""
MOST_WEIGHT: Final = 64


class Synced(Protocol):
    """The container of a batch."""

    synced_at: float
    """When what is being told to be committed was on this node's disk; 0.0: no follower had to have it."""


class Timed:
    """A request that is measured, and when it came how far: in seconds of one clock that does not go back; 0.0: it did
    not come there, or has not yet."""

    __slots__ = ("_container", "_times", "appended", "arrived", "ready", "started", "synced", "weight")

    def __init__(self, times: "ApiTimes", *, weight: int, arrived: float, started: float) -> None:
        self._times = times
        self._container: Synced | None = None
        self.weight = weight
        """For how many requests it stands."""
        self.arrived = arrived
        self.started = started
        self.appended = self.synced = self.ready = 0.0

    def is_appended(self, container: Synced) -> None:
        """A batch of it is in the pending job of a container."""
        self._container = container
        self.appended = monotonic()

    def is_ready(self) -> None:
        """Its answer is made."""
        self.ready = monotonic()
        if self._container is not None:
            self.synced = self._container.synced_at

    def is_answered(self) -> None:
        """Its answer is written."""
        self._times.answered(self, monotonic())


class ApiTimes:
    """The answers of one API."""

    __slots__ = ("_begun", "_weight", "errors", "left", "total")

    def __init__(self) -> None:
        self.left = 1
        """Requests until the next that is measured: whoever starts one counts it down, and calls `begin` at 0."""
        self._weight = 1
        """Of the next."""
        self._begun = 0.0
        self.total = Histogram()
        self.errors: dict[int, int] = {}
        """By error code, how often."""

    def begin(self, arrived: float) -> Timed:
        """A request starts that is measured. `arrived`: when it came; 0.0: just now."""
        now = monotonic()
        took, self._begun = now - self._begun, now
        weight = self._weight
        timed = Timed(self, weight=weight, arrived=arrived or now, started=now)
        if took < 1 / MOST_MEASURED:
            weight = min(2 * weight, MOST_WEIGHT)
        elif took > 4 / MOST_MEASURED:
            weight = max(1, weight // 2)
        self.left = self._weight = weight
        return timed

    def answered(self, request: Timed, now: float) -> None:
        """A request's answer is written."""
        self.total.observe(now - request.arrived, request.weight)

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
    """Those of Produce."""

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
    """By API and code, how often."""
    for api, each in times.items():
        for code, count in list(each.errors.items()):
            yield api, code, count
