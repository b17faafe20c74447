"""Bounds on the log: how many lines one cause, and one event, may have.

A line is written for what a client, a peer or a disk does, so whoever does it a million times would otherwise fill the
log's disk, hide every other line, and keep the process busy with writing. Two token buckets stand in front of each
line:

- by event and cause: a burst of `CAUSE_BURST` lines, then one in `CAUSE_EVERY_S`. The cause is the other side's address
  where there is one, without its port; else what else of the program's own the line names (node, container, link ...).
  Never what a client chooses freely: its client id, its port, a topic, a group, a reason.
- by event: a burst of `EVENT_BURST` lines, then one in `EVENT_EVERY_S`, whatever the causes, as an attacker has many
  addresses. It is the only bound of lines that name no cause.

What is left out is counted: the next line of the same cause says `suppressed=1234`, the next of the event
`suppressed_of_all=1234` for those that fell to the bound by event. Where no next line comes, `tell` writes what is
still to be told; whoever runs the process calls it every few seconds, and at the end.

Invariants:
1. A line at level critical is never left out: it says why the process ends, and there is one of it.
2. Every other line is bounded, changes of state ("leads", "leads no more") included: status and metrics tell the
   state, and the bound is by container, so a container that changes hands some times in a minute has all its lines.
   Lines of the audit have bounds of their own (security.audit), by principal.
3. Memory is bounded: `MOST_CAUSES` causes, the one that was used longest ago goes first; `MOST_EVENTS` events, as there
   are in the source, and one bucket for whatever else might come.
4. No line that is told to be left out is lost from the counts: one that goes from memory adds to its event's.

Safe to call from any thread. A processor of structlog, the first, so that what is left out costs little; records of the
standard library's loggers come through `log_output`, with `SITE`, the place in the source that wrote them, as event.
"""

import ipaddress
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, MutableMapping
from functools import lru_cache
from typing import Any, Final

import structlog

from headrace.base.token_bucket import TokenBucket

__all__ = ["AUDIT", "CAUSE_BURST", "CAUSE_EVERY_S", "LEFT_OUT", "SITE", "LogLimits", "network_of"]

CAUSE_BURST: Final = 10
CAUSE_EVERY_S: Final = 5.0
EVENT_BURST: Final = 200
EVENT_EVERY_S: Final = 0.5
MOST_CAUSES: Final = 2048
MOST_EVENTS: Final = 1024
MOST_TOLD: Final = 5
"""Causes of one event that `tell` names each for itself; the others are summed up in one line."""
QUIET_S: Final = 2 * CAUSE_EVERY_S
"""So long nothing has been left out when `tell` takes a flood for over: before, its next line tells."""

SITE: Final = "_site"
"""Key of an event dict that stands for the event where the text of the line is not the program's own."""
LEFT_OUT: Final = "lines of the log were left out"
AUDIT: Final = "audit"
"""The event of the audit's lines, which has bounds of its own (security.audit)."""
_PEER: Final = "peer"
_CAUSES: Final = ("node", "container", "link", "kind", "step", "call", "method", "of", "source", "volume")
"""Keys by which lines are told apart where no peer is named. All are the program's, or were given by an admin."""
_OTHERS: Final = "others"
_MOST_TEXT: Final = 200

Cause = tuple[tuple[str, Hashable], ...]
EventDict = MutableMapping[str, Any]


class _Bucket:
    """A token bucket, and what it has left out since that was told last."""

    __slots__ = ("_lines", "left_out", "left_out_at", "level")

    def __init__(self, burst: int, now: float) -> None:
        self._lines = TokenBucket(burst, now)
        self.left_out = 0
        self.left_out_at = 0.0
        self.level = ""

    def take(self, now: float, burst: int, every_s: float) -> bool:
        """Whether one more line may be written."""
        if self._lines.fill(now, per_s=1 / every_s, burst=burst) < 1:
            return False
        self._lines.take()
        return True

    def leave_out(self, now: float, level: str) -> None:
        """One more was left out."""
        self.left_out += 1
        self.left_out_at = now
        self.level = level

    def told(self) -> int:
        """How many were left out, which is told by whoever asks."""
        left_out, self.left_out = self.left_out, 0
        return left_out


