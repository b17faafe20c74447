"""Payloads of the frames that open and seal partitionlets and carry their producers, in msgpack.

They describe themselves, so that a catalog can be rebuilt from containers. Fields may be added at the end only.
"""

from collections.abc import Iterator, Sequence

import msgspec

from headrace.catalog.rows import PartitionletRow, TopicRow
from headrace.partitions.producer_state import Producers
from headrace.wire.primitives import Buffer


class Carried(msgspec.Struct, frozen=True, array_like=True):
    """A producer's state as seal and open frames carry it."""

    producer_id: int
    epoch: int
    batches: list[tuple[int, int, int, int]]
    torn: bool = False


class Seal(msgspec.Struct, frozen=True, array_like=True):
    """Payload of a seal frame: describes itself, so that a catalog can be rebuilt from containers."""

    topic_id: bytes
    partition: int
    first: int
    end: int
    epochs: list[tuple[int, int]]
    producers: list[Carried]
    resume: int = -1
    """Where the next partitionlet begins, if not at `end`; below it, records are cut, and `producers` know none."""
    home: tuple[int, str] | None = None
    """The home that the partition is settled for by this roll."""

    @property
    def next_first(self) -> int:
        """The first offset of the next partitionlet."""
        return self.end if self.resume < 0 else self.resume


class Open(msgspec.Struct, frozen=True, array_like=True):
    """One partitionlet that opens; an open frame's payload is a list of these.

    A frame that opens one partitionlet bears its id, so that its producers are found through the log's index. A frame
    for new topics opens many, bears the id 0, and carries no producers.
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

_opens = msgspec.msgpack.Decoder(list[Open])
_carried = msgspec.msgpack.Decoder(list[Carried])
_seals = msgspec.msgpack.Decoder(Seal)


def open_frames(opened: Sequence[tuple[TopicRow, PartitionletRow]]) -> Iterator[bytes]:
    """The payloads that open the partitionlets of new topics or partitions."""
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
    """What an open frame opens. Raises msgspec.DecodeError."""
    return _opens.decode(payload)


def read_producers(payload: Buffer) -> list[Carried]:
    """What a frame carries on. Raises msgspec.DecodeError."""
    return _carried.decode(payload)


def read_seal(payload: Buffer) -> Seal:
    """What a seal frame says. Raises msgspec.DecodeError."""
    return _seals.decode(payload)


def carried(producers: Producers) -> list[Carried]:
    """The producers' states, for a frame."""
    return [
        Carried(producer_id, producer.epoch, [(*batch,) for batch in producer.batches], producer.torn)
        for producer_id, producer in producers.items()
    ]
