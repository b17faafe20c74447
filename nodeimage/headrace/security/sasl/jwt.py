"""Whether a bearer token is valid, and for whom: signature, then claims (RFC 7519, RFC 8725).

All of these are required: a key of the set with the token's key id, an algorithm of that key, the issuer, the audience,
and the times. A malformed claim is refused, not ignored: unreadable groups could be ones that an access expression
excludes.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from headrace.security.sasl.jose_text import json_object
from headrace.security.sasl.jwk import VerifyingKey
from headrace.security.sasl.jws import SignedToken, parse_token
from headrace.security.sasl.oauth_settings import OAuthSettings
from headrace.security.sasl.outcome import Proven, Refusal, SaslFailed
from headrace.security.sasl.text import checked_name

MAX_GROUPS: Final = 1024
MIN_LIFETIME_S: Final = 1.0
"""Lifetime given to a token that is valid only thanks to the clock skew: 0 would mean an endless one."""
_LAST_TIME_S: Final = 253_402_300_799
"""Largest time that a claim may have: the end of the year 9999."""


class KeySource(Protocol):
    """Provides the keys of an issuer."""

    async def keys(self, key_id: str) -> Sequence[VerifyingKey]:
        """The keys with this id; empty if there are none."""


class TokenVerifier:
    """Checks the tokens of one listener."""

    def __init__(self, settings: OAuthSettings, keys: KeySource, *, now_s: Callable[[], float]) -> None:
        """`now_s`: seconds since 1970."""
        self._settings = settings
        self._keys = keys
        self._now_s = now_s

    async def verify(self, text: str) -> Proven:
        """The identity that the token proves. Raises SaslFailed."""
        token = parse_token(text)
        _check_signature(token, await self._keys.keys(token.key_id))
        try:
            claims = json_object(token.payload)
        except ValueError:
            raise SaslFailed(Refusal.CLAIMS_MALFORMED) from None
        return proven_by(claims, self._settings, now_s=self._now_s())


def _check_signature(token: SignedToken, keys: Sequence[VerifyingKey]) -> None:
    """Check the signature by the key that has the token's algorithm; several keys may share an id."""
    if not keys:
        raise SaslFailed(Refusal.UNKNOWN_KEY)
    fitting = [key for key in keys if token.algorithm in key.algorithms]
    token.check_signature(fitting[0] if fitting else keys[0])


def proven_by(claims: Mapping[str, Any], settings: OAuthSettings, *, now_s: float) -> Proven:
    """The identity that the claims of a token prove; its signature has been checked. Raises SaslFailed."""
    expires_s = _checked_times(claims, settings.clock_skew_s, now_s)
    if _required(claims, "iss") != settings.issuer:
        raise SaslFailed(Refusal.ISSUER)
    if not settings.audiences.intersection(_texts(_required(claims, "aud"))):
        raise SaslFailed(Refusal.AUDIENCE)
    if not settings.required_scopes <= _scopes(claims.get(settings.scope_claim)):
        raise SaslFailed(Refusal.SCOPE)
    user = _required(claims, settings.user_claim)
    if not isinstance(user, str):
        raise SaslFailed(Refusal.CLAIMS_MALFORMED)
    return Proven(
        user=checked_name(user),
        groups=_groups(claims, settings.groups_claim),
        lifetime_s=max(expires_s - now_s, MIN_LIFETIME_S),
    )


def _checked_times(claims: Mapping[str, Any], skew_s: float, now_s: float) -> float:
    """When the token expires."""
    expires_s, issued_s = (_time(_required(claims, name)) for name in ("exp", "iat"))
    begins_s = max(issued_s, _time(claims.get("nbf", issued_s)))
    if now_s >= expires_s + skew_s:
        raise SaslFailed(Refusal.EXPIRED)
    if now_s < begins_s - skew_s:
        raise SaslFailed(Refusal.NOT_YET_VALID)
    if expires_s <= issued_s:
        raise SaslFailed(Refusal.CLAIMS_MALFORMED)
    return expires_s


def _required(claims: Mapping[str, Any], name: str) -> Any:
    if (value := claims.get(name)) is None:
        raise SaslFailed(Refusal.CLAIM_MISSING)
    return value


def _time(value: object) -> float:
    """A claim in seconds since 1970. Raises SaslFailed for another value."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LAST_TIME_S:
        raise SaslFailed(Refusal.CLAIMS_MALFORMED)
    return float(value)


def _texts(value: object) -> list[str]:
    """The texts of a claim that holds one text or a list."""
    values: list[object] = value if isinstance(value, list) else [value]
    texts = [text for text in values if isinstance(text, str)]
    if len(texts) != len(values):
        raise SaslFailed(Refusal.CLAIMS_MALFORMED)
    return texts


def _scopes(value: object) -> set[str]:
    """The scopes in a list, or in one text separated by blanks (RFC 8693, 4.2); empty without the claim."""
    return set() if value is None else {scope for text in _texts(value) for scope in text.split()}


def _groups(claims: Mapping[str, Any], path: str) -> frozenset[str]:
    """The groups at a path; empty if the path is empty, or leads nowhere."""
    found = _at(claims, path) if path else None
    groups = [] if found is None else _texts(found)
    if len(groups) > MAX_GROUPS:
        raise SaslFailed(Refusal.CLAIMS_MALFORMED)
    return frozenset(map(checked_name, groups))


def _at(claims: Mapping[str, Any], path: str) -> object:
    """The value of the claim with this name, or of the claim at `outer.inner`. Raises SaslFailed if an outer one is not
    an object."""
    if path in claims:
        return claims[path]  # names such as https://example.com/groups contain dots
    found: object = claims
    for name in path.split("."):
        if found is None:
            return None
        if not isinstance(found, dict):
            raise SaslFailed(Refusal.CLAIMS_MALFORMED)
        found = found.get(name)
    return found
