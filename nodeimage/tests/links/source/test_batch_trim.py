"""The end of a batch in new batches: the same records at the same offsets, without the producer's sequence."""

import pytest

from headrace.links.source import batch_trim
from headrace.links.source.batch_trim import records_from
from headrace.wire.batch import APPEND_TIME_BIT, build_batch, iter_batches, iter_records, read_batch

RECORDS = [(1000 + index, b"k%d" % index, b"v%d" % index, [("h", b"x")]) for index in range(5)]


@pytest.mark.parametrize("offset", [100, 102, 104])
@pytest.mark.parametrize("compression", [0, 1])
def test_records_from_an_offset_on_are_as_they_were(offset: int, compression: int) -> None:
    batch = build_batch(
        RECORDS, base_offset=100, compression=compression, producer_id=7, producer_epoch=1, base_sequence=40
    )
    (made,) = records_from(read_batch(batch), memoryview(batch), offset)
    assert list(iter_records(made)) == [each for each in iter_records(batch) if each.offset >= offset]
    header = read_batch(made)
    assert (header.base_offset, header.compression) == (offset, compression)
    assert header.producer_id == -1


def test_of_a_batch_that_ends_before_it_nothing_is_left() -> None:
    batch = build_batch(RECORDS, base_offset=100)
    assert records_from(read_batch(batch), memoryview(batch), 105) == []


def test_a_batch_with_the_brokers_time_keeps_it() -> None:
    batch = build_batch(RECORDS, base_offset=100, attributes=APPEND_TIME_BIT)
    (made,) = records_from(read_batch(batch, from_client=False), memoryview(batch), 103)
    ((header, _),) = iter_batches(made)
    assert header.append_time
    assert [each.timestamp for each in iter_records(made)] == [each.timestamp for each in iter_records(batch)][3:]


def test_offsets_that_the_batch_lacks_are_lacking_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a compacted topic: records on both sides of a gap get separate batches."""
    batch = build_batch(RECORDS, base_offset=100)
    left = [each for each in iter_records(batch) if each.offset != 102]
    monkeypatch.setattr(batch_trim, "batch_records", lambda *_: iter(left))
    made = records_from(read_batch(batch), memoryview(batch), 101)
    assert [[each.offset for each in iter_records(view)] for view in made] == [[101], [103, 104]]
