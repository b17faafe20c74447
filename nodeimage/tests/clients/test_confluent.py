"""librdkafka, by confluent-kafka, against a running node."""

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from kit.clients import until

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


def producer(cluster: Any, **options: Any) -> Producer:
    return Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 1, **_dotted(options)})


def _dotted(options: dict[str, Any]) -> dict[str, Any]:
    return {name.replace("_", "."): value for name, value in options.items()}


@pytest.fixture
def consumer(cluster: Any) -> Iterator[Callable[..., Consumer]]:
    """Makes consumers; closed after the test."""
    made: list[Consumer] = []

    def make(group: str = "", of: Any = None, **options: Any) -> Consumer:
        each = Consumer(
            {
                "bootstrap.servers": (of or cluster).bootstrap,
                "group.id": group or uuid.uuid4().hex,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 100,
                **_dotted(options),
            }
        )
        made.append(each)
        return each

    yield make
    for each in made:
        each.close()


@pytest.fixture
def admin(cluster: Any) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.bootstrap})


def done(futures: Any) -> Any:
    """Each future's result, by key; or the one future's."""
    if isinstance(futures, dict):
        return {key: future.result(20) for key, future in futures.items()}
    return futures.result(20)


def take(consumer: Consumer, count: int, *, within: float = 20.0) -> list[Any]:
    """The next `count` messages; fails on errors and when they do not come."""
    found: list[Any] = []
    deadline = time.monotonic() + within
    while len(found) < count and time.monotonic() < deadline:
        for message in consumer.consume(count - len(found), 0.2):
            assert message.error() is None, message.error()
            found.append(message)
    assert len(found) == count, f"{len(found)} of {count} messages came"
    return found


def send(to: Producer, topic: str, *values: bytes, **fields: Any) -> list[int]:
    """Produces and waits; the offsets."""
    offsets: list[int] = []

    def delivered(error: Any, message: Any) -> None:
        assert error is None, error
        offsets.append(message.offset())

    for value in values:
        to.produce(topic, value, on_delivery=delivered, **fields)
    assert to.flush(20) == 0
    assert len(offsets) == len(values)
    return offsets


@pytest.mark.parametrize("idempotent", [False, True], ids=["plain", "idempotent"])
@pytest.mark.parametrize("codec", CODECS)
def test_what_is_produced_is_consumed(cluster: Any, consumer: Any, codec: str, idempotent: bool) -> None:
    topic = cluster.topic()
    sender = producer(cluster, compression_type=codec, enable_idempotence=idempotent)
    headers = [("trace", b"\x00\x01"), ("empty", b""), ("null", None), ("trace", b"twice")]
    stamp = 1_700_000_000_123
    for number in range(500):
        sender.produce(topic, b"value-%d" % number * 20, b"key-%d" % (number % 7), headers=headers, timestamp=stamp)
    sender.produce(topic, None, b"tombstone")
    assert sender.flush(20) == 0
    reader = consumer()
    reader.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found = take(reader, 501)
    assert [message.offset() for message in found] == list(range(501))
    assert [message.value() for message in found[:500]] == [b"value-%d" % number * 20 for number in range(500)]
    assert [message.key() for message in found[:500]] == [b"key-%d" % (number % 7) for number in range(500)]
    assert all(message.headers() == headers for message in found[:500])
    assert {message.timestamp() for message in found[:500]} == {(TIMESTAMP_CREATE_TIME, stamp)}
    assert (found[500].key(), found[500].value(), found[500].headers()) == (b"tombstone", None, None)


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_kind_of_acks(cluster: Any, consumer: Any, acks: str) -> None:
    topic = cluster.topic()
    sender = producer(cluster, acks=acks)
    for number in range(50):
        sender.produce(topic, b"%d" % number)
    assert sender.flush(20) == 0
    reader = consumer()
    reader.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    assert [message.value() for message in take(reader, 50)] == [b"%d" % number for number in range(50)]


