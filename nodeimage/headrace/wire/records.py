"""Checks that the records of a batch can be read, as Kafka does before it stores a batch, besides header and CRC.

The checks: the lengths are right, fields lie within their record, headers have names, offsets have no gaps, and no
bytes are left over; compressed records must decompress within bounds. Some clients send a wrong largest timestamp in
the header, so the right one is part of the result. Compiled code checks a record in 0.01 us. Without it, aiokafka's
parser in C is used: 0.08 us per record, and half as much again if keys are examined. Batches that either of them
rejects are judged by the parser in Python, so that the error message does not depend on the parser.

Knows nothing of where batches come from and what is done with them.
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
"""Compressed records that decompress to more bytes are checked in another thread."""
PACKED_AT_ONCE: Final = 16 << 10
"""Compressed records of more bytes are checked in another thread."""
RECORDS_AT_ONCE: Final = 20_000
"""A batch with more records is checked in another thread, as the check takes up to 5 ms."""
KEYLESS_TOLD: Final = 100
"""The most records without a key that a check lists."""
ANY_NAMES: Final = 4_000
"""A batch with more records, some of which have header names that are not UTF-8, is checked in another thread, as only
the parser in Python can read it then, at about 2 us per record."""
MAX_TIMESTAMP: Final = (1 << 63) - 1


class Checked(NamedTuple):
    """The result of the check of a readable batch."""

    max_timestamp: int
    keyless: tuple[int, ...]
    """The indexes of the first `KEYLESS_TOLD` records without a key; () if keys were not examined."""


def is_checked_first(batch: memoryview | None) -> bool:
    """Whether the records of a batch must be checked beforehand, perhaps in another thread: if they are compressed or
    many, and always until a first check has loaded the parser. `batch` may be any bytes from a client."""
    if batch is None or len(batch) < BATCH_HEADER_SIZE:
        return False
    return not _is_loaded or bool(batch[LAST_ATTRIBUTES_AT] & COMPRESSION_BITS) or _count(batch) > ANY_NAMES


def _count(batch: memoryview) -> int:
    return int(INT32.unpack_from(batch, RECORD_COUNT_AT)[0])


def check_small(batch: memoryview) -> Checked | None:
    """Checks a batch if that is quick. None: use `check_any` in another thread, since the check would take long or the
    batch is invalid."""
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
    """[blocking] Checks a batch; returns the result, or the reason why the check failed."""
    try:
        header = read_batch(batch, check_crc=False)
        return check_records(header, batch, any_names=header.record_count)
    except InvalidBatch as error:
        return error
    except HeadraceError as error:
        return InvalidBatch(str(error))


_native = codecs
_is_loaded = codecs is not None
"""Whether the parser is loaded, or not needed, so that a check no longer waits for an import."""


@cache
def _parser() -> tuple[Callable[[memoryview], Iterable[Any]], type[Exception]]:
    """aiokafka's parser and the exception that it raises. Imported at first use: the import takes 65 ms and 6 MiB,
    which short commands and idle nodes save."""
    global _is_loaded
    from aiokafka.errors import CorruptRecordException
    from aiokafka.record.default_records import DefaultRecordBatch

    _is_loaded = True
    return DefaultRecordBatch, CorruptRecordException


def check_records(
    header: BatchHeader, batch: memoryview, *, limit: int = MAX_UNPACKED, any_names: int = ANY_NAMES, keys: bool = True
) -> Checked:
    """Checks the records of the batch at `batch[0]`, whose header is `header`. Raises `InvalidBatch`.

    `limit`: the most bytes to which compressed records may decompress. `any_names`: the most records that the parser in
    Python may be given after aiokafka's has failed. `keys`: list the records without a key.
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
            # The parser in C reads a record's attributes, a byte in which Kafka uses no bit yet, as a varint, and the
            # name of a header, which in Kafka may be any bytes, as UTF-8.
            if header.record_count > any_names:
                raise InvalidBatch(f"cannot be read, in a batch of {header.record_count} records: {error}") from error
    records = unpacked_records(header, bytes(whole[BATCH_HEADER_SIZE:]) if raw is None else raw)
    checked = _checked(header, records, CorruptBatch, keys=keys)
    if checked.max_timestamp > MAX_TIMESTAMP:
        raise InvalidBatch(f"a record's timestamp of {checked.max_timestamp} ms is out of range")
    return checked


def _parsed(header: BatchHeader, batch: memoryview, *, keys: bool) -> Checked:
    """Checks by aiokafka's parser in C. Raises `InvalidBatch`, and `UnicodeDecodeError` for the name of a header."""
    read_all, unreadable = _parser()
    return _checked(header, read_all(batch), unreadable, keys=keys)


def _checked(header: BatchHeader, records: Iterable[Any], unreadable: type[Exception], *, keys: bool) -> Checked:
    return (_with_keys if keys else _without_keys)(header, records, unreadable)


def _without_keys(header: BatchHeader, records: Iterable[Any], unreadable: type[Exception]) -> Checked:
    """Checks without keys: the usual case, in which the cost of each step of the loop matters."""
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

    def noting_keyless() -> Iterator[Any]:
        for index, record in enumerate(records):
            if record.key is None and len(keyless) < KEYLESS_TOLD:
                keyless.append(index)
            yield record

    return _without_keys(header, noting_keyless(), unreadable)._replace(keyless=tuple(keyless))


def _misplaced(delta: int, index: int) -> InvalidBatch:
    return InvalidBatch(f"record {index} has offset delta {delta}")
