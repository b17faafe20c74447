"""The network between simulated nodes: sessions and calls, as headrace.peer provides them, over links that fail.

Messages of one connection arrive in order or not at all. A link that is cut keeps what was sent, as TCP does, and
delivers it when the cut heals, however old it is by then. A killed process resets its connections, while a host that is
gone is silent until it is back.
"""

import asyncio
import random
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from headrace.base.errors import Code, HeadraceError, KafkaError
from headrace.base.ids import NodeId
from headrace.peer.client import PeerRefused
from headrace.peer.handshake import Met
from headrace.peer.messages import PEER_VERSION, Message, refusal
from headrace.peer.session import PeerUnreachable, SessionListener
from simulation.loop import PROCESS, Process, SimulatedLoop, fail
from simulation.strangers import Strangers

T = TypeVar("T")

NO_RUN = uuid.UUID(int=0)
MAX_PENDING = 64 * 1024
KEEPALIVE_S = 25.0
PORT = 7000
"""Host number n listens on PORT + n."""


class Host:
    """A machine with one node. Clients are on host 0, which has no node."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.process: Process | None = None
        self.is_up = True
        self.handlers: Mapping[type, Callable[..., Awaitable[Any]]] = {}
        self.streams: Mapping[type, Callable[..., None]] = {}
        self.peer_version = PEER_VERSION
        """The newest version of the peer protocol that the host's process supports."""
        self.ends: dict[End, None] = {}
        self.calls: dict[_Call, None] = {}
        self.silent: list[End] = []
        """The far ends of connections that broke silently."""


