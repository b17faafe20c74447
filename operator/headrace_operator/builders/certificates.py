"""Certificates that a cluster's authorities sign, and those that others have given: whether they do. Pure.

A certificate is made anew where it is missing, where it does not fit its key or its authority, where it lacks a name
that it should have, or some days before its end. Names that it has and needs no longer are let be, so that a worker
that comes and goes does not have it made anew each time.
"""

import datetime
import ipaddress
from collections.abc import Iterable
from enum import Enum, auto
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization

from headrace.security.certificate_authority import DAY_S, Authority, KeyPair
from headrace_operator.builders.authorities import Generations, Terms

SOON_S: Final = 14 * DAY_S
"""So long before a certificate ends somebody is told, where it is nobody's here to make it anew."""


class GivenFault(Enum):
    """What may be wrong with a certificate that is somebody else's."""

    UNFIT = auto()
    EXPIRED = auto()
    EXPIRES = auto()


def issued(
    present: KeyPair | None,
    authority: Generations,
    common_name: str,
    terms: Terms,
    *,
    hosts: Iterable[str] = (),
    client: bool,
    forced: bool = False,
    now: float,
) -> KeyPair:
    """The certificate of `common_name` for `hosts`, which is the present one as long as that does. Raises
    CertificateRefused for names that cannot be.
    """
    names = sorted(set(hosts))
    if present is not None and not forced and not why_anew(present, authority, common_name, names, terms, now=now):
        return present
    return Authority.of(authority.current).issue(common_name, days=terms.days, now=now, hosts=names, client=client)


def why_anew(
    present: KeyPair, authority: Generations, common_name: str, hosts: Iterable[str], terms: Terms, *, now: float
) -> str:
    """Why a certificate has to be made anew; "": it does."""
    try:
        certificate = x509.load_pem_x509_certificate(present.certificate.encode())
        signs = x509.load_pem_x509_certificate(authority.current.certificate.encode())
    except ValueError:
        return "it is no PEM"
    if pair_fault(present):
        return "it does not fit its key"
    try:
        certificate.verify_directly_issued_by(signs)
    except (ValueError, TypeError, InvalidSignature):
        return "another authority has signed it"
    if certificate.subject != x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common_name)]):
        return "it is somebody else's"
    if missing := set(hosts) - _hosts(certificate):
        return f"it lacks {sorted(missing)[0]}"
    ends = certificate.not_valid_after_utc.timestamp()
    # One of an authority that is about to end could not last any longer.
    longest = min(now + terms.days * DAY_S, signs.not_valid_after_utc.timestamp())
    lifetime = ends - certificate.not_valid_before_utc.timestamp()
    early = min(terms.renewal_days * DAY_S, lifetime / 3)
    return "it ends soon" if now > ends - early and longest > ends + DAY_S else ""


def pair_fault(pair: KeyPair) -> str:
    """Why a certificate and a key are of no use; "": they fit."""
    try:
        certificate = x509.load_pem_x509_certificate(pair.certificate.encode())
    except ValueError:
        return "tls.crt is no certificate in PEM"
    try:
        key = serialization.load_pem_private_key(pair.key.encode(), password=None)
    except (ValueError, TypeError):
        return "tls.key is no key in PEM without a password"
    if key.public_key() != certificate.public_key():
        return "the key tls.key does not belong to the certificate tls.crt"
    return ""


def given_fault(pair: KeyPair, *, now: float) -> tuple[GivenFault, str] | None:
    """What is wrong with a certificate that somebody else makes anew, and in words; None: nothing is."""
    if fault := pair_fault(pair):
        return GivenFault.UNFIT, fault
    certificate = x509.load_pem_x509_certificate(pair.certificate.encode())
    end = certificate.not_valid_after_utc
    if now >= end.timestamp():
        return GivenFault.EXPIRED, f"it has expired on {_day(end)}"
    if now >= end.timestamp() - SOON_S:
        return GivenFault.EXPIRES, f"it expires on {_day(end)}"
    return None


def _day(at: datetime.datetime) -> str:
    return at.date().isoformat()


def _hosts(certificate: x509.Certificate) -> set[str]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return set()
    return {*found.get_values_for_type(x509.DNSName), *map(str, found.get_values_for_type(x509.IPAddress))}


def host_name(text: str) -> str:
    """A name or an address as certificates have it: without brackets, in its shortest form."""
    bare = text.strip("[]")
    try:
        return str(ipaddress.ip_address(bare))
    except ValueError:
        return bare.lower()
