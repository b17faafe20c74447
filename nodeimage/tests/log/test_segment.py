"""A segment gives the same answers as the table from which it was made."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import CorruptLog
from headrace.log.index import Place, Summary
from headrace.log.segment import BLOCK_BYTES, SEGMENT_HEAD_BYTES, Segment, encode_table
from headrace.log.table import Table

PARTITIONLETS = [-5, 0, 1, 2, 3 << 40, (3 << 40) + 1]


@st.composite
def tables(draw: st.DrawFn) -> Table:
    """A table of data and control frames, filled as by appends."""
    table = Table(draw(st.integers(0, 1 << 27)))
    place, epoch = table.start, 1
    offsets = dict.fromkeys(PARTITIONLETS, 0)
    for _ in range(draw(st.integers(0, 40))):
        partitionlet = draw(st.sampled_from(PARTITIONLETS))
        length = draw(st.sampled_from([120, 5000, 70_000, 200_000]))
        if draw(st.integers(0, 5)) == 0:
            table.add_control(partitionlet=partitionlet, place=place, length=length, type=draw(st.integers(2, 7)))
        else:
            epoch += draw(st.sampled_from([0, 0, 0, 1]))
            first = offsets[partitionlet] + draw(st.sampled_from([0, 0, 7]))
            last = first + draw(st.integers(0, 9))
            producer = draw(st.sampled_from([-1, -9, 4, 5]))
            sequence = draw(st.sampled_from([0, 17, (1 << 31) - 3])) if producer != -1 else 0xFFFFFFFF
            table.add_batch(
                partitionlet,
                first,
                last,
                draw(st.integers(-1, 1000)),
                place,
                length,
                epoch,
                producer,
                (2 << 32 if producer != -1 else 0xFFFF << 32) | sequence,
            )
            offsets[partitionlet] = last + 1
        place += length
    return table


def joined(places: list[Place]) -> list[Place]:
    """The places with adjacent ones joined, as the format requires."""
    found: list[Place] = []
    for place in places:
        before = found[-1] if found else None
        if before and before.at + before.length == place.at and before.length + place.length <= BLOCK_BYTES:
            found[-1] = Place(
                before.first,
                place.last,
                max(before.max_timestamp, place.max_timestamp),
                before.at,
                before.length + place.length,
            )
        else:
            found.append(place)
    return found


@given(tables(), st.sets(st.sampled_from([*PARTITIONLETS, 77])))
def test_what_a_part_holds_is_told_without_its_other_entries(table: Table, wanted: set[int]) -> None:
    for part in (table, Segment(memoryview(b"".join(encode_table(table))), source="test")):
        summaries = list(part.summaries())
        assert {*part.held_of(wanted)} == wanted & {each.partitionlet for each in summaries}
        assert {*part.newest()} == {
            (each.partitionlet, each.last, each.max_timestamp) for each in summaries if each.length
        }


def test_ids_are_looked_up_before_a_segment_is_verified() -> None:
    """Only the column of ids is read, so that a search for one partitionlet in a thousand chunks reads little."""
    table = Table(0)
    for each in range(500):
        table.add_batch(each, 0, 0, 1, each * 100, 100, 1, -1, 0)
    touched: list[tuple[int, int]] = []
    raw = memoryview(b"".join(encode_table(table)))
    segment = Segment(raw, source="test", touch=lambda *place: touched.append(place))
    assert segment.held_of([7, 499, 500]) == [7, 499]
    assert segment.held_of(range(0, 1000, 2)) == list(range(0, 500, 2))
    assert touched == [(0, SEGMENT_HEAD_BYTES), *[(SEGMENT_HEAD_BYTES, 500 * 8)] * 2]


@given(tables())
def test_a_segment_answers_as_its_table_does(table: Table) -> None:
    raw = b"".join(encode_table(table))
    segment = Segment(memoryview(raw + b"more"), source="test")
    assert (segment.start, segment.end, bytes(segment.raw)) == (table.start, table.end, raw)
    assert list(segment.summaries()) == list(table.summaries())
    assert segment.all_controls() == table.all_controls()
    assert segment.has_one_partitionlet() == table.has_one_partitionlet()
    for partitionlet in [*PARTITIONLETS, 99]:
        assert segment.summary(partitionlet) == table.summary(partitionlet)
        assert list(segment.epochs(partitionlet)) == list(table.epochs(partitionlet))
        assert list(segment.producers(partitionlet)) == list(table.producers(partitionlet))
        assert list(segment.controls(partitionlet)) == list(table.controls(partitionlet))
        places = joined(list(table.places(partitionlet, 0)))
        assert list(segment.places(partitionlet, 0)) == places
        for offset in (1, 5, 20):
            assert list(segment.places(partitionlet, offset)) == [p for p in places if p.last >= offset]
            assert list(table.places(partitionlet, offset)) == [
                p for p in table.places(partitionlet, 0) if p.last >= offset
            ]


def test_a_summary_counts_what_there_is() -> None:
    table = Table(0)
    table.add_batch(5, 10, 19, 300, 0, 100, 1, -1, 0)
    table.add_control(partitionlet=6, place=100, length=60, type=2)
    table.add_batch(5, 20, 29, 200, 160, 120, 2, -1, 0)
    assert list(table.summaries()) == [Summary(5, 10, 29, 300, 220), Summary(6, -1, -1, -1, 0)]
    assert table.last_of(5) == (29, 2)
    assert table.epochs(5) == [(1, 10), (2, 20)]


def test_a_producers_last_five_batches_are_remembered_and_sequences_wrap() -> None:
    table = Table(0)
    sequence = (1 << 31) - 25
    for row in range(8):
        table.add_batch(
            1, row * 10, row * 10 + 9, row, row * 100, 100, 1, 77, 3 << 32 | (sequence + row * 10) % (1 << 31)
        )
        table.add_batch(1, row * 10, row * 10 + 9, row, row * 100, 100, 1, -8, 0 << 32 | row)  # a token counts batches
    batches = [batch for batch in table.producers(1) if batch.producer == 77]
    assert [batch.base_offset for batch in batches] == [30, 40, 50, 60, 70]
    assert [(b.base_sequence, b.last_sequence) for b in batches[:2]] == [(5, 14), (15, 24)]
    assert {batch.epoch for batch in batches} == {3}
    wrapped = Table(0)
    wrapped.add_batch(1, 0, 9, 0, 0, 100, 1, 77, (1 << 31) - 4)
    assert wrapped.producers(1)[0].last_sequence == 5
    assert [b.last_sequence for b in table.producers(1) if b.producer == -8] == [3, 4, 5, 6, 7]


def test_a_damaged_segment_is_refused() -> None:
    table = Table(0)
    table.add_batch(5, 10, 19, 300, 0, 100, 1, -1, 0)
    raw = bytearray(b"".join(encode_table(table)))
    for at in range(len(raw)):
        raw[at] ^= 1
        with pytest.raises(CorruptLog):
            Segment(memoryview(raw), source="test").verify()
        raw[at] ^= 1
    for cut in (0, 50, SEGMENT_HEAD_BYTES, len(raw) - 1):
        with pytest.raises(CorruptLog):
            Segment(memoryview(raw)[:cut], source="test").verify()


def test_a_million_small_frames_of_one_partitionlet_are_few_places() -> None:
    table = Table(0)
    for row in range(10_000):
        table.add_batch(5, row, row, row, row * 200, 200, 1, -1, 0)
    raw = b"".join(encode_table(table))
    segment = Segment(memoryview(raw), source="test")
    places = list(segment.places(5, 0))
    assert len(places) == -(-10_000 // (BLOCK_BYTES // 200))
    assert array("q", [place.last for place in places])[-1] == 9_999
    assert len(raw) < 2000
