"""How other nodes authenticate: the TLS of `--peer-tls DIR` and the secrets of `--peer-secrets FILE`.

Both follow their files while the node runs, and appear in the node's status as listener `peer`.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import structlog

from headrace.node.peer_secrets import PeerSecrets, Secrets, SecretsRefused
from headrace.node.tls_watch import TlsWatch
from headrace.peer.client import PeerClient
from headrace.peer.server import PeerServer
from headrace.security.peer_tls import PeerTls, PeerTlsMode
from headrace.security.tls_server import TlsRefused

log = structlog.get_logger()

NAME: Final = "peer"
_SHOWN: Final = 3


class PeerListener(TlsWatch):
    """One node's listener for other nodes. `read` creates it in a thread; afterwards it belongs to the event loop,
    except for `look`."""

    needs = "the certificates or secrets between nodes need attention"
    is_well = "the certificates or secrets between nodes are in order again"

    def __init__(self, tls: PeerTls | None, secrets: PeerSecrets | None, *, now: float) -> None:
        super().__init__(NAME, tls, now=now)
        self.tls = tls
        self._secrets = secrets
        self._in_use: Secrets | None = None
        self._record_secret = ""
        self._server: PeerServer | None = None
        self._client: PeerClient | None = None

    @property
    def has_files(self) -> bool:
        """Whether there are files to watch."""
        return self.tls is not None or self._secrets is not None

    def serves(self, server: PeerServer, client: PeerClient, *, secret: str) -> None:
        """Apply the files' contents to these from now on. `secret`: the secret in the cluster's record."""
        self._server, self._client, self._record_secret = server, client, secret
        self._use_secrets()

    def look(self) -> bool:
        """[blocking] Read the files again; returns whether new connections use another certificate."""
        if self._secrets is not None:
            self._secrets.look()
        return super().look()

    def report(self, *, changed: bool, now: float) -> None:
        """Use the secrets that `look` found for new connections, and log what it found, if it is new."""
        self._use_secrets()
        super().report(changed=changed, now=now)

    def _use_secrets(self) -> None:
        if self._server is None or self._client is None or not self._record_secret:
            return
        wanted = (None if self._secrets is None else self._secrets.secrets) or Secrets(self._record_secret)
        if wanted == self._in_use:
            return
        for each in (self._server, self._client):
            each.use_secrets(wanted.newest, wanted.former)
        if self._in_use is not None:
            log.info("nodes authenticate with another secret", ids=wanted.ids)
        self._in_use = wanted

    def other_problem(self) -> str:
        """What is wrong with the secrets; otherwise which nodes this node reaches without TLS, if its mode allows that.
        They need TLS before the mode can be `require`."""
        if self._secrets is not None and self._secrets.fault:
            return self._secrets.fault
        if self._client is None or not (plain := self._client.spoken_plainly()):
            return ""
        shown = [f"{host}:{port} ({reason})" for (host, port), reason in sorted(plain.items())[:_SHOWN]]
        more = f" and {len(plain) - _SHOWN} more" if len(plain) > _SHOWN else ""
        return f"nodes are contacted without TLS: {', '.join(shown)}{more}"

    def shown(self) -> Mapping[str, object]:
        """See TlsWatch.shown_as; also the ids of the secrets in use."""
        handshakes = None if self._server is None else self._server.handshakes
        shown = self.shown_as(
            port=0 if self._server is None else self._server.address[1],
            protocol=self._protocol(),
            failed=0 if handshakes is None else handshakes.failed,
        )
        return {**shown, "secrets": " ".join(self._in_use.ids) if self._in_use is not None else ""}

    def _protocol(self) -> str:
        if self.tls is None:
            return "PLAINTEXT"
        return "SSL" if self.tls.mode is PeerTlsMode.REQUIRE else "SSL, PLAINTEXT"


def read(folder: Path | None, mode: PeerTlsMode, secrets: Path | None = None) -> PeerListener | None:
    """[blocking] The listener that the files describe; None without files. Raises TlsRefused and SecretsRefused, which
    name the option."""
    if folder is None and secrets is None:
        return None
    now = time.time()
    try:
        tls = None if folder is None else PeerTls(folder, mode, now=now)
    except TlsRefused as error:
        raise TlsRefused(f"--peer-tls {folder}: {error}") from None
    try:
        return PeerListener(tls, None if secrets is None else PeerSecrets(secrets), now=now)
    except SecretsRefused as error:
        raise SecretsRefused(f"--peer-secrets {error}") from None
