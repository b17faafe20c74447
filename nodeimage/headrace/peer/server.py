"""The listening side: accepts sessions from other nodes, answers their calls, and hands over their streams.

A session has either calls or one stream. A Call starts its handler at once, as a task that the server owns: the calls
of one session start in the order of their arrival, and may end in any order. A message of a type in `streams` hands the
session over permanently: the function of the stream passes it to a listener of its own, or closes it.

A handler runs to its end even if its caller has given up or gone, since it may be in the middle of something that is
better completed. `close` waits for all handlers, and cancels those that take longer than its grace period.

Back-pressure: a session with 256 calls in progress, or one that does not read its answers, is not read from. When 4,096
calls are in progress on all sessions together, further ones are refused. Urgent calls are answered nevertheless: they
have a session of their own, with few calls in progress.
"""

import asyncio
import socket
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec
import structlog

from headrace.base.acceptor import Acceptor
from headrace.base.admission import Admission, Place
from headrace.base.awake_clock import Timers
from headrace.base.descriptor_plan import DescriptorPlan, plan_of_process
from headrace.base.errors import Code, HeadraceError, MalformedRequest
from headrace.base.ids import NodeId
from headrace.base.tls_handshakes import TlsHandshakes
from headrace.peer.framing import Buffer, decode_message, encode_message
from headrace.peer.handshake import Identity, ServerHandshake
from headrace.peer.messages import Answer, Call, Message, Request, refusal
from headrace.peer.session import MAX_PENDING, PeerUnreachable, Session
from headrace.security.peer_tls import PeerTls, PeerTlsMode

log = structlog.get_logger()

MAX_UNDER_WAY: Final = 256
"""The most calls in progress on one session."""
MAX_ALL_UNDER_WAY: Final = 4_096
"""The most calls in progress on all sessions together."""
CLOSE_GRACE_S: Final = 5.0
MAX_UNPROVEN: Final = 4_096
"""The most sessions at a time whose handshake is not done; the oldest of them makes way for a newcomer."""
PLAIN_NODE: Final = "the other node does not use TLS: start it with --peer-tls"

Reply = Message | tuple[Message, Sequence[Buffer]]
"""The result of a handler: the answer, or the answer and its payload."""
Handler = Callable[[Any, memoryview, Session], Awaitable[Reply]]
"""Takes a request of its type, the payload, and the session. A HeadraceError is sent to the caller with its code."""
StreamHandler = Callable[[Any, Session], None]
"""Takes the first message of a stream, and the session."""


def session_admission(plan: DescriptorPlan, *, time: Callable[[], float]) -> Admission:
    """The admission of sessions. They may use their own share of descriptors, and half of the reserve."""
    return Admission(
        kind="nodes",
        most=plan.peers,
        most_of_address=plan.limit,
        descriptors=plan.limit - plan.reserve // 2,
        most_new=MAX_UNPROVEN,
        time=time,
    )


