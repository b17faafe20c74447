"""The connection keeps answers apart, and takes nothing for an answer that is none."""

import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from headrace_spark.connection import ConnectionLost, NodeConnection

METADATA, VERSION = 3, 1


class Answering:
    """A server that answers each request with the next of the bodies that it was given, then closes."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.skew = 0
        """Added to the correlation id of every answer."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        peer, _ = self._listener.accept()
        with peer, peer.makefile("rb") as requests:
            for body in self.bodies:
                (length,) = struct.unpack(">i", requests.read(4))
                (correlation,) = struct.unpack_from(">i", requests.read(length), 4)
                peer.sendall(struct.pack(">ii", 4 + len(body), correlation + self.skew) + body)

    def close(self) -> None:
        self._listener.close()
        self._thread.join(10)


@pytest.fixture
def server() -> Iterator[Answering]:
    made = Answering()
    yield made
    made.close()


def test_answers_come_in_the_order_of_the_requests(server: Answering) -> None:
    server.bodies = [b"one", b"two", b"three"]
    connection = NodeConnection("127.0.0.1", server.port, timeout_s=10)
    for _ in range(3):
        connection.send(METADATA, VERSION, b"")
    found = [connection.receive() for _ in range(3)]
    assert [bytes(answer[body:]) for answer, body in found] == [b"one", b"two", b"three"]
    connection.close()


def test_a_passing_answer_is_not_overwritten_by_a_plain_one(server: Answering) -> None:
    server.bodies = [b"records", b"another", b"records again"]
    connection = NodeConnection("127.0.0.1", server.port, timeout_s=10)
    connection.send(METADATA, VERSION, b"")
    first, body = connection.receive(passing=True)
    plain, _ = connection.call(METADATA, VERSION, b"")
    assert bytes(first[body:]) == b"records"
    connection.send(METADATA, VERSION, b"")
    connection.receive(passing=True)
    assert bytes(plain[body:]) == b"another"
    connection.close()


def test_a_closed_connection_and_a_wrong_answer_are_lost_connections(server: Answering) -> None:
    server.bodies = [b"x"]
    server.skew = 1
    connection = NodeConnection("127.0.0.1", server.port, timeout_s=10)
    with pytest.raises(ConnectionLost, match="request 1 came where 0 was asked"):
        connection.call(METADATA, VERSION, b"")
    with pytest.raises(OSError, match=r"closed|reset|Broken"):
        connection.call(METADATA, VERSION, b"")
    connection.close()
