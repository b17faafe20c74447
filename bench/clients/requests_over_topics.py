"""Produce requests of one record each, to one topic after the other, over 32 connections that wait for each response.

The topics have one partition and exist already; each connection goes to one node, for topics that it leads. Every topic
gets one record before counting starts; if a topic's leader changes while requests are counted, counting restarts.
Measures what a request costs the server as topics become many: prints the request rate, and the server's CPU time per
request (of the processes in `--pids`).
"""

import argparse
import json
import selectors
import socket
import struct
import time
from dataclasses import dataclass

import psutil
from bench import wire

ERROR = struct.Struct(">h")
CONNECTIONS = 32
ATTEMPTS = 5
SETTLED_S = 120.0
"""Seconds within which new topics get the leaders that they keep."""


@dataclass(slots=True)
class Sender:
    """A connection with at most one request in flight, for its share of the topics."""

    connection: socket.socket
    requests: list[tuple[bytes, int]]
    """Each request with the position of the error code in its response."""
    at: int = 0
    idle: bool = True

    def send(self) -> None:
        self.idle = False
        self.connection.sendall(self.requests[self.at][0])

    def receive(self) -> None:
        """Read the response. Raises Refused, OSError."""
        size = wire.SIZE.unpack(self._exactly(4))[0]
        body = self._exactly(size)
        (error,) = ERROR.unpack_from(body, self.requests[self.at][1])
        if error:
            raise wire.Refused(f"error code {error}")
        self.at = (self.at + 1) % len(self.requests)
        self.idle = True

    def _exactly(self, count: int) -> bytes:
        found = self.connection.recv(count)
        while len(found) < count:
            more = self.connection.recv(count - len(found))
            if not more:
                raise ConnectionError("the server closed a connection")
            found += more
        return found


def senders(bootstrap: str, topics: list[str]) -> list[Sender]:
    """Return the connections, spread over the topics' leaders, without nodes that lead none."""
    batch = wire.record_batch([b"x" * 100])
    by_leader: dict[str, list[str]] = {}
    for at in range(0, len(topics), wire.AT_ONCE):
        for topic, led in wire.leaders(bootstrap, topics[at : at + wire.AT_ONCE]).items():
            by_leader.setdefault(led[0], []).append(topic)
    found = []
    for index in range(CONNECTIONS):
        address = sorted(by_leader)[index % len(by_leader)]
        share = by_leader[address][index // len(by_leader) :: max(1, CONNECTIONS // len(by_leader))]
        if not share:
            continue
        host, _, port = address.rpartition(":")
        connection = socket.create_connection((host, int(port)), timeout=30.0)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        requests = [(wire.produce_request({topic: batch}), 4 + 4 + 2 + len(topic) + 4 + 4) for topic in share]
        found.append(Sender(connection, requests))
    return found


def run(every: list[Sender], *, requests: int) -> None:
    """Send `requests` requests in total, with one in flight per connection. Raises Refused, TimeoutError, OSError."""
    left = requests
    with selectors.EpollSelector() as selector:
        for sender in every:
            selector.register(sender.connection, selectors.EVENT_READ, sender)
            sender.send()
            left -= 1
        while not all(sender.idle for sender in every):
            events = selector.select(30.0)
            if not events:
                raise TimeoutError("no request had an answer for 30 s")
            for key, _ in events:
                key.data.receive()
                if left > 0:
                    key.data.send()
                    left -= 1


def warmed(bootstrap: str, topics: list[str], *, requests: int) -> list[Sender]:
    """Return connections over which each topic got a record; retry while leaders change. Raises Refused, OSError."""
    deadline = time.monotonic() + SETTLED_S
    while True:
        every = senders(bootstrap, topics)
        try:
            run(every, requests=requests)
            return every
        except wire.Refused:
            for sender in every:
                sender.connection.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(1.0)


def cpu_seconds(pids: list[int]) -> float:
    """Return the CPU time used by the processes."""
    return sum(times.user + times.system for times in (psutil.Process(pid).cpu_times() for pid in pids))


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__)
    parse.add_argument("--bootstrap", required=True)
    parse.add_argument("--prefix", required=True, help="topics are PREFIX-000000 and so on")
    parse.add_argument("--topics", type=int, required=True)
    parse.add_argument("--requests", type=int, required=True)
    parse.add_argument("--pids", required=True, help="of the server, separated by commas")
    options = parse.parse_args()
    topics = [f"{options.prefix}-{index:06d}" for index in range(options.topics)]
    pids = [int(pid) for pid in options.pids.split(",")]
    warm_up = max(options.topics, options.requests // 4)
    for left in reversed(range(ATTEMPTS)):
        every = warmed(options.bootstrap, topics, requests=warm_up)
        before, began = cpu_seconds(pids), time.monotonic()
        try:
            run(every, requests=options.requests)
            break
        except wire.Refused:
            if not left:
                raise
            for sender in every:
                sender.connection.close()
    seconds, cpu = time.monotonic() - began, cpu_seconds(pids) - before
    print(
        json.dumps(
            {
                "records": options.requests,
                "seconds": seconds,
                "per_s": options.requests / seconds,
                "cpu_us": cpu / options.requests * 1e6,
            }
        )
    )


if __name__ == "__main__":
    main()
