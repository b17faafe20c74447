"""User-provided authorities: of clients' certificates at a listener, or of the server of a token issuer's keys. Pure.

The resource names an entry of a Secret or a ConfigMap. Its certificates are copied into the Secret NAME-server, which
pods mount anyway, and nodes reload when it changes:

    clients-ca-L.crt   the authorities of listener L's clients: the provided ones, and the cluster's own if requested
    given-ca-L.crt     the provided ones only, in their last usable state
    jwks-ca-L.crt      the authorities of the server of the issuer's keys

1. If the source is missing or unusable, the last usable certificates stay. If there were none, nobody is trusted: the
   entry holds an authority whose key nobody has.
2. Only certificates are copied: no keys and no other text of the source.
"""

import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from headrace.security.certificate_authority import Authority, CertificateRefused
from headrace_operator.builders import listeners
from headrace_operator.specs import Authorities, ClusterSpec

MAX_BYTES: Final = 256 << 10
"""The maximum number of bytes of all provided authorities of a cluster: twice that and the rest of NAME-server fit into
a Secret.
"""
NOBODY: Final = "headrace: nobody is trusted"
"""The name of the authority whose key nobody has."""
_DAYS: Final = 7300


@dataclass(frozen=True, slots=True)
class Reference:
    """A listener's reference to authorities in a Secret or a ConfigMap."""

    listener: str
    field: str
    """The field of the listener in the resource."""
    entry: str
    """The entry of the Secret NAME-server where the authorities are kept."""
    source: Authorities

    @property
    def where(self) -> str:
        """The reference in words, for messages."""
        kind, named = ("Secret", self.source.secret_ref) if self.source.secret_ref else ("ConfigMap", None)
        named = named or self.source.config_map_ref
        at = "nothing" if named is None else f"{kind} {named.name}, entry {named.key}"
        return f"listener {self.listener}, {self.field}: {at}"


def references(spec: ClusterSpec) -> Iterator[Reference]:
    """Yield all references of a cluster."""
    for port in listeners.ports(spec):
        if port.client_ca_entry and port.asked.client_ca is not None:
            yield Reference(port.name, "clientCa", _given_entry(port.name), port.asked.client_ca)
        if port.jwks_ca is not None:
            yield Reference(port.name, "oauth.jwksCa", port.jwks_ca_entry, port.jwks_ca)


def entries(spec: ClusterSpec, given: Mapping[str, str], *, own: str) -> dict[str, str]:
    """Return the entries of NAME-server for authorities. `given`: the provided authorities by `Reference.entry`; `own`:
    the cluster's own authorities of clients.
    """
    found = dict(given)
    for port in listeners.ports(spec):
        if port.client_ca_entry and port.asked.client_ca is not None:
            cluster = own if port.takes_own_certificates else ""
            found[port.client_ca_entry] = given[_given_entry(port.name)] + cluster
    return found


def authorities_in(text: str) -> str:
    """Return the certificates in a text, in PEM, if nodes can use them as authorities. Raises CertificateRefused."""
    try:
        certificates = x509.load_pem_x509_certificates(text.encode())
    except ValueError:
        raise CertificateRefused("holds no certificate in PEM") from None
    found = "".join(each.public_bytes(Encoding.PEM).decode() for each in certificates)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_verify_locations(cadata=found)
    except (ssl.SSLError, ValueError):
        raise CertificateRefused("holds a certificate that TLS cannot use") from None
    if not context.get_ca_certs():
        raise CertificateRefused("holds no certificate of an authority")
    return found


def last_end(pem: str) -> float:
    """Return when the last of the certificates expires, in seconds since 1970."""
    return max(each.not_valid_after_utc.timestamp() for each in x509.load_pem_x509_certificates(pem.encode()))


def nobody(*, now: float) -> str:
    """Return a new authority that has signed nothing and whose key is discarded."""
    return Authority.create(NOBODY, days=_DAYS, now=now).pair.certificate


def is_nobody(pem: str) -> bool:
    """Return whether a certificate is an authority created by `nobody`."""
    subject = x509.load_pem_x509_certificate(pem.encode()).subject
    return [each.value for each in subject] == [NOBODY]


def _given_entry(listener: str) -> str:
    return f"given-ca-{listener}.crt"
