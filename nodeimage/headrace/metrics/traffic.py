"""Counts what clients write and read, by stream, and by topic if a node is configured so. Pure, except for the clock.

A batch adds to one `Flow`, which its topic references: its stream's, or the topic's own. The rest happens on a scrape:

    flows -> flow_reports -> topics, the busiest streams, the other streams together

Only a limited number of streams have series of their own, so that a user who creates a million streams cannot fill
Prometheus's memory. These are the first ones, until another stream is far busier: every `SELECT_S` a few of the
quietest streams lose their series to busier ones.

Invariants:
1. The reported counts of a stream, a topic or the others never decrease. A stream that gets its series back continues
   with its former counts.
2. Each byte is reported once, for its stream or for the others; and for a topic with a flow of its own once more.
"""

from collections.abc import Callable, Iterator
from heapq import nlargest, nsmallest
from operator import attrgetter
from time import monotonic
from typing import Final, NamedTuple

MAX_STREAMS: Final = 100
OTHERS: Final = "others"
"""The label of all streams without series of their own; no stream has this path."""
MAX_COUNTED = 10_000
"""The most streams with a flow of their own, with or without series, and the most topics without a flow that are
counted one by one."""
SELECT_S: Final = 30.0
MAX_SWAPS: Final = 5
"""The most streams that get series at a time: each adds four series that Prometheus keeps for a while."""
BUSIER: Final = 2
"""A stream takes over the series of another only if it is more than this many times as busy; otherwise two similar
streams would alternate."""

Counts = tuple[int, int, int, int]
_NONE: Final[Counts] = (0, 0, 0, 0)


class Flow:
    """Bytes and records that clients have written (in) and read (out) since the start."""

    __slots__ = ("in_bytes", "in_records", "out_bytes", "out_records")

    def __init__(self, counts: Counts = _NONE) -> None:
        self.in_bytes, self.in_records, self.out_bytes, self.out_records = counts

    @property
    def counts(self) -> Counts:
        """The current values of all four counts."""
        return self.in_bytes, self.in_records, self.out_bytes, self.out_records

    def add(self, counts: Counts) -> None:
        """Adds to all four counts."""
        self.in_bytes += counts[0]
        self.in_records += counts[1]
        self.out_bytes += counts[2]
        self.out_records += counts[3]


class FlowReport(NamedTuple):
    """The reported flow of one topic, one stream, or the other streams."""

    stream: str
    topic: str | None
    """The topic; None: the flow is that of the stream with all its topics."""
    flow: Flow


