"""Checks of records from producers, compared with the parser in Python and with what Kafka refuses."""

import gzip
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import HeadraceError, InvalidBatch
from headrace.wire import records
from headrace.wire.batch import (
    BATCH_HEADER_SIZE,
    batch_records,
    build_batch,
    find_by_time,
    find_max_time,
    read_batch,
    stamp_max_timestamp,
)
from headrace.wire.compression import compress
from headrace.wire.records import Checked, check_any, check_records, check_small, is_checked_first

field = st.none() | st.binary(max_size=300)
name = st.binary(max_size=20).map(lambda given: given.decode("utf-8", "surrogateescape"))
record = st.tuples(st.integers(0, 1 << 45), field, field, st.lists(st.tuples(name, field), max_size=3))


def check(batch: bytes | bytearray) -> Checked:
    return check_records(read_batch(batch, check_crc=False), memoryview(batch))


def of(body: bytes, count: int, *, codec: int = 0) -> bytearray:
    """A batch whose header claims `count` records, with `body` in place of the records."""
    batch = build_batch([(0, None, None, [])])
    batch[BATCH_HEADER_SIZE:] = body
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">h", batch, 21, codec)
    struct.pack_into(">i", batch, 23, count - 1)
    struct.pack_into(">i", batch, 57, count)
    return batch


@given(st.lists(record, min_size=1, max_size=30), st.integers(0, 4))
def test_what_can_be_read_passes_with_its_largest_time_and_who_has_no_key(given: list[Any], codec: int) -> None:
    batch = build_batch(given, compression=codec)
    checked = check(batch)
    assert checked.max_timestamp == max(timestamp for timestamp, *_ in given)
    assert list(checked.keyless) == [index for index, (_, key, *_) in enumerate(given) if key is None]
    assert is_checked_first(memoryview(batch)) == (codec != 0)
    assert check_small(memoryview(batch)) == checked == check_any(memoryview(batch))


@given(st.lists(record, min_size=1, max_size=5), st.data())
def test_a_byte_that_is_another_is_read_as_the_parser_in_python_reads_it(given: list[Any], data: st.DataObject) -> None:
    batch = build_batch(given)
    at = data.draw(st.integers(BATCH_HEADER_SIZE, len(batch) - 1))
    batch[at] = data.draw(st.integers(0, 255))
    header = read_batch(batch, check_crc=False)
    expected: list[Any] | None
    try:
        expected = list(batch_records(header, batch))
    except HeadraceError:
        expected = None
    if expected is not None and [each.offset for each in expected] != list(range(len(given))):
        expected = None
    try:
        found = check(batch)
    except InvalidBatch:
        assert expected is None or any(abs(each.timestamp) >= 1 << 62 for each in expected)
    else:
        assert expected is not None
        assert list(found.keyless) == [index for index, each in enumerate(expected) if each.key is None]


def test_until_the_parser_is_loaded_every_batch_is_checked_in_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = memoryview(build_batch([(5, b"k", b"v", [])]))
    assert check_any(batch) == Checked(5, ())
    assert not is_checked_first(batch)
    monkeypatch.setattr(records, "_native", None)
    monkeypatch.setattr(records, "_is_loaded", False)
    assert is_checked_first(batch)
    assert check_small(batch) is None
    assert not is_checked_first(None)
    records._parser.cache_clear()
    assert check_any(batch) == Checked(5, ())
    assert not is_checked_first(batch)
    assert check_small(batch) == Checked(5, ())


@pytest.mark.parametrize("attributes", [0x7F, 0x80, 0xFF])
@pytest.mark.parametrize("codec", [0, 1])
def test_a_records_own_attributes_are_any_byte(attributes: int, codec: int) -> None:
    """Kafka uses none of the bits of record attributes; the parser in C reads them as a varint."""
    plain = build_batch([(5, b"k", b"v" * 9, []), (7, None, b"w", [("name", b"content")])])
    body = plain[BATCH_HEADER_SIZE:]
    second = 1 + (body[0] >> 1)
    for at in (1, second + 1):
        body[at] = attributes
        packed = compress(codec, bytes(body))
        batch = bytearray(plain[:BATCH_HEADER_SIZE]) + packed
        struct.pack_into(">i", batch, 8, len(batch) - 12)
        struct.pack_into(">h", batch, 21, codec)
        assert check(batch) == Checked(7, (1,))


def test_attributes_make_no_unreadable_record_readable() -> None:
    batch = build_batch([(5, b"k", b"v" * 9, [])])
    batch[BATCH_HEADER_SIZE + 1] = 0x80
    batch[BATCH_HEADER_SIZE + 4] = 0x7F  # the length of the key
    with pytest.raises(InvalidBatch):
        check(batch)


