"""Limits on what clients use, counted and enforced as by Kafka (KIP-13, KIP-219, KIP-257, KIP-599). Pure.

A limit is chosen by user and client id; the first of these that exists applies: user and client id; user and the
default client; user; default user and client id; default user and default client; default user; client id; default
client. A limit by user has one count for each user, a limit by client id one for each client id, and a limit by both
one for each pair.

A rate covers the last 11 one-second windows; all of the current window's amount counts although the window is not over,
which overstates the rate by up to a tenth. A client above its limit is told to wait until the rate has fallen to the
limit, and its connection is not read meanwhile. Changes of topics use a token bucket, whose burst is what its limit
allows in 11 s.
"""

import hashlib
import ipaddress
import json
from collections import deque
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final, NamedTuple, TypeVar

from headrace.base.token_bucket import TokenBucket

WINDOW_S: Final = 1.0
WINDOWS: Final = 11
"""Kafka's `quota.window.num`."""
_SPAN_S: Final = WINDOWS * WINDOW_S
_MAX_COUNTS: Final = 100_000
"""The maximum number of rates and buckets that are kept; the least recently used go first."""
_LONGEST_KEPT: Final = 300
"""Longest client id, in characters, that is used as a key. Clients choose client ids, which may have 32 KiB."""


class Key(StrEnum):
    """What is limited, in Kafka's words."""

    PRODUCE = "producer_byte_rate"
    """Bytes per second that clients produce."""
    CONSUME = "consumer_byte_rate"
    REQUESTS = "request_percentage"
    """Percent of one processor's time."""
    MUTATIONS = "controller_mutation_rate"
    """Partitions created and deleted per second."""
    CONNECTIONS = "connection_creation_rate"
    """Connections per second from one address."""


class Entity(NamedTuple):
    """Whom a limit applies to. "" is the default; None: the limit does not depend on this name."""

    user: str | None = None
    client_id: str | None = None
    ip: str | None = None


T = TypeVar("T")
_Count = tuple[Key, str | None, str | None]
_FIELDS: Final = {"user": "user", "client-id": "client_id", "ip": "ip"}


