"""Tokens: the identity that a valid one proves, and each attack by name."""

import hashlib
import hmac
import json
from collections.abc import Sequence
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from headrace.security.sasl.jose_text import to_base64url
from headrace.security.sasl.jwk import VerifyingKey
from headrace.security.sasl.jwks import keys_of
from headrace.security.sasl.jwt import TokenVerifier, proven_by
from headrace.security.sasl.oauth_settings import OAuthSettings
from headrace.security.sasl.outcome import Proven, Refusal, SaslFailed
from kit.tokens import AUDIENCE, ISSUER, NOW_S, Issuer, compact

SETTINGS = OAuthSettings(jwks_url="https://issuer.example/keys", issuer=ISSUER, audiences=frozenset({AUDIENCE}))


@pytest.fixture(scope="module")
def issuer() -> Issuer:
    return Issuer()


class Keys:
    """An issuer's keys, without a server."""

    def __init__(self, issuer: Issuer) -> None:
        self._keys = keys_of(issuer.key_set())

    async def keys(self, key_id: str) -> Sequence[VerifyingKey]:
        return self._keys.get(key_id, ())


async def verified(issuer: Issuer, token: str, *, now_s: float = NOW_S, **settings: Any) -> Proven:
    chosen = OAuthSettings(
        **{"jwks_url": SETTINGS.jwks_url, "issuer": ISSUER, "audiences": SETTINGS.audiences, **settings}
    )
    return await TokenVerifier(chosen, Keys(issuer), now_s=lambda: now_s).verify(token)


async def refusal(issuer: Issuer, token: str, *, now_s: float = NOW_S, **settings: Any) -> Refusal:
    with pytest.raises(SaslFailed) as failed:
        await verified(issuer, token, now_s=now_s, **settings)
    assert str(failed.value) == failed.value.refusal.value
    return failed.value.refusal


async def test_a_good_token_proves_its_subject_for_the_rest_of_its_life(issuer: Issuer) -> None:
    for algorithm in ("RS256", "PS512", "ES384", "EdDSA"):
        assert await verified(issuer, issuer.token(algorithm)) == Proven("alice", frozenset(), 600.0)


# --- signatures


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "nOnE", ""])
async def test_a_token_without_a_signature_is_refused(issuer: Issuer, algorithm: str) -> None:
    header = {"alg": algorithm, "kid": "RSA"}
    payload = issuer.token().split(".")[1]
    unsigned = f"{to_base64url(json.dumps(header).encode())}.{payload}."
    assert await refusal(issuer, unsigned) is Refusal.ALGORITHM
    signed = issuer.token("RS256", header=header)
    assert await refusal(issuer, signed) is Refusal.ALGORITHM


@pytest.mark.parametrize("encoding", [Encoding.PEM, Encoding.DER])
async def test_a_token_with_a_public_key_as_its_secret_is_refused(issuer: Issuer, encoding: Encoding) -> None:
    public = issuer.rsa.public_key().public_bytes(encoding, PublicFormat.SubjectPublicKeyInfo)
    good = issuer.token("RS256")
    payload = good.split(".")[1]
    header = to_base64url(b'{"alg":"HS256","kid":"RSA"}')
    message = f"{header}.{payload}"
    forged = hmac.digest(public, message.encode(), hashlib.sha256)
    assert await refusal(issuer, f"{message}.{to_base64url(forged)}") is Refusal.ALGORITHM


async def test_a_changed_payload_is_refused(issuer: Issuer) -> None:
    good, admin = issuer.token().split("."), issuer.token(sub="admin").split(".")
    assert await refusal(issuer, ".".join((good[0], admin[1], good[2]))) is Refusal.SIGNATURE
    assert await refusal(issuer, ".".join((good[0], good[1], ""))) is Refusal.SIGNATURE


async def test_a_token_of_another_issuers_key_with_the_same_id_is_refused(issuer: Issuer) -> None:
    assert await refusal(issuer, Issuer().token()) is Refusal.SIGNATURE