class PeerServer:
    """Serves other nodes on `listening`, a bound socket that the server owns from now on.

    `run` identifies this start of the process; `secret` is the cluster's secret. `handlers` and `streams` are looked up
    for each message, so they may change.
    """

    def __init__(
        self,
        listening: socket.socket,
        *,
        cluster_id: str,
        secret: str,
        node: NodeId,
        run: uuid.UUID,
        handlers: Mapping[type[Message], Handler],
        streams: Mapping[type[Message], StreamHandler] | None = None,
        admission: Admission | None = None,
        tls: PeerTls | None = None,
        clock: Timers | None = None,
    ) -> None:
        """`admission`: the admission of sessions; None: limited by the process's descriptors. `tls`: None: no TLS.
        `clock`: the clock for time limits; None: the loop's."""
        self._clock: Timers = asyncio.get_running_loop() if clock is None else clock
        self._listening = listening
        self._needs_tls = tls is not None and tls.mode is PeerTlsMode.REQUIRE
        self.handshakes = None if tls is None else _handshakes(tls, self._clock)
        """The TLS handshakes of sessions; None: no TLS."""
        self._identity = Identity(cluster_id, secret, node, run)
        self._handlers = handlers
        self._streams = {} if streams is None else streams
        self._admission = (
            session_admission(plan_of_process(), time=self._clock.time) if admission is None else admission
        )
        self._acceptor: Acceptor | None = None
        self._sessions: set[Session] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False

    @property
    def address(self) -> tuple[str, int]:
        """The (host, port) on which the server listens."""
        host, port = self._listening.getsockname()[:2]
        return host, port

    async def start(self) -> None:
        """Starts to listen and accept."""
        self._acceptor = Acceptor(self._listening, self._session, self._admission, self.handshakes)
        self._acceptor.start()

    async def close(self, grace_s: float = CLOSE_GRACE_S) -> None:
        """Ends all sessions and waits for all handlers; cancels those that take longer than `grace_s` seconds."""
        self._closing = True
        if self._acceptor is None:
            self._listening.close()
        else:
            self._acceptor.close()
            await self._acceptor.wait_closed()
        for session in list(self._sessions):
            session.close("this node closes")
        try:
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=grace_s)
        finally:
            for task in self._tasks:
                task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        while self._sessions:
            await asyncio.gather(*(session.closed for session in self._sessions))

    def use_secrets(self, secret: str, former: str) -> None:
        """Sets the cluster's secrets for sessions accepted from now on."""
        self._identity = replace(self._identity, secret=secret, former_secret=former)

    def _session(self, place: Place) -> Session:
        session = Session(
            ServerHandshake(self._identity),
            among=self._sessions,
            ready=self._met,
            place=place,
            needs_tls=self._needs_tls,
            clock=self._clock,
        )
        if self._closing:
            session.close("this node closes")  # accepted while closing
        return session

    def _met(self, session: Session) -> None:
        if self._closing:
            session.close("this node closes")
            return
        session.hand_to(_Calls(self, session))

    def take(self, call: Call, payload: memoryview, calls: "_Calls") -> None:
        """Starts to answer a call."""
        session = calls.session
        try:
            message = decode_message(call.message)  # now: the buffer that holds it will be overwritten
        except MalformedRequest as error:
            log.warning("call refused", peer=session.peer, node=session.node, reason=str(error))
            _answer(session, call.call, refusal(Code.UNSUPPORTED_VERSION, str(error)))
            return
        name = type(message).__name__
        handler = self._handlers.get(type(message))
        if handler is None:
            reason = f"node {self._identity.node} answers no {name}"
            log.warning("call refused", peer=session.peer, node=session.node, reason=reason)
            _answer(session, call.call, refusal(Code.UNSUPPORTED_VERSION, reason))
        elif len(self._tasks) >= MAX_ALL_UNDER_WAY and not (isinstance(message, Request) and message.urgent):
            reason = f"node {self._identity.node} has {len(self._tasks)} calls under way"
            _answer(session, call.call, refusal(Code.BROKER_NOT_AVAILABLE, reason))
        else:
            task = asyncio.get_running_loop().create_task(
                self._handle(handler, message, payload, session, call.call), name=f"answer {name}"
            )
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            calls.began(task)

    def hand_over(self, message: Message, session: Session) -> None:
        """Starts a stream. Raises MalformedRequest for a message that starts none."""
        stream = self._streams.get(type(message))
        if stream is None:
            raise MalformedRequest(f"{type(message).__name__} is neither a call nor the beginning of a stream")
        stream(message, session)

    async def _handle(
        self, handler: Handler, message: Message, payload: memoryview, session: Session, number: int
    ) -> None:
        name = type(message).__name__
        try:
            reply = await handler(message, payload, session)
            answer, buffers = reply if isinstance(reply, tuple) else (reply, ())
            _answer(session, number, answer, buffers)
        except HeadraceError as error:
            _answer(session, number, refusal(error.code, str(error)))
        except Exception as error:
            log.exception("call failed", call=name, peer=session.peer, node=session.node)
            reason = f"{name} failed on node {self._identity.node}: {type(error).__name__}: {error}"
            _answer(session, number, refusal(Code.UNKNOWN_SERVER_ERROR, reason))
        try:
            await session.drained()
        except PeerUnreachable:
            pass  # nothing receives the answer any longer


class _Calls:
    """The calls of one session."""

    def __init__(self, server: PeerServer, session: Session) -> None:
        self._server = server
        self.session = session
        self._under_way = 0

    def message_received(self, message: Message, payload: memoryview) -> None:
        """See SessionListener. Handles a message on a session that is not a stream."""
        if isinstance(message, Call):
            self._server.take(message, payload, self)
            if self._is_full:
                self.session.pause()
        elif self._under_way:
            raise MalformedRequest(f"{type(message).__name__} on a session with calls under way")
        else:
            self._server.hand_over(message, self.session)

    def session_closed(self) -> None:
        """See SessionListener. Calls in progress run to their end."""

    def began(self, task: "asyncio.Task[None]") -> None:
        """Counts a call that is in progress until `task` is done."""
        self._under_way += 1
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._under_way -= 1
        if not self._is_full:
            self.session.resume()

    @property
    def _is_full(self) -> bool:
        return self._under_way >= MAX_UNDER_WAY or (self._under_way > 0 and self.session.pending_bytes > MAX_PENDING)


def _handshakes(tls: PeerTls, clock: Timers) -> TlsHandshakes:
    return TlsHandshakes(
        lambda: tls.context,
        listener="peer",
        serves_plain=tls.mode is PeerTlsMode.ACCEPT,
        plain_fault=PLAIN_NODE,
        clock=clock,
    )


def _answer(session: Session, number: int, answer: Message, buffers: Sequence[Buffer] = ()) -> None:
    session.send(Answer(number, msgspec.Raw(encode_message(answer))), buffers)
