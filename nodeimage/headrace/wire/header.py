"""Request and response headers.

RequestHeader v1  => api_key INT16, api_version INT16, correlation_id INT32, client_id NULLABLE_STRING
RequestHeader v2  => the same, then tagged fields; for flexible versions
ResponseHeader v0 => correlation_id INT32
ResponseHeader v1 => the same, then tagged fields; for flexible versions, but never for ApiVersions (KIP-511),
                     since its client does not know yet which versions the server supports
"""

import struct
from typing import Final, NamedTuple

from headrace.base.errors import MalformedRequest
from headrace.native import codecs
from headrace.wire.api_keys import FLEXIBLE_FROM, ApiKey, is_flexible
from headrace.wire.primitives import (
    INT16,
    INT32,
    Buffer,
    malformed,
    put_nullable_string,
    read_nullable_string,
    skip_tags,
)

_START: Final = struct.Struct(">hhi")
_FLEXIBLE: Final = struct.Struct(">ix")
_FRAMED: Final = struct.Struct(">ii")
_FRAMED_FLEXIBLE: Final = struct.Struct(">iix")
_API_VERSIONS: Final = int(ApiKey.API_VERSIONS)
_native = codecs


class RequestHeader(NamedTuple):
    """A request's header. `body` is the position in the buffer at which the request's body starts."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body: int


def read_request_header(buf: Buffer) -> RequestHeader:
    """Reads the header of one request, in a buffer without the four bytes of length.

    An unknown API is assumed to have a header v1, so that it can be refused by its key. A client id may consist of any
    bytes. Raises `MalformedRequest`.
    """
    if _native is not None:
        header = _native.read_request_header(buf, FLEXIBLE_FROM, RequestHeader)
        if header is not None:
            return header
    try:  # as the decorator `malformed`, without the cost of its call: this runs for every request
        api_key, api_version, correlation_id = _START.unpack_from(buf)
        try:
            client_id, pos = read_nullable_string(buf, 8, False)
        except UnicodeDecodeError:
            client_id, pos = _read_any_client_id(buf)
        if is_flexible(api_key, api_version):
            pos = skip_tags(buf, pos)
    except (IndexError, struct.error, UnicodeDecodeError) as error:
        raise MalformedRequest(f"{__name__}: the bytes end early, or are not of the expected type: {error}") from error
    return RequestHeader(api_key, api_version, correlation_id, client_id, pos)


def _read_any_client_id(buf: Buffer) -> tuple[str, int]:
    """A client id that is not valid UTF-8, with the invalid bytes replaced, as by Kafka; and the position behind it."""
    end = 10 + INT16.unpack_from(buf, 8)[0]
    return str(buf[10:end], "utf-8", "replace"), end


def response_header(api_key: int, api_version: int, correlation_id: int) -> bytes:
    """The header of a response: 4 bytes, or 5 for a flexible version."""
    if api_key != _API_VERSIONS and is_flexible(api_key, api_version):
        return _FLEXIBLE.pack(correlation_id)
    return INT32.pack(correlation_id)


def framed_response_header(api_key: int, api_version: int, correlation_id: int, body: int) -> bytes:
    """The length prefix and the header of a response whose body has `body` bytes."""
    if api_key != _API_VERSIONS and is_flexible(api_key, api_version):
        return _FRAMED_FLEXIBLE.pack(body + 5, correlation_id)
    return _FRAMED.pack(body + 4, correlation_id)


def request_header(api_key: int, api_version: int, correlation_id: int, client_id: str | None) -> bytes:
    """The header of a request that Headrace itself sends."""
    out = bytearray(_START.pack(api_key, api_version, correlation_id))
    put_nullable_string(out, client_id, False)
    if is_flexible(api_key, api_version):
        out += b"\x00"
    return bytes(out)


@malformed
def read_response_header(buf: Buffer, api_key: int, api_version: int) -> tuple[int, int]:
    """A response's correlation id, and the position at which its body starts. Raises `MalformedRequest`."""
    (correlation_id,) = INT32.unpack_from(buf)
    if api_key != _API_VERSIONS and is_flexible(api_key, api_version):
        return correlation_id, skip_tags(buf, 4)
    return correlation_id, 4
