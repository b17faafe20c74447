"""The HTTP port's connections: few at a time, and none that keeps others out.

The kubelet's probes come through this port. So its connections have places (admission.py): a connection is new until
its first request is complete, and new ones are dropped first when room is needed; next are those that wait for another
request, or whose client does not read the answer. Slow clients have a limit for each phase:

    before the first request  `NEW_S` of admission.py
    a request, once begun     `REQUEST_S`
    between two requests      `KEPT_S`
    reading an answer         `SEND_S`
    after the last answer     `LINGER_S`: what the client still sends is discarded. If the connection were closed with
                              unread data, the kernel would reset it, and the answer could be lost on its way

One request of a connection is answered at a time, and nothing is read meanwhile. An answer is completed even if its
client is gone, since a client may well hang up during a hand-over.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from http import HTTPStatus
from typing import Final, cast

import structlog

from headrace.admin.http_exchange import Answer, HttpExchange, Request, text
from headrace.base.admission import Admission, Place
from headrace.base.awake_clock import Timer, Timers
from headrace.base.descriptor_plan import DescriptorPlan

log = structlog.get_logger()

REQUEST_S: Final = 30.0
KEPT_S: Final = 3_600.0
SEND_S: Final = 30.0
LINGER_S: Final = 1.0
SHUTDOWN_S: Final = 2.0
"""How long requests in progress may take when the port closes, in seconds."""

Answering = Callable[[Request], Awaitable[Answer]]


class HttpConnections:
    """All connections of one port."""

    def __init__(self, plan: DescriptorPlan, answering: Answering, clock: Timers) -> None:
        """`answering`: answers each request. `clock`: the clock for limits."""
        self.clock = clock
        self.admission = Admission(
            kind="http",
            most=plan.http,
            most_of_address=plan.limit,
            descriptors=plan.limit - plan.reserve // 4,
            time=clock.time,
            drop_idle=self._drop_longest_idle,
        )
        self._answering = answering
        self._idle: dict[HttpConnection, None] = {}
        """Connections without a request in progress that have had one; the longest idle first."""
        self._all: set[HttpConnection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closes = False
        self._ended = asyncio.Event()
        """Set once the port closes and no connection or request is left."""

    def connection(self, place: Place) -> "HttpConnection":
        """A protocol for a new connection, for the acceptor."""
        return HttpConnection(place, self)

    async def close(self) -> None:
        """Close all connections, those with a request in progress when it is answered, or `SHUTDOWN_S` later."""
        self._closes = True
        for each in list(self._all):
            each.end()
        self._look()
        with suppress(TimeoutError):
            async with asyncio.timeout(SHUTDOWN_S):
                await self._ended.wait()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for each in list(self._all):
            each.drop()

    def opened(self, connection: "HttpConnection") -> None:
        """Called when a connection is established."""
        self._all.add(connection)
        if self._closes:
            connection.end()

    def closed(self, connection: "HttpConnection") -> None:
        """Called when a connection is closed."""
        self._all.discard(connection)
        self._idle.pop(connection, None)
        self._look()

    def begin_answer(self, connection: "HttpConnection", request: Request) -> None:
        """Begin to answer a connection's request."""
        self._idle.pop(connection, None)
        task = asyncio.get_running_loop().create_task(self._answer(connection, request), name="http request")
        self._tasks.add(task)
        task.add_done_callback(self._answered)

    async def _answer(self, connection: "HttpConnection", request: Request) -> None:
        try:
            answer = await self._answering(request)
        except Exception:
            log.exception("a request could not be answered", method=request.method, path=request.path)
            answer = text("the node's log says why", HTTPStatus.INTERNAL_SERVER_ERROR)
        if connection in self._all:
            self._idle[connection] = None
            connection.answer(answer)

    def _answered(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._look()

    def _look(self) -> None:
        if self._closes and not self._all and not self._tasks:
            self._ended.set()

    def _drop_longest_idle(self) -> bool:
        for connection in self._idle:
            del self._idle[connection]
            connection.drop()
            return True
        return False


class HttpConnection(asyncio.Protocol):
    """One connection of the HTTP port."""

    def __init__(self, place: Place, connections: HttpConnections) -> None:
        self._place = place
        self._connections = connections
        self._loop = asyncio.get_running_loop()
        self._exchange = HttpExchange("")
        self._transport: asyncio.Transport | None = None
        self._limit: Timer | None = None
        self._dropped = False
        self._answering = False
        """Whether a request is being answered, or its answer sent."""
        self._has_begun = False
        """Whether the next request has begun to arrive, so that its time limit runs."""
        self._writes = False
        """Whether the kernel has not taken all of the answer yet."""
        self._closes = False
        """Whether the connection closes after the answer."""
        self._lingers = False
        self._heard_all = False
        """Whether the client has closed its sending side."""
        place.occupy(self.drop)

    def drop(self) -> None:
        """Abort the connection."""
        self._dropped = True
        self._place.leave()
        if self._transport is not None:
            self._transport.abort()

    def end(self) -> None:
        """Close the connection once the request in progress is answered."""
        self._closes = True
        if self._transport is not None and not self._answering:
            self._transport.close()

    def answer(self, answer: Answer) -> None:
        """Send the answer to the request in progress."""
        assert self._transport is not None
        sent, goes_on = self._exchange.answer(replace(answer, closes=answer.closes or self._closes))
        self._closes = not goes_on
        self._limit_to(SEND_S)
        self._writes = False
        self._transport.write(sent)  # calls pause_writing if the kernel does not take all of it
        if not self._writes:
            self._sent()

    # --- see asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=0)
        peer = transport.get_extra_info("peername")
        self._exchange = HttpExchange(str(peer[0]) if peer else "")
        if self._dropped:
            self._transport.abort()
        self._connections.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self._place.leave()
        self._dropped = True
        self._limit_to(None)
        self._connections.closed(self)

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        if self._lingers:
            return
        self._exchange.receive(data)
        if not self._answering:
            self._go_on()

    def eof_received(self) -> bool:
        """See asyncio.Protocol."""
        self._heard_all = True
        return self._answering and not self._lingers  # a request is answered even if its client sends nothing more

    def pause_writing(self) -> None:
        """See asyncio.Protocol."""
        self._writes = True

    def resume_writing(self) -> None:
        """See asyncio.Protocol."""
        if self._writes:
            self._writes = False
            self._sent()

    # --- requests and answers

    def _go_on(self) -> None:
        """Begin the next request, if it has arrived."""
        if self._dropped or self._transport is None or self._transport.is_closing():
            return
        self._answering = False
        match self._exchange.next():
            case Request() as request:
                self._answering, self._has_begun = True, False
                self._limit_to(None)
                self._transport.pause_reading()
                self._place.proven()
                self._connections.begin_answer(self, request)
            case Answer() as refused:
                self._answering = True
                self._transport.pause_reading()
                self.answer(refused)
            case None if self._heard_all or self._closes:
                self._transport.close()
            case None:
                if self._exchange.is_begun and not self._has_begun:
                    self._has_begun = True
                    self._limit_to(REQUEST_S)
                self._transport.resume_reading()

    def _sent(self) -> None:
        """Called when the kernel has the whole answer."""
        if self._dropped or self._transport is None or self._transport.is_closing():
            return
        if not self._closes:
            self._limit_to(KEPT_S)
            self._loop.call_soon(self._go_on)  # so that clients that pipeline requests do not delay others
        elif self._heard_all:
            self._transport.close()
        elif not self._lingers:
            self._lingers = True
            self._limit_to(LINGER_S)
            with suppress(OSError):  # the client has reset it
                self._transport.write_eof()
            self._transport.resume_reading()

    def _limit_to(self, seconds: float | None) -> None:
        """Drop the connection after `seconds`, unless this is called again before; None: no limit."""
        if self._limit is not None:
            self._limit.cancel()
        self._limit = None if seconds is None else self._connections.clock.call_later(seconds, self.drop)
