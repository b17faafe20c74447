"""Payloads of the frames that open and seal partitionlets and carry their producers, in msgpack.

The payloads are self-describing, so that a catalog can be rebuilt from containers. New fields may be added only at the
end.
"""

from collections.abc import Iterator, Sequence

import msgspec

from headrace.catalog.rows import PartitionletRow, TopicRow
from headrace.partitions.producer_state import Producers
from headrace.wire.primitives import Buffer


class Carried(msgspec.Struct, frozen=True, array_like=True):
    """A producer's state in seal, open and producers frames."""

    producer_id: int
    epoch: int
    batches: list[tuple[int, int, int, int]]
    torn: bool = False


class Seal(msgspec.Struct, frozen=True, array_like=True):
    """Payload of a seal frame, which ends a partitionlet at offset `end`."""

    topic_id: bytes
    partition: int
    first: int
    end: int
    epochs: list[tuple[int, int]]
    producers: list[Carried]
    resume: int = -1
    """The offset at which the next partitionlet begins; -1: at `end`. If it is below `end`, the records from there on
    are cut, and `producers` does not contain them."""
    home: tuple[int, str] | None = None
    """The home that this roll settles the partition for."""

    @property
    def next_first(self) -> int:
        """The first offset of the next partitionlet."""
        return self.end if self.resume < 0 else self.resume


class Open(msgspec.Struct, frozen=True, array_like=True):
    """One partitionlet that opens; an open frame's payload is a list of these.

    A frame that opens one partitionlet has that partitionlet's id, so that the log's index leads to its producers. A
    frame for new topics opens many, has the id 0, and carries no producers.
    """

    partitionlet: int
    stream: str
    topic: str
    topic_id: bytes
    partition: int
    first: int
    leader_epoch: int
    container_epoch: int
    producers: list[Carried] = []
    home: tuple[int, str] | None = None


OPENED_AT_ONCE = 1000
"""Limit of partitionlets that one open frame opens."""

_opens = msgspec.msgpack.Decoder(list[Open])
_carried = msgspec.msgpack.Decoder(list[Carried])
_seals = msgspec.msgpack.Decoder(Seal)


def open_frames(opened: Sequence[tuple[TopicRow, PartitionletRow]]) -> Iterator[bytes]:
    """The payloads of the open frames for partitionlets of new topics or partitions."""
    for index in range(0, len(opened), OPENED_AT_ONCE):
        yield msgspec.msgpack.encode(
            [
                Open(
                    partitionlet=row.id,
                    stream=topic.stream,
                    topic=topic.name,
                    topic_id=topic.topic_id,
                    partition=row.partition,
                    first=row.first,
                    leader_epoch=row.leader_epoch,
                    container_epoch=row.container_epoch,
                )
                for topic, row in opened[index : index + OPENED_AT_ONCE]
            ]
        )


def read_open(payload: Buffer) -> list[Open]:
    """Decode an open frame's payload. Raises msgspec.DecodeError."""
    return _opens.decode(payload)


def read_producers(payload: Buffer) -> list[Carried]:
    """Decode a producers frame's payload. Raises msgspec.DecodeError."""
    return _carried.decode(payload)


def read_seal(payload: Buffer) -> Seal:
    """Decode a seal frame's payload. Raises msgspec.DecodeError."""
    return _seals.decode(payload)


def carried(producers: Producers) -> list[Carried]:
    """The states of a partition's producers, for a frame's payload."""
    return [
        Carried(producer_id, producer.epoch, [(*batch,) for batch in producer.batches], producer.torn)
        for producer_id, producer in producers.items()
    ]
