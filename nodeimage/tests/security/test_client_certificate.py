"""The user that a certificate proves, for certificates as clients show them."""

import ssl
from typing import Any, cast

import pytest

from headrace.security.client_certificate import NotTls, principal_of
from headrace.security.distinguished_name import CertificateUnreadable
from headrace.security.principal_mapping import PrincipalRefused, parse
from headrace.security.principals import NOBODY, Mechanism, Principal
from kit.certificates import Certificates

DEFAULT = parse("DEFAULT")


class Shown:
    """The part of an SSLObject that the code uses."""

    def __init__(self, certificate: bytes | None) -> None:
        self.certificate = certificate

    def getpeercert(self, *, binary_form: bool) -> bytes | None:
        assert binary_form
        return self.certificate


def shown(certificate: bytes | None) -> ssl.SSLObject:
    return cast(Any, Shown(certificate))


def test_a_certificate_proves_whom_the_rules_make_of_its_subject(certificates: Certificates) -> None:
    alice = shown(ssl.PEM_cert_to_DER_cert(certificates.text("client.pem")))
    assert principal_of(alice, DEFAULT) == Principal("CN=alice", Mechanism.CERTIFICATE)
    assert principal_of(alice, parse("RULE:^CN=(.*)$/$1/U")) == Principal("ALICE", Mechanism.CERTIFICATE)


def test_without_a_certificate_the_client_is_nobody() -> None:
    assert principal_of(shown(None), DEFAULT) is NOBODY


def test_nobody_is_let_in_because_something_failed(certificates: Certificates) -> None:
    alice = shown(ssl.PEM_cert_to_DER_cert(certificates.text("client.pem")))
    with pytest.raises(PrincipalRefused):
        principal_of(alice, parse("RULE:^CN=bob$/bob/"))
    with pytest.raises(PrincipalRefused):
        principal_of(alice, parse("RULE:^CN=alice$/ANONYMOUS/"))
    with pytest.raises(PrincipalRefused):
        principal_of(alice, parse(""))
    with pytest.raises(CertificateUnreadable):
        principal_of(shown(b"no certificate"), DEFAULT)
    with pytest.raises(CertificateUnreadable):
        principal_of(shown(b""), DEFAULT)
    with pytest.raises(NotTls):
        principal_of(None, DEFAULT)
