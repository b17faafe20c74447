"""Accepts the connections of one port, as many as its `Admission` admits.

asyncio's own server is not used: it accepts every connection, and creates a transport, a protocol and its buffers
before a connection can be refused. When no descriptor is left, uvloop's server closes each new connection by means of a
descriptor that it holds in reserve, or, if another thread takes that one, fails in each turn of the loop. The acceptor
stops accepting for `PAUSE_S` instead, and clients wait in the kernel's queue.
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
"""Seconds without accepting after accept(2) failed, except for a reason that concerns only the client."""
SWEEP_S: Final = 5.0
"""Seconds between two checks for connections that have been new for too long."""
LOG_EVERY_S: Final = 60.0
BACKLOG: Final = 1_024
_AT_ONCE: Final = 64
"""The most connections that are accepted in one turn of the loop."""
_CLIENT_ERRNOS: Final = frozenset(
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
"""Errors of accept(2) that concern only the waiting connection, which is gone then."""

Factory = Callable[[Place], asyncio.BaseProtocol]


class Acceptor:
    """Accepts connections on a bound socket, which it owns from its creation on."""

    def __init__(
        self,
        listening: socket.socket,
        factory: Factory,
        admission: Admission,
        handshakes: TlsHandshakes | None = None,
        *,
        delay_s: Callable[[str], float | None] = lambda _address: 0.0,
    ) -> None:
        """`factory` creates the protocol of a connection; the protocol occupies the place, and calls `leave` at its
        end. `handshakes`: for a port with TLS; there the protocol occupies the place in `connection_made`. `delay_s`:
        the seconds that a connection from an address waits, in its place, before it is served; None: it is closed.
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
        """The tasks in `_connecting` whose delay is not over."""

    def start(self) -> None:
        """Starts to listen and accept."""
        self._listening.setblocking(False)
        self._listening.listen(BACKLOG)
        self._resume()
        self._sweep()

    def close(self) -> None:
        """Stops accepting. Accepted connections stay, except those that are delayed or in their TLS handshake."""
        self._stop()
        for task in self._delayed if self._handshakes is None else self._connecting:
            task.cancel()
        if self._sweeping is not None:
            self._sweeping.cancel()
        self._listening.close()

    async def wait_closed(self) -> None:
        """Returns when all accepted connections have their protocol or are gone."""
        await asyncio.gather(*self._connecting, return_exceptions=True)

    def _resume(self) -> None:
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
                if error.errno in _CLIENT_ERRNOS:
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
        self._paused = self._loop.call_later(PAUSE_S, self._resume)
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
            if accepted.fileno() < 0:  # closed meanwhile to make way for another connection
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
        except (OSError, ValueError) as error:  # the client reset it, or there is no memory for it
            place.leave()
            accepted.close()
            log.debug("a connection was not accepted", reason=str(error))
        except Exception:
            place.leave()
            accepted.close()
            log.exception("a connection could not be set up")