def test_append_time_replaces_the_producers(cluster: Any, consumer: Any, admin: AdminClient) -> None:
    topic = cluster.topic()
    new = NewTopic(topic, 1, config={"message.timestamp.type": "LogAppendTime"})
    done(admin.create_topics([new]))
    before = int(time.time() * 1000)
    send(producer(cluster, compression_type="zstd"), topic, b"a", b"b", timestamp=1_000)
    reader = consumer()
    reader.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    for message in take(reader, 2):
        kind, stamp = message.timestamp()
        assert kind == TIMESTAMP_LOG_APPEND_TIME
        assert before <= stamp <= int(time.time() * 1000)


def test_a_group_shares_the_partitions_and_goes_on_after_a_member(cluster: Any, consumer: Any, admin: Any) -> None:
    topic, group = cluster.topic(), uuid.uuid4().hex
    done(admin.create_topics([NewTopic(topic, 4)]))
    one, two = consumer(group, session_timeout_ms=6000), consumer(group, session_timeout_ms=6000)
    for each in (one, two):
        each.subscribe([topic])
    until(lambda: (one.poll(0.05), two.poll(0.05)) and len(one.assignment()) == len(two.assignment()) == 2)
    sender = producer(cluster)
    for partition in range(4):
        send(sender, topic, *(b"%d" % number for number in range(10)), partition=partition)
    for each in (one, two):
        take(each, 20)
        each.commit(asynchronous=False)
    two.close()
    until(lambda: one.poll(0.05) is None and len(one.assignment()) == 4)
    for partition in range(4):
        send(sender, topic, b"later", partition=partition)
    found = take(one, 4)
    assert {(message.partition(), message.offset(), message.value()) for message in found} == {
        (partition, 10, b"later") for partition in range(4)
    }


def test_cooperative_members_keep_what_they_have(cluster: Any, consumer: Any, admin: AdminClient) -> None:
    topic, group = cluster.topic(), uuid.uuid4().hex
    done(admin.create_topics([NewTopic(topic, 4)]))
    lost: list[int] = []

    def assigned(member: Consumer, partitions: list[Any]) -> None:
        member.incremental_assign(partitions)

    def revoked(member: Consumer, partitions: list[Any]) -> None:
        lost.extend(partition.partition for partition in partitions)
        member.incremental_unassign(partitions)

    one = consumer(group, partition_assignment_strategy="cooperative-sticky")
    two = consumer(group, partition_assignment_strategy="cooperative-sticky")
    one.subscribe([topic], on_assign=assigned, on_revoke=revoked)
    until(lambda: one.poll(0.05) is None and len(one.assignment()) == 4)
    two.subscribe([topic])
    until(lambda: (one.poll(0.05), two.poll(0.05)) and len(one.assignment()) == len(two.assignment()) == 2)
    assert len(lost) == 2, "only what goes to the new member is given up"


def test_a_static_member_comes_back_to_its_partitions_without_a_rebalance(
    cluster: Any, consumer: Any, admin: AdminClient
) -> None:
    topic, group = cluster.topic(), uuid.uuid4().hex
    done(admin.create_topics([NewTopic(topic, 4)]))
    one = consumer(group, group_instance_id="one", session_timeout_ms=20_000)
    two = consumer(group, group_instance_id="two", session_timeout_ms=20_000)
    revoked: list[Any] = []
    one.subscribe([topic], on_revoke=lambda _, partitions: revoked.append(partitions))
    two.subscribe([topic])
    until(lambda: (one.poll(0.05), two.poll(0.05)) and len(one.assignment()) == len(two.assignment()) == 2)
    had = {each.partition for each in two.assignment()}
    revoked.clear()
    two.close()
    back = consumer(group, group_instance_id="two", session_timeout_ms=20_000)
    back.subscribe([topic])
    until(lambda: (one.poll(0.05), back.poll(0.05)) and len(back.assignment()) == 2)
    assert {each.partition for each in back.assignment()} == had
    assert not revoked, "the other member noticed"


