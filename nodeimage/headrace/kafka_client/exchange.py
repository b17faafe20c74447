"""The client's half of a connection to a Kafka server: frames requests and matches answers to them. No sockets, no
clock.

    request  => length INT32, header v1 or v2 (`wire.header`), body
    response => length INT32, header v0 or v1, body

Invariants:
1. A server answers the requests of one connection in order (Kafka's promise); a correlation id proves it.
2. Anything else (an answer without a request, out of order, or longer than the limit) is `MalformedRequest`. The
   connection is then unusable: the rest of an answer must not be taken for the next one.

`connection.py` drives it on an event loop, `blocking_client.py` with a blocking socket.
"""

import struct
from collections import deque
from typing import Final, Generic, TypeVar

from headrace.base.errors import MalformedRequest
from headrace.kafka_client.responses import Allocate, ResponseReader, fresh_memory
from headrace.wire.header import read_response_header, request_header

_LENGTH = struct.Struct(">i")
_MAX_CORRELATION_ID: Final = 0x7FFFFFFF

T = TypeVar("T")


class Exchange(Generic[T]):
    """The requests under way on one connection, each with a value of its caller, and the answers to them."""

    __slots__ = ("_asked", "_client_id", "_correlation_id", "responses")

    def __init__(self, *, client_id: str, answer_bytes: int) -> None:
        """`answer_bytes`: the length of the longest answer that is accepted."""
        self._client_id = client_id
        self._correlation_id = 0
        self._asked: deque[tuple[int, int, int, T]] = deque()
        """(correlation id, API key, version, the caller's value) of each unanswered request, in order."""
        self.responses = ResponseReader(answer_bytes)
        """Receives the server's bytes."""

    @property
    def under_way(self) -> int:
        """The number of unanswered requests."""
        return len(self._asked)

    @property
    def next(self) -> T:
        """The caller's value of the request that will be answered next. There must be one."""
        return self._asked[0][3]

    def ask(self, api_key: int, version: int, body_bytes: int, caller: T) -> bytes:
        """Register a request; returns the bytes to send before its body of `body_bytes`. It is answered after those
        under way."""
        self._correlation_id = (self._correlation_id + 1) & _MAX_CORRELATION_ID
        header = request_header(api_key, version, self._correlation_id, self._client_id)
        self._asked.append((self._correlation_id, api_key, version, caller))
        return _LENGTH.pack(len(header) + body_bytes) + header

    def answer(self, allocate: Allocate = fresh_memory) -> tuple[T, memoryview] | None:
        """The caller's value and the body of the next answer; None until it is complete. Raises `MalformedRequest`."""
        response = self.responses.next(allocate)
        if response is None:
            return None
        if not self._asked:
            raise MalformedRequest("an answer that nobody asked for")
        expected, api_key, version, caller = self._asked[0]
        correlation_id, body = read_response_header(response, api_key, version)
        if correlation_id != expected:
            raise MalformedRequest(f"answered request {correlation_id}, where {expected} was next")
        self._asked.popleft()
        return caller, response[body:]

    def give_up(self) -> list[T]:
        """Forget all requests under way, which will get no answers; returns their callers' values, in order."""
        callers = [caller for *_, caller in self._asked]
        self._asked.clear()
        return callers
