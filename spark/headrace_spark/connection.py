"""One blocking connection to one node: requests out, answers in, in the order of the requests.

Responsible for framing and for correlation ids. Knows nothing of what requests mean, of retries or of leaders.
Blocking, because a Spark task is one thread with one thing to do; `send` and `receive` stand apart, so that a node
prepares the next answer while the task works on the last one.
"""

import socket
import struct
from collections import deque

from headrace.wire.header import read_response_header, request_header

CLIENT_ID = "headrace-spark"
LARGEST_ANSWER = 1 << 30
_LENGTH = struct.Struct(">i")


class ConnectionLost(OSError):
    """The node closed the connection, or sent what is no answer to the request."""


class NodeConnection:
    """A connection to the node at `host:port`. Raises OSError where it cannot be made within `timeout_s` seconds."""

    def __init__(self, host: str, port: int, *, timeout_s: float) -> None:
        self._socket = socket.create_connection((host, port), timeout=timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._next = 0
        self._buffer = bytearray(1 << 16)
        self._asked: deque[tuple[int, int, int]] = deque()

    def set_answer_timeout(self, timeout_s: float) -> None:
        """How long `receive` waits for the next bytes before it raises TimeoutError, in seconds."""
        self._socket.settimeout(timeout_s)

    def close(self) -> None:
        """Close the socket; answers that are still to come are lost."""
        self._socket.close()

    @property
    def under_way(self) -> int:
        """How many requests have been sent whose answers have not been received."""
        return len(self._asked)

    def send(self, api_key: int, version: int, body: bytes) -> None:
        """Send one request. Raises OSError."""
        correlation = self._next
        self._next = (self._next + 1) & 0x7FFFFFFF
        header = request_header(api_key, version, correlation, CLIENT_ID)
        self._socket.sendall(_LENGTH.pack(len(header) + len(body)) + header + body)
        self._asked.append((api_key, version, correlation))

    def receive(self, *, passing: bool = False) -> tuple[memoryview, int]:
        """The answer to the oldest request under way, and where its body starts.

        A `passing` answer is good until the next passing one is received over this connection. Raises OSError.
        """
        api_key, version, correlation = self._asked[0]
        (length,) = _LENGTH.unpack(self._read(4))
        if not 4 <= length <= LARGEST_ANSWER:
            raise ConnectionLost(f"an answer says that it is {length} bytes long")
        answer = self._read_over(length) if passing else self._read(length)
        found, body = read_response_header(answer, api_key, version)
        if found != correlation:
            raise ConnectionLost(f"an answer to request {found} came where {correlation} was asked")
        self._asked.popleft()
        return answer, body

    def call(self, api_key: int, version: int, body: bytes) -> tuple[memoryview, int]:
        """Send a request and wait for its answer; no other may be under way. Raises OSError."""
        self.send(api_key, version, body)
        return self.receive()

    def _read(self, size: int) -> memoryview:
        return self._fill(memoryview(bytearray(size)))

    def _read_over(self, size: int) -> memoryview:
        """As `_read`, in the buffer of the last such answer: fresh memory costs as much as receiving into it."""
        if size > len(self._buffer):
            self._buffer = bytearray(max(size, 2 * len(self._buffer)))
        return self._fill(memoryview(self._buffer)[:size])

    def _fill(self, view: memoryview) -> memoryview:
        size = len(view)
        got = 0
        while got < size:
            count = self._socket.recv_into(view[got:])
            if count == 0:
                raise ConnectionLost("the node closed the connection")
            got += count
        return view
