"""OAUTHBEARER, the server's side (RFC 7628): reads the token in the client's first message, and words the failure.

    client first    n,[a=<authorization id>],^Aauth=Bearer <token>^A[<extension>=<value>^A]^A
    server          nothing, or {"status":"invalid_token"} if the token is invalid
    client          ^A, or anything else; the server answers that the authentication failed

`jwt` decides whether a token is valid.
"""

import re
from dataclasses import dataclass, field
from typing import Final

from headrace.security.sasl.outcome import Refusal, SaslFailed
from headrace.security.sasl.text import message_text, unescaped_name

INVALID_TOKEN: Final = b'{"status":"invalid_token"}'
MAX_TOKEN_BYTES: Final = 64 << 10
MAX_MESSAGE_BYTES: Final = MAX_TOKEN_BYTES + (8 << 10)
MAX_PAIRS: Final = 32

_PAIR: Final = re.compile(r"([A-Za-z]+)=([\x21-\x7e \t\r\n]*)")
_BEARER: Final = re.compile(r"bearer +([A-Za-z0-9._~+/=-]+)[ \t]*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class BearerMessage:
    """The contents of a client's first message. Extensions are ignored."""

    token: str = field(repr=False)
    authorization_id: str | None


def read_bearer(message: bytes) -> BearerMessage:
    """Parse a client's first message. Raises SaslFailed."""
    header, _, rest = message_text(message, most_bytes=MAX_MESSAGE_BYTES).partition("\x01")
    authorization_id = _authorization_id(header)
    if not rest.endswith("\x01\x01"):
        raise SaslFailed(Refusal.MALFORMED)
    token = _token(_pairs(rest[:-2]).get("auth", ""))
    if len(token) > MAX_TOKEN_BYTES:
        raise SaslFailed(Refusal.TOKEN_TOO_LONG)
    return BearerMessage(token, authorization_id)


def _authorization_id(header: str) -> str | None:
    flag, _, rest = header.partition(",")
    if flag != "n":
        is_binding = flag == "y" or flag.startswith("p=")
        raise SaslFailed(Refusal.CHANNEL_BINDING if is_binding else Refusal.MALFORMED)
    name, comma, behind = rest.partition(",")
    if not comma or behind or (name and not name.startswith("a=")):
        raise SaslFailed(Refusal.MALFORMED)
    return unescaped_name(name[2:]) if name else None


def _pairs(text: str) -> dict[str, str]:
    parts = text.split("\x01", MAX_PAIRS)
    pairs: dict[str, str] = {}
    for part in parts:
        found = _PAIR.fullmatch(part)
        if found is None or found[1] in pairs:
            raise SaslFailed(Refusal.MALFORMED)
        pairs[found[1]] = found[2]
    return pairs


def _token(authorization: str) -> str:
    found = _BEARER.fullmatch(authorization)
    if found is None:
        raise SaslFailed(Refusal.NO_TOKEN)
    return found[1]
