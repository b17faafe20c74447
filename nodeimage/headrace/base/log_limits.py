"""Rate limits on the log: how many lines one cause, and one event, may have.

Lines are written about the actions of clients, peers and disks, so an action repeated a million times would otherwise
fill the log's disk, hide all other lines, and keep the process busy with writing. Two token buckets limit each line:

- by event and cause: a burst of `CAUSE_BURST` lines, then one in `CAUSE_EVERY_S`. The cause is the other side's address
  without the port if the line has one; else the program's own objects that the line names (node, container, link ...).
  Never anything that a client chooses freely: client id, port, topic, group, reason.
- by event: a burst of `EVENT_BURST` lines, then one in `EVENT_EVERY_S`, for all causes together, as an attacker may
  have many addresses. This is the only limit for lines that name no cause.

Suppressed lines are counted: the next line of the same cause says `suppressed=1234`, the next line of the event
`suppressed_of_all=1234` for lines that exceeded the limit by event. If no next line follows, `tell` writes the count;
the process calls it every few seconds, and at its end.

Invariants:
1. A line at level critical is never suppressed: it says why the process ends, and occurs once.
2. All other lines are limited, including changes of state ("leads", "no longer leads"): status and metrics show the
   state, and the limit is per container, so all lines appear for a container whose leader changes a few times a
   minute. Audit lines have limits of their own (security.audit), per principal.
3. Memory is bounded: `MAX_CAUSES` causes, of which the least recently used is dropped first; `MAX_EVENTS` events,
   enough for those in the source, and one bucket for any others.
4. No suppressed line is lost from the counts: the count of a dropped cause is added to that of its event.

Safe to call from any thread. A processor of structlog, the first one, so that suppressed lines cost little; records of
the standard library's loggers arrive through `log_output`, with `SITE`, the place in the source, as their event.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, MutableMapping
from typing import Any, Final

import structlog

from headrace.base.addresses import network
from headrace.base.token_bucket import TokenBucket

__all__ = ["AUDIT", "CAUSE_BURST", "CAUSE_EVERY_S", "LEFT_OUT", "SITE", "LogLimits", "network_of"]

CAUSE_BURST: Final = 10
CAUSE_EVERY_S: Final = 5.0
EVENT_BURST: Final = 200
EVENT_EVERY_S: Final = 0.5
MAX_CAUSES: Final = 2048
MAX_EVENTS: Final = 1024
MAX_TOLD: Final = 5
"""The most causes of one event for which `tell` writes a line each; the others are summed up in one line."""
QUIET_S: Final = 2 * CAUSE_EVERY_S
"""Seconds without a suppressed line after which `tell` considers a flood to be over. Before that, the next line of the
flood has the count."""

SITE: Final = "_site"
"""The key in an event dict that identifies the event if the text of the line is not the program's own."""
LEFT_OUT: Final = "lines of the log were left out"
AUDIT: Final = "audit"
"""The event of audit lines, which have limits of their own (security.audit)."""
_PEER: Final = "peer"
_CAUSES: Final = ("node", "container", "link", "kind", "step", "call", "method", "of", "source", "volume")
"""The keys that make up the cause of a line without a peer. All values are the program's own, or given by an admin."""
_OTHERS: Final = "others"
_MAX_TEXT: Final = 200

Cause = tuple[tuple[str, Hashable], ...]
EventDict = MutableMapping[str, Any]


class _Bucket:
    """A token bucket, and the number of lines suppressed since they were last reported."""

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
        """Counts one more suppressed line."""
        self.left_out += 1
        self.left_out_at = now
        self.level = level

    def told(self) -> int:
        """The number of suppressed lines, which the caller reports; resets the count."""
        left_out, self.left_out = self.left_out, 0
        return left_out


class LogLimits:
    """A structlog processor that suppresses lines beyond the limits."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: seconds, monotonic."""
        self._clock = clock
        self._lock = threading.Lock()
        self._events: dict[Hashable, _Bucket] = {}
        self._causes: OrderedDict[tuple[Hashable, Cause], _Bucket] = OrderedDict()

    def __call__(self, _logger: Any, level: str, event: EventDict) -> EventDict:
        """The event, with the count of lines suppressed before it. Raises structlog.DropEvent to suppress it."""
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
        """Writes a line with the number of suppressed lines for each flood that is over. `ends`: for all floods, as the
        process ends."""
        for level, told in self._ended(self._clock(), ends=ends):
            getattr(structlog.get_logger(), level)(LEFT_OUT, **told)

    # --- inside

    def _add_event(self, name: Hashable, now: float) -> _Bucket:
        if len(self._events) >= MAX_EVENTS:
            name = _OTHERS
        return self._events.setdefault(name, _Bucket(EVENT_BURST, now))

    def _of_cause(self, name: Hashable, cause: Cause, now: float) -> _Bucket:
        key = (name, cause)
        bucket = self._causes.get(key)
        if bucket is not None:
            self._causes.move_to_end(key)
            return bucket
        bucket = self._causes[key] = _Bucket(CAUSE_BURST, now)
        if len(self._causes) > MAX_CAUSES:
            (gone, _), oldest = self._causes.popitem(last=False)
            if oldest.left_out:
                of_event = self._events.get(gone) or self._add_event(gone, now)
                of_event.left_out += oldest.told()
                of_event.left_out_at, of_event.level = now, oldest.level
        return bucket

    def _ended(self, now: float, *, ends: bool) -> list[tuple[str, dict[str, Any]]]:
        """The levels and lines to be written for floods that are over; their counts are reset."""
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
                    if told[name] <= MAX_TOLD:
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
    if peer is not None:  # nothing else counts, since other fields of the line may be the peer's own claims
        return ((_PEER, network_of(str(peer))),)
    return tuple([(key, _short(event[key])) for key in _CAUSES if event.get(key) is not None])


def _short(value: object) -> Hashable:
    return value if isinstance(value, int) else str(value)[:_MAX_TEXT]


def network_of(peer: str) -> str:
    """The part of "address:port" that shares a limit: an IPv4 address, the /64 network of an IPv6 address, or, if it is
    neither, the text without the port."""
    return network(peer[:_MAX_TEXT].rpartition(":")[0] or peer[:_MAX_TEXT])


def _level(bucket: _Bucket | None) -> str:
    level = "" if bucket is None else bucket.level
    return {"exception": "error", "": "warning"}.get(level, level)


def _shown(name: Hashable) -> str:
    return ":".join(map(str, name)) if isinstance(name, tuple) else str(name)