class Traffic:
    """The traffic of one node."""

    def __init__(
        self, *, most_topics: int = 0, most_streams: int = MAX_STREAMS, time: Callable[[], float] = monotonic
    ) -> None:
        """`most_topics`: the most topics with a flow of their own; 0: none. `most_streams`: the most streams with
        series of their own."""
        self._most_streams = most_streams
        self._most_topics = most_topics
        self._time = time
        self._streams: dict[str, _Stream] = {}
        self._told_apart: dict[str, _Stream] = {}
        self._others = _Stream(OTHERS)
        """All streams beyond `MAX_COUNTED`, which share one flow."""
        self._others_told = Flow()
        self._topics: dict[tuple[str, str], _Topic] = {}
        self._topics_dropped: set[tuple[str, str]] = set()
        self._selected_at = time()

    def of(self, stream: str, topic: str) -> Flow:
        """The flow to which the batches of a topic are added."""
        if self._most_topics:
            key = (stream, topic)
            found = self._topics.get(key)
            if found is None and len(self._topics) < self._most_topics:
                found = self._topics[key] = _Topic(self._of_stream(stream).flow)
            if found is not None:
                return found.flow
            if len(self._topics_dropped) < MAX_COUNTED:
                self._topics_dropped.add(key)
        return self._of_stream(stream).flow

    @property
    def dropped(self) -> dict[str, int]:
        """The number of streams and of topics without series of their own, as far as they are counted (MAX_COUNTED)."""
        streams = len(self._streams) - len(self._told_apart)
        return {"streams": streams, "topics": len(self._topics_dropped)}

    def flow_reports(self) -> Iterator[FlowReport | None]:
        """The flows to report: of topics with a flow of their own, of streams with series, and of the others. Yields
        None for each stream without a report, since going through ten thousand streams takes milliseconds."""
        for (stream, topic), own in list(self._topics.items()):
            own.roll_up()
            yield FlowReport(stream, topic, Flow(own.flow.counts))
        for each in [self._others, *self._streams.values()]:
            if not each.is_told:
                self._others_told.add(each.miss())
                yield None
        if self._time() - self._selected_at >= SELECT_S:
            self._selected_at = self._time()
            yield from self._select()
        for each in list(self._told_apart.values()):
            yield FlowReport(each.path, None, Flow(each.told))
        if self.dropped["streams"] or any(self._others_told.counts):
            yield FlowReport(OTHERS, None, Flow(self._others_told.counts))

    def _of_stream(self, path: str) -> "_Stream":
        found = self._streams.get(path)
        if found is None:
            if len(self._streams) >= MAX_COUNTED:
                return self._others
            found = self._streams[path] = _Stream(path)
            if len(self._told_apart) < self._most_streams:
                found.is_told = True
                self._told_apart[path] = found
        return found

    def _select(self) -> Iterator[FlowReport | None]:
        """Gives the series of the quietest streams to far busier ones; the quietest are reported a last time."""
        busiest: list[_Stream] = []
        for each in list(self._streams.values()):
            each.rate()
            if not each.is_told and each.busy:
                busiest = nlargest(MAX_SWAPS, [*busiest, each], key=attrgetter("busy"))
            yield None
        quietest = nsmallest(MAX_SWAPS, self._told_apart.values(), key=attrgetter("busy"))
        for newcomer, leaver in zip(busiest, quietest, strict=False):
            if newcomer.is_told or not leaver.is_told or newcomer.busy <= BUSIER * leaver.busy:
                break
            self._others_told.add(newcomer.miss())
            leaver.is_told, newcomer.is_told = False, True
            self._told_apart[newcomer.path] = newcomer
            del self._told_apart[leaver.path]
            yield FlowReport(leaver.path, None, Flow(leaver.leave()))


class _Topic:
    """A topic with a flow of its own, which `roll_up` adds to the stream's flow."""

    __slots__ = ("_of_stream", "_rolled_up", "flow")

    def __init__(self, of_stream: Flow) -> None:
        self.flow = Flow()
        self._of_stream = of_stream
        self._rolled_up = _NONE

    def roll_up(self) -> None:
        """Adds the counts since the last call to the stream's flow."""
        now = self.flow.counts
        self._of_stream.add(_less(now, self._rolled_up))
        self._rolled_up = now


class _Stream:
    """One stream: its flow, and the part of the flow that is reported for the others."""

    __slots__ = ("_missed", "_rated", "_seen", "busy", "flow", "is_told", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self.flow = Flow()
        self.is_told = False
        self.busy = 0.0
        """Moving average of the bytes per `SELECT_S`: each interval counts half as much as the next one."""
        self._missed = _NONE
        """The counts that were reported for the others, while the stream had no series."""
        self._seen = _NONE
        """The counts at the last call of `miss` or `leave`, while the stream has no series."""
        self._rated = 0

    @property
    def told(self) -> Counts:
        """The counts that are reported for the stream itself."""
        return _less(self.flow.counts, self._missed)

    def miss(self) -> Counts:
        """The counts since the last call, to be reported for the others."""
        now = self.flow.counts
        if now == self._seen:
            return _NONE
        new, self._seen = _less(now, self._seen), now
        self._missed = _sum(self._missed, new)
        return new

    def leave(self) -> Counts:
        """The last counts to report for the stream itself, which loses its series."""
        self._seen = self.flow.counts
        return self.told

    def rate(self) -> None:
        """Updates `busy`."""
        size = self.flow.in_bytes + self.flow.out_bytes
        self.busy = (self.busy + size - self._rated) / 2
        self._rated = size


def _less(one: Counts, other: Counts) -> Counts:
    return one[0] - other[0], one[1] - other[1], one[2] - other[2], one[3] - other[3]


def _sum(one: Counts, other: Counts) -> Counts:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2], one[3] + other[3]
