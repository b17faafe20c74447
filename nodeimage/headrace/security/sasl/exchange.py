"""One connection's authentication, from its first handshake to each re-authentication (KIP-152, KIP-368). No I/O.

    handshake -> step ... step -> Done -> handshake -> step ... step -> Done
                                -> Failed, after which nothing is accepted

1. An error, an exception or a cancellation in a step proves nobody's identity.
2. A client receives the same answer for every reason for which its proof is refused; the reason goes to the audit,
   which gets nothing else of what the client sent except the user that it named.
3. A re-authentication keeps the mechanism and the principal.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, TypeAlias

from headrace.base.errors import Code, HeadraceError
from headrace.security.principals import ANONYMOUS, name_fault
from headrace.security.sasl.mechanisms import Offered
from headrace.security.sasl.outcome import Accepted, Challenge, Mechanism, Proven, Refusal, SaslFailed

HANDSHAKE_VERSIONS: Final = (0, 1)
MAX_TOKEN_BYTES: Final = 512 << 10
"""Kafka's `sasl.server.max.receive.size`."""
MAX_STEPS: Final = 4
"""The maximum number of steps of one authentication; no mechanism has more than two."""
MIN_INTERVAL_MS: Final = 1000
"""Shortest time between two authentications of a connection."""


@dataclass(frozen=True, slots=True)
class Handshake:
    """The answer to SaslHandshake; with any code but NONE the connection is closed after it."""

    code: Code
    mechanisms: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Done:
    """The client is authenticated. `lifetime_ms` is for the client: re-authenticate within it; 0: no end."""

    proven: Proven
    lifetime_ms: int
    token: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Failed:
    """The authentication failed; the connection is closed after this answer."""

    code: Code
    message: str


@dataclass(frozen=True, slots=True)
class Attempt:
    """A finished authentication, for the audit."""

    mechanism: str | None
    """The mechanism; None: the client named none that is offered."""
    user: str | None
    """The authenticated user, or the user that the client claimed to be; None: it did not get that far."""
    refusal: Refusal | None
    """Why it failed; None: it succeeded."""
    is_renewal: bool


Audit: TypeAlias = Callable[[Attempt], None]


class _State(Enum):
    OPEN = auto()
    """A handshake is next; the client is not authenticated yet."""
    STARTED = auto()
    """A step is next."""
    STEPPING = auto()
    """A step is running, or was interrupted."""
    DONE = auto()
    """The client is authenticated."""
    ENDED = auto()


