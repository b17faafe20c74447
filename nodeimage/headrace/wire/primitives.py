"""Readers and writers of Kafka's primitive types in buffers, from which the hot codecs are built.

Readers take `(buf, pos)` and return `(value, next pos)`. Before anything is sliced or allocated, a length is compared
with the bytes that are left; so is an array's count, which must not exceed `MAX_ELEMENTS` either, so that a small or
hostile request never becomes a large list. Truncated input raises IndexError or struct.error, which `malformed` turns
into `MalformedRequest`, once per request. "Compact" and "flexible" are KIP-482's encodings.
"""

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache, wraps
from typing import Any, Final, TypeVar

from headrace.base.errors import MalformedRequest

Buffer = bytes | bytearray | memoryview
"""The types of buffers that codecs read, and that make up a response."""

INT8: Final = struct.Struct(">b")
INT16: Final = struct.Struct(">h")
INT32: Final = struct.Struct(">i")
INT64: Final = struct.Struct(">q")

MAX_ELEMENTS: Final = 1 << 20
"""The most elements in one array of a request: more than a cluster has topics."""

MAX_PARTITIONS: Final = 1 << 17
"""The most partitions that one Produce or Fetch request may name: more than a node leads."""

MAX_TAGS: Final = 10_000
"""The most tagged fields at one place of a request; Kafka's limit since 4.4."""

STRING_LIMIT: Final = 32_767
"""The greatest length, in bytes, of a string in the encoding before KIP-482."""

NO_UUID: Final = bytes(16)

F = TypeVar("F", bound=Callable[..., Any])


def malformed(decode: F) -> F:
    """Decorator: makes `decode` raise `MalformedRequest` if its input is truncated or not UTF-8."""

    @wraps(decode)
    def checked(*args: Any, **kwargs: Any) -> Any:
        try:
            return decode(*args, **kwargs)
        except (IndexError, struct.error, UnicodeDecodeError) as error:
            raise MalformedRequest(
                f"{decode.__module__}: the bytes end early, or are not of the expected type: {error}"
            ) from error

    return checked  # type: ignore[return-value]


def check_end(buf: Buffer, pos: int) -> None:
    """Raises `MalformedRequest` unless `pos` is the end of `buf`."""
    if pos != len(buf):
        raise MalformedRequest(f"{len(buf) - pos} bytes after the end of the message")


# Readers


