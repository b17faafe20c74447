"""SASL in the listeners' file: mechanisms, and the settings for bearer tokens."""

import tomllib
from pathlib import Path

import pytest

from headrace.security.listener_sasl import MIN_REAUTH_MS, SaslConfig, SaslFault, parse_sasl
from headrace.security.sasl.oauth_settings import OAuthSettings

FOLDER = Path("/etc/headrace")
OAUTH = """
mechanisms = ["OAUTHBEARER"]
[oauth]
jwks_url = "https://issuer.example/keys"
issuer = "https://issuer.example"
audience = "headrace"
"""


def read(text: str) -> SaslConfig:
    return parse_sasl(tomllib.loads(text), FOLDER)


def test_mechanisms_keep_their_order() -> None:
    assert read('mechanisms = ["SCRAM-SHA-512", "PLAIN"]') == SaslConfig(("SCRAM-SHA-512", "PLAIN"))
    assert read('mechanisms = "PLAIN"\nmax_reauth_ms = 3600000').max_reauth_ms == 3_600_000


def test_tokens_count_for_one_issuer_and_audience() -> None:
    assert read(OAUTH).oauth == OAuthSettings(
        jwks_url="https://issuer.example/keys", issuer="https://issuer.example", audiences=frozenset({"headrace"})
    )
    more = 'user_claim = "name"\ngroups_claim = "realm_access.roles"\nclock_skew_s = 5\njwks_ca = "ca.crt"\n'
    found = read(OAUTH.replace('"headrace"', '["a", "b"]') + more + 'required_scopes = ["kafka", "x"]\n')
    assert found.oauth is not None
    assert found.oauth.audiences == {"a", "b"}
    assert (found.oauth.user_claim, found.oauth.groups_claim) == ("name", "realm_access.roles")
    assert (found.oauth.clock_skew_s, found.oauth.required_scopes) == (5.0, {"kafka", "x"})
    assert found.jwks_ca == FOLDER / "ca.crt"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "mechanisms is missing"),
        ("mechanisms = []", "mechanisms is empty: nobody could authenticate"),
        ("mechanisms = 3", "mechanisms is 3; it must be a list"),
        ("mechanisms = [3]", "mechanisms is [3]; it must be a list"),
        ('mechanisms = ["GSSAPI"]', "mechanisms contains 'GSSAPI'; known are SCRAM-SHA-256, SCRAM-SHA-512, PLAIN, OA"),
        ('mechanisms = ["PLAIN", "PLAIN"]', "mechanisms names one twice"),
        ('mechanisms = "PLAIN"\nmax_reauth_ms = true', "max_reauth_ms is True; it must be 0, or a number"),
        ('mechanisms = "PLAIN"\nmax_reauth_ms = -1', "max_reauth_ms is -1"),
        (f'mechanisms = "PLAIN"\nmax_reauth_ms = {MIN_REAUTH_MS - 1}', "max_reauth_ms is"),
        ('mechanisms = "PLAIN"\n[oauth]\n', "oauth is set, but OAUTHBEARER is not among the mechanisms"),
        (
            'mechanisms = "OAUTHBEARER"',
            "oauth is missing; OAUTHBEARER needs [listener.oauth] with jwks_url, is",
        ),
        ('mechanisms = "OAUTHBEARER"\noauth = 3', "oauth is missing"),
        (OAUTH.replace('jwks_url = "https://issuer.example/keys"', ""), "oauth.jwks_url is missing; without it"),
        (OAUTH.replace('issuer = "https://issuer.example"', ""), "oauth.issuer is missing; without it"),
        (OAUTH.replace('audience = "headrace"', ""), "oauth.audience is missing; without it"),
        (OAUTH.replace('"headrace"', "[]"), "expected.audience is required"),
        (OAUTH.replace('"headrace"', '""'), "oauth.audience is ''; it must be a list"),
        (OAUTH.replace('"https://issuer.example"', '""'), "oauth.issuer is ''; it must be text"),
        (
            OAUTH.replace("https://issuer.example/keys", "http://issuer.example/keys"),
            "is https://..., or http:// to",
        ),
        (OAUTH + "clock_skew_s = 301", "clock.skew.seconds is 0 to 300"),
        (OAUTH + 'clock_skew_s = "1"', "oauth.clock_skew_s is '1'; it must be a number"),
        (OAUTH + "groups = 1", "oauth.'groups' is not known; known are jwks_url,"),
    ],
)
def test_what_is_refused_says_what_to_do(text: str, says: str) -> None:
    with pytest.raises(SaslFault) as refused:
        read(text)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)
