"""Authorities that somebody else keeps: of clients' certificates at a listener, or of the server of an issuer's keys.
Pure.

The resource names an entry of a Secret or a ConfigMap. Its certificates are copied into the Secret NAME-server, which
pods have already, and nodes take up what changes there:

    clients-ca-L.crt   the authorities of listener L's clients: those given, and the cluster's own if it says so
    given-ca-L.crt     those that were given alone, as they could last be used
    jwks-ca-L.crt      those of the server that has the issuer's keys

1. What cannot be used, or is not there, leaves what was given before. Where nothing was, nobody is trusted: the entry
   has an authority whose key nobody has.
2. Certificates alone are copied: no key that lies beside them, and no other text.
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

MOST_BYTES: Final = 256 << 10
"""Of all that a cluster is given: twice that and the rest of NAME-server are below the size of a Secret."""
NOBODY: Final = "headrace: nobody is trusted"
"""The name of the authority whose key nobody has."""
_DAYS: Final = 7300


@dataclass(frozen=True, slots=True)
class Reference:
    """Where a listener's authorities are."""

    listener: str
    field: str
    """Of the listener, as the resource has it."""
    entry: str
    """Of NAME-server, where they are kept."""
    source: Authorities

    @property
    def where(self) -> str:
        """For messages."""
        kind, named = ("Secret", self.source.secret_ref) if self.source.secret_ref else ("ConfigMap", None)
        named = named or self.source.config_map_ref
        at = "nothing" if named is None else f"{kind} {named.name}, entry {named.key}"
        return f"listener {self.listener}, {self.field}: {at}"


def references(spec: ClusterSpec) -> Iterator[Reference]:
    """All of a cluster."""
    for port in listeners.ports(spec):
        if port.client_ca_entry and port.asked.client_ca is not None:
            yield Reference(port.name, "clientCa", _given_entry(port.name), port.asked.client_ca)
        if port.jwks_ca is not None:
            yield Reference(port.name, "oauth.jwksCa", port.jwks_ca_entry, port.jwks_ca)


def entries(spec: ClusterSpec, given: Mapping[str, str], *, own: str) -> dict[str, str]:
    """What NAME-server has of it. `given`: by Reference.entry; `own`: the cluster's own authorities of clients."""
    found = dict(given)
    for port in listeners.ports(spec):
        if port.client_ca_entry and port.asked.client_ca is not None:
            cluster = own if port.takes_own_certificates else ""
            found[port.client_ca_entry] = given[_given_entry(port.name)] + cluster
    return found


def authorities_in(text: str) -> str:
    """The certificates in a text, in PEM, if they are an authority's as nodes have it. Raises CertificateRefused."""
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
    """When the last of the certificates expires, in seconds since 1970."""
    return max(each.not_valid_after_utc.timestamp() for each in x509.load_pem_x509_certificates(pem.encode()))


def nobody(*, now: float) -> str:
    """An authority that has signed nothing, and never will."""
    return Authority.create(NOBODY, days=_DAYS, now=now).pair.certificate


def is_nobody(pem: str) -> bool:
    """Whether a certificate is such a one."""
    subject = x509.load_pem_x509_certificate(pem.encode()).subject
    return [each.value for each in subject] == [NOBODY]


def _given_entry(listener: str) -> str:
    return f"given-ca-{listener}.crt"
