"""SCRAM, the client's side (RFC 5802, RFC 7677): the messages to send in answer to the server's. No I/O.

As in Kafka: no channel binding, and user name and password as they are (no SASLprep).
"""

import hmac
import secrets
from typing import Final

from headrace.security.scram_common import (
    HASHES,
    MIN_ITERATIONS,
    NO_CHANNEL_BINDING,
    client_key,
    from_base64,
    salted_password,
    server_key,
    sign,
    stored_key,
    to_base64,
    xor,
)

MAX_ITERATIONS: Final = 1 << 18
"""The maximum number of iterations that the client accepts: they cost half a second of its CPU."""


class ScramFailed(Exception):
    """The server sent something that SCRAM does not allow, or failed to prove that it knows the password."""


class ScramClient:
    """One exchange: `first`, then `final` with the server's answer, then `verify` with the server's last message."""

    def __init__(self, mechanism: str, username: str, password: str, *, nonce: str | None = None) -> None:
        """`nonce`: for tests only."""
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
        """[blocking] The client's last message; hashing takes up to half a second. Raises `ScramFailed`."""
        attributes = _attributes(server_first)
        try:
            nonce, salt, rounds = attributes["r"], from_base64(attributes["s"]), int(attributes["i"])
        except (KeyError, ValueError) as error:
            raise ScramFailed("the server's first message is not SCRAM's") from error
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise ScramFailed("the server's nonce does not begin with the client's")
        if not MIN_ITERATIONS <= rounds <= MAX_ITERATIONS:
            raise ScramFailed(
                f"the server wants {rounds} iterations; {MIN_ITERATIONS} to {MAX_ITERATIONS} are accepted"
            )
        without_proof = f"c={NO_CHANNEL_BINDING},r={nonce}"
        messages = b",".join((self._bare.encode(), server_first, without_proof.encode()))
        salted = salted_password(self._hash, self._password, salt, rounds)
        key = client_key(self._hash, salted)
        proof = xor(key, sign(self._hash, stored_key(self._hash, key), messages))
        self._signature = sign(self._hash, server_key(self._hash, salted), messages)
        return f"{without_proof},p={to_base64(proof)}".encode()

    def verify(self, server_final: bytes) -> None:
        """Check that the server knows the password too. Raises `ScramFailed`."""
        attributes = _attributes(server_final)
        if "e" in attributes:
            raise ScramFailed(f"the server says {attributes['e'][:100]!r}")
        try:
            signature = from_base64(attributes.get("v", ""))
        except ValueError as error:
            raise ScramFailed("the server's last message is not SCRAM's") from error
        if not self._signature or not hmac.compare_digest(signature, self._signature):
            raise ScramFailed("the server does not know the password: it is not who it claims to be")


def _attributes(message: bytes) -> dict[str, str]:
    """The attributes of a message such as `r=...,s=...,i=4096`."""
    try:
        text = message.decode()
    except UnicodeDecodeError as error:
        raise ScramFailed("the server's message is not UTF-8") from error
    return {part[0]: part[2:] for part in text.split(",") if part[1:2] == "="}
