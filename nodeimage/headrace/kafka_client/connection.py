"""One connection to a Kafka server: requests out, pipelined; answers in, in the order of the requests (as Kafka
servers give them, and a correlation id proves).

Silence ends it. Each call says how long the server may be silent while the call is the next one to be answered; when
that time passes without a byte, or ten times that without the whole answer, the connection is closed, all calls on it
fail, and whoever owns it makes another: so half-open connections are found, and a slow but living network is not
taken for one. An answer that nobody asked for, or longer than the limit, ends it too.

Bounds: `under_way` calls at most, of which no answer is longer than `answer_bytes`; further callers wait. A caller
that goes away leaves its place taken until its answer has come. There is no task: one timer, and the callers.
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
"""So many times its silence may a call take, where bytes trickle in."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a server may cost us, whatever it does. Seconds and bytes."""

    connect_s: float = 10.0
    """For connecting, TLS, versions and authentication together."""
    silence_s: float = 15.0
    """Of calls that say nothing else."""
    answer_bytes: int = 128 << 20
    under_way: int = 64
    """Calls on one connection."""


class _Waiting:
    """A call that is not answered yet."""

    __slots__ = ("future", "next_since", "silence_s")

    def __init__(self, future: asyncio.Future[memoryview], silence_s: float) -> None:
        self.future = future
        self.silence_s = silence_s
        self.next_since = 0.0
        """Loop time since when it is the next one to be answered."""


class Connection(asyncio.BufferedProtocol):
    """A connection; `connection_setup` makes them. Made on the loop's thread, and used there only."""

    def __init__(
        self,
        address: str,
        limits: Limits,
        *,
        silent: Callable[["Connection", float], None],
        client_id: str = "headrace-link",
    ) -> None:
        """`address`: for messages. `silent`: see `open_connection`."""
        self.address = address
        self._silent = silent
        self.versions: dict[int, tuple[int, int]] = {}
        """What the server speaks: API key to (lowest, highest) version."""
        self.hint = ""
        """What may be the matter if the server just closes the connection before its next answer."""
        self.is_to_itself = False
        """Connected to its own port: the kernel may choose the very port that nobody listens on as ours."""
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._exchange = Exchange[_Waiting](client_id=client_id, answer_bytes=limits.answer_bytes)
        self._room = asyncio.Semaphore(limits.under_way)
        self._writable: asyncio.Future[None] | None = None
        """Resolved when the server reads again; None while it does."""
        self._heard_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._life: asyncio.TimerHandle | None = None
        self._error: SourceUnreachable | SourceRefuses | None = None
        self._retired = False
        self._lost: asyncio.Future[None] = self._loop.create_future()

    # --- for its owner

    @property
    def is_usable(self) -> bool:
        """Further calls may be made."""
        return self._error is None and not self._retired

    @property
    def is_gone(self) -> bool:
        """The socket is closed."""
        return self._lost.done()

    async def call(
        self, api_key: int, version: int, body: Sequence[Buffer], *, silence_s: float | None = None
    ) -> memoryview:
        """The body of the answer. Raises `SourceUnreachable`, `SourceRefuses`."""
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
        """Take no more calls; end when the last has been answered."""
        self._retired = True
        if not self._exchange.under_way:
            self.abort("closed on this side")

    def retire_after(self, seconds: float) -> None:
        """Retire when so much time has passed."""
        if self._life is not None:
            self._life.cancel()
        self._life = self._loop.call_later(seconds, self.retire)

    def abort(self, reason: str) -> None:
        """End at once; calls under way raise `SourceUnreachable`."""
        self._end(SourceUnreachable(f"{self.address}: {reason}"))

    def doubt(self, since: float) -> None:
        """Another connection to the same address has heard nothing since then: nor has this one? Then it ends."""
        if self._heard_at <= since:
            self.abort("as another connection to it, it was silent")

    async def closed(self) -> None:
        """Wait until the connection is gone, after `abort`."""
        if self._transport is not None:
            await asyncio.shield(self._lost)

    def error(self) -> SourceUnreachable | SourceRefuses:
        """Why it ended, for one caller to raise."""
        return self._error.again() if self._error is not None else SourceUnreachable(f"{self.address}: not connected")

    # --- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own class, of the same shape
        if self._error is not None:  # given up while it was connecting
            self._transport.abort()
            return
        own, peer = endpoints(transport)
        self.is_to_itself = peer is not None and peer == own
        # An idle connection with a host that vanished ends after 25 s.
        keep_alive(transport.get_extra_info("socket"), idle_s=10, every_s=5, tries=3)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes from the socket go."""
        return self._exchange.responses.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """`nbytes` came."""
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
        """The server sends no more."""
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
        """The server does not read: send nothing more."""
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
        if not waiting.future.done():  # its caller may have gone
            waiting.future.set_result(body)
        if self._exchange.under_way:
            self._exchange.next.next_since = self._heard_at
        elif self._retired:
            self.abort("closed on this side")

    def _watch(self) -> None:
        """Have a timer run while a call waits; it is not moved with each answer, but when it goes off."""
        if self._timer is None and self._exchange.under_way:
            self._timer = self._loop.call_at(self._due(self._exchange.next), self._check)

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
