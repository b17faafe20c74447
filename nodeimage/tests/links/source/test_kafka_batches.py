"""Which batches of a Kafka fetch are copied, and which offsets gap batches cover."""

import struct

import pytest

from headrace.base.errors import CorruptBatch
from headrace.links.source.kafka_batches import copied_runs
from headrace.wire.batch import CONTROL_BIT, TRANSACTIONAL_BIT, build_batch, iter_batches, iter_records, read_batch

ABORT, COMMIT = 0, 1


def data(offset: int, *values: bytes, producer: int = -1, transactional: bool = False) -> bytes:
    return bytes(
        build_batch(
            [(1_000 + index, None, value, []) for index, value in enumerate(values)],
            base_offset=offset,
            producer_id=producer,
            producer_epoch=0 if producer >= 0 else -1,
            base_sequence=0 if producer >= 0 else -1,
            attributes=TRANSACTIONAL_BIT if transactional else 0,
        )
    )


def marker(offset: int, kind: int, producer: int) -> bytes:
    return bytes(
        build_batch(
            [(1_000, struct.pack(">hh", 0, kind), b"", [])],
            base_offset=offset,
            producer_id=producer,
            producer_epoch=0,
            attributes=CONTROL_BIT | TRANSACTIONAL_BIT,
        )
    )


def spans(runs: list[memoryview]) -> list[tuple[int, int, int]]:
    """First offset, last offset, and records of each batch; fails for a corrupt one."""
    found = []
    for run in runs:
        for header, batch in iter_batches(run):
            read_batch(batch, from_client=False)
            count = len(list(iter_records(batch)))
            assert count == (0 if header.control else header.record_count)
            found.append((header.base_offset, header.base_offset + header.last_offset_delta, count))
    return found


def test_what_nobody_may_see_becomes_one_batch_without_records() -> None:
    came = data(0, b"a", b"b") + data(2, b"x", producer=7, transactional=True) + marker(3, ABORT, 7) + data(4, b"c")
    runs = copied_runs([memoryview(came)], [(7, 2)])
    assert spans(runs) == [(0, 1, 2), (2, 3, 0), (4, 4, 1)]
    assert b"".join(bytes(run) for run in (runs[0], runs[2])) == data(0, b"a", b"b") + data(4, b"c")


def test_markers_at_the_end_and_across_views_are_counted_as_read() -> None:
    views = [data(0, b"a", producer=7, transactional=True) + marker(1, COMMIT, 7), marker(2, COMMIT, 8)]
    assert spans(copied_runs(list(map(memoryview, views)), [])) == [(0, 0, 1), (1, 2, 0)]


def test_a_batch_that_stands_for_others_does_not_begin_below_what_was_asked_for() -> None:
    aborted = data(3, b"x", b"y", b"z", producer=7, transactional=True) + marker(6, ABORT, 7)
    assert spans(copied_runs([memoryview(aborted)], [(7, 3)], since=5)) == [(5, 6, 0)]
    assert spans(copied_runs([memoryview(marker(3, COMMIT, 7) + data(9, b"a"))], [], since=9)) == [(9, 9, 1)]


def test_very_many_offsets_are_several_batches() -> None:
    views = [memoryview(marker(at << 30, COMMIT, 7)) for at in range(4)]
    many = 1 << 30
    assert spans(copied_runs(views, [])) == [(at * many, at * many, 0) for at in range(4)]
    views = [memoryview(marker(at, COMMIT, 7)) for at in (0, many - 1, many, 1 << 61)]
    assert spans(copied_runs(views, [])) == [(0, many - 1, 0), (many, many, 0), (1 << 61, 1 << 61, 0)]


def test_what_is_damaged_is_told() -> None:
    came = bytearray(data(0, b"a") + data(1, b"b"))
    came[-1] ^= 1
    (run,) = copied_runs([memoryview(came)], [])
    with pytest.raises(CorruptBatch):
        spans([run])
