"""HEADRACE_ADMIN, Headrace's own API (key 24000, version 0, header v1): calls from Headrace's tools to a node.

Request  => reserved INT8 (0), msgpack [method, params]
Response => msgpack {"error": code, "message": text or null, "result": anything}
"""

from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec

from headrace.base.errors import KafkaError, MalformedRequest, code_of
from headrace.wire.primitives import Buffer

T = TypeVar("T")


class _Answer(msgspec.Struct, frozen=True):
    """A response. Its result stays encoded, to be decoded by type later."""

    error: int
    message: str | None = None
    result: msgspec.Raw = msgspec.Raw(b"\xc0")


ANYTHING: Final = msgspec.msgpack.Decoder(Any)
"""Decodes any result to plain Python objects."""
MAX_REQUEST_BYTES: Final = 16 << 20
"""The largest admin request. The largest ones contain certificates, or name tens of thousands of partitions."""
_requests = msgspec.msgpack.Decoder(tuple[str, dict[str, Any]])
_split_requests = msgspec.msgpack.Decoder(tuple[str, msgspec.Raw])
_answers = msgspec.msgpack.Decoder(_Answer)


def encode_admin_request(method: str, params: Mapping[str, Any]) -> bytes:
    """The body of an admin request."""
    return b"\x00" + msgspec.msgpack.encode([method, params])


def decode_admin_request(body: Buffer) -> tuple[str, dict[str, Any]]:
    """The method and parameters of an admin request. Raises `MalformedRequest`."""
    return _decoded(_requests, body)


def split_admin_request(body: Buffer) -> tuple[str, msgspec.Raw]:
    """The method and the encoded parameters of an admin request. Raises `MalformedRequest`.

    Decode the parameters as the type that the method takes: otherwise any client could turn each byte of unknown
    parameters into an object of 64 bytes.
    """
    return _decoded(_split_requests, body)


def _decoded(decoder: msgspec.msgpack.Decoder[T], body: Buffer) -> T:
    if len(body) > MAX_REQUEST_BYTES:
        raise MalformedRequest(f"an admin request of {len(body)} bytes; the limit is {MAX_REQUEST_BYTES}")
    try:
        if not len(body) or body[0]:
            raise MalformedRequest("an admin request starts with a zero byte")
        return decoder.decode(body[1:])
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise MalformedRequest(f"not an admin request: {error}") from error


def encode_admin_response(result: Any, *, error: int = 0, message: str | None = None) -> bytes:
    """The body of an admin response; `result` is anything that msgpack can hold."""
    return msgspec.msgpack.encode({"error": error, "message": message, "result": result})


def decode_admin_response(method: str, body: Buffer, result: msgspec.msgpack.Decoder[T]) -> T:
    """The result of a call of `method`, decoded by `result`.

    Raises KafkaError with the node's code and message if the node returned an error, `MalformedRequest`.
    """
    try:
        answer = _answers.decode(body)
        if not answer.error:
            return result.decode(answer.result)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedRequest(f"{method}: {error}") from error
    raise KafkaError(code_of(answer.error), answer.message or f"{method} failed")
