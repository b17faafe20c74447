"""A signed token in its compact form (RFC 7515), split into its parts: nothing in it is trusted before its signature is
checked.

Keys and addresses of keys inside a token (`jwk`, `jku`, `x5c`, `x5u`) are ignored.
"""

from dataclasses import dataclass, field
from typing import Final

from headrace.security.sasl.jose_text import from_base64url, json_object
from headrace.security.sasl.jwk import MAX_KEY_ID, VerifyingKey
from headrace.security.sasl.outcome import Refusal, SaslFailed

MAX_HEADER: Final = 16 << 10
"""Longest header in characters; a header may contain a chain of certificates."""
_ACCESS_TYPES: Final = frozenset({"jwt", "at+jwt"})


@dataclass(frozen=True, slots=True)
class SignedToken:
    """The parts of a token. Created by `parse_token`."""

    algorithm: str
    key_id: str
    payload: bytes = field(repr=False)
    message: bytes = field(repr=False)
    """The signed bytes."""
    signature: bytes = field(repr=False)

    def check_signature(self, key: VerifyingKey) -> None:
        """Raise SaslFailed unless the key allows the token's algorithm and made the signature."""
        if self.algorithm not in key.algorithms:
            raise SaslFailed(Refusal.ALGORITHM)
        if not key.does_fit(self.algorithm, self.message, self.signature):
            raise SaslFailed(Refusal.SIGNATURE)


def parse_token(text: str) -> SignedToken:
    """Split a token. Raises SaslFailed for anything but a signed token with a key id."""
    parts = text.split(".")
    if len(parts) != 3 or len(parts[0]) > MAX_HEADER:
        raise SaslFailed(Refusal.TOKEN_MALFORMED)
    try:
        header = json_object(from_base64url(parts[0]))
        payload, signature = from_base64url(parts[1]), from_base64url(parts[2])
    except ValueError:
        raise SaslFailed(Refusal.TOKEN_MALFORMED) from None
    algorithm, key_id = header.get("alg"), header.get("kid")
    if not isinstance(algorithm, str):
        raise SaslFailed(Refusal.ALGORITHM)
    if "crit" in header or "b64" in header:
        raise SaslFailed(Refusal.CRITICAL_HEADER)
    if not _is_for_access(header.get("typ", "JWT")) or "cty" in header:
        raise SaslFailed(Refusal.TOKEN_TYPE)
    if not isinstance(key_id, str) or not 0 < len(key_id) <= MAX_KEY_ID:
        raise SaslFailed(Refusal.NO_KEY_ID)
    return SignedToken(algorithm, key_id, payload, f"{parts[0]}.{parts[1]}".encode(), signature)


def _is_for_access(kind: object) -> bool:
    """Whether a header's `typ` is that of an access token (RFC 9068), or only says that it is a token."""
    return isinstance(kind, str) and kind.lower().removeprefix("application/") in _ACCESS_TYPES
