"""The numbers that name things (DESIGN section 1), each a type of its own so that none passes for another."""

from typing import NamedTuple, NewType

NodeId = NewType("NodeId", int)
"""A storage node, and its Kafka broker id. Handed out by compare and set, never reused."""
ContainerId = NewType("ContainerId", int)
StreamNumber = NewType("StreamNumber", int)
"""A stream's number in its catalog, 1 to 2**23 - 1, never reused."""
PartitionletId = NewType("PartitionletId", int)
"""Never reused. The stream's number stands in the high bits, so that order by id is order by stream."""
Epoch = NewType("Epoch", int)
"""Of a container: rises at every change of primary."""
LeaderEpoch = NewType("LeaderEpoch", int)
"""Of a partition, as Kafka clients see it."""
Position = NewType("Position", int)
"""A byte position in a container's log."""
Offset = NewType("Offset", int)
"""Of a record in a partition, as in Kafka."""
Millis = NewType("Millis", int)
"""Milliseconds since 1970, UTC."""


class Home(NamedTuple):
    """The home epoch of a topic: which cluster accepts writes, and how often that was moved. The highest wins."""

    counter: int
    cluster: str

    def given_to(self, cluster: str) -> "Home":
        """The next home, which this one gives away; its counter is odd.

        A cluster that has not heard that a home was given to it may take one by force: the two must not be the same,
        since they begin at different offsets.
        """
        return Home(self.counter + 1 + self.counter % 2, cluster)

    def taken_by(self, cluster: str) -> "Home":
        """The next home, which that cluster takes by force; its counter is even."""
        return Home(self.counter + 2 - self.counter % 2, cluster)


PARTITIONLET_BITS = 40


def partitionlet_id(*, stream: StreamNumber, serial: int) -> PartitionletId:
    """The id of the `serial`-th partitionlet ever made in `stream`; ids of one stream are neighbours."""
    return PartitionletId(stream << PARTITIONLET_BITS | serial)


def serial_of(partitionlet: PartitionletId) -> int:
    """Which of its stream's partitionlets it is."""
    return partitionlet & ((1 << PARTITIONLET_BITS) - 1)


def stream_of(partitionlet: PartitionletId) -> StreamNumber:
    """The stream that a partitionlet belongs to."""
    return StreamNumber(partitionlet >> PARTITIONLET_BITS)
