"""Every API but the hot ones, by kio's schemas: bytes to kio entities, nested dicts to bytes.

kio has the schemas, typed and generated from Kafka's own; only these are used. Its reader is not, for it trusts an
array's count (a request of ten bytes ends the process by running out of memory), refuses tagged fields that it does
not know, and reads no writable buffer. A schema module is imported when a client first asks for its API and version.

Names are kio's: Kafka's in snake_case, where `ThrottleTimeMs` has become `throttle_time`. In dicts both
`throttle_time` and `throttle_time_ms` will do. Values in dicts are plain: error codes and milliseconds are ints (or
kio's ErrorCode and timedelta), topic ids bytes or UUID, times milliseconds since 1970 (None: unknown, -1 on the wire).
"""

import dataclasses
import datetime
import importlib
import struct
import types
import typing
import uuid
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, Final, NamedTuple

from headrace.errors import MalformedRequest
from headrace.wire.api_keys import ApiKey
from headrace.wire.primitives import (
    INT16,
    INT32,
    INT64,
    MAX_ELEMENTS,
    NO_UUID,
    Buffer,
    malformed,
    put_count,
    put_message,
    put_nullable_string,
    read_bytes,
    read_nullable_count,
    read_nullable_string,
    read_uvarint,
    uvarint,
)

Entity = Any
"""An instance of one of kio's generated dataclasses."""
Read = Callable[["_Input"], Any]
Write = Callable[[bytearray, Any], None]

_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MILLISECOND: Final = datetime.timedelta(milliseconds=1)
_MISSING: Final = object()


class _Input:
    """Bytes being read, where, and how many array elements have been read so far."""

    __slots__ = ("buf", "elements", "pos")

    def __init__(self, buf: Buffer) -> None:
        self.buf = buf
        self.pos = 0
        self.elements = 0


class _Field(NamedTuple):
    """How one field of a struct is read and written. `default` is a plain value, as a dict would give it."""

    name: str
    alias: str | None
    read: Read
    write: Write
    default: Any


class _Struct(NamedTuple):
    """A compiled schema: fields in wire order, then tagged fields by rising tag."""

    entity: type[Any]
    flexible: bool
    fields: list[_Field]
    tagged: dict[int, _Field]


# The four ways in and out


def decode_request(api_key: int, version: int, body: Buffer) -> Entity:
    """The request in `body` as kio's entity. Raises `MalformedRequest` for anything that is not exactly one."""
    return _decode(_schema(api_key, version, "request"), body)


def decode_response(api_key: int, version: int, body: Buffer) -> Entity:
    """The response in `body` as kio's entity. Raises as `decode_request`."""
    return _decode(_schema(api_key, version, "response"), body)


def encode_request(api_key: int, version: int, fields: Mapping[str, Any]) -> bytes:
    """A request's body from nested dicts, as `encode_response`."""
    return _encode(_schema(api_key, version, "request"), fields)


def encode_response(api_key: int, version: int, fields: Mapping[str, Any]) -> bytes:
    """A response's body from nested dicts and iterables.

    Names that this version lacks are left out. What is missing takes the schema's default; where that has none,
    0, false, "", no elements, or null where null is allowed. Raises TypeError or ValueError for a value that the
    field cannot take, with a note that names it.
    """
    return _encode(_schema(api_key, version, "response"), fields)


def field(entity: Entity, name: str, default: Any = None) -> Any:
    """A field of an entity, or `default` if its version has none. Times and error codes as plain ints, times in ms."""
    value = getattr(entity, name, _MISSING)
    if value is _MISSING:
        return default
    if isinstance(value, datetime.timedelta):
        return value // _MILLISECOND
    if isinstance(value, datetime.datetime):
        return (value - _EPOCH) // _MILLISECOND
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    return value


# Schemas


@cache
def _schema(api_key: int, version: int, kind: str) -> _Struct:
    name = ApiKey(api_key).name
    module = importlib.import_module(f"kio.schema.{name.lower()}.v{version}.{kind}")
    return _compile(getattr(module, f"{name.title().replace('_', '')}{kind.title()}"))


