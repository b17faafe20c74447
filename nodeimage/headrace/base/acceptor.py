"""Accepts the connections of one port, as many as its `Admission` gives a place.

Not asyncio's own server: that accepts whatever comes, and makes a transport, a protocol and its buffers before anybody
can say no. And a server of uvloop's without a descriptor either closes each connection that comes, at the price of the
descriptor that it keeps for this, or, where another thread takes that, fails in each turn of the loop. Here accepting
stops for `PAUSE_S`, and clients wait in the kernel's queue.
"""

import asyncio
import errno
import socket
from collections.abc import Callable
from typing import Final

import structlog

from headrace.base.admission import Admission, Place
from headrace.base.tls_handshakes import TlsHandshakes

log = structlog.get_logger()

PAUSE_S: Final = 1.0
"""After an accept that failed for want of descriptors, or for a reason that is not the client's."""
SWEEP_S: Final = 5.0
"""Between two looks at connections that have not said anything."""
LOG_EVERY_S: Final = 60.0
BACKLOG: Final = 1_024
_AT_ONCE: Final = 64
"""Connections that are accepted in one turn of the loop."""
_OF_THE_CLIENT: Final = frozenset(
    {
        errno.ECONNABORTED,
        errno.EPROTO,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ENONET,
        errno.ENOPROTOOPT,
        errno.EOPNOTSUPP,
        errno.EPERM,
    }
)
"""accept(2): errors of the connection that waited, which is gone then."""

Factory = Callable[[Place], asyncio.BaseProtocol]


class Acceptor:
    """Of a bound socket, which is its own from now on."""

    def __init__(
        self,
        listening: socket.socket,
        factory: Factory,
        admission: Admission,
        handshakes: TlsHandshakes | None = None,
        *,
        delay_s: Callable[[str], float | None] = lambda _address: 0.0,
    ) -> None:
        """`factory` makes the protocol of a connection, which occupies the place, and has it `leave` at the end.
        `handshakes`: of a port for TLS alone; there the protocol occupies the place when its connection is made.
        `delay_s`: for how long a connection of an address waits, in its place, before it is served; None: it is closed.
        """
        self._listening = listening
        self._factory = factory
        self._admission = admission
        self._handshakes = handshakes
        self._delay_s = delay_s
        self._loop = asyncio.get_running_loop()
        self._accepting = False
        self._paused: asyncio.TimerHandle | None = None
        self._sweeping: asyncio.TimerHandle | None = None
        self._logged_at = -LOG_EVERY_S
        self._connecting: set[asyncio.Task[None]] = set()
        self._delayed: set[asyncio.Task[None]] = set()
        """Those of them that have yet to wait."""

    def start(self) -> None:
        """Accept."""
        self._listening.setblocking(False)
        self._listening.listen(BACKLOG)
        self._go_on()
        self._sweep()

    def close(self) -> None:
        """Accept no more. Connections that were accepted stay, but for those whose handshake is not done."""
        self._stop()
        for task in self._delayed if self._handshakes is None else self._connecting:
            task.cancel()
        if self._sweeping is not None:
            self._sweeping.cancel()
        self._listening.close()

    async def wait_closed(self) -> None:
        """Return when all that was accepted has its protocol, or is gone."""
        await asyncio.gather(*self._connecting, return_exceptions=True)

    def _go_on(self) -> None:
        self._paused = None
        self._accepting = True
        self._loop.add_reader(self._listening.fileno(), self._ready)

    def _stop(self) -> None:
        if self._paused is not None:
            self._paused.cancel()
            self._paused = None
        if self._accepting:
            self._accepting = False
            self._loop.remove_reader(self._listening.fileno())

    def _sweep(self) -> None:
        self._admission.drop_silent()
        self._sweeping = self._loop.call_later(SWEEP_S, self._sweep)

    def _ready(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                accepted, peer = self._listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _OF_THE_CLIENT:
                    continue
                self._pause(error)
                return
            address = str(peer[0]) if peer else ""
            place = self._admission.admit(address, accepted.fileno(), accepted.close)
            if place is None:
                accepted.close()
                continue
            delay_s = self._delay_s(address)
            if delay_s is None:
                place.leave()
                accepted.close()
                continue
            task = self._loop.create_task(self._connect(accepted, place, delay_s), name="accept")
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)

    def _pause(self, error: OSError) -> None:
        self._stop()
        self._paused = self._loop.call_later(PAUSE_S, self._go_on)
        self._admission.relieve()
        if self._loop.time() - self._logged_at >= LOG_EVERY_S:
            self._logged_at = self._loop.time()
            log.warning("connections wait to be accepted", reason=error.strerror, pause_s=PAUSE_S)

    async def _wait(self, delay_s: float) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._delayed.add(task)
        try:
            await asyncio.sleep(delay_s)
        finally:
            self._delayed.discard(task)

    async def _connect(self, accepted: socket.socket, place: Place, delay_s: float) -> None:
        try:
            if delay_s:
                await self._wait(delay_s)
            if accepted.fileno() < 0:  # it made way already
                return
            accepted.setblocking(False)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._handshakes is None:
                await self._loop.connect_accepted_socket(lambda: self._factory(place), accepted)
            else:
                await self._handshakes.connect(accepted, place, self._factory)
        except asyncio.CancelledError:
            place.leave()
            accepted.close()
            raise
        except (OSError, ValueError) as error:  # it was reset meanwhile, or there is no memory for it
            place.leave()
            accepted.close()
            log.debug("a connection was not taken", reason=str(error))
        except Exception:
            place.leave()
            accepted.close()
            log.exception("a connection could not be made")