async def test_keys_that_a_token_brings_along_are_not_looked_at(issuer: Issuer) -> None:
    stranger = Issuer()
    own = json.loads(stranger.key_set())["keys"][1]
    brought = {"jwk": own, "jku": "https://evil.example/keys", "x5c": ["AAAA"], "x5u": "https://evil.example/c"}
    assert await refusal(issuer, stranger.token(header=brought)) is Refusal.SIGNATURE
    assert (await verified(issuer, issuer.token(header=brought))).user == "alice"


@pytest.mark.parametrize("key_id", ["unknown", "../RSA", "x" * 1000])
async def test_a_key_that_is_not_in_the_set_is_refused(issuer: Issuer, key_id: str) -> None:
    assert await refusal(issuer, issuer.token(header={"kid": key_id})) is Refusal.UNKNOWN_KEY


@pytest.mark.parametrize("key_id", [None, "", 7, ["P-256"], "x" * 1001])
async def test_a_token_that_names_no_key_is_refused(issuer: Issuer, key_id: Any) -> None:
    assert await refusal(issuer, issuer.token(header={"kid": key_id})) is Refusal.NO_KEY_ID


async def test_a_key_of_another_kind_than_the_algorithms_is_refused(issuer: Issuer) -> None:
    assert await refusal(issuer, issuer.token("ES256", header={"kid": "RSA"})) is Refusal.ALGORITHM
    assert await refusal(issuer, issuer.token("RS256", header={"kid": "P-256"})) is Refusal.ALGORITHM


async def test_where_several_keys_share_an_id_the_one_with_the_algorithm_counts(issuer: Issuer) -> None:
    entries = json.loads(issuer.key_set())["keys"]
    shared = keys_of(json.dumps({"keys": [{**entry, "kid": "one"} for entry in entries]}).encode())

    class Shared:
        async def keys(self, key_id: str) -> Sequence[VerifyingKey]:
            return shared[key_id]

    verifier = TokenVerifier(SETTINGS, Shared(), now_s=lambda: NOW_S)
    for algorithm in ("RS256", "ES512", "Ed448"):
        assert (await verifier.verify(issuer.token(algorithm, header={"kid": "one"}))).user == "alice"
    with pytest.raises(SaslFailed) as failed:
        await verifier.verify(issuer.token(header={"kid": "one", "alg": "HS256"}))
    assert failed.value.refusal is Refusal.ALGORITHM


# --- form


@pytest.mark.parametrize(
    ("header", "why"),
    [
        ({"crit": ["exp"]}, Refusal.CRITICAL_HEADER),
        ({"crit": []}, Refusal.CRITICAL_HEADER),
        ({"b64": False, "crit": ["b64"]}, Refusal.CRITICAL_HEADER),
        ({"b64": False}, Refusal.CRITICAL_HEADER),
        ({"typ": "logout+jwt"}, Refusal.TOKEN_TYPE),
        ({"typ": "dpop+jwt"}, Refusal.TOKEN_TYPE),
        ({"typ": 7}, Refusal.TOKEN_TYPE),
        ({"cty": "JWT"}, Refusal.TOKEN_TYPE),
        ({"alg": None}, Refusal.ALGORITHM),
        ({"alg": ["ES256"]}, Refusal.ALGORITHM),
        ({"alg": "es256"}, Refusal.ALGORITHM),
    ],
    ids=str,
)
async def test_a_header_that_breaks_a_rule_is_refused(issuer: Issuer, header: dict[str, Any], why: Refusal) -> None:
    assert await refusal(issuer, issuer.token(header=header)) is why


@pytest.mark.parametrize("kind", ["JWT", "at+jwt", "application/at+jwt", "Application/JWT"])
async def test_types_of_access_tokens_are_taken(issuer: Issuer, kind: str) -> None:
    assert (await verified(issuer, issuer.token(header={"typ": kind}))).user == "alice"


