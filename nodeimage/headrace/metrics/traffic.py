"""What clients write and read, by stream, and by topic where a node is told to. Pure, but for the clock.

A batch adds to one `Flow`, which its topic holds: that of its stream, or its own. All else is done when somebody asks:

    flows -> told -> topics, the busiest streams, the other streams together

Only so many streams are told apart that nobody who makes a million of them fills the memory of Prometheus. They are the
first ones, until another is far busier: every `SELECT_S` a few of the quietest make way for those.

Invariants:
1. What is told of a stream, a topic or the others never falls. A stream that is told apart again goes on where it was.
2. Each byte is told once, as its stream's or as the others'; of a topic with a flow of its own, beside its stream's.
"""

from collections.abc import Callable, Iterator
from heapq import nlargest, nsmallest
from operator import attrgetter
from time import monotonic
from typing import Final, NamedTuple

MOST_STREAMS: Final = 100
OTHERS: Final = "others"
"""Stands for the streams that are not told apart; no stream's path is like that."""
MOST_COUNTED = 10_000
"""Streams with a flow of their own, told or not, and topics that have none: beyond that they are not told apart."""
SELECT_S: Final = 30.0
MOST_SWAPS: Final = 5
"""Streams that are told anew at a time: each is four series more that Prometheus has to keep for a while."""
BUSIER: Final = 2
"""So many times as busy as one that is told has to be who takes its place, or two that are alike would take turns."""

Counts = tuple[int, int, int, int]
_NONE: Final[Counts] = (0, 0, 0, 0)


class Flow:
    """Batches of records that went one way or the other since the start."""

    __slots__ = ("in_bytes", "in_records", "out_bytes", "out_records")

    def __init__(self, counts: Counts = _NONE) -> None:
        self.in_bytes, self.in_records, self.out_bytes, self.out_records = counts

    @property
    def counts(self) -> Counts:
        """All four, as they are now."""
        return self.in_bytes, self.in_records, self.out_bytes, self.out_records

    def add(self, counts: Counts) -> None:
        """Add to all four."""
        self.in_bytes += counts[0]
        self.in_records += counts[1]
        self.out_bytes += counts[2]
        self.out_records += counts[3]


class Told(NamedTuple):
    """What is told of one topic, one stream, or the others."""

    stream: str
    topic: str | None
    """None: of the stream, with all of its topics."""
    flow: Flow


