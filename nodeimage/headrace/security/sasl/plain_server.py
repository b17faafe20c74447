"""PLAIN, the server's side (RFC 4616), checked against SCRAM's credentials: no password is stored in clear.

    [<authorization id>] NUL <user> NUL <password>

A password is right if it matches any credential of its user. All SCRAM mechanisms are tried, with a made-up credential
for one that does not exist, so that the work is the same for every user name.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from headrace.security.sasl.outcome import Refusal, SaslFailed
from headrace.security.sasl.scram_credential import ScramCredential, credential_of_unknown
from headrace.security.sasl.text import checked_name, message_text
from headrace.security.scram_common import HASHES

MAX_PASSWORD_BYTES: Final = 1024
MAX_MESSAGE_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class PlainLogin:
    """The contents of a client's only message."""

    user: str
    password: str = field(repr=False)


def read_plain(token: bytes) -> PlainLogin:
    """The user and the password of a client's message. Raises SaslFailed."""
    parts = message_text(token, most_bytes=MAX_MESSAGE_BYTES).split("\0")
    if len(parts) != 3:
        raise SaslFailed(Refusal.MALFORMED)
    authorization_id, user, password = parts
    checked_name(user)
    if authorization_id not in ("", user):
        raise SaslFailed(Refusal.OTHER_AUTHORIZATION_ID)
    if not password:
        raise SaslFailed(Refusal.NO_PASSWORD)
    if len(password.encode()) > MAX_PASSWORD_BYTES:
        raise SaslFailed(Refusal.TOKEN_TOO_LONG)
    return PlainLogin(user, password)


def is_right(login: PlainLogin, records: Mapping[str, ScramCredential | None], *, unknown_salt_key: bytes) -> bool:
    """[blocking] Whether the password matches a credential; arguments as for `fitting`."""
    return bool(fitting(login, records, unknown_salt_key=unknown_salt_key))


def fitting(
    login: PlainLogin, records: Mapping[str, ScramCredential | None], *, unknown_salt_key: bytes
) -> frozenset[bytes]:
    """[blocking] The marks of the credentials that the password matches; `records`: the user's, by SCRAM mechanism."""
    found: set[bytes] = set()
    for mechanism in HASHES:
        unknown = credential_of_unknown(unknown_salt_key, login.user, mechanism)
        record = records.get(mechanism)
        does_fit = (record or unknown).fits_password(login.password)
        if does_fit and record is not None:
            found.add(record.mark)
    return frozenset(found)
