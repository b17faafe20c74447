"""Whether a chunk's producer state of an open partitionlet is also known from later frames, so that the chunk may be
dropped. [blocking]

What the chunk's frames record about idempotent producers must be recorded in committed frames after it: in closed
chunks, or in the control frame by which the container's leader carries the state on when its own chunk is dropped.
Chunk boundaries differ between replicas, so the state itself is compared. Frames that may still be truncated do not
count.
"""

from collections.abc import Iterator
from typing import NamedTuple

from headrace.base.ids import PartitionletId
from headrace.log.container_log import Chunk
from headrace.log.frames import HEADER_BYTES, Frame, FrameType
from headrace.partitions.producer_state import BATCHES_KEPT, MAX_KNOWN, KnownBatch, to_forget
from headrace.partitions.rolls.frames import Carried, read_open, read_producers
from headrace.storage.chunk_inventory import Held


class _Batch(NamedTuple):
    """One batch of one producer, with the producer's epoch at that time."""

    producer: int
    epoch: int
    batch: KnownBatch


def is_carried_on(held: Held, chunk: Chunk, partitionlet: PartitionletId) -> bool:
    """Whether dropping a closed chunk would lose nothing of an open partitionlet's producer state."""
    assert chunk.end is not None
    if not any(part.producers(partitionlet) or part.controls(partitionlet) for part in chunk.body.parts):
        return True
    known = _newest(_batches(held, partitionlet, 0))
    behind = _newest(_batches(held, partitionlet, chunk.end))
    forgotten: list[int] = []
    if held.led is None or len(known) > MAX_KNOWN:  # the leader may know fewer producers, and carries on only those
        forgotten = to_forget({producer: batches[-1].base_offset for producer, (_, batches) in known.items()})
    return all(behind.get(producer) == known[producer] for producer in known.keys() - set(forgotten))


def is_sealed_in(chunk: Chunk, partitionlet: PartitionletId) -> bool:
    """Whether the frame that seals a partitionlet lies in a chunk."""
    return any(control.type == FrameType.SEAL for part in chunk.body.parts for control in part.controls(partitionlet))


def _batches(held: Held, partitionlet: PartitionletId, behind: int) -> Iterator[_Batch]:
    """The batches that frames at or after a position record."""
    for chunk in held.log.closed_chunks():
        if chunk.start >= behind:
            for part in chunk.body.parts:
                for producer, epoch, *batch in part.producers(partitionlet):
                    yield _Batch(producer, epoch, KnownBatch(*batch))
    for frame in held.log.controls_of(partitionlet):
        if frame.position >= behind and frame.position + HEADER_BYTES + len(frame.payload) <= held.committed:
            for entry in _entries(frame):
                for known in entry.batches:
                    yield _Batch(entry.producer_id, entry.epoch, KnownBatch(*known))


def _entries(frame: Frame) -> list[Carried]:
    match frame.type:
        case FrameType.OPEN:
            (opened,) = read_open(frame.payload)
            return opened.producers
        case FrameType.PRODUCERS:
            return read_producers(frame.payload)
        case _:
            return []


def _newest(batches: Iterator[_Batch]) -> dict[int, tuple[int, list[KnownBatch]]]:
    """By producer, its newest epoch and the last batches in it."""
    found: dict[int, tuple[int, dict[int, KnownBatch]]] = {}
    for producer, epoch, batch in batches:
        known = found.get(producer)
        if known is None or known[0] < epoch:
            known = found[producer] = (epoch, {})
        if known[0] == epoch:
            known[1][batch.base_offset] = batch
    return {
        producer: (epoch, [known[base] for base in sorted(known)[-BATCHES_KEPT:]])
        for producer, (epoch, known) in found.items()
    }
