"""The codec of all APIs but the hot ones, based on kio's schemas: bytes to kio entities, nested dicts to bytes.

Only kio's schemas are used, which are typed and generated from Kafka's own. kio's reader is not used, since it
trusts an array's count (a request of ten bytes could exhaust the memory), refuses unknown tagged fields, and cannot
read writable buffers. A schema module is imported when a client first uses its API and version.

Names are kio's: Kafka's in snake_case, where `ThrottleTimeMs` has become `throttle_time`. Dicts may use both
`throttle_time` and `throttle_time_ms`. Values in dicts are plain: error codes and milliseconds are ints (or kio's
ErrorCode and timedelta), topic ids are bytes or UUID, times are milliseconds since 1970 (None: unknown, -1 on the
wire).
"""

import dataclasses
import datetime
import importlib
import struct
import types
import typing
from collections.abc import Mapping
from functools import cache
from typing import Any, Final, NamedTuple

from headrace.base.errors import MalformedRequest
from headrace.wire.api_keys import ApiKey
from headrace.wire.fields import EPOCH, MILLISECOND, Input, Read, Write, array_codec, codec
from headrace.wire.primitives import Buffer, check_tags, malformed, read_uvarint, uvarint

Entity = Any
"""An instance of one of kio's generated dataclasses."""

_MISSING: Final = object()
_TAGS_TWICE: Final = frozenset({"AlterUserScramCredentialsRequest"})
"""Requests in which librdkafka (2.16) writes the empty set of tagged fields at the end twice; Kafka ignores one."""


class _Field(NamedTuple):
    """The codec of one field of a struct. `default` is a plain value, as in a dict."""

    name: str
    alias: str | None
    read: Read
    write: Write
    default: Any


class _Struct(NamedTuple):
    """A compiled schema: fields in wire order, then tagged fields by ascending tag."""

    entity: type[Any]
    flexible: bool
    fields: list[_Field]
    tagged: dict[int, _Field]


_prepared: Final[set[tuple[int, int]]] = set()


def is_prepared(api_key: int, version: int) -> bool:
    """Whether requests and responses of this version can be read and written without an import."""
    return (api_key, version) in _prepared


def prepare(api_key: int, version: int) -> None:
    """[blocking] Imports and compiles the schemas of a version. Takes tens of milliseconds, and far more the very first
    time."""
    for kind in ("request", "response"):
        _schema(api_key, version, kind)
    _prepared.add((api_key, version))


# Encoding and decoding


def decode_request(api_key: int, version: int, body: Buffer) -> Entity:
    """The request in `body` as kio's entity. Raises `MalformedRequest` unless `body` is exactly one request.

    For this function and the next three, kio must have a schema of the API in this version; callers refuse other
    versions first.
    """
    return _decode(_schema(api_key, version, "request"), body)


def decode_response(api_key: int, version: int, body: Buffer) -> Entity:
    """The response in `body` as kio's entity. Raises as `decode_request`."""
    return _decode(_schema(api_key, version, "response"), body)


def encode_request(api_key: int, version: int, fields: Mapping[str, Any]) -> bytes:
    """A request's body from nested dicts, like `encode_response`."""
    return _encode(_schema(api_key, version, "request"), fields)


def encode_response(api_key: int, version: int, fields: Mapping[str, Any]) -> bytes:
    """A response's body from nested dicts and iterables.

    Names that this version lacks are ignored. A missing field takes the schema's default; if the schema has none, 0,
    false, "", no elements, or null if the field is nullable. Raises TypeError or ValueError for a value that a field
    cannot take, with a note that names the field.
    """
    return _encode(_schema(api_key, version, "response"), fields)


def field(entity: Entity, name: str, default: Any = None) -> Any:
    """A field of an entity, or `default` if its version lacks the field. Times (ms) and error codes are plain ints."""
    value = getattr(entity, name, _MISSING)
    if value is _MISSING:
        return default
    if isinstance(value, datetime.timedelta):
        return value // MILLISECOND
    if isinstance(value, datetime.datetime):
        return (value - EPOCH) // MILLISECOND
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
        (kind, _ellipsis) = typing.get_args(kind)
    if kafka_type is None:
        if nullable and not is_array:
            raise TypeError(f"{declared.name}: no API spoken here has nullable structs (KIP-893)")
        read, write = _nested(_compile(kind))
    else:
        read, write = codec(kafka_type, declared.name, flexible=flexible, nullable=nullable and not is_array)
    if is_array:
        read, write = array_codec(read, write, flexible=flexible, nullable=nullable)
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
    """A type without `None`, and whether the type included it."""
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        (inner,) = (part for part in typing.get_args(kind) if part is not types.NoneType)
        return inner, True
    return kind, False


# Structs


def _nested(inner: _Struct) -> tuple[Read, Write]:
    def read(source: Input) -> Any:
        return _read_struct(inner, source)

    def write(out: bytearray, value: Any) -> None:
        _write_struct(inner, out, value)

    return read, write


@malformed
def _decode(schema: _Struct, body: Buffer) -> Entity:
    source = Input(body)
    entity = _read_struct(schema, source)
    if source.pos == len(body) - 1 and body[-1] == 0 and schema.entity.__name__ in _TAGS_TWICE:
        return entity
    if source.pos != len(body):
        raise MalformedRequest(f"{len(body) - source.pos} bytes after the end of {schema.entity.__name__}")
    return entity


def _read_struct(schema: _Struct, source: Input) -> Entity:
    values = {declared.name: declared.read(source) for declared in schema.fields}
    if schema.flexible:
        _read_tagged(schema, source, values)
    return schema.entity(**values)


def _read_tagged(schema: _Struct, source: Input, values: dict[str, Any]) -> None:
    """Reads the tagged fields that the schema has, and skips the others, as KIP-482 requires."""
    count, source.pos = read_uvarint(source.buf, source.pos)
    check_tags(count)
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
        encoded = _field_bytes(declared, value)
        if encoded == _field_bytes(declared, declared.default):  # a struct whose fields all have their defaults
            continue
        tagged += uvarint(tag) + uvarint(len(encoded)) + encoded
        present += 1
    out += uvarint(present) + tagged


def _value(declared: _Field, fields: Mapping[str, Any]) -> Any:
    value = fields.get(declared.name, _MISSING)
    if value is _MISSING and declared.alias is not None:
        value = fields.get(declared.alias, _MISSING)
    return declared.default if value is _MISSING else value


def _field_bytes(declared: _Field, value: Any) -> bytearray:
    out = bytearray()
    _write_field(declared, out, value)
    return out


def _write_field(declared: _Field, out: bytearray, value: Any) -> None:
    try:
        declared.write(out, value)
    except (TypeError, ValueError, AttributeError, struct.error) as error:
        error.add_note(f"in field {declared.name}")
        raise
