"""An issuer of bearer tokens: keys of each kind, their key set, and tokens signed with them, valid or not."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from headrace.security.sasl.jose_text import to_base64url

NOW_S = 1_800_000_000.0
ISSUER = "https://issuer.example"
AUDIENCE = "headrace"

Sign = Callable[[bytes], bytes]


def number(value: int) -> str:
    """A number as a key set writes it."""
    return to_base64url(value.to_bytes((value.bit_length() + 7) // 8, "big"))


def rsa_jwk(key: rsa.RSAPrivateKey, key_id: str, **more: str) -> dict[str, Any]:
    numbers = key.public_key().public_numbers()
    return {"kty": "RSA", "kid": key_id, "n": number(numbers.n), "e": number(numbers.e), **more}


def ec_jwk(key: ec.EllipticCurvePrivateKey, key_id: str, **more: str) -> dict[str, Any]:
    numbers, size = key.public_key().public_numbers(), (key.key_size + 7) // 8
    x, y = (to_base64url(value.to_bytes(size, "big")) for value in (numbers.x, numbers.y))
    curve = {256: "P-256", 384: "P-384", 521: "P-521"}.get(key.key_size, "other")
    return {"kty": "EC", "crv": curve, "kid": key_id, "x": x, "y": y, **more}


def ed_jwk(key: ed25519.Ed25519PrivateKey | ed448.Ed448PrivateKey, key_id: str, **more: str) -> dict[str, Any]:
    curve = "Ed25519" if isinstance(key, ed25519.Ed25519PrivateKey) else "Ed448"
    return {"kty": "OKP", "crv": curve, "kid": key_id, "x": to_base64url(key.public_key().public_bytes_raw()), **more}


class Issuer:
    """An issuer with one key of each kind, with the kind as its id."""

    def __init__(self) -> None:
        self.rsa = rsa.generate_private_key(65537, 2048)
        curves = {"P-256": ec.SECP256R1(), "P-384": ec.SECP384R1(), "P-521": ec.SECP521R1()}
        self.curves = {name: ec.generate_private_key(curve) for name, curve in curves.items()}
        self.ed25519 = ed25519.Ed25519PrivateKey.generate()
        self.ed448 = ed448.Ed448PrivateKey.generate()

    def key_set(self) -> bytes:
        """The document that its endpoint serves."""
        keys = [
            rsa_jwk(self.rsa, "RSA", use="sig"),
            *(ec_jwk(key, name) for name, key in self.curves.items()),
            ed_jwk(self.ed25519, "Ed25519"),
            ed_jwk(self.ed448, "Ed448"),
        ]
        return json.dumps({"keys": keys}).encode()

    def sign(self, algorithm: str) -> tuple[str, Sign]:
        """The id of the key for an algorithm, and the function that signs with it."""
        match algorithm:
            case "EdDSA" | "Ed25519":
                return "Ed25519", self.ed25519.sign
            case "Ed448":
                return "Ed448", self.ed448.sign
        digest = {"256": hashes.SHA256(), "384": hashes.SHA384(), "512": hashes.SHA512()}[algorithm[2:]]
        match algorithm[:2]:
            case "RS":
                return "RSA", lambda message: self.rsa.sign(message, padding.PKCS1v15(), digest)
            case "PS":
                pss = padding.PSS(mgf=padding.MGF1(digest), salt_length=digest.digest_size)
                return "RSA", lambda message: self.rsa.sign(message, pss, digest)
        curve = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}[algorithm]
        return curve, lambda message: self.ecdsa(self.curves[curve], message, digest)

    @staticmethod
    def ecdsa(key: ec.EllipticCurvePrivateKey, message: bytes, digest: hashes.HashAlgorithm) -> bytes:
        size = (key.key_size + 7) // 8
        return b"".join(
            half.to_bytes(size, "big") for half in decode_dss_signature(key.sign(message, ec.ECDSA(digest)))
        )

    def token(
        self,
        algorithm: str = "ES256",
        *,
        header: Mapping[str, Any] | None = None,
        without: tuple[str, ...] = (),
        **claims: Any,
    ) -> str:
        """A valid token for alice, except for `header` and `claims`, and for the claims that it is `without`."""
        key_id, sign = self.sign(algorithm)
        told = {"alg": algorithm, "typ": "JWT", "kid": key_id, **(header or {})}
        good = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "iat": NOW_S - 10, "exp": NOW_S + 600}
        kept = {name: value for name, value in {**good, **claims}.items() if name not in without}
        return compact(told, json.dumps(kept).encode(), sign)


def compact(header: Mapping[str, Any], payload: bytes, sign: Sign) -> str:
    """A token with any header and content."""
    message = f"{to_base64url(json.dumps(dict(header)).encode())}.{to_base64url(payload)}"
    return f"{message}.{to_base64url(sign(message.encode()))}"


def bearer(token: str, *, authorization_id: str = "", extensions: str = "") -> bytes:
    """The first message of OAUTHBEARER."""
    name = f"a={authorization_id}" if authorization_id else ""
    return f"n,{name},\x01auth=Bearer {token}\x01{extensions}\x01".encode()