async def test_what_is_no_token_is_refused(issuer: Issuer) -> None:
    good = issuer.token()
    head, payload, signature = good.split(".")
    for text in ("", ".", "..", "a.b", f"{good}.", f"{good}.{good}", f"{head}.{payload}.{signature}.a.b"):
        assert await refusal(issuer, text) is Refusal.TOKEN_MALFORMED
    for text in (f"{good}=", f"{head}=.{payload}.{signature}", f"{head}.{payload}+.{signature}", f"é.{payload}.x"):
        assert await refusal(issuer, text) is Refusal.TOKEN_MALFORMED
    for header in ("[]", "7", '{"alg":"ES256","alg":"none","kid":"P-256"}', '{"kid":' * 2000, "\xff"):
        assert await refusal(issuer, f"{to_base64url(header.encode())}.{payload}.{signature}") is (
            Refusal.TOKEN_MALFORMED
        )
    assert await refusal(issuer, f"{'A' * 20_000}.{payload}.{signature}") is Refusal.TOKEN_MALFORMED


async def test_a_token_in_a_token_is_refused(issuer: Issuer) -> None:
    _, sign = issuer.sign("ES256")
    nested = compact({"alg": "ES256", "kid": "P-256"}, issuer.token().encode(), sign)
    assert await refusal(issuer, nested) is Refusal.CLAIMS_MALFORMED


@pytest.mark.parametrize(
    "payload",
    [b"", b"[]", b"null", b"\xff", b'{"exp":NaN}', b'{"sub":"alice","sub":"admin"}', b'{"a":' * 8000],
    ids=lambda payload: payload[:20],
)
async def test_claims_that_are_no_object_are_refused(issuer: Issuer, payload: bytes) -> None:
    _, sign = issuer.sign("ES256")
    token = compact({"alg": "ES256", "kid": "P-256"}, payload, sign)
    assert await refusal(issuer, token) is Refusal.CLAIMS_MALFORMED


# --- times


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"exp": NOW_S - 30}, Refusal.EXPIRED),
        ({"exp": NOW_S - 29}, None),
        ({"exp": NOW_S}, None),
        ({"exp": 0}, Refusal.EXPIRED),
        ({"iat": NOW_S + 30}, None),
        ({"iat": NOW_S + 31}, Refusal.NOT_YET_VALID),
        ({"nbf": NOW_S + 30}, None),
        ({"nbf": NOW_S + 31}, Refusal.NOT_YET_VALID),
        ({"nbf": NOW_S + 0.5, "iat": NOW_S + 0.5}, None),
        ({"iat": NOW_S + 20, "exp": NOW_S + 20}, Refusal.CLAIMS_MALFORMED),
        ({"exp": str(NOW_S + 60)}, Refusal.CLAIMS_MALFORMED),
        ({"exp": True}, Refusal.CLAIMS_MALFORMED),
        ({"exp": [NOW_S + 60]}, Refusal.CLAIMS_MALFORMED),
        ({"exp": 1e300}, Refusal.CLAIMS_MALFORMED),
        ({"exp": 10**400}, Refusal.CLAIMS_MALFORMED),
        ({"exp": -1}, Refusal.CLAIMS_MALFORMED),
        ({"iat": "now"}, Refusal.CLAIMS_MALFORMED),
        ({"nbf": {}}, Refusal.CLAIMS_MALFORMED),
        ({"nbf": None}, Refusal.CLAIMS_MALFORMED),
        ({"exp": None}, Refusal.CLAIM_MISSING),
    ],
    ids=lambda value: str(value)[:60],
)
async def test_a_token_counts_within_its_times_and_the_clocks_skew(
    issuer: Issuer, claims: dict[str, Any], why: Refusal | None
) -> None:
    claims = {"iat": NOW_S - 1000, **claims}
    if why is None:
        assert (await verified(issuer, issuer.token(**claims))).user == "alice"
    else:
        assert await refusal(issuer, issuer.token(**claims)) is why