def read_uvarint(buf: Buffer, pos: int) -> tuple[int, int]:
    """An unsigned varint of at most 32 bits."""
    byte = buf[pos]
    pos += 1
    if byte < 0x80:
        return byte, pos
    value = byte & 0x7F
    for shift in (7, 14, 21, 28):
        byte = buf[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> 32:
                break
            return value, pos
    raise MalformedRequest(f"a varint before byte {pos} has more than 32 bits")


def read_bytes(buf: Buffer, pos: int, length: int) -> tuple[Buffer, int]:
    """The next `length` bytes as a slice of `buf`, copied only if `buf` is not a memoryview."""
    end = pos + length
    if length < 0 or end > len(buf):
        raise MalformedRequest(f"{length} bytes are announced at byte {pos}, {len(buf) - pos} are left")
    return buf[pos:end], end


def read_nullable_string(buf: Buffer, pos: int, flexible: bool) -> tuple[str | None, int]:
    """A string or null, in the compact encoding if `flexible`."""
    if flexible:
        length, pos = read_uvarint(buf, pos)
        length -= 1
    else:
        (length,) = INT16.unpack_from(buf, pos)
        pos += 2
    if length < 0:
        if length != -1:
            raise MalformedRequest(f"a string before byte {pos} has length {length}")
        return None, pos
    end = pos + length
    if end > len(buf):
        raise MalformedRequest(f"a string of {length} bytes is announced at byte {pos}, {len(buf) - pos} are left")
    return str(buf[pos:end], "utf-8"), end


def read_string(buf: Buffer, pos: int, flexible: bool) -> tuple[str, int]:
    """A string that must not be null."""
    value, end = read_nullable_string(buf, pos, flexible)
    if value is None:
        raise MalformedRequest(f"null at byte {pos}, where a string is due")
    return value, end


def read_nullable_count(buf: Buffer, pos: int, flexible: bool) -> tuple[int, int]:
    """An array's length, -1 for null. Every element has at least one byte."""
    if flexible:
        count, pos = read_uvarint(buf, pos)
        count -= 1
    else:
        (count,) = INT32.unpack_from(buf, pos)
        pos += 4
    if count < -1 or count > len(buf) - pos or count > MAX_ELEMENTS:
        raise MalformedRequest(
            f"an array of {count} elements is announced at byte {pos}, {len(buf) - pos} bytes are left"
        )
    return count, pos


def read_count(buf: Buffer, pos: int, flexible: bool) -> tuple[int, int]:
    """The length of an array that must not be null."""
    count, end = read_nullable_count(buf, pos, flexible)
    if count < 0:
        raise MalformedRequest(f"null at byte {pos}, where an array is due")
    return count, end


def bounded(count: int, what: str) -> int:
    """Returns `count`, a number of `what` in a request; raises `MalformedRequest` if it is above `MAX_PARTITIONS`."""
    if count > MAX_PARTITIONS:
        raise MalformedRequest(f"more than {MAX_PARTITIONS} {what}")
    return count


def read_int32s(buf: Buffer, pos: int, flexible: bool) -> tuple[list[int], int]:
    """An array of int32."""
    count, pos = read_count(buf, pos, flexible)
    return list(struct.unpack_from(f">{count}i", buf, pos)), pos + 4 * count


def check_tags(count: int) -> None:
    """Raises MalformedRequest for more tagged fields than any message has: each costs time, even if it is empty."""
    if count > MAX_TAGS:
        raise MalformedRequest(f"{count} tagged fields; the limit is {MAX_TAGS}")


def skip_tags(buf: Buffer, pos: int) -> int:
    """The position behind the tagged fields that start at `pos`, which are all skipped."""
    count = buf[pos]
    if not count:
        return pos + 1
    count, pos = read_uvarint(buf, pos)
    check_tags(count)
    for _ in range(count):
        _, pos = read_uvarint(buf, pos)
        size, pos = read_uvarint(buf, pos)
        pos += size
        if pos > len(buf):
            raise MalformedRequest(f"a tagged field of {size} bytes ends {pos - len(buf)} bytes after the message")
    return pos


# Writers


@lru_cache(maxsize=4096)
def uvarint(value: int) -> bytes:
    """`value`, which is not negative, as an unsigned varint."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def put_nullable_string(out: bytearray, value: str | None, flexible: bool) -> None:
    """Appends a string or null. Raises ValueError for a string above `STRING_LIMIT` unless `flexible`."""
    if value is None:
        out += b"\x00" if flexible else b"\xff\xff"
        return
    raw = value.encode()
    if flexible:
        out += uvarint(len(raw) + 1)
    elif len(raw) > STRING_LIMIT:
        raise ValueError(f"a string of {len(raw)} bytes; the older encoding takes {STRING_LIMIT}")
    else:
        out += INT16.pack(len(raw))
    out += raw


def put_string(out: bytearray, value: str, flexible: bool) -> None:
    """Appends a string."""
    put_nullable_string(out, value, flexible)


def put_message(out: bytearray, value: str | None, flexible: bool) -> None:
    """Appends an error message, cut to 8,000 characters, since it may quote long strings of a client."""
    put_nullable_string(out, value if value is None else value[:8000], flexible)


def put_count(out: bytearray, count: int, flexible: bool) -> None:
    """Appends an array's length, -1 for null."""
    out += uvarint(count + 1) if flexible else INT32.pack(count)


def put_int32s(out: bytearray, values: Sequence[int], flexible: bool) -> None:
    """Appends an array of int32."""
    put_count(out, len(values), flexible)
    out += struct.pack(f">{len(values)}i", *values)
