import subprocess
import sys
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder
from crc32c import crc32c
from hypothesis import assume, given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

from headrace.base.errors import CorruptBatch, InvalidBatch, UnsupportedBatch
from headrace.wire import batch as b
from headrace.wire.compression import NAMES

CODECS = [pytest.param(number, id=name) for number, name in enumerate(NAMES)]
BUILT_IN = CODECS[:2]  # kafka-python needs extra packages for other codecs; aiokafka includes all
timestamps = st.integers(0, 2**45)
content = st.none() | st.binary(max_size=60)
headers = st.lists(st.tuples(st.text(max_size=8), content), max_size=3)
records = st.lists(st.tuples(timestamps, content, content, headers), min_size=1, max_size=20)
codecs = st.integers(0, 4)

THREE: list[b.RecordIn] = [
    (1_600_000_000_000, b"key", b"value", [("trace", b"\x00\x01"), ("none", None)]),
    (1_600_000_000_007, None, b"", []),
    (1_599_999_999_000, b"k" * 200, None, []),
]


def seal(batch: bytearray) -> bytearray:
    """Recomputes a batch's CRC, after a test has changed bytes that it covers."""
    batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, "big")
    return batch


def as_records(given_records: list[b.RecordIn], base_offset: int = 0) -> list[b.Record]:
    return [
        b.Record(base_offset + delta, timestamp, key, value, list(fields))
        for delta, (timestamp, key, value, fields) in enumerate(given_records)
    ]


@given(records, codecs, st.integers(0, 2**40))
def test_records_come_back_from_a_batch(given_records: list[b.RecordIn], codec: int, base_offset: int) -> None:
    batch = b.build_batch(given_records, base_offset=base_offset, compression=codec)
    header = b.read_batch(batch)
    assert header.length == len(batch)
    assert header.record_count == len(given_records)
    assert header.compression == codec
    assert header.max_timestamp == max(record[0] for record in given_records)
    assert list(b.iter_records(batch)) == as_records(given_records, base_offset)


@pytest.mark.parametrize("codec", CODECS)
def test_aiokafka_reads_our_batches(codec: int) -> None:
    theirs = AiokafkaBatch(bytes(b.build_batch(THREE, base_offset=40, compression=codec)))
    assert theirs.validate_crc()
    read = [b.Record(r.offset, r.timestamp, r.key, r.value, [tuple(h) for h in r.headers]) for r in theirs]
    assert read == as_records(THREE, 40)


@pytest.mark.parametrize("codec", BUILT_IN)
def test_kafka_python_reads_our_batches(codec: int) -> None:
    theirs = KafkaPythonBatch(bytes(b.build_batch(THREE, base_offset=40, compression=codec)))
    assert theirs.validate_crc()
    read = [b.Record(r.offset, r.timestamp, r.key, r.value, [tuple(h) for h in r.headers]) for r in theirs]
    assert read == as_records(THREE, 40)


@pytest.mark.parametrize(
    ("builder", "codec"),
    [(AiokafkaBuilder, codec) for codec in range(5)] + [(KafkaPythonBuilder, codec) for codec in (0, 1)],
)
def test_batches_of_other_clients_are_read(builder: Any, codec: int) -> None:
    theirs = builder(2, codec, True, 77, 3, 19, 1 << 20)
    many = [(1_000 + i, b"key-%d" % i, b"value" * 40, [("h", b"x")]) for i in range(300)]
    for delta, (timestamp, key, value, fields) in enumerate(many):
        theirs.append(delta, timestamp, key, value, fields)
    raw = theirs.build()
    header = b.read_batch(raw)
    assert header.transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (77, 3, 19)
    assert (header.compression, header.record_count, header.max_timestamp) == (codec, 300, 1_299)
    assert list(b.iter_records(raw)) == as_records(many)


def test_an_uncompressed_batch_has_the_bytes_that_kafka_python_writes() -> None:
    theirs = KafkaPythonBuilder(2, 0, False, -1, -1, -1, 1 << 20)
    for delta, (timestamp, key, value, fields) in enumerate(THREE[:2]):
        theirs.append(delta, timestamp, key, value, fields)
    ours = b.build_batch(THREE[:2])
    b.stamp(ours, 0, int.from_bytes(theirs.build()[12:16], "big", signed=True))
    assert ours == theirs.build()


def test_the_bytes_of_a_known_batch_are_pinned() -> None:
    batch = b.build_batch([(1_600_000_000_000, b"key", b"value", [("h", b"1")])])
    assert batch.hex() == (
        # base offset, length, leader epoch, magic, CRC, attributes, last offset delta
        "000000000000000000000044ffffffff026ee44fc2000000000000"
        # base and largest timestamp, producer id and epoch, base sequence, count
        "00000174876e800000000174876e8000ffffffffffffffffffffffffffff00000001"
        # length, attributes, deltas of time and offset, key, value, one header
        "24000000066b65790a76616c75650202680231"
    )


