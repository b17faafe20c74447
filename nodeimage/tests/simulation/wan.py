"""The network between clusters: byte streams like TCP's between nodes of different clusters.

Both ends of a stream are the product's own protocols: a link's connection, and the listener's. Bytes arrive in order or
not at all, in pieces of any size. A connection that is cut keeps what was sent and delivers it when the cut heals; a
killed process resets its streams, and a process whose host is gone is silent until the host is back, or for 25 s.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from headrace.kafka.connection import Connection
from simulation.loop import PROCESS, Process, SimulatedLoop
from simulation.network import KEEPALIVE_S, WORLD

if TYPE_CHECKING:
    from simulation.node import Node

PORT = 9000
"""Node number n of a cluster listens on PORT + n, at a host that has the cluster's name."""
HIGH, LOW = 65536, 16384
"""Bytes in flight above which the writer has to pause, and below which it continues."""
PIECE = 8192


class Wan:
    """The connections between all clusters, by name."""

    def __init__(self, loop: SimulatedLoop, chance: random.Random) -> None:
        self.loop = loop
        self.hop_s = 0.001
        self.slow_s = 0.0
        self.refused: dict[str, int] = {}
        """Clusters that nobody can reach at present."""
        self.find: Callable[[str, int], Node | None] = lambda _host, _port: None
        self._chance = chance
        self._cut: dict[tuple[str, str], int] = {}
        self._held: dict[tuple[str, str], list[tuple[Side, Callable[..., None], tuple[Any, ...]]]] = {}
        self._last: dict[Side, float] = {}
        self._sides: dict[Side, None] = {}
        self._silent: dict[Node, list[Side]] = {}
        loop.dial = self._dial

    # --- faults

    def cut(self, source: str, target: str) -> None:
        """Nothing gets from one cluster to the other, until as many calls of `heal`."""
        self._cut[source, target] = self._cut.get((source, target), 0) + 1

    def heal(self, source: str, target: str) -> None:
        way = source, target
        self._cut[way] -= 1
        if not self._cut[way]:
            del self._cut[way]
            for side, arrive, args in self._held.pop(way, []):
                self.carry(side, arrive, *args)

    def reset(self, one: str, other: str) -> None:
        """All connections between two clusters break."""
        for side in self._of(lambda side: {side.cluster, side.far.cluster} == {one, other}):
            side.mute = side.far.mute = True
            self._break(side)

    def killed(self, node: "Node") -> None:
        """A node's process has ended, on its own or with its host."""
        for side in self._of(lambda side: side.node is node):
            side.gone = True
            if node.host.is_up:
                side.mute = self._chance.random() < 0.5
                self.carry(side, self._break, side.far)
            else:
                self._silent.setdefault(node, []).append(side.far)
                self.loop.call_later(KEEPALIVE_S, self._break, side.far, context=WORLD)
            del self._sides[side]

    def back(self, node: "Node") -> None:
        """A node is back: it resets connections that it does not know."""
        for far in self._silent.pop(node, []):
            self.loop.call_later(self.delay(), self._break, far, context=WORLD)

    def _of(self, chosen: Callable[["Side"], bool]) -> list["Side"]:
        return [side for side in self._sides if chosen(side)]

    def _break(self, side: "Side") -> None:
        side.post(side.lost, ConnectionResetError("reset by peer"))

    # --- carrying

    def delay(self) -> float:
        roll = self._chance.random()
        if roll < 0.01:
            return roll * 20.0  # up to 200 ms
        return 0.0002 + roll * self.hop_s + (self._chance.random() * self.slow_s if self.slow_s else 0.0)

    def carry(self, side: "Side", arrive: Callable[..., None], *args: Any) -> None:
        """Call `arrive` at the other end, after everything carried from this side before."""
        at = max(self._last.get(side, 0.0), self.loop.now + self.delay())
        self._last[side] = at
        self.loop.call_later(at - self.loop.now, self._arrived, side, arrive, args, context=WORLD)

    def _arrived(self, side: "Side", arrive: Callable[..., None], args: tuple[Any, ...]) -> None:
        way = side.cluster, side.far.cluster
        if way in self._cut:
            self._held.setdefault(way, []).append((side, arrive, args))
        elif side.far.node.host.is_up:
            arrive(*args)

    # --- connecting

    async def _dial(self, factory: Callable[[], Any], host: str, port: int) -> tuple["Side", Any]:
        process = PROCESS.get()
        assert process is not None
        target = self.find(host, port)
        if target is None:
            raise ConnectionRefusedError(f"there is no {host}:{port}")
        met: asyncio.Future[None] = self.loop.create_future()
        near, far = Side(self, process.node, process), Side(self, target, None)
        near.far, far.far = far, near

        def knock() -> None:
            there = target.process
            upper = target.upper
            if there is None or there.dead or upper is None or not upper.is_ready:
                self.carry(far, refused)
                return
            far.process = there
            self._sides[far] = None
            far.post(far.begin, lambda: Connection(upper.parts.dispatcher))
            self.carry(far, answered)

        def refused() -> None:
            if not met.done():
                met.set_exception(ConnectionRefusedError(f"{host}:{port} refuses"))

        def answered() -> None:
            if process.dead or met.done():
                self._break(far)
            else:
                self._sides[near] = None
                met.set_result(None)

        self.carry(near, knock)
        try:
            await met
        except BaseException:
            if met.done() and not met.cancelled() and met.exception() is None:
                near.abort()
            raise
        near.begin(factory)
        return near, near.protocol


