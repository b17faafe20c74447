"""The client's half of a connection to a Kafka server: requests framed, answers matched to them. No sockets, no clock.

    request  => length INT32, header v1 or v2 (`wire.header`), body
    response => length INT32, header v0 or v1, body

Invariants:
1. A server answers the requests of one connection in their order (Kafka's promise); a correlation id proves it.
2. Anything else (an answer that nobody asked for, out of order, or longer than the limit) is `MalformedRequest`. The
   connection is of no more use then: what is left of an answer must not be taken for the next one.

`connection.py` drives it on an event loop, `blocking_client.py` with a blocking socket.
"""

import struct
from collections import deque
from typing import Final, Generic, TypeVar

from headrace.base.errors import MalformedRequest
from headrace.kafka_client.responses import Allocate, ResponseReader, fresh_memory
from headrace.wire.header import read_response_header, request_header

_LENGTH = struct.Struct(">i")
_MOST_CORRELATION_ID: Final = 0x7FFFFFFF

T = TypeVar("T")


class Exchange(Generic[T]):
    """Requests under way on one connection, each with something of its caller's, and the answers to them."""

    __slots__ = ("_asked", "_client_id", "_correlation_id", "responses")

    def __init__(self, *, client_id: str, answer_bytes: int) -> None:
        """`answer_bytes`: the longest answer that is taken."""
        self._client_id = client_id
        self._correlation_id = 0
        self._asked: deque[tuple[int, int, int, T]] = deque()
        """(correlation id, API key, version, the caller's) of each request that has no answer yet."""
        self.responses = ResponseReader(answer_bytes)
        """Where the server's bytes go in."""

    @property
    def under_way(self) -> int:
        """How many requests have no answer yet."""
        return len(self._asked)

    @property
    def next(self) -> T:
        """The caller's part of the request that is answered next. There must be one."""
        return self._asked[0][3]

    def ask(self, api_key: int, version: int, body_bytes: int, caller: T) -> bytes:
        """What goes before a request's body of so many bytes. Its answer is the next one after those under way."""
        self._correlation_id = (self._correlation_id + 1) & _MOST_CORRELATION_ID
        header = request_header(api_key, version, self._correlation_id, self._client_id)
        self._asked.append((self._correlation_id, api_key, version, caller))
        return _LENGTH.pack(len(header) + body_bytes) + header

    def answer(self, allocate: Allocate = fresh_memory) -> tuple[T, memoryview] | None:
        """The next answer's body, and whose it is; None until more bytes come. Raises `MalformedRequest`."""
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
        """The callers of all requests under way, in their order: no answer will come."""
        callers = [caller for *_, caller in self._asked]
        self._asked.clear()
        return callers
