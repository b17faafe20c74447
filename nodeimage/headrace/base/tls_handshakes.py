"""The TLS handshakes of one port: a connection becomes one of its clients' only once its handshake is done.

A handshake costs the loop about a millisecond, and clients that connect all at once, or begin one and fall silent, must
not keep out those that do neither. So a connection goes through these states, in each of which its place is new, and
makes way as `admission` has it:

    silent      it has sent nothing: costs a descriptor, no more
    waiting     its first byte begins a TLS record: waits for its turn
    under way   `MOST` at a time, of which `A_TURN` begin in one turn of the loop; `HANDSHAKE_S` at most, in which this
                process ran. While others wait, the one that began first ends once it has had `LEAST_S`. Where there is
                no room for what comes behind a handshake, none begins: it would be done in vain

Each connection takes the context that is in use when its handshake begins. What fails is counted, and logged once for
each cause in `LOG_EVERY_S`. A port that serves both tells them apart by that first byte. All of the loop thread.
"""

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final

import structlog

from headrace.base.admission import Place
from headrace.base.awake_clock import Timer, Timers

log = structlog.get_logger()

MOST: Final = 64
A_TURN: Final = 8
HANDSHAKE_S: Final = 10.0
LEAST_S: Final = 1.0
"""A client on the other side of the world needs two round trips, which is less."""
NEVER_S: Final = 86_400.0
"""The loop's own limit of a handshake, which would count seconds in which this process stood still."""
SHUTDOWN_S: Final = 5.0
"""A client that does not answer the end of TLS is cut off then."""
ROOM_S: Final = 0.02
"""Between two looks whether there is room."""
LOG_EVERY_S: Final = 60.0
MOST_CAUSES: Final = 64
_RECORD: Final = 0x16
"""The first byte of a handshake. A Kafka request begins with its length, which would be beyond the limit."""

PLAIN_CLIENT: Final = "the client speaks no TLS"
OTHERS_WAIT: Final = "it took too long, and others waited"
LEFT: Final = "the client left; it may not trust the certificate, or not speak TLS 1.2 or 1.3"
TOO_LONG: Final = f"it took longer than {HANDSHAKE_S:.0f} s"
_UNTRUSTED: Final = "the client does not trust the certificate of this listener"
_REASONS: Final = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client shows no certificate, and has to",
    "TLSV1_ALERT_UNKNOWN_CA": _UNTRUSTED,
    "SSLV3_ALERT_BAD_CERTIFICATE": _UNTRUSTED,
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": _UNTRUSTED,
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the client says that the certificate of this listener has expired",
    "UNSUPPORTED_PROTOCOL": "the client speaks neither TLS 1.2 nor 1.3",
    "NO_SHARED_CIPHER": "the client and this listener have no cipher in common",
    "HTTP_REQUEST": PLAIN_CLIENT,
    "WRONG_VERSION_NUMBER": PLAIN_CLIENT,
}
"""By OpenSSL's words."""

Protocols = Callable[[Place], asyncio.BaseProtocol]

_accepted: ContextVar[socket.socket | None] = ContextVar("accepted", default=None)


class TellingContext(ssl.SSLContext):
    """A context whose failed handshakes tell the client why.

    OpenSSL makes an alert for that, which loops leave unsent: the client would only see that the connection ended, and
    try again for ever.
    """

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        """See SSLContext."""
        wrapped = super().wrap_bio(incoming, outgoing, *args, **kwargs)
        # What a connection's tasks connect to has its socket in their context too: that is not the one to tell.
        if isinstance(wrapped, _TellingObject) and wrapped.server_side and (accepted := _accepted.get()) is not None:
            wrapped.unsent = (accepted, outgoing)
        return wrapped


class _TellingObject(ssl.SSLObject):
    unsent: tuple[socket.socket, ssl.MemoryBIO] | None = None

    def do_handshake(self) -> None:
        """See SSLObject."""
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError:
            if self.unsent is not None:
                accepted, outgoing = self.unsent
                try:
                    accepted.send(outgoing.read())  # all before it has been sent: the client has answered it
                except OSError:
                    pass
            raise
        self.unsent = None


TellingContext.sslobject_class = _TellingObject


class PlainClient(OSError):
    """What came first is no TLS."""


