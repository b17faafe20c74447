"""kafka-python 3 against a running node. It takes no `/` and `:` in names: topics go by their alias or bare."""

import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, NewTopic, OffsetSpec
from kafka.errors import InvalidPartitionsError, TopicAlreadyExistsError, UnknownTopicOrPartitionError
from kafka.structs import OffsetAndMetadata

CODECS = [None, "gzip", "snappy", "lz4", "zstd"]
POLL_MS = 5_000
"""Longer than a rebalance: see docs/protocol.md."""


@pytest.fixture
def topic(cluster: Any) -> str:
    """A topic's alias: the default stream makes it on first use."""
    name: str = cluster.topic().replace("/default:", "default..")
    return name


@pytest.fixture
def opened() -> Iterator[list[Any]]:
    """Clients to close after the test."""
    clients: list[Any] = []
    yield clients
    for client in clients:
        client.close()


@pytest.fixture
def producer(cluster: Any, opened: list[Any]) -> Callable[..., KafkaProducer]:
    def make(**options: Any) -> KafkaProducer:
        opened.append(KafkaProducer(bootstrap_servers=cluster.bootstrap, **options))
        return opened[-1]

    return make


@pytest.fixture
def consumer(cluster: Any, opened: list[Any]) -> Callable[..., KafkaConsumer]:
    def make(*topics: str, **options: Any) -> KafkaConsumer:
        options = {"auto_offset_reset": "earliest", "enable_auto_commit": False, "fetch_max_wait_ms": 100} | options
        opened.append(KafkaConsumer(*topics, bootstrap_servers=cluster.bootstrap, **options))
        return opened[-1]

    return make


@pytest.fixture
def admin(cluster: Any, opened: list[Any]) -> KafkaAdminClient:
    opened.append(KafkaAdminClient(bootstrap_servers=cluster.bootstrap))
    return opened[-1]


def take(consumer: KafkaConsumer, count: int, *, within: float = 20.0) -> list[Any]:
    """The next `count` records, or fails."""
    found: list[Any] = []
    until = time.monotonic() + within
    while len(found) < count and time.monotonic() < until:
        for records in consumer.poll(timeout_ms=200, max_records=count - len(found)).values():
            found += records
    assert len(found) == count, f"{len(found)} of {count} records came"
    return found


@pytest.mark.parametrize("idempotent", [False, True], ids=["plain", "idempotent"])
@pytest.mark.parametrize("codec", CODECS)
def test_what_is_produced_is_consumed(
    topic: str, producer: Any, consumer: Any, codec: str | None, idempotent: bool
) -> None:
    sender = producer(compression_type=codec, enable_idempotence=idempotent, linger_ms=5)
    headers = [("trace", b"\x00\x01"), ("empty", b"")]
    stamp = 1_700_000_000_123
    sent = [
        sender.send(topic, b"value-%d" % number * 20, key=b"key", headers=headers, timestamp_ms=stamp)
        for number in range(300)
    ]
    sent.append(sender.send(topic, None, key=b"tombstone"))
    assert [future.get(20).offset for future in sent] == list(range(301))
    reader = consumer()
    reader.assign([TopicPartition(topic, 0)])
    found = take(reader, 301)
    assert [record.offset for record in found] == list(range(301))
    assert [record.value for record in found[:300]] == [b"value-%d" % number * 20 for number in range(300)]
    assert {(record.key, record.timestamp, record.timestamp_type) for record in found[:300]} == {(b"key", stamp, 0)}
    assert all(list(record.headers) == headers for record in found[:300])
    assert (found[300].key, found[300].value) == (b"tombstone", None)


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_every_kind_of_acks(topic: str, producer: Any, consumer: Any, acks: int | str) -> None:
    sender = producer(acks=acks, enable_idempotence=False)
    for number in range(50):
        sender.send(topic, b"%d" % number)
    sender.flush(20)
    reader = consumer(topic)
    assert [record.value for record in take(reader, 50)] == [b"%d" % number for number in range(50)]


def test_append_time(topic: str, producer: Any, consumer: Any, admin: KafkaAdminClient) -> None:
    admin.create_topics({topic: {"num_partitions": 1, "configs": {"message.timestamp.type": "LogAppendTime"}}})
    before = int(time.time() * 1000)
    metadata = producer().send(topic, b"a", timestamp_ms=1_000).get(20)
    assert before <= metadata.timestamp <= int(time.time() * 1000)
    (record,) = take(consumer(topic), 1)
    assert (record.timestamp, record.timestamp_type) == (metadata.timestamp, 1)


