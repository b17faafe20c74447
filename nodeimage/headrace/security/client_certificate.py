"""Whom the certificate proves that a client has shown, and that TLS has checked. No I/O."""

import ssl

from headrace.base.errors import HeadraceError
from headrace.security.distinguished_name import subject_of
from headrace.security.principal_mapping import PrincipalMapping
from headrace.security.principals import NOBODY, Mechanism, Principal


class NotTls(HeadraceError):
    """A connection without TLS where there must be one."""


def principal_of(connection: ssl.SSLObject | None, mapping: PrincipalMapping) -> Principal:
    """Who the client is; NOBODY without a certificate, which `ClientAuth.REQUIRED` lets nobody be.

    Raises HeadraceError (NotTls, CertificateUnreadable, PrincipalRefused): the client is refused then.
    """
    if connection is None:
        raise NotTls("the connection has no TLS")
    certificate = connection.getpeercert(binary_form=True)
    if certificate is None:
        return NOBODY
    return Principal(mapping.user(subject_of(certificate)), Mechanism.CERTIFICATE)
