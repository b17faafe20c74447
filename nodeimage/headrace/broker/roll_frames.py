"""Payloads of the frames that open and seal partitionlets and carry their producers, in msgpack.

They describe themselves, so that a catalog can be rebuilt from containers. Fields may be added at the end only.
"""

import msgspec

from headrace.container.producers import Producers


class Carried(msgspec.Struct, frozen=True, array_like=True):
    """A producer's state as seal and open frames carry it."""

    producer_id: int
    epoch: int
    batches: list[tuple[int, int, int, int]]


class Seal(msgspec.Struct, frozen=True, array_like=True):
    """Payload of a seal frame: describes itself, so that a catalog can be rebuilt from containers."""

    topic_id: bytes
    partition: int
    first: int
    end: int
    epochs: list[tuple[int, int]]
    producers: list[Carried]


class Open(msgspec.Struct, frozen=True, array_like=True):
    """Payload of an open frame."""

    topic_id: bytes
    partition: int
    first: int
    leader_epoch: int
    container_epoch: int
    producers: list[Carried]


def carried(producers: Producers) -> list[Carried]:
    """The producers' states, for a frame."""
    return [
        Carried(producer_id, producer.epoch, [(*batch,) for batch in producer.batches])
        for producer_id, producer in producers.items()
    ]
