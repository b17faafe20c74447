"""The TLS of connections between nodes: TLS 1.3 both ways, by the cluster's own authority.

    DIR/tls.crt   PEM: this node's certificate, then those between it and its authority
    DIR/tls.key   PEM: its key, without a password
    DIR/ca.crt    PEM: the authorities of the nodes' certificates; during a change, the old and the new one

These are the names in a TLS Secret of Kubernetes. Each side shows its certificate, valid for servers and for clients
(if it names its uses), and checks the other's against `ca.crt`. Names in certificates are ignored: the
cluster's authority signs nodes only, and a node's identity is proved inside TLS (peer.handshake).

That proof is bound to `channel_binding`, which is equal at both ends of one TLS connection, and at no other two ends.

    SHA-256 of a label with its version, SHA-256 of the server's certificate, SHA-256 of the client's (as RFC 5929's
    tls-server-end-point, for both sides), and the Finished message of the client

The Finished message is a MAC over the whole handshake, certificates and key shares included, by keys that only the two
ends have. (This is RFC 5929's tls-unique; TLS 1.3 defines no such name, and Python 3.11 has no exporter for RFC 9266's
replacement. What spoiled tls-unique before TLS 1.3, renegotiation and keys shared by two sessions, does not apply: 1.3
has neither, and no session is resumed, as no client offers one.) So an attacker who terminates a node's TLS connection
and relays its messages over another one, with a key that was stolen from a node or is shared by all of them, gets
proofs that fit only the connection on which they were given.

Mode `require` speaks and accepts nothing but TLS. `accept` is for migration: it accepts both, tries TLS first, and
continues in clear if that fails for any reason, which it reports. It does not protect against anyone who can change
traffic.
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
    """Whether nodes may also speak in clear."""

    ACCEPT = "accept"
    REQUIRE = "require"


class NotBound(HeadraceError):
    """A proof cannot be bound to this connection."""

    code = Code.CLUSTER_AUTHORIZATION_FAILED


class PeerContext(TellingContext):
    """A context that knows its own certificate."""

    own: bytes
    """SHA-256 of the context's own certificate."""


@dataclass(frozen=True, slots=True)
class PeerLoaded(Loaded):
    """`context` is for incoming connections, `connecting` for those that this node opens."""

    connecting: ssl.SSLContext


class PeerTls(ServerTls):
    """One node's TLS for other nodes. Created only from sound files. [blocking] throughout; used by one thread at a
    time."""

    loaded: PeerLoaded

    def __init__(self, folder: Path, mode: PeerTlsMode = PeerTlsMode.REQUIRE, *, now: float) -> None:
        """`now`: seconds since 1970. Raises TlsRefused."""
        self.mode = mode
        files = TlsFiles(folder / "tls.crt", folder / "tls.key", folder / "ca.crt", ClientAuth.REQUIRED)
        super().__init__(files, now=now)

    @property
    def connecting(self) -> ssl.SSLContext:
        """The context for connections that this node opens."""
        return self.loaded.connecting

    def _load(self, files: TlsFiles, content: dict[Path, bytes], *, now: float) -> PeerLoaded:
        checked = load(files, content, now=now)
        server, client = (_context(kind, files, content) for kind in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT))
        server.own = client.own = _handshake_with_itself(server, client, files)
        return PeerLoaded(server, checked.not_after, client)


def channel_binding(connection: ssl.SSLObject | None) -> bytes:
    """The channel binding of a connection whose TLS handshake is done. Raises NotBound."""
    if connection is None or not isinstance(connection.context, PeerContext):
        raise NotBound("the connection has no TLS of nodes")
    other, finished = connection.getpeercert(binary_form=True), connection.get_channel_binding("tls-unique")
    if other is None or finished is None or connection.version() != "TLSv1.3":
        raise NotBound("the other side has shown no certificate")
    own, shown = connection.context.own, hashlib.sha256(other).digest()
    server, client = (own, shown) if connection.server_side else (shown, own)
    return hashlib.sha256(_LABEL + server + client + finished).digest()


def reason_of(error: BaseException | None) -> str:
    """Why there is no TLS connection, in words for a log line; "": the error does not concern TLS."""
    match error:
        case ssl.SSLCertVerificationError():
            return f"the other node's certificate is refused: {error.verify_message}"
        case ssl.SSLEOFError() | ConnectionResetError() | ConnectionAbortedError() | BrokenPipeError():
            return "the other node ended the TLS handshake; it may not use TLS"
        case ssl.SSLError():
            reason = str(getattr(error, "reason", None) or "")  # event loops raise some without a reason
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
    "TLSV1_ALERT_PROTOCOL_VERSION": "the other node does not use TLS 1.3",
    "UNSUPPORTED_PROTOCOL": "the other node does not use TLS 1.3",
    "WRONG_VERSION_NUMBER": "the other node does not use TLS",
}
"""Reasons in plain words, by OpenSSL's."""


def _context(kind: int, files: TlsFiles, content: dict[Path, bytes]) -> PeerContext:
    """The context from files that `load` has found to be sound."""
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


def _handshake_with_itself(server: ssl.SSLContext, client: ssl.SSLContext, files: TlsFiles) -> bytes:
    """Complete a handshake in memory between the two contexts; SHA-256 of the certificate. Raises TlsRefused if other
    nodes with the same authorities would refuse it."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    connecting = client.wrap_bio(to_client, to_server)
    connected = server.wrap_bio(to_server, to_client, server_side=True)
    try:
        # The client's first message, all of the server's, the client's last, and the server's check of that.
        for side in (connecting, connected, connecting, connected):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                pass
    except ssl.SSLError as error:
        reason = getattr(error, "verify_message", "") or error.reason
        raise TlsRefused(
            f"other nodes would refuse the certificate in {files.certificate}: {reason}; it has to be of an authority "
            f"in {files.client_ca}, for servers and for clients"
        ) from None
    shown = connecting.getpeercert(binary_form=True)
    if shown is None or shown != connected.getpeercert(binary_form=True):
        raise TlsRefused(f"{files.certificate} changed while it was read")
    return hashlib.sha256(shown).digest()
