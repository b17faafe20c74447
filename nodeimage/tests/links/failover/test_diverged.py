"""How records that are not part of the home's history are built into quarantine batches."""

import uuid
from collections.abc import Iterator, Set

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.ids import Home, Offset
from headrace.links.failover import diverged
from headrace.links.failover.diverged import Kept, QuarantineBatch, diverged_name, place_of, quarantine_batches, token
from headrace.links.source.source import HomeStart
from headrace.log.frames import MAX_PAYLOAD_BYTES
from headrace.wire.batch import (
    BatchHeader,
    Header,
    Record,
    RecordIn,
    build_batch,
    iter_batches,
    iter_records,
    read_batch,
)

ID = b"i" * 16


def built(values: list[bytes], base: int) -> tuple[BatchHeader, memoryview]:
    batch = build_batch([(1_000 + i, b"k", value, [("h", b"1")]) for i, value in enumerate(values)], base_offset=base)
    ((header, view),) = iter_batches(memoryview(batch))
    return header, view


def kept(batch: tuple[BatchHeader, memoryview], diverged_at: int, already: Set[Kept] = frozenset()) -> list[bytearray]:
    history = [HomeStart(1, "b", Offset(10))]
    asides = quarantine_batches(
        *batch, topic_id=ID, partition=3, diverged_at=Offset(diverged_at), history=history, origin="a", kept=already
    )
    return [aside.batch for aside in asides]


def records(batches: list[bytearray]) -> list[Record]:
    return [record for batch in batches for record in iter_records(batch)]


def test_records_keep_all_that_they_are_and_their_old_place() -> None:
    (first, second) = records(kept(built([b"x", b"y"], 9), 9))
    assert (first.timestamp, first.key, first.value) == (1_000, b"k", b"x")
    place: list[Header] = [("headrace.offset", b"9"), ("headrace.partition", b"3"), ("headrace.home", b"0:a")]
    assert first.headers == [("h", b"1"), *place, ("headrace.topic", str(uuid.UUID(bytes=ID)).encode())]
    assert second.headers[-2] == ("headrace.home", b"1:b")
    assert place_of(second) == (str(uuid.UUID(bytes=ID)).encode(), b"1:b", 10, b"")
    many: list[Header] = [*first.headers, ("headrace.offset", b"9" * 5_000)]
    no_number: list[Header] = [("headrace.offset", b"nine")]
    no_offset: list[Header] = [("headrace.topic", b"t"), ("headrace.home", b"0:a")]
    for other in (no_number, no_offset, [], many):
        assert place_of(first._replace(headers=other)) is None


def test_records_below_where_histories_part_are_not_kept() -> None:
    assert [record.value for record in records(kept(built([b"x", b"y", b"z"], 9), 11))] == [b"z"]
    assert kept(built([b"x"], 9), 10) == []


@given(st.lists(st.integers(0, 30), min_size=1, max_size=6), st.sets(st.integers(2, 8)))
def test_what_is_kept_already_is_left_out_of_batches_that_are_cut_as_ever(sizes: list[int], known: set[int]) -> None:
    topic = str(uuid.UUID(bytes=ID)).encode()
    batch = built([b"v" * size for size in sizes], 2)
    whole, rest = kept(batch, 2), kept(batch, 2, {(topic, b"0:a", offset, b"") for offset in known})
    places = [place for record in records(rest) if (place := place_of(record)) is not None]
    assert [place[2] for place in places] == [2 + at for at in range(len(sizes)) if 2 + at not in known]
    of_block = [(read_batch(each).base_sequence, len(list(iter_records(each)))) for each in whole]
    for each in rest:
        first = read_batch(each).base_sequence
        assert any(
            start <= first and first + len(list(iter_records(each))) <= start + count for start, count in of_block
        )
    other = kept(batch, 2, {(b"another", b"0:a", offset, b"") for offset in known})
    assert other == whole, "of the topic that had the name before"


