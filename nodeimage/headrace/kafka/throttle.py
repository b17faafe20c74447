"""Holds clients to their quotas (KIP-219, KIP-599, KIP-612): what is counted, and how a client is slowed down.

An answer goes out at once, and says for how long the client is to wait; for so long nothing more of its connection is
started, whether it waits or not. Batches and records are never refused for it, and a fetch gets at most what its limit
gives in all windows. Changes of topics are refused with THROTTLING_QUOTA_EXCEEDED, to clients that know this error.

The time of a request is what it takes on the loop: its start, and of an API of the generic codec the whole. It counts
against the client's next request, since most answers are encoded before it is known.

Where nothing is limited, `is_on` is all that a request looks at.
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
"""For no longer is anybody held up at once."""
MOST_FOR_TIME_S: Final = WINDOW_S
"""For the time of requests: Kafka's own bound, so that a client is not taken for dead by its group."""

Start = Callable[[Connection, RequestHeader, memoryview, Slot], None]


class Throttle:
    """Of one node."""

    def __init__(self, *, quotas: ClientQuotas, time: Callable[[], float]) -> None:
        """`time`: seconds of a clock that does not go back."""
        self._time = time
        self._quotas = quotas.quotas
        self.told_s: dict[str, float] = {}
        """For how long clients were told to wait since the start, by quota."""
        self.is_on = quotas.are_any
        """Whether anything is limited at all."""

        def changed() -> None:
            self.is_on = quotas.are_any

        quotas.on_change(changed)

    # --- what is counted; ask `is_on` before

    def start(self, start: Start, session: Connection, header: RequestHeader, request: memoryview, slot: Slot) -> None:
        """Start to answer a request, and count its time."""
        spent_s, session.spent_s = session.spent_s, 0.0
        wait_s = self._used(Key.REQUESTS, spent_s * 100, session)
        self._hold(Key.REQUESTS, session, slot, min(wait_s, MOST_FOR_TIME_S))
        began = time.perf_counter()
        try:
            start(session, header, request, slot)
        finally:
            session.spent_s += time.perf_counter() - began

    async def timed(self, session: Connection, make: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a coroutine to its end, and count the time that it takes on the loop."""
        await _Timed(session, make())

    def produced(self, session: Session, slot: Reply, size: int) -> None:
        """Count bytes of a Produce request."""
        self._hold(Key.PRODUCE, session, slot, self._used(Key.PRODUCE, size, session))

    def fetched(self, session: Session, slot: Reply, size: int) -> None:
        """Count bytes of records that are about to be answered."""
        self._hold(Key.CONSUME, session, slot, self._used(Key.CONSUME, size, session))

    def most_fetched(self, session: Session) -> int | None:
        """Bytes of records that one answer may have; None: there is no limit."""
        limit = self._quotas.table.limit(Key.CONSUME, user=session.principal.user, client_id=session.client_id or "")
        return None if limit is None else int(limit.value * SPAN_S)

    def mutates(self, session: Connection, partitions: Sequence[int], *, strict: bool) -> list[KafkaError | None]:
        """Count partitions that are made or deleted, topic by topic; why it is refused, to a client that knows that
        (`strict`)."""
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
        """For how long a connection that was accepted has to wait; None: it is closed, for too many wait already."""
        if not self.is_on:
            return 0.0
        try:
            known = address_of(address)
        except ValueError:  # of a socket without addresses
            return 0.0
        wait_s = self._quotas.connected(known, now=self._time())
        if 0 < wait_s < SPAN_S:
            self._told(Key.CONNECTIONS, wait_s)
        return wait_s if wait_s < SPAN_S else None

    def _used(self, key: Key, amount: float, session: Session) -> float:
        return self._quotas.used(
            key, amount, user=session.principal.user, client_id=session.client_id or "", now=self._time()
        )

    def _told(self, key: Key, wait_s: float) -> None:
        self.told_s[key.value] = self.told_s.get(key.value, 0.0) + wait_s

    def _hold(self, key: Key, session: Session, slot: Reply | None, wait_s: float) -> None:
        if wait_s <= 0:
            return
        self._told(key, wait_s)
        if slot is not None:
            slot.throttle_ms = max(slot.throttle_ms, math.ceil(wait_s * 1000))
        session.throttle(wait_s)


class _Timed:
    """Awaits a coroutine, step by step."""

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
