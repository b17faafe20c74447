"""HEADRACE_ADMIN, our own API (key 24000, version 0, header v1): what Headrace's own tools ask a node of Headrace.

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
    """A response; its result is decoded by type."""

    error: int
    message: str | None = None
    result: msgspec.Raw = msgspec.Raw(b"\xc0")


ANYTHING: Final = msgspec.msgpack.Decoder(Any)
"""Takes every result as it is."""
MOST_REQUEST_BYTES: Final = 16 << 20
"""Of an admin request: the largest have certificates, or what tens of thousands of partitions are asked for by."""
_requests = msgspec.msgpack.Decoder(tuple[str, dict[str, Any]])
_split_requests = msgspec.msgpack.Decoder(tuple[str, msgspec.Raw])
_answers = msgspec.msgpack.Decoder(_Answer)


def encode_admin_request(method: str, params: Mapping[str, Any]) -> bytes:
    """The body of an admin request."""
    return b"\x00" + msgspec.msgpack.encode([method, params])


def decode_admin_request(body: Buffer) -> tuple[str, dict[str, Any]]:
    """Method and parameters of an admin request. Raises `MalformedRequest`."""
    return _decoded(_requests, body)


def split_admin_request(body: Buffer) -> tuple[str, msgspec.Raw]:
    """Method and encoded parameters of an admin request. Raises `MalformedRequest`.

    Parameters are to be decoded as what their method takes: one byte of those that it does not take would become an
    object of 64 bytes, for whoever may connect.
    """
    return _decoded(_split_requests, body)


def _decoded(decoder: msgspec.msgpack.Decoder[T], body: Buffer) -> T:
    if len(body) > MOST_REQUEST_BYTES:
        raise MalformedRequest(f"an admin request of {len(body)} bytes; the limit is {MOST_REQUEST_BYTES}")
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
    """What a call of `method` gave, as `result` decodes it.

    Raises KafkaError with the node's code and message where it refused, `MalformedRequest`.
    """
    try:
        answer = _answers.decode(body)
        if not answer.error:
            return result.decode(answer.result)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedRequest(f"{method}: {error}") from error
    raise KafkaError(code_of(answer.error), answer.message or f"{method} failed")