@pytest.fixture(scope="module", autouse=True)
def small_batches() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(diverged, "MAX_BYTES", 40 + 2 * diverged._PLACE_BYTES)
        yield


@given(st.lists(st.integers(0, 30), min_size=1, max_size=6), st.integers(0, 4))
def test_a_batch_is_cut_alike_each_time_and_its_tokens_rise(sizes: list[int], diverged_at: int) -> None:
    batch = built([b"v" * size for size in sizes], 2)
    once, again = kept(batch, diverged_at), kept(batch, diverged_at)
    assert once == again
    headers = [read_batch(each) for each in once]
    assert all(header.producer_id < -1 and header.base_sequence >= 0 for header in headers)
    assert [header.base_sequence for header in headers] == sorted({header.base_sequence for header in headers})
    assert [len(record.value or b"") for record in records(once)] == sizes[max(0, diverged_at - 2) :]


def test_tokens_are_of_one_parting_alone() -> None:
    a, b = Home(0, "a"), Home(1, "b")
    assert token(ID, 0, a, Offset(5), 0) == token(ID, 0, a, Offset(5), 0)
    others = [token(ID, 1, a, Offset(5), 0), token(ID, 0, a, Offset(6), 0), token(ID, 0, a, Offset(5), 1)]
    assert len({token(ID, 0, a, Offset(5), 0), token(ID, 0, b, Offset(5), 0), *others}) == 5


def test_what_two_homes_wrote_at_the_same_offset_is_told_apart_though_it_parted_at_the_same_place() -> None:
    history = [HomeStart(1, "b", Offset(9))]
    (first,) = kept(built([b"x"], 9), 9)
    (later,) = (
        aside.batch
        for aside in quarantine_batches(
            *built([b"y"], 9), topic_id=ID, partition=3, diverged_at=Offset(9), history=history, origin="a"
        )
    )
    assert read_batch(first).producer_id != read_batch(later).producer_id


def test_a_batch_holds_records_of_one_home() -> None:
    first, second = kept(built([b"x", b"y"], 9), 9)
    assert [record.offset for record in records([first, second])] == [0, 0]
    assert read_batch(first).producer_id != read_batch(second).producer_id


def test_sequences_beyond_their_range_begin_anew_with_another_token() -> None:
    base = diverged._BLOCK - 1
    first, second = (read_batch(each) for each in kept(built([b"x", b"y"], base), 0))
    assert (first.base_sequence, second.base_sequence) == (base, 0)
    assert first.producer_id != second.producer_id


def test_the_name_fits_however_long_the_topics_is() -> None:
    assert diverged_name("/s", "t") == "t.diverged"
    long = [diverged_name("/s", "t" * 240 + last) for last in "ab"]
    assert len(set(long)) == 2
    assert all(len(f"/s:{name}") <= 249 and name.endswith(".diverged") for name in long)


def unreadable(kind: str, base: int) -> tuple[BatchHeader, memoryview]:
    """A batch of three records that passes all of Produce's checks."""
    time, codec = (1 << 63) - 2 if kind == "time" else 1_000, 4 if kind == "unpacks to much" else 0
    value = bytes(129 << 20) if kind == "unpacks to much" else b"x"
    rows = [(time, b"k", value if index == 1 else b"x", [("name", b"1")]) for index in range(3)]
    batch = build_batch(rows, base_offset=base, compression=codec)
    match kind:
        case "codec":
            batch[22] = 4
        case "time":  # later than the batch's, which is the latest possible
            batch[63] = 2 << 1
        case "offsets":  # two records at the same offset
            batch[64] = 1 << 1
    batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, "big")
    header = read_batch(batch)
    return header, memoryview(batch)


