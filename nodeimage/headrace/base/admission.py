"""Which connections a port may have: so many in all, so many from one address, and none of the last descriptors.

A connection has a `Place` from when it was accepted until it is gone. It is *new* until it has proven something: a
whole request (of a client), the handshake (of a node). At a limit a newcomer takes the place of the new connection that
came first; where there is none, of the one that has been idle for longest; else it is closed at once. So connections
that say nothing keep nobody out, however many there are: each is the next to go, long before one that came just now,
and a client of Kafka's that was let go while it was idle connects again when it has something to say. One that is new
for longer than `NEW_S` goes anyway.

From one address at most `most_of_address` come, so that one cannot have all: there new ones make way, idle ones do not.
The machine's own addresses have `LOCAL` places beyond the limit in all, for who looks what is wrong.

All of it costs a fixed time for each connection. What is refused is counted, and logged once in `LOG_EVERY_S`, with how
many there were. All of the loop thread.
"""

import ipaddress
from collections.abc import Callable
from typing import Final

import structlog

log = structlog.get_logger()

NEW_S: Final = 30.0
"""Within this a client's first whole request must have come."""
LOCAL: Final = 16
LOG_EVERY_S: Final = 60.0


class Place:
    """The place of one connection."""

    __slots__ = ("_admission", "_drop", "address", "since")

    def __init__(self, admission: "Admission", address: str, since: float, drop: Callable[[], None]) -> None:
        self._admission = admission
        self._drop = drop
        self.address = address
        self.since = since

    def occupy(self, drop: Callable[[], None]) -> None:
        """Somebody else looks after the connection from now on: `drop` ends it."""
        self._drop = drop

    def drop(self) -> None:
        """End the connection."""
        self._drop()

    def proven(self) -> None:
        """It has said what a client says: it is new no longer."""
        self._admission.proven(self)

    def leave(self) -> None:
        """The connection is gone. To be told twice does no harm."""
        self._admission.leave(self)


class Admission:
    """Of one kind of connections, on however many ports."""

    def __init__(
        self,
        *,
        kind: str,
        most: int,
        most_of_address: int,
        descriptors: int,
        time: Callable[[], float],
        drop_idle: Callable[[], bool] = lambda: False,
        most_new: int | None = None,
    ) -> None:
        """`most_new`: at so many new ones a newcomer takes the place of the first of them; None: at `most` alone.
        `descriptors`: a connection whose own is this one or higher is refused; files need what is left.
        `drop_idle`: end the connection that has been idle for longest; whether there was one."""
        self.most = most
        self.most_of_address = most_of_address
        self.refused = 0
        """Newcomers that were closed at once."""
        self.made_way = 0
        """New and idle connections that were ended for a newcomer's sake."""
        self.timed_out = 0
        """Connections that were new for too long."""
        self._kind = kind
        self._descriptors = descriptors
        self._time = time
        self._drop_idle = drop_idle
        self._most_new = most + LOCAL if most_new is None else most_new
        self._places: dict[Place, None] = {}
        self._new: dict[Place, None] = {}
        """In the order in which they came."""
        self._new_of: dict[str, dict[Place, None]] = {}
        self._count_of: dict[str, int] = {}
        self._logged_at = -LOG_EVERY_S
        self._unlogged = 0

    def __len__(self) -> int:
        return len(self._places)

    @property
    def is_nearly_full(self) -> bool:
        """Idle connections may soon have to make way."""
        return len(self._places) >= self.most * 3 // 4

    def admit(self, address: str, descriptor: int, drop: Callable[[], None]) -> Place | None:
        """A place for a connection from `address` (without a port), which has `descriptor`; `drop` ends it. None: close
        it at once."""
        while self._count_of.get(address, 0) >= self.most_of_address:
            if not self._drop_first(self._new_of.get(address)):
                self._refuse(address, f"{self.most_of_address} connections from its address")
                return None
        while len(self._new) >= self._most_new and self._drop_first(self._new):
            pass
        most = self.most + (LOCAL if is_local(address) else 0)
        while len(self._places) >= most:
            if not self._make_way():
                self._refuse(address, f"{most} connections")
                return None
        if descriptor >= self._descriptors and not self._make_way():
            self._refuse(address, f"{self._descriptors} descriptors in use")
            return None
        place = Place(self, address, self._time(), drop)
        self._places[place] = self._new[place] = None
        self._new_of.setdefault(address, {})[place] = None
        self._count_of[address] = self._count_of.get(address, 0) + 1
        return place

    def proven(self, place: Place) -> None:
        """See `Place.proven`."""
        if self._new.pop(place, place) is None:
            of_address = self._new_of[place.address]
            del of_address[place]
            if not of_address:
                del self._new_of[place.address]

    def leave(self, place: Place) -> None:
        """See `Place.leave`."""
        if self._places.pop(place, place) is None:
            self.proven(place)
            left = self._count_of[place.address] - 1
            if left:
                self._count_of[place.address] = left
            else:
                del self._count_of[place.address]

    def drop_silent(self, within_s: float = NEW_S) -> None:
        """End what has been new for longer than `within_s`."""
        before = self._time() - within_s
        while (first := next(iter(self._new), None)) is not None and first.since <= before:
            self.timed_out += 1
            self._end(first)

    def relieve(self) -> None:
        """There is no descriptor left, although all were counted: one connection makes way."""
        self._make_way()

    def _make_way(self) -> bool:
        if self._drop_first(self._new):
            return True
        count = len(self._places)
        if not self._drop_idle():
            return False
        self.made_way += 1
        return len(self._places) < count

    def _drop_first(self, places: dict[Place, None] | None) -> bool:
        first = next(iter(places or ()), None)
        if first is None:
            return False
        self.made_way += 1
        self._end(first)
        return True

    def _end(self, place: Place) -> None:
        self.leave(place)  # at once: the connection itself is gone in a later turn of the loop
        place.drop()

    def _refuse(self, address: str, reason: str) -> None:
        self.refused += 1
        self._unlogged += 1
        now = self._time()
        if now - self._logged_at >= LOG_EVERY_S:
            log.warning("connections refused", kind=self._kind, count=self._unlogged, last=address, limit=reason)
            self._logged_at = now
            self._unlogged = 0


def is_local(address: str) -> bool:
    """Whether an address is one of this machine's own that no other can have."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None)  # of a socket that listens at `::`
    return found.is_loopback or (mapped is not None and mapped.is_loopback)
