"""Clients that connect over TLS at a steady rate, each on a new connection, and disconnect once the server has
answered.

Each sends the first message of a TLS 1.3 handshake; to answer, the server needs the key exchange and the signature, the
main costs of a handshake. A client without an answer after `WAIT_S` disconnects too. One thread over epoll; connections
that cannot be opened in time are opened late, never skipped. Prints one JSON object: how many connections were opened,
answered, refused, and how long opening them took.
"""

import argparse
import contextlib
import errno
import json
import selectors
import socket
import ssl
import time
from dataclasses import dataclass

WAIT_S = 2.0
MAX_OPEN = 8_000


@dataclass(slots=True)
class Storm:
    """The outcome of the connections."""

    offered: int = 0
    answered: int = 0
    refused: int = 0
    silent: int = 0


def first_message() -> bytes:
    """Return a ClientHello of this Python's TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    into, out = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(into, out, server_hostname="localhost").do_handshake()
    return out.read()


def run(address: tuple[str, int], *, rate: float, seconds: float) -> tuple[Storm, float]:
    """Open `rate * seconds` connections; return their outcome, and the seconds that opening them took."""
    storm, hello = Storm(), first_message()
    began: dict[socket.socket, float] = {}
    total = int(rate * seconds)
    start = time.monotonic()
    took = 0.0
    with selectors.EpollSelector() as selector:

        def leave(connection: socket.socket) -> None:
            selector.unregister(connection)
            del began[connection]
            connection.close()

        while storm.offered < total or began:
            now = time.monotonic()
            due = min(total, int((now - start) * rate)) - storm.offered
            for _ in range(min(due, MAX_OPEN - len(began))):
                connection = socket.socket()
                connection.setblocking(False)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # no TIME_WAIT
                storm.offered += 1
                if connection.connect_ex(address) not in (0, errno.EINPROGRESS):
                    storm.refused += 1
                    connection.close()
                    continue
                began[connection] = now
                selector.register(connection, selectors.EVENT_WRITE)
            if storm.offered == total and not took:
                took = now - start
            for key, events in selector.select(0.001):
                connection = key.fileobj
                assert isinstance(connection, socket.socket)
                try:
                    if events & selectors.EVENT_WRITE:
                        connection.send(hello)
                        selector.modify(connection, selectors.EVENT_READ)
                        continue
                    if connection.recv(4096):
                        storm.answered += 1
                    else:
                        storm.refused += 1
                except OSError:
                    storm.refused += 1
                leave(connection)
            for connection, since in list(began.items()):
                if since > now - WAIT_S:
                    break
                storm.silent += 1
                leave(connection)
    return storm, took


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__)
    parse.add_argument("--bootstrap", required=True, help="host:port of a listener with TLS")
    parse.add_argument("--rate", type=float, default=2_000.0, help="connections a second")
    parse.add_argument("--seconds", type=float, default=10.0)
    options = parse.parse_args()
    host, _, port = options.bootstrap.rpartition(":")
    storm, took = run((host, int(port)), rate=options.rate, seconds=options.seconds)
    print(
        json.dumps(
            {
                "offered": storm.offered,
                "offered_per_s": storm.offered / took,
                "answered": storm.answered,
                "refused": storm.refused,
                "silent": storm.silent,
                "answered_per_s": storm.answered / took,
            }
        )
    )


if __name__ == "__main__":
    main()