class SaslExchange:
    """One connection's authentication. `handshake` and `step` are called in the order of its requests, one at a
    time."""

    def __init__(self, offered: Offered, *, max_reauth_ms: int, monotonic_ms: Callable[[], int], audit: Audit) -> None:
        """`max_reauth_ms`: `connections.max.reauth.ms`; 0: sessions last as long as their proofs."""
        self._offered = offered
        self._max_reauth_ms = max_reauth_ms
        self._monotonic_ms = monotonic_ms
        self._audit = audit
        self._state = _State.OPEN
        self._mechanism: Mechanism | None = None
        self._mechanism_name: str | None = None
        self._steps = 0
        self._refused: Refusal | None = None
        """Why the current exchange can no longer succeed; None: it can."""
        self._proven: Proven | None = None
        self._proven_by: str | None = None
        self._proven_ms = 0
        self._expires_ms: int | None = None
        self.has_raw_tokens = False
        """Whether tokens arrive as bare frames instead of SaslAuthenticate requests, as after a handshake of version 0.
        """

    @property
    def proven(self) -> Proven | None:
        """The client's proven identity, which stays during re-authentication. None before authentication, and after any
        failure."""
        return self._proven

    @property
    def is_under_way(self) -> bool:
        """Whether an accepted handshake has not been completed: meanwhile no other request is accepted."""
        return self._state in (_State.STARTED, _State.STEPPING)

    @property
    def is_expired(self) -> bool:
        """Whether the session's lifetime is over: the next request that does not belong to a re-authentication closes
        the connection."""
        return self._expires_ms is not None and self._monotonic_ms() >= self._expires_ms

    def handshake(self, mechanism: str, version: int) -> Handshake:
        """Start an authentication, or a re-authentication."""
        refusal = self._refusal_of(mechanism, version)
        if refusal is None:
            self._state = _State.STARTED
            self._mechanism, self._mechanism_name = self._offered[mechanism](), mechanism
            self._steps = 0
            self._refused = None
            self.has_raw_tokens = version == 0
            return self._handshake(Code.NONE)
        self._mechanism, self._mechanism_name = None, mechanism if mechanism in self._offered else None
        self._end(refusal)
        match refusal:
            case Refusal.UNSUPPORTED_MECHANISM:
                return self._handshake(Code.UNSUPPORTED_SASL_MECHANISM)
            case Refusal.UNSUPPORTED_VERSION:
                return self._handshake(Code.UNSUPPORTED_VERSION)
            case _:
                return self._handshake(Code.ILLEGAL_SASL_STATE)

    async def step(self, token: bytes) -> Challenge | Done | Failed:
        """Answer a token. Never raises because of what a client sent; an interrupted step authenticates nobody."""
        if self._state is not _State.STARTED or self._mechanism is None:
            return self._failed(Refusal.ILLEGAL_STATE)
        self._state = _State.STEPPING
        self._steps += 1
        try:
            self._check_step(token)
            answer = await self._mechanism.step(token)
        except SaslFailed as failed:
            return self._failed(failed.refusal)
        except HeadraceError:
            return self._failed(Refusal.UNAVAILABLE)
        if self._state is not _State.STEPPING:  # another message arrived meanwhile, and was refused
            return self._failed(Refusal.ILLEGAL_STATE)
        match answer:
            case Challenge():
                self._state = _State.STARTED
                self._refused = answer.refusal
                return answer
            case Accepted(Proven(user)) if name_fault(user) or user == ANONYMOUS:  # a token may contain any name
                return self._failed(Refusal.ILLEGAL_NAME)
            case Accepted(proven):
                return self._done(answer) if self._is_same(proven) else self._failed(Refusal.PRINCIPAL_CHANGED)

    def close(self) -> None:
        """End an authentication that is not complete, because the connection is gone."""
        if self.is_under_way:
            self._end(self._refused or Refusal.GIVEN_UP)

    def _handshake(self, code: Code) -> Handshake:
        return Handshake(code, tuple(self._offered))

    def _refusal_of(self, mechanism: str, version: int) -> Refusal | None:
        """Why a handshake is not accepted; None: it is."""
        if version not in HANDSHAKE_VERSIONS:
            return Refusal.UNSUPPORTED_VERSION
        if self._state not in (_State.OPEN, _State.DONE):
            return Refusal.ILLEGAL_STATE
        if mechanism not in self._offered:
            return Refusal.UNSUPPORTED_MECHANISM
        if self._state is _State.DONE and self._monotonic_ms() - self._proven_ms < MIN_INTERVAL_MS:
            return Refusal.TOO_SOON
        return None

    def _check_step(self, token: bytes) -> None:
        if len(token) > MAX_TOKEN_BYTES:
            raise SaslFailed(Refusal.TOKEN_TOO_LONG)
        if self._steps > MAX_STEPS:
            raise SaslFailed(Refusal.TOO_MANY_STEPS)
        if self._proven_by not in (None, self._mechanism_name):  # refused here, as in Kafka, not at the handshake
            raise SaslFailed(Refusal.MECHANISM_CHANGED)

    def _is_same(self, proven: Proven) -> bool:
        return self._proven is None or self._proven.user == proven.user

    def _done(self, accepted: Accepted) -> Done:
        proven, now_ms = accepted.proven, self._monotonic_ms()
        is_renewal = self._proven is not None
        lifetime_ms = self._lifetime_ms(proven)
        self._state = _State.DONE
        self._mechanism = None
        self._proven, self._proven_by, self._proven_ms = proven, self._mechanism_name, now_ms
        self._expires_ms = now_ms + lifetime_ms if lifetime_ms else None
        self._audit(Attempt(self._mechanism_name, proven.user, None, is_renewal))
        return Done(proven, lifetime_ms, accepted.token)

    def _lifetime_ms(self, proven: Proven) -> int:
        """The shorter of the proof's lifetime and this listener's limit; 0: no end."""
        limits = [self._max_reauth_ms] if self._max_reauth_ms else []
        if proven.lifetime_s is not None:
            limits.append(max(1, math.floor(proven.lifetime_s * 1000)))
        return min(limits, default=0)

    def _failed(self, refusal: Refusal) -> Failed:
        self._end(refusal)
        if refusal is Refusal.ILLEGAL_STATE:
            return Failed(Code.ILLEGAL_SASL_STATE, "no authentication is under way that this message belongs to")
        if refusal is Refusal.UNAVAILABLE:  # clients treat a failed authentication as final
            return Failed(Code.BROKER_NOT_AVAILABLE, "credentials cannot be read at present: try again")
        return Failed(Code.SASL_AUTHENTICATION_FAILED, f"authentication failed with mechanism {self._mechanism_name}")

    def _end(self, refusal: Refusal) -> None:
        if self._state is _State.ENDED:
            return
        claimed = self._mechanism.claimed_user if self._mechanism is not None else None
        is_renewal = self._proven is not None
        if claimed is None and self._proven is not None:
            claimed = self._proven.user
        self._state = _State.ENDED
        self._mechanism = None
        self._proven = self._expires_ms = None
        self._audit(Attempt(self._mechanism_name, claimed, refusal, is_renewal))
