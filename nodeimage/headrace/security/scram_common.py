"""What both sides of SCRAM share (RFC 5802, RFC 7677): keys derived from a password, proofs, and base 64.

    salted password = PBKDF2(password, salt, iterations)
    client key = HMAC(salted password, "Client Key")        stored key = H(client key)
    server key = HMAC(salted password, "Server Key")
    proof = client key XOR HMAC(stored key, all messages)

As in Kafka: no channel binding, and user name and password as they are (no SASLprep).
"""

import base64
import binascii
import hashlib
import hmac
from typing import Final

HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
"""Names of hash functions by mechanism."""
MIN_ITERATIONS: Final = 4096
"""Fewest iterations (RFC 7677, section 4)."""
NO_CHANNEL_BINDING: Final = "biws"
"""The header `n,,` in base 64, as the client's last message repeats it."""


def salted_password(hash_name: str, password: bytes, salt: bytes, iterations: int) -> bytes:
    """[blocking] PBKDF2: about a millisecond for each 4,000 iterations."""
    return hashlib.pbkdf2_hmac(hash_name, password, salt, iterations)


def client_key(hash_name: str, salted: bytes) -> bytes:
    return hmac.digest(salted, b"Client Key", hash_name)


def stored_key(hash_name: str, client: bytes) -> bytes:
    """The hash of a client key, which a server stores."""
    return hashlib.new(hash_name, client).digest()


def server_key(hash_name: str, salted: bytes) -> bytes:
    return hmac.digest(salted, b"Server Key", hash_name)


def sign(hash_name: str, key: bytes, messages: bytes) -> bytes:
    """A side's signature over all messages."""
    return hmac.digest(key, messages, hash_name)


def xor(one: bytes, other: bytes) -> bytes:
    """XOR of two strings of equal length: turns a client key and its signature into a proof, and back."""
    return bytes(a ^ b for a, b in zip(one, other, strict=True))


def to_base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def from_base64(text: str) -> bytes:
    """Decode base 64. Raises ValueError for anything else."""
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError("not base 64") from error
