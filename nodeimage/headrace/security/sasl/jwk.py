"""A public key of a key set (RFC 7517, RFC 8037), and the algorithms that it may be used with.

The kind of the key, never the token, decides which algorithms may be used: RSA has RS and PS, each curve its own. No
key allows HS or none, so a token that names these matches nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from headrace.security.sasl.jose_text import from_base64url

MAX_KEY_ID: Final = 1000
RSA_BITS: Final = range(2048, 8192 + 1)

Verify: TypeAlias = Callable[[bytes, bytes], None]
"""Check a signature over a message. Raises InvalidSignature."""

_HASHES: Final[Mapping[str, Callable[[], hashes.HashAlgorithm]]] = {
    "256": hashes.SHA256,
    "384": hashes.SHA384,
    "512": hashes.SHA512,
}
_CURVES: Final[Mapping[str, tuple[str, Callable[[], ec.EllipticCurve]]]] = {
    "P-256": ("ES256", ec.SECP256R1),
    "P-384": ("ES384", ec.SECP384R1),
    "P-521": ("ES512", ec.SECP521R1),
}


class UnusableKey(Exception):
    """An entry of a key set cannot check tokens: it is of another kind, for another use, or broken."""


@dataclass(frozen=True, slots=True)
class VerifyingKey:
    """A public key with its id."""

    key_id: str
    algorithms: Mapping[str, Verify] = field(repr=False)
    """The checks for the algorithms that the key allows, by JWS name."""

    def does_fit(self, algorithm: str, message: bytes, signature: bytes) -> bool:
        """Whether the signature was made by this key; `algorithm` is one of the key's."""
        try:
            self.algorithms[algorithm](signature, message)
        except InvalidSignature:
            return False
        return True


def key_of(jwk: object) -> VerifyingKey:
    """The key in an entry of a key set. Raises UnusableKey."""
    if not isinstance(jwk, dict):
        raise UnusableKey("not an object")
    key_id, use, operations, only = (jwk.get(name) for name in ("kid", "use", "key_ops", "alg"))
    if not isinstance(key_id, str) or not 0 < len(key_id) <= MAX_KEY_ID:
        raise UnusableKey("no id")
    if use not in (None, "sig") or (operations is not None and "verify" not in _listed(operations)):
        raise UnusableKey("not for signatures")
    try:
        algorithms = _algorithms(jwk)
    except (KeyError, TypeError, ValueError) as error:
        raise UnusableKey("broken") from error
    if only is not None:
        algorithms = {name: verify for name, verify in algorithms.items() if name == only}
    if not algorithms:
        raise UnusableKey("no algorithm that is allowed")
    return VerifyingKey(key_id, algorithms)


def _listed(operations: object) -> list[object]:
    return operations if isinstance(operations, list) else []


def _algorithms(jwk: Mapping[str, Any]) -> dict[str, Verify]:
    """The algorithms that the key allows. Raises KeyError, TypeError or ValueError if the key is broken."""
    match jwk.get("kty"), jwk.get("crv"):
        case "RSA", _:
            return _rsa(rsa.RSAPublicNumbers(_number(jwk["e"]), _number(jwk["n"])))
        case "EC", str(curve) if curve in _CURVES:
            return _elliptic(curve, _number(jwk["x"]), _number(jwk["y"]))
        case "OKP", "Ed25519":
            verify = ed25519.Ed25519PublicKey.from_public_bytes(from_base64url(jwk["x"])).verify
            return {"EdDSA": verify, "Ed25519": verify}
        case "OKP", "Ed448":
            verify = ed448.Ed448PublicKey.from_public_bytes(from_base64url(jwk["x"])).verify
            return {"EdDSA": verify, "Ed448": verify}
        case _:
            return {}


def _rsa(numbers: rsa.RSAPublicNumbers) -> dict[str, Verify]:
    if numbers.n.bit_length() not in RSA_BITS:
        raise ValueError(f"an RSA key has {RSA_BITS.start} to {RSA_BITS.stop - 1} bits")
    key = numbers.public_key()
    found: dict[str, Verify] = {}
    for size, make in _HASHES.items():
        digest = make()
        pss = padding.PSS(mgf=padding.MGF1(digest), salt_length=digest.digest_size)
        found[f"RS{size}"] = _with_padding(key, padding.PKCS1v15(), digest)
        found[f"PS{size}"] = _with_padding(key, pss, digest)
    return found


def _with_padding(key: rsa.RSAPublicKey, how: padding.AsymmetricPadding, digest: hashes.HashAlgorithm) -> Verify:
    def verify(signature: bytes, message: bytes) -> None:
        key.verify(signature, message, how, digest)

    return verify


def _elliptic(curve: str, x: int, y: int) -> dict[str, Verify]:
    algorithm, make = _CURVES[curve]
    key = ec.EllipticCurvePublicNumbers(x, y, make()).public_key()
    size = (key.key_size + 7) // 8
    digest = _HASHES[algorithm[2:]]()

    def verify(signature: bytes, message: bytes) -> None:
        if len(signature) != 2 * size:  # RFC 7518, 3.4: two numbers of the curve's length, not DER
            raise InvalidSignature
        halves = (int.from_bytes(half, "big") for half in (signature[:size], signature[size:]))
        key.verify(encode_dss_signature(*halves), message, ec.ECDSA(digest))

    return {algorithm: verify}


def _number(text: str) -> int:
    return int.from_bytes(from_base64url(text), "big")
