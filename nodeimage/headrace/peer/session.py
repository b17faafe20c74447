"""One side of a connection between two nodes: handshake, then messages in both directions.

Everything happens on the loop's thread. Messages are delivered to one listener at a time, to which the session was
handed last; an exception in one of its methods ends only this session, and is logged.

Order: messages arrive in the order in which they were sent. `session_closed` is called once, after the last message,
and never from within `send` or `close`; if the session has ended before it is handed over, on the loop's next turn.

Back-pressure, in both directions: `send` never waits, so a sender of much data checks `pending_bytes` or awaits
`drained()`; between `pause()` and `resume()` no message is delivered and the socket is not read, so that TCP pushes
back.

Memory: the receiver may keep a payload as long as it likes. Buffers that were sent must not change until
`pending_bytes` is 0.

TLS: if the connection uses TLS, the proofs are bound to it, and data is encrypted step by step (base.paced_transport),
so that a long transfer blocks nothing else.

Faults of the other side (junk, a frame that is too long or cut short, a message that cannot be decoded, a slow
handshake) end the session with one log line that names the peer.
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
"""The number of unsent bytes above which `drained` waits until only a quarter of it is left."""
LINGER_S: Final = 1.0
"""Seconds after which the unsent bytes of a closed session are dropped."""


class PeerUnreachable(HeadraceError):
    """The other node did not answer. It is unknown whether it received the message, unless no process was there.

    `refused`: the host reported that no process is there (connection refused or reset). `timed_out`: there was no
    answer in time. Neither: the connection was closed, or the handshake failed.
    """

    def __init__(self, reason: str, *, refused: bool = False, timed_out: bool = False) -> None:
        super().__init__(reason)
        self.refused = refused
        self.timed_out = timed_out


class SessionListener(Protocol):
    """Receives the messages of a session."""

    def message_received(self, message: Message, payload: memoryview, /) -> None:
        """Handles a message. Raises MalformedRequest for one that is not allowed now, which ends the session."""

    def session_closed(self) -> None:
        """Reports that the connection is gone."""


class Session(asyncio.BufferedProtocol):
    """A connection with another node. Created by PeerServer and PeerClient."""

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
        """`among`: the owner's set of sessions, which includes this one while it is connected. `ready`: called when the
        handshake is done. `place`: the place of an accepted connection. `needs_tls`: end a connection without TLS at
        once. `clock`: the clock for time limits; None: the loop's."""
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
        """The transport, if the connection uses TLS."""
        self._frames = FrameReader(MAX_HANDSHAKE_FRAME)
        self._timer: Timer | None = None
        self._met: Met | None = None
        self._paused = False
        self._delivering = False
        self._room: asyncio.Future[None] | None = None
        """Resolved when few bytes are unsent again; None while few are."""
        self._closed: asyncio.Future[str] = self._loop.create_future()
        self._ending = False
        self._reset = False
        self.reason = ""
        """The reason why the session ended, in one line."""
        self.peer = "?"
        """The other side's address, for the log."""
        self.is_to_itself = False
        """Whether the connection is to itself: if nothing listens on the other side's port, the kernel may choose that
        very port as the local one."""
        self.heard_at = 0.0
        """The loop time at which the last bytes arrived."""
        self._listener: SessionListener = _NOBODY

    # --- for its owner

    @property
    def node(self) -> NodeId:
        """The proven node id of the other side."""
        return self.met.node

    @property
    def met(self) -> Met:
        """The other side's node and process incarnation, and the version. Only after the handshake."""
        assert self._met is not None, "the handshake is not over"
        return self._met

    @property
    def is_closed(self) -> bool:
        """Whether the session has ended or is ending: nothing is sent or delivered any longer."""
        return self._ending

    @property
    def closed(self) -> asyncio.Future[str]:
        """Resolved with `reason` when the connection is gone. May be cancelled."""
        return asyncio.shield(self._closed)

    @property
    def pending_bytes(self) -> int:
        """Bytes passed to `send` that the operating system has not accepted yet."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def hand_to(self, listener: SessionListener) -> None:
        """Delivers all messages from now on to this listener only. Without a listener, a message ends the session."""
        if self._closed.done():
            self._loop.call_soon(listener.session_closed)
        else:
            self._listener = listener

    def send(self, message: Message, buffers: Sequence[Buffer] = ()) -> None:
        """Sends a message with `buffers` as payload. Does not wait; does nothing if the session has ended.

        Raises KafkaError MESSAGE_TOO_LARGE, and sends nothing then.
        """
        if self._ending or self._transport is None:
            return
        pieces = encode_frame(message, buffers)
        if len(pieces) == 1:
            self._transport.write(pieces[0])
        else:
            self._transport.writelines(pieces)

    async def drained(self) -> None:
        """Waits until few bytes are unsent. Raises PeerUnreachable if the session has ended."""
        while self._room is not None and not self._ending:
            await asyncio.shield(self._room)
        if self._ending:
            raise self.unreachable()

    def pause(self) -> None:
        """Stops delivering messages and reading bytes until `resume`."""
        self._paused = True
        if self._transport is not None and not self._ending:
            self._transport.pause_reading()

    def resume(self) -> None:
        """Resumes delivering and reading, from the next turn of the loop on."""
        if self._paused:
            self._paused = False
            self._loop.call_soon(self._resume_reading)

    def shrink(self) -> None:
        """Shrinks the read buffer to its first size, until much data arrives again."""
        self._frames.shrink()

    def close(self, reason: str = "closed on this side") -> None:
        """Ends the session when all sent bytes have left, within `LINGER_S`. Nothing is delivered any longer."""
        if not self._end(reason) or self._transport is None:
            return
        self._start_timer(LINGER_S, self._transport.abort)
        self._transport.close()

    def abort(self, reason: str) -> None:
        """Ends the session at once; unsent bytes are dropped."""
        self._end(reason)
        if self._transport is not None:
            self._transport.abort()

    def unreachable(self) -> PeerUnreachable:
        """The error to raise for anything that waits for this ended session."""
        return PeerUnreachable(f"{self.peer}: {self.reason}", refused=self._reset)

    # --- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See BaseProtocol. Starts the handshake."""
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
        """See BufferedProtocol."""
        return self._frames.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """See BufferedProtocol. Delivers the messages that are complete."""
        self.heard_at = self._loop.time()
        self._frames.came(nbytes)
        self._deliver()

    def eof_received(self) -> bool:
        """See BufferedProtocol. Ends the session, as the other side sends nothing more."""
        if self._frames.is_within and not self._ending:
            self._fail("closed by the other side within a frame")
        else:
            self.close("closed by the other side")
        return False

    def pause_writing(self) -> None:
        """See BaseProtocol. Makes `drained` wait, as many bytes are unsent."""
        if self._paced is not None:
            self._paced.pause()
        self._hold()

    def resume_writing(self) -> None:
        """See BaseProtocol. Releases `drained`, as few bytes are unsent."""
        if self._paced is None or not self._paced.resume():
            self._release()

    def _hold(self) -> None:
        if self._room is None:
            self._room = self._loop.create_future()

    def _release(self) -> None:
        room, self._room = self._room, None
        if room is not None and not room.done():
            room.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """See BaseProtocol. Idempotent."""
        if self._closed.done():
            return
        # Before the handshake is done, a reset with TLS may be the response to this node's certificate: a peer exists.
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
        self._release()
        self._closed.set_result(self.reason)
        listener, self._listener = self._listener, _NOBODY
        try:
            listener.session_closed()
        except Exception:
            log.exception("callback of a closed session failed", peer=self.peer)

    # --- inside

    def _channel(self, transport: asyncio.BaseTransport) -> bytes:
        """The TLS channel binding for the proofs; b"" without TLS. Raises NotBound if TLS is needed but missing."""
        connection = transport.get_extra_info("ssl_object")
        if connection is None and not self._needs_tls:
            return b""
        channel = channel_binding(connection)
        assert self._transport is not None
        self._transport = self._paced = PacedTransport(self._transport, hold=self._hold, drained=self._release)
        return channel

    def _end(self, reason: str) -> bool:
        """Stops sending and delivering; returns False if the session was ending already."""
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

    def _resume_reading(self) -> None:
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
                    self._continue_handshake(self._handshake, message)
        except HandshakeFailed as error:
            self._refuse(error)
        except MalformedRequest as error:
            self._fail(str(error))
        except Exception as error:
            log.exception("callback of a session failed", peer=self.peer, node=self._met and self._met.node)
            self.abort(f"internal error: {type(error).__name__}")
        finally:
            self._delivering = False

    def _continue_handshake(self, handshake: Handshake, message: Message) -> None:
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
    """The listener of a session that has no other yet, or is gone. Refuses all messages."""

    def message_received(self, message: Message, _payload: memoryview) -> None:
        raise MalformedRequest(f"{type(message).__name__}, which nobody here waits for")

    def session_closed(self) -> None:
        pass


_NOBODY: Final = _Nobody()
