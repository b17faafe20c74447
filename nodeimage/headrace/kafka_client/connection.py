"""One connection to a Kafka server, with pipelined requests; the server answers them in order, which a correlation id
proves.

Silence ends the connection. Each call says how long the server may be silent while the call is the next to be answered.
If that time passes without a byte, or ten times that without the whole answer, the connection is closed, all calls on
it fail, and its owner opens another: so half-open connections are found, and a slow but working network is tolerated.
An answer without a request, or one that is too long, ends the connection too.

Bounds: at most `under_way` calls, of which no answer is longer than `answer_bytes`; further callers wait. The place of
a cancelled call stays occupied until its answer has arrived. There is no task: one timer, and the callers.
"""

import asyncio
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, cast

from headrace.base.errors import MalformedRequest
from headrace.base.sockets import endpoints, keep_alive
from headrace.kafka_client.errors import SourceRefuses, SourceUnreachable
from headrace.kafka_client.exchange import Exchange
from headrace.wire.primitives import Buffer

SILENCES: Final = 10
"""How many times its allowed silence a call may take if bytes trickle in."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on the time and memory that a server may cost, whatever it does. Seconds and bytes."""

    connect_s: float = 10.0
    """Limit for connecting, TLS, versions and authentication together."""
    silence_s: float = 15.0
    """Default of the silence that a call allows."""
    answer_bytes: int = 128 << 20
    under_way: int = 64
    """Unanswered calls on one connection."""


class _Waiting:
    """An unanswered call."""

    __slots__ = ("future", "next_since", "silence_s")

    def __init__(self, future: asyncio.Future[memoryview], silence_s: float) -> None:
        self.future = future
        self.silence_s = silence_s
        self.next_since = 0.0
        """Loop time since which the call is the next to be answered."""


