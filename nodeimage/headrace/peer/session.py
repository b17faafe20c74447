"""One connection between two nodes, either side of it: handshake, then messages both ways.

Everything happens on the loop's thread. Messages go to one listener at a time, to which the session was handed last;
a fault in one of its methods ends this session alone, and is logged.

Order: messages arrive in the order in which they were sent. `session_closed` is called once, after the last message,
and never from within `send` or `close`; of a session that is gone when it is handed over, on the loop's next turn.

Back-pressure, both ways: `send` never waits, so who sends much looks at `pending_bytes` or awaits `drained()`; between
`pause()` and `resume()` no message is delivered and the socket is not read, so that TCP pushes back.

Memory: a payload is the receiver's, for as long as it likes. Buffers that were sent must not change until
`pending_bytes` is 0.

TLS: where the connection has it, the proofs are bound to it, and what is sent is encrypted step by step
(base.paced_transport), so that a long transfer holds up nobody.

The other side's faults (junk, a frame too long or cut short, a message that does not decode, a slow handshake) end
the session with one line in the log that names the peer.
"""

import asyncio
import ssl
from collections.abc import Callable, Sequence
from typing import Final, Protocol, cast

import structlog

from headrace.base.admission import Place
from headrace.base.awake_clock import Timer, Timers
from headrace.base.errors import HeadraceError, MalformedRequest
from headrace.base.ids import NodeId
from headrace.base.paced_transport import PacedTransport
from headrace.base.sockets import endpoints, keep_alive
from headrace.peer.framing import Buffer, FrameReader, decode_message, encode_frame
from headrace.peer.handshake import HANDSHAKE_S, MAX_HANDSHAKE_FRAME, Handshake, HandshakeFailed, Met
from headrace.peer.messages import Message
from headrace.security.peer_tls import NotBound, channel_binding, reason_of

log = structlog.get_logger()

MAX_PENDING: Final = 1 << 20
"""Unsent bytes above which `drained` waits, until a quarter is left."""
LINGER_S: Final = 1.0
"""For what is unsent when a session is closed; then it is dropped."""


class PeerUnreachable(HeadraceError):
    """The other node did not answer; whether it got the message is not known, except where nobody was there to.

    `refused`: its host said that nobody is there (connection refused or reset). `timed_out`: nothing was said in time.
    Neither: the connection was closed, or the handshake failed.
    """

    def __init__(self, reason: str, *, refused: bool = False, timed_out: bool = False) -> None:
        super().__init__(reason)
        self.refused = refused
        self.timed_out = timed_out


class SessionListener(Protocol):
    """Takes what comes on a session."""

    def message_received(self, message: Message, payload: memoryview, /) -> None:
        """A message came. Raises MalformedRequest for one that must not come now: the session ends."""

    def session_closed(self) -> None:
        """The connection is gone."""


