"""The calling side: concurrent calls over one connection per address, and sessions for streams.

Urgent calls have a connection of their own, since a probe of whether a node lives must not wait behind other calls.

The first call to an address creates the connection, which is kept. When the connection ends, waiting calls fail with
PeerUnreachable, and the next call creates a new connection. Nothing is sent twice, since only the caller knows whether
a call may be repeated. Calls made while a connection is being created share the attempt, each with its own timeout; the
attempt ends after `CONNECT_S`.

If TLS is required, only TLS is used. If it is optional (security.peer_tls), TLS is tried first, and after a failure the
connection is tried without TLS; an address where that worked is remembered for `PLAIN_S`.

A connection on which nothing arrived while a call timed out may be dead. It gets no further calls, so that the next
call creates a new connection, and is closed when its last call has ended.
"""

import asyncio
import ssl
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import Any, Final, NamedTuple, cast

import msgspec
import structlog

from headrace.base.awake_clock import Timers, limited
from headrace.base.errors import Code, KafkaError, MalformedRequest, code_of
from headrace.base.ids import Epoch, NodeId
from headrace.metrics.histogram import Histogram
from headrace.peer.framing import Buffer, decode_message, encode_message
from headrace.peer.handshake import HANDSHAKE_S, ClientHandshake, Identity
from headrace.peer.messages import Answer, AnswerT, Call, Message, Refused, Request
from headrace.peer.session import PeerUnreachable, Session
from headrace.security.peer_tls import PeerTls, PeerTlsMode, reason_of

log = structlog.get_logger(__name__)

CONNECT_S: Final = 3.0
"""Seconds that connecting and the handshake may take together."""

PLAIN_S: Final = 60.0
"""Seconds after which TLS is tried again with a node that was reached only without it."""
_SHUTDOWN_S: Final = 1.0

Address = tuple[str, int]


