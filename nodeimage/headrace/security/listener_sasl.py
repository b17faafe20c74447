"""The SASL settings of a listener, in its table of the listeners' file. No I/O.

mechanisms = ["SCRAM-SHA-512", "OAUTHBEARER"]   of SCRAM-SHA-256, SCRAM-SHA-512, PLAIN and OAUTHBEARER
max_reauth_ms = 3600000                         Kafka's `connections.max.reauth.ms`; 0, the default: no limit
[listener.oauth]                                only with OAUTHBEARER, where it is required
jwks_url = "https://issuer.example/keys"        `sasl.oauthbearer.jwks.endpoint.url`
jwks_ca = "issuer-ca.crt"                       PEM: authorities for TLS to that address, instead of the machine's
issuer = "https://issuer.example"               `sasl.oauthbearer.expected.issuer`
audience = "headrace"                           `sasl.oauthbearer.expected.audience`: one, or a list
user_claim = "sub"                              `sasl.oauthbearer.sub.claim.name`
scope_claim = "scope"                           `sasl.oauthbearer.scope.claim.name`
required_scopes = ["kafka"]                     a token must have all of them
groups_claim = "realm_access.roles"             the claim that names groups, or a path to it; absent: no groups
clock_skew_s = 30                               `sasl.oauthbearer.clock.skew.seconds`
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from headrace.base.errors import KafkaError
from headrace.security.sasl.mechanisms import MECHANISMS
from headrace.security.sasl.oauth_settings import OAuthSettings

MIN_REAUTH_MS: Final = 2_000
"""Smallest session lifetime in ms. Clients re-authenticate somewhat before the end of a session, and at most once a
second."""
MAX_REAUTH_MS: Final = 366 * 86_400_000
OAUTHBEARER: Final = "OAUTHBEARER"
KEYS: Final = ("mechanisms", "max_reauth_ms", "oauth")

_OAUTH_REQUIRED: Final = ("jwks_url", "issuer", "audience")
_OAUTH_TEXTS: Final = ("jwks_url", "issuer", "user_claim", "scope_claim", "groups_claim", "jwks_ca")
_OAUTH_LISTS: Final = {"audience": "audiences", "required_scopes": "required_scopes"}
"""The setting's name, by the key in the file."""
_OAUTH_KEYS: Final = (*_OAUTH_TEXTS, *_OAUTH_LISTS, "clock_skew_s")
_SHOWN: Final = 60


class SaslFault(Exception):
    """A key has an invalid value: `key` is its name, or a path to it."""

    def __init__(self, key: str, fault: str) -> None:
        super().__init__(f"{key} {fault}")
        self.key = key
        self.fault = fault


@dataclass(frozen=True, slots=True)
class SaslConfig:
    """The SASL settings of one listener."""

    mechanisms: tuple[str, ...]
    """The mechanisms, in the order in which clients receive them."""
    max_reauth_ms: int = 0
    """Longest session in ms; 0: sessions last as long as their proofs."""
    oauth: OAuthSettings | None = None
    """Not None exactly if OAUTHBEARER is one of the mechanisms."""
    jwks_ca: Path | None = None


def parse_sasl(table: Mapping[str, Any], folder: Path) -> SaslConfig:
    """The SASL settings in a listener's table; its file is in `folder`. Raises SaslFault."""
    mechanisms = _mechanisms(table)
    max_reauth_ms = table.get("max_reauth_ms", 0)
    allowed = type(max_reauth_ms) is int and (max_reauth_ms == 0 or MIN_REAUTH_MS <= max_reauth_ms <= MAX_REAUTH_MS)
    if not allowed:
        raise SaslFault(
            "max_reauth_ms",
            f"is {shown(max_reauth_ms)}; it must be 0, or a number of milliseconds from {MIN_REAUTH_MS} to "
            f"{MAX_REAUTH_MS}",
        )
    oauth = table.get("oauth")
    if OAUTHBEARER not in mechanisms:
        if oauth is not None:
            raise SaslFault("oauth", "is set, but OAUTHBEARER is not among the mechanisms; add it, or leave oauth out")
        return SaslConfig(mechanisms, max_reauth_ms)
    if not isinstance(oauth, dict):
        raise SaslFault("oauth", f"is missing; OAUTHBEARER needs [listener.oauth] with {', '.join(_OAUTH_REQUIRED)}")
    jwks_ca = folder / oauth["jwks_ca"] if _text(oauth, "jwks_ca") else None
    return SaslConfig(mechanisms, max_reauth_ms, _oauth(oauth), jwks_ca)


def _mechanisms(table: Mapping[str, Any]) -> tuple[str, ...]:
    if "mechanisms" not in table:
        raise SaslFault(
            "mechanisms", f"is missing; a listener with SASL needs a list of one or more of {', '.join(MECHANISMS)}"
        )
    names = _list(table, "mechanisms", path="mechanisms")
    if not names:
        raise SaslFault("mechanisms", f"is empty: nobody could authenticate; choose from {', '.join(MECHANISMS)}")
    for name in names:
        if name not in MECHANISMS:
            raise SaslFault("mechanisms", f"contains {shown(name)}; known are {', '.join(MECHANISMS)}")
    if len(set(names)) < len(names):
        raise SaslFault("mechanisms", "names one twice")
    return tuple(names)


def _oauth(table: Mapping[str, Any]) -> OAuthSettings:
    for key in table:
        if key not in _OAUTH_KEYS:
            raise SaslFault(f"oauth.{shown(key)}", f"is not known; known are {', '.join(_OAUTH_KEYS)}")
    for key in _OAUTH_REQUIRED:
        if key not in table:
            raise SaslFault(f"oauth.{key}", "is missing; without it, anybody's tokens would be accepted")
    settings: dict[str, Any] = {key: table[key] for key in _OAUTH_TEXTS if key != "jwks_ca" and _text(table, key)}
    for key, name in _OAUTH_LISTS.items():
        if key in table:
            settings[name] = frozenset(_list(table, key, path=f"oauth.{key}"))
    if "clock_skew_s" in table:
        skew_s = table["clock_skew_s"]
        if type(skew_s) not in (int, float):
            raise SaslFault("oauth.clock_skew_s", f"is {shown(skew_s)}; it must be a number of seconds")
        settings["clock_skew_s"] = float(skew_s)
    try:
        return OAuthSettings(**settings)
    except KafkaError as error:
        raise SaslFault("oauth:", str(error)) from None


def _text(table: Mapping[str, Any], key: str) -> bool:
    """Whether the key is present. Raises SaslFault if its value is not a text, or is empty."""
    if key not in table:
        return False
    if not isinstance(table[key], str) or not table[key] or "\0" in table[key]:
        raise SaslFault(f"oauth.{key}", f'is {shown(table[key])}; it must be text in "quotes"')
    return True


def _list(table: Mapping[str, Any], key: str, *, path: str) -> list[str]:
    """The list of texts at `key`; a single text counts as a list of one."""
    value = table[key]
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
        raise SaslFault(path, f'is {shown(value)}; it must be a list, such as ["a", "b"]')
    return texts


def shown(value: object) -> str:
    """A value as messages show it."""
    text = repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
