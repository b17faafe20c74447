"""What a server stores of a password: two keys, from which the password cannot be recovered, and how they were
derived."""

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from typing import Final, Protocol

from headrace.base.errors import Code, KafkaError
from headrace.security.scram_common import (
    HASHES,
    MIN_ITERATIONS,
    client_key,
    salted_password,
    server_key,
    stored_key,
)

MAX_ITERATIONS: Final = 16384
DEFAULT_ITERATIONS: Final = MIN_ITERATIONS
SALT_BYTES: Final = 24
MAX_SALT_BYTES: Final = 1024

_MECHANISMS: Final = {hashlib.new(name).digest_size: mechanism for mechanism, name in HASHES.items()}
"""Mechanisms by the length of a key."""


@dataclass(frozen=True, slots=True, repr=False)
class ScramCredential:
    """A password's stored credential for one mechanism. Raises KafkaError UNACCEPTABLE_CREDENTIAL for invalid values.

    The length of the keys determines the mechanism.
    """

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __post_init__(self) -> None:
        if not MIN_ITERATIONS <= self.iterations <= MAX_ITERATIONS:
            raise _unacceptable(f"iterations are {MIN_ITERATIONS} to {MAX_ITERATIONS}")
        if not 0 < len(self.salt) <= MAX_SALT_BYTES:
            raise _unacceptable(f"a salt has 1 to {MAX_SALT_BYTES} bytes")
        if len(self.stored_key) not in _MECHANISMS or len(self.server_key) != len(self.stored_key):
            raise _unacceptable("keys have the length of the mechanism's hash")

    def __repr__(self) -> str:
        return f"ScramCredential({self.mechanism}, iterations={self.iterations})"

    @property
    def mechanism(self) -> str:
        """SCRAM-SHA-256 or SCRAM-SHA-512."""
        return _MECHANISMS[len(self.stored_key)]

    @classmethod
    def made_of(
        cls, password: str, mechanism: str, iterations: int = DEFAULT_ITERATIONS, salt: bytes | None = None
    ) -> "ScramCredential":
        """[blocking] The credential for a password; `salt`: random if None."""
        if not password or not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
            raise _unacceptable(f"a password is not empty, iterations are {MIN_ITERATIONS} to {MAX_ITERATIONS}")
        salt = secrets.token_bytes(SALT_BYTES) if salt is None else salt
        salted = salted_password(_hash_of(mechanism), _encoded(password), salt, iterations)
        return cls.from_salted_password(salted, mechanism=mechanism, iterations=iterations, salt=salt)

    @classmethod
    def from_salted_password(cls, salted: bytes, *, mechanism: str, iterations: int, salt: bytes) -> "ScramCredential":
        """The credential for a password that the client has salted, as AlterUserScramCredentials sends it."""
        name = _hash_of(mechanism)
        if len(salted) != hashlib.new(name).digest_size:
            raise _unacceptable("a salted password has the length of the mechanism's hash")
        return cls(
            salt=salt,
            stored_key=stored_key(name, client_key(name, salted)),
            server_key=server_key(name, salted),
            iterations=iterations,
        )

    @property
    def mark(self) -> bytes:
        """An id that differs from every other credential's and reveals nothing of the keys: a new password has a new
        mark."""
        return hashlib.sha256(b"headrace: mark of a credential\0" + self.stored_key + self.salt).digest()

    def fits_password(self, password: str) -> bool:
        """[blocking] Whether the credential was made from this password.

        Raises KafkaError UNACCEPTABLE_CREDENTIAL if it is not Unicode text.
        """
        name = HASHES[self.mechanism]
        salted = salted_password(name, _encoded(password), self.salt, self.iterations)
        return hmac.compare_digest(stored_key(name, client_key(name, salted)), self.stored_key)


class Credentials(Protocol):
    """The credentials of all users."""

    @property
    def unknown_salt_key(self) -> bytes:
        """A secret shared by all nodes, from which credentials for unknown users are derived."""

    async def scram(self, user: str, mechanism: str) -> ScramCredential | None:
        """A user's credential; None if there is no such user or credential. Raises HeadraceError if it cannot be
        read."""


def credential_of_unknown(key: bytes, user: str, mechanism: str) -> ScramCredential:
    """A credential that matches no password, and is the same each time, on each node, for a user name. With it an
    exchange proceeds as with a real one, so that neither answers nor their timing reveal which users exist."""
    about = b"\0".join((mechanism.encode(), user.encode()))
    size = hashlib.new(_hash_of(mechanism)).digest_size
    return ScramCredential(
        salt=hmac.digest(key, b"salt\0" + about, "sha256")[:SALT_BYTES],
        stored_key=hmac.digest(key, b"stored key\0" + about, "sha512")[:size],
        server_key=hmac.digest(key, b"server key\0" + about, "sha512")[:size],
        iterations=DEFAULT_ITERATIONS,
    )


def _hash_of(mechanism: str) -> str:
    if mechanism not in HASHES:
        raise KafkaError(Code.UNSUPPORTED_SASL_MECHANISM, f"{mechanism[:100]!r} is not one of {', '.join(HASHES)}")
    return HASHES[mechanism]


def _encoded(password: str) -> bytes:
    try:
        return password.encode()
    except UnicodeEncodeError:
        pass  # raise outside this handler: Python's error holds the password
    raise _unacceptable("a password is Unicode text")


def _unacceptable(message: str) -> KafkaError:
    return KafkaError(Code.UNACCEPTABLE_CREDENTIAL, message)
