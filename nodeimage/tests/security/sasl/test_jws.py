"""Signatures of tokens: the RFCs' own examples, each algorithm, and keys that may check none."""

import json
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from headrace.security.sasl.jose_text import from_base64url, json_object, to_base64url
from headrace.security.sasl.jwk import UnusableKey, VerifyingKey, key_of
from headrace.security.sasl.jwks import keys_of
from headrace.security.sasl.jws import SignedToken, parse_token
from headrace.security.sasl.outcome import Refusal, SaslFailed
from kit.tokens import Issuer, ec_jwk, ed_jwk, rsa_jwk

ALGORITHMS = (
    *(f"{kind}{size}" for kind in ("RS", "PS", "ES") for size in (256, 384, 512)),
    "EdDSA",
    "Ed25519",
    "Ed448",
)

JOE = "eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ"
DOOR = (
    "SXTigJlzIGEgZGFuZ2Vyb3VzIGJ1c2luZXNzLCBGcm9kbywgZ29pbmcgb3V0IHlvdXIgZG9vci4gWW91IHN0ZXAgb250byB0aGUgcm9hZCwgYW5k"
    "IGlmIHlvdSBkb24ndCBrZWVwIHlvdXIgZmVldCwgdGhlcmXigJlzIG5vIGtub3dpbmcgd2hlcmUgeW91IG1pZ2h0IGJlIHN3ZXB0IG9mZiB0by4"
)
EXAMPLES: dict[str, tuple[str, dict[str, str], str, str]] = {
    "RFC 7515, A.2": (
        "RS256",
        {
            "kty": "RSA",
            "n": "ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPMEzP1Pt0Bm4d4QlL-yRT"
            "-SFd2lZS-pCgNMsD1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSHSXndS5z5rexMdbBYUsLA9e-KXBdQOS-UTo"
            "7WTBEMa2R2CapHg665xsmtdVMTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmoudF8NAco9_h9iaGNj8q2ethFkMLs9"
            "1kzk2PAcDTW9gb54h4FRWyuXpoQ",
            "e": "AQAB",
        },
        f"eyJhbGciOiJSUzI1NiJ9.{JOE}",
        (
            "cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0Qc_lF5YKt_O8W2Fp5jujGbds9uJdbF9CUAr7"
            "t1dnZcAcQjbKBYNX4BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkSjtQBMHlb1L07Qe7K0GarZRmB_eSN9383LcOLn6_dO--xi1"
            "2jzDwusC-eOkHWEsqtFZESc6BfI7noOPqvhJ1phCnvWh6IeYI2w9QOYEUipUTI8np6LbgGY9Fs98rqVt5AXLIhWkWywlVmtVrBp0igcN_IoypGl"
            "UPQGe77Rw"
        ),
    ),
    "RFC 7515, A.3": (
        "ES256",
        {
            "kty": "EC",
            "crv": "P-256",
            "x": "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU",
            "y": "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0",
        },
        f"eyJhbGciOiJFUzI1NiJ9.{JOE}",
        "DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q",
    ),
    "RFC 7520, 4.2": (
        "PS384",
        {
            "kty": "RSA",
            "n": "n4EPtAOCc9AlkeQHPzHStgAbgs7bTZLwUBZdR8_KuKPEHLd4rHVTeT-O-XV2jRojdNhxJWTDvNd7nqQ0VEiZQHz_AJmSCpMaJMRBS"
            "FKrKb2wqVwGU_NsYOYL-QtiWN2lbzcEe6XC0dApr5ydQLrHqkHHig3RBordaZ6Aj-oBHqFEHYpPe7Tpe-OfVfHd1E6cS6M1FZcD1NNLYD5l"
            "FHpPI9bTwJlsde3uhGqC0ZCuEHg8lhzwOHrtIQbS0FVbb9k3-tVTU4fg_3L_vniUFAKwuCLqKnS2BYwdq_mzSnbLY7h_qixoR7jig3__kRh"
            "uaxwUkRz5iaiQkqgc5gHdrNP5zw",
            "e": "AQAB",
        },
        f"eyJhbGciOiJQUzM4NCIsImtpZCI6ImJpbGJvLmJhZ2dpbnNAaG9iYml0b24uZXhhbXBsZSJ9.{DOOR}",
        (
            "cu22eBqkYDKgIlTpzDXGvaFfz6WGoz7fUDcfT0kkOy42miAh2qyBzk1xEsnk2IpN6-tPid6VrklHkqsGqDqHCdP6O8TTB5dDDItllVo6_1OLPpcb"
            "UrhiUSMxbbXUvdvWXzg-UD8biiReQFlfz28zGWVsdiNAUf8ZnyPEgVFn442ZdNqiVJRmBqrYRXe8P_ijQ7p8Vdz0TTrxUeT3lm8d9shnr2lfJT8"
            "ImUjvAA2Xez2Mlp8cBE5awDzT0qI0n6uiP1aCN_2_jLAeQTlqRHtfa64QQSUmFAAjVKPbByi7xho0uTOcbH510a6GYmJUAfmWjwZ6oD4ifKo8DY"
            "M-X72Eaw"
        ),
    ),
    "RFC 8037, A.4": (
        "EdDSA",
        {"kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"},
        "eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc",
        "hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg",
    ),
}


@pytest.fixture(scope="module")
def issuer() -> Issuer:
    return Issuer()