def test_commit_seek_and_offsets_by_time(cluster: Any, consumer: Any, admin: AdminClient) -> None:
    topic, group = cluster.topic(), uuid.uuid4().hex
    sender = producer(cluster)
    for number in range(10):
        send(sender, topic, b"%d" % number, timestamp=1_000_000 + 100 * number)
    reader = consumer(group)
    part = TopicPartition(topic, 0)
    reader.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    assert [message.value() for message in take(reader, 3)] == [b"0", b"1", b"2"]
    reader.commit(offsets=[TopicPartition(topic, 0, 3, metadata="mine")], asynchronous=False)
    reader.seek(TopicPartition(topic, 0, 8))
    assert [message.value() for message in take(reader, 2)] == [b"8", b"9"]
    (held,) = reader.committed([part], timeout=10)
    assert (held.offset, held.metadata) == (3, "mine")
    times = [TopicPartition(topic, 0, at) for at in (0, 1_000_100, 1_000_101, 1_000_901)]
    assert [reader.offsets_for_times([at], timeout=10)[0].offset for at in times] == [0, 1, 2, -1]
    assert reader.get_watermark_offsets(part, timeout=10) == (0, 10)
    follower = consumer(group)
    follower.subscribe([topic])
    assert take(follower, 1)[0].value() == b"3"
    send(sender, topic, b"newest", timestamp=5_000_000)
    send(sender, topic, b"not newest", timestamp=4_000_000)
    for spec, offset in (
        (OffsetSpec.max_timestamp(), 10),
        (OffsetSpec.latest(), 12),
        (OffsetSpec.earliest(), 0),
        (OffsetSpec.for_timestamp(4_000_000), 10),
    ):
        found = done(admin.list_offsets({part: spec}, isolation_level=IsolationLevel.READ_UNCOMMITTED))
        assert found[part].offset == offset


def test_topics_are_made_described_widened_and_deleted(cluster: Any, admin: AdminClient) -> None:
    topic = cluster.topic()
    done(admin.create_topics([NewTopic(topic, 2, config={"retention.ms": "60000"})]))
    with pytest.raises(KafkaException, match="TOPIC_ALREADY_EXISTS"):
        done(admin.create_topics([NewTopic(topic, 2)]))
    assert len(admin.list_topics(topic, timeout=10).topics[topic].partitions) == 2
    done(admin.create_partitions([NewPartitions(topic, 5)]))
    until(lambda: len(admin.list_topics(topic, timeout=10).topics[topic].partitions) == 5)
    with pytest.raises(KafkaException, match="INVALID_PARTITIONS"):
        done(admin.create_partitions([NewPartitions(topic, 3)]))
    (described,) = done(admin.describe_topics(TopicCollection([topic]))).values()
    assert len(described.partitions) == 5
    assert described.topic_id is not None
    done(admin.delete_topics([topic]))
    with pytest.raises(KafkaException, match="UNKNOWN_TOPIC_OR_PART"):
        done(admin.delete_topics([topic]))


def test_configs_of_topics_and_brokers(cluster: Any, admin: AdminClient) -> None:
    topic = cluster.topic()
    done(admin.create_topics([NewTopic(topic, 1)]))
    resource = ConfigResource(ResourceType.TOPIC, topic)

    def now(name: str) -> Any:
        (configs,) = done(admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)])).values()
        return configs[name]

    assert (now("retention.ms").value, now("retention.ms").source) == ("-1", ConfigSource.STATIC_BROKER_CONFIG.value)
    resource.add_incremental_config(ConfigEntry("retention.ms", "123456", incremental_operation=AlterConfigOpType.SET))
    resource.add_incremental_config(
        ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET)
    )
    done(admin.incremental_alter_configs([resource]))
    assert (now("retention.ms").value, now("retention.ms").is_default) == ("123456", False)
    assert now("cleanup.policy").value == "compact"
    undo = ConfigResource(ResourceType.TOPIC, topic)
    undo.add_incremental_config(ConfigEntry("retention.ms", None, incremental_operation=AlterConfigOpType.DELETE))
    done(admin.incremental_alter_configs([undo]))
    done(admin.incremental_alter_configs([undo]))
    assert now("retention.ms").value == "-1"
    done(admin.alter_configs([ConfigResource(ResourceType.TOPIC, topic, set_config={"max.message.bytes": "4096"})]))
    assert now("max.message.bytes").value == "4096"
    assert now("cleanup.policy").is_default, "the older API replaces all"
    with pytest.raises(KafkaException, match="MSG_SIZE_TOO_LARGE"):
        send_failing(producer(cluster), topic, b"x" * 5_000)
    (broker,) = done(admin.describe_configs([ConfigResource(ResourceType.BROKER, str(_node(admin)))])).values()
    assert broker["min.insync.replicas"].value == now("min.insync.replicas").value == "1"