@cache
def _compile(entity: type[Any]) -> _Struct:
    compiled = _Struct(entity, bool(entity.__flexible__), [], {})
    for declared in dataclasses.fields(entity):
        tag = declared.metadata.get("tag")
        made = _field(declared, compiled.flexible)
        if tag is None:
            compiled.fields.append(made)
        else:
            compiled.tagged[tag] = made
    return compiled._replace(tagged=dict(sorted(compiled.tagged.items())))


def _field(declared: "dataclasses.Field[Any]", flexible: bool) -> _Field:
    kind, nullable = _strip_null(declared.type)
    kafka_type = declared.metadata.get("kafka_type")
    is_array = typing.get_origin(kind) is tuple
    if is_array:
        (element, _ellipsis) = typing.get_args(kind)
        read, write = _array(*_codec(kafka_type, element, declared.name, flexible, False), flexible, nullable)
    else:
        read, write = _codec(kafka_type, kind, declared.name, flexible, nullable)
    default: Any
    if declared.default is not dataclasses.MISSING and kafka_type is not None:
        default = declared.default
    elif is_array:
        default = ()
    elif nullable:
        default = None
    elif kafka_type is None:
        default = {}
    else:
        default = {"string": "", "bytes": b"", "bool": False}.get(kafka_type, 0)
    alias = f"{declared.name}_ms" if kafka_type in ("timedelta_i32", "timedelta_i64", "datetime_i64") else None
    return _Field(declared.name, alias, read, write, default)


def _strip_null(kind: Any) -> tuple[Any, bool]:
    """A type without `None`, and whether it had it."""
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        (inner,) = (part for part in typing.get_args(kind) if part is not types.NoneType)
        return inner, True
    return kind, False


def _codec(kafka_type: str | None, kind: Any, name: str, flexible: bool, nullable: bool) -> tuple[Read, Write]:
    match kafka_type:
        case None if not nullable:
            return _nested(_compile(kind))
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
    raise TypeError(f"{name}: no codec for {kafka_type} {kind}")


# Codecs by type

_NUMBERS: Final = {
    "bool": struct.Struct(">?"),
    "int8": struct.Struct(">b"),
    "int16": INT16,
    "uint16": struct.Struct(">H"),
    "int32": INT32,
    "int64": INT64,
    "float64": struct.Struct(">d"),
}


def _packed(layout: struct.Struct) -> tuple[Read, Write]:
    def read(source: _Input) -> Any:
        (value,) = layout.unpack_from(source.buf, source.pos)
        source.pos += layout.size
        return value

    def write(out: bytearray, value: Any) -> None:
        out += layout.pack(value)

    return read, write


def _string(name: str, flexible: bool, nullable: bool) -> tuple[Read, Write]:
    put = put_message if name.endswith("_message") else put_nullable_string

    def read(source: _Input) -> Any:
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
    def read(source: _Input) -> Any:
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


def _array(read_one: Read, write_one: Write, flexible: bool, nullable: bool) -> tuple[Read, Write]:
    def read(source: _Input) -> Any:
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


def _nested(inner: _Struct) -> tuple[Read, Write]:
    def read(source: _Input) -> Any:
        return _read_struct(inner, source)

    def write(out: bytearray, value: Any) -> None:
        _write_struct(inner, out, value)

    return read, write


def _read_uuid(source: _Input) -> uuid.UUID | None:
    raw, source.pos = read_bytes(source.buf, source.pos, 16)
    return uuid.UUID(bytes=bytes(raw)) if raw != NO_UUID else None


def _write_uuid(out: bytearray, value: Any) -> None:
    raw = NO_UUID if value is None else value.bytes if isinstance(value, uuid.UUID) else bytes(value)
    if len(raw) != 16:
        raise ValueError(f"a topic id of {len(raw)} bytes")
    out += raw


