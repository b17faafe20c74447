"""A node's process at its limits: of connections, and of descriptors by the kernel's limit."""

import resource
import socket
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient

NewCluster = Callable[..., Any]
PATIENCE_S = 60.0


def producing(bootstrap: str) -> tuple[Producer, list[KafkaError | None], Callable[..., None]]:
    told: list[KafkaError | None] = []
    made = Producer({"bootstrap.servers": bootstrap, "acks": "all", "message.timeout.ms": 60_000})

    def produce(topic: str, count: int = 1, size: int = 1000) -> None:
        for _ in range(count):
            made.produce(topic, bytes(size), on_delivery=lambda error, _: told.append(error))
            made.poll(0)

    return made, told, produce


def test_silent_connections_take_no_node_down_and_keep_nobody_out(new_cluster: NewCluster) -> None:
    cluster = new_cluster("--max-connections=20")
    topic = cluster.topic()
    with ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(socket.create_connection((cluster.host, cluster.port), 5))
        producer, told, produce = producing(cluster.bootstrap)
        produce(topic, 10)
        producer.flush(PATIENCE_S)
        assert told == [None] * 10
        assert AdminClient({"bootstrap.servers": cluster.bootstrap}).list_topics(timeout=PATIENCE_S).topics
        clients = cluster.admin("status")["clients"]
        assert clients["connected"] <= 20 + 16
        assert clients["made_way_since_start"] >= 150
        assert clients["most_connections"] == 20
    cluster.stop()


def test_a_node_whose_descriptors_are_used_up_waits_and_goes_on(new_cluster: NewCluster) -> None:
    cluster = new_cluster("--chunk-bytes=262144")
    topic = cluster.topic()
    producer, told, produce = producing(cluster.bootstrap)
    produce(topic, 10)
    producer.flush(PATIENCE_S)
    assert told == [None] * 10
    _, hard = resource.prlimit(cluster.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(cluster.pid, resource.RLIMIT_NOFILE, (0, hard))
    try:
        produce(topic, 3000)  # fills several chunks
        producer.flush(2.0)
        assert len(told) < 3010
    finally:
        resource.prlimit(cluster.pid, resource.RLIMIT_NOFILE, (hard, hard))
    producer.flush(PATIENCE_S)
    assert told == [None] * 3010
    assert "file descriptors" in cluster.log()
    cluster.stop()