async def test_infinite_times_are_refused(issuer: Issuer) -> None:
    _, sign = issuer.sign("ES256")
    for time in (b"1e999", b"-1e999"):
        payload = b'{"iss":"%s","aud":"headrace","sub":"alice","iat":1,"exp":%s}' % (ISSUER.encode(), time)
        token = compact({"alg": "ES256", "kid": "P-256"}, payload, sign)
        assert await refusal(issuer, token) is Refusal.CLAIMS_MALFORMED


async def test_a_token_that_counts_by_the_skew_alone_has_a_life_that_is_not_endless(issuer: Issuer) -> None:
    token = issuer.token(exp=NOW_S - 20, iat=NOW_S - 100)
    assert (await verified(issuer, token)).lifetime_s == 1.0
    assert await refusal(issuer, token, clock_skew_s=0) is Refusal.EXPIRED
    assert await refusal(issuer, token, now_s=NOW_S + 10) is Refusal.EXPIRED  # replayed later


# --- claims


@pytest.mark.parametrize("claim", ["exp", "iat", "iss", "aud", "sub"])
async def test_a_token_without_a_required_claim_is_refused(issuer: Issuer, claim: str) -> None:
    assert await refusal(issuer, issuer.token(without=(claim,))) is Refusal.CLAIM_MISSING


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"iss": "https://evil.example"}, Refusal.ISSUER),
        ({"iss": ISSUER + "/"}, Refusal.ISSUER),
        ({"iss": [ISSUER]}, Refusal.ISSUER),
        ({"aud": "other"}, Refusal.AUDIENCE),
        ({"aud": []}, Refusal.AUDIENCE),
        ({"aud": ["other", "Headrace"]}, Refusal.AUDIENCE),
        ({"aud": "headrace other"}, Refusal.AUDIENCE),
        ({"aud": [AUDIENCE, 7]}, Refusal.CLAIMS_MALFORMED),
        ({"aud": {AUDIENCE: True}}, Refusal.CLAIMS_MALFORMED),
        ({"sub": ""}, Refusal.ILLEGAL_NAME),
        ({"sub": "a\nb"}, Refusal.ILLEGAL_NAME),
        ({"sub": "\udc80"}, Refusal.ILLEGAL_NAME),
        ({"sub": "x" * 1025}, Refusal.ILLEGAL_NAME),
        ({"sub": 7}, Refusal.CLAIMS_MALFORMED),
        ({"sub": ["alice"]}, Refusal.CLAIMS_MALFORMED),
        ({"scope": 7}, Refusal.CLAIMS_MALFORMED),
    ],
    ids=lambda value: str(value)[:60],
)
async def test_a_claim_that_does_not_fit_is_refused(issuer: Issuer, claims: dict[str, Any], why: Refusal) -> None:
    assert await refusal(issuer, issuer.token(**claims)) is why


async def test_one_of_several_audiences_is_enough(issuer: Issuer) -> None:
    assert (await verified(issuer, issuer.token(aud=["other", AUDIENCE]))).user == "alice"
    audiences = frozenset({"other", "another"})
    assert (await verified(issuer, issuer.token(aud="another"), audiences=audiences)).user == "alice"


async def test_the_user_can_be_another_claim(issuer: Issuer) -> None:
    token = issuer.token(preferred_username="Alice Example")
    assert (await verified(issuer, token, user_claim="preferred_username")).user == "Alice Example"
    assert await refusal(issuer, token, user_claim="email") is Refusal.CLAIM_MISSING


