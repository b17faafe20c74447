"""The principal that a client's certificate, which TLS has already checked, proves. No I/O."""

import ssl

from headrace.base.errors import HeadraceError
from headrace.security.distinguished_name import subject_of
from headrace.security.principal_mapping import PrincipalMapping
from headrace.security.principals import NOBODY, Mechanism, Principal


class NotTls(HeadraceError):
    """The connection has no TLS where it must."""


def principal_of(connection: ssl.SSLObject | None, mapping: PrincipalMapping) -> Principal:
    """The client's principal; NOBODY without a certificate, which `ClientAuth.REQUIRED` rules out.

    Raises HeadraceError (NotTls, CertificateUnreadable, PrincipalRefused); the client is then refused.
    """
    if connection is None:
        raise NotTls("the connection has no TLS")
    certificate = connection.getpeercert(binary_form=True)
    if certificate is None:
        return NOBODY
    return Principal(mapping.user(subject_of(certificate)), Mechanism.CERTIFICATE)
