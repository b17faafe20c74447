"""The outcomes of a client's tokens: an authenticated client, a further challenge, or one of the named refusals.

A client never learns which refusal it met; the audit does. So a refusal is one of a closed list of texts, and nothing
that a client sent can get into it.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol


class Refusal(StrEnum):
    """Why an authentication failed, for the audit and for tests."""

    # --- the exchange
    ILLEGAL_STATE = "a message that does not belong here"
    UNSUPPORTED_VERSION = "a version of the handshake that does not exist"
    UNSUPPORTED_MECHANISM = "a mechanism that is off or unknown"
    TOKEN_TOO_LONG = "a message that is longer than allowed"
    TOO_MANY_STEPS = "more messages than any mechanism has"
    MECHANISM_CHANGED = "another mechanism at re-authentication"
    PRINCIPAL_CHANGED = "another principal at re-authentication"
    TOO_SOON = "re-authentication within a second"
    UNAVAILABLE = "credentials could not be read"
    GIVEN_UP = "the client went away"

    # --- what all mechanisms share
    MALFORMED = "not a message of this mechanism"
    ILLEGAL_NAME = "not a name"
    OTHER_AUTHORIZATION_ID = "an authorization id that is not the user"
    WRONG_CREDENTIALS = "wrong user or password"
    NO_PASSWORD = "no password"

    # --- SCRAM
    CHANNEL_BINDING = "channel binding"
    MANDATORY_EXTENSION = "an extension that must be understood"
    DELEGATION_TOKEN = "a delegation token"
    OTHER_NONCE = "a nonce that is not this exchange's"

    # --- OAUTHBEARER
    NO_TOKEN = "no bearer token"
    TOKEN_MALFORMED = "not a signed token"
    ALGORITHM = "an algorithm that is not allowed"
    TOKEN_TYPE = "a token that is not for access"
    CRITICAL_HEADER = "a header that must be understood"
    NO_KEY_ID = "no key id"
    UNKNOWN_KEY = "no such key"
    SIGNATURE = "the signature does not fit"
    CLAIMS_MALFORMED = "claims of a wrong form"
    CLAIM_MISSING = "a required claim is missing"
    EXPIRED = "expired"
    NOT_YET_VALID = "not yet valid"
    ISSUER = "another issuer"
    AUDIENCE = "another audience"
    SCOPE = "a required scope is missing"


class SaslFailed(Exception):
    """An authentication has failed."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.value)
        self.refusal = refusal


@dataclass(frozen=True, slots=True)
class Proven:
    """An identity that a client has proved."""

    user: str
    groups: frozenset[str] = frozenset()
    """The groups that the proof itself names."""
    lifetime_s: float | None = None
    """Seconds for which the proof lasts; None: without end."""
    passwords: frozenset[bytes] = field(default=frozenset(), repr=False, compare=False)
    """Marks of the credentials that a password fits (`ScramCredential.mark`)."""


@dataclass(frozen=True, slots=True)
class Challenge:
    """The client has to send another message."""

    token: bytes = field(repr=False)
    refusal: Refusal | None = None
    """Why the exchange has already failed, if the client's next message only acknowledges that."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """A mechanism has succeeded; `token` is its last message to the client."""

    proven: Proven
    token: bytes = field(default=b"", repr=False)


class Mechanism(Protocol):
    """One exchange of one mechanism."""

    @property
    def claimed_user(self) -> str | None:
        """The user that the client claims to be, for the audit; None until it has named one."""

    async def step(self, token: bytes) -> Challenge | Accepted:
        """Answer a client's message. Raises SaslFailed, after which `step` is not called again."""
