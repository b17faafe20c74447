"""PLAIN, the server's side (RFC 4616), checked against the records of SCRAM: no password is kept in clear text.

    [<authorization id>] NUL <user> NUL <password>

A password is right if it is that of any record of its user. All mechanisms of SCRAM are tried, with a made-up record in
the place of one that does not exist, so that the work is the same whoever is named.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from headrace.security.sasl.outcome import Refusal, SaslFailed
from headrace.security.sasl.scram_credential import ScramCredential, credential_of_unknown
from headrace.security.sasl.text import checked_name, message_text
from headrace.security.scram_common import HASHES

MOST_PASSWORD_BYTES: Final = 1024
MOST_MESSAGE_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class PlainLogin:
    """What a client's one message says."""

    user: str
    password: str = field(repr=False)


def read_plain(token: bytes) -> PlainLogin:
    """The user and the password of a client's message. Raises SaslFailed."""
    parts = message_text(token, most_bytes=MOST_MESSAGE_BYTES).split("\0")
    if len(parts) != 3:
        raise SaslFailed(Refusal.MALFORMED)
    authorization_id, user, password = parts
    checked_name(user)
    if authorization_id not in ("", user):
        raise SaslFailed(Refusal.OTHER_AUTHORIZATION_ID)
    if not password:
        raise SaslFailed(Refusal.NO_PASSWORD)
    if len(password.encode()) > MOST_PASSWORD_BYTES:
        raise SaslFailed(Refusal.TOKEN_TOO_LONG)
    return PlainLogin(user, password)


def is_right(login: PlainLogin, records: Mapping[str, ScramCredential | None], *, unknown_salt_key: bytes) -> bool:
    """[blocking] Whether the password is that of a record, as `fitting`."""
    return bool(fitting(login, records, unknown_salt_key=unknown_salt_key))


def fitting(
    login: PlainLogin, records: Mapping[str, ScramCredential | None], *, unknown_salt_key: bytes
) -> frozenset[bytes]:
    """[blocking] The marks of the records that the password is of; `records`: the user's, by mechanism of SCRAM."""
    found: set[bytes] = set()
    for mechanism in HASHES:
        unknown = credential_of_unknown(unknown_salt_key, login.user, mechanism)
        record = records.get(mechanism)
        does_fit = (record or unknown).fits_password(login.password)
        if does_fit and record is not None:
            found.add(record.mark)
    return frozenset(found)
