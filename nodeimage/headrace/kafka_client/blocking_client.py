"""A small blocking client: one connection to one node, one request at a time. For the command line and Spark.

HEADRACE_ADMIN, our own API (key 24000, version 0, header v1), is answered by Headrace only:

    Request  => reserved INT8 (0), msgpack [method, params]
    Response => msgpack {"error": code, "message": text or null, "result": anything}
"""

import socket
import struct
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final

import msgspec

from headrace.base.errors import MalformedRequest
from headrace.wire.api_keys import ApiKey
from headrace.wire.header import read_response_header, request_header

MAX_RESPONSE: Final = 256 << 20
"""Bytes of the largest response that is read; above it the other side does not speak Kafka."""

_LENGTH = struct.Struct(">i")
_admin_requests = msgspec.msgpack.Decoder(tuple[str, dict[str, Any]])


class BrokerConnection:
    """A connection to `host`:`port`, opened at once. Raises ConnectionError or TimeoutError, here and in `call`.

    After an error the connection is closed: what is left of an answer must not be taken for the next one.
    """

    def __init__(
        self,
        host: str,
        port: int,
        client_id: str = "headrace",
        timeout_s: float = 30.0,
        *,
        connect_timeout_s: float | None = None,
    ) -> None:
        """`timeout_s`: for each call, and for the connection itself where `connect_timeout_s` is not given."""
        self.address = f"{host}:{port}"
        self._client_id = client_id
        self._correlation_id = 0
        try:
            self._socket = socket.create_connection((host, port), timeout=connect_timeout_s or timeout_s)
            self._socket.settimeout(timeout_s)
        except (TimeoutError, ConnectionError) as error:
            raise type(error)(f"{self.address} cannot be reached: {error}") from error
        except OSError as error:
            raise ConnectionError(f"{self.address} cannot be reached: {error}") from error
        try:
            # The kernel may choose the very port that nobody listens on as ours: TCP's simultaneous open with itself.
            alone = self._socket.getsockname() == self._socket.getpeername()
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:  # the other side has ended it already
            self._socket.close()
            raise ConnectionError(f"{self.address} cannot be reached: {error}") from error
        if alone:
            self._socket.close()
            raise ConnectionError(f"{self.address} cannot be reached: nobody listens there")

    def __enter__(self) -> "BrokerConnection":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection. Closing twice is fine."""
        self._socket.close()

    def call(self, api_key: int, version: int, body: bytes) -> memoryview:
        """Send a request and wait for the body of its response."""
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        header = request_header(api_key, version, self._correlation_id, self._client_id)
        try:
            self._socket.sendall(_LENGTH.pack(len(header) + len(body)) + header + body)
            answer = self._receive()
            correlation_id, start = read_response_header(answer, api_key, version)
        except TimeoutError as error:
            self.close()
            raise TimeoutError(f"{self.address} did not answer in time") from error
        except (OSError, MalformedRequest) as error:
            self.close()
            raise ConnectionError(f"{self.address}: {error}") from error
        if correlation_id != self._correlation_id:
            self.close()
            raise ConnectionError(f"{self.address} answered request {correlation_id}, not {self._correlation_id}")
        return answer[start:]

    def _receive(self) -> memoryview:
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        if not 0 <= length <= MAX_RESPONSE:
            raise ConnectionError(f"a response of {length} bytes; is this a Kafka port?")
        return self._exactly(length)

    def _exactly(self, count: int) -> memoryview:
        room = memoryview(bytearray(count))
        got = 0
        while got < count:
            read = self._socket.recv_into(room[got:])
            if not read:
                raise ConnectionError("closed by the other side")
            got += read
        return room


def encode_admin_request(method: str, params: Mapping[str, Any]) -> bytes:
    """The body of an admin request."""
    return b"\x00" + msgspec.msgpack.encode([method, params])


def decode_admin_request(body: bytes | memoryview) -> tuple[str, dict[str, Any]]:
    """Method and parameters of an admin request. Raises `MalformedRequest`."""
    try:
        if not len(body) or body[0]:
            raise MalformedRequest("an admin request starts with a zero byte")
        return _admin_requests.decode(body[1:])
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise MalformedRequest(f"not an admin request: {error}") from error


def encode_admin_response(result: Any, *, error: int = 0, message: str | None = None) -> bytes:
    """The body of an admin response; `result` is anything that msgpack can hold."""
    return msgspec.msgpack.encode({"error": error, "message": message, "result": result})


def admin_call(conn: BrokerConnection, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Call `method` on the node; the whole answer, with `error` 0 or a Kafka code, `message` and `result`.

    Raises ConnectionError, also where the other side is not a Headrace node, and TimeoutError.
    """
    body = conn.call(ApiKey.HEADRACE_ADMIN, 0, encode_admin_request(method, params))
    try:
        answer = msgspec.msgpack.decode(body)
    except msgspec.DecodeError as error:
        raise ConnectionError(f"{conn.address} gave no admin answer: {error}") from error
    if not isinstance(answer, dict) or "error" not in answer:
        raise ConnectionError(f"{conn.address} gave no admin answer")
    return answer