class Network:
    """The links between all hosts."""

    def __init__(self, loop: SimulatedLoop, chance: random.Random, trace: Callable[[str], None]) -> None:
        self.loop = loop
        self.hosts: dict[int, Host] = {0: Host(0)}
        self.trace = trace
        self.slow_s = 0.0
        self.hop_s = 0.001
        self.strangers = Strangers()
        self._chance = chance
        self._cut: dict[tuple[int, int], int] = {}
        self._held: dict[tuple[int, int], list[tuple[object, Callable[..., None], tuple[Any, ...]]]] = {}
        self._last: dict[object, float] = {}
        self._resumed: dict[object, float] = {}
        """By lane, the time at which the last of the messages held back by cuts arrives."""

    # --- faults

    def cut(self, source: int, target: int) -> None:
        """Nothing gets from one host to the other, until as many calls of `heal`."""
        self._cut[source, target] = self._cut.get((source, target), 0) + 1

    def heal(self, source: int, target: int) -> None:
        link = source, target
        self._cut[link] -= 1
        if not self._cut[link]:
            del self._cut[link]
            for lane, arrive, args in self._held.pop(link, []):
                self._resume(lane, link, arrive, args)

    def is_cut(self, source: int, target: int) -> bool:
        return (source, target) in self._cut

    def reset(self, one: int, other: int) -> None:
        """Break all connections between two hosts."""
        for end in [end for end in self.hosts[one].ends if end.far.host.number == other]:
            end.mute = end.far.mute = True
            self._break(end, lossy=True)
            self._break(end.far, lossy=True)

    def lose(self, end: "End") -> None:
        """One connection leads nowhere, until the operating systems of both sides notice."""
        end.mute = end.far.mute = True
        for each in (end, end.far):
            self.loop.call_later(KEEPALIVE_S, self._break, each, True)

    def killed(self, host: Host) -> None:
        """A host's process has ended, on its own or with its host."""
        for end in list(host.ends):
            end.gone = True
            far = end.far
            if host.is_up:
                lossy = self._chance.random() < 0.5
                end.mute |= lossy
                self.carry_on(end, (host.number, far.host.number), self._break, far, lossy)
            else:
                host.silent.append(far)
                self.loop.call_later(KEEPALIVE_S, self._break, far, True)
        host.ends.clear()
        for call in list(host.calls):
            if host.is_up:
                error = PeerUnreachable(f"host {host.number} reset the connection", refused=True)
                self.carry(host.number, call.source, call.failed, error)
        host.calls.clear()

    def back(self, host: Host) -> None:
        """A host is up again: it resets connections that it does not know."""
        host.is_up = True
        for far in host.silent:
            self.carry(host.number, far.host.number, self._break, far, True)
        host.silent.clear()

    def _break(self, end: "End", lossy: bool) -> None:
        process = end.process
        if not end.gone and process is not None and not process.dead:
            self.loop.call_soon(end.broke, lossy, context=process.context)

    # --- carrying

    def delay(self) -> float:
        roll = self._chance.random()
        if roll < 0.01:
            return roll * 5.0  # up to 50 ms
        return 0.0001 + roll * self.hop_s + (self._chance.random() * self.slow_s if self.slow_s else 0.0)

    def carry(self, source: int, target: int, arrive: Callable[..., None], *args: Any) -> None:
        """Call `arrive` when the message gets there, after everything carried this way before. The message is lost if
        the host is gone.
        """
        self.carry_on((source, target), (source, target), arrive, *args)

    def carry_on(self, lane: object, link: tuple[int, int], arrive: Callable[..., None], *args: Any) -> None:
        """Call `arrive` after everything carried on one lane before: connections of a link can overtake each other."""
        now = self.loop.now
        at = max(self._last.get(lane, 0.0), now + self.delay())
        self._last[lane] = at
        self.loop.call_later(at - now, self._arrived, lane, link, arrive, args, context=WORLD)

    def _resume(self, lane: object, link: tuple[int, int], arrive: Callable[..., None], args: tuple[Any, ...]) -> None:
        """Deliver what a cut held back, with nothing that was sent later before it."""
        now = self.loop.now
        at = self._last[lane] = self._resumed[lane] = max(self._last.get(lane, 0.0), now + self.delay())
        self.loop.call_later(at - now, self._arrived, lane, link, arrive, args, True, context=WORLD)

    def _arrived(
        self,
        lane: object,
        link: tuple[int, int],
        arrive: Callable[..., None],
        args: tuple[Any, ...],
        resumed: bool = False,
    ) -> None:
        if not resumed and self.loop.now < self._resumed.get(lane, 0.0):
            self._resume(lane, link, arrive, args)  # it was in flight when the cut healed
        elif link in self._cut:
            self._held.setdefault(link, []).append((lane, arrive, args))
        elif self.hosts[link[1]].is_up:
            arrive(*args)

    # --- connections

    async def open(self, source: Host, address: tuple[str, int], timeout_s: float) -> "End":
        """See `PeerClient.open`."""
        target = self.hosts[address[1] - PORT]
        opened: asyncio.Future[End] = self.loop.create_future()
        process = PROCESS.get()
        assert process is not None
        near = End(self, source, process)

        def knock() -> None:
            there = target.process
            if there is None or there.dead:
                error = PeerUnreachable(f"host {target.number} refuses", refused=True)
                self.carry(target.number, source.number, fail, opened, error)
                return
            if reason := self.strangers.why_apart(source.number, target.number):
                error = PeerUnreachable(f"host {target.number}: {reason}")
                self.carry(target.number, source.number, fail, opened, error)
                return
            self.loop.call_soon(met, there, context=there.context)

        def met(there: Process) -> None:
            far = End(self, target, there)
            near.far, far.far = far, near
            far.hand_to(_Beginning(target, far))
            target.ends[far] = None
            self.carry(target.number, source.number, answered)

        def answered() -> None:
            if opened.done() or process.dead:
                near.gone = True
                self._break(near.far, False)
            else:
                source.ends[near] = None
                opened.set_result(near)

        self.carry(source.number, target.number, knock)
        return await self._within(timeout_s, opened, f"host {target.number} opened no session")

    async def call(
        self, source: Host, address: tuple[str, int], message: Any, buffers: Sequence[Any] = (), *, timeout_s: float
    ) -> tuple[Any, memoryview]:
        """See `PeerClient.call`."""
        target = self.hosts[address[1] - PORT]
        call = _Call(self, source.number, target, message, memoryview(b"".join(buffers)))
        self.carry(source.number, target.number, call.arrived)
        reason = f"host {target.number} did not answer {type(message).__name__}"
        return await self._within(timeout_s, call.answer, reason)

    async def _within(self, timeout_s: float, awaited: asyncio.Future[T], reason: str) -> T:
        """The awaited result; raises PeerUnreachable with this reason if it takes longer."""
        timer = self.loop.call_later(timeout_s, fail, awaited, PeerUnreachable(reason, timed_out=True))
        try:
            return await awaited
        finally:
            timer.cancel()


WORLD = Process("world").context
"""The context of callbacks that belong to no process."""
WORLD.run(PROCESS.set, None)


class _Call:
    """A call and its answer."""

    __slots__ = ("_message", "_network", "_payload", "_target", "answer", "source")

    def __init__(self, network: Network, source: int, target: Host, message: Message, payload: memoryview) -> None:
        self.source = source
        self.answer: asyncio.Future[tuple[Any, memoryview]] = network.loop.create_future()
        self._network = network
        self._target = target
        self._message = message
        self._payload = payload

    def arrived(self) -> None:
        process = self._target.process
        if process is None or process.dead:
            error = PeerUnreachable(f"host {self._target.number} refuses", refused=True)
            self._network.carry(self._target.number, self.source, self.failed, error)
            return
        if reason := self._network.strangers.why_apart(self.source, self._target.number):
            error = PeerUnreachable(f"host {self._target.number}: {reason}")
            self._network.carry(self._target.number, self.source, self.failed, error)
            return
        self._target.calls[self] = None
        self._network.loop.call_soon(self._handle, context=process.context)

    def _handle(self) -> None:
        self._network.loop.spawn(self._run())

    async def _run(self) -> None:
        handler = self._target.handlers.get(type(self._message), _nobody)
        try:
            answer = await handler(self._message, self._payload, None)
            payload = memoryview(b"")
            if isinstance(answer, tuple) and isinstance(answer[0], Message):
                answer, payload = answer[0], memoryview(b"".join(answer[1]))
            reply: Callable[[], None] = lambda: self.answered((answer, payload))  # noqa: E731
        except KafkaError as error:
            refused = PeerRefused(refusal(error.code, str(error)))
            reply = lambda: self.failed(refused)  # noqa: E731
        except HeadraceError as error:
            refused = PeerRefused(refusal(error.code, str(error)))
            reply = lambda: self.failed(refused)  # noqa: E731
        self._target.calls.pop(self, None)
        self._network.carry(self._target.number, self.source, reply)

    def answered(self, answer: tuple[Any, memoryview]) -> None:
        if not self.answer.done():
            self.answer.set_result(answer)

    def failed(self, error: HeadraceError) -> None:
        fail(self.answer, error)


