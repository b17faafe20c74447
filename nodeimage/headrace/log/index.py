"""What an index answers, whether it stands in memory (table.py) or in a mapped file (segment.py).

A part of an index covers a range of one chunk. Of each partitionlet with frames there it knows a summary, the places
of its frames, its epochs, its producers' last batches and the places of its control frames. Parts of a chunk follow
each other in position order, and so do a partitionlet's offsets from part to part.

Places are counted from the chunk's first frame, not from the file's first byte.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol

NO_PRODUCER: Final = -1
"""Ids below it are tokens, whose sequences number batches, not records."""
REMEMBERED_BATCHES: Final = 5
"""As Kafka: a producer may have five requests in flight, so a duplicate is one of its last five batches."""
_MAX_SEQUENCE: Final = (1 << 31) - 1


class Place(NamedTuple):
    """A stretch of a chunk that holds frames of one partitionlet in offset order and nothing else."""

    first: int
    last: int
    max_timestamp: int
    at: int
    length: int


class Summary(NamedTuple):
    """A partitionlet within one part or chunk. `first` and `last` are -1 where it has control frames only.

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
    """Where a control frame lies."""

    at: int
    length: int
    type: int


class Part(Protocol):
    """An index over a range of a chunk, from place `start` to `end`; both lie between frames."""

    start: int
    end: int

    def summary(self, partitionlet: int, /) -> Summary | None:
        """None: no frame of the partitionlet lies here."""

    def summaries(self) -> Iterator[Summary]:
        """All partitionlets, by id."""

    def held_of(self, partitionlets: Collection[int], /) -> list[int]:
        """Those of `partitionlets` that have frames here."""

    def newest(self) -> Iterable[tuple[int, int, int]]:
        """(partitionlet, last offset, largest timestamp) of all that have data frames here."""

    def places(self, partitionlet: int, /, offset: int) -> Iterator[Place]:
        """The places of its data frames, from the one that holds `offset` (or the next one behind it) on."""

    def epochs(self, partitionlet: int, /) -> Sequence[tuple[int, int]]:
        """(epoch, first offset in it), rising."""

    def producers(self, partitionlet: int, /) -> Sequence[ProducerBatch]:
        """At most the last five batches of each producer, a producer's in offset order."""

    def controls(self, partitionlet: int, /) -> Sequence[ControlPlace]:
        """Its control frames, in position order."""

    def all_controls(self) -> list[tuple[int, int]]:
        """(place, length) of every control frame, in position order."""

    def data_bytes(self) -> int:
        """Bytes of all data frames."""

    def known_bytes(self) -> int:
        """Bytes of all frames that it knows; what lacks to `end - start` is gap frames."""

    def has_one_partitionlet(self) -> bool:
        """Whether all data frames belong to one partitionlet."""


def last_sequence(base: int, delta: int) -> int:
    """The sequence number `delta` behind `base`; sequences wrap to 0 behind 2**31 - 1, as Kafka's do."""
    return base + delta if base <= _MAX_SEQUENCE - delta else delta - (_MAX_SEQUENCE - base) - 1