def send_failing(to: Producer, topic: str, value: bytes) -> None:
    errors: list[Any] = []
    to.produce(topic, value, on_delivery=lambda error, _: errors.append(error))
    assert to.flush(20) == 0
    if errors[0] is not None:
        raise KafkaException(errors[0])


def _node(admin: AdminClient) -> int:
    (node,) = done(admin.describe_cluster()).nodes
    return int(node.id)


def test_a_refused_transaction_says_why(cluster: Any) -> None:
    with pytest.raises(KafkaException, match="transactions are not supported"):
        producer(cluster, transactional_id="t").init_transactions(20)


def test_all_operations_are_authorized(cluster: Any, admin: AdminClient) -> None:
    topic = cluster.topic()
    done(admin.create_topics([NewTopic(topic, 1)]))
    asked = {"include_authorized_operations": True}
    (described,) = done(admin.describe_topics(TopicCollection([topic]), **asked)).values()
    assert {each.name for each in described.authorized_operations} == (
        {"READ", "WRITE", "CREATE", "DELETE", "ALTER", "DESCRIBE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS"}
    )
    assert "IDEMPOTENT_WRITE" in {each.name for each in done(admin.describe_cluster(**asked)).authorized_operations}


def test_the_cluster_describes_itself(cluster: Any, admin: AdminClient) -> None:
    described = done(admin.describe_cluster())
    assert described.cluster_id
    assert [(node.host, node.port) for node in described.nodes] == [(cluster.host, cluster.port)]
    assert described.controller.id == described.nodes[0].id


def test_records_are_deleted_up_to_an_offset(cluster: Any, consumer: Any, admin: AdminClient) -> None:
    topic = cluster.topic()
    send(producer(cluster), topic, *(b"%d" % number for number in range(10)))
    (deleted,) = done(admin.delete_records([TopicPartition(topic, 0, 6)])).values()
    assert deleted.low_watermark == 6
    reader = consumer()
    reader.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    assert [message.value() for message in take(reader, 4)] == [b"6", b"7", b"8", b"9"]
    reader.seek(TopicPartition(topic, 0, 2))  # gone: the consumer starts again at the earliest
    assert take(reader, 1)[0].offset() == 6


def test_groups_are_listed_described_moved_and_deleted(cluster: Any, consumer: Any, admin: AdminClient) -> None:
    topic, group = cluster.topic(), uuid.uuid4().hex
    send(producer(cluster), topic, b"a", b"b", b"c")
    reader = consumer(group, client_id="me")
    reader.subscribe([topic])
    take(reader, 3)
    reader.commit(asynchronous=False)
    assert group in {each.group_id for each in done(admin.list_consumer_groups()).valid}
    described = done(admin.describe_consumer_groups([group])[group])
    assert described.state.name == "STABLE"
    (member,) = described.members
    assert member.client_id == "me"
    assert [(part.topic, part.partition) for part in member.assignment.topic_partitions] == [(topic, 0)]
    with pytest.raises(KafkaException, match="NON_EMPTY_GROUP"):
        done(admin.delete_consumer_groups([group])[group])
    reader.close()

    def held() -> int:
        (found,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
        (part,) = done(found).topic_partitions
        return int(part.offset)

    assert held() == 3
    move = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 1)])
    for future in admin.alter_consumer_group_offsets([move]).values():
        done(future)
    assert held() == 1
    done(admin.delete_consumer_groups([group])[group])
    assert group not in {each.group_id for each in done(admin.list_consumer_groups()).valid}