class PeerRefused(KafkaError):
    """The other node refused a call. Has that node's error code and reason."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(code_of(refused.code), refused.reason)
        self.epoch: Epoch = refused.epoch
        """See `Refused.epoch`."""


class PeerClient:
    """Calls other nodes on behalf of this node."""

    def __init__(
        self,
        *,
        cluster_id: str,
        secret: str,
        node: NodeId,
        run: uuid.UUID,
        tls: PeerTls | None = None,
        clock: Timers | None = None,
    ) -> None:
        """`tls`: None: no TLS. `clock`: the clock for time limits; None: the loop's."""
        self._clock = clock
        self._identity = Identity(cluster_id, secret, node, run)
        self._tls = tls
        self.times: dict[str, Histogram] = {}
        """The durations of answered calls, by the name of the request's type."""
        self._plain: dict[Address, _Plain] = {}
        self._connections: dict[_Line, _Connection] = {}
        self._attempts: set[asyncio.Task[None]] = set()
        self._sessions: set[Session] = set()
        self._closing = False

    async def call(
        self,
        address: Address,
        message: Request[AnswerT],
        buffers: Sequence[Buffer] = (),
        *,
        timeout_s: float,
    ) -> tuple[AnswerT, memoryview]:
        """Sends a request; returns the answer and its payload, which the caller may keep.

        Raises PeerUnreachable; PeerRefused if the other node refuses; KafkaError for an answer of the wrong type.
        """
        began, began_s = asyncio.get_running_loop().time(), monotonic()
        line = _Line(address, message.urgent)
        connection: _Connection | None = None
        try:
            async with limited(timeout_s, self._clock):
                connection = self._connection(line)
                session = await asyncio.shield(connection.ready)
                answer, payload = await connection.call(session, message, buffers)
        except TimeoutError as error:
            if connection is not None and connection.led_nowhere_since(began):
                self._retire(line, connection)
            name = type(message).__name__
            raise PeerUnreachable(
                f"{address[0]}:{address[1]} did not answer {name} within {timeout_s:g} s", timed_out=True
            ) from error
        self._answered(type(message).__name__, monotonic() - began_s)
        if isinstance(answer, Refused):
            raise PeerRefused(answer)
        if not isinstance(answer, message.answer):
            raise KafkaError(
                Code.UNKNOWN_SERVER_ERROR,
                f"{address[0]}:{address[1]} answered {type(message).__name__} with {type(answer).__name__}",
            )
        return cast(AnswerT, answer), payload

    def _answered(self, call: str, seconds: float) -> None:
        times = self.times.get(call)
        if times is None:
            times = self.times[call] = Histogram()
        times.observe(seconds)

    async def open(self, address: Address, timeout_s: float) -> Session:
        """A new session for a stream, after its handshake. Hand the session to a listener, then send an Opening.

        Raises PeerUnreachable.
        """
        try:
            async with limited(timeout_s, self._clock):
                return await self._connect(address)
        except TimeoutError as error:
            raise PeerUnreachable(
                f"{address[0]}:{address[1]} opened no session within {timeout_s:g} s", timed_out=True
            ) from error

    def use_secrets(self, secret: str, former: str) -> None:
        """Sets the cluster's secrets for sessions created from now on."""
        self._identity = replace(self._identity, secret=secret, former_secret=former)

    def spoken_plainly(self) -> dict[Address, str]:
        """The addresses with which this node communicates without TLS although it has TLS, with the reasons."""
        now = asyncio.get_running_loop().time()
        return {address: each.reason for address, each in self._plain.items() if now < each.until + PLAIN_S}

    async def close(self) -> None:
        """Ends all connections and streams; waiting calls fail with PeerUnreachable."""
        self._closing = True
        for attempt in self._attempts:
            attempt.cancel()
        await asyncio.gather(*self._attempts, return_exceptions=True)
        sessions = list(self._sessions)
        for session in sessions:
            session.abort("closed on this side")
        await asyncio.gather(*(session.closed for session in sessions))

    def _connection(self, line: "_Line") -> "_Connection":
        host, port = line.address
        if self._closing:
            raise PeerUnreachable(f"{host}:{port}: this node closes")
        connection = self._connections.get(line)
        if connection is None:
            connection = self._connections[line] = _Connection(partial(self._forget, line))
            attempt = asyncio.get_running_loop().create_task(
                self._attempt(line, connection), name=f"connect to {host}:{port}"
            )
            self._attempts.add(attempt)
            attempt.add_done_callback(self._attempts.discard)
        return connection

    async def _attempt(self, line: "_Line", connection: "_Connection") -> None:
        address = line.address
        try:
            async with limited(CONNECT_S, self._clock):
                session = await self._connect(address)
        except (PeerUnreachable, TimeoutError, asyncio.CancelledError) as error:
            self._forget(line, connection)
            match error:
                case PeerUnreachable():
                    connection.fail(error)
                case TimeoutError():
                    connection.fail(
                        PeerUnreachable(f"{address[0]}:{address[1]} opened no session in time", timed_out=True)
                    )
                case _:
                    connection.fail(PeerUnreachable(f"{address[0]}:{address[1]}: this node closes"))
                    raise
            return
        except Exception as error:  # an internal error must not prevent further attempts to reach this address
            log.exception("a connection could not be set up", peer=f"{address[0]}:{address[1]}")
            self._forget(line, connection)
            connection.fail(PeerUnreachable(f"{address[0]}:{address[1]}: internal error: {type(error).__name__}"))
            return
        session.hand_to(connection)
        connection.ready.set_result(session)

    async def _connect(self, address: Address) -> Session:
        """A session after its handshake, with TLS if possible. Raises PeerUnreachable."""
        tls = self._tls
        if tls is None:
            return await self._connect_by(address, None)
        if tls.mode is PeerTlsMode.REQUIRE:
            return await self._connect_by(address, tls.connecting)
        loop = asyncio.get_running_loop()
        known = self._plain.get(address)
        if known is not None and loop.time() < known.until:
            return await self._connect_by(address, None)
        try:
            session = await self._connect_by(address, tls.connecting)
        except PeerUnreachable as error:
            if error.refused:
                raise
            session = await self._connect_by(address, None)
            if known is None:
                log.warning("a node is contacted without TLS", peer=f"{address[0]}:{address[1]}", reason=str(error))
            self._plain[address] = _Plain(loop.time() + PLAIN_S, str(error))
            return session
        self._plain.pop(address, None)
        return session

    async def _connect_by(self, address: Address, tls: ssl.SSLContext | None) -> Session:
        """A session after its handshake, with TLS or without (None). Raises PeerUnreachable."""
        host, port = address
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()

        def met(session: Session) -> None:
            if not ready.done():
                ready.set_result(None)

        if self._closing:
            raise PeerUnreachable(f"{host}:{port}: this node closes")
        session = Session(
            ClientHandshake(self._identity),
            among=self._sessions,
            ready=met,
            needs_tls=tls is not None,
            clock=self._clock,
        )
        transport: asyncio.BaseTransport | None = None
        try:
            if tls is None:
                transport, _ = await loop.create_connection(lambda: session, host, port)
            else:
                transport, _ = await loop.create_connection(
                    lambda: session,
                    host,
                    port,
                    ssl=tls,
                    server_hostname="",
                    ssl_handshake_timeout=HANDSHAKE_S,
                    ssl_shutdown_timeout=_SHUTDOWN_S,
                )
            if session.is_to_itself:  # stored by the session, since the transport may be closed by now
                raise ConnectionRefusedError("nobody listens there")
            awaited: list[asyncio.Future[Any]] = [ready, session.closed]
            await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
        except OSError as error:
            session.abort("could not connect")
            reset = isinstance(error, ConnectionResetError)  # with TLS, a node that is there may cause it too
            refused = isinstance(error, ConnectionRefusedError) or (tls is None and reset)
            told = reason_of(error) if tls is not None and not refused else ""
            if told and self._tls is not None and self._tls.mode is PeerTlsMode.REQUIRE:  # else it is tried without
                log.warning("peer handshake failed", peer=f"{host}:{port}", reason=told)
            raise PeerUnreachable(f"{host}:{port} cannot be reached: {told or error}", refused=refused) from error
        except asyncio.CancelledError:
            session.abort("given up while connecting")
            if transport is None:
                # uvloop closes a connection that is cancelled at this moment without notifying its protocol.
                session.connection_lost(None)
            raise
        finally:
            ready.cancel()
        if self._closing:
            session.abort("this node closes")
        if session.is_closed:
            raise session.unreachable()
        return session

    def _forget(self, line: "_Line", connection: "_Connection") -> None:
        if self._connections.get(line) is connection:
            del self._connections[line]

    def _retire(self, line: "_Line", connection: "_Connection") -> None:
        self._forget(line, connection)
        connection.retire()