@pytest.mark.parametrize("claims", [{"scope": "openid kafka write"}, {"scope": ["kafka", "write"]}], ids=str)
async def test_required_scopes_have_to_be_there(issuer: Issuer, claims: dict[str, Any]) -> None:
    needed = frozenset({"kafka", "write"})
    assert (await verified(issuer, issuer.token(**claims), required_scopes=needed)).user == "alice"
    assert await refusal(issuer, issuer.token(**claims), required_scopes=needed | {"admin"}) is Refusal.SCOPE
    assert await refusal(issuer, issuer.token(), required_scopes=needed) is Refusal.SCOPE
    assert await refusal(issuer, issuer.token(**claims), required_scopes=needed, scope_claim="scp") is Refusal.SCOPE


@pytest.mark.parametrize(
    ("path", "claims", "groups"),
    [
        ("groups", {"groups": ["ops", "dev"]}, ["ops", "dev"]),
        ("groups", {"groups": "ops dev"}, ["ops dev"]),
        ("groups", {"groups": []}, []),
        ("groups", {}, []),
        ("groups", {"groups": None}, []),
        ("", {"groups": ["ops"]}, []),
        ("realm_access.roles", {"realm_access": {"roles": ["ops"]}}, ["ops"]),
        ("realm_access.roles", {"realm_access": {}}, []),
        ("realm_access.roles", {}, []),
        ("https://x.example/groups", {"https://x.example/groups": ["ops"]}, ["ops"]),
    ],
    ids=str,
)
async def test_groups_are_taken_from_the_claim_at_a_path(
    issuer: Issuer, path: str, claims: dict[str, Any], groups: list[str]
) -> None:
    assert (await verified(issuer, issuer.token(**claims), groups_claim=path)).groups == set(groups)


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"groups": 7}, Refusal.CLAIMS_MALFORMED),
        ({"groups": {"ops": True}}, Refusal.CLAIMS_MALFORMED),
        ({"groups": ["ops", 7]}, Refusal.CLAIMS_MALFORMED),
        ({"groups": ["ops", ["dev"]]}, Refusal.CLAIMS_MALFORMED),
        ({"groups": ["g"] * 1025}, Refusal.CLAIMS_MALFORMED),
        ({"groups": ["ops", ""]}, Refusal.ILLEGAL_NAME),
        ({"groups": ["o\0ps"]}, Refusal.ILLEGAL_NAME),
    ],
    ids=lambda value: str(value)[:60],
)
async def test_groups_that_cannot_be_read_are_refused_and_not_passed_over(
    issuer: Issuer, claims: dict[str, Any], why: Refusal
) -> None:
    """An access expression may exclude one of the groups."""
    assert await refusal(issuer, issuer.token(**claims), groups_claim="groups") is why


async def test_a_path_through_something_that_is_no_object_is_refused(issuer: Issuer) -> None:
    token = issuer.token(realm_access=["roles"])
    assert await refusal(issuer, token, groups_claim="realm_access.roles") is Refusal.CLAIMS_MALFORMED


CLAIMS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just(AUDIENCE)


@given(
    claims=st.dictionaries(
        st.sampled_from(["iss", "aud", "sub", "exp", "iat", "nbf", "scope", "groups"]),
        st.recursive(CLAIMS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner)),
    )
)
def test_no_claims_are_met_with_anything_but_a_refusal(claims: dict[str, Any]) -> None:
    settings = OAuthSettings(
        jwks_url="https://x", issuer=ISSUER, audiences=frozenset({AUDIENCE}), groups_claim="groups.x"
    )
    whole = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "exp": NOW_S + 60, "iat": NOW_S, **claims}
    for told in (claims, whole):
        try:
            assert proven_by(told, settings, now_s=NOW_S).user
        except SaslFailed:
            pass


@given(st.text("eyJ.-_=A\0é{}", max_size=60))
def test_no_text_is_met_with_anything_but_a_refusal(text: str) -> None:
    class Nothing:
        async def keys(self, _key_id: str) -> Sequence[VerifyingKey]:
            return ()

    verifying = TokenVerifier(SETTINGS, Nothing(), now_s=lambda: NOW_S).verify(text)
    with pytest.raises(SaslFailed):
        verifying.send(None)
