"""A certificate authority for the nodes, listeners and clients of a cluster that has no other. No I/O.

Keys are ECDSA on P-256, whose handshakes cost a node a fraction of RSA's. An authority signs only leaf certificates
(path length 0); a leaf is for servers, clients or both. Times are seconds since 1970; a certificate is valid from an
hour before its creation, for clocks that are behind.
"""

import datetime
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from headrace.base.errors import Code, HeadraceError

DAY_S: Final = 86_400
BACKDATED_S: Final = 3_600
MAX_COMMON_NAME: Final = 64
"""The maximum number of characters of a common name (RFC 5280's upper bound)."""


class CertificateRefused(HeadraceError):
    """An authority or a certificate cannot be used, or cannot be created."""

    code = Code.INVALID_CONFIG


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate with its key, both in PEM."""

    certificate: str
    key: str = field(repr=False)


class Authority:
    """Signs certificates. Created by `create`, or by `of` from a stored pair."""

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self._certificate = certificate
        self._key = key

    @classmethod
    def create(cls, name: str, *, days: int, now: float) -> "Authority":
        """A new authority with a self-signed certificate. Raises CertificateRefused for an invalid name."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _subject(name)
        signed = (
            _builder(subject, subject, key.public_key(), days=days, now=now)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        return cls(signed, key)

    @classmethod
    def of(cls, pair: KeyPair) -> "Authority":
        """An authority from its certificate and key. Raises CertificateRefused unless they are an authority's, and
        match."""
        try:
            certificate = x509.load_pem_x509_certificate(pair.certificate.encode())
            key = serialization.load_pem_private_key(pair.key.encode(), password=None)
        except (ValueError, TypeError) as error:
            raise CertificateRefused(f"the authority's certificate or key is not PEM: {error}") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise CertificateRefused("the authority's key is not an elliptic-curve key")
        if key.public_key() != certificate.public_key():
            raise CertificateRefused("the authority's key does not belong to its certificate")
        try:
            constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
        except x509.ExtensionNotFound:
            raise CertificateRefused("the certificate is not an authority's") from None
        if not constraints.ca:
            raise CertificateRefused("the certificate is not an authority's")
        return cls(certificate, key)

    @property
    def pair(self) -> KeyPair:
        """Its certificate and key."""
        return _pair(self._certificate, self._key)

    @property
    def certificate(self) -> str:
        """The authority's certificate in PEM, which others trust."""
        return self.pair.certificate

    @property
    def not_after(self) -> float:
        """The time at which the authority's certificate expires."""
        return self._certificate.not_valid_after_utc.timestamp()

    def issue(
        self, common_name: str, *, days: int, now: float, hosts: Iterable[str] = (), client: bool = True
    ) -> KeyPair:
        """A certificate with a new key, which expires no later than the authority's.

        `hosts`: names and addresses of a server; if given, the certificate is for a server. `client`: it is (also) for
        a client. Raises CertificateRefused for invalid names.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        names = [_general_name(host) for host in hosts]
        uses = [ExtendedKeyUsageOID.SERVER_AUTH] if names else []
        if client or not names:
            uses.append(ExtendedKeyUsageOID.CLIENT_AUTH)
        days = min(days, max(0, int((self.not_after - now) // DAY_S)))
        builder = (
            _builder(_subject(common_name), self._certificate.subject, key.public_key(), days=days, now=now)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return _pair(builder.sign(self._key, hashes.SHA256()), key)

    def has_issued(self, pair: KeyPair, *, hosts: Iterable[str]) -> bool:
        """Whether `pair` is a certificate of this authority, for exactly these names and addresses, with its matching
        key."""
        try:
            certificate = x509.load_pem_x509_certificate(pair.certificate.encode())
            key = serialization.load_pem_private_key(pair.key.encode(), password=None)
            certificate.verify_directly_issued_by(self._certificate)
            names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
            return False
        return key.public_key() == certificate.public_key() and set(names) == {_general_name(each) for each in hosts}


def not_after(certificate: str) -> float:
    """The time at which the first certificate in a PEM text expires. Raises CertificateRefused for any other text."""
    try:
        return x509.load_pem_x509_certificate(certificate.encode()).not_valid_after_utc.timestamp()
    except ValueError as error:
        raise CertificateRefused(f"the certificate is not PEM: {error}") from None


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, *, days: int, now: float
) -> x509.CertificateBuilder:
    begins = datetime.datetime.fromtimestamp(now - BACKDATED_S, datetime.UTC)
    ends = datetime.datetime.fromtimestamp(now + days * DAY_S, datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(ends)
    )


def _subject(name: str) -> x509.Name:
    if not 0 < len(name) <= MAX_COMMON_NAME or not name.isprintable():
        raise CertificateRefused(
            f"{name[:MAX_COMMON_NAME]!r} cannot be a certificate's common name: it has 1 to {MAX_COMMON_NAME} "
            "printable characters"
        )
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError as error:
        raise CertificateRefused(f"{host!r} cannot be the name of a host in a certificate: {error}") from None


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> KeyPair:
    pem = serialization.Encoding.PEM
    return KeyPair(
        certificate.public_bytes(pem).decode(),
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()).decode(),
    )