@given(st.binary(max_size=200), st.integers(1, 1 << 31), st.integers(0, 4))
def test_no_bytes_end_it_otherwise_than_by_a_refusal(body: bytes, count: int, codec: int) -> None:
    batch = of(body, min(count, (1 << 31) - 1), codec=codec)
    checked = check_any(memoryview(batch))
    assert isinstance(checked, InvalidBatch | Checked)
    assert check_small(memoryview(batch)) in (None, checked)


HUGE = bytes([0xFE, *[0xFF] * 8, 0x01])
"""A varint of 2**63 - 1."""


@pytest.mark.parametrize("at", range(6))
def test_lengths_beyond_all_bounds_are_refused(at: int) -> None:
    fields = [b"\x0c", b"\x00\x00\x00", b"\x00", b"\x00", b"\x02", b"\x00\x00"]
    fields[at] = HUGE
    with pytest.raises(InvalidBatch):
        check(of(b"".join(fields) + bytes(40), 1))


def three(**changes: Any) -> bytearray:
    return build_batch([(1000, None, value, []) for value in (b"a", b"b", b"c")], **changes)


def without_header_name() -> bytearray:
    batch = build_batch([(1000, b"k", b"v", [("", b"x")])])
    batch[-3] = 1
    return batch


def that_say_two() -> bytearray:
    batch = three()
    batch[57:61], batch[23:27] = struct.pack(">i", 2), struct.pack(">i", 1)
    return batch


def in_another_order() -> bytearray:
    batch = three()
    at = batch.index(b"a") - 3
    assert batch[at] == 0
    batch[at] = 2
    return batch


def over_the_limit() -> bytearray:
    return of(compress(4, bytes(200 << 20)), 1, codec=4)


@pytest.mark.parametrize(
    "batch",
    [
        without_header_name(),
        that_say_two(),
        in_another_order(),
        of(b"\x1f\x8b not gzip", 1, codec=1),
        of(gzip.compress(b"no record"), 1, codec=1),
        of(b"", 1, codec=3),
        three(compression=4)[:-5] + bytes(5),
    ],
)
def test_what_nobody_could_read_is_refused(batch: bytearray) -> None:
    with pytest.raises(InvalidBatch):
        check(batch)


def test_what_unpacks_to_more_than_the_limit_is_refused_and_never_on_the_loop() -> None:
    bomb = memoryview(of(compress(4, bytes(3 << 20)), 1, codec=4))
    assert len(bomb) < records.PACKED_AT_ONCE
    assert check_small(bomb) is None
    with pytest.raises(InvalidBatch, match="cannot be unpacked"):
        check_records(read_batch(bomb, check_crc=False), bomb, limit=1 << 20)


def test_a_largest_time_that_the_producer_told_wrongly_is_put_right() -> None:
    batch = build_batch([(1000, None, b"a", []), (5000, None, b"b", []), (2000, None, b"c", [])])
    struct.pack_into(">q", batch, 35, 1000)
    assert check(batch).max_timestamp == 5000
    stamp_max_timestamp(batch, 5000)
    assert read_batch(batch).max_timestamp == 5000
    assert find_by_time(batch, 3000) == (1, 5000)


def test_look_ups_by_time_go_by_the_header_of_what_was_stored_before_it_was_checked() -> None:
    assert find_by_time(without_header_name(), 500) == (0, 1000)
    assert find_by_time(without_header_name(), 1500) is None
    assert find_max_time(without_header_name()) == (0, 1000)


def test_names_of_headers_that_are_no_utf8_pass_and_many_are_read_in_another_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few = build_batch([(5, b"k", None, [("caf\udce9", None)]), (7, None, None, [])])
    assert check(few) == Checked(7, (1,))
    assert not is_checked_first(memoryview(few))
    many = memoryview(build_batch([(5, b"k", None, [("\udcff", None)])] * (records.ANY_NAMES + 1)))
    assert is_checked_first(many)
    assert check_any(many) == Checked(5, ())
    monkeypatch.setattr(records, "_native", None)
    assert check_small(many) is None
    assert check_any(many) == Checked(5, ())


def test_more_records_than_a_moment_has_room_for_are_read_in_another_thread() -> None:
    some = memoryview(build_batch([(5, b"k", None, [])] * (records.ANY_NAMES + 1)))
    assert is_checked_first(some)
    assert check_small(some) == Checked(5, ())
    many = memoryview(build_batch([(5, b"k", None, [])] * (records.RECORDS_AT_ONCE + 1)))
    assert is_checked_first(many)
    assert check_small(many) is None
    assert check_any(many) == Checked(5, ())
