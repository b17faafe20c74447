"""A producer that wants no answers sends and closes: what it has sent is stored."""

import socket
import struct
import time
from typing import Any

from headrace.kafka_client.blocking_client import BrokerConnection
from headrace.wire import generic_codec, produce
from headrace.wire.api_keys import ApiKey
from headrace.wire.batch import build_batch
from headrace.wire.header import request_header


def request(topic: str, value: bytes) -> bytes:
    batch = memoryview(build_batch([(1, None, value, [])]))
    part = produce.PartitionRecords(topic, 0, batch)
    body = produce.encode_request(8, produce.ProduceRequest(None, 0, 1000, [part]))
    header = request_header(ApiKey.PRODUCE, 8, 1, "gone")
    return struct.pack(">i", len(header) + len(body)) + header + body


def create(cluster: Any, topics: list[str]) -> None:
    with BrokerConnection(cluster.host, cluster.port) as connection:
        wanted = [
            {"name": topic, "num_partitions": 1, "replication_factor": -1, "assignments": [], "configs": []}
            for topic in topics
        ]
        fields = {"topics": wanted, "timeout_ms": 10_000, "validate_only": False}
        connection.call(ApiKey.CREATE_TOPICS, 5, generic_codec.encode_request(ApiKey.CREATE_TOPICS, 5, fields))


def end_of(cluster: Any, topic: str) -> int:
    with BrokerConnection(cluster.host, cluster.port) as connection:
        partition = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
        fields = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": topic, "partitions": [partition]}]}
        body = connection.call(ApiKey.LIST_OFFSETS, 5, generic_codec.encode_request(ApiKey.LIST_OFFSETS, 5, fields))
        answer = generic_codec.decode_response(ApiKey.LIST_OFFSETS, 5, body)
    return int(answer.topics[0].partitions[0].offset)


def test_what_was_sent_without_acks_before_closing_is_stored(cluster: Any) -> None:
    """The topics are not in memory, so that the first request has to wait, and those behind it too."""
    topics = [cluster.topic() for _ in range(20)]
    create(cluster, topics)
    for topic in topics:
        with socket.create_connection((cluster.host, cluster.port)) as client:
            client.sendall(b"".join(request(topic, b"%d" % number) for number in range(50)))
    until = time.monotonic() + 20
    while (ends := [end_of(cluster, topic) for topic in topics]) != [50] * len(topics):
        assert time.monotonic() < until, ends