class End:
    """One side of a connection, with headrace.peer.session.Session's interface."""

    far: "End"

    def __init__(self, network: Network, host: Host, process: Process) -> None:
        self.host = host
        self.process = process
        self.gone = False
        """Whether there is no process at this end any more."""
        self.mute = False
        """Whether messages in flight from here are lost."""
        self._listener: SessionListener | None = None
        self._network = network
        self._loop = network.loop
        self._ending = False
        self._closed: asyncio.Future[str] = network.loop.create_future()
        self._paused = False
        self._inbox: deque[tuple[Any, memoryview] | None] = deque()
        """Messages received; None: the far side has closed."""
        self._room: asyncio.Future[None] | None = None
        self.pending_bytes = 0

    @property
    def met(self) -> Met:
        """The far side, as the handshake would identify it; of a node, only the version is known here."""
        version = min(self.host.peer_version, self.far.host.peer_version)
        return Met(NodeId(self.far.host.number), NO_RUN, version)

    @property
    def is_closed(self) -> bool:
        return self._ending

    @property
    def closed(self) -> asyncio.Future[str]:
        return asyncio.shield(self._closed)

    def hand_to(self, listener: SessionListener) -> None:
        if self._closed.done():
            self._loop.call_soon(listener.session_closed)
        else:
            self._listener = listener

    def send(self, message: Message, buffers: Sequence[Any] = ()) -> None:
        if self._ending:
            return
        payload = memoryview(b"".join(buffers))
        self.pending_bytes += len(payload)
        self._carry(message, payload)

    async def drained(self) -> None:
        while self.pending_bytes > MAX_PENDING and not self._ending:
            self._room = self._loop.create_future()
            await self._room
        if self._ending:
            raise PeerUnreachable(f"host {self.far.host.number}: closed")

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        if self._paused:
            self._paused = False
            self._loop.call_soon(self._deliver)

    def shrink(self) -> None:
        pass

    def close(self, reason: str = "") -> None:
        if self._ending:
            return
        self._ending = True
        self._carry(None, memoryview(b""))
        self._loop.call_later(self._network.delay(), self._end)

    def _carry(self, message: Message | None, payload: memoryview) -> None:
        link = self.host.number, self.far.host.number
        self._network.carry_on(self, link, self._carried, message, payload)

    # --- events

    def _carried(self, message: Message | None, payload: memoryview) -> None:
        """The message has arrived at the far host."""
        far = self.far
        if self.pending_bytes:
            self.pending_bytes -= len(payload)
            if self._room is not None and not self._room.done() and self.pending_bytes <= MAX_PENDING // 4:
                self._room.set_result(None)
        if self.mute or far.gone or far.process.dead:
            return
        if message is None:
            self._loop.call_soon(far._received, None, context=far.process.context)
        else:
            self._network.trace(f"{type(message).__name__} {self.host.number}>{far.host.number} {len(payload)}")
            self._loop.call_soon(far._received, (message, payload), context=far.process.context)

    def broke(self, lossy: bool) -> None:
        """The connection is gone; messages that were not read yet may be lost."""
        if lossy:
            self._inbox.clear()
        self._received(None)

    def _received(self, item: tuple[Any, memoryview] | None) -> None:
        self._inbox.append(item)
        self._deliver()

    def _deliver(self) -> None:
        while self._inbox and not self._paused and not self._ending:
            item = self._inbox.popleft()
            if item is None:
                self._ending = True
                self._loop.call_soon(self._end)
                return
            assert self._listener is not None, f"{type(item[0]).__name__}, which nobody here waits for"
            self._listener.message_received(*item)

    def _end(self) -> None:
        if self._closed.done():
            return
        self._closed.set_result("")
        self.host.ends.pop(self, None)
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.session_closed()


class _Beginning:
    """The listener at the far side, until a stream begins."""

    def __init__(self, host: Host, end: End) -> None:
        self._host = host
        self._end = end

    def message_received(self, message: Message, _payload: memoryview) -> None:
        self._host.streams.get(type(message), _hang_up)(message, self._end)

    def session_closed(self) -> None:
        pass


def _hang_up(_message: Any, end: End) -> None:
    """Nobody listens yet, in a process that has just started."""
    end.close()


async def _nobody(message: Any, _payload: memoryview, _session: None) -> None:
    raise KafkaError(Code.LEADER_NOT_AVAILABLE, f"nobody here answers {type(message).__name__} yet")
