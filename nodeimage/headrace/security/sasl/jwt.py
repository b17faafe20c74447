"""Whether a bearer token counts, and for whom: signature, then claims (RFC 7519, RFC 8725).

All of it must hold: a key of the set with the token's key id, an algorithm of that key, the issuer, the audience, and
the times. A claim of a wrong form is refused, not passed over: groups that cannot be read could be ones that an access
expression excludes.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from headrace.security.sasl.jose_text import json_object
from headrace.security.sasl.jwk import VerifyingKey
from headrace.security.sasl.jws import SignedToken, parse_token
from headrace.security.sasl.oauth_settings import OAuthSettings
from headrace.security.sasl.outcome import Proven, Refusal, SaslFailed
from headrace.security.sasl.text import checked_name

MOST_GROUPS: Final = 1024
LEAST_LIFETIME_S: Final = 1.0
"""Of a token that counts by the clocks' skew alone: a lifetime of 0 would mean one without end."""
_LAST_TIME_S: Final = 253_402_300_799
"""The end of the year 9999."""


class KeySource(Protocol):
    """Where the keys of an issuer are."""

    async def keys(self, key_id: str) -> Sequence[VerifyingKey]:
        """Those with this id; none where there is none."""


class TokenVerifier:
    """Checks the tokens of one listener."""

    def __init__(self, settings: OAuthSettings, keys: KeySource, *, now_s: Callable[[], float]) -> None:
        """`now_s`: seconds since 1970."""
        self._settings = settings
        self._keys = keys
        self._now_s = now_s

    async def verify(self, text: str) -> Proven:
        """Whom the token proves. Raises SaslFailed."""
        token = parse_token(text)
        _check_signature(token, await self._keys.keys(token.key_id))
        try:
            claims = json_object(token.payload)
        except ValueError:
            raise SaslFailed(Refusal.CLAIMS_MALFORMED) from None
        return proven_by(claims, self._settings, now_s=self._now_s())


def _check_signature(token: SignedToken, keys: Sequence[VerifyingKey]) -> None:
    """By the key that has the token's algorithm, where several share an id."""
    if not keys:
        raise SaslFailed(Refusal.UNKNOWN_KEY)
    fitting = [key for key in keys if token.algorithm in key.algorithms]
    token.check_signature(fitting[0] if fitting else keys[0])


def proven_by(claims: Mapping[str, Any], settings: OAuthSettings, *, now_s: float) -> Proven:
    """Whom the claims of a token prove whose signature fits. Raises SaslFailed."""
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
        lifetime_s=max(expires_s - now_s, LEAST_LIFETIME_S),
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
    """Of seconds since 1970."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LAST_TIME_S:
        raise SaslFailed(Refusal.CLAIMS_MALFORMED)
    return float(value)


def _texts(value: object) -> list[str]:
    """Of a claim that holds one text or several."""
    values: list[object] = value if isinstance(value, list) else [value]
    texts = [text for text in values if isinstance(text, str)]
    if len(texts) != len(values):
        raise SaslFailed(Refusal.CLAIMS_MALFORMED)
    return texts


def _scopes(value: object) -> set[str]:
    """Of a list, or of one text with blanks between (RFC 8693, 4.2); none where there is no such claim."""
    return set() if value is None else {scope for text in _texts(value) for scope in text.split()}


def _groups(claims: Mapping[str, Any], path: str) -> frozenset[str]:
    """The groups at a path; none where it is empty, or leads nowhere."""
    found = _at(claims, path) if path else None
    groups = [] if found is None else _texts(found)
    if len(groups) > MOST_GROUPS:
        raise SaslFailed(Refusal.CLAIMS_MALFORMED)
    return frozenset(map(checked_name, groups))


def _at(claims: Mapping[str, Any], path: str) -> object:
    """What a claim of this name holds, or the claim at `outer.inner`. Raises SaslFailed where an outer one is not an
    object."""
    if path in claims:
        return claims[path]  # such names as https://example.com/groups have dots of their own
    found: object = claims
    for name in path.split("."):
        if found is None:
            return None
        if not isinstance(found, dict):
            raise SaslFailed(Refusal.CLAIMS_MALFORMED)
        found = found.get(name)
    return found