class Connection(asyncio.BufferedProtocol):
    """A connection to a server, opened by `connection_setup`. Used on the loop's thread only."""

    def __init__(
        self,
        address: str,
        limits: Limits,
        *,
        silent: Callable[["Connection", float], None],
        client_id: str = "headrace-link",
    ) -> None:
        """`address`: shown in messages. `silent`: see `open_connection`."""
        self.address = address
        self._silent = silent
        self.versions: dict[int, tuple[int, int]] = {}
        """The versions that the server supports: API key to (lowest, highest) version."""
        self.hint = ""
        """A likely reason if the server closes the connection before its next answer."""
        self.is_to_itself = False
        """Whether the connection is to its own port: the kernel may choose the unused target port as the source
        port."""
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._exchange = Exchange[_Waiting](client_id=client_id, answer_bytes=limits.answer_bytes)
        self._room = asyncio.Semaphore(limits.under_way)
        self._writable: asyncio.Future[None] | None = None
        """Resolved when the server reads again; None while the server reads."""
        self._heard_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._life: asyncio.TimerHandle | None = None
        self._error: SourceUnreachable | SourceRefuses | None = None
        self._retired = False
        self._lost: asyncio.Future[None] = self._loop.create_future()

    # --- for the owner

    @property
    def is_usable(self) -> bool:
        """Whether further calls may be made."""
        return self._error is None and not self._retired

    @property
    def is_gone(self) -> bool:
        """Whether the socket is closed."""
        return self._lost.done()

    async def call(
        self, api_key: int, version: int, body: Sequence[Buffer], *, silence_s: float | None = None
    ) -> memoryview:
        """Send a request and return the body of its answer. Raises `SourceUnreachable`, `SourceRefuses`."""
        await self._room.acquire()
        try:
            while self._writable is not None and self._error is None:
                await asyncio.shield(self._writable)
            if self._error is not None or self._transport is None:
                raise self.error()
        except BaseException:
            self._room.release()
            raise
        future: asyncio.Future[memoryview] = self._loop.create_future()
        waiting = _Waiting(future, self._limits.silence_s if silence_s is None else silence_s)
        if not self._exchange.under_way:
            waiting.next_since = self._loop.time()
        start = self._exchange.ask(api_key, version, sum(map(len, body)), waiting)
        self._watch()
        self._transport.writelines([start, *body])
        return await future

    def retire(self) -> None:
        """Accept no more calls, and close the connection when the last one has been answered."""
        self._retired = True
        if not self._exchange.under_way:
            self.abort("closed on this side")

    def retire_after(self, seconds: float) -> None:
        """Retire after `seconds`."""
        if self._life is not None:
            self._life.cancel()
        self._life = self._loop.call_later(seconds, self.retire)

    def abort(self, reason: str) -> None:
        """Close the connection at once; calls under way raise `SourceUnreachable`."""
        self._end(SourceUnreachable(f"{self.address}: {reason}"))

    def doubt(self, since: float) -> None:
        """End the connection if, like another one to the same address, it has received nothing after `since`."""
        if self._heard_at <= since:
            self.abort("closed, as it was silent, and so was another connection to the same address")

    async def closed(self) -> None:
        """Wait until the connection is gone, after `abort`."""
        if self._transport is not None:
            await asyncio.shield(self._lost)

    def error(self) -> SourceUnreachable | SourceRefuses:
        """The reason for the connection's end, as an error for one caller to raise."""
        return self._error.again() if self._error is not None else SourceUnreachable(f"{self.address}: not connected")

    # --- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio: the connection is established."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own class, of the same shape
        if self._error is not None:  # aborted while it was connecting
            self._transport.abort()
            return
        own, peer = endpoints(transport)
        self.is_to_itself = peer is not None and peer == own
        # A connection to a vanished host ends after 25 s of idleness.
        keep_alive(transport.get_extra_info("socket"), idle_s=10, every_s=5, tries=3)

    def get_buffer(self, sizehint: int) -> memoryview:
        """The memory for the next bytes from the socket."""
        return self._exchange.responses.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Process the `nbytes` that have arrived."""
        if self._error is not None:
            return
        self._heard_at = self._loop.time()
        self._exchange.responses.came(nbytes)
        try:
            while (answer := self._exchange.answer()) is not None:
                self._answered(*answer)
                if self._error is not None:
                    return
        except MalformedRequest as error:
            self.abort(str(error))

    def eof_received(self) -> None:
        """The server has closed its sending side."""
        self._end(self._closed_by_server())

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        if isinstance(exc, ssl.SSLError) and not isinstance(exc, ssl.SSLEOFError):
            self._end(SourceRefuses(f"{self.address} broke off TLS: {exc.reason or exc}"))
        elif exc is not None and not isinstance(exc, ConnectionError):
            self._end(SourceUnreachable(f"{self.address}: {exc}"))
        else:
            self._end(self._closed_by_server())
        if not self._lost.done():
            self._lost.set_result(None)

    def pause_writing(self) -> None:
        """The server does not read: send no more requests."""
        if self._writable is None:
            self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        """The server reads again."""
        if self._writable is not None:
            self._writable.set_result(None)
            self._writable = None

    # --- inside

    def _answered(self, waiting: _Waiting, body: memoryview) -> None:
        self._room.release()
        self.hint = ""
        if not waiting.future.done():  # the caller may have been cancelled
            waiting.future.set_result(body)
        if self._exchange.under_way:
            self._exchange.next.next_since = self._heard_at
            self._watch()
        elif self._retired:
            self.abort("closed on this side")

    def _watch(self) -> None:
        """Run a timer while a call waits. The timer is not put off with each answer, but re-armed when it fires; it is
        brought forward for a call that allows less silence."""
        if not self._exchange.under_way:
            return
        due = self._due(self._exchange.next)
        if self._timer is not None:
            if due >= self._timer_at:
                return
            self._timer.cancel()
        self._timer, self._timer_at = self._loop.call_at(due, self._check), due

    def _due(self, waiting: _Waiting) -> float:
        since = waiting.next_since
        return min(max(self._heard_at, since) + waiting.silence_s, since + SILENCES * waiting.silence_s)

    def _check(self) -> None:
        self._timer = None
        if self._error is not None or not self._exchange.under_way:
            return
        waiting = self._exchange.next
        if self._loop.time() < self._due(waiting):
            self._watch()
            return
        waited = self._loop.time() - waiting.next_since
        heard_at = max(self._heard_at, waiting.next_since)
        self._end(SourceUnreachable(f"{self.address} did not answer within {waited:.1f} s", timed_out=True))
        self._silent(self, heard_at)

    def _closed_by_server(self) -> SourceUnreachable:
        hint = f" ({self.hint})" if self.hint else ""
        return SourceUnreachable(f"{self.address}: closed by the other side{hint}")

    def _end(self, error: SourceUnreachable | SourceRefuses) -> None:
        if self._error is not None:
            return
        self._error = error
        for timer in (self._timer, self._life):
            if timer is not None:
                timer.cancel()
        self._timer = None
        if self._writable is not None:
            self.resume_writing()
        for waiting in self._exchange.give_up():
            self._room.release()
            if not waiting.future.done():
                waiting.future.set_exception(self.error())
        if self._transport is not None:
            self._transport.abort()
