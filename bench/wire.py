"""A very small Kafka client over one blocking socket, for what stock clients hide: when a node first answers, one
request over hundreds of topics, and closed loops at the least cost to the client.

Encodes with the `kio` package, so it shares no code with Headrace. Only versions without tagged fields are used:
Metadata 4, CreateTopics 4, Produce 7, ListOffsets 1. Kafka 4.3 and Headrace both serve these.
"""

import datetime
import io
import socket
import ssl
import struct
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import crc32c
from kio.schema.create_topics.v4 import request as create_v4
from kio.schema.create_topics.v4 import response as create_response_v4
from kio.schema.list_offsets.v1 import request as list_v1
from kio.schema.list_offsets.v1 import response as list_response_v1
from kio.schema.metadata.v4 import request as metadata_v4
from kio.schema.metadata.v4 import response as metadata_response_v4
from kio.schema.produce.v7 import request as produce_v7
from kio.schema.produce.v7 import response as produce_response_v7
from kio.schema.types import TopicName
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import Records, i16, i32, i32Timedelta, i64

SIZE = struct.Struct(">i")
HEADER = struct.Struct(">hhih5s")
CLIENT_ID = b"bench"
AT_ONCE = 1000
"""Topics in one request."""


def varint(value: int) -> bytes:
    """Return a zigzag varint, as in record batches."""
    value = value << 1 ^ value >> 63
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def record_batch(values: Sequence[bytes], *, timestamp: int | None = None) -> bytes:
    """Return a record batch v2 of keyless records at offsets 0.., uncompressed, without a producer id."""
    now = int(time.time() * 1000) if timestamp is None else timestamp
    records = bytearray()
    for delta, value in enumerate(values):
        body = b"\0\0" + varint(delta) + b"\1" + varint(len(value)) + value + b"\0"
        records += varint(len(body)) + body
    last = len(values) - 1
    checked = struct.pack(">hiqqqhii", 0, last, now, now, -1, -1, -1, len(values)) + records
    return struct.pack(">qiibI", 0, len(checked) + 9, -1, 2, crc32c.crc32c(checked)) + checked


def framed(request: Any, *, correlation_id: int = 0) -> bytes:
    """Return a request of `kio` preceded by its size and header."""
    body = io.BytesIO()
    entity_writer(type(request))(body, request)
    head = HEADER.pack(request.__api_key__, request.__version__, correlation_id, len(CLIENT_ID), CLIENT_ID)
    return SIZE.pack(len(head) + body.tell()) + head + body.getvalue()


def produce_request(batches: Mapping[str, bytes], *, timeout_ms: int = 30_000) -> bytes:
    """Return a Produce 7 request with acks=all: one batch for partition 0 of each topic."""
    return framed(
        produce_v7.ProduceRequest(
            acks=i16(-1),
            timeout=i32Timedelta.parse(datetime.timedelta(milliseconds=timeout_ms)),
            topic_data=tuple(
                produce_v7.TopicProduceData(
                    name=TopicName(topic),
                    partition_data=(produce_v7.PartitionProduceData(index=i32(0), records=Records(batch)),),
                )
                for topic, batch in batches.items()
            ),
        )
    )


class Refused(RuntimeError):
    """The server answered with an error code."""


def connected(host: str, port: int, *, timeout_s: float, tls: ssl.SSLContext | None = None) -> socket.socket:
    """Return a new connection that sends without delay. Raises OSError."""
    plain = socket.create_connection((host, port), timeout=timeout_s)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return plain if tls is None else tls.wrap_socket(plain, server_hostname=host)


