"""The listeners of `--listeners FILE`: created at start-up; their TLS, and that of the port for other nodes, follows
its files.

Every `LOOK_S` a thread reads the files again. New connections use the files' current contents; existing connections
stay open. If a file cannot be used, the previous contents stay in use; this is logged once, and stays in the node's
status until it is repaired. The same holds for a certificate that expires soon (tls_watch). The listeners themselves do
not change until the node restarts.
"""

import asyncio
import ssl
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Final

import structlog

from headrace.base.awake_clock import Timers
from headrace.base.errors import HeadraceError
from headrace.base.tls_handshakes import PLAIN_CLIENT, TlsHandshakes
from headrace.catalog.names import DEFAULT_STREAM, stream_fault
from headrace.kafka.connection import Identify
from headrace.node.peer_listener import PeerListener
from headrace.node.tls_watch import TlsWatch
from headrace.security.client_certificate import principal_of
from headrace.security.jwks_trust import JwksTrust
from headrace.security.listener_config import ListenerConfig, ListenersRefused, parse
from headrace.security.listener_sasl import shown
from headrace.security.principals import NOBODY, Principal
from headrace.security.tls_server import ServerTls, TlsRefused

log = structlog.get_logger()

LOOK_S: Final = 10.0
MAX_BYTES: Final = 1 << 20
"""Largest size of the listeners' file."""


class ClientListener(TlsWatch):
    """One listener of the file. `read` creates it in a thread; afterwards it belongs to the event loop, except for
    `look`."""

    def __init__(self, config: ListenerConfig, *, now: float) -> None:
        """[blocking] `now`: seconds since 1970. Raises TlsRefused."""
        super().__init__(config.name, None if config.tls is None else ServerTls(config.tls, now=now), now=now)
        self.config = config
        self.port = config.port
        """The port that it listens at; for the main listener, set once it is known."""
        self.default_stream = DEFAULT_STREAM if config.default_stream is None else config.default_stream
        """The stream of topics that clients of this listener name without a path. It need not exist yet."""
        path = None if config.sasl is None else config.sasl.jwks_ca
        self._jwks = None if path is None else JwksTrust(path)
        self._jwks_changed = False
        self._handshakes: TlsHandshakes | None = None

    @property
    def has_files(self) -> bool:
        """Whether this listener has files to watch."""
        return self._jwks is not None or super().has_files

    def look(self) -> bool:
        """[blocking] Read the files again and use what changed; returns whether new connections of clients are
        affected."""
        self._jwks_changed = self._jwks is not None and self._jwks.look()
        return super().look()

    def report(self, *, changed: bool, now: float) -> None:
        """Log what `look` found, if it is new."""
        if self._jwks_changed:
            log.info("authorities of the token issuer replaced", listener=self.config.name)
            self._jwks_changed = False
        super().report(changed=changed, now=now)

    def other_problem(self) -> str:
        """A problem other than the certificate that needs attention; "": none."""
        return "" if self._jwks is None else self._jwks.fault

    def jwks_context(self) -> ssl.SSLContext | None:
        """The authorities to trust in TLS connections to the token issuer; None: the machine's own."""
        return None if self._jwks is None else self._jwks.context

    def handshakes(self, clock: Timers, room: Callable[[int], bool] = lambda _under_way: True) -> TlsHandshakes | None:
        """The object that runs this listener's TLS handshakes; None without TLS. `clock`, `room`: see TlsHandshakes."""
        if self._tls is not None and self._handshakes is None:
            tls = self._tls
            fault = f"{PLAIN_CLIENT}: its security.protocol has to be {self.config.protocol} at this port"
            self._handshakes = TlsHandshakes(
                lambda: tls.context, listener=self.config.name, plain_fault=fault, room=room, clock=clock
            )
        return self._handshakes

    def identify(self) -> Identify | None:
        """A function that returns a client's principal by what TLS has proved; None if there is no TLS."""
        if self._tls is None:
            return None
        return self._identified if self.config.sasl is None else _nobody

    def _identified(self, transport: asyncio.BaseTransport) -> Principal:
        return principal_of(transport.get_extra_info("ssl_object"), self.config.mapping)

    def shown(self) -> Mapping[str, object]:
        """This listener's part of the node's status."""
        failed = 0 if self._handshakes is None else self._handshakes.failed
        return self.shown_as(port=self.port, protocol=self.config.protocol.value, failed=failed)


class ClientListeners:
    """All listeners of a node."""

    def __init__(
        self, listeners: Sequence[ClientListener], executor: Executor, *, peer: PeerListener | None = None
    ) -> None:
        """`peer`: the listener for other nodes, if it has files to watch."""
        self.listeners = listeners
        self._watched: Sequence[ClientListener | PeerListener] = (*listeners, *(() if peer is None else (peer,)))
        self._executor = executor
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start watching the files."""
        if any(each.has_files for each in self._watched):
            self._tell({})
            self._task = asyncio.get_running_loop().create_task(self._look_on(), name="listeners' files")

    async def close(self) -> None:
        """Stop watching the files."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def shown(self) -> list[Mapping[str, object]]:
        """See `ClientListener.shown`."""
        return [each.shown() for each in self._watched]

    async def _look_on(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self.look()
            except Exception:
                log.exception("the files of a listener could not be read")

    async def look(self) -> None:
        """Read all files again now."""
        self._tell(await asyncio.get_running_loop().run_in_executor(self._executor, self._looked))

    def _looked(self) -> dict[TlsWatch, bool]:
        """[blocking] Read all files again; for each listener, whether new connections are affected."""
        return {each: each.look() for each in self._watched}

    def _tell(self, changed: Mapping[TlsWatch, bool]) -> None:
        now = time.time()
        for each in self._watched:
            each.report(changed=changed.get(each, False), now=now)


def read(path: Path | None, *, taken: Collection[str]) -> list[ClientListener]:
    """[blocking] The listeners that a file describes, with sound certificates; none without a file. `taken`: listener
    names already in use. Raises ListenersRefused and TlsRefused, which name the file or the listener.
    """
    if path is None:
        return []
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ListenersRefused(f"it has more than {MAX_BYTES} bytes")
        configs = parse(content.decode(), folder=path.parent, taken=taken)
    except OSError as error:
        raise ListenersRefused(f"--listeners {path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ListenersRefused(f"--listeners {path}: it is not UTF-8") from None
    except HeadraceError as error:
        raise ListenersRefused(f"--listeners {path}: {error}") from None
    try:
        return [_made(config) for config in configs]
    except ListenersRefused as error:
        raise ListenersRefused(f"--listeners {path}: {error}") from None


def _made(config: ListenerConfig) -> ClientListener:
    """Raises ListenersRefused, TlsRefused."""
    stream = config.default_stream
    if stream is not None and (fault := stream_fault(stream)) is not None:
        what = f'default_stream is {shown(stream)}: {fault}; write it as default_stream = "/sensors"'
        raise ListenersRefused(f"listener {config.name}: {what}")
    try:
        return ClientListener(config, now=time.time())
    except TlsRefused as error:
        raise TlsRefused(f"listener {config.name}: {error}") from None


def _nobody(_transport: asyncio.BaseTransport) -> Principal:
    """The principal of a client before SASL has identified it."""
    return NOBODY