class _Socket:
    def setsockopt(self, *_options: Any) -> None:
        pass


class Side(asyncio.Transport):
    """One end of a stream: the transport of its protocol."""

    far: "Side"
    serial = 0

    def __init__(self, wan: Wan, node: "Node", process: Process | None) -> None:
        super().__init__()
        Side.serial += 1
        self._serial = Side.serial
        self.node = node
        self.cluster = node.cluster.name
        self.process = process
        self.protocol: Any = None
        self.gone = False
        """Whether this side's process is dead."""
        self.mute = False
        """Whether bytes in flight from here are lost."""
        self._wan = wan
        self._closing = False
        self._lost = False
        self._reads = True
        self._paused = False
        self._inbox: deque[bytes | None] = deque()
        """Bytes received; None: the other side sends no more."""
        self._under_way = 0

    def __hash__(self) -> int:
        return self._serial

    def post(self, what: Callable[..., None], *args: Any) -> None:
        """Call something in this side's process."""
        if not self.gone and self.process is not None and not self.process.dead:
            self._wan.loop.call_soon(what, *args, context=self.process.context)

    def begin(self, factory: Callable[[], Any]) -> None:
        """The connection is open."""
        self.protocol = factory()
        self.protocol.connection_made(self)
        self._deliver()

    def lost(self, error: Exception | None) -> None:
        """The connection is gone."""
        self._closing = True
        if self._lost:
            return
        self._lost = True
        self._wan._sides.pop(self, None)
        self._inbox.clear()
        if self.protocol is not None:
            self.protocol.connection_lost(error)

    # --- as asyncio's

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        match name:
            case "socket":
                return _Socket()
            case "sockname":
                return self.cluster, PORT + self.node.number
            case "peername":
                return self.far.cluster, PORT + self.far.node.number
        return default

    def is_closing(self) -> bool:
        return self._closing

    def write(self, data: Any) -> None:
        self.writelines([data])

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        if self._closing:
            return
        data = b"".join(list_of_data)
        for start in range(0, len(data), PIECE):
            piece = data[start : start + PIECE]
            self._under_way += len(piece)
            self._wan.carry(self, self._carried, piece)
        if self._under_way > HIGH and not self._paused:
            self._paused = True
            self.protocol.pause_writing()

    def _carried(self, piece: bytes) -> None:
        self._under_way -= len(piece)
        if self._paused and self._under_way < LOW:
            self._paused = False
            self.post(self._resume)
        if not self.mute:
            self.far.post(self.far.came, piece)

    def _resume(self) -> None:
        if not self._lost:
            self.protocol.resume_writing()

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._wan.carry(self, self._ended)
            self._wan.loop.call_soon(self.lost, None)

    def _ended(self) -> None:
        self.far.post(self.far.came, None)

    def abort(self) -> None:
        if not self._lost:
            self._closing = True
            self._wan.carry(self, self._wan._break, self.far)
            self._wan.loop.call_soon(self.lost, None)

    def pause_reading(self) -> None:
        self._reads = False

    def resume_reading(self) -> None:
        if not self._reads:
            self._reads = True
            self._wan.loop.call_soon(self._deliver)

    # --- what comes

    def came(self, piece: bytes | None) -> None:
        """Bytes have arrived, or their end."""
        if not self._closing:
            self._inbox.append(piece)
            self._deliver()

    def _deliver(self) -> None:
        while self._inbox and self._reads and not self._closing and self.protocol is not None:
            piece = self._inbox.popleft()
            if piece is None:
                if not self.protocol.eof_received():
                    self.close()
                return
            while piece and not self._closing:
                buffer = self.protocol.get_buffer(-1)
                count = min(len(buffer), len(piece))
                buffer[:count] = piece[:count]
                self.protocol.buffer_updated(count)
                piece = piece[count:]
