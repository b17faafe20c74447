"""The compression codecs of record batches, with a bound on the decompressed size. Knows nothing of records.

cramjam is imported at first use: a node that only passes batches through never needs it.
"""

import mmap
import zlib
from typing import Final

from headrace.base.errors import CorruptBatch, InvalidBatch

NONE: Final = 0
GZIP: Final = 1
SNAPPY: Final = 2
LZ4: Final = 3
ZSTD: Final = 4
NAMES: Final = ("none", "gzip", "snappy", "lz4", "zstd")

MAX_UNPACKED: Final = 128 << 20
"""The most bytes to which one batch may decompress. A larger batch counts as corrupt, since a hostile kilobyte can
announce gigabytes. Kafka's own clients compress 1 MiB by default."""

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + (1).to_bytes(4, "big") * 2  # version, lowest compatible version
_XERIAL_BLOCK: Final = 32 << 10  # uncompressed bytes per block, as in Java's SnappyOutputStream

_LZ4_HEADER: Final = b"\x04\x22\x4d\x18\x60\x40\x82"  # magic; version 1, independent blocks; 64 KiB; checksum of these
_LZ4_BLOCK: Final = 64 << 10
_LZ4_PLAIN: Final = 1 << 31  # flag of a block that is stored uncompressed


def compress(compression: int, raw: bytes | bytearray) -> bytes:
    """`raw` compressed with codec `compression`. Raises `InvalidBatch` for a codec that Kafka does not have."""
    if compression == NONE:
        return bytes(raw)
    if compression == GZIP:
        packer = zlib.compressobj(wbits=31)
        return packer.compress(raw) + packer.flush()
    import cramjam

    if compression == SNAPPY:
        out = bytearray(_XERIAL_HEADER)
        for start in range(0, len(raw), _XERIAL_BLOCK):
            block = bytes(cramjam.snappy.compress_raw(bytes(raw[start : start + _XERIAL_BLOCK])))
            out += len(block).to_bytes(4, "big") + block
        return bytes(out)
    if compression == LZ4:
        return _frame_lz4(raw)
    if compression == ZSTD:
        return bytes(cramjam.zstd.compress(bytes(raw)))
    raise InvalidBatch(f"compression {compression} is not one of {NAMES}")


def _frame_lz4(raw: bytes | bytearray) -> bytes:
    """An LZ4 frame of independent blocks, the only kind that Java clients can read (KafkaLZ4BlockInputStream)."""
    import cramjam

    out = bytearray(_LZ4_HEADER)
    for start in range(0, len(raw), _LZ4_BLOCK):
        plain = bytes(raw[start : start + _LZ4_BLOCK])
        block = bytes(cramjam.lz4.compress_block(plain, store_size=False))
        if len(block) < len(plain):
            out += len(block).to_bytes(4, "little") + block
        else:
            out += (len(plain) | _LZ4_PLAIN).to_bytes(4, "little") + plain
    return bytes(out + bytes(4))


def decompress(compression: int, packed: bytes | memoryview, *, limit: int = MAX_UNPACKED) -> bytes:
    """`packed` decompressed with codec `compression`. Raises `CorruptBatch` if that fails or exceeds `limit` bytes."""
    if compression == NONE:
        return bytes(packed)
    if compression == GZIP:
        return _gunzip(packed, limit)
    import cramjam

    try:
        if compression == SNAPPY:
            return _unsnap(bytes(packed), limit)
        if compression == LZ4:
            return _unpack_into(cramjam.lz4, packed, limit)
        if compression == ZSTD:
            return _unpack_into(cramjam.zstd, packed, limit)
    except cramjam.DecompressionError as error:
        raise CorruptBatch(
            f"{len(packed)} bytes are not {NAMES[compression]}, or hold more than {limit} bytes: {error}"
        ) from error
    raise CorruptBatch(f"compression {compression} is not one of {NAMES}")


def _gunzip(packed: bytes | memoryview, limit: int) -> bytes:
    unpacker = zlib.decompressobj(wbits=31)
    try:
        raw = unpacker.decompress(packed, limit + 1)
    except zlib.error as error:
        raise CorruptBatch(f"{len(packed)} bytes are not gzip: {error}") from error
    if len(raw) > limit:
        raise CorruptBatch(f"{len(packed)} bytes of gzip hold more than {limit} bytes")
    if not unpacker.eof or unpacker.unused_data:
        raise CorruptBatch(f"{len(packed)} bytes of gzip end early or late")
    return raw


def _unpack_into(codec: object, packed: bytes | memoryview, limit: int) -> bytes:
    """Decompresses into an anonymous mapping of `limit` bytes, of which only written pages take memory."""
    if not len(packed):
        raise CorruptBatch("no bytes where packed records are due")
    with mmap.mmap(-1, limit) as room:
        size: int = codec.decompress_into(packed, room)  # type: ignore[attr-defined]
        return room[:size]


def _unsnap(packed: bytes, limit: int) -> bytes:
    """Decompresses raw snappy, or snappy blocks in the framing of Java's xerial library."""
    import cramjam

    if not packed.startswith(_XERIAL_MAGIC):
        if cramjam.snappy.decompress_raw_len(packed) > limit:
            raise CorruptBatch(f"{len(packed)} bytes of snappy announce more than {limit} bytes")
        return bytes(cramjam.snappy.decompress_raw(packed))
    out = bytearray()
    pos = len(_XERIAL_HEADER)
    if len(packed) < pos:
        raise CorruptBatch(f"{len(packed)} bytes of snappy end in the header")
    while pos < len(packed):
        size = int.from_bytes(packed[pos : pos + 4], "big")
        block = packed[pos + 4 : pos + 4 + size]
        pos += 4 + size
        if pos > len(packed) or not size or len(out) + cramjam.snappy.decompress_raw_len(block) > limit:
            raise CorruptBatch(f"a block of {size} bytes of snappy ends early, or makes more than {limit} bytes")
        out += cramjam.snappy.decompress_raw(block)
    return bytes(out)