def refusal(token: SignedToken, key: VerifyingKey) -> Refusal:
    with pytest.raises(SaslFailed) as failed:
        token.check_signature(key)
    return failed.value.refusal


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_of_the_rfcs_are_verified(name: str) -> None:
    """The parts are checked separately: only one example has the key id that tokens need here."""
    algorithm, jwk, message, signature = EXAMPLES[name]
    key = key_of({**jwk, "kid": "example"})
    content = from_base64url(signature)
    assert key.does_fit(algorithm, message.encode(), content)
    assert not key.does_fit(algorithm, message.encode() + b"x", content)
    for place in (0, len(content) // 2, len(content) - 1):
        changed = bytearray(content)
        changed[place] ^= 1
        assert not key.does_fit(algorithm, message.encode(), bytes(changed))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_each_algorithm_is_verified_with_its_own_key_alone(issuer: Issuer, algorithm: str) -> None:
    token = parse_token(issuer.token(algorithm))
    keys = keys_of(issuer.key_set())
    for key_id, (key,) in keys.items():
        if key_id == token.key_id:
            token.check_signature(key)
            assert refusal(parse_token(Issuer().token(algorithm)), key) is Refusal.SIGNATURE
        else:  # both Edwards curves use EdDSA
            does_share = algorithm in key.algorithms
            assert refusal(token, key) is (Refusal.SIGNATURE if does_share else Refusal.ALGORITHM)


def test_a_signature_of_ecdsa_is_two_numbers_and_not_der(issuer: Issuer) -> None:
    def der(message: bytes) -> bytes:
        return issuer.curves["P-256"].sign(message, ec.ECDSA(hashes.SHA256()))

    key = key_of(ec_jwk(issuer.curves["P-256"], "P-256"))
    assert not key.does_fit("ES256", b"message", der(b"message"))
    good = Issuer.ecdsa(issuer.curves["P-256"], b"message", hashes.SHA256())
    assert key.does_fit("ES256", b"message", good)
    assert not key.does_fit("ES256", b"message", good[:32] + b"\0" + good[32:])  # the same two numbers
    assert not key.does_fit("ES256", b"message", bytes(64))  # CVE-2022-21449
    assert not key.does_fit("ES256", b"message", b"")


def test_an_rsa_key_that_names_its_algorithm_has_no_other(issuer: Issuer) -> None:
    key = key_of(rsa_jwk(issuer.rsa, "RSA", alg="PS256"))
    parse_token(issuer.token("PS256")).check_signature(key)
    assert refusal(parse_token(issuer.token("RS256")), key) is Refusal.ALGORITHM


def test_a_set_names_no_algorithm_that_is_not_allowed(issuer: Issuer) -> None:
    known = {name for keys in keys_of(issuer.key_set()).values() for key in keys for name in key.algorithms}
    assert known == set(ALGORITHMS)


def small_rsa() -> dict[str, Any]:
    return rsa_jwk(rsa.generate_private_key(65537, 1024), "small")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"kid": None}, "no id"),
        ({"kid": ""}, "no id"),
        ({"kid": 7}, "no id"),
        ({"kid": "x" * 1001}, "no id"),
        ({"use": "enc"}, "not for signatures"),
        ({"key_ops": ["sign"]}, "not for signatures"),
        ({"key_ops": "verify"}, "not for signatures"),
        ({"kty": "oct", "k": "c2VjcmV0"}, "no algorithm"),
        ({"kty": "EC", "alg": "HS256"}, "no algorithm"),
        ({"kty": "EC", "alg": "ES384"}, "no algorithm"),
        ({"kty": "EC", "alg": "none"}, "no algorithm"),
        ({"kty": "EC", "crv": "secp256k1"}, "no algorithm"),
        ({"kty": ["EC"]}, "no algorithm"),
        ({"crv": ["P-256"]}, "no algorithm"),
        ({"x": None}, "broken"),
        ({"x": 7}, "broken"),
        ({"x": "AQ"}, "broken"),
        ({"x": "AQ=="}, "broken"),
        ({"kty": "RSA"}, "broken"),
        ({"kty": "RSA", "n": "AQAB", "e": "AQAB"}, "broken"),
        ({"kty": "OKP", "crv": "Ed25519", "x": "AQ"}, "broken"),
    ],
    ids=str,
)
def test_an_entry_that_is_no_key_for_signatures_is_passed_over(issuer: Issuer, change: Any, why: str) -> None:
    with pytest.raises(UnusableKey, match=why):
        key_of({**ec_jwk(issuer.curves["P-256"], "P-256"), **change})


def test_weak_rsa_keys_and_other_things_are_passed_over(issuer: Issuer) -> None:
    with pytest.raises(UnusableKey, match="broken"):
        key_of(small_rsa())
    for thing in (None, [], "key", 7):
        with pytest.raises(UnusableKey, match="not an object"):
            key_of(thing)
    document = json.dumps({"keys": [None, small_rsa(), ed_jwk(issuer.ed25519, "good")]}).encode()
    assert list(keys_of(document)) == ["good"]


def test_base64url_is_read_in_one_way_only() -> None:
    assert from_base64url("AQAB") == b"\x01\x00\x01"
    assert from_base64url("") == b""
    assert from_base64url(to_base64url(b"\xff\xfe")) == b"\xff\xfe"
    for text in ("AQ==", "A", "AR", "A+", "A/", " AQ", "AQ\n", "AQÀ"):
        with pytest.raises(ValueError, match="not base64url"):
            from_base64url(text)


@pytest.mark.parametrize(
    "text",
    ["[]", "null", "", "{", '{"a":1,"a":2}', '{"a":{"b":1,"b":1}}', '{"a":NaN}', '{"a":-Infinity}', "\ufeff{}"],
)
def test_json_is_read_in_one_way_only(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        json_object(text.encode())


def test_json_that_is_nested_very_deeply_or_has_very_long_numbers_is_refused() -> None:
    for text in ('{"a":' * 100_000, '{"a":' + "[" * 100_000, '{"a":' + "9" * 100_000 + "}"):
        with pytest.raises(ValueError, match=r".*"):
            json_object(text.encode())
