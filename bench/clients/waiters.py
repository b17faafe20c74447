"""32 producers that each wait for the acknowledgement before they send the next record: one record of 100 bytes per
request, no linger, acks=all, each on its own connection, all in one thread over epoll.

It uses bare sockets because the client must cost little: requests are encoded once, and only the error code and the
base offset of each response are checked. Without `--bootstrap` it runs the same loop against librdkafka's built-in mock
broker, which stores nothing: the client's own limit on this machine.

Prints one JSON object: requests a second, latencies from send to answer.
"""

import argparse
import json
import selectors
import socket
import ssl
import struct
import time
from dataclasses import dataclass
from pathlib import Path

from bench import wire
from bench.certificates import Certificates
from bench.clients.mock_broker import mock_broker
from bench.figures import quantile

ANSWER = struct.Struct(">i")
RESULT = struct.Struct(">hq")


@dataclass(slots=True)
class Waiter:
    """One producer: its connection, its request, and when it last sent."""

    connection: socket.socket
    request: bytes
    sent_ns: int = 0
    answers: int = 0

    def send(self) -> None:
        self.sent_ns = time.perf_counter_ns()
        self.connection.sendall(self.request)


def _answer(body: bytes, *, topic_length: int) -> None:
    """Check one response (size, correlation id, one topic, one partition). Raises Refused."""
    error, offset = RESULT.unpack_from(body, 4 + 4 + 4 + 2 + topic_length + 4 + 4)
    if error or offset < 0:
        raise wire.Refused(f"error code {error}, base offset {offset}")


def run(
    bootstrap: str,
    *,
    topic: str,
    producers: int,
    size: int,
    warm_up_s: float,
    seconds: float,
    tls: ssl.SSLContext | None = None,
) -> list[int]:
    """Run the loops; return the latency of each response after the warm-up, in nanoseconds. Raises Refused, OSError."""
    wire.wait_for_ack(bootstrap, topic=topic, timeout_s=60.0, tls=tls)
    batch = wire.record_batch([b"x" * size])
    request = wire.produce_request({topic: batch})
    host, _, port = wire.leaders(bootstrap, [topic], tls=tls)[topic][0].rpartition(":")
    latencies: list[int] = []
    length = len(topic.encode())
    expected = 4 + 4 + 4 + 2 + length + 4 + 4 + 2 + 8 + 8 + 8 + 4
    with selectors.EpollSelector() as selector:
        waiters = []
        for _ in range(producers):
            connection = wire.connected(host, int(port), timeout_s=30.0, tls=tls)
            waiter = Waiter(connection, request)
            selector.register(connection, selectors.EVENT_READ, waiter)
            waiters.append(waiter)
        try:
            for waiter in waiters:
                waiter.send()
            start = time.perf_counter_ns() + int(warm_up_s * 1e9)
            end = start + int(seconds * 1e9)
            while True:
                events = selector.select(30.0)
                if not events:
                    raise TimeoutError("no producer had an answer for 30 s")
                for key, _ in events:
                    waiter = key.data
                    body = waiter.connection.recv(4096)
                    while len(body) < expected:
                        more = waiter.connection.recv(4096)
                        if not more:
                            raise ConnectionError("the server closed a producer's connection")
                        body += more
                    now = time.perf_counter_ns()
                    _answer(body, topic_length=length)
                    if now >= start:
                        latencies.append(now - waiter.sent_ns)
                    waiter.send()
                if now >= end:
                    return latencies
        finally:
            for waiter in waiters:
                waiter.connection.close()


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__)
    parse.add_argument("--bootstrap", help="left out: librdkafka's mock broker")
    parse.add_argument("--certificates", type=Path, help="folder of certificates.py: connect with TLS, as its user")
    parse.add_argument("--topic", default="waiters")
    parse.add_argument("--producers", type=int, default=32)
    parse.add_argument("--size", type=int, default=100)
    parse.add_argument("--warm-up-s", type=float, default=3.0)
    parse.add_argument("--seconds", type=float, default=15.0)
    options = parse.parse_args()
    with mock_broker(options.bootstrap) as bootstrap:
        latencies = run(
            bootstrap,
            topic=options.topic,
            producers=options.producers,
            size=options.size,
            warm_up_s=options.warm_up_s,
            seconds=options.seconds,
            tls=None if options.certificates is None else Certificates.found(options.certificates).user_context(),
        )
    latencies.sort()
    print(
        json.dumps(
            {
                "records": len(latencies),
                "seconds": options.seconds,
                "per_s": len(latencies) / options.seconds,
                "p50_ms": quantile(latencies, 0.5) / 1e6,
                "p99_ms": quantile(latencies, 0.99) / 1e6,
                "p999_ms": quantile(latencies, 0.999) / 1e6,
            }
        )
    )


if __name__ == "__main__":
    main()
