"""The TLS of `--peer-tls DIR`, and what the node's status tells of it, as listener `peer`."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from headrace.node.tls_watch import TlsWatch
from headrace.peer.client import PeerClient
from headrace.peer.server import PeerServer
from headrace.security.peer_tls import PeerTls, PeerTlsMode
from headrace.security.tls_server import TlsRefused

NAME: Final = "peer"
_SHOWN: Final = 3


class PeerListener(TlsWatch):
    """Of one node. Made by `read`, in a thread; then of the loop, but for `look`."""

    def __init__(self, tls: PeerTls, *, now: float) -> None:
        super().__init__(NAME, tls, now=now)
        self.tls = tls
        self._server: PeerServer | None = None
        self._client: PeerClient | None = None

    def serves(self, server: PeerServer, client: PeerClient) -> None:
        """Tell of these from now on."""
        self._server, self._client = server, client

    def other_problem(self) -> str:
        """With whom the node speaks in clear, where it may: what has to end before it may not."""
        if self._client is None or not (plain := self._client.spoken_plainly()):
            return ""
        shown = [f"{host}:{port} ({reason})" for (host, port), reason in sorted(plain.items())[:_SHOWN]]
        more = f" and {len(plain) - _SHOWN} more" if len(plain) > _SHOWN else ""
        return f"nodes are spoken to without TLS: {', '.join(shown)}{more}"

    def shown(self) -> Mapping[str, object]:
        """See TlsWatch.shown_as."""
        handshakes = None if self._server is None else self._server.handshakes
        return self.shown_as(
            port=0 if self._server is None else self._server.address[1],
            protocol="SSL" if self.tls.mode is PeerTlsMode.REQUIRE else "SSL, PLAINTEXT",
            failed=0 if handshakes is None else handshakes.failed,
        )


def read(folder: Path | None, mode: PeerTlsMode) -> PeerListener | None:
    """[blocking] What a folder holds; None without one. Raises TlsRefused, which names the option."""
    if folder is None:
        return None
    now = time.time()
    try:
        return PeerListener(PeerTls(folder, mode, now=now), now=now)
    except TlsRefused as error:
        raise TlsRefused(f"--peer-tls {folder}: {error}") from None
