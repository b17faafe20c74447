"""A link's state and lag, on one node and on all nodes together. They are computed when asked for; no counter is kept
for a topic.

Lag in records counts offsets (gaps too) between the source's end, as last heard by the node, and what is committed
here. Lag in bytes is estimated from the mean size of the copied records. Lag in seconds is how long the source has had
the first record that is missing here, as far as the node has heard; while the source cannot be reached, the time since
it was lost counts.
"""

from collections.abc import Callable, Iterable

import msgspec

from headrace.base.ids import Millis
from headrace.links.pull.link_state import LinkState, Phase
from headrace.links.pull.partition_pull import Pull, Status
from headrace.links.source.source import NO_OFFSET
from headrace.partitions.lookups import yield_to_loop

CAUGHT_UP_S = 2.0
"""Largest lag in seconds of a link that counts as caught up: under load some records are always on their way."""
MAX_BLOCKED = 20
CONNECTING, CATCHING_UP, CAUGHT_UP, PAUSED, FAILED = "Connecting", "CatchingUp", "CaughtUp", "Paused", "Failed"
_WORST = (FAILED, CONNECTING, CATCHING_UP, CAUGHT_UP, PAUSED)
"""States in order of precedence: a link's state is the first of these that any of its nodes has."""


class Counters:
    """What a link has done on a node since its puller was created there."""

    __slots__ = ("bytes", "failures", "last_error", "last_error_ms", "records")

    def __init__(self) -> None:
        self.records = 0
        """Appended offsets, gaps included."""
        self.bytes = 0
        self.failures = 0
        self.last_error: str | None = None
        self.last_error_ms: Millis | None = None

    def appended(self, records: int, count: int) -> None:
        """Count `records` offsets with `count` bytes."""
        self.records += records
        self.bytes += count

    def failed(self, reason: str, now: Millis) -> None:
        """Count a failed step, which will be retried."""
        self.failures += 1
        self.last_error = reason
        self.last_error_ms = now


class Lag(msgspec.Struct, frozen=True):
    """How far a link, or a group of its topics, is behind. `partitions`: how many partitions are behind."""

    records: int = 0
    bytes: int = 0
    seconds: float = 0.0
    partitions: int = 0

    def __add__(self, other: "Lag") -> "Lag":
        return Lag(
            self.records + other.records,
            self.bytes + other.bytes,
            max(self.seconds, other.seconds),
            self.partitions + other.partitions,
        )


class Blocked(msgspec.Struct, frozen=True):
    """A partition that cannot be pulled at present."""

    topic_id: bytes
    partition: int
    reason: str


class LinkMetrics(msgspec.Struct, frozen=True):
    """A link's state and figures."""

    state: str
    state_s: float
    """How long it has been in this state, in seconds."""
    reason: str
    lag: Lag
    groups: dict[str, Lag]
    """The lag by topic pattern."""
    tracked: int
    """Partitions that the link tracks at present."""
    records: int
    bytes: int
    failures: int
    last_error: str | None
    last_error_ms: int | None
    blocked: list[Blocked]
    """Some of the blocked partitions."""


def figures(
    state: LinkState, counters: Counters, now: float, *, group_of: Callable[[bytes], str | None] = lambda _: None
) -> LinkMetrics:
    """The state and figures of one link on this node. `group_of` returns the pattern that a topic id is counted
    under."""
    mean = counters.bytes / counters.records if counters.records else 0.0
    total = Lag()
    groups: dict[str, Lag] = {}
    blocked: list[Blocked] = []
    for pull in state.pulls.all.values():
        if pull.status is Status.BLOCKED and len(blocked) < MAX_BLOCKED:
            blocked.append(Blocked(pull.at.topic_id, pull.at.partition, pull.reason))
        if pull.status is Status.WAITS:
            continue  # another link pulls it
        lag = _lag(pull, mean, now)
        if lag is not None:
            total += lag
            if (group := group_of(pull.at.topic_id)) is not None:
                groups[group] = groups.get(group, Lag()) + lag
    if state.phase is Phase.CONNECTING:  # what was written to the source meanwhile is unknown
        away = Lag(seconds=round(now - state.since, 3))
        total += away
        for group in {found for at in state.pulls.all if (found := group_of(at.topic_id)) is not None}:
            groups[group] = groups.get(group, Lag()) + away
    return LinkMetrics(
        state=_shown(state, total),
        state_s=round(now - state.since, 3),
        reason=state.reason,
        lag=total,
        groups=groups,
        tracked=len(state.pulls.all),
        records=counters.records,
        bytes=counters.bytes,
        failures=counters.failures,
        last_error=counters.last_error,
        last_error_ms=counters.last_error_ms,
        blocked=blocked,
    )


class Overall(msgspec.Struct, frozen=True):
    """The few figures that are read often, though a link may have 100,000 partitions."""

    state: str
    lag: Lag
    blocked: int
    """Partitions that cannot be pulled at present."""
    records: int
    bytes: int
    failures: int


async def overall(state: LinkState, counters: Counters, *, time: Callable[[], float]) -> Overall:
    """A link's overall figures on this node, computed a bit at a time."""
    mean = counters.bytes / counters.records if counters.records else 0.0
    total, blocked = Lag(), 0
    for index, pull in enumerate(list(state.pulls.all.values())):
        await yield_to_loop(index)
        blocked += pull.status is Status.BLOCKED
        if pull.status is not Status.WAITS and (lag := _lag(pull, mean, time())) is not None:
            total += lag
    if state.phase is Phase.CONNECTING:
        total += Lag(seconds=round(time() - state.since, 3))
    return Overall(_shown(state, total), total, blocked, counters.records, counters.bytes, counters.failures)


def combined(nodes: Iterable[LinkMetrics]) -> LinkMetrics | None:
    """The figures of a link over several nodes; None if there are none."""
    found = list(nodes)
    if not found:
        return None
    groups: dict[str, Lag] = {}
    for each in found:
        for group, lag in each.groups.items():
            groups[group] = groups.get(group, Lag()) + lag
    shown = min((each.state for each in found), key=_WORST.index)
    newest = max(found, key=lambda each: each.last_error_ms or 0)
    return LinkMetrics(
        state=shown,
        state_s=min(each.state_s for each in found if each.state == shown),
        reason=next((each.reason for each in found if each.state == shown and each.reason), ""),
        lag=sum((each.lag for each in found), Lag()),
        groups=groups,
        tracked=sum(each.tracked for each in found),
        records=sum(each.records for each in found),
        bytes=sum(each.bytes for each in found),
        failures=sum(each.failures for each in found),
        last_error=newest.last_error,
        last_error_ms=newest.last_error_ms,
        blocked=[blocked for each in found for blocked in each.blocked][:MAX_BLOCKED],
    )


def _lag(pull: Pull, mean: float, now: float) -> Lag | None:
    records = pull.lag_records()
    if not records or pull.committed == NO_OFFSET:  # the copy has not been looked up, and may not be led here
        return None
    return Lag(records, int(records * mean), round(pull.lag_s(now), 3), 1)


def _shown(state: LinkState, lag: Lag) -> str:
    match state.phase:
        case Phase.RUNNING:
            return CATCHING_UP if not state.is_listed or lag.seconds > CAUGHT_UP_S else CAUGHT_UP
        case Phase.PAUSED:
            return PAUSED
        case Phase.FAILED:
            return FAILED
        case Phase.CONNECTING:
            return CONNECTING
