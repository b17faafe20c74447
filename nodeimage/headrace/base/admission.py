"""Admission of connections: limits in total and per address, and a reserve of descriptors that no connection gets.

A connection has a `Place` from its acceptance until it is gone. A connection is *new* until it has proven itself: a
client by a complete request, a node by the handshake. At a limit, the connection that has been new for longest is
closed to make way for the newcomer; if none is new, the connection that has been idle for longest; if none is idle, the
newcomer is closed at once. So silent connections keep nobody out, however many there are: each is closed long before a
connection that was just accepted, and a Kafka client whose idle connection was closed connects again when it needs to.
A connection that is new for longer than `NEW_S` is closed in any case.

One address may have at most `most_of_address` connections, so that it cannot take all places; at this limit only new
connections make way, not idle ones. All addresses of a /64 network of IPv6 count as one, since one client may have them
all. Loopback addresses have `LOCAL` places beyond the total limit, for administrators who look for a fault.

The cost per connection is constant. Refusals are counted, and logged once in `LOG_EVERY_S`, with their number. For the
loop thread only.
"""

import ipaddress
from collections.abc import Callable
from typing import Final

import structlog

from headrace.base.addresses import network

log = structlog.get_logger()

NEW_S: Final = 30.0
"""Seconds within which a connection must prove itself, a client by its first complete request."""
LOCAL: Final = 16
"""Places beyond the limit for connections from loopback addresses."""
LOG_EVERY_S: Final = 60.0


class Place:
    """The place of one connection among those of its kind."""

    __slots__ = ("_admission", "_drop", "address", "network", "since")

    def __init__(self, admission: "Admission", address: str, since: float, drop: Callable[[], None]) -> None:
        self._admission = admission
        self._drop = drop
        self.address = address
        self.network = network(address)
        """What shares the limit per address with this connection."""
        self.since = since

    def occupy(self, drop: Callable[[], None]) -> None:
        """Sets the function that closes the connection from now on."""
        self._drop = drop

    def drop(self) -> None:
        """Closes the connection."""
        self._drop()

    def proven(self) -> None:
        """Reports that the connection has proven itself: it is no longer new."""
        self._admission.proven(self)

    def leave(self) -> None:
        """Reports that the connection is gone. Idempotent."""
        self._admission.leave(self)


class Admission:
    """The admission of one kind of connections, on any number of ports."""

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
        """`most`, `most_of_address`: the most connections in total and per address, of IPv6 per /64 network.
        `most_new`: the number of new connections from which on the oldest of them makes way for a newcomer; None: no
        such limit. `descriptors`: a connection with this descriptor or a higher one is refused, since files need the
        rest. `drop_idle`: closes the connection that has been idle for longest; returns whether there was one."""
        self.most = most
        self.most_of_address = most_of_address
        self.refused = 0
        """Number of newcomers that were closed at once."""
        self.made_way = 0
        """Number of new and idle connections that were closed to make way for a newcomer."""
        self.timed_out = 0
        """Number of connections that were closed because they were new for too long."""
        self._kind = kind
        self._descriptors = descriptors
        self._time = time
        self._drop_idle = drop_idle
        self._most_new = most + LOCAL if most_new is None else most_new
        self._places: dict[Place, None] = {}
        self._new: dict[Place, None] = {}
        """The places of new connections, in the order of their acceptance."""
        self._new_of: dict[str, dict[Place, None]] = {}
        """By network, its part of `_new`."""
        self._count_of: dict[str, int] = {}
        """By network, the number of its places."""
        self._logged_at = -LOG_EVERY_S
        self._unlogged = 0

    def __len__(self) -> int:
        return len(self._places)

    @property
    def is_nearly_full(self) -> bool:
        """Whether three quarters of the places are taken, so that idle connections may soon have to make way."""
        return len(self._places) >= self.most * 3 // 4

    def admit(self, address: str, descriptor: int, drop: Callable[[], None]) -> Place | None:
        """A place for a connection with `descriptor` from `address` (without a port), which `drop` closes. None: the
        connection is refused, and the caller must close it."""
        shared = network(address)
        while self._count_of.get(shared, 0) >= self.most_of_address:
            if not self._drop_first(self._new_of.get(shared)):
                self._refuse(address, f"{self.most_of_address} connections from {shared}")
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
        self._new_of.setdefault(shared, {})[place] = None
        self._count_of[shared] = self._count_of.get(shared, 0) + 1
        return place

    def proven(self, place: Place) -> None:
        """See `Place.proven`."""
        if self._new.pop(place, place) is None:
            of_network = self._new_of[place.network]
            del of_network[place]
            if not of_network:
                del self._new_of[place.network]

    def leave(self, place: Place) -> None:
        """See `Place.leave`."""
        if self._places.pop(place, place) is None:
            self.proven(place)
            left = self._count_of[place.network] - 1
            if left:
                self._count_of[place.network] = left
            else:
                del self._count_of[place.network]

    def drop_silent(self, within_s: float = NEW_S) -> None:
        """Closes connections that have been new for longer than `within_s` seconds."""
        before = self._time() - within_s
        while (first := next(iter(self._new), None)) is not None and first.since <= before:
            self.timed_out += 1
            self._end(first)

    def relieve(self) -> None:
        """Closes one connection, as no descriptor is left although the number of connections is within the limits."""
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
        self.leave(place)  # now, since the connection itself is gone only in a later turn of the loop
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
    """Whether `address` is a loopback address."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None)  # the form of IPv4 addresses on a socket that listens on `::`
    return found.is_loopback or (mapped is not None and mapped.is_loopback)