def test_a_group_shares_the_partitions(topic: str, producer: Any, consumer: Any, admin: KafkaAdminClient) -> None:
    topic = topic.removeprefix("default..")  # as listings have it: this client's first question is for all topics
    admin.create_topics({topic: {"num_partitions": 4}})
    group = uuid.uuid4().hex
    one, two = consumer(topic, group_id=group), consumer(topic, group_id=group, group_instance_id="two")
    deadline = time.monotonic() + 60
    with ThreadPoolExecutor(2) as polls:
        while not len(one.assignment()) == len(two.assignment()) == 2:
            assert time.monotonic() < deadline, "no balance came about"
            list(polls.map(lambda each: each.poll(timeout_ms=POLL_MS), (one, two)))
    assert not one.assignment() & two.assignment()
    sender = producer()
    for partition in range(4):
        for number in range(5):
            sender.send(topic, b"%d" % number, partition=partition).get(20)
    assert {record.partition for each in (one, two) for record in take(each, 10)} == set(range(4))
    one.commit()
    two.commit()
    described = admin.describe_groups([group])[group]
    assert len(described["members"]) == 2
    held = admin.list_group_offsets({group: None})[group]
    assert {part.partition: committed_offset.offset for part, committed_offset in held.items()} == dict.fromkeys(
        range(4), 5
    )
    assert group in {each["group_id"] for each in admin.list_groups()}


def test_commit_seek_and_offsets_by_time(topic: str, producer: Any, consumer: Any, admin: KafkaAdminClient) -> None:
    sender, part = producer(), TopicPartition(topic, 0)
    for number in range(10):
        sender.send(topic, b"%d" % number, timestamp_ms=1_000_000 + 100 * number).get(20)
    group = uuid.uuid4().hex
    reader = consumer(group_id=group)
    reader.assign([part])
    assert [record.value for record in take(reader, 3)] == [b"0", b"1", b"2"]
    reader.commit({part: OffsetAndMetadata(3, "mine", -1)})
    reader.seek(part, 8)
    assert [record.value for record in take(reader, 2)] == [b"8", b"9"]
    assert reader.committed(part) == 3
    assert reader.beginning_offsets([part]) == {part: 0}
    assert reader.end_offsets([part]) == {part: 10}
    found = reader.offsets_for_times({part: 1_000_101})[part]
    assert (found.offset, found.timestamp) == (2, 1_000_200)
    assert reader.offsets_for_times({part: 9_000_000})[part] is None
    newest = admin.list_partition_offsets({part: OffsetSpec.MAX_TIMESTAMP})[part]
    assert (newest.offset, newest.timestamp) == (9, 1_000_900)
    reader.close()
    admin.alter_group_offsets(group, {part: OffsetAndMetadata(6, "", -1)})
    follower = consumer(topic, group_id=group)
    assert take(follower, 1)[0].value == b"6"


def test_admin(cluster: Any, topic: str, producer: Any, admin: KafkaAdminClient) -> None:
    admin.create_topics({topic: {"num_partitions": 2, "configs": {"retention.ms": "60000"}}})
    with pytest.raises(TopicAlreadyExistsError):
        admin.create_topics([NewTopic(topic, 2, 1)])
    admin.create_partitions({topic: 4})
    with pytest.raises(InvalidPartitionsError):
        admin.create_partitions({topic: 3})
    (described,) = admin.describe_topics([topic])
    assert len(described["partitions"]) == 4
    resource = ConfigResource(ConfigResourceType.TOPIC, topic)
    configs = admin.describe_configs([resource])
    assert "60000" in str(configs)
    for incremental in (True, False):
        changed = ConfigResource(ConfigResourceType.TOPIC, topic, configs={"retention.ms": f"7{incremental:d}000"})
        admin.alter_configs([changed], incremental=incremental)
        assert f"7{incremental:d}000" in str(admin.describe_configs([resource]))
    for number in range(4):
        producer().send(topic, b"x", partition=number).get(20)
    deleted = admin.delete_records({TopicPartition(topic, 0): 1})
    assert deleted[TopicPartition(topic, 0)]["low_watermark"] == 1
    cluster_now = admin.describe_cluster()
    assert [(each["host"], each["port"]) for each in cluster_now["brokers"]] == [(cluster.host, cluster.port)]
    assert topic.removeprefix("default..") in str(admin.describe_log_dirs())
    admin.delete_topics([topic])
    with pytest.raises(UnknownTopicOrPartitionError):
        admin.delete_topics([topic])


def test_alias_and_bare_name_are_one_topic(topic: str, producer: Any, consumer: Any) -> None:
    bare = topic.removeprefix("default..")
    assert producer().send(topic, b"a").get(20).offset == 0
    assert producer().send(bare, b"b").get(20).offset == 1
    found = take(consumer(bare), 2)
    assert [(record.topic, record.value) for record in found] == [(bare, b"a"), (bare, b"b")]


def test_a_pattern_subscribes_to_bare_names(producer: Any, consumer: Any) -> None:
    name = f"pattern-{uuid.uuid4().hex}"
    producer().send(f"{name}-1", b"a").get(20)
    reader = consumer(group_id=uuid.uuid4().hex)
    reader.subscribe(pattern=f"^{name}-.*")
    assert take(reader, 1)[0].value == b"a"