class Client:
    """One connection. Every call blocks until the response; `timeout_s` limits each."""

    def __init__(self, bootstrap: str, *, timeout_s: float = 60.0, tls: ssl.SSLContext | None = None) -> None:
        """`bootstrap`: host:port; of several, separated by commas, the first."""
        host, _, port = bootstrap.split(",")[0].rpartition(":")
        self.socket = connected(host, int(port), timeout_s=timeout_s, tls=tls)

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def exchange(self, frame: bytes) -> bytes:
        """Send a framed request, and return the response's body (after the correlation id). Raises OSError."""
        self.socket.sendall(frame)
        size = SIZE.unpack(self._exactly(4))[0]
        return self._exactly(size)[4:]

    def _exactly(self, count: int) -> bytes:
        out = bytearray(count)
        view = memoryview(out)
        while view:
            got = self.socket.recv_into(view)
            if not got:
                raise ConnectionError("the server closed the connection")
            view = view[got:]
        return bytes(out)

    def metadata(self, topics: Iterable[str] | None, *, create: bool = False) -> metadata_response_v4.MetadataResponse:
        """Return the metadata of `topics` (None: all), creating missing ones if `create`."""
        request = metadata_v4.MetadataRequest(
            topics=None
            if topics is None
            else tuple(metadata_v4.MetadataRequestTopic(name=TopicName(topic)) for topic in topics),
            allow_auto_topic_creation=create,
        )
        return entity_reader(metadata_response_v4.MetadataResponse)(memoryview(self.exchange(framed(request))), 0)[0]

    def create_topics(self, topics: Sequence[str], *, partitions: int = 1, timeout_ms: int = 120_000) -> None:
        """Create topics in one request, with the cluster's default replicas. Raises Refused."""
        request = create_v4.CreateTopicsRequest(
            topics=tuple(
                create_v4.CreatableTopic(
                    name=TopicName(topic),
                    num_partitions=i32(partitions),
                    replication_factor=i16(-1),
                    assignments=(),
                    configs=(),
                )
                for topic in topics
            ),
            timeout=i32Timedelta.parse(datetime.timedelta(milliseconds=timeout_ms)),
            validate_only=False,
        )
        answer = entity_reader(create_response_v4.CreateTopicsResponse)(memoryview(self.exchange(framed(request))), 0)
        for topic in answer[0].topics:
            if topic.error_code:
                raise Refused(f"creating {topic.name}: {topic.error_code!r} {topic.error_message}")

    def produce(self, batches: Mapping[str, bytes]) -> None:
        """Send one Produce request with a batch for each topic, acks=all. Raises Refused."""
        body = self.exchange(produce_request(batches))
        answer = entity_reader(produce_response_v7.ProduceResponse)(memoryview(body), 0)[0]
        for topic in answer.responses:
            for partition in topic.partition_responses:
                if partition.error_code:
                    raise Refused(f"producing to {topic.name}: {partition.error_code!r}")

    def ends(self, partitions: Mapping[str, Iterable[int]]) -> dict[str, int]:
        """Return, by topic, the sum of the given partitions' end offsets; this node leads them. Raises Refused."""
        request = list_v1.ListOffsetsRequest(
            replica_id=_consumer(),
            topics=tuple(
                list_v1.ListOffsetsTopic(
                    name=TopicName(topic),
                    partitions=tuple(
                        list_v1.ListOffsetsPartition(partition_index=i32(index), timestamp=i64(-1))
                        for index in of_topic
                    ),
                )
                for topic, of_topic in partitions.items()
            ),
        )
        body = self.exchange(framed(request))
        answer = entity_reader(list_response_v1.ListOffsetsResponse)(memoryview(body), 0)[0]
        ends: dict[str, int] = {}
        for topic in answer.topics:
            for partition in topic.partitions:
                if partition.error_code:
                    raise Refused(f"end of {topic.name}: {partition.error_code!r}")
                ends[topic.name] = ends.get(topic.name, 0) + partition.offset
        return ends


def _consumer() -> Any:
    return i32(-1)


def leaders(
    bootstrap: str, topics: Sequence[str], *, create: bool = False, tls: ssl.SSLContext | None = None
) -> dict[str, dict[int, str]]:
    """Return, by topic and partition, the leader's host:port; those without leader are left out. Raises OSError."""
    with Client(bootstrap, tls=tls) as client:
        answer = client.metadata(topics, create=create)
    addresses = {broker.node_id: f"{broker.host}:{broker.port}" for broker in answer.brokers}
    return {
        topic.name: {
            part.partition_index: addresses[part.leader_id] for part in topic.partitions if part.leader_id in addresses
        }
        for topic in answer.topics
        if topic.name is not None
    }


