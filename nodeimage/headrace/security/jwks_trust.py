"""The authorities to trust in TLS connections to the server with an issuer's keys: from a file, read again when it
changes.

If the file cannot be used, the previous authorities stay in use and `fault` says why; tokens are checked against the
keys already fetched.
"""

import ssl
from pathlib import Path

from headrace.security.tls_server import MAX_BYTES, TlsRefused


class JwksTrust:
    """One listener's trusted authorities. Created only from a sound file. [blocking] throughout; used by one thread at
    a time."""

    def __init__(self, path: Path) -> None:
        """Raises TlsRefused if the file cannot be used."""
        self._path = path
        self._content = self._read()
        self._refused: bytes | None = None
        self.context = self._load(self._content)
        """The context for new connections."""
        self.fault = ""
        """Why the file's contents are not in use; "": they are."""

    def look(self) -> bool:
        """Read the file again; returns whether `context` was replaced."""
        try:
            content = self._read()
            if content == self._content:
                self._refused, self.fault = None, ""
                return False
            if content == self._refused:
                return False
            self._refused = content
            self.context = self._load(content)
        except TlsRefused as error:
            self.fault = str(error)
            return False
        self._content, self._refused, self.fault = content, None, ""
        return True

    def _read(self) -> bytes:
        try:
            with self._path.open("rb") as file:
                content = file.read(MAX_BYTES + 1)
        except OSError as error:
            raise TlsRefused(f"oauth.jwks_ca: {self._path} cannot be read: {error.strerror}") from None
        if len(content) > MAX_BYTES:
            raise TlsRefused(
                f"oauth.jwks_ca: {self._path} has more than {MAX_BYTES} bytes: it is not a PEM file of authorities"
            )
        return content

    def _load(self, content: bytes) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # trusts nobody yet, not even the machine's authorities
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_verify_locations(cadata=content.decode("ascii"))
        except (ssl.SSLError, ValueError):
            raise TlsRefused(f"oauth.jwks_ca: {self._path} holds no authority in PEM") from None
        if not context.get_ca_certs():
            raise TlsRefused(f"oauth.jwks_ca: {self._path} holds no certificate of an authority")
        return context
