"""From Apache Kafka 4.3 to a cluster of three nodes: records keep their offsets, the home moves, clients continue."""

import asyncio
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import aiokafka
import confluent_kafka as ck
import kafka
import pytest
from bench import jars
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from kit.certificates import Certificates
from kit.cluster_nodes import Cluster, until
from kit.linked_clusters import CALL_S, STREAM, Linked, await_caught_up, headrace, headrace_json, shown
from kit.real_kafka import NOT_YET, RealKafka

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.xdist_group("kafka"), pytest.mark.timeout(600)]

PARTITIONS = 3
PLAIN, EXACTLY, SHORT = "plain", "exactly", "short"
LATE = "late"
GROUP, AT_END = "readers", "at-the-end"
COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")


class Seen(NamedTuple):
    """A record as a consumer under read_committed sees it."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: list[tuple[str, bytes]]


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[RealKafka]:
    try:
        jars.kafka_classpath()
    except jars.JarsMissing as error:
        pytest.skip(str(error))
    server = RealKafka(tmp_path_factory.mktemp("kafka"), certificates)
    server.start()
    yield server
    server.kill()


def reader(bootstrap: str, group: str = "looks", **settings: Any) -> ck.Consumer:
    common = {"enable.auto.commit": False, "isolation.level": "read_committed", "enable.partition.eof": True}
    return ck.Consumer({"bootstrap.servers": bootstrap, "group.id": group, **common, **settings})


def all_of(bootstrap: str, topic: str, partition: int) -> list[Seen]:
    """All records of a partition, from its log start on."""
    consumer = reader(bootstrap)
    try:
        consumer.assign([TopicPartition(topic, partition, ck.OFFSET_BEGINNING)])
        return [_seen(each) for each in _until_end(consumer, 1)]
    finally:
        consumer.close()


def _until_end(consumer: ck.Consumer, partitions: int) -> Iterator[ck.Message]:
    ended: set[tuple[str, int]] = set()
    while len(ended) < partitions:
        message = consumer.poll(30)
        assert message is not None, f"{len(ended)} of {partitions} partitions were read to their ends"
        if (error := message.error()) is None:
            yield message
        else:
            assert error.code() == ck.KafkaError._PARTITION_EOF, error
            ended.add((str(message.topic()), int(message.partition() or 0)))


def _seen(message: ck.Message) -> Seen:
    offset, headers = message.offset(), message.headers() or []
    assert offset is not None
    return Seen(offset, message.key(), message.value(), message.timestamp()[1], list(headers))


def ends(bootstrap: str, topic: str) -> list[tuple[int, int]]:
    """Log start and end of each partition."""
    consumer = reader(bootstrap)
    try:
        return [consumer.get_watermark_offsets(TopicPartition(topic, each), 30) for each in range(PARTITIONS)]
    finally:
        consumer.close()


def write(bootstrap: str, topic: str, name: str, count: int, **settings: Any) -> None:
    producer = ck.Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, **settings})
    failed: list[object] = []
    for number in range(count):
        producer.produce(
            topic,
            f"{name} {number} ".encode() + b"x" * 100,
            key=str(number).encode() if number % 2 else None,
            partition=number % PARTITIONS,
            timestamp=1_700_000_000_000 + number,
            headers=[("name", name.encode()), ("empty", b"")],
            on_delivery=lambda error, _: error and failed.append(error),
        )
    assert producer.flush(60) == 0
    assert not failed, failed[:3]


def write_in_transactions(old: RealKafka) -> None:
    """Run three transactions that commit and one that aborts, so that each partition ends with a marker."""
    producer = old.producer(**{"transactional.id": "mover"})
    producer.init_transactions(30)
    for turn in range(4):
        producer.begin_transaction()
        for number in range(30):
            producer.produce(EXACTLY, f"turn {turn} {number}".encode(), partition=number % PARTITIONS)
        producer.flush(30)
        if turn == 2:
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)


def commit(bootstrap: str, group: str, offsets: dict[tuple[str, int], int]) -> None:
    consumer = reader(bootstrap, group)
    try:
        places = [TopicPartition(topic, partition, offset) for (topic, partition), offset in offsets.items()]

        def is_taken() -> bool:  # for the first group, Kafka creates its offsets topic
            try:
                consumer.commit(offsets=places, asynchronous=False)
            except ck.KafkaException as error:
                if error.args[0].code() in NOT_YET:
                    return False
                raise
            return True

        until("the cursors are taken", is_taken)
    finally:
        consumer.close()


def committed(bootstrap: str, group: str) -> dict[tuple[str, int], int]:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
    found = asked[group].result(30).topic_partitions or []
    return {(each.topic, each.partition): each.offset for each in found}


def configs(bootstrap: str, topic: str) -> dict[str, str]:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    resource = ConfigResource(ResourceType.TOPIC, topic)
    return {name: each.value for name, each in admin.describe_configs([resource])[resource].result(30).items()}


def test_a_kafka_cluster_is_left_with_all_that_it_has(linked: Linked, old: RealKafka) -> None:
    for topic in (PLAIN, EXACTLY, SHORT):
        old.create(topic, partitions=PARTITIONS, configs={"max.message.bytes": "400000"})
    for compression in COMPRESSIONS:
        write(old.bootstrap, PLAIN, compression, 300, **{"compression.type": compression})
        write(old.bootstrap, SHORT, compression, 60)
    write_in_transactions(old)
    cut = [TopicPartition(SHORT, each, 37) for each in range(PARTITIONS)]
    for future in old.admin.delete_records(cut).values():
        future.result(30)
    half = {(PLAIN, each): 211 + each for each in range(PARTITIONS)}
    commit(old.bootstrap, GROUP, half)
    (south,) = linked.start("south", count=3)
    made = headrace(south, "link", "create", "--source", old.bootstrap, "--target", STREAM, "--name", "l")
    assert made.code == 0, made
    old.create(LATE, partitions=PARTITIONS)  # created while the link runs
    for turn in range(10):
        write(old.bootstrap, LATE, f"late {turn}", 60, **{"enable.idempotence": True})
    # After the markers: where a client that has read everything continues.
    last = {(EXACTLY, each): end for each, (_, end) in enumerate(ends(old.bootstrap, EXACTLY))}
    commit(old.bootstrap, AT_END, last)

    until("all topics are here", lambda: shown(south)["partitions"] == 4 * PARTITIONS)
    await_caught_up(south)
    moved = {each["topic"]: each for each in headrace_json(south, "stream", "move-home", STREAM)}
    topics = (PLAIN, EXACTLY, SHORT, LATE)
    assert {topic: moved[f"{STREAM}:{topic}"]["error"] for topic in topics} == dict.fromkeys(topics)
    assert all(moved[f"{STREAM}:{topic}"]["moved"] for topic in topics), moved

    for topic in topics:
        assert ends(south.bootstrap, topic) == ends(old.bootstrap, topic), topic
        for partition in range(PARTITIONS):
            assert all_of(south.bootstrap, topic, partition) == all_of(old.bootstrap, topic, partition)
    assert configs(south.bootstrap, PLAIN)["max.message.bytes"] == "400000"
    assert committed(south.bootstrap, GROUP) == half
    assert committed(south.bootstrap, AT_END) == last
    for partition in range(PARTITIONS):
        wanted = [each.offset for each in all_of(old.bootstrap, EXACTLY, partition)]
        end = last[EXACTLY, partition]
        assert _with_kafka_python(south.bootstrap, EXACTLY, partition, end) == wanted
        assert asyncio.run(_with_aiokafka(south.bootstrap, EXACTLY, partition, end)) == wanted
    _goes_on(south, old, half, last)


def _with_kafka_python(bootstrap: str, topic: str, partition: int, end: int) -> list[int]:
    """Offsets of the records up to `end`, read with kafka-python."""
    place = kafka.TopicPartition(topic, partition)
    found: list[int] = []
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap.split(","), group_id=None)
    try:
        consumer.assign([place])
        consumer.seek(place, 0)
        deadline = time.monotonic() + CALL_S
        while consumer.position(place) < end:
            assert time.monotonic() < deadline, (found, consumer.position(place))
            found += [each.offset for batch in consumer.poll(500).values() for each in batch]
        return found
    finally:
        consumer.close()


async def _with_aiokafka(bootstrap: str, topic: str, partition: int, end: int) -> list[int]:
    """Offsets of the records up to `end`, read with aiokafka."""
    place = aiokafka.TopicPartition(topic, partition)
    found: list[int] = []
    consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=None)
    await consumer.start()
    try:
        consumer.assign([place])
        consumer.seek(place, 0)
        async with asyncio.timeout(CALL_S):
            while await consumer.position(place) < end:
                found += [each.offset for batch in (await consumer.getmany(timeout_ms=500)).values() for each in batch]
        return found
    finally:
        await consumer.stop()


def _goes_on(
    south: Cluster, old: RealKafka, half: dict[tuple[str, int], int], last: dict[tuple[str, int], int]
) -> None:
    """Clients at the new address: groups continue from their committed offsets, producers after existing records."""
    before = {topic: ends(old.bootstrap, topic) for topic in (PLAIN, EXACTLY)}
    for topic in (PLAIN, EXACTLY):
        write(south.bootstrap, topic, "after", 30)
    for group, topic, committed_offsets in ((GROUP, PLAIN, half), (AT_END, EXACTLY, last)):
        consumer = reader(south.bootstrap, group, **{"auto.offset.reset": "error"})
        consumer.subscribe([topic])
        found: dict[int, list[int]] = {}
        for message in _until_end(consumer, PARTITIONS):
            found.setdefault(int(message.partition() or 0), []).append(int(message.offset() or 0))
        consumer.close()
        for partition in range(PARTITIONS):
            there = [each.offset for each in all_of(old.bootstrap, topic, partition)]
            end = before[topic][partition][1]
            expected = [each for each in there if each >= committed_offsets[topic, partition]] + list(
                range(end, end + 10)
            )
            assert found[partition] == expected, (topic, partition)
