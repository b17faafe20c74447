"""The TLS handshakes of one port: a connection gets its protocol only once its handshake is done.

A handshake costs the loop about a millisecond, and clients that all connect at once, or begin a handshake and fall
silent, must not keep out other clients. So a connection passes through these states; in all of them its place is new
(admission.py), so that it can be closed to make way for others:

    silent       it has sent nothing, and costs only a descriptor
    waiting      its first byte begins a TLS record, and it waits for its turn
    in progress  at most `MAX_IN_PROGRESS` at a time, of which `A_TURN` begin in one turn of the loop; each for at most
                 `HANDSHAKE_S` in which this process ran. While others wait, the handshake that began first is ended
                 after `MIN_S`. None begins while there is no room for the work after a handshake (`room`), since it
                 would be in vain

Each connection uses the context that is current when its handshake begins. Failures are counted, and logged once per
cause in `LOG_EVERY_S`. A port that also serves connections without TLS recognizes TLS by the first byte. For the loop
thread only.
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

MAX_IN_PROGRESS: Final = 64
A_TURN: Final = 8
HANDSHAKE_S: Final = 10.0
MIN_S: Final = 1.0
"""Seconds that every handshake may take even if others wait: more than the two round trips of a client on the other
side of the world."""
NEVER_S: Final = 86_400.0
"""The limit that the loop gets for a handshake: too long to take effect, since the loop also counts time in which this
process did not run."""
SHUTDOWN_S: Final = 5.0
"""Seconds after which a client that does not answer the end of TLS is cut off."""
ROOM_S: Final = 0.02
"""Seconds between two checks whether there is room for one more handshake."""
LOG_EVERY_S: Final = 60.0
MAX_CAUSES: Final = 64
_RECORD: Final = 0x16
"""The first byte of a TLS handshake. A Kafka request starts with its length, which would exceed the limit with this
first byte."""

PLAIN_CLIENT: Final = "the client does not use TLS"
OTHERS_WAIT: Final = "it took too long, and others waited"
LEFT: Final = "the client left; it may not trust the certificate, or not speak TLS 1.2 or 1.3"
TOO_LONG: Final = f"it took longer than {HANDSHAKE_S:.0f} s"
_UNTRUSTED: Final = "the client does not trust the certificate of this listener"
_REASONS: Final = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client presents no certificate, but must",
    "TLSV1_ALERT_UNKNOWN_CA": _UNTRUSTED,
    "SSLV3_ALERT_BAD_CERTIFICATE": _UNTRUSTED,
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": _UNTRUSTED,
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the client says that the certificate of this listener has expired",
    "UNSUPPORTED_PROTOCOL": "the client speaks neither TLS 1.2 nor 1.3",
    "NO_SHARED_CIPHER": "the client and this listener have no cipher in common",
    "HTTP_REQUEST": PLAIN_CLIENT,
    "WRONG_VERSION_NUMBER": PLAIN_CLIENT,
}
"""The reasons that the log gives, by OpenSSL's names."""

Protocols = Callable[[Place], asyncio.BaseProtocol]

_accepted: ContextVar[socket.socket | None] = ContextVar("accepted", default=None)


class TellingContext(ssl.SSLContext):
    """A context that sends the client the reason of a failed handshake.

    OpenSSL creates an alert for that, but event loops do not send it: the client would only see that the connection
    ended, and try again forever.
    """

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        """See SSLContext."""
        wrapped = super().wrap_bio(incoming, outgoing, *args, **kwargs)
        # Tasks started by a connection inherit its socket in their context; their own outgoing connections are clients.
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
                    accepted.send(outgoing.read())  # all earlier output was sent, as the client has answered it
                except OSError:
                    pass
            raise
        self.unsent = None


TellingContext.sslobject_class = _TellingObject


class PlainClient(OSError):
    """The first byte from a client is not the beginning of TLS."""


class TlsHandshakes:
    """The TLS handshakes of the connections that the `Acceptor` of one port has accepted."""

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
        """`context`: returns the context for a new connection. `listener`: the port's name for the log. `serves_plain`:
        admit connections without TLS too; otherwise the log gives `plain_fault` as the reason. `room`: whether one more
        handshake may begin, given the number in progress. `clock`: the clock for limits; None: the loop's."""
        self.failed = 0
        """Number of failed handshakes since the start."""
        self.plain = 0
        """Number of connections admitted without TLS since the start."""
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
        """The tasks of handshakes in progress, in the order in which they began, each with its start time and the
        client's address."""
        self._leaving = 0
        """Number of handshakes that were cancelled but still occupy their turn."""
        self._ending: Timer | None = None
        self._causes: dict[str, tuple[float, int]] = {}
        """For each cause of failure, the time when it was last logged, and the number of failures since."""

    async def connect(self, accepted: socket.socket, place: Place, protocols: Protocols) -> None:
        """Creates the connection of an accepted socket; its protocol occupies the place in `connection_made`.

        Raises OSError and ValueError if the connection fails, CancelledError if it makes way for another.
        """
        task = _current_task()

        def end() -> None:
            task.cancel()

        def protocol() -> asyncio.BaseProtocol:
            made = protocols(place)
            place.occupy(end)  # before `connection_made` the protocol cannot close the connection
            return made

        place.occupy(end)

        first = await self._first_byte(accepted)
        if not first:
            raise ConnectionResetError("it ended without a word")  # not a failure: a check whether the port answers
        if first[0] != _RECORD and self._serves_plain:
            self.plain += 1
            await self._loop.connect_accepted_socket(protocol, accepted)
            return
        try:
            if first[0] != _RECORD:
                raise PlainClient
            await self._turn()
            self._under_way[task] = (self._clock.time(), place.address)
            limit = self._clock.call_later(HANDSHAKE_S, self._end_late, task, place.address)
            self._schedule_end_of_first()
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
                self._release_turn()
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
        self._give_turns()
        self._schedule_end_of_first()
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._release_turn()
            raise

    def _release_turn(self) -> None:
        self._taken -= 1
        self._give_turns()

    def _give_turns(self) -> None:
        while self._waiting and self._taken < MAX_IN_PROGRESS and self._turn_left:
            turn = self._waiting.popleft()
            if turn.done():
                continue  # cancelled, to make way for another connection
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
        self._give_turns()

    def _next_turn(self) -> None:
        self._turn_left = A_TURN
        self._give_turns()

    def _schedule_end_of_first(self) -> None:
        """Schedules the end of the handshake that began first, if others wait for a turn."""
        if self._ending is None and self._waiting and self._under_way and self._taken >= MAX_IN_PROGRESS:
            began, _ = next(iter(self._under_way.values()))
            self._ending = self._clock.call_at(began + MIN_S, self._end_first)

    def _end_first(self) -> None:
        self._ending = None
        before = self._clock.time() - MIN_S
        while self._waiting and self._waiting[0].done():
            self._waiting.popleft()
        wanted = len(self._waiting) - self._leaving if self._taken >= MAX_IN_PROGRESS else 0
        for task, (began, address) in list(self._under_way.items())[: max(wanted, 0)]:
            if began > before:
                break
            self._end(task, OTHERS_WAIT, address)
        self._schedule_end_of_first()

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
        if cause in self._causes or len(self._causes) < MAX_CAUSES:
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