def test_stamping_leaves_the_crc_right_and_the_rest_alone() -> None:
    batch = b.build_batch(THREE)
    before = b.read_batch(batch)
    b.stamp(memoryview(batch), 1 << 40, 12)
    after = b.read_batch(batch)
    assert after == before._replace(base_offset=1 << 40, leader_epoch=12)
    assert [record.offset for record in b.iter_records(batch)] == [2**40, 2**40 + 1, 2**40 + 2]


def test_a_batch_is_copied_for_who_keeps_it_only_where_it_holds_much_else() -> None:
    request = memoryview(bytearray(1000))
    assert b.detached(request[:500]).obj is request.obj
    few = b.detached(request[100:599])
    assert few.obj is not request.obj
    assert few == request[100:599]


def test_append_time_becomes_the_time_of_every_record() -> None:
    batch = b.build_batch(THREE, compression=4)
    view = memoryview(batch + b"what follows in the buffer")
    b.stamp_append_time(view, 1_700_000_000_000)
    header = b.read_batch(view, from_client=False)
    assert header.append_time
    assert header.length == len(batch)
    assert {record.timestamp for record in b.iter_records(view)} == {1_700_000_000_000}
    assert AiokafkaBatch(bytes(view[: header.length])).validate_crc()


@given(records, codecs, st.data())
def test_any_flipped_bit_under_the_crc_is_found(
    given_records: list[b.RecordIn], codec: int, data: st.DataObject
) -> None:
    batch = b.build_batch(given_records, compression=codec)
    at = data.draw(st.integers(17, len(batch) - 1))
    batch[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(CorruptBatch, match="CRC"):
        b.read_batch(batch)
    if at > 60:
        assert b.read_batch(batch, check_crc=False).length == len(batch)


@given(records, st.data())
def test_a_cut_batch_is_corrupt(given_records: list[b.RecordIn], data: st.DataObject) -> None:
    batch = b.build_batch(given_records)
    cut = batch[: data.draw(st.integers(1, len(batch) - 1))]
    with pytest.raises(CorruptBatch):
        b.read_batch(cut)


@given(st.binary(max_size=20))
def test_a_headers_name_of_any_bytes_comes_back_and_hides_no_time(name: bytes) -> None:
    header = (name.decode("utf-8", "surrogateescape"), b"1")
    batch = b.build_batch([(5, None, b"v", []), (7, None, b"w", [header])], base_offset=3)
    assert [record.headers for record in b.iter_records(batch)] == [[], [header]]
    assert name in bytes(batch)
    assert b.find_by_time(batch, 6) == (4, 7)


@pytest.mark.parametrize("magic", [0, 1])
def test_messages_of_older_formats_are_unsupported(magic: int) -> None:
    builder = LegacyRecordBatchBuilder(magic, 0, 1 << 20)
    builder.append(0, 1_000 if magic else None, b"key", b"value")
    with pytest.raises(UnsupportedBatch):
        b.read_batch(builder.build())


def test_what_a_producer_may_not_send_is_invalid() -> None:
    with pytest.raises(InvalidBatch, match="no record batch"):
        b.read_batch(b"")
    for attributes, why in ((0x20, "control"), (0x08, "append times"), (0x05, "compression 5")):
        with pytest.raises(InvalidBatch, match=why):
            b.read_batch(seal(b.build_batch(THREE, attributes=attributes)))
    gap = b.build_batch(THREE)
    gap[23:27] = (3).to_bytes(4, "big")
    with pytest.raises(InvalidBatch, match="last offset delta 3"):
        b.read_batch(seal(gap))
    empty = b.build_batch(THREE)
    empty[57:61] = bytes(4)
    with pytest.raises(InvalidBatch, match="0 records"):
        b.read_batch(seal(empty))
    with pytest.raises(InvalidBatch, match="no epoch or no sequence"):
        b.read_batch(b.build_batch(THREE, producer_id=5))


def test_the_brokers_own_batches_may_be_control_batches_and_have_gaps() -> None:
    batch = b.build_batch(THREE, attributes=b.CONTROL_BIT | b.TRANSACTIONAL_BIT)
    batch[23:27] = (9).to_bytes(4, "big")
    header = b.read_batch(seal(batch), from_client=False)
    assert header.control
    assert header.transactional
    assert header.last_offset_delta == 9


def test_a_length_that_lies_is_corrupt() -> None:
    for length in (-1, 0, 48, 2**31 - 1):
        batch = b.build_batch(THREE)
        batch[8:12] = length.to_bytes(4, "big", signed=True)
        with pytest.raises(CorruptBatch):
            b.read_batch(batch, check_crc=False)


def test_batches_back_to_back_are_read_up_to_one_that_is_cut() -> None:
    run = b.build_batch(THREE, base_offset=10) + b.build_batch(THREE, base_offset=13, compression=2)
    both = as_records(THREE, 10) + as_records(THREE, 13)
    assert list(b.iter_records(run)) == both
    assert list(b.iter_records(run + run[:40])) == both
    assert list(b.iter_records(run + run[:80])) == both


@given(st.lists(records, min_size=1, max_size=4), codecs, timestamps)
def test_the_first_record_at_or_after_a_time_is_found(
    batches: list[list[b.RecordIn]], codec: int, timestamp: int
) -> None:
    run = bytearray()
    everything: list[b.Record] = []
    for given_records in batches:
        run += b.build_batch(given_records, base_offset=len(everything), compression=codec)
        everything += as_records(given_records, len(everything))
    expected = next(((r.offset, r.timestamp) for r in everything if r.timestamp >= timestamp), None)
    assert b.find_by_time(run, timestamp) == expected
    latest = max(everything, key=lambda record: record.timestamp)
    assert b.find_max_time(run) == (latest.offset, latest.timestamp)


def test_with_append_time_the_batchs_time_decides() -> None:
    first, second = b.build_batch(THREE), b.build_batch(THREE, base_offset=3)
    b.stamp_append_time(first, 5_000)
    b.stamp_append_time(second, 6_000)
    assert b.find_by_time(first + second, 5_000) == (0, 5_000)
    assert b.find_by_time(first + second, 5_001) == (3, 6_000)
    assert b.find_by_time(first + second, 6_001) is None
    assert b.find_max_time(first + second) == (3, 6_000)


def test_no_batch_has_no_latest_record() -> None:
    with pytest.raises(CorruptBatch):
        b.find_max_time(b"")


def test_a_batch_of_no_records_has_no_latest_one() -> None:
    """Found by fuzzing: 61 bytes whose header counts fewer than one record."""
    empty = bytearray(b.build_batch([(1, None, None, [])])[:61])
    empty[8:12] = (49).to_bytes(4, "big")
    empty[57:61] = (-39).to_bytes(4, "big", signed=True)
    with pytest.raises(CorruptBatch):
        b.find_max_time(seal(empty))


@given(records, codecs, st.data())
def test_records_that_are_not_what_they_say_are_corrupt_and_nothing_else(
    given_records: list[b.RecordIn], codec: int, data: st.DataObject
) -> None:
    batch = b.build_batch(given_records, compression=codec)
    for _ in range(data.draw(st.integers(1, 5))):
        batch[data.draw(st.integers(21, len(batch) - 1))] = data.draw(st.integers(0, 255))
    try:
        b.read_batch(batch, check_crc=False, from_client=False)
        read = list(b.iter_records(batch))
    except (CorruptBatch, InvalidBatch):
        return
    header = b.read_batch(batch, check_crc=False, from_client=False)
    assert len(read) == (0 if header.control else header.record_count)


@given(st.binary(max_size=120), st.booleans())
def test_random_bytes_are_refused_by_one_of_our_errors(raw: bytes, from_client: bool) -> None:
    assume(len(raw) != 0)
    with pytest.raises((CorruptBatch, UnsupportedBatch, InvalidBatch)):
        b.read_batch(raw, from_client=from_client)


def test_cramjam_is_not_imported_until_records_are_unpacked() -> None:
    code = (
        "import sys; from headrace.wire import batch; batch.read_batch(batch.build_batch([(1, None, b'v', [])]));"
        "print('cramjam' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 30))
def test_a_gap_is_a_control_batch_that_clients_go_on_behind(first: int, more: int) -> None:
    """A log that ends with a batch without records makes kafkajs spin, and kafka-go reread."""
    last = -1
    for batch in b.gap_batches(first, first + more):
        header = b.read_batch(batch, from_client=False)
        last = header.base_offset + header.last_offset_delta
        assert (header.control, header.record_count, header.producer_id, header.max_timestamp) == (True, 1, -1, -1)
        assert list(b.iter_records(batch)) == []
        assert b.marker_type(header, batch) == b.COMMIT_MARKER
        for theirs in (AiokafkaBatch(bytes(batch)), KafkaPythonBatch(bytes(batch))):
            assert theirs.is_control_batch
            assert theirs.validate_crc()
            assert [record.offset for record in theirs] == [last]
            assert theirs.next_offset == last + 1
    assert last == first + more
