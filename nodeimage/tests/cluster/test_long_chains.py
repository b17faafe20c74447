"""Partitions whose chain lies on several nodes: larger than any of them has room for, and read by every client."""

import asyncio
import time
from collections.abc import Callable, Iterator

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from kafka import KafkaConsumer
from kafka import TopicPartition as KafkaPartition

from kit.cluster_clients import at, make_topics
from kit.cluster_nodes import Cluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

MIB = 1 << 20
QUOTA = 256 * MIB
RECORD = 32 * 1024
NODES = 4
IDLE_S = 60.0
"""A client that gets nothing for so long gets nothing more."""

Numbers = Iterator[tuple[int, int]]
"""(offset, number in the value) of each record read."""


def value(number: int) -> bytes:
    return number.to_bytes(8, "big") * (RECORD // 8)


def write(cluster: Cluster, topic: str, count: int) -> None:
    """Records 0 to `count` to partition 0; fails on the first that is refused."""
    refused: list[KafkaError] = []

    def delivered(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            refused.append(error)

    producer = Producer(
        {
            **at(cluster.bootstrap),
            "enable.idempotence": True,
            "message.timeout.ms": 60_000,
            "queue.buffering.max.kbytes": 64 * 1024,
        }
    )
    for number in range(count):
        while True:
            try:
                producer.produce(topic, value(number), partition=0, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
        assert not refused, (number, refused[0], cluster.events())
    assert producer.flush(90) == 0
    assert not refused, (refused[0], cluster.events())


def read_by_librdkafka(cluster: Cluster, topic: str, begin: int) -> Numbers:
    consumer = Consumer({**at(cluster.bootstrap), "group.id": "long", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, begin)])
    try:
        last = time.monotonic()
        while time.monotonic() < last + IDLE_S:
            for message in consumer.consume(500, 0.2):
                assert message.error() is None, message.error()
                last = time.monotonic()
                yield message.offset(), _number(message.value())
    finally:
        consumer.close()


def read_by_kafka_python(cluster: Cluster, topic: str, begin: int) -> Numbers:
    consumer = KafkaConsumer(bootstrap_servers=cluster.bootstrap.split(","), enable_auto_commit=False)
    place = KafkaPartition(topic.replace("/", "").replace(":", ".."), 0)
    try:
        consumer.assign([place])
        consumer.seek(place, begin)
        while found := consumer.poll(timeout_ms=int(IDLE_S * 1000)):
            yield from ((record.offset, _number(record.value)) for record in found[place])
    finally:
        consumer.close()


def read_by_aiokafka(cluster: Cluster, topic: str, begin: int) -> Numbers:
    place = AioPartition(topic.replace("/", "").replace(":", ".."), 0)

    async def start() -> AIOKafkaConsumer:
        consumer = AIOKafkaConsumer(bootstrap_servers=cluster.bootstrap, enable_auto_commit=False)
        await consumer.start()
        consumer.assign([place])
        consumer.seek(place, begin)
        return consumer

    with asyncio.Runner() as runner:
        consumer = runner.run(start())
        try:
            while found := runner.run(consumer.getmany(timeout_ms=int(IDLE_S * 1000))):
                yield from ((record.offset, _number(record.value)) for record in found[place])
        finally:
            runner.run(consumer.stop())


def _number(read: bytes) -> int:
    number = int.from_bytes(read[:8], "big")
    assert read == value(number)
    return number


def check(read: Numbers, *, begin: int, count: int) -> None:
    """Every record comes, in order."""
    for expected in range(begin, count):
        assert next(read) == (expected, expected)
    read.close()  # type: ignore[attr-defined]  # a generator


def make_stream(cluster: Cluster, *, replicas: int) -> str:
    """A topic of one partition in a volume of so many replicas."""
    name = f"kept-{replicas}"
    cluster.admin("volume.create", {"name": name, "replicas": replicas, "min_in_sync": min(2, replicas)})
    cluster.admin("stream.create", {"path": f"/{name}", "policy": {"volume": name, "auto_create": False}})
    make_topics(cluster, [f"/{name}:long"], 1)
    return f"/{name}:long"


@pytest.mark.parametrize(("replicas", "quotas"), [(3, 1.2), (1, 3.0)])
def test_a_partition_may_be_larger_than_any_nodes_quota(
    make_cluster: Callable[..., Cluster], replicas: int, quotas: float
) -> None:
    cluster = make_cluster(f"--disk-quota={QUOTA}", "--chunk-bytes=1048576", count=NODES)
    topic = make_stream(cluster, replicas=replicas)
    count = int(quotas * QUOTA) // RECORD + 1
    began = time.monotonic()
    write(cluster, topic, count)
    used = [f"{node['disk_used_bytes'] / QUOTA:.0%}" for node in cluster.admin("node.list")]
    print(f"{count * RECORD / MIB:.0f} MiB written in {time.monotonic() - began:.0f} s, parts of quotas used: {used}")
    check(read_by_librdkafka(cluster, topic, 0), begin=0, count=count)


def test_every_client_reads_a_chain_of_twenty_over_four_nodes(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(count=NODES)
    topic = make_stream(cluster, replicas=1)
    count = 40 * 2_000_000 // RECORD  # batches of up to 1 MB: a partitionlet holds up to 3 MB
    write(cluster, topic, count)
    chain = cluster.admin("chain", {"topic": topic, "partition": 0})
    leaders = {record.container_id: record.leader for record in cluster.containers()}
    assert len(chain) >= 20
    assert len({leaders[each["container"]] for each in chain}) == NODES
    for read in (read_by_librdkafka, read_by_kafka_python, read_by_aiokafka):
        for begin in (0, count // 3):
            began = time.monotonic()
            check(read(cluster, topic, begin), begin=begin, count=count)
            print(f"{read.__name__} from {begin}: {time.monotonic() - began:.1f} s")