def entity_text(names: Mapping[str, str | None]) -> str:
    """Names by Kafka's entity types (None: the default), as the catalog stores them. Raises ValueError for an unknown
    type, an empty name, no name, or an address together with others."""
    if not names or not names.keys() <= _FIELDS.keys() or ("ip" in names and len(names) > 1):
        raise ValueError("a limit is of a user, a client-id, both, or of an ip alone")
    if any(name == "" for name in names.values()):
        raise ValueError("a user, client-id or ip with an empty name")
    return json.dumps(dict(names), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def names_of(text: str) -> dict[str, str | None]:
    """The names that `entity_text` was given."""
    return dict(json.loads(text))


def entity_of(text: str) -> Entity:
    """The entity that a text of `entity_text` stands for."""
    return Entity(**{_FIELDS[kind]: name or "" for kind, name in names_of(text).items()})


def address_of(text: str) -> str:
    """An address as quotas name it: an IPv4 address as such, even if it arrives through an IPv6 socket. Raises
    ValueError for any other text."""
    found = ipaddress.ip_address(text.partition("%")[0])
    mapped = getattr(found, "ipv4_mapped", None)
    return str(found if mapped is None else mapped)


class Limit(NamedTuple):
    """A limit's value; `shared`: the key of the count that its clients share."""

    value: float
    shared: _Count


class QuotaTable:
    """All limits of a cluster. Immutable."""

    def __init__(self, limits: Iterable[tuple[Entity, str, float]]) -> None:
        self._limits = {(entity, key): value for entity, key, value in limits}
        self._keys = frozenset(key for _, key in self._limits)
        self._found: dict[tuple[Key, str, str], Limit | None] = {}
        """Cached limits of clients that were looked up."""

    def limit(self, key: Key, *, user: str, client_id: str) -> Limit | None:
        """The limit of a client; None: it has none."""
        if key not in self._keys:
            return None
        kept = client_id if len(client_id) <= _LONGEST_KEPT else _digest(client_id)
        client = (key, user, kept)
        if client in self._found:
            return self._found[client]
        if len(self._found) >= _MAX_COUNTS:
            self._found.clear()
        found = self._found[client] = self._limit(key, user, client_id, kept)
        return found

    def _limit(self, key: Key, user: str, client_id: str, kept: str) -> Limit | None:
        for entity, of_user, of_client in (
            (Entity(user, client_id), user, kept),
            (Entity(user, ""), user, kept),
            (Entity(user), user, None),
            (Entity("", client_id), user, kept),
            (Entity("", ""), user, kept),
            (Entity(""), user, None),
            (Entity(None, client_id), None, kept),
            (Entity(None, ""), None, kept),
        ):
            value = self._limits.get((entity, key))
            if value is not None:
                return Limit(value, (key, of_user, of_client))
        return None

    def connections(self, ip: str) -> Limit | None:
        """The limit on connections per second from an address; None: there is none."""
        for entity in (Entity(ip=ip), Entity(ip="")):
            value = self._limits.get((entity, Key.CONNECTIONS))
            if value is not None:
                return Limit(value, (Key.CONNECTIONS, ip, None))
        return None


def _digest(client_id: str) -> str:
    """A short, unique stand-in for a long client id."""
    return hashlib.sha256(client_id.encode("utf-8", "surrogatepass")).hexdigest()


class Rate:
    """A rate per second over the last windows."""

    def __init__(self) -> None:
        self._windows: deque[tuple[float, float]] = deque()
        """(start of the window, amount in it)."""

    def add(self, amount: float, now: float) -> None:
        """Count `amount`. `now`: seconds of a monotonic clock."""
        self._forget(now)
        if self._windows and now < self._windows[-1][0] + WINDOW_S:
            began, before = self._windows.pop()
            self._windows.append((began, before + amount))
        else:
            self._windows.append((now, amount))

    def throttle_s(self, limit: float, now: float) -> float:
        """Seconds to wait until the rate has fallen to the limit; 0: it is not above."""
        self._forget(now)
        if not self._windows:
            return 0.0
        # As in Kafka, a rate that has just begun counts as if it had lasted for all windows but the last.
        elapsed = max(now - self._windows[0][0], _SPAN_S - WINDOW_S)
        total = sum(amount for _, amount in self._windows)
        if total <= limit * elapsed:
            return 0.0
        return min((total / elapsed - limit) / limit * elapsed, _SPAN_S) if limit > 0 else _SPAN_S

    def _forget(self, now: float) -> None:
        while self._windows and now - self._windows[0][0] >= _SPAN_S:
            self._windows.popleft()


class Quotas:
    """What this node's clients have used, measured against their limits."""

    def __init__(self, table: QuotaTable) -> None:
        self.table = table
        self._rates: dict[_Count, Rate] = {}
        self._buckets: dict[_Count, TokenBucket] = {}

    def replace(self, table: QuotaTable) -> None:
        """Use other limits from now on; existing counts are kept."""
        self.table = table

    def used(self, key: Key, amount: float, *, user: str, client_id: str, now: float) -> float:
        """Count what a client has used; returns the seconds for which it has to wait."""
        limit = self.table.limit(key, user=user, client_id=client_id)
        if limit is None:
            return 0.0
        rate = _kept(self._rates, limit.shared) or Rate()
        self._rates[limit.shared] = rate
        rate.add(amount, now)
        return rate.throttle_s(limit.value, now)

    def mutated(self, partitions: int, *, user: str, client_id: str, now: float) -> float:
        """Count partitions that are created or deleted; returns the seconds for which the client has to wait before the
        next change."""
        limit = self.table.limit(Key.MUTATIONS, user=user, client_id=client_id)
        return 0.0 if limit is None else self._take(limit, partitions, now)

    def connected(self, ip: str, *, now: float) -> float:
        """Count a connection from an address; returns the seconds for which it is not served. A connection that would
        have to wait through all windows is not counted: the caller closes it, so that others get their turn."""
        limit = self.table.connections(ip)
        if limit is None:
            return 0.0
        wait_s = self._take(limit, 1, now)
        if wait_s >= _SPAN_S:
            self._take(limit, -1, now)
        return wait_s

    def _take(self, limit: Limit, amount: float, now: float) -> float:
        burst = limit.value * _SPAN_S
        bucket = _kept(self._buckets, limit.shared) or TokenBucket(burst, now)
        self._buckets[limit.shared] = bucket
        bucket.fill(now, per_s=limit.value, burst=burst)
        bucket.take(amount)
        if bucket.tokens >= 0:
            return 0.0
        return min(-bucket.tokens / limit.value, _SPAN_S) if limit.value > 0 else _SPAN_S


def _kept(counts: dict[_Count, T], key: _Count) -> T | None:
    """Take a count out of `counts`, for the caller to put back at the end as the most recently used; make room if there
    is none."""
    found = counts.pop(key, None)
    if found is None and len(counts) >= _MAX_COUNTS:
        del counts[next(iter(counts))]
    return found
