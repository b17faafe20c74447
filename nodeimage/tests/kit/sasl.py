"""Credentials in memory, SASL exchanges with them, and the events that these reported to the audit."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from headrace.base.errors import Code, KafkaError
from headrace.security.sasl.exchange import Attempt, SaslExchange
from headrace.security.sasl.jwt import TokenVerifier
from headrace.security.sasl.mechanisms import MECHANISMS, offered_mechanisms
from headrace.security.sasl.outcome import Refusal
from headrace.security.sasl.scram_credential import ScramCredential

PASSWORD = "pencil-Geheimnis"


@dataclass
class MemoryCredentials:
    """Records by user and mechanism."""

    records: dict[tuple[str, str], ScramCredential] = field(default_factory=dict)
    unknown_salt_key: bytes = field(default=b"a secret of the cluster", repr=False)
    looked_up: list[tuple[str, str]] = field(default_factory=list)
    is_away: bool = False

    def add(self, user: str, *mechanisms: str, password: str = PASSWORD, iterations: int = 4096) -> None:
        for mechanism in mechanisms:
            self.records[user, mechanism] = ScramCredential.made_of(password, mechanism, iterations)

    async def scram(self, user: str, mechanism: str) -> ScramCredential | None:
        self.looked_up.append((user, mechanism))
        await asyncio.sleep(0)
        if self.is_away:
            raise KafkaError(Code.COORDINATOR_LOAD_IN_PROGRESS, f"records of {user} are being loaded")
        return self.records.get((user, mechanism))


class Listener:
    """The state that a node has for one listener: mechanisms, a clock, an audit."""

    def __init__(
        self,
        credentials: MemoryCredentials,
        *mechanisms: str,
        verifier: TokenVerifier | None = None,
        max_reauth_ms: int = 0,
    ) -> None:
        self.audit: list[Attempt] = []
        self.now_ms = 1_000_000
        self._max_reauth_ms = max_reauth_ms
        names = mechanisms or tuple(name for name in MECHANISMS if name != "OAUTHBEARER")
        self._offered = offered_mechanisms(names, credentials=credentials, run_blocking=run_at_once, verifier=verifier)

    def exchange(self) -> SaslExchange:
        """The exchange of a new connection."""
        return SaslExchange(
            self._offered,
            max_reauth_ms=self._max_reauth_ms,
            monotonic_ms=lambda: self.now_ms,
            audit=self.audit.append,
        )

    @property
    def refusals(self) -> list[Refusal | None]:
        """The audit's refusals, in order."""
        return [attempt.refusal for attempt in self.audit]


async def run_at_once(function: Callable[[], frozenset[bytes]]) -> frozenset[bytes]:
    """Run the function here, without a thread."""
    return function()