@pytest.mark.parametrize("kind", ["codec", "unpacks to much", "time", "offsets"])
def test_a_batch_whose_records_cannot_be_read_is_kept_raw_once_whatever_parts_within_it(kind: str) -> None:
    header, batch = unreadable(kind, 9)
    (aside,) = asides(header, batch, 10)
    assert aside.records == 2, "those that diverged"
    (record,) = iter_records(aside.batch)
    assert record.value == bytes(batch)
    assert (record.key, record.timestamp) == (None, header.max_timestamp)
    place: list[Header] = [("headrace.offset", b"9"), ("headrace.partition", b"3"), ("headrace.home", b"0:a")]
    topic: Header = ("headrace.topic", str(uuid.UUID(bytes=ID)).encode())
    assert record.headers == [*place, topic, ("headrace.raw", b"3"), ("headrace.part", b"1/1")]
    (other,) = asides(header, batch, 9)
    assert other == (aside.batch, 3), "under the same token"
    known = place_of(record)
    assert known is not None
    assert asides(header, batch, 9, {known}) == asides(header, batch, 12) == []
    (sound,) = kept(built([b"x"], 9), 9, {known})
    assert read_batch(sound).producer_id != read_batch(aside.batch).producer_id


def asides(
    header: BatchHeader, batch: memoryview, diverged_at: int, already: Set[Kept] = frozenset()
) -> list[QuarantineBatch]:
    at = Offset(diverged_at)
    history = [HomeStart(1, "b", Offset(10))]
    return list(
        quarantine_batches(
            header, batch, topic_id=ID, partition=3, diverged_at=at, history=history, origin="a", kept=already
        )
    )


def test_a_record_that_would_be_too_long_unpacked_leaves_its_batch_raw() -> None:
    rows: list[RecordIn] = [(1_000, None, value, []) for value in (b"a", bytes(MAX_PAYLOAD_BYTES - 61), b"b")]
    batch = build_batch(rows, base_offset=9, compression=4)
    (aside,) = asides(read_batch(batch), memoryview(batch), 9)
    assert aside.records == 3
    (record,) = iter_records(aside.batch)
    assert record.value == bytes(batch)


def test_a_record_whose_headers_name_is_no_utf8_is_kept_like_any_other() -> None:
    batch = build_batch([(5, b"k", b"v", [("caf\udce9", b"1")])], base_offset=9)
    (aside,) = asides(read_batch(batch), memoryview(batch), 9)
    (record,) = iter_records(aside.batch)
    assert (record.key, record.value, record.headers[0]) == (b"k", b"v", ("caf\udce9", b"1"))
    assert b"caf\xe9" in bytes(aside.batch)


def test_a_raw_batch_that_would_be_too_long_with_its_place_is_kept_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert diverged.RAW_BYTES + diverged._PLACE_BYTES <= MAX_PAYLOAD_BYTES
    header, batch = unreadable("time", 9)
    monkeypatch.setattr(diverged, "RAW_BYTES", len(batch) - 1)
    first, second = asides(header, batch, 9)
    assert (first.records, second.records) == (3, 0)
    whole = records([first.batch, second.batch])
    assert b"".join(record.value or b"" for record in whole) == bytes(batch)
    assert [dict(record.headers)["headrace.part"] for record in whole] == [b"1/2", b"2/2"]
    assert read_batch(first.batch).producer_id != read_batch(second.batch).producer_id
    place = place_of(whole[0])
    assert place is not None
    assert asides(header, batch, 9, {place}) == [second]


def test_many_small_records_make_no_batch_that_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diverged, "MAX_BYTES", 4_000)
    tiny = [aside.batch for aside in asides(*built([b""] * 100, 10), 10)]
    assert len(records(tiny)) == 100
    assert max(map(len, tiny)) <= 4_000 + diverged._PLACE_BYTES


def test_what_was_kept_raw_and_diverges_again_is_no_raw_batch_itself() -> None:
    (record,) = records([aside.batch for aside in asides(*unreadable("codec", 9), 9)])
    rows = [(record.timestamp, record.key, record.value, record.headers)]
    again = build_batch(rows, base_offset=5)
    ((header, view),) = iter_batches(memoryview(again))
    (other,) = records(kept((header, view), 5))
    assert place_of(other) == (str(uuid.UUID(bytes=ID)).encode(), b"0:a", 5, b"")