def test_all_forms_of_a_name_are_one_topic(cluster: Any, consumer: Any) -> None:
    stream = cluster.stream(auto_create=True)
    full, alias = f"{stream}:t", f"{stream[1:].replace('/', '.')}..t"
    sender = producer(cluster)
    assert send(sender, full, b"a") == [0]
    assert send(sender, alias, b"b") == [1]
    group = uuid.uuid4().hex
    one = consumer(group)
    one.subscribe([full])
    found = take(one, 2)
    assert [(message.topic(), message.value()) for message in found] == [(full, b"a"), (full, b"b")]
    one.commit(asynchronous=False)
    one.close()
    send(sender, full, b"c")
    other = consumer(group)
    other.subscribe([alias])
    (message,) = take(other, 1)
    assert (message.topic(), message.offset(), message.value()) == (alias, 2, b"c"), "the group's cursor is one"
    bare = f"bare-{uuid.uuid4().hex}"
    assert send(sender, bare, b"x") == [0]
    assert send(sender, f"/default:{bare}", b"y") == [1]


def test_members_of_one_group_may_name_a_topic_differently(cluster: Any, consumer: Any, admin: AdminClient) -> None:
    stream = cluster.stream(auto_create=True, default_partitions=4)
    full, alias, group = f"{stream}:t", f"{stream[1:].replace('/', '.')}..t", uuid.uuid4().hex
    sender = producer(cluster)
    for partition in range(4):
        send(sender, full, b"%d" % partition, partition=partition)
    one, two = consumer(group), consumer(group)
    one.subscribe([full])
    two.subscribe([alias])
    seen: set[tuple[int, bytes]] = set()
    count = 0

    def all_read() -> bool:
        nonlocal count
        for each in (one, two):
            message = each.poll(0.05)
            if message is not None:
                assert message.error() is None, message.error()
                seen.add((message.partition(), message.value()))
                count += 1
        return len(seen) == 4

    until(all_read)
    assert seen == {(partition, b"%d" % partition) for partition in range(4)}


def test_topics_come_by_themselves_only_where_the_stream_allows(cluster: Any, admin: AdminClient) -> None:
    closed = cluster.stream(auto_create=False)
    sender = producer(cluster, message_timeout_ms=3_000)
    with pytest.raises(KafkaException, match=r"UNKNOWN_TOPIC_OR_PART|UNKNOWN_TOPIC|_MSG_TIMED_OUT"):
        send_failing(sender, f"{closed}:new", b"x")
    done(admin.create_topics([NewTopic(f"{closed}:new", 1)]))
    assert send(producer(cluster), f"{closed}:new", b"x") == [0]
    wide = cluster.stream(auto_create=True, default_partitions=3)
    send(producer(cluster), f"{wide}:new", b"x")
    assert len(admin.list_topics(f"{wide}:new", timeout=10).topics[f"{wide}:new"].partitions) == 3


def test_a_pattern_finds_topics_as_they_come(cluster: Any, consumer: Any, admin: AdminClient) -> None:
    stream = cluster.stream(auto_create=True)
    sender = producer(cluster)
    send(sender, f"{stream}:dev-1", b"one")  # librdkafka reports a pattern that matches no topic yet as an error
    reader = consumer(topic_metadata_refresh_interval_ms=200)
    reader.subscribe([f"^{stream}:dev-.*"])
    assert take(reader, 1)[0].value() == b"one"
    reader.commit(asynchronous=False)
    send(sender, f"{stream}:other", b"no")
    send(sender, f"{stream}:dev-2", b"two")
    assert take(reader, 1)[0].value() == b"two"


def test_many_threads_of_producers_lose_nothing(cluster: Any, consumer: Any) -> None:
    topic = cluster.topic()

    def run(name: int) -> None:
        sender = producer(cluster, enable_idempotence=True, compression_type="lz4")
        for number in range(500):
            sender.produce(topic, b"%d-%d" % (name, number))
            sender.poll(0)
        assert sender.flush(20) == 0

    threads = [threading.Thread(target=run, args=(name,)) for name in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    reader = consumer()
    reader.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found = [message.value().split(b"-") for message in take(reader, 3_000)]
    for name in range(6):
        assert [int(number) for who, number in found if int(who) == name] == list(range(500))