class LogLimits:
    """A structlog processor that leaves out what is too much."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: seconds, monotonic."""
        self._clock = clock
        self._lock = threading.Lock()
        self._events: dict[Hashable, _Bucket] = {}
        self._causes: OrderedDict[tuple[Hashable, Cause], _Bucket] = OrderedDict()

    def __call__(self, _logger: Any, level: str, event: EventDict) -> EventDict:
        """The event, with the count of what was left out before it. Raises structlog.DropEvent."""
        name: Hashable = event.pop(SITE, None) or event.get("event")
        if level == "critical" or name in (LEFT_OUT, AUDIT):
            return event
        cause = _cause_of(event)
        now = self._clock()
        with self._lock:
            of_event = self._events.get(name) or self._add_event(name, now)
            bucket = self._of_cause(name, cause, now) if cause else None
            if bucket is not None and not bucket.take(now, CAUSE_BURST, CAUSE_EVERY_S):
                bucket.leave_out(now, level)
                raise structlog.DropEvent
            if not of_event.take(now, EVENT_BURST, EVENT_EVERY_S):
                of_event.leave_out(now, level)
                raise structlog.DropEvent
            if bucket is not None and bucket.left_out:
                event["suppressed"] = bucket.told()
            if of_event.left_out:
                event["suppressed" if bucket is None else "suppressed_of_all"] = of_event.told()
        return event

    def tell(self, *, ends: bool = False) -> None:
        """Write a line for each flood that is over, with how many lines it was. `ends`: the process does: of all."""
        for level, told in self._ended(self._clock(), ends=ends):
            getattr(structlog.get_logger(), level)(LEFT_OUT, **told)

    # --- inside

    def _add_event(self, name: Hashable, now: float) -> _Bucket:
        if len(self._events) >= MOST_EVENTS:
            name = _OTHERS
        return self._events.setdefault(name, _Bucket(EVENT_BURST, now))

    def _of_cause(self, name: Hashable, cause: Cause, now: float) -> _Bucket:
        key = (name, cause)
        bucket = self._causes.get(key)
        if bucket is not None:
            self._causes.move_to_end(key)
            return bucket
        bucket = self._causes[key] = _Bucket(CAUSE_BURST, now)
        if len(self._causes) > MOST_CAUSES:
            (gone, _), oldest = self._causes.popitem(last=False)
            if oldest.left_out:
                of_event = self._events.get(gone) or self._add_event(gone, now)
                of_event.left_out += oldest.told()
                of_event.left_out_at, of_event.level = now, oldest.level
        return bucket

    def _ended(self, now: float, *, ends: bool) -> list[tuple[str, dict[str, Any]]]:
        """Levels and lines of what has to be told, which counts as told from now on."""
        lines = []
        told: dict[Hashable, int] = {}
        summed: dict[Hashable, int] = {}

        def is_over(bucket: _Bucket) -> bool:
            return bool(bucket.left_out) and (ends or now - bucket.left_out_at >= QUIET_S)

        with self._lock:
            for (name, cause), bucket in self._causes.items():
                if is_over(bucket):
                    told[name] = told.get(name, 0) + 1
                    count = bucket.told()
                    if told[name] <= MOST_TOLD:
                        line = {"lines_of": _shown(name), "suppressed": count, **dict(cause)}
                        lines.append((_level(bucket), line))
                    else:
                        summed[name] = summed.get(name, 0) + count
            for name, bucket in self._events.items():
                if is_over(bucket):
                    summed[name] = summed.get(name, 0) + bucket.told()
            for name, count in summed.items():
                lines.append((_level(self._events.get(name)), {"lines_of": _shown(name), "suppressed": count}))
        return lines


def _cause_of(event: EventDict) -> Cause:
    peer = event.get(_PEER)
    if peer is not None:  # alone: what a line tells besides of a peer may be what that peer says of itself
        return ((_PEER, network_of(str(peer))),)
    return tuple([(key, _short(event[key])) for key in _CAUSES if event.get(key) is not None])


def _short(value: object) -> Hashable:
    return value if isinstance(value, int) else str(value)[:_MOST_TEXT]


@lru_cache(MOST_CAUSES)
def _network(host: str) -> str:
    try:
        address = ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((int(address) >> 64 << 64, 64)))


def network_of(peer: str) -> str:
    """What is bounded together of "address:port": an IPv4 address, the /64 network of an IPv6 one, or the text."""
    return _network(peer[:_MOST_TEXT].rpartition(":")[0] or peer[:_MOST_TEXT])


def _level(bucket: _Bucket | None) -> str:
    level = "" if bucket is None else bucket.level
    return {"exception": "error", "": "warning"}.get(level, level)


def _shown(name: Hashable) -> str:
    return ":".join(map(str, name)) if isinstance(name, tuple) else str(name)
