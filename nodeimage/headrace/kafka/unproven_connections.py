"""Connections to listeners with SASL whose clients have not authenticated yet: limits on number, time and memory.

All addresses of a /64 network of IPv6 count as one, since one client may have them all.

Each is either *waiting* for its client's next message, or *at work* while a message is processed. At the limit for an
address or for all, a newcomer replaces the connection that has waited for longest, if it has waited for `MIN_S`: even
a client on the other side of the world sends its next message sooner. Otherwise the newcomer is closed at once. A
connection at work is never replaced: its work would have to be repeated, and on a slow node nobody would get through.

A connection that has not authenticated within `LIMIT_S` ends; seconds in which this process was suspended do not count
(base.awake_clock). Memory of large messages is counted: above `MAX_HELD` bytes the connection with the largest message
ends. So all of these connections together cost less than 64 MiB: `MAX_CONNECTIONS` times 350 KiB at worst (256 KiB
that TLS reads into, TLS's copy of a message of at most `sasl_gate.MAX_BYTES`, and the connection itself), plus
`MAX_HELD`.

Connections that end this way are counted, and logged once per reason in `LOG_EVERY_S`. Everything runs on the loop
thread.
"""

from typing import Final, Protocol

import structlog

from headrace.base.addresses import network
from headrace.base.awake_clock import Timer, Timers

log = structlog.get_logger()

MAX_CONNECTIONS: Final = 128
MAX_OF_ADDRESS: Final = 96
MAX_HANDSHAKES: Final = MAX_OF_ADDRESS
"""Limit of unauthenticated connections and TLS handshakes together. Not above the limit of one address: otherwise a
connection could be refused after its handshake was paid for."""
MIN_S: Final = 0.25
LIMIT_S: Final = 10.0
"""Seconds from the connection to the end of its authentication."""
MAX_HELD: Final = 8 << 20
LOG_EVERY_S: Final = 60.0

TOO_MANY: Final = f"{MAX_CONNECTIONS} connections have not authenticated yet"
TOO_MANY_OF_ADDRESS: Final = f"{MAX_OF_ADDRESS} connections from its address have not authenticated yet"
MADE_WAY: Final = "it waited for its client, and made way for another connection"
TOO_LATE: Final = f"it did not authenticate within {LIMIT_S:.0f} s"
TOO_LARGE: Final = "its message was the largest, and there was too little memory for all"


class Member(Protocol):
    """A connection that has not authenticated."""

    @property
    def address(self) -> str:
        """The client's address, without a port."""

    def drop(self) -> None:
        """End the connection at once; it calls `leave`."""


class UnprovenConnections:
    """The unauthenticated connections of one node."""

    def __init__(self, clock: Timers) -> None:
        self.ended = 0
        """Connections that were ended here since the start."""
        self._clock = clock
        self._members: dict[Member, Timer] = {}
        self._waiting: dict[Member, float] = {}
        """The time since which each waiting connection waits, longest first."""
        self._count_of: dict[str, int] = {}
        """By network, the number of its connections."""
        self._held: dict[Member, int] = {}
        self._logged: dict[str, tuple[float, int]] = {}
        """By reason, when it was last logged, and how many connections have ended for it since."""

    def __len__(self) -> int:
        return len(self._members)

    def join(self, member: Member, *, since: float | None = None) -> bool:
        """Add a connection; returns whether there was a place for it. `since`: the clock's time when it was accepted;
        None: now."""
        address, shared = member.address, network(member.address)
        if self._count_of.get(shared, 0) >= MAX_OF_ADDRESS and not self._make_way(shared):
            self._count(TOO_MANY_OF_ADDRESS, address)
            return False
        if len(self._members) >= MAX_CONNECTIONS and not self._make_way(None):
            self._count(TOO_MANY, address)
            return False
        limit = (self._clock.time() if since is None else since) + LIMIT_S
        self._members[member] = self._clock.call_at(limit, self._end, member, TOO_LATE)
        self._count_of[shared] = self._count_of.get(shared, 0) + 1
        self.waits(member)
        return True

    def make_room(self, coming: int) -> bool:
        """Whether a TLS handshake may begin while `coming` others are under way. At the limit this ends the connection
        that has waited for longest, to make room."""
        return len(self._members) + coming < MAX_HANDSHAKES or (bool(self._members) and self._make_way(None))

    def waits(self, member: Member) -> None:
        """Note that a connection waits for its client's next message."""
        if member in self._members:
            self._waiting.pop(member, None)
            self._waiting[member] = self._clock.time()

    def works(self, member: Member) -> None:
        """Note that a connection's message is being processed."""
        self._waiting.pop(member, None)

    def leave(self, member: Member) -> None:
        """Remove a connection that has authenticated or is gone. Calling it twice is harmless."""
        timer = self._members.pop(member, None)
        if timer is None:
            return
        timer.cancel()
        self._waiting.pop(member, None)
        self._held.pop(member, None)
        shared = network(member.address)
        left = self._count_of[shared] - 1
        if left:
            self._count_of[shared] = left
        else:
            del self._count_of[shared]

    def hold(self, member: Member, size: int) -> None:
        """Note the bytes of memory of a connection's message; 0: none any longer. Above `MAX_HELD` in all, connections
        are ended."""
        if member not in self._members:
            return
        self._held[member] = size
        while sum(self._held.values()) > MAX_HELD:
            self._end(max(self._held, key=lambda each: self._held[each]), TOO_LARGE)

    def _make_way(self, shared: str | None) -> bool:
        before = self._clock.time() - MIN_S
        for member, since in self._waiting.items():
            if since > before:
                return False
            if shared is None or network(member.address) == shared:
                self._end(member, MADE_WAY)
                return True
        return False

    def _end(self, member: Member, reason: str) -> None:
        self._count(reason, member.address)
        self.leave(member)
        member.drop()

    def _count(self, reason: str, address: str) -> None:
        self.ended += 1
        now = self._clock.time()
        logged_at, unlogged = self._logged.get(reason, (-LOG_EVERY_S, 0))
        if now - logged_at >= LOG_EVERY_S:
            log.warning("connections ended before authentication", count=unlogged + 1, last=address, reason=reason)
            logged_at, unlogged = now, -1
        self._logged[reason] = (logged_at, unlogged + 1)