class Traffic:
    """Of one node."""

    def __init__(
        self, *, most_topics: int = 0, most_streams: int = MOST_STREAMS, time: Callable[[], float] = monotonic
    ) -> None:
        """`most_topics`: that have a flow of their own; 0: none has. `most_streams`: that are told apart."""
        self._most_streams = most_streams
        self._most_topics = most_topics
        self._time = time
        self._streams: dict[str, _Stream] = {}
        self._told_apart: dict[str, _Stream] = {}
        self._others = _Stream(OTHERS)
        """Streams beyond `MOST_COUNTED` share its flow."""
        self._others_told = Flow()
        self._topics: dict[tuple[str, str], _Topic] = {}
        self._topics_dropped: set[tuple[str, str]] = set()
        self._selected_at = time()

    def of(self, stream: str, topic: str) -> Flow:
        """Where the batches of a topic are added."""
        if self._most_topics:
            key = (stream, topic)
            found = self._topics.get(key)
            if found is None and len(self._topics) < self._most_topics:
                found = self._topics[key] = _Topic(self._of_stream(stream).flow)
            if found is not None:
                return found.flow
            if len(self._topics_dropped) < MOST_COUNTED:
                self._topics_dropped.add(key)
        return self._of_stream(stream).flow

    @property
    def dropped(self) -> dict[str, int]:
        """How many streams and topics have no series of their own."""
        streams = len(self._streams) - len(self._told_apart)
        return {"streams": streams, "topics": len(self._topics_dropped)}

    def told(self) -> Iterator[Told | None]:
        """Topics that have a flow of their own, streams that are told apart, and the others. A look at ten thousand
        streams takes milliseconds: None says that one was looked at of which there is nothing to tell."""
        for (stream, topic), own in list(self._topics.items()):
            own.roll_up()
            yield Told(stream, topic, Flow(own.flow.counts))
        for each in [self._others, *self._streams.values()]:
            if not each.is_told:
                self._others_told.add(each.miss())
                yield None
        if self._time() - self._selected_at >= SELECT_S:
            self._selected_at = self._time()
            yield from self._select()
        for each in list(self._told_apart.values()):
            yield Told(each.path, None, Flow(each.told))
        if self.dropped["streams"] or any(self._others_told.counts):
            yield Told(OTHERS, None, Flow(self._others_told.counts))

    def _of_stream(self, path: str) -> "_Stream":
        found = self._streams.get(path)
        if found is None:
            if len(self._streams) >= MOST_COUNTED:
                return self._others
            found = self._streams[path] = _Stream(path)
            if len(self._told_apart) < self._most_streams:
                found.is_told = True
                self._told_apart[path] = found
        return found

    def _select(self) -> Iterator[Told | None]:
        """Let those that are far busier take the place of the quietest, which are told a last time."""
        busiest: list[_Stream] = []
        for each in list(self._streams.values()):
            each.rate()
            if not each.is_told and each.busy:
                busiest = nlargest(MOST_SWAPS, [*busiest, each], key=attrgetter("busy"))
            yield None
        quietest = nsmallest(MOST_SWAPS, self._told_apart.values(), key=attrgetter("busy"))
        for newcomer, leaver in zip(busiest, quietest, strict=False):
            if newcomer.is_told or not leaver.is_told or newcomer.busy <= BUSIER * leaver.busy:
                break
            self._others_told.add(newcomer.miss())
            leaver.is_told, newcomer.is_told = False, True
            self._told_apart[newcomer.path] = newcomer
            del self._told_apart[leaver.path]
            yield Told(leaver.path, None, Flow(leaver.leave()))


class _Topic:
    """One with a flow of its own, which its stream's has too once it is rolled up."""

    __slots__ = ("_of_stream", "_rolled_up", "flow")

    def __init__(self, of_stream: Flow) -> None:
        self.flow = Flow()
        self._of_stream = of_stream
        self._rolled_up = _NONE

    def roll_up(self) -> None:
        """Add to the stream's flow what has come since the last time."""
        now = self.flow.counts
        self._of_stream.add(_less(now, self._rolled_up))
        self._rolled_up = now


class _Stream:
    """One stream: what went through it, and which part of that is told as the others'."""

    __slots__ = ("_missed", "_rated", "_seen", "busy", "flow", "is_told", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self.flow = Flow()
        self.is_told = False
        self.busy = 0.0
        """Bytes within `SELECT_S`, those of late; earlier ones count half as much each time."""
        self._missed = _NONE
        """What came while it was not told apart."""
        self._seen = _NONE
        """Its flow as it was last seen, while it is not told apart."""
        self._rated = 0

    @property
    def told(self) -> Counts:
        """What is told of it apart."""
        return _less(self.flow.counts, self._missed)

    def miss(self) -> Counts:
        """What has come since the last time, which the others are told to have."""
        now = self.flow.counts
        if now == self._seen:
            return _NONE
        new, self._seen = _less(now, self._seen), now
        self._missed = _sum(self._missed, new)
        return new

    def leave(self) -> Counts:
        """What is told of it, which is told apart no longer from now on."""
        self._seen = self.flow.counts
        return self.told

    def rate(self) -> None:
        """See how busy it is."""
        size = self.flow.in_bytes + self.flow.out_bytes
        self.busy = (self.busy + size - self._rated) / 2
        self._rated = size


def _less(one: Counts, other: Counts) -> Counts:
    return one[0] - other[0], one[1] - other[1], one[2] - other[2], one[3] - other[3]


def _sum(one: Counts, other: Counts) -> Counts:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2], one[3] + other[3]
