"""Whether the records of a batch can be read: what Kafka checks before it stores one, besides the header and the CRC.

Each record's own lengths, its fields within them, headers with names, offsets without gaps, none left over; packed ones
unpack within bounds. Some clients tell a wrong largest time in the header: the right one is a result. Machine code
walks them, 0.01 us a record; where this Headrace has none, the parser is aiokafka's, in C: 0.08 us a record, and half
as much again where keys are looked at. What either refuses, the parser in Python judges: so a refusal says the same.

Knows nothing of where batches come from, and of what becomes of them.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any, Final, NamedTuple

from headrace.base.errors import CorruptBatch, HeadraceError, InvalidBatch
from headrace.native import codecs
from headrace.wire.batch import (
    BATCH_HEADER_SIZE,
    COMPRESSION_BITS,
    LAST_ATTRIBUTES_AT,
    RECORD_COUNT_AT,
    BatchHeader,
    read_batch,
    uncompressed,
    unpacked_records,
)
from headrace.wire.compression import MAX_UNPACKED, NONE, decompress
from headrace.wire.primitives import INT32

UNPACKED_AT_ONCE: Final = 1 << 20
PACKED_AT_ONCE: Final = 16 << 10
"""Packed records of more bytes, or that unpack to more, are checked in another thread."""
RECORDS_AT_ONCE: Final = 20_000
"""More are checked in another thread: some 5 ms."""
KEYLESS_TOLD: Final = 100
ANY_NAMES: Final = 4_000
"""More records, where a header's name is no UTF-8, are checked in another thread: the parser in Python reads them then,
some 2 us a record."""
MOST_TIMESTAMP: Final = (1 << 63) - 1


class Checked(NamedTuple):
    """What was found in a batch that can be read."""

    max_timestamp: int
    keyless: tuple[int, ...]
    """Which records have no key, by their place in the batch; the first `KEYLESS_TOLD`. () where nobody asked."""


def is_checked_first(batch: memoryview | None) -> bool:
    """Whether its records are checked before anything else is done, perhaps in another thread: those that have to be
    unpacked, and many; and all, until one check has loaded the parser. Of anything that comes as a batch."""
    if batch is None or len(batch) < BATCH_HEADER_SIZE:
        return False
    return not _is_loaded or bool(batch[LAST_ATTRIBUTES_AT] & COMPRESSION_BITS) or _count(batch) > ANY_NAMES


def _count(batch: memoryview) -> int:
    return int(INT32.unpack_from(batch, RECORD_COUNT_AT)[0])


def check_small(batch: memoryview) -> Checked | None:
    """The check of such a batch, where it takes no time; None: it does, or it is not sound, which is for another
    thread."""
    if not _is_loaded:
        return None
    is_packed = batch[LAST_ATTRIBUTES_AT] & COMPRESSION_BITS
    if _count(batch) > RECORDS_AT_ONCE or (is_packed and len(batch) > PACKED_AT_ONCE):
        return None
    try:
        return check_records(read_batch(batch, check_crc=False), batch, limit=UNPACKED_AT_ONCE)
    except HeadraceError:
        return None


def check_any(batch: memoryview) -> Checked | InvalidBatch:
    """[blocking] The check of a batch, or why it fails. What is wrong with its header is told by others."""
    try:
        header = read_batch(batch, check_crc=False)
        return check_records(header, batch, any_names=header.record_count)
    except InvalidBatch as error:
        return error
    except HeadraceError as error:
        return InvalidBatch(str(error))


_native = codecs
_is_loaded = codecs is not None
"""The parser is, if there has to be one: a check holds nobody up any more."""


@cache
def _parser() -> tuple[Callable[[memoryview], Iterable[Any]], type[Exception]]:
    """Imported at first use: it takes 65 ms and 6 MiB, which short commands and idle nodes do without."""
    global _is_loaded
    from aiokafka.errors import CorruptRecordException
    from aiokafka.record.default_records import DefaultRecordBatch

    _is_loaded = True
    return DefaultRecordBatch, CorruptRecordException


def check_records(
    header: BatchHeader, batch: memoryview, *, limit: int = MAX_UNPACKED, any_names: int = ANY_NAMES, keys: bool = True
) -> Checked:
    """Check the records of the batch at `batch[0]`, of which `header` was read. Raises `InvalidBatch`.

    `limit`: bytes that packed records may unpack to. `any_names`: records that the slow parser may be given. `keys`:
    look which have none.
    """
    whole = batch if len(batch) == header.length else batch[: header.length]
    codec = header.attributes & COMPRESSION_BITS
    raw: bytes | None = None
    if codec != NONE:
        try:
            raw = decompress(codec, whole[BATCH_HEADER_SIZE:], limit=limit)
        except CorruptBatch as error:
            raise InvalidBatch(f"records that cannot be unpacked: {error}") from error
    if _native is not None:
        view, start = (whole, BATCH_HEADER_SIZE) if raw is None else (raw, 0)
        told = KEYLESS_TOLD if keys else 0
        checked = _native.scan_records(view, start, header.record_count, header.base_timestamp, told, Checked)
        if checked is not None:
            return checked
    else:
        try:
            return _parsed(header, whole if raw is None else uncompressed(whole, raw), keys=keys)
        except (InvalidBatch, UnicodeDecodeError) as error:
            # The parser in C takes a record's attributes, a byte of which Kafka uses no bit yet, for a varint, and the
            # name of a header, which may be any bytes in Kafka, for UTF-8.
            if header.record_count > any_names:
                raise InvalidBatch(f"cannot be read, in a batch of {header.record_count} records: {error}") from error
    records = unpacked_records(header, bytes(whole[BATCH_HEADER_SIZE:]) if raw is None else raw)
    checked = _looked_at(header, records, CorruptBatch, keys=keys)
    if checked.max_timestamp > MOST_TIMESTAMP:
        raise InvalidBatch(f"a record's timestamp of {checked.max_timestamp} ms is out of range")
    return checked


def _parsed(header: BatchHeader, batch: memoryview, *, keys: bool) -> Checked:
    """By the parser in C. Raises `InvalidBatch`, and `UnicodeDecodeError` for the name of a header."""
    read_all, unreadable = _parser()
    return _looked_at(header, read_all(batch), unreadable, keys=keys)


def _looked_at(header: BatchHeader, records: Iterable[Any], unreadable: type[Exception], *, keys: bool) -> Checked:
    return (_with_keys if keys else _without_keys)(header, records, unreadable)


def _without_keys(header: BatchHeader, records: Iterable[Any], unreadable: type[Exception]) -> Checked:
    """The usual case, in which each step of the loop counts."""
    base = offset = header.base_offset
    latest = -1
    try:
        for record in records:
            if record.offset != offset:
                raise _misplaced(record.offset - base, offset - base)
            offset += 1
            timestamp = record.timestamp
            if timestamp > latest:
                latest = timestamp
    except (unreadable, OverflowError, MemoryError) as error:
        raise InvalidBatch(f"record {offset - base} of {header.record_count} cannot be read: {error}") from error
    return Checked(latest, ())


def _with_keys(header: BatchHeader, records: Iterable[Any], unreadable: type[Exception]) -> Checked:
    keyless: list[int] = []

    def looked_at() -> Iterator[Any]:
        for place, record in enumerate(records):
            if record.key is None and len(keyless) < KEYLESS_TOLD:
                keyless.append(place)
            yield record

    return _without_keys(header, looked_at(), unreadable)._replace(keyless=tuple(keyless))


def _misplaced(delta: int, place: int) -> InvalidBatch:
    return InvalidBatch(f"record {place} has offset delta {delta}")