class _Plain(NamedTuple):
    """The state of an address that was reached only without TLS."""

    until: float
    """The loop time at which TLS is tried again."""
    reason: str


class _Line(NamedTuple):
    """The key of a connection: calls with the same address and urgency share one."""

    address: Address
    urgent: bool


class _Connection:
    """The calls to one address, over one session."""

    def __init__(self, forget: Callable[["_Connection"], None]) -> None:
        """`forget`: called when the connection takes no further calls."""
        self._forget = forget
        self.ready: asyncio.Future[Session] = asyncio.get_running_loop().create_future()
        self._waiting: dict[int, asyncio.Future[tuple[Message, memoryview]]] = {}
        self._last = 0
        self._retired = False

    async def call(self, session: Session, message: Message, buffers: Sequence[Buffer]) -> tuple[Message, memoryview]:
        """Sends a call and waits for its answer."""
        await session.drained()
        self._last += 1
        number = self._last
        future: asyncio.Future[tuple[Message, memoryview]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        try:
            session.send(Call(number, msgspec.Raw(encode_message(message))), buffers)
            return await future
        finally:
            self._waiting.pop(number, None)
            if self._retired and not self._waiting:
                session.close("led nowhere")

    def message_received(self, message: Message, payload: memoryview) -> None:
        """See SessionListener. Resolves the call that waits for this answer, if there still is one."""
        if not isinstance(message, Answer):
            raise MalformedRequest(f"{type(message).__name__} is not an answer")
        future = self._waiting.pop(message.call, None)
        if future is None or future.done():
            return
        try:
            future.set_result((decode_message(message.message), payload))
        except MalformedRequest as error:
            future.set_exception(KafkaError(Code.UNSUPPORTED_VERSION, str(error)))

    def fail(self, error: PeerUnreachable) -> None:
        """Reports that no session could be created."""
        self.ready.set_exception(error)
        self.ready.exception()  # marks it as retrieved, as nothing may be waiting for it

    def session_closed(self) -> None:
        """See SessionListener. All waiting calls fail."""
        self._forget(self)
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(self.ready.result().unreachable())

    def led_nowhere_since(self, began: float) -> bool:
        """Whether the session exists, and nothing has arrived on it since loop time `began`."""
        return self.ready.done() and not self.ready.exception() and self.ready.result().heard_at <= began

    def retire(self) -> None:
        """Closes the session when its last call has ended. The caller makes no further calls."""
        self._retired = True
        if not self._waiting:
            self.ready.result().close("led nowhere")
