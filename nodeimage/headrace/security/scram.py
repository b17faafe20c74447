"""SCRAM, the client's side (RFC 5802, RFC 7677): what to say, from what the server said. No I/O.

As Kafka has it: no channel binding, and user name and password as they are (no SASLprep).
"""

import base64
import binascii
import hashlib
import hmac
import secrets
from typing import Final

MOST_ITERATIONS: Final = 1 << 18
"""A server that wants more wants our CPU: half a second of it is enough."""
LEAST_ITERATIONS: Final = 4096

HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
"""By mechanism."""


class ScramFailed(Exception):
    """The server said something that SCRAM does not allow, or proved that it does not know the password."""


class ScramClient:
    """One exchange: `first`, then `final` with the server's answer, then `verify` with the server's last word."""

    def __init__(self, mechanism: str, username: str, password: str, *, nonce: str | None = None) -> None:
        """`nonce`: for tests alone."""
        self._hash = HASHES[mechanism]
        self._password = password.encode()
        self._nonce = nonce if nonce is not None else secrets.token_urlsafe(24)
        name = username.replace("=", "=3D").replace(",", "=2C")
        self._bare = f"n={name},r={self._nonce}"
        self._signature = b""

    def first(self) -> bytes:
        """The client's first message."""
        return f"n,,{self._bare}".encode()

    def final(self, server_first: bytes) -> bytes:
        """[blocking] The client's last message: up to half a second of hashing. Raises `ScramFailed`."""
        said = _attributes(server_first)
        try:
            nonce, salt, rounds = said["r"], _decoded(said["s"]), int(said["i"])
        except (KeyError, ValueError) as error:
            raise ScramFailed("the server's first message is not SCRAM's") from error
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise ScramFailed("the server's nonce is not made of ours")
        if not LEAST_ITERATIONS <= rounds <= MOST_ITERATIONS:
            raise ScramFailed(
                f"the server wants {rounds} iterations; {LEAST_ITERATIONS} to {MOST_ITERATIONS} are taken"
            )
        without_proof = f"c=biws,r={nonce}"
        signed = b",".join((self._bare.encode(), server_first, without_proof.encode()))
        salted = hashlib.pbkdf2_hmac(self._hash, self._password, salt, rounds)
        client_key = self._hmac(salted, b"Client Key")
        stored_key = hashlib.new(self._hash, client_key).digest()
        proof = bytes(a ^ b for a, b in zip(client_key, self._hmac(stored_key, signed), strict=True))
        self._signature = self._hmac(self._hmac(salted, b"Server Key"), signed)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def verify(self, server_final: bytes) -> None:
        """Check that the server knows the password too. Raises `ScramFailed`."""
        said = _attributes(server_final)
        if "e" in said:
            raise ScramFailed(f"the server says {said['e'][:100]!r}")
        try:
            signature = _decoded(said.get("v", ""))
        except ValueError as error:
            raise ScramFailed("the server's last message is not SCRAM's") from error
        if not self._signature or not hmac.compare_digest(signature, self._signature):
            raise ScramFailed("the server does not know the password: it is not who it claims to be")

    def _hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, self._hash)


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError("not base 64") from error


def _attributes(message: bytes) -> dict[str, str]:
    """Of `r=...,s=...,i=4096`."""
    try:
        text = message.decode()
    except UnicodeDecodeError as error:
        raise ScramFailed("the server's message is not UTF-8") from error
    return {part[0]: part[2:] for part in text.split(",") if part[1:2] == "="}
