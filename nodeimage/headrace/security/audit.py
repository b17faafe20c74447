"""The audit log: who was refused what, and, where that is asked for, who was let do it. Pure, but for its sinks.

An event is one structured line: time, principal, address, listener, what was asked of which object, whether it was
allowed, and why. It never holds more than these: no body of a request, no token, no password.

A principal that is refused all the time must neither fill the disk nor hide others: from each (with its address, if it
has proved nothing) at most `BURST` events go out at once and `PER_S` a second after that; how many did not is told with
the next one that does, and by `flush`. All principals together have a bound too. Changes of users, access, security and
quotas that took place are always told: who makes them has proven to be an administrator. Writing never waits: a sink
takes an event or loses it, and says how many it has lost.
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
_MOST_PRINCIPALS: Final = 10_000
_MOST_TEXT: Final = 500
"""Characters of a name or a reason: a client chooses some of them."""

LOGIN: Final = "login"
"""The action of who proves, or fails to prove, who he is; the kind too."""


class Change(StrEnum):
    """The actions of administrators that are told whether they are allowed or not."""

    USERS = "users"
    """Users, their groups and credentials."""
    ACCESS = "access"
    """Access expressions."""
    SECURITY = "security"
    """Turned on or off."""
    QUOTAS = "quotas"


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """What somebody asked for."""

    at_ms: int
    user: str
    address: str
    listener: str
    action: str
    """A permission, `describe`, a Change, or LOGIN."""
    kind: str
    """What `name` is the name of: as in access_rules.Kind, `user`, `quota`, or LOGIN."""
    name: str
    allowed: bool
    reason: str
    api: str = ""
    client_id: str = ""

    def fields(self, *, left_out: int = 0) -> Mapping[str, object]:
        """As it is written, with how many of the same principal were left out before it."""
        told: dict[str, object] = {
            field: _bounded(value) if isinstance(value := getattr(self, field), str) else value
            for field in self.__slots__
        }
        return told | {"left_out": left_out} if left_out else told


_CHANGES: Final = frozenset(map(str, Change))

Sink = Callable[[Mapping[str, object]], None]


class _Allowance:
    """How many events of one principal may go out, and how many did not."""

    __slots__ = ("bucket", "left_out")

    def __init__(self, now: float) -> None:
        self.bucket = TokenBucket(BURST, now)
        self.left_out = 0

    def fill(self, now: float) -> float:
        return self.bucket.fill(now, per_s=PER_S, burst=BURST)


class AuditLog:
    """Denials always; of what is allowed the kinds that are asked for."""

    def __init__(self, sinks: Iterable[Sink], *, monotonic: Callable[[], float], allowed: Iterable[str] = ()) -> None:
        """`allowed`: actions of which what is allowed is told as well."""
        self._sinks = list(sinks)
        self._monotonic = monotonic
        self._allowed = frozenset(allowed)
        self._all = TokenBucket(ALL_BURST, monotonic())
        self._principals: dict[str, _Allowance] = {}

    def add_sink(self, sink: Sink) -> None:
        """Tell `sink` as well, from now on."""
        self._sinks.append(sink)

    def wants(self, action: str, *, allowed: bool) -> bool:
        """Whether such an event is told: asked first, so that what is allowed costs nothing."""
        return not allowed or action in self._allowed or action in _CHANGES

    def tell(self, event: AuditEvent) -> bool:
        """Tell an event that is wanted; whether it went out, or counts as left out."""
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
        """How many events of all principals were left out since these were told of; forgets who is quiet by now."""
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
            if len(self._principals) >= _MOST_PRINCIPALS:
                self.flush()
                while len(self._principals) >= _MOST_PRINCIPALS:
                    del self._principals[next(iter(self._principals))]
            found = _Allowance(now)
        self._principals[name] = found  # at the end, as the one that was used last
        return found

    def _write(self, fields: Mapping[str, object]) -> None:
        for sink in self._sinks:
            sink(fields)


def _bounded(text: str) -> str:
    return text if len(text) <= _MOST_TEXT else text[:_MOST_TEXT] + "…"
