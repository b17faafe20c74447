"""The connections of listeners with SASL whose clients have not authenticated yet: how many, how long, how much memory.

Each is either *waiting* for its client's next message, or *at work*: what came is being seen to. At a limit, of an
address or in all, a newcomer takes the place of the one that has waited for longest, if that has been `LEAST_S`: a
client on the other side of the world says its next word sooner. Else the newcomer is closed at once. One that is at
work never makes way: what was done for it would be done again, and nobody would get through where the node is slow.

A connection that has not authenticated within `LIMIT_S` ends; seconds in which this process stood still do not count
(base.awake_clock). Memory of large messages is counted: beyond `MOST_HELD`
bytes the connection with the largest ends. So all of them together cost less than 64 MiB: `MOST` times 350 KiB at worst
(buffers of TLS, which hold what a message may have, and the connection itself), and `MOST_HELD`.

What ends so is counted, and logged once for each reason in `LOG_EVERY_S`. All of the loop thread.
"""

from typing import Final, Protocol

import structlog

from headrace.base.awake_clock import Timer, Timers

log = structlog.get_logger()

MOST: Final = 128
MOST_OF_ADDRESS: Final = 96
MOST_HANDSHAKES: Final = MOST_OF_ADDRESS
"""Connections here and TLS handshakes beside them: what has cost a handshake is not to be refused."""
LEAST_S: Final = 0.25
LIMIT_S: Final = 10.0
"""From the connection to the end of its authentication."""
MOST_HELD: Final = 8 << 20
LOG_EVERY_S: Final = 60.0

TOO_MANY: Final = f"there are {MOST} that have not authenticated"
TOO_MANY_OF_ADDRESS: Final = f"there are {MOST_OF_ADDRESS} of its address that have not authenticated"
MADE_WAY: Final = "it waited for its client, and others came"
TOO_LATE: Final = f"it did not authenticate within {LIMIT_S:.0f} s"
TOO_LARGE: Final = "its message was the largest, and there was no memory for all"


class Member(Protocol):
    """A connection."""

    @property
    def address(self) -> str:
        """Of its client, without a port."""

    def drop(self) -> None:
        """End the connection at once; it leaves."""


class UnprovenConnections:
    """Of one node."""

    def __init__(self, clock: Timers) -> None:
        self.ended = 0
        """Those that were ended here, since the start."""
        self._clock = clock
        self._members: dict[Member, Timer] = {}
        self._waiting: dict[Member, float] = {}
        """Since when, the longest first."""
        self._count_of: dict[str, int] = {}
        self._held: dict[Member, int] = {}
        self._told: dict[str, tuple[float, int]] = {}
        """Of each reason, when it was logged, and how many have come since."""

    def __len__(self) -> int:
        return len(self._members)

    def join(self, member: Member, *, since: float | None = None) -> bool:
        """Whether there is a place for a connection, which was accepted at `since` of the clock; None: just now."""
        address = member.address
        if self._count_of.get(address, 0) >= MOST_OF_ADDRESS and not self._make_way(address):
            self._count(TOO_MANY_OF_ADDRESS, address)
            return False
        if len(self._members) >= MOST and not self._make_way(None):
            self._count(TOO_MANY, address)
            return False
        limit = (self._clock.time() if since is None else since) + LIMIT_S
        self._members[member] = self._clock.call_at(limit, self._end, member, TOO_LATE)
        self._count_of[address] = self._count_of.get(address, 0) + 1
        self.waits(member)
        return True

    def has_room(self, coming: int) -> bool:
        """Whether a TLS handshake may begin beside so many others that are coming."""
        return len(self._members) + coming < MOST_HANDSHAKES or (bool(self._members) and self._make_way(None))

    def waits(self, member: Member) -> None:
        """It waits for its client from now on."""
        if member in self._members:
            self._waiting.pop(member, None)
            self._waiting[member] = self._clock.time()

    def works(self, member: Member) -> None:
        """It is at work on what its client has sent."""
        self._waiting.pop(member, None)

    def leave(self, member: Member) -> None:
        """It has authenticated, or is gone. To be told twice does no harm."""
        timer = self._members.pop(member, None)
        if timer is None:
            return
        timer.cancel()
        self._waiting.pop(member, None)
        self._held.pop(member, None)
        left = self._count_of[member.address] - 1
        if left:
            self._count_of[member.address] = left
        else:
            del self._count_of[member.address]

    def hold(self, member: Member, size: int) -> None:
        """A message of its client is about to have so many bytes of memory; 0: it has none any more."""
        if member not in self._members:
            return
        self._held[member] = size
        while sum(self._held.values()) > MOST_HELD:
            self._end(max(self._held, key=lambda each: self._held[each]), TOO_LARGE)

    def _make_way(self, address: str | None) -> bool:
        before = self._clock.time() - LEAST_S
        for member, since in self._waiting.items():
            if since > before:
                return False
            if address is None or member.address == address:
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
        logged_at, unlogged = self._told.get(reason, (-LOG_EVERY_S, 0))
        if now - logged_at >= LOG_EVERY_S:
            log.warning("connections ended before authentication", count=unlogged + 1, last=address, reason=reason)
            logged_at, unlogged = now, -1
        self._told[reason] = (logged_at, unlogged + 1)
