"""The certificates of both servers for measurements with TLS, the files by which Kafka's tools trust them, and a
certificate for the user that measures where clients must authenticate.

ECDSA on P-256 for both, like certificates of Headrace's own authority.
"""

import ssl
import time
from dataclasses import dataclass
from pathlib import Path

from headrace.security.certificate_authority import Authority

HOSTS = ("127.0.0.1", "localhost")
USER = "bench"
"""The user that the client's certificate proves."""
PRINCIPAL_RULE = "RULE:^CN=([^,]+).*$/$1/"
"""Kafka's ssl.principal.mapping.rules for both servers: the common name is the user."""
NAMES = (
    *("ca.crt", "tls.crt", "tls.key", "both.pem", "client.properties"),
    *("user.crt", "user.key", "user.pem", "user.properties"),
)


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM files in one folder."""

    authority: Path
    certificate: Path
    key: Path
    both: Path
    """The key followed by the certificate: Kafka's keystore of type PEM."""
    properties: Path
    """The properties for Kafka's clients."""
    user_certificate: Path
    user_key: Path
    user_both: Path
    """The key of USER followed by the certificate."""
    user_properties: Path
    """The properties for Kafka's clients that authenticate as USER."""

    @classmethod
    def found(cls, folder: Path) -> "Certificates":
        """Return the files that `make` has written to a folder."""
        return cls(*(folder / name for name in NAMES))

    @classmethod
    def make(cls, folder: Path) -> "Certificates":
        """Create certificates for servers on loopback, valid for some days."""
        folder.mkdir(parents=True, exist_ok=True)
        made = cls.found(folder)
        now = time.time()
        authority = Authority.create("benchmark", days=10, now=now)
        pair = authority.issue("benchmark", days=10, now=now, hosts=HOSTS, client=False)
        made.authority.write_text(authority.certificate)
        made.certificate.write_text(pair.certificate)
        made.key.write_text(pair.key)
        made.both.write_text(pair.key + pair.certificate)
        trust = f"security.protocol=SSL\nssl.truststore.type=PEM\nssl.truststore.location={made.authority}\n"
        made.properties.write_text(trust)
        user_pair = authority.issue(USER, days=10, now=now)
        made.user_certificate.write_text(user_pair.certificate)
        made.user_key.write_text(user_pair.key)
        made.user_both.write_text(user_pair.key + user_pair.certificate)
        made.user_properties.write_text(f"{trust}ssl.keystore.type=PEM\nssl.keystore.location={made.user_both}\n")
        return made

    @property
    def folder(self) -> Path:
        """The folder of all files."""
        return self.authority.parent

    def librdkafka(self) -> dict[str, str]:
        """Return librdkafka's settings for a client that authenticates as USER."""
        return {
            "security.protocol": "ssl",
            "ssl.ca.location": str(self.authority),
            "ssl.certificate.location": str(self.user_certificate),
            "ssl.key.location": str(self.user_key),
        }

    def user_context(self) -> ssl.SSLContext:
        """Return a client's context that authenticates as USER."""
        context = ssl.create_default_context(cafile=str(self.authority))
        context.load_cert_chain(self.user_certificate, self.user_key)
        return context
