"""Codecs of single schema fields, by their Kafka type. Knows nothing of schemas or APIs.

Readers return kio's types (ErrorCode, timedelta, datetime, UUID); writers accept these, or plain ints and bytes. A
writer raises TypeError, ValueError or struct.error for a value that its field cannot take. A reader raises
`MalformedRequest`, or an exception that `primitives.malformed` turns into it.
"""

import datetime
import struct
import typing
import uuid
from collections.abc import Callable, Iterable
from typing import Any, Final

from headrace.base.errors import MalformedRequest
from headrace.wire.primitives import (
    INT16,
    INT32,
    INT64,
    MAX_ELEMENTS,
    NO_UUID,
    Buffer,
    put_count,
    put_message,
    put_nullable_string,
    read_bytes,
    read_nullable_count,
    read_nullable_string,
    read_uvarint,
    uvarint,
)

Read = Callable[["Input"], Any]
Write = Callable[[bytearray, Any], None]

EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
MILLISECOND: Final = datetime.timedelta(milliseconds=1)


class Input:
    """A buffer being read, the current position, and the number of array elements read so far."""

    __slots__ = ("buf", "elements", "pos")

    def __init__(self, buf: Buffer) -> None:
        self.buf = buf
        self.pos = 0
        self.elements = 0


_NUMBERS: Final = {
    "bool": struct.Struct(">?"),
    "int8": struct.Struct(">b"),
    "int16": INT16,
    "uint16": struct.Struct(">H"),
    "int32": INT32,
    "int64": INT64,
    "float64": struct.Struct(">d"),
}


def codec(kafka_type: str, name: str, *, flexible: bool, nullable: bool) -> tuple[Read, Write]:
    """The reader and writer of a field of type `kafka_type` that is neither a struct nor an array."""
    match kafka_type:
        case "string":
            return _string(name, flexible, nullable)
        case "bytes" | "records":
            return _bytes(flexible, nullable)
        case "uuid":
            return _read_uuid, _write_uuid
        case "error_code":
            return _read_error_code, _packed(INT16)[1]
        case "timedelta_i32":
            return _timedelta(INT32)
        case "timedelta_i64":
            return _timedelta(INT64)
        case "datetime_i64":
            return _read_datetime, _write_datetime
        case "bool" | "int8" | "int16" | "uint16" | "int32" | "int64" | "float64":
            return _packed(_NUMBERS[kafka_type])
    raise TypeError(f"{name}: no codec for {kafka_type}")


def _packed(layout: struct.Struct) -> tuple[Read, Write]:
    def read(source: Input) -> Any:
        (value,) = layout.unpack_from(source.buf, source.pos)
        source.pos += layout.size
        return value

    def write(out: bytearray, value: Any) -> None:
        out += layout.pack(value)

    return read, write


def _string(name: str, flexible: bool, nullable: bool) -> tuple[Read, Write]:
    put = put_message if name.endswith("_message") else put_nullable_string

    def read(source: Input) -> Any:
        value, source.pos = read_nullable_string(source.buf, source.pos, flexible)
        if value is None and not nullable:
            raise MalformedRequest(f"{name} is null")
        return value

    def write(out: bytearray, value: Any) -> None:
        if value is None and not nullable:
            raise TypeError("null, where a string is due")
        put(out, value, flexible)

    return read, write


def _bytes(flexible: bool, nullable: bool) -> tuple[Read, Write]:
    def read(source: Input) -> Any:
        if flexible:
            length, source.pos = read_uvarint(source.buf, source.pos)
            length -= 1
        else:
            (length,) = INT32.unpack_from(source.buf, source.pos)
            source.pos += 4
        if length == -1 and nullable:
            return None
        value, source.pos = read_bytes(source.buf, source.pos, length)
        return bytes(value)

    def write(out: bytearray, value: Any) -> None:
        if value is None and not nullable:
            raise TypeError("null, where bytes are due")
        length = -1 if value is None else len(value)
        out += uvarint(length + 1) if flexible else INT32.pack(length)
        out += value or b""

    return read, write


def array_codec(read_one: Read, write_one: Write, *, flexible: bool, nullable: bool) -> tuple[Read, Write]:
    """The reader and writer of an array, from those of an element."""

    def read(source: Input) -> Any:
        count, source.pos = read_nullable_count(source.buf, source.pos, flexible)
        if count < 0:
            if nullable:
                return None
            raise MalformedRequest(f"null at byte {source.pos}, where an array is due")
        source.elements += count
        if source.elements > MAX_ELEMENTS:
            raise MalformedRequest(f"more than {MAX_ELEMENTS} array elements")
        return tuple([read_one(source) for _ in range(count)])

    def write(out: bytearray, values: Iterable[Any] | None) -> None:
        if values is None:
            if not nullable:
                raise TypeError("null, where an array is due")
            put_count(out, -1, flexible)
            return
        values = values if isinstance(values, list | tuple) else list(values)
        put_count(out, len(values), flexible)
        for value in values:
            write_one(out, value)

    return read, write


def _read_uuid(source: Input) -> uuid.UUID | None:
    raw, source.pos = read_bytes(source.buf, source.pos, 16)
    return uuid.UUID(bytes=bytes(raw)) if raw != NO_UUID else None


def _write_uuid(out: bytearray, value: Any) -> None:
    raw = NO_UUID if value is None else value.bytes if isinstance(value, uuid.UUID) else bytes(value)
    if len(raw) != 16:
        raise ValueError(f"a topic id of {len(raw)} bytes")
    out += raw


def _read_error_code(source: Input) -> int:
    """Reads an error code as kio's ErrorCode, or as a plain int if kio does not know the code."""
    from kio.schema.errors import ErrorCode

    (value,) = INT16.unpack_from(source.buf, source.pos)
    source.pos += 2
    known = ErrorCode._value2member_map_.get(value)
    return typing.cast(int, value if known is None else known)


def _timedelta(layout: struct.Struct) -> tuple[Read, Write]:
    def read(source: Input) -> Any:
        (value,) = layout.unpack_from(source.buf, source.pos)
        source.pos += layout.size
        try:
            return datetime.timedelta(milliseconds=value)
        except OverflowError as error:
            raise MalformedRequest(f"{value} ms is longer than a time can be") from error

    def write(out: bytearray, value: Any) -> None:
        out += layout.pack(value // MILLISECOND if isinstance(value, datetime.timedelta) else value)

    return read, write


def _read_datetime(source: Input) -> datetime.datetime | None:
    (value,) = INT64.unpack_from(source.buf, source.pos)
    source.pos += 8
    if value == -1:
        return None
    try:
        return EPOCH + datetime.timedelta(milliseconds=value)
    except OverflowError as error:
        raise MalformedRequest(f"{value} ms since 1970 is not a time") from error


def _write_datetime(out: bytearray, value: Any) -> None:
    if value is None:
        value = -1
    elif isinstance(value, datetime.datetime):
        value = (value - EPOCH) // MILLISECOND
    out += INT64.pack(value)
