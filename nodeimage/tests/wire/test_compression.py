import zlib

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import CorruptBatch, InvalidBatch
from headrace.wire import compression as c

PACKED = [pytest.param(number, id=c.NAMES[number]) for number in (c.GZIP, c.SNAPPY, c.LZ4, c.ZSTD)]
ALL = st.integers(0, 4)


@given(ALL, st.binary(max_size=500), st.integers(1, 400))
def test_bytes_come_back(codec: int, piece: bytes, times: int) -> None:
    raw = piece * times
    assert c.decompress(codec, c.compress(codec, raw)) == raw


@pytest.mark.parametrize("codec", PACKED)
def test_a_megabyte_of_blocks_comes_back_from_a_view(codec: int) -> None:
    raw = bytes(range(256)) * 4096
    assert c.decompress(codec, memoryview(bytearray(c.compress(codec, raw)))) == raw


@pytest.mark.parametrize("codec", PACKED)
def test_a_bomb_is_refused_at_the_limit(codec: int) -> None:
    packed = c.compress(codec, bytes(1 << 20))
    assert len(packed) < 60_000
    assert len(c.decompress(codec, packed, limit=1 << 20)) == 1 << 20
    with pytest.raises(CorruptBatch):
        c.decompress(codec, packed, limit=(1 << 20) - 1)


def test_raw_snappy_is_read_and_a_length_that_lies_is_refused_unallocated() -> None:
    raw = b"temperature" * 1000
    assert c.decompress(c.SNAPPY, bytes(cramjam.snappy.compress_raw(raw))) == raw
    with pytest.raises(CorruptBatch, match="announce more"):
        c.decompress(c.SNAPPY, b"\xff\xff\xff\xff\x0f" + b"x" * 20)


@pytest.mark.parametrize("codec", PACKED)
@pytest.mark.parametrize("cut", [0, 1, 10, -1])
def test_cut_bytes_are_corrupt(codec: int, cut: int) -> None:
    packed = c.compress(codec, b"some bytes that are long enough " * 20)
    if codec == c.SNAPPY and cut == 0:
        assert c.decompress(codec, b"\x00") == b""  # raw snappy of no bytes
    with pytest.raises(CorruptBatch):
        c.decompress(codec, packed[:cut])


def test_bytes_after_gzip_are_corrupt() -> None:
    with pytest.raises(CorruptBatch, match="early or late"):
        c.decompress(c.GZIP, c.compress(c.GZIP, b"x") + b"y")


def test_a_codec_that_kafka_does_not_have_is_refused() -> None:
    with pytest.raises(CorruptBatch):
        c.decompress(5, b"")
    with pytest.raises(InvalidBatch):
        c.compress(5, b"")


def test_lz4_frames_have_the_header_that_java_clients_accept() -> None:
    # KafkaLZ4BlockInputStream accepts only version 1 and independent blocks; 82 is the header's own checksum.
    packed = c.compress(c.LZ4, b"abc")
    assert packed[:7].hex() == "04224d18604082"
    assert bytes(cramjam.lz4.decompress(packed)) == b"abc"


def test_snappy_is_framed_as_java_does_it() -> None:
    packed = c.compress(c.SNAPPY, bytes(100_000))
    assert packed[:16] == b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
    first = int.from_bytes(packed[16:20], "big")
    assert len(bytes(cramjam.snappy.decompress_raw(packed[20 : 20 + first]))) == 32 << 10


@given(st.integers(1, 4), st.binary(max_size=200))
def test_random_bytes_are_corrupt_or_unpack_and_nothing_else(codec: int, raw: bytes) -> None:
    try:
        c.decompress(codec, raw, limit=1 << 20)
    except CorruptBatch:
        return


def test_gzip_of_another_writer_is_read() -> None:
    packer = zlib.compressobj(9, wbits=31)
    assert c.decompress(c.GZIP, packer.compress(b"abc") + packer.flush()) == b"abc"
