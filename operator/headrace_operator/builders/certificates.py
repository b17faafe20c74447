"""Certificates that a cluster's authorities sign, and checks of certificates that users provide. Pure.

A certificate is renewed if it is missing, does not match its key or its authority, lacks a required name, or is about
to expire. Names that are no longer needed stay in it, so that a worker that comes and goes does not cause a renewal
each time.
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
"""Seconds before its end at which a user-provided certificate, which the operator cannot renew, is reported."""


class GivenFault(Enum):
    """The faults of a certificate that a user provides."""

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
    """Return a certificate of `common_name` for `hosts`: the present one while it is still good. Raises
    CertificateRefused for invalid names.
    """
    names = sorted(set(hosts))
    if present is not None and not forced and not why_anew(present, authority, common_name, names, terms, now=now):
        return present
    return Authority.of(authority.current).issue(common_name, days=terms.days, now=now, hosts=names, client=client)


def why_anew(
    present: KeyPair, authority: Generations, common_name: str, hosts: Iterable[str], terms: Terms, *, now: float
) -> str:
    """Return why a certificate has to be renewed; "" if it is still good."""
    try:
        certificate = x509.load_pem_x509_certificate(present.certificate.encode())
        signs = x509.load_pem_x509_certificate(authority.current.certificate.encode())
    except ValueError:
        return "it is not PEM"
    if pair_fault(present):
        return "it does not match its key"
    try:
        certificate.verify_directly_issued_by(signs)
    except (ValueError, TypeError, InvalidSignature):
        return "another authority has signed it"
    if certificate.subject != x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common_name)]):
        return "it has another subject"
    if missing := set(hosts) - _hosts(certificate):
        return f"it lacks {sorted(missing)[0]}"
    ends = certificate.not_valid_after_utc.timestamp()
    # If the authority itself is about to expire, a new certificate would be valid no longer than the present one.
    longest = min(now + terms.days * DAY_S, signs.not_valid_after_utc.timestamp())
    lifetime = ends - certificate.not_valid_before_utc.timestamp()
    early = min(terms.renewal_days * DAY_S, lifetime / 3)
    return "it expires soon" if now > ends - early and longest > ends + DAY_S else ""


def pair_fault(pair: KeyPair) -> str:
    """Return why a certificate and a key are unusable; "" if they match."""
    try:
        certificate = x509.load_pem_x509_certificate(pair.certificate.encode())
    except ValueError:
        return "tls.crt is not a certificate in PEM"
    try:
        key = serialization.load_pem_private_key(pair.key.encode(), password=None)
    except (ValueError, TypeError):
        return "tls.key is not a key in PEM without a password"
    if key.public_key() != certificate.public_key():
        return "the key tls.key does not belong to the certificate tls.crt"
    return ""


def given_fault(pair: KeyPair, *, now: float) -> tuple[GivenFault, str] | None:
    """Return the fault of a user-provided certificate and its description; None if it is good."""
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
    """Return a host name or an address as certificates hold it: without brackets, in its shortest form."""
    bare = text.strip("[]")
    try:
        return str(ipaddress.ip_address(bare))
    except ValueError:
        return bare.lower()
