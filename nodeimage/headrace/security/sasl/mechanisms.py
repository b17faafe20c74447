"""The mechanisms that a listener offers: each combines its messages with the credentials that they refer to."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, Protocol, TypeAlias

from headrace.base.errors import Code, KafkaError
from headrace.security.sasl.oauthbearer_server import INVALID_TOKEN, read_bearer
from headrace.security.sasl.outcome import Accepted, Challenge, Mechanism, Proven, Refusal, SaslFailed
from headrace.security.sasl.plain_server import fitting, read_plain
from headrace.security.sasl.scram_credential import Credentials
from headrace.security.sasl.scram_server import ScramServer
from headrace.security.scram_common import HASHES

MECHANISMS: Final = (*HASHES, "PLAIN", "OAUTHBEARER")

RunBlocking: TypeAlias = Callable[[Callable[[], frozenset[bytes]]], Awaitable[frozenset[bytes]]]
"""Runs a blocking function in a thread."""
Offered: TypeAlias = Mapping[str, Callable[[], Mechanism]]
"""Functions that start an exchange, by mechanism."""


class Verifier(Protocol):
    """Checks bearer tokens (`jwt.TokenVerifier`, which nodes without OAUTHBEARER do not load)."""

    async def verify(self, text: str) -> Proven:
        """The identity that a token proves. Raises SaslFailed."""


def offered_mechanisms(
    names: Iterable[str], *, credentials: Credentials, run_blocking: RunBlocking, verifier: Verifier | None = None
) -> Offered:
    """The mechanisms that a listener offers. Raises KafkaError INVALID_CONFIG for an unknown mechanism, for an empty
    list, and for OAUTHBEARER without a verifier."""
    offered: dict[str, Callable[[], Mechanism]] = {}
    for name in names:
        if name in HASHES:
            offered[name] = _scram(name, credentials)
        elif name == "PLAIN":
            offered[name] = lambda: PlainMechanism(credentials, run_blocking)
        elif name == "OAUTHBEARER" and verifier is not None:
            offered[name] = _oauthbearer(verifier)
        elif name == "OAUTHBEARER":
            raise KafkaError(Code.INVALID_CONFIG, "OAUTHBEARER needs a key set, an issuer and an audience")
        else:
            raise KafkaError(Code.INVALID_CONFIG, f"{name[:100]!r} is not one of {', '.join(MECHANISMS)}")
    if not offered:
        raise KafkaError(Code.INVALID_CONFIG, "a listener with SASL offers at least one mechanism")
    return offered


def _scram(name: str, credentials: Credentials) -> Callable[[], Mechanism]:
    return lambda: ScramMechanism(name, credentials)


def _oauthbearer(verifier: Verifier) -> Callable[[], Mechanism]:
    return lambda: OAuthBearerMechanism(verifier)


class ScramMechanism:
    """SCRAM-SHA-256 or SCRAM-SHA-512: two messages."""

    def __init__(self, mechanism: str, credentials: Credentials) -> None:
        self.claimed_user: str | None = None
        self._mechanism = mechanism
        self._credentials = credentials
        self._mark = b""
        self._server = ScramServer(mechanism, unknown_salt_key=credentials.unknown_salt_key)

    async def step(self, token: bytes) -> Challenge | Accepted:
        if self.claimed_user is None:
            self.claimed_user = user = self._server.first(token)
            credential = await self._credentials.scram(user, self._mechanism)
            self._mark = b"" if credential is None else credential.mark
            return Challenge(self._server.challenge(credential))
        last = self._server.final(token)
        return Accepted(Proven(self.claimed_user, passwords=frozenset({self._mark})), last)


class PlainMechanism:
    """PLAIN: one message."""

    def __init__(self, credentials: Credentials, run_blocking: RunBlocking) -> None:
        self.claimed_user: str | None = None
        self._credentials = credentials
        self._run_blocking = run_blocking

    async def step(self, token: bytes) -> Accepted:
        login = read_plain(token)
        self.claimed_user = login.user
        records = {mechanism: await self._credentials.scram(login.user, mechanism) for mechanism in HASHES}
        key = self._credentials.unknown_salt_key
        fits = await self._run_blocking(lambda: fitting(login, records, unknown_salt_key=key))
        if not fits:
            raise SaslFailed(Refusal.WRONG_CREDENTIALS)
        return Accepted(Proven(login.user, passwords=fits))


class OAuthBearerMechanism:
    """OAUTHBEARER: one message, or two if the token is invalid; the second one ends the exchange."""

    def __init__(self, verifier: Verifier) -> None:
        self.claimed_user: str | None = None
        """Never taken from an unverified token."""
        self._verifier = verifier
        self._refusal: Refusal | None = None

    async def step(self, token: bytes) -> Challenge | Accepted:
        if self._refusal is not None:
            raise SaslFailed(self._refusal)
        message = read_bearer(token)
        try:
            proven = await self._verifier.verify(message.token)
        except SaslFailed as failed:
            self._refusal = failed.refusal
            return Challenge(INVALID_TOKEN, refusal=failed.refusal)
        self.claimed_user = proven.user
        if message.authorization_id not in (None, proven.user):
            raise SaslFailed(Refusal.OTHER_AUTHORIZATION_ID)
        return Accepted(proven)
