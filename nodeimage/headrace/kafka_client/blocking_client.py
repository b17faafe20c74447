"""The client as one thread has it: a connection to one node over a blocking socket. For the command line and Spark.

`call` sends a request and waits for its answer. Who sends the next request before the last answer is there uses `send`
and `receive`. Requests are in versions that the caller knows the node to speak: none are negotiated.

A command, or a task of Spark, starts without what it does not ask for: kio's schemas and msgspec are imported by the
calls that need them.
"""

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final

from headrace.base.errors import MalformedRequest
from headrace.kafka_client.exchange import Exchange
from headrace.kafka_client.responses import fresh_memory
from headrace.wire.api_keys import ApiKey

MAX_RESPONSE: Final = 256 << 20
"""Bytes of the largest response that is read; above it the other side does not speak Kafka."""


class BrokerConnection:
    """A connection to `host`:`port`, opened at once. Raises ConnectionError or TimeoutError, here and in each call.

    After an error the connection is closed.
    """

    def __init__(
        self,
        host: str,
        port: int,
        client_id: str = "headrace",
        timeout_s: float = 30.0,
        *,
        connect_timeout_s: float | None = None,
        answer_bytes: int = MAX_RESPONSE,
    ) -> None:
        """`timeout_s`: for the next bytes of an answer, and for connecting where `connect_timeout_s` is not given."""
        self.address = f"{host}:{port}"
        self._exchange = Exchange[None](client_id=client_id, answer_bytes=answer_bytes)
        self._reused = memoryview(b"")
        """Memory of the last passing answer."""
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
        """Close the connection; answers that are still to come are lost. Closing twice is fine."""
        self._socket.close()

    # --- calls

    def call(self, api_key: int, version: int, body: bytes) -> memoryview:
        """Send a request and wait for the body of its response; no other request may be under way."""
        self.send(api_key, version, body)
        return self.receive()

    def ask(self, key: ApiKey, version: int, fields: Mapping[str, Any]) -> Any:
        """Any API of `wire/generic_codec.py`: kio's entity of the answer. Codes in it are the caller's to read.

        Raises also `MalformedRequest`, and as `generic_codec.encode_request` for fields that cannot be sent.
        """
        from headrace.wire import generic_codec

        answer = self.call(key, version, generic_codec.encode_request(key, version, fields))
        return generic_codec.decode_response(key, version, answer)

    def admin(self, method: str, params: Mapping[str, Any] | None = None) -> Any:
        """The result of one of Headrace's own calls, or KafkaError with the node's code and message.

        A node that is not Headrace's is a ConnectionError.
        """
        from headrace.wire import admin_call

        request = admin_call.encode_admin_request(method, params or {})
        answer = self.call(ApiKey.HEADRACE_ADMIN, 0, request)
        try:
            return admin_call.decode_admin_response(method, answer, admin_call.ANYTHING)
        except MalformedRequest as error:
            raise ConnectionError(f"{self.address} gave no admin answer: {error}") from error

    # --- requests and answers apart

    def send(self, api_key: int, version: int, body: bytes) -> None:
        """Send a request."""
        with self._closed_on_errors():
            self._socket.sendall(self._exchange.ask(api_key, version, len(body), None) + body)

    def receive(self, *, passing: bool = False) -> memoryview:
        """The body of the answer to the oldest request under way.

        A `passing` answer is good until the next passing one is received over this connection: fresh memory costs as
        much as receiving into it.
        """
        allocate = self._memory_again if passing else fresh_memory
        with self._closed_on_errors():
            while (answer := self._exchange.answer(allocate)) is None:
                count = self._socket.recv_into(self._exchange.responses.get_buffer())
                if not count:
                    raise ConnectionError("closed by the other side")
                self._exchange.responses.came(count)
        return answer[1]

    def _memory_again(self, length: int) -> memoryview:
        if length > len(self._reused):
            self._reused = memoryview(bytearray(max(length, 2 * len(self._reused))))
        return self._reused[:length]

    @contextmanager
    def _closed_on_errors(self) -> Iterator[None]:
        """What is left of an answer must not be taken for the next one."""
        try:
            yield
        except TimeoutError as error:
            self.close()
            raise TimeoutError(f"{self.address} did not answer in time") from error
        except (OSError, MalformedRequest) as error:
            self.close()
            raise ConnectionError(f"{self.address}: {error}") from error
