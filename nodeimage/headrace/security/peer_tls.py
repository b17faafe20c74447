"""The TLS of connections between nodes: TLS 1.3 both ways, by the cluster's own authority.

    DIR/tls.crt   PEM: this node's certificate, followed by those between it and its authority
    DIR/tls.key   PEM: its key, without a password
    DIR/ca.crt    PEM: the authorities whose certificates nodes show each other, while they change the old and the new

These are the names in a TLS Secret of Kubernetes. Each side shows its certificate, which is for servers and for clients
(where it says for what it is), and checks the other's by `ca.crt`. Names in certificates are not looked at: the
cluster's authority signs nodes and nobody else, and which node it is, is proven behind TLS (peer.handshake).

`channel_binding` is what that proof is bound to: equal at both ends of one TLS connection, and at no other two ends.

    SHA-256 of a label with its version, SHA-256 of the server's certificate, SHA-256 of the client's (as RFC 5929's
    tls-server-end-point, for both sides), and the Finished message of the client

The Finished message is a MAC over the whole handshake, certificates and key shares included, by keys that only the two
ends have. (RFC 5929's tls-unique; with TLS 1.3 it has no name, and Python 3.11 no exporter, which is RFC 9266's. What
spoiled it before 1.3, renegotiation and keys that two sessions share, is not there: 1.3 has neither, and nothing is
resumed here, as no client offers a session.) So whoever ends a node's TLS connection and passes its messages on in
another one, with a key that was stolen from a node or shared by all of them, gets proofs that fit neither.

Mode `require` speaks and takes nothing but TLS. `accept` is for the way there: it takes both, tries TLS first, and goes
on in clear where that fails, for whatever reason, and says so; it withstands nobody who can change what is on the way.
"""

import hashlib
import ssl
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from headrace.base.errors import Code, HeadraceError
from headrace.base.tls_handshakes import TellingContext
from headrace.security.tls_server import ClientAuth, Loaded, ServerTls, TlsFiles, TlsRefused, load

_LABEL: Final = b"headrace peer channel 1\0"


class PeerTlsMode(StrEnum):
    """Whether nodes speak in clear too."""

    ACCEPT = "accept"
    REQUIRE = "require"


class NotBound(HeadraceError):
    """A connection to which no proof can be bound."""

    code = Code.CLUSTER_AUTHORIZATION_FAILED


class PeerContext(TellingContext):
    """A context that knows its own certificate."""

    own: bytes
    """SHA-256 of it."""


@dataclass(frozen=True, slots=True)
class PeerLoaded(Loaded):
    """`context` is for connections that come, `connecting` for those that this node makes."""

    connecting: ssl.SSLContext


class PeerTls(ServerTls):
    """Of one node. Made with files that are sound. [blocking] throughout; one thread at a time."""

    loaded: PeerLoaded

    def __init__(self, folder: Path, mode: PeerTlsMode = PeerTlsMode.REQUIRE, *, now: float) -> None:
        """`now`: seconds since 1970. Raises TlsRefused."""
        self.mode = mode
        files = TlsFiles(folder / "tls.crt", folder / "tls.key", folder / "ca.crt", ClientAuth.REQUIRED)
        super().__init__(files, now=now)

    @property
    def connecting(self) -> ssl.SSLContext:
        """What connections use that this node makes."""
        return self.loaded.connecting

    def _load(self, files: TlsFiles, content: dict[Path, bytes], *, now: float) -> PeerLoaded:
        checked = load(files, content, now=now)
        server, client = (_context(kind, files, content) for kind in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT))
        server.own = client.own = _meet_oneself(server, client, files)
        return PeerLoaded(server, checked.not_after, client)


def channel_binding(connection: ssl.SSLObject | None) -> bytes:
    """What a proof is bound to, of a connection whose TLS handshake is done. Raises NotBound."""
    if connection is None or not isinstance(connection.context, PeerContext):
        raise NotBound("the connection has no TLS of nodes")
    other, finished = connection.getpeercert(binary_form=True), connection.get_channel_binding("tls-unique")
    if other is None or finished is None or connection.version() != "TLSv1.3":
        raise NotBound("the other side has shown no certificate")
    own, shown = connection.context.own, hashlib.sha256(other).digest()
    server, client = (own, shown) if connection.server_side else (shown, own)
    return hashlib.sha256(_LABEL + server + client + finished).digest()


def reason_of(error: BaseException | None) -> str:
    """Why there is no TLS connection, in words for a log's line; "": it is nothing of TLS."""
    match error:
        case ssl.SSLCertVerificationError():
            return f"the other node's certificate is refused: {error.verify_message}"
        case ssl.SSLEOFError() | ConnectionResetError() | ConnectionAbortedError() | BrokenPipeError():
            return "the other node ended the TLS handshake; it may speak no TLS"
        case ssl.SSLError():
            reason = str(getattr(error, "reason", None) or "")  # loops make some without one
            return _REASONS.get(reason, f"TLS failed: {reason or error}")
    return ""


_UNTRUSTED: Final = "the other node refuses this node's certificate: its ca.crt lacks the authority"
_REASONS: Final = {
    "TLSV1_ALERT_UNKNOWN_CA": _UNTRUSTED,
    "SSLV3_ALERT_BAD_CERTIFICATE": _UNTRUSTED,
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": _UNTRUSTED,
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the other node refuses this node's certificate: it has expired",
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": "the other node refuses this node's certificate: it is for another purpose",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the other node asks for a certificate",
    "TLSV1_ALERT_PROTOCOL_VERSION": "the other node speaks no TLS 1.3",
    "UNSUPPORTED_PROTOCOL": "the other node speaks no TLS 1.3",
    "WRONG_VERSION_NUMBER": "the other node speaks no TLS",
}
"""By OpenSSL's words."""


def _context(kind: int, files: TlsFiles, content: dict[Path, bytes]) -> PeerContext:
    """Of files that `load` has found to be sound."""
    assert files.client_ca is not None
    context = PeerContext(kind)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(files.certificate, files.key)
    context.load_verify_locations(cadata=content[files.client_ca].decode("ascii"))
    if kind == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0
    return context


def _meet_oneself(server: ssl.SSLContext, client: ssl.SSLContext, files: TlsFiles) -> bytes:
    """SHA-256 of the certificate. Raises TlsRefused where other nodes with the same authorities would refuse it."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    connecting = client.wrap_bio(to_client, to_server)
    connected = server.wrap_bio(to_server, to_client, server_side=True)
    try:
        # The client's first word, all of the server's, the client's last, which the server checks.
        for side in (connecting, connected, connecting, connected):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                pass
    except ssl.SSLError as error:
        told = getattr(error, "verify_message", "") or error.reason
        raise TlsRefused(
            f"other nodes would refuse the certificate in {files.certificate}: {told}; it has to be of an authority in "
            f"{files.client_ca}, for servers and for clients"
        ) from None
    shown = connecting.getpeercert(binary_form=True)
    if shown is None or shown != connected.getpeercert(binary_form=True):
        raise TlsRefused(f"{files.certificate} changed while it was read")
    return hashlib.sha256(shown).digest()