def _read_error_code(source: _Input) -> int:
    """kio's ErrorCode, or a plain int for a code that is newer than kio."""
    from kio.schema.errors import ErrorCode

    (value,) = INT16.unpack_from(source.buf, source.pos)
    source.pos += 2
    known = ErrorCode._value2member_map_.get(value)
    return typing.cast(int, value if known is None else known)


def _timedelta(layout: struct.Struct) -> tuple[Read, Write]:
    def read(source: _Input) -> Any:
        (value,) = layout.unpack_from(source.buf, source.pos)
        source.pos += layout.size
        try:
            return datetime.timedelta(milliseconds=value)
        except OverflowError as error:
            raise MalformedRequest(f"{value} ms is longer than a time can be") from error

    def write(out: bytearray, value: Any) -> None:
        out += layout.pack(value // _MILLISECOND if isinstance(value, datetime.timedelta) else value)

    return read, write


def _read_datetime(source: _Input) -> datetime.datetime | None:
    (value,) = INT64.unpack_from(source.buf, source.pos)
    source.pos += 8
    if value == -1:
        return None
    try:
        return _EPOCH + datetime.timedelta(milliseconds=value)
    except OverflowError as error:
        raise MalformedRequest(f"{value} ms since 1970 is not a time") from error


def _write_datetime(out: bytearray, value: Any) -> None:
    if value is None:
        value = -1
    elif isinstance(value, datetime.datetime):
        value = (value - _EPOCH) // _MILLISECOND
    out += INT64.pack(value)


# Structs


@malformed
def _decode(schema: _Struct, body: Buffer) -> Entity:
    source = _Input(body)
    entity = _read_struct(schema, source)
    if source.pos != len(body):
        raise MalformedRequest(f"{len(body) - source.pos} bytes after the end of {schema.entity.__name__}")
    return entity


def _read_struct(schema: _Struct, source: _Input) -> Entity:
    values = {declared.name: declared.read(source) for declared in schema.fields}
    if schema.flexible:
        _read_tagged(schema, source, values)
    return schema.entity(**values)


def _read_tagged(schema: _Struct, source: _Input, values: dict[str, Any]) -> None:
    """Read the tagged fields that the schema has; skip the others, as KIP-482 has it."""
    count, source.pos = read_uvarint(source.buf, source.pos)
    for _ in range(count):
        tag, source.pos = read_uvarint(source.buf, source.pos)
        size, source.pos = read_uvarint(source.buf, source.pos)
        end = source.pos + size
        if end > len(source.buf):
            raise MalformedRequest(f"tagged field {tag} of {size} bytes ends after the message")
        declared = schema.tagged.get(tag)
        if declared is None:
            source.pos = end
            continue
        values[declared.name] = declared.read(source)
        if source.pos != end:
            raise MalformedRequest(f"tagged field {tag} is not {size} bytes long")


def _encode(schema: _Struct, fields: Mapping[str, Any]) -> bytes:
    out = bytearray()
    _write_struct(schema, out, fields)
    return bytes(out)


def _write_struct(schema: _Struct, out: bytearray, fields: Mapping[str, Any]) -> None:
    for declared in schema.fields:
        _write_field(declared, out, _value(declared, fields))
    if not schema.flexible:
        return
    present = 0
    tagged = bytearray()
    for tag, declared in schema.tagged.items():
        value = _value(declared, fields)
        if value == declared.default:
            continue
        one = bytearray()
        _write_field(declared, one, value)
        tagged += uvarint(tag) + uvarint(len(one)) + one
        present += 1
    out += uvarint(present) + tagged


def _value(declared: _Field, fields: Mapping[str, Any]) -> Any:
    value = fields.get(declared.name, _MISSING)
    if value is _MISSING and declared.alias is not None:
        value = fields.get(declared.alias, _MISSING)
    return declared.default if value is _MISSING else value


def _write_field(declared: _Field, out: bytearray, value: Any) -> None:
    try:
        declared.write(out, value)
    except (TypeError, ValueError, AttributeError, struct.error) as error:
        error.add_note(f"in field {declared.name}")
        raise