class Session(asyncio.BufferedProtocol):
    """A connection with another node. Made by PeerServer and PeerClient."""

    def __init__(
        self,
        handshake: Handshake,
        *,
        among: set["Session"],
        ready: Callable[["Session"], None],
        place: Place | None = None,
        needs_tls: bool = False,
        clock: Timers | None = None,
    ) -> None:
        """`among`: its owner's sessions, where it is while it is connected. `ready`: the handshake is over. `place`:
        among the sessions that came here. `needs_tls`: a connection without it ends at once. `clock`: what limits go
        by; None: the loop's."""
        self._loop = asyncio.get_running_loop()
        self._clock: Timers = self._loop if clock is None else clock
        self._handshake: Handshake | None = handshake
        self._among = among
        self._place = place
        if place is not None:
            place.occupy(lambda: self.abort("closed for others: no handshake came first"))
        self._ready = ready
        self._needs_tls = needs_tls
        self._transport: asyncio.Transport | None = None
        self._paced: PacedTransport | None = None
        """The transport, of a connection with TLS."""
        self._frames = FrameReader(MAX_HANDSHAKE_FRAME)
        self._timer: Timer | None = None
        self._met: Met | None = None
        self._paused = False
        self._delivering = False
        self._room: asyncio.Future[None] | None = None
        """Resolved when what is unsent has become little; None while it is."""
        self._closed: asyncio.Future[str] = self._loop.create_future()
        self._ending = False
        self._reset = False
        self.reason = ""
        """Why it ended, in one line."""
        self.peer = "?"
        """The other side's address, for the log."""
        self.is_to_itself = False
        """Connected to its own port: the kernel may choose the very port that nobody listens on as ours."""
        self.heard_at = 0.0
        """Loop time at which the last bytes came."""
        self._listener: SessionListener = _NOBODY

    # --- for its owner

    @property
    def node(self) -> NodeId:
        """The other side's id, proven."""
        return self.met.node

    @property
    def met(self) -> Met:
        """The other side: node, run, version."""
        assert self._met is not None, "the handshake is not over"
        return self._met

    @property
    def is_closed(self) -> bool:
        """It has ended, or is about to: nothing is sent or delivered any more."""
        return self._ending

    @property
    def closed(self) -> asyncio.Future[str]:
        """Resolved with `reason` when the connection is gone. Cancelling it does no harm."""
        return asyncio.shield(self._closed)

    @property
    def pending_bytes(self) -> int:
        """Bytes given to `send` that the system has not taken yet."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def hand_to(self, listener: SessionListener) -> None:
        """Give this listener, and no other, what comes from now on. One that has none takes no message."""
        if self._closed.done():
            self._loop.call_soon(listener.session_closed)
        else:
            self._listener = listener

    def send(self, message: Message, buffers: Sequence[Buffer] = ()) -> None:
        """Send a message with a payload made of `buffers`. Does not wait; on a session that has ended, does nothing.

        Raises KafkaError MESSAGE_TOO_LARGE; nothing is sent then.
        """
        if self._ending or self._transport is None:
            return
        pieces = encode_frame(message, buffers)
        if len(pieces) == 1:
            self._transport.write(pieces[0])
        else:
            self._transport.writelines(pieces)

    async def drained(self) -> None:
        """Wait until little is unsent. Raises PeerUnreachable when the session has ended."""
        while self._room is not None and not self._ending:
            await asyncio.shield(self._room)
        if self._ending:
            raise self.unreachable()

    def pause(self) -> None:
        """Deliver no message and read no bytes until `resume`."""
        self._paused = True
        if self._transport is not None and not self._ending:
            self._transport.pause_reading()

    def resume(self) -> None:
        """Deliver and read again, from the next turn of the loop on."""
        if self._paused:
            self._paused = False
            self._loop.call_soon(self._go_on)

    def shrink(self) -> None:
        """Take little memory, until much comes again."""
        self._frames.shrink()

    def close(self, reason: str = "closed on this side") -> None:
        """End the session once what was sent has left, within 1 s. Nothing is delivered any more."""
        if not self._end(reason) or self._transport is None:
            return
        self._start_timer(LINGER_S, self._transport.abort)
        self._transport.close()

    def abort(self, reason: str) -> None:
        """End the session at once; what is unsent is dropped."""
        self._end(reason)
        if self._transport is not None:
            self._transport.abort()

    def unreachable(self) -> PeerUnreachable:
        """The error of whoever waits for something from a session that has ended."""
        return PeerUnreachable(f"{self.peer}: {self.reason}", refused=self._reset)

    # --- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected; the handshake begins."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own class, of the same shape
        self._among.add(self)
        own, peer = endpoints(transport)
        self.peer = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(peer)
        self.is_to_itself = peer is not None and peer == own
        if self._ending:  # closed while it was connecting
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=MAX_PENDING, low=MAX_PENDING // 4)
        # An idle session with a host that vanished ends after 25 s.
        keep_alive(transport.get_extra_info("socket"), idle_s=10, every_s=5, tries=3)
        self._start_timer(HANDSHAKE_S, lambda: self._fail(f"no handshake within {HANDSHAKE_S:g} s"))
        assert self._handshake is not None
        try:
            first = self._handshake.first(self._channel(transport))
        except NotBound as error:
            self._fail(str(error))
            return
        if first is not None:
            self.send(first)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes from the socket go."""
        return self._frames.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """`nbytes` came."""
        self.heard_at = self._loop.time()
        self._frames.came(nbytes)
        self._deliver()

    def eof_received(self) -> bool:
        """The other side sends no more, so there is nothing more to talk about."""
        if self._frames.is_within and not self._ending:
            self._fail("closed by the other side within a frame")
        else:
            self.close("closed by the other side")
        return False

    def pause_writing(self) -> None:
        """Much is unsent."""
        if self._paced is not None:
            self._paced.pause()
        self._hold()

    def resume_writing(self) -> None:
        """Little is unsent."""
        if self._paced is None or not self._paced.resume():
            self._let_go_on()

    def _hold(self) -> None:
        if self._room is None:
            self._room = self._loop.create_future()

    def _let_go_on(self) -> None:
        room, self._room = self._room, None
        if room is not None and not room.done():
            room.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone. To be told twice does no harm."""
        if self._closed.done():
            return
        # Before the handshake is over, a reset of TLS may be the answer to this node's certificate: somebody is there.
        if not self._ending and isinstance(exc, ConnectionResetError | BrokenPipeError):
            self._reset = self._paced is None or self._met is not None
        told = reason_of(exc) if isinstance(exc, ssl.SSLError) and self._met is None else ""
        if told and not self._ending:
            log.warning("peer handshake failed", peer=self.peer, reason=told)
        self._end(told or ("closed by the other side" if exc is None else str(exc)))
        if self._paced is not None:
            self._paced.forget()
        self._stop_timer()
        self._among.discard(self)
        if self._place is not None:
            self._place.leave()
        self._let_go_on()
        self._closed.set_result(self.reason)
        listener, self._listener = self._listener, _NOBODY
        try:
            listener.session_closed()
        except Exception:
            log.exception("callback of a closed session failed", peer=self.peer)

    # --- inside

    def _channel(self, transport: asyncio.BaseTransport) -> bytes:
        """What the proofs are bound to; b"": there is no TLS. Raises NotBound where there has to be."""
        connection = transport.get_extra_info("ssl_object")
        if connection is None and not self._needs_tls:
            return b""
        channel = channel_binding(connection)
        assert self._transport is not None
        self._transport = self._paced = PacedTransport(self._transport, hold=self._hold, drained=self._let_go_on)
        return channel

    def _end(self, reason: str) -> bool:
        """From now on nothing is sent or delivered; False where that is so already."""
        if self._ending:
            return False
        self._ending = True
        self.reason = reason
        self._stop_timer()
        return True

    def _start_timer(self, delay_s: float, callback: Callable[[], None]) -> None:
        self._stop_timer()
        self._timer = self._clock.call_later(delay_s, callback)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fail(self, reason: str) -> None:
        if not self._ending:
            log.warning("peer session ended", peer=self.peer, node=self._met and self._met.node, reason=reason)
        self.abort(reason)

    def _go_on(self) -> None:
        self._deliver()
        if not self._paused and not self._ending and self._transport is not None:
            self._transport.resume_reading()

    def _deliver(self) -> None:
        if self._delivering:
            return
        self._delivering = True
        try:
            while not self._ending and not self._paused:
                frame = self._frames.next()
                if frame is None:
                    break
                message = decode_message(frame[0])
                if self._handshake is None:
                    self._listener.message_received(message, frame[1])
                else:
                    self._greet(self._handshake, message)
        except HandshakeFailed as error:
            self._refuse(error)
        except MalformedRequest as error:
            self._fail(str(error))
        except Exception as error:
            log.exception("callback of a session failed", peer=self.peer, node=self._met and self._met.node)
            self.abort(f"internal error: {type(error).__name__}")
        finally:
            self._delivering = False

    def _greet(self, handshake: Handshake, message: Message) -> None:
        answer = handshake.receive(message)
        if answer is not None:
            self.send(answer)
        if handshake.met is not None:
            self._met, self._handshake = handshake.met, None
            self._frames.take_longer()
            self._stop_timer()
            if self._place is not None:
                self._place.proven()
            self._ready(self)

    def _refuse(self, error: HandshakeFailed) -> None:
        log.warning("peer handshake failed", peer=self.peer, reason=str(error))
        if error.tell is not None:
            self.send(error.tell)
        self.close(str(error))


class _Nobody:
    """The listener of a session that has none yet, or is gone."""

    def message_received(self, message: Message, _payload: memoryview) -> None:
        raise MalformedRequest(f"{type(message).__name__}, which nobody here waits for")

    def session_closed(self) -> None:
        pass


_NOBODY: Final = _Nobody()
