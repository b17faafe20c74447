"""The numbers that name things (DESIGN section 1), each a type of its own so that none passes for another."""

from typing import Final, NamedTuple, NewType
from zlib import crc32

NodeId = NewType("NodeId", int)
"""A storage node, and its Kafka broker id. Handed out by compare and set, never reused."""
ContainerId = NewType("ContainerId", int)
StreamNumber = NewType("StreamNumber", int)
"""A stream's number in its catalog, 1 to 2**23 - 1, never reused."""
PartitionletId = NewType("PartitionletId", int)
"""Never reused. The stream's number stands in the high bits, so that order by id is order by stream."""
Epoch = NewType("Epoch", int)
"""Of a container: rises at every change of leader."""
LeaderEpoch = NewType("LeaderEpoch", int)
"""Of a partition, as Kafka clients see it."""
Position = NewType("Position", int)
"""A byte position in a container's log."""
Offset = NewType("Offset", int)
"""Of a record in a partition, as in Kafka."""
Millis = NewType("Millis", int)
"""Milliseconds since 1970, UTC."""


_GIVEN_BITS: Final = 20
_TAKER_BITS: Final = 20
HOMES: Final = 1 << 62
"""Counters of homes that others tell lie below: so that there is always a next one."""


class Home(NamedTuple):
    """The home epoch of a topic: which cluster accepts writes, and how often that was moved. The highest wins.

    The counter is of how often the home was taken by force (23 bits), who took it last (20 bits of a hash), and how
    often it was given away since (20 bits). Two clusters that do not hear of each other may each take a home, and give
    it to the same third one, which may take one itself: no two of these are the same home, though one cluster may have
    all of them, since each begins at offsets of its own.
    """

    counter: int
    cluster: str

    def given_to(self, cluster: str) -> "Home":
        """The next home, which this one gives away."""
        return Home(self.counter + 1, cluster)

    def taken_by(self, cluster: str) -> "Home":
        """The next home, which that cluster takes by force: higher than any that this one has given away unheard."""
        taken = (self.counter >> _GIVEN_BITS + _TAKER_BITS) + 1
        taker = crc32(cluster.encode()) % (1 << _TAKER_BITS)
        return Home((taken << _TAKER_BITS | taker) << _GIVEN_BITS, cluster)


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
