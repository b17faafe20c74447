"""Enforces the quotas of clients (KIP-219, KIP-599, KIP-612): what is counted, and how a client is slowed down.

An answer is sent at once and says for how long the client should wait; for that time no more requests of its connection
start, whether the client waits or not. Batches and records are never refused for a quota; a fetch returns at most the
bytes that the limit allows in all windows together. Changes of topics are refused with THROTTLING_QUOTA_EXCEEDED, if
the client knows this error.

The time of a request is the time that it takes on the loop: that of its start, and for an API of the generic codec all
of it. The time counts against the client's next request, since most answers are encoded before it is known.

While nothing is limited, requests check only `is_on`.
"""

import math
import time
from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import Any, Final

from headrace.base.errors import Code, KafkaError
from headrace.kafka.connection import Connection, Slot
from headrace.kafka.session import Reply, Session
from headrace.partitions.quotas import ClientQuotas
from headrace.security.client_quotas import WINDOW_S, WINDOWS, Key, address_of
from headrace.wire.header import RequestHeader

SPAN_S: Final = WINDOW_S * WINDOWS
"""The longest time, in seconds, for which a client is delayed at once."""
MAX_FOR_TIME_S: Final = WINDOW_S
"""The longest delay, in seconds, by the quota on the time of requests: Kafka's own bound, so that a delayed client is
not expelled from its group."""

Start = Callable[[Connection, RequestHeader, memoryview, Slot], None]


class Throttle:
    """The throttle of one node."""

    def __init__(self, *, quotas: ClientQuotas, time: Callable[[], float]) -> None:
        """`time`: seconds of a monotonic clock."""
        self._time = time
        self._quotas = quotas.quotas
        self.throttled_s: dict[str, float] = {}
        """Seconds for which clients were asked to wait since the start, by quota."""
        self.is_on = quotas.are_any
        """Whether any limit is set."""

        def changed() -> None:
            self.is_on = quotas.are_any

        quotas.on_change(changed)

    # --- counting; callers check `is_on` first

    def start(self, start: Start, session: Connection, header: RequestHeader, request: memoryview, slot: Slot) -> None:
        """Start to answer a request, and count the time that the start takes."""
        spent_s, session.spent_s = session.spent_s, 0.0
        wait_s = self._used(Key.REQUESTS, spent_s * 100, session)
        self._hold(Key.REQUESTS, session, slot, min(wait_s, MAX_FOR_TIME_S))
        began = time.perf_counter()
        try:
            start(session, header, request, slot)
        finally:
            session.spent_s += time.perf_counter() - began

    async def timed(self, session: Connection, make: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a coroutine to its end, and count the time that it takes on the loop."""
        await _Timed(session, make())

    def produced(self, session: Session, slot: Reply, size: int) -> None:
        """Count the bytes of a Produce request."""
        self._hold(Key.PRODUCE, session, slot, self._used(Key.PRODUCE, size, session))

    def fetched(self, session: Session, slot: Reply, size: int) -> None:
        """Count the bytes of records in an answer that is about to be sent."""
        self._hold(Key.CONSUME, session, slot, self._used(Key.CONSUME, size, session))

    def most_fetched(self, session: Session) -> int | None:
        """Bytes of records that one answer may have; None if there is no limit."""
        limit = self._quotas.table.limit(Key.CONSUME, user=session.principal.user, client_id=session.client_id or "")
        return None if limit is None else int(limit.value * SPAN_S)

    def charge_mutations(
        self, session: Connection, partitions: Sequence[int], *, strict: bool
    ) -> list[KafkaError | None]:
        """Count partitions that are created or deleted, by topic; returns for each the refusal or None. Only clients
        that know the error are refused (`strict`)."""
        if not self.is_on:
            return [None] * len(partitions)
        slot = session.slots[-1] if session.slots else None
        return [self._mutates(session, slot, count, strict=strict) for count in partitions]

    def _mutates(self, session: Connection, slot: Slot | None, count: int, *, strict: bool) -> KafkaError | None:
        who = {"user": session.principal.user, "client_id": session.client_id or ""}
        if strict:
            wait_s = self._quotas.mutated(0, **who, now=self._time())
            if wait_s > 0:
                self._hold(Key.MUTATIONS, session, slot, wait_s)
                return KafkaError(
                    Code.THROTTLING_QUOTA_EXCEEDED,
                    f"the quota {Key.MUTATIONS} is used up: try again in {math.ceil(wait_s)} s",
                )
        wait_s = self._quotas.mutated(count, **who, now=self._time())
        if not strict:
            self._hold(Key.MUTATIONS, session, slot, wait_s)
        return None

    def connection_delay_s(self, address: str) -> float | None:
        """Seconds for which an accepted connection has to wait; None if it must be closed because too many wait
        already."""
        if not self.is_on:
            return 0.0
        try:
            known = address_of(address)
        except ValueError:  # a socket without addresses
            return 0.0
        wait_s = self._quotas.connected(known, now=self._time())
        if 0 < wait_s < SPAN_S:
            self._record_wait(Key.CONNECTIONS, wait_s)
        return wait_s if wait_s < SPAN_S else None

    def _used(self, key: Key, amount: float, session: Session) -> float:
        return self._quotas.used(
            key, amount, user=session.principal.user, client_id=session.client_id or "", now=self._time()
        )

    def _record_wait(self, key: Key, wait_s: float) -> None:
        self.throttled_s[key.value] = self.throttled_s.get(key.value, 0.0) + wait_s

    def _hold(self, key: Key, session: Session, slot: Reply | None, wait_s: float) -> None:
        if wait_s <= 0:
            return
        self._record_wait(key, wait_s)
        if slot is not None:
            slot.throttle_ms = max(slot.throttle_ms, math.ceil(wait_s * 1000))
        session.throttle(wait_s)


class _Timed:
    """Awaits a coroutine step by step, and adds up the time of the steps."""

    def __init__(self, session: Connection, coroutine: Coroutine[Any, Any, None]) -> None:
        self._session = session
        self._coroutine = coroutine

    def __await__(self) -> Generator[Any, Any, None]:
        step: Callable[[], Any] = lambda: self._coroutine.send(None)  # noqa: E731  # the first of several
        while True:
            began = time.perf_counter()
            try:
                awaited = step()
            except StopIteration:
                return
            finally:
                self._session.spent_s += time.perf_counter() - began
            try:
                sent = yield awaited
            except GeneratorExit:
                self._coroutine.close()
                raise
            except BaseException as error:
                step = _thrown(self._coroutine, error)
            else:
                step = _sent(self._coroutine, sent)


def _sent(coroutine: Coroutine[Any, Any, None], value: Any) -> Callable[[], Any]:
    return lambda: coroutine.send(value)


def _thrown(coroutine: Coroutine[Any, Any, None], error: BaseException) -> Callable[[], Any]:
    return lambda: coroutine.throw(error)
