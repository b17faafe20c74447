"""What clients write and read, by stream, and by topic where a node is told to. Pure.

A batch adds to one `Flow`, which its topic holds: that of its stream, or its own. Streams and topics beyond the limits
share those of others, so that nobody who makes a million of them fills the memory of Prometheus.
"""

from collections.abc import Iterator
from typing import Final

MOST_STREAMS: Final = 100
OTHERS: Final = "others"
"""Stands for the streams beyond the limit; no stream's path is like that."""
MOST_COUNTED: Final = 10_000
"""Of streams and topics that have no series; beyond that they are not told apart."""


class Flow:
    """Batches of records that went one way or the other since the start."""

    __slots__ = ("in_bytes", "in_records", "out_bytes", "out_records")

    def __init__(self) -> None:
        self.in_bytes = self.in_records = self.out_bytes = self.out_records = 0

    def __iadd__(self, other: "Flow") -> "Flow":
        self.in_bytes += other.in_bytes
        self.in_records += other.in_records
        self.out_bytes += other.out_bytes
        self.out_records += other.out_records
        return self


class Traffic:
    """Of one node."""

    def __init__(self, *, most_topics: int = 0, most_streams: int = MOST_STREAMS) -> None:
        """`most_topics`: that have a flow of their own; 0: none has."""
        self._most_streams = most_streams
        self._most_topics = most_topics
        self._streams: dict[str, Flow] = {}
        self._others = Flow()
        self._topics: dict[tuple[str, str], Flow] = {}
        self._streams_dropped: set[str] = set()
        self._topics_dropped: set[tuple[str, str]] = set()

    def of(self, stream: str, topic: str) -> Flow:
        """Where the batches of a topic are added."""
        if self._most_topics:
            key = (stream, topic)
            flow = self._topics.get(key)
            if flow is None and len(self._topics) < self._most_topics:
                flow = self._topics[key] = Flow()
            if flow is not None:
                return flow
            if len(self._topics_dropped) < MOST_COUNTED:
                self._topics_dropped.add(key)
        return self._of_stream(stream)

    @property
    def dropped(self) -> dict[str, int]:
        """How many streams and topics have no series of their own."""
        return {"streams": len(self._streams_dropped), "topics": len(self._topics_dropped)}

    def sums(self) -> "StreamSums":
        """Each stream's, but for what `topics` tells, which whoever goes through that adds."""
        dropped = bool(self._streams_dropped)
        streams = {stream: _copy(flow) for stream, flow in self._streams.items()}
        return StreamSums(streams, _copy(self._others), most=self._most_streams, are_others=dropped)

    def by_stream(self) -> "StreamSums":
        """Each stream's, all in one go."""
        sums = self.sums()
        for stream, _, flow in self.topics():
            sums.add(stream, flow)
        return sums

    def topics(self) -> Iterator[tuple[str, str, Flow]]:
        """Those that have a flow of their own."""
        for (stream, topic), flow in list(self._topics.items()):
            yield stream, topic, flow

    def _of_stream(self, stream: str) -> Flow:
        flow = self._streams.get(stream)
        if flow is None:
            if len(self._streams) >= self._most_streams:
                if len(self._streams_dropped) < MOST_COUNTED:
                    self._streams_dropped.add(stream)
                return self._others
            flow = self._streams[stream] = Flow()
        return flow


class StreamSums:
    """Traffic by stream."""

    def __init__(self, streams: dict[str, Flow], others: Flow, *, most: int, are_others: bool) -> None:
        self._streams = streams
        self._others = others
        self._most = most
        self._are_others = are_others

    def add(self, stream: str, flow: Flow) -> None:
        """That of a topic in it."""
        if stream not in self._streams and len(self._streams) < self._most:
            self._streams[stream] = Flow()
        found = self._streams.get(stream, self._others)
        found += flow

    def __iter__(self) -> Iterator[tuple[str, Flow]]:
        yield from self._streams.items()
        if self._are_others or self._others.in_bytes or self._others.out_bytes:
            yield OTHERS, self._others


def _copy(flow: Flow) -> Flow:
    copy = Flow()
    copy += flow
    return copy
