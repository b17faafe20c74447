"""The certificates of both servers for measurements with TLS, and the files by which Kafka's tools trust them.

ECDSA on P-256 for both, like certificates of Headrace's own authority.
"""

import time
from dataclasses import dataclass
from pathlib import Path

from headrace.security.certificate_authority import Authority

HOSTS = ("127.0.0.1", "localhost")


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

    @classmethod
    def make(cls, folder: Path) -> "Certificates":
        """Create certificates for servers on loopback, valid for some days."""
        folder.mkdir(parents=True, exist_ok=True)
        made = cls(*(folder / name for name in ("ca.crt", "tls.crt", "tls.key", "both.pem", "client.properties")))
        now = time.time()
        authority = Authority.create("benchmark", days=10, now=now)
        pair = authority.issue("benchmark", days=10, now=now, hosts=HOSTS, client=False)
        made.authority.write_text(authority.certificate)
        made.certificate.write_text(pair.certificate)
        made.key.write_text(pair.key)
        made.both.write_text(pair.key + pair.certificate)
        made.properties.write_text(
            f"security.protocol=SSL\nssl.truststore.type=PEM\nssl.truststore.location={made.authority}\n"
        )
        return made
