"""Whether the records of a batch can be read: what Kafka checks before it stores one, besides the header and the CRC.

Each record's own lengths, its fields within them, headers with names, offsets without gaps, none left over; packed ones
unpack within bounds. Some clients tell a wrong largest time in the header: the right one is a result. The parser is
aiokafka's, in C: 0.1 us a record.

Knows nothing of where batches come from, and of what becomes of them.
"""

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, Final, NamedTuple

from headrace.errors import CorruptBatch, HeadraceError, InvalidBatch
from headrace.wire.batch import (
    BATCH_HEADER_SIZE,
    COMPRESSION_BITS,
    LAST_ATTRIBUTES_AT,
    BatchHeader,
    batch_records,
    read_batch,
    uncompressed,
)
from headrace.wire.compression import MAX_UNPACKED, NONE, decompress
from headrace.wire.primitives import Buffer

UNPACKED_AT_ONCE: Final = 1 << 20
PACKED_AT_ONCE: Final = 16 << 10
"""Packed records of more bytes, or that unpack to more, are checked in another thread."""
KEYLESS_TOLD: Final = 100
ANY_NAMES: Final = 4_000
"""Records of a batch in which a header's name is no UTF-8: the parser in Python reads it then, some 2 us a record."""


class Checked(NamedTuple):
    """What was found in a batch that can be read."""

    max_timestamp: int
    keyless: tuple[int, ...]
    """Which records have no key, by their place in the batch; the first `KEYLESS_TOLD`."""


def is_packed(batch: memoryview | None) -> bool:
    """Whether its records have to be unpacked before they can be checked. Of anything that comes as a batch."""
    return batch is not None and len(batch) >= BATCH_HEADER_SIZE and batch[LAST_ATTRIBUTES_AT] & COMPRESSION_BITS != 0


def check_small(batch: memoryview) -> Checked | None:
    """The check of a packed batch, where it is small; None: it is large or not sound, which is for another thread."""
    if len(batch) > PACKED_AT_ONCE:
        return None
    try:
        return check_records(read_batch(batch, check_crc=False), batch, limit=UNPACKED_AT_ONCE)
    except HeadraceError:
        return None


def check_any(batch: memoryview) -> Checked | InvalidBatch:
    """[blocking] The check of a packed batch, or why it fails. What is wrong with its header is told by others."""
    try:
        return check_records(read_batch(batch, check_crc=False), batch)
    except InvalidBatch as error:
        return error
    except HeadraceError as error:
        return InvalidBatch(str(error))


@cache
def _parser() -> tuple[Callable[[memoryview], Iterable[Any]], type[Exception]]:
    """Imported at first use, for the sake of short commands."""
    from aiokafka.errors import CorruptRecordException
    from aiokafka.record.default_records import DefaultRecordBatch

    return DefaultRecordBatch, CorruptRecordException


def check_records(header: BatchHeader, batch: Buffer, *, limit: int = MAX_UNPACKED) -> Checked:
    """Check the records of the batch at `batch[0]`, of which `header` was read. Raises `InvalidBatch`.

    `limit`: bytes that packed records may unpack to.
    """
    read_all, unreadable = _parser()
    whole = memoryview(batch)[: header.length]
    codec = header.attributes & COMPRESSION_BITS
    if codec != NONE:
        try:
            whole = uncompressed(whole, decompress(codec, whole[BATCH_HEADER_SIZE:], limit=limit))
        except CorruptBatch as error:
            raise InvalidBatch(f"records that cannot be unpacked: {error}") from error
    try:
        return _checked(header, read_all(whole), unreadable)
    except UnicodeDecodeError as error:  # of a header's name, which may be any bytes in Kafka
        if header.record_count > ANY_NAMES:
            raise InvalidBatch(f"a header's name is not UTF-8, in a batch of {header.record_count} records") from error
    return _checked(header, batch_records(read_batch(whole, check_crc=False), whole), CorruptBatch)


def _checked(header: BatchHeader, records: Iterable[Any], unreadable: type[Exception]) -> Checked:
    offset = header.base_offset
    latest = -1
    keyless: list[int] = []
    try:
        for record in records:
            if record.offset != offset:
                raise InvalidBatch(
                    f"record {offset - header.base_offset} has offset delta {record.offset - header.base_offset}"
                )
            offset += 1
            timestamp = record.timestamp
            if timestamp > latest:
                latest = timestamp
            if record.key is None and len(keyless) < KEYLESS_TOLD:
                keyless.append(offset - 1 - header.base_offset)
    except (unreadable, OverflowError, MemoryError) as error:
        told = f"record {offset - header.base_offset} of {header.record_count} cannot be read: {error}"
        raise InvalidBatch(told) from error
    return Checked(latest, tuple(keyless))
