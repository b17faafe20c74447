"""Record batches from strangers: checked, or refused; and what passed the check can be read, or is `CorruptBatch`."""

import struct
from collections.abc import Iterator
from pathlib import Path

from crc32c import crc32c

from headrace.base.errors import CorruptBatch, InvalidBatch, UnsupportedBatch
from headrace.wire.batch import (
    BATCH_HEADER_SIZE,
    build_batch,
    find_by_time,
    find_max_time,
    iter_records,
    read_batch,
    stamp,
    stamp_append_time,
)

MAX_PER_INPUT = 100_000
"""Records looked at: an input may claim two thousand million empty ones."""


def setup(folder: Path) -> None:
    """Nothing to prepare."""


def seeds() -> Iterator[bytes]:
    """Batches of every codec, alone and two in a row."""
    records = [(1_000 + number, b"key", b"value" * number, [("h", b"x"), ("n", None)]) for number in range(5)]
    for codec in range(5):
        one = build_batch(records, compression=codec)
        yield b"\x00" + one
        yield (
            b"\x01"
            + one
            + build_batch(records[:1], compression=codec, producer_id=5, producer_epoch=0, base_sequence=3)
        )
    yield b"\x01" + build_batch([(0, None, None, [])])


def run(data: bytes) -> None:
    """An odd first byte gives the batch its right length and CRC, so that what lies behind these checks is reached."""
    if not data:
        return
    batch = bytearray(data[1:])
    if data[0] & 1 and len(batch) >= BATCH_HEADER_SIZE:
        batch[8:12] = struct.pack(">i", len(batch) - 12)
        batch[16] = 2
        batch[17:21] = struct.pack(">I", crc32c(memoryview(batch)[21:]))
    try:
        header = read_batch(batch)
    except (CorruptBatch, InvalidBatch, UnsupportedBatch):
        header = None
    if header is not None:
        assert BATCH_HEADER_SIZE <= header.length <= len(batch)
        whole = batch[: header.length]
        stamp(whole, 77, 3)
        again = read_batch(whole)
        assert (again.base_offset, again.leader_epoch, again.crc) == (77, 3, header.crc)
        stamp_append_time(whole, 123)
        assert read_batch(whole, from_client=False).max_timestamp == 123
    try:
        for number, _record in enumerate(iter_records(batch)):
            if number >= MAX_PER_INPUT:
                return
        find_by_time(batch, header.max_timestamp if header is not None else 1_000)
        find_max_time(batch)
    except (CorruptBatch, InvalidBatch, UnsupportedBatch):
        return
