"""A chunk may be dropped once all producer state that it has of an open partitionlet is also known from later
frames."""

from types import SimpleNamespace
from typing import Any

import msgspec

from headrace.base.ids import PartitionletId
from headrace.log.frames import HEADER_BYTES, FrameType
from headrace.log.index import ProducerBatch
from headrace.partitions.rolls.frames import Carried
from headrace.storage.producer_retention import is_carried_on, is_sealed_in

ID = PartitionletId(9)
LED: Any = object()


def batch(producer: int, base: int, *, epoch: int = 1) -> ProducerBatch:
    return ProducerBatch(producer, epoch, base, base, base, 5000)


def chunk(start: int, *batches: ProducerBatch, controls: tuple[int, ...] = ()) -> Any:
    part = SimpleNamespace(
        producers=lambda partitionlet: batches if partitionlet == ID else (),
        controls=lambda partitionlet: [SimpleNamespace(type=kind) for kind in controls] if partitionlet == ID else [],
    )
    return SimpleNamespace(start=start, end=start + 100, body=SimpleNamespace(parts=[part]))


def carried(position: int, *batches: ProducerBatch) -> Any:
    by_producer: dict[int, Carried] = {}
    for each in batches:
        known = by_producer.setdefault(each.producer, Carried(each.producer, each.epoch, []))
        known.batches.append((each.base_sequence, each.last_sequence, each.base_offset, each.timestamp))
    payload = msgspec.msgpack.encode(list(by_producer.values()))
    return SimpleNamespace(type=FrameType.PRODUCERS, position=position, payload=payload)


def held(*chunks: Any, frames: tuple[Any, ...] = (), committed: int = 10_000, led: Any = LED) -> Any:
    log = SimpleNamespace(closed_chunks=lambda: list(chunks), controls_of=lambda partitionlet: list(frames))
    return SimpleNamespace(log=log, committed=committed, led=led)


def test_a_chunk_that_knows_no_producer_may_go() -> None:
    first = chunk(0)
    assert is_carried_on(held(first), first, ID)
    other = chunk(0, batch(7, 5))
    assert is_carried_on(held(other), other, PartitionletId(10)), "of another partitionlet"


def test_a_producer_that_only_the_chunk_knows_keeps_it() -> None:
    first, second = chunk(0, batch(7, 5)), chunk(100, batch(8, 50))
    assert not is_carried_on(held(first, second), first, ID)
    assert is_carried_on(held(first, second, frames=(carried(150, batch(7, 5)),)), first, ID)


def test_all_of_its_last_five_batches_must_be_known_behind() -> None:
    six = [batch(7, base) for base in range(6)]
    first, second = chunk(0, *six[:4]), chunk(100, *six[4:])
    assert not is_carried_on(held(first, second), first, ID)
    assert is_carried_on(held(first, second, frames=(carried(150, *six[1:4]),)), first, ID), "the first is forgotten"
    assert not is_carried_on(held(first, second, frames=(carried(150, *six[2:4]),)), first, ID)


def test_of_a_producer_only_its_newest_epoch_counts() -> None:
    first, second = chunk(0, batch(7, 5, epoch=1)), chunk(100, batch(7, 50, epoch=2))
    assert is_carried_on(held(first, second), first, ID)


def test_what_may_yet_be_cut_does_not_count() -> None:
    first = chunk(0, batch(7, 5))
    frame = carried(150, batch(7, 5))
    end = 150 + HEADER_BYTES + len(frame.payload)
    assert not is_carried_on(held(first, frames=(frame,), committed=end - 1), first, ID)
    assert is_carried_on(held(first, frames=(frame,), committed=end), first, ID)
    assert not is_carried_on(held(first, frames=(carried(50, batch(7, 5)),)), first, ID), "it lies in the chunk itself"


def test_a_seal_is_found_in_its_chunk() -> None:
    assert is_sealed_in(chunk(0, controls=(FrameType.OPEN, FrameType.SEAL)), ID)
    assert not is_sealed_in(chunk(0, controls=(FrameType.OPEN,)), ID)
    assert not is_sealed_in(chunk(0, controls=(FrameType.SEAL,)), PartitionletId(10))