class TlsHandshakes:
    """Of one port, whose `Acceptor` has accepted the connections."""

    def __init__(
        self,
        context: Callable[[], ssl.SSLContext],
        *,
        listener: str,
        serves_plain: bool = False,
        plain_fault: str = PLAIN_CLIENT,
        room: Callable[[int], bool] = lambda _under_way: True,
        clock: Timers | None = None,
    ) -> None:
        """`context`: what new connections use. `listener`: for the log. `serves_plain`: connections without TLS come in
        too; else `plain_fault` is what the log says of them. `room`: whether one more handshake may begin beside so
        many. `clock`: what limits go by; None: the loop's."""
        self.failed = 0
        """Since the start."""
        self.plain = 0
        """Connections without TLS that came in since the start."""
        self._context = context
        self._listener = listener
        self._serves_plain = serves_plain
        self._plain_fault = plain_fault
        self._room = room
        self._looks_for_room: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._clock: Timers = self._loop if clock is None else clock
        self._taken = 0
        self._turn_left = A_TURN
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._under_way: dict[asyncio.Task[Any], tuple[float, str]] = {}
        """In the order in which they began: since when, and the client's address."""
        self._leaving = 0
        """Those that were told to end, and have their turn still."""
        self._ending: Timer | None = None
        self._causes: dict[str, tuple[float, int]] = {}
        """When each was logged last, and how many have come since."""

    async def connect(self, accepted: socket.socket, place: Place, protocols: Protocols) -> None:
        """Make the connection of a socket that was accepted; its protocol occupies the place in `connection_made`.

        Raises OSError, ValueError where there will be none, and CancelledError where it makes way.
        """
        task = _current_task()

        def end() -> None:
            task.cancel()

        def protocol() -> asyncio.BaseProtocol:
            made = protocols(place)
            place.occupy(end)  # the protocol cannot end what it does not know yet
            return made

        place.occupy(end)

        first = await self._first_byte(accepted)
        if not first:
            raise ConnectionResetError("it ended without a word")  # who looks whether the port answers: no failure
        try:
            if first[0] != _RECORD:
                if not self._serves_plain:
                    raise PlainClient
                self.plain += 1
                await self._loop.connect_accepted_socket(protocol, accepted)
                return
            await self._turn()
            self._under_way[task] = (self._clock.time(), place.address)
            limit = self._clock.call_later(HANDSHAKE_S, self._end_late, task, place.address)
            self._end_slow()
            try:
                _accepted.set(accepted)
                await self._loop.connect_accepted_socket(
                    protocol,
                    accepted,
                    ssl=self._context(),
                    ssl_handshake_timeout=NEVER_S,
                    ssl_shutdown_timeout=SHUTDOWN_S,
                )
            finally:
                limit.cancel()
                if self._under_way.pop(task, None) is None:
                    self._leaving -= 1
                self._over()
        except (OSError, ValueError) as error:
            self._count(self._named(error), place.address)
            raise

    async def _first_byte(self, accepted: socket.socket) -> bytes:
        while True:
            try:
                return accepted.recv(1, socket.MSG_PEEK)
            except (BlockingIOError, InterruptedError):
                pass
            readable = self._loop.create_future()
            self._loop.add_reader(accepted.fileno(), _resolve, readable)
            try:
                await readable
            finally:
                self._loop.remove_reader(accepted.fileno())

    # --- turns

    async def _turn(self) -> None:
        turn = self._loop.create_future()
        self._waiting.append(turn)
        self._let_in()
        self._end_slow()
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._over()
            raise

    def _over(self) -> None:
        self._taken -= 1
        self._let_in()

    def _let_in(self) -> None:
        while self._waiting and self._taken < MOST and self._turn_left:
            turn = self._waiting.popleft()
            if turn.done():
                continue  # it made way
            if not self._room(self._taken):
                self._waiting.appendleft(turn)
                self._look_for_room()
                return
            if self._turn_left == A_TURN:
                self._loop.call_soon(self._next_turn)
            self._turn_left -= 1
            self._taken += 1
            turn.set_result(None)

    def _look_for_room(self) -> None:
        if self._looks_for_room is None:
            self._looks_for_room = self._loop.call_later(ROOM_S, self._look)

    def _look(self) -> None:
        self._looks_for_room = None
        self._let_in()

    def _next_turn(self) -> None:
        self._turn_left = A_TURN
        self._let_in()

    def _end_slow(self) -> None:
        """See to it that who began first ends in time for those that wait."""
        if self._ending is None and self._waiting and self._under_way and self._taken >= MOST:
            began, _ = next(iter(self._under_way.values()))
            self._ending = self._clock.call_at(began + LEAST_S, self._end_first)

    def _end_first(self) -> None:
        self._ending = None
        before = self._clock.time() - LEAST_S
        while self._waiting and self._waiting[0].done():
            self._waiting.popleft()
        wanted = len(self._waiting) - self._leaving if self._taken >= MOST else 0
        for task, (began, address) in list(self._under_way.items())[: max(wanted, 0)]:
            if began > before:
                break
            self._end(task, OTHERS_WAIT, address)
        self._end_slow()

    def _end_late(self, task: asyncio.Task[Any], address: str) -> None:
        if task in self._under_way:
            self._end(task, TOO_LONG, address)

    def _end(self, task: asyncio.Task[Any], reason: str, address: str) -> None:
        del self._under_way[task]
        self._leaving += 1
        task.cancel()
        self._count(reason, address)

    # --- failures

    def _named(self, error: Exception) -> str:
        cause = _cause(error)
        return self._plain_fault if cause == PLAIN_CLIENT else cause

    def _count(self, cause: str, address: str) -> None:
        self.failed += 1
        now = self._loop.time()
        logged_at, unlogged = self._causes.get(cause, (-LOG_EVERY_S, 0))
        if now - logged_at >= LOG_EVERY_S:
            log.warning(
                "TLS handshakes failed", listener=self._listener, count=unlogged + 1, last=address, reason=cause
            )
            logged_at, unlogged = now, -1
        if cause in self._causes or len(self._causes) < MOST_CAUSES:
            self._causes[cause] = (logged_at, unlogged + 1)


def _current_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _cause(error: Exception) -> str:
    match error:
        case PlainClient():
            return PLAIN_CLIENT
        case ssl.SSLCertVerificationError():
            return f"the certificate of the client is refused: {error.verify_message}"
        case ssl.SSLError():
            return _REASONS.get(error.reason or "", error.reason or LEFT)
        case OSError():
            return LEFT
        case _:
            return str(error)
