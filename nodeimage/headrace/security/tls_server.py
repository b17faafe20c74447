"""The TLS of a listener: certificate, key and trusted authorities from files, read again when these change.

Files are PEM. The minimum is TLS 1.2, without renegotiation. New files are checked together before they are used: if a
key does not belong to its certificate, a certificate has expired, or an authority cannot be read, the previous files
stay in use, and `fault` says why. On Kubernetes all files of a Secret change at once, by a link that is replaced;
elsewhere a certificate may arrive before its key, which the next look finds.

A context's trust cannot be revoked (OpenSSL only adds authorities), so each change creates another context: listeners
use `context` for new connections, and existing connections stay open.
"""

import ssl
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from headrace.base.errors import Code, HeadraceError
from headrace.base.tls_handshakes import TellingContext

MAX_BYTES: Final = 1 << 20
"""The maximum number of bytes of a file."""


class ClientAuth(StrEnum):
    """Whether clients have to show a certificate, in Kafka's words (`ssl.client.auth`)."""

    NONE = "none"
    REQUESTED = "requested"
    REQUIRED = "required"


class TlsRefused(HeadraceError):
    """The files cannot be used by any listener, or not by this one."""

    code = Code.INVALID_CONFIG


class NotYetValid(TlsRefused):
    """The certificate will become valid, by this machine's clock, without another change of its file."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The paths of a listener's files. `client_ca`: the authorities of admitted clients, if certificates are requested
    from clients."""

    certificate: Path
    """The server's certificate, then those between it and its authority."""
    key: Path
    client_ca: Path | None = None
    client_auth: ClientAuth = ClientAuth.NONE

    def __post_init__(self) -> None:
        if self.client_auth is not ClientAuth.NONE and self.client_ca is None:
            raise TlsRefused(f"client certificates are {self.client_auth}, and no authority for them is given")


@dataclass(frozen=True, slots=True)
class Loaded:
    """A context, and when its certificate expires, in seconds since 1970."""

    context: ssl.SSLContext
    not_after: float


class ServerTls:
    """One listener's TLS. Created only from sound files. [blocking] throughout; used by one thread at a time."""

    def __init__(self, files: TlsFiles, *, now: float) -> None:
        """`now`: seconds since 1970. Raises TlsRefused."""
        self._files = files
        self._content = _read(files)
        self._refused: dict[Path, bytes] | None = None
        self.loaded = self._load(files, self._content, now=now)
        """The context in use, with its certificate's expiry."""
        self.fault = ""
        """Why the files' contents are not in use; "": they are."""

    @property
    def context(self) -> ssl.SSLContext:
        """The context for new connections."""
        return self.loaded.context

    @property
    def not_after(self) -> float:
        """When the certificate in use expires, in seconds since 1970."""
        return self.loaded.not_after

    def look(self, *, now: float) -> bool:
        """Read the files again; returns whether `context` was replaced."""
        try:
            content = _read(self._files)
        except TlsRefused as error:
            self.fault = str(error)
            return False
        if content == self._content:
            self._refused, self.fault = None, ""
            return False
        if content == self._refused:
            return False
        try:
            loaded = self._load(self._files, content, now=now)
        except NotYetValid as error:
            self.fault = str(error)
            return False
        except TlsRefused as error:
            self._refused, self.fault = content, str(error)
            return False
        self._content, self._refused, self.fault = content, None, ""
        self.loaded = loaded
        return True

    def _load(self, files: TlsFiles, content: dict[Path, bytes], *, now: float) -> Loaded:
        return load(files, content, now=now)


def load(files: TlsFiles, content: dict[Path, bytes], *, now: float) -> Loaded:
    """[blocking] The context from the files' content, which was read before. Raises TlsRefused, with the file and
    advice."""
    context = TellingContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    not_before, not_after = _validity(files.certificate, content[files.certificate])
    if now >= not_after:
        raise TlsRefused(f"the certificate in {files.certificate} has expired; put a new one there")
    if now < not_before:
        raise NotYetValid(f"the certificate in {files.certificate} is not valid yet; is the clock right?")
    has_password = False

    def password() -> str:
        """An empty password: without one OpenSSL would ask the terminal."""
        nonlocal has_password
        has_password = True
        return ""

    try:
        context.load_cert_chain(files.certificate, files.key, password=password)
    except ssl.SSLError as error:
        raise TlsRefused(_pair_fault(files, error, has_password=has_password)) from None
    except (OSError, ValueError) as error:
        raise TlsRefused(f"{files.certificate} and {files.key} cannot be used: {error}") from None
    if files.client_ca is not None:
        try:
            context.load_verify_locations(cadata=content[files.client_ca].decode("ascii"))
        except (ssl.SSLError, ValueError) as error:
            raise TlsRefused(f"{files.client_ca} holds no authority in PEM: {error}") from None
        if not context.get_ca_certs():
            raise TlsRefused(f"{files.client_ca} holds no certificate of an authority")
    context.verify_mode = {
        ClientAuth.NONE: ssl.CERT_NONE,
        ClientAuth.REQUESTED: ssl.CERT_OPTIONAL,
        ClientAuth.REQUIRED: ssl.CERT_REQUIRED,
    }[files.client_auth]
    if _read(files) != content:
        raise TlsRefused(f"{files.certificate} or {files.key} changed while it was read")
    return Loaded(context, not_after)


def _pair_fault(files: TlsFiles, error: ssl.SSLError, *, has_password: bool) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return f"the key in {files.key} does not belong to the certificate in {files.certificate}"
    if has_password:
        return f"the key in {files.key} has a password; give it without one, readable by the node alone"
    return f"{files.certificate} and {files.key} cannot be used: {error.reason or 'they are not PEM'}"


def _validity(path: Path, pem: bytes) -> tuple[float, float]:
    from cryptography import x509  # several MB that nodes without TLS do not need

    try:
        certificate = x509.load_pem_x509_certificate(pem)
    except ValueError:
        raise TlsRefused(f"{path} holds no certificate in PEM") from None
    return certificate.not_valid_before_utc.timestamp(), certificate.not_valid_after_utc.timestamp()


def _read(files: TlsFiles) -> dict[Path, bytes]:
    content = {}
    for path in (files.certificate, files.key, files.client_ca):
        if path is None:
            continue
        try:
            with path.open("rb") as file:
                content[path] = file.read(MAX_BYTES + 1)
        except OSError as error:
            raise TlsRefused(f"{path} cannot be read: {error.strerror}") from None
        if len(content[path]) > MAX_BYTES:
            raise TlsRefused(f"{path} has more than {MAX_BYTES} bytes: it is not a PEM file of a listener")
    return content
