"""Types of ids, positions and epochs, all distinct so that none can be mistaken for another."""

from typing import Final, NamedTuple, NewType
from zlib import crc32

NodeId = NewType("NodeId", int)
"""The id of a storage node, which is also its Kafka broker id. Assigned by compare-and-set, never reused."""
ContainerId = NewType("ContainerId", int)
StreamNumber = NewType("StreamNumber", int)
"""A stream's number in its catalog, 1 to 2**23 - 1. From feature level 1 on, a deleted stream's number is reused."""
PartitionletId = NewType("PartitionletId", int)
"""The id of a partitionlet, never reused, even if its stream's number is. The high bits are the stream's number, so
that order by id is order by stream."""
Epoch = NewType("Epoch", int)
"""The epoch of a container, which rises with every change of leader."""
LeaderEpoch = NewType("LeaderEpoch", int)
"""The leader epoch of a partition, as Kafka clients see it."""
Position = NewType("Position", int)
"""A byte position in a container's log."""
Offset = NewType("Offset", int)
"""The offset of a record in a partition, as in Kafka."""
Millis = NewType("Millis", int)
"""Milliseconds since 1970, UTC."""


_GIVEN_BITS: Final = 20
_TAKER_BITS: Final = 20
HOMES: Final = 1 << 62
"""The bound below which the home counters received from other clusters must lie, so that a next one always exists."""


class Home(NamedTuple):
    """The home epoch of a topic: the cluster that accepts writes, and a counter of moves. The highest wins.

    The counter consists of the number of times that the home was taken by force (23 bits), the cluster that took it
    last (20 bits of a hash), and the number of times that it was given away since (20 bits). Two clusters without
    contact may each take a home and give it to the same third cluster, which may also take one itself. These must all
    be different homes, even if one cluster has all of them, since each begins at offsets of its own.
    """

    counter: int
    cluster: str

    def given_to(self, cluster: str) -> "Home":
        """The next home, after this one was given to `cluster`."""
        return Home(self.counter + 1, cluster)

    def taken_by(self, cluster: str) -> "Home":
        """The next home, after `cluster` took it by force: higher than any home that follows from giving this one away,
        of which that cluster may not have heard."""
        taken = (self.counter >> _GIVEN_BITS + _TAKER_BITS) + 1
        taker = crc32(cluster.encode()) % (1 << _TAKER_BITS)
        return Home((taken << _TAKER_BITS | taker) << _GIVEN_BITS, cluster)


PARTITIONLET_BITS: Final = 40


def partitionlet_id(*, stream: StreamNumber, serial: int) -> PartitionletId:
    """The id of the `serial`-th partitionlet ever created in `stream`; the ids of one stream are adjacent."""
    return PartitionletId(stream << PARTITIONLET_BITS | serial)


def serial_of(partitionlet: PartitionletId) -> int:
    """The serial number of a partitionlet within its stream."""
    return partitionlet & ((1 << PARTITIONLET_BITS) - 1)


def stream_of(partitionlet: PartitionletId) -> StreamNumber:
    """The stream that a partitionlet belongs to."""
    return StreamNumber(partitionlet >> PARTITIONLET_BITS)
