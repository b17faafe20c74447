"""The routes between nodes, one for each ordered pair, to be cut, slowed, made lossy and broken while bytes pass
through.

`way(1, 2)` is a port that node 1 uses as node 2's. Traffic *from* one node *to* another passes through two routes: as
requests through its own, as answers through the other's. A cut loses nothing and closes nothing, like a network that
drops TCP's packets: bytes are held back until it heals, connections seem to open but receive nothing.

The proxies run in a separate thread; every method may be called from any other.
"""

import asyncio
import contextlib
import random
import threading
from collections import defaultdict
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from kit.own_ports import HOST, own_port

T = TypeVar("T")

PIECE = 256 * 1024
PIECES_PER_S = 20
"""Pieces a second on a narrow route."""
STALL_S = (0.2, 3.0)
"""Seconds from the first time-out of a segment to a time-out that has doubled a few times."""


class Ways:
    """Proxies between nodes, which are known by number. `ports` are the nodes' own peer ports."""

    def __init__(self, ports: dict[int, int]) -> None:
        self._ports = dict(ports)
        self._way: dict[tuple[int, int], int] = {}
        self._cut: set[tuple[int, int]] = set()
        self._delay_s: dict[tuple[int, int], float] = defaultdict(float)
        self.stalls = 0
        """Pieces that arrived late, among those that were lost."""
        self._lossy: dict[tuple[int, int], tuple[float, random.Random]] = {}
        self._narrow: dict[tuple[int, int], int] = {}
        self._flips: tuple[bytes, int] = (b"", 0)
        self.flipped = 0
        """The number of bits flipped so far."""
        self._silent: set[asyncio.StreamWriter] = set()
        """Ends of connections whose other end is gone silently."""
        self._connections: dict[tuple[int, int], set[asyncio.StreamWriter]] = defaultdict(set)
        self._servers: dict[tuple[int, int], asyncio.Server] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="ways", daemon=True)
        self._thread.start()
        self._healed = self._on_loop(self._make_event())
        for number in ports:
            self.add(number, ports[number])

    def add(self, number: int, port: int) -> None:
        """Add a node."""
        self._ports[number] = port
        for other in self._ports:
            for source, target in ((number, other), (other, number)):
                if source != target and (source, target) not in self._way:
                    self._way[source, target] = self._on_loop(self._serve(source, target))

    def routes_of(self, source: int) -> dict[int, int]:
        """By another node's peer port, the port that leads there from `source`."""
        return {self._ports[target]: port for (each, target), port in self._way.items() if each == source}

    def cut(self, source: int, target: int) -> None:
        """Nothing from `source` reaches `target` any more."""
        self._call(lambda: self._cut.add((source, target)))

    def cut_both(self, one: int, other: int) -> None:
        """The two nodes no longer hear each other."""
        self.cut(one, other)
        self.cut(other, one)

    def isolate(self, number: int) -> None:
        """The node hears no other node, and no other node hears it."""
        for other in self._ports:
            if other != number:
                self.cut_both(number, other)

    def slow(self, source: int, target: int, delay_s: float) -> None:
        """Delay all traffic from `source` to `target` by so many seconds."""
        self._call(lambda: self._delay_s.__setitem__((source, target), delay_s))

    def lose(self, source: int, target: int, share: float, chance: random.Random) -> None:
        """This share of the pieces from `source` to `target`, and everything after them, arrives late, as when TCP
        sends lost segments again.
        """
        self._call(lambda: self._lossy.__setitem__((source, target), (share, chance)))

    def flip(self, marker: bytes, times: int) -> None:
        """Flip a bit in transit in so many pieces that contain `marker`, between any two nodes."""
        self._call(lambda: setattr(self, "_flips", (marker, times)))

    def narrow(self, source: int, target: int, rate: int) -> None:
        """Limit each connection from `source` to `target` to so many bytes a second."""
        self._call(lambda: self._narrow.__setitem__((source, target), rate))

    def silence(self, one: int, other: int) -> None:
        """The existing connections between the two carry nothing any more, silently; new ones work as before."""

        def half_open() -> None:
            self._silent |= self._connections[one, other] | self._connections[other, one]

        self._call(half_open)

    def drop(self, one: int, other: int) -> None:
        """Reset the existing connections between the two."""

        def reset() -> None:
            for writer in [*self._connections[one, other], *self._connections[other, one]]:
                writer.transport.abort()

        self._call(reset)

    def down(self, number: int) -> None:
        """The node's process is gone: its connections are reset, and new ones refused, as a kernel does."""

        def shut() -> None:
            for (source, target), server in self._servers.items():
                if target == number:
                    server.close()
                if number in (source, target):
                    for writer in self._connections[source, target]:
                        writer.transport.abort()

        self._call(shut)

    def up(self, number: int) -> None:
        """The node is started again."""
        for source, target in list(self._way):
            if target == number:
                self._on_loop(self._serve(source, target))

    def heal(self) -> None:
        """All routes are as new; held-back bytes arrive."""

        def mend() -> None:
            self._cut.clear()
            self._delay_s.clear()
            self._lossy.clear()
            self._narrow.clear()
            self._healed.set()
            self._healed = asyncio.Event()

        self._call(mend)

    def close(self) -> None:
        """End everything."""
        self._on_loop(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _make_event(self) -> asyncio.Event:
        return asyncio.Event()

    async def _serve(self, source: int, target: int) -> int:
        async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(asyncio.CancelledError):  # only `close` ends it
                await self._carry(source, target, reader, writer)

        before = self._servers.get((source, target))
        if before is not None and before.is_serving():
            return self._way[source, target]
        port = self._way.get((source, target)) or own_port()  # it will be bound again after some time
        server = await asyncio.start_server(accepted, HOST, port)
        self._servers[source, target] = server
        return int(server.sockets[0].getsockname()[1])

    async def _carry(
        self, source: int, target: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Carry one connection that `source` has opened to `target`."""
        try:
            there, back = await asyncio.open_connection(HOST, self._ports[target])
        except OSError:
            if not self._is_cut(source, target):
                writer.transport.abort()
                return
            await self._passable(source, target)
            writer.transport.abort()
            return
        both = {writer, back}
        self._connections[source, target] |= both
        try:
            await asyncio.gather(
                self._pump(source, target, reader, back, both), self._pump(target, source, there, writer, both)
            )
        finally:
            self._connections[source, target] -= both
            self._silent -= both
            for each in both:
                each.transport.abort()

    async def _pump(
        self,
        source: int,
        target: int,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        both: set[asyncio.StreamWriter],
    ) -> None:
        with contextlib.suppress(OSError):
            while piece := await reader.read(self._most(source, target)):
                if writer in self._silent:
                    continue
                if rate := self._narrow.get((source, target)):
                    await asyncio.sleep(len(piece) / rate)
                if delay_s := self._delay_s[source, target]:
                    await asyncio.sleep(delay_s)
                share, chance = self._lossy.get((source, target), (0.0, random.Random()))
                if share and chance.random() < share:
                    self.stalls += 1
                    await asyncio.sleep(chance.uniform(*STALL_S))
                await self._passable(source, target)
                writer.write(self._flip(piece))
                await writer.drain()
        # The end of a stream travels like its bytes.
        await self._passable(source, target)
        for each in both:
            each.transport.abort()

    def _flip(self, piece: bytes) -> bytes:
        marker, left = self._flips
        at = piece.find(marker) if left else -1
        if at < 0:
            return piece
        self._flips = marker, left - 1
        self.flipped += 1
        return piece[:at] + bytes([piece[at] ^ 1]) + piece[at + 1 :]

    def _most(self, source: int, target: int) -> int:
        rate = self._narrow.get((source, target))
        return PIECE if rate is None else max(1, rate // PIECES_PER_S)

    def _is_cut(self, source: int, target: int) -> bool:
        return (source, target) in self._cut

    async def _passable(self, source: int, target: int) -> None:
        while self._is_cut(source, target):
            await self._healed.wait()

    async def _end(self) -> None:
        self._cut.clear()
        for server in self._servers.values():
            server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _call(self, change: Callable[[], object]) -> None:
        async def run() -> None:
            change()

        self._on_loop(run())

    def _on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