class ToLeaders:
    """A connection to each node of a cluster, with the leader of each topic's partition 0."""

    def __init__(self, bootstrap: str, *, timeout_s: float = 60.0) -> None:
        self._clients = {address: Client(address, timeout_s=timeout_s) for address in bootstrap.split(",")}
        self._bootstrap = bootstrap
        self._led: dict[str, str] = {}

    def __enter__(self) -> "ToLeaders":
        return self

    def __exit__(self, *_: object) -> None:
        for client in self._clients.values():
            client.close()

    def create_topics(self, topics: Sequence[str]) -> None:
        """See Client."""
        next(iter(self._clients.values())).create_topics(topics)

    def produce(self, batches: Mapping[str, bytes]) -> None:
        """Like Client.produce, with one request to each leader. Raises Refused, after which it may be retried."""
        if len(self._clients) == 1:
            next(iter(self._clients.values())).produce(batches)
            return
        unknown = [topic for topic in batches if topic not in self._led]
        if unknown:
            found = leaders(self._bootstrap, unknown)
            self._led.update({topic: led[0] for topic, led in found.items() if 0 in led})
        by_leader: dict[str, dict[str, bytes]] = {}
        for topic, batch in batches.items():
            if topic not in self._led:
                raise Refused(f"{topic} has no leader")
            by_leader.setdefault(self._led[topic], {})[topic] = batch
        try:
            for address, of_leader in by_leader.items():
                self._clients[address].produce(of_leader)
        except Refused:
            for topic in batches:
                self._led.pop(topic, None)
            raise


def count_records(bootstrap: str, topics: Sequence[str]) -> int:
    """Return the sum of the end offsets of all partitions of topics, from their leaders. Raises Refused, OSError."""
    total = 0
    for at in range(0, len(topics), AT_ONCE):
        asked = topics[at : at + AT_ONCE]
        by_leader: dict[str, dict[str, list[int]]] = {}
        for topic, of_topic in leaders(bootstrap, asked).items():
            for partition, address in of_topic.items():
                by_leader.setdefault(address, {}).setdefault(topic, []).append(partition)
        for address, partitions in by_leader.items():
            with Client(address) as client:
                total += sum(client.ends(partitions).values())
    return total


def wait_for_answer(bootstrap: str, *, brokers: int = 1, alive: Any, timeout_s: float) -> None:
    """Return when the server lists at least `brokers` brokers in a Metadata response. Tries every 2 ms.

    `alive()` says whether the process still runs. Raises RuntimeError if it ends, TimeoutError.
    """
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            with Client(bootstrap, timeout_s=max(0.1, deadline - time.monotonic())) as client:
                if len(client.metadata(()).brokers) >= brokers:
                    return
        except OSError:
            pass
        if not alive():
            raise RuntimeError(f"the server at {bootstrap} ended before it was ready")
        time.sleep(0.002)
    raise TimeoutError(f"the server at {bootstrap} did not answer within {timeout_s:.0f} s")


def wait_for_ack(bootstrap: str, *, topic: str, timeout_s: float, tls: ssl.SSLContext | None = None) -> None:
    """Return when one record to `topic` (created on first use) is acknowledged by its leader. Raises TimeoutError."""
    deadline = time.monotonic() + timeout_s
    batch = record_batch([b"ready"])
    while time.monotonic() < deadline:
        try:
            address = leaders(bootstrap, (topic,), create=True, tls=tls).get(topic, {}).get(0)
            if address is not None:
                with Client(address, timeout_s=max(0.1, deadline - time.monotonic()), tls=tls) as client:
                    client.produce({topic: batch})
                    return
        except (OSError, Refused):
            pass
        time.sleep(0.002)
    raise TimeoutError(f"{bootstrap} acknowledged nothing to {topic} within {timeout_s:.0f} s")
