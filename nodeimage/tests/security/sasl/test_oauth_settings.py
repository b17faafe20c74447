"""A listener without settings for whom to trust is refused."""

from typing import Any

import pytest

from headrace.base.errors import Code, KafkaError
from headrace.security.sasl.oauth_settings import OAuthSettings

GOOD: dict[str, Any] = {
    "jwks_url": "https://issuer.example/keys",
    "issuer": "https://issuer.example",
    "audiences": frozenset({"headrace"}),
}


@pytest.mark.parametrize(
    "url",
    [
        "https://issuer.example/keys?x=1",
        "https://issuer.example:8443",
        "http://localhost:8080/keys",
        "http://127.0.0.1/keys",
        "http://127.8.8.8/keys",
        "http://[::1]:8080/keys",
    ],
)
def test_https_and_loopback_are_taken(url: str) -> None:
    assert OAuthSettings(**{**GOOD, "jwks_url": url}).clock_skew_s == 30.0


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"jwks_url": ""}, "jwks.endpoint.url is required"),
        ({"issuer": ""}, "expected.issuer is required"),
        ({"audiences": frozenset()}, "expected.audience is required"),
        ({"audiences": frozenset({""})}, "expected.audience is required"),
        ({"audiences": "headrace"}, "expected.audience is required"),
        ({"jwks_url": "http://issuer.example/keys"}, "https"),
        ({"jwks_url": "http://localhost.evil.example/keys"}, "https"),
        ({"jwks_url": "http://127.0.0.1.evil.example/keys"}, "https"),
        ({"jwks_url": "http://127.0.0.1@evil.example/keys"}, "https"),
        ({"jwks_url": "http://10.0.0.1/keys"}, "https"),
        ({"jwks_url": "file:///etc/passwd"}, "https"),
        ({"jwks_url": "issuer.example/keys"}, "https"),
        ({"jwks_url": "https:///keys"}, "https"),
        ({"jwks_url": "https://user:secret@issuer.example/keys"}, "must not contain a user"),
        ({"jwks_url": "https://issuer.example/keys#x"}, "must not contain a user, a password or a fragment"),
        ({"jwks_url": "https://issuer.example:x/keys"}, "not a URL"),
        ({"jwks_url": "https://[issuer/keys"}, "not a URL"),
        ({"user_claim": ""}, "not empty"),
        ({"scope_claim": ""}, "not empty"),
        ({"clock_skew_s": -1}, "0 to 300"),
        ({"clock_skew_s": 301}, "0 to 300"),
        ({"clock_skew_s": float("nan")}, "0 to 300"),
    ],
    ids=str,
)
def test_settings_that_would_trust_too_much_are_refused(change: dict[str, Any], why: str) -> None:
    with pytest.raises(KafkaError, match=why) as refused:
        OAuthSettings(**{**GOOD, **change})
    assert refused.value.code is Code.INVALID_CONFIG
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("name", GOOD)
def test_key_set_issuer_and_audience_have_no_default(name: str) -> None:
    with pytest.raises(TypeError):
        OAuthSettings(**{key: value for key, value in GOOD.items() if key != name})
