"""The queries that an index answers, whether it is in memory (table.py) or in a mapped file (segment.py).

A part of an index covers a range of one chunk. For each partitionlet with frames in that range, it has a summary, the
places of its frames, its epochs, its producers' last batches and the places of its control frames. The parts of a chunk
are in position order, and a partitionlet's offsets rise from part to part.

Places are counted from the chunk's first frame, not from the file's first byte.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol

NO_PRODUCER: Final = -1
"""The producer id of batches that no idempotent producer wrote. Ids below it are tokens (partitions/producer_state.py),
whose sequence numbers count batches, not records."""
REMEMBERED_BATCHES: Final = 5
"""Batches remembered per producer, as in Kafka: a producer may have five requests in flight, so a duplicate is one of
its last five batches."""
_MAX_SEQUENCE: Final = (1 << 31) - 1


class Place(NamedTuple):
    """A stretch of a chunk that holds frames of one partitionlet in offset order and nothing else."""

    first: int
    last: int
    max_timestamp: int
    at: int
    length: int


class Summary(NamedTuple):
    """A partitionlet within one part or chunk. `first` and `last` are -1 if it has control frames only.

    `length` counts the bytes of its data frames, frame headers included.
    """

    partitionlet: int
    first: int
    last: int
    max_timestamp: int
    length: int


class ProducerBatch(NamedTuple):
    """One batch of an idempotent producer, by sequence numbers (inclusive) and base offset."""

    producer: int
    epoch: int
    base_sequence: int
    last_sequence: int
    base_offset: int
    timestamp: int


class ControlPlace(NamedTuple):
    """The place, length and type of a control frame."""

    at: int
    length: int
    type: int


class Part(Protocol):
    """An index over a range of a chunk, from place `start` to `end`, which are frame boundaries."""

    start: int
    end: int

    def summary(self, partitionlet: int, /) -> Summary | None:
        """The summary of a partitionlet; None if it has no frame in this part."""

    def summaries(self) -> Iterator[Summary]:
        """The summaries of all partitionlets, by id."""

    def held_of(self, partitionlets: Collection[int], /) -> list[int]:
        """Those of `partitionlets` that have frames in this part."""

    def newest(self) -> Iterable[tuple[int, int, int]]:
        """The (partitionlet, last offset, largest timestamp) of all partitionlets with data frames in this part."""

    def places(self, partitionlet: int, /, offset: int) -> Iterator[Place]:
        """The places of a partitionlet's data frames, from the one that holds `offset` (or the next one) on."""

    def epochs(self, partitionlet: int, /) -> Sequence[tuple[int, int]]:
        """The (epoch, first offset in the epoch) of a partitionlet, ascending."""

    def producers(self, partitionlet: int, /) -> Sequence[ProducerBatch]:
        """The last batches, up to five, of each producer of a partitionlet; those of one producer in offset order."""

    def controls(self, partitionlet: int, /) -> Sequence[ControlPlace]:
        """The control frames of a partitionlet, in position order."""

    def all_controls(self) -> list[tuple[int, int]]:
        """The (place, length) of all control frames, in position order."""

    def data_bytes(self) -> int:
        """Bytes of all data frames."""

    def known_bytes(self) -> int:
        """Bytes of all frames in this part of the index; the rest of `end - start` is gap frames."""

    def has_one_partitionlet(self) -> bool:
        """Whether all data frames belong to one partitionlet."""


def last_sequence(base: int, delta: int) -> int:
    """The sequence number `delta` after `base`; sequence numbers wrap to 0 after 2**31 - 1, as in Kafka."""
    return base + delta if base <= _MAX_SEQUENCE - delta else delta - (_MAX_SEQUENCE - base) - 1
