"""The audit log: who was refused what and, if configured, who was allowed what. Pure, except for its sinks.

An event is one structured line: time, principal, address, listener, the action and its object, whether it was allowed,
and why. It never contains more: no request body, no token, no password.

A principal that is refused all the time must neither fill the disk nor hide others. So each principal (and each
address, for clients that have proved nothing) gets at most `BURST` events at once and `PER_S` per second after that;
its next event, and `flush`, report how many were left out. All principals together have a limit too. Successful changes
of users, access, security and quotas are always logged: only administrators can make them. Writing never waits: a
sink takes an event or loses it, and reports how many it has lost.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from headrace.base.token_bucket import TokenBucket

BURST: Final = 20
PER_S: Final = 1.0
ALL_BURST: Final = 2_000
ALL_PER_S: Final = 500.0
_MAX_PRINCIPALS: Final = 10_000
_MAX_TEXT: Final = 500
"""The maximum number of characters of a name or a reason: clients choose some of them."""

LOGIN: Final = "login"
"""The action, and the kind, of a client that proves who it is, or fails to."""


class Change(StrEnum):
    """Administrators' actions that are logged whether they are allowed or not."""

    USERS = "users"
    """Users, their groups and credentials."""
    ACCESS = "access"
    """Access expressions."""
    SECURITY = "security"
    """Security is turned on or off."""
    QUOTAS = "quotas"


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """A request by a principal, and its outcome."""

    at_ms: int
    user: str
    address: str
    listener: str
    action: str
    """A permission, `describe`, a Change, or LOGIN."""
    kind: str
    """The kind of object that `name` names: as in access_rules.Kind, `user`, `quota`, or LOGIN."""
    name: str
    allowed: bool
    reason: str
    api: str = ""
    client_id: str = ""

    def fields(self, *, left_out: int = 0) -> Mapping[str, object]:
        """The fields to write; `left_out`: how many events of the same principal were left out before this one."""
        event_fields: dict[str, object] = {
            field: _bounded(value) if isinstance(value := getattr(self, field), str) else value
            for field in self.__slots__
        }
        return event_fields | {"left_out": left_out} if left_out else event_fields


_CHANGES: Final = frozenset(map(str, Change))

Sink = Callable[[Mapping[str, object]], None]


class _Allowance:
    """How many events of one principal may be written now, and how many were left out."""

    __slots__ = ("bucket", "left_out")

    def __init__(self, now: float) -> None:
        self.bucket = TokenBucket(BURST, now)
        self.left_out = 0

    def fill(self, now: float) -> float:
        return self.bucket.fill(now, per_s=PER_S, burst=BURST)


class AuditLog:
    """Writes all denials, and those allowed actions that are configured."""

    def __init__(self, sinks: Iterable[Sink], *, monotonic: Callable[[], float], allowed: Iterable[str] = ()) -> None:
        """`allowed`: actions that are logged when they are allowed as well."""
        self._sinks = list(sinks)
        self._monotonic = monotonic
        self._allowed = frozenset(allowed)
        self._all = TokenBucket(ALL_BURST, monotonic())
        self._principals: dict[str, _Allowance] = {}

    def add_sink(self, sink: Sink) -> None:
        """Send events to `sink` as well, from now on."""
        self._sinks.append(sink)

    def wants(self, action: str, *, allowed: bool) -> bool:
        """Whether such an event is logged. Call this first, so that allowed actions cost nothing."""
        return not allowed or action in self._allowed or action in _CHANGES

    def tell(self, event: AuditEvent) -> bool:
        """Log an event, if it is wanted. Returns whether it was written; if not, a wanted event counts as left out."""
        if not self.wants(event.action, allowed=event.allowed):
            return False
        if event.allowed and event.action in _CHANGES:
            self._write(event.fields())
            return True
        now = self._monotonic()
        allowance = self._of(event.user if event.user != "ANONYMOUS" else f"\0{event.address}", now)
        if allowance.fill(now) < 1 or self._all.fill(now, per_s=ALL_PER_S, burst=ALL_BURST) < 1:
            allowance.left_out += 1
            return False
        allowance.bucket.take()
        self._all.take()
        left_out, allowance.left_out = allowance.left_out, 0
        self._write(event.fields(left_out=left_out))
        return True

    def flush(self) -> int:
        """Log and return how many events of all principals were left out since the last report; forgets principals
        without recent events."""
        now = self._monotonic()
        left_out = 0
        for name, allowance in list(self._principals.items()):
            left_out += allowance.left_out
            allowance.left_out = 0
            if allowance.fill(now) >= BURST:
                del self._principals[name]
        if left_out:
            self._write({"action": "left out", "left_out": left_out})
        return left_out

    def _of(self, name: str, now: float) -> _Allowance:
        found = self._principals.pop(name, None)
        if found is None:
            if len(self._principals) >= _MAX_PRINCIPALS:
                self.flush()
                while len(self._principals) >= _MAX_PRINCIPALS:
                    del self._principals[next(iter(self._principals))]
            found = _Allowance(now)
        self._principals[name] = found  # at the end: the most recently used
        return found

    def _write(self, fields: Mapping[str, object]) -> None:
        for sink in self._sinks:
            sink(fields)


def _bounded(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT] + "…"
