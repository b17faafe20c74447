"""The settings that a listener needs before it accepts bearer tokens. There is no default for whom it trusts."""

from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Final
from urllib.parse import SplitResult, urlsplit

from headrace.base.errors import Code, KafkaError

MAX_CLOCK_SKEW_S: Final = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OAuthSettings:
    """The settings for bearer tokens. Raises KafkaError INVALID_CONFIG, which names the property, unless key set,
    issuer and audience are all given."""

    jwks_url: str
    """`sasl.oauthbearer.jwks.endpoint.url`."""
    issuer: str
    """`sasl.oauthbearer.expected.issuer`."""
    audiences: frozenset[str]
    """`sasl.oauthbearer.expected.audience`: a token needs one of them."""
    user_claim: str = "sub"
    """`sasl.oauthbearer.sub.claim.name`."""
    scope_claim: str = "scope"
    """`sasl.oauthbearer.scope.claim.name`."""
    required_scopes: frozenset[str] = field(default=frozenset())
    """Scopes that a token must have, all of them."""
    groups_claim: str = ""
    """The claim that names groups, or a path to it as `realm_access.roles`; empty: groups are not taken from tokens."""
    clock_skew_s: float = 30.0
    """`sasl.oauthbearer.clock.skew.seconds`."""

    def __post_init__(self) -> None:
        checked_jwks_url(self.jwks_url)
        if not self.issuer:
            raise _wrong("sasl.oauthbearer.expected.issuer is required: tokens of any issuer would count")
        if isinstance(self.audiences, str) or not self.audiences or "" in self.audiences:
            raise _wrong("sasl.oauthbearer.expected.audience is required: tokens for any service would count")
        if not self.user_claim or not self.scope_claim:
            raise _wrong("sasl.oauthbearer.sub.claim.name and sasl.oauthbearer.scope.claim.name are not empty")
        if not 0 <= self.clock_skew_s <= MAX_CLOCK_SKEW_S:
            raise _wrong(f"sasl.oauthbearer.clock.skew.seconds is 0 to {MAX_CLOCK_SKEW_S:.0f}")


def checked_jwks_url(url: str) -> SplitResult:
    """A key set's address: https, or http to this machine. Raises KafkaError INVALID_CONFIG."""
    name = "sasl.oauthbearer.jwks.endpoint.url"
    if not url:
        raise _wrong(f"{name} is required: without keys no signature could be checked")
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        raise _wrong(f"{name} is not a URL") from None
    if not host or not (parts.scheme == "https" or (parts.scheme == "http" and _is_loopback(host))):
        raise _wrong(f"{name} is https://..., or http:// to the loopback address")
    if "@" in parts.netloc or parts.fragment:
        raise _wrong(f"{name} must not contain a user, a password or a fragment")
    return parts


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _wrong(message: str) -> KafkaError:
    return KafkaError(Code.INVALID_CONFIG, message)
