"""aiokafka 0.14 against a running node: older, non-flexible versions throughout."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import TopicAlreadyExistsError

CODECS = [None, "gzip", "snappy", "lz4", "zstd"]


@pytest.fixture
async def opened() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


async def start(client: Any, opened: AsyncExitStack) -> Any:
    """`client`, running until the test's end."""
    await client.start()
    opened.push_async_callback(client.close if isinstance(client, AIOKafkaAdminClient) else client.stop)
    return client


@pytest.fixture
def producer(cluster: Any, opened: AsyncExitStack) -> Callable[..., Any]:
    return lambda **options: start(AIOKafkaProducer(bootstrap_servers=cluster.bootstrap, **options), opened)


@pytest.fixture
def consumer(cluster: Any, opened: AsyncExitStack) -> Callable[..., Any]:
    def make(*topics: str, **options: Any) -> Any:
        options = {"auto_offset_reset": "earliest", "enable_auto_commit": False, "fetch_max_wait_ms": 100} | options
        return start(AIOKafkaConsumer(*topics, bootstrap_servers=cluster.bootstrap, **options), opened)

    return make


@pytest.fixture
async def admin(cluster: Any, opened: AsyncExitStack) -> Any:
    return await start(AIOKafkaAdminClient(bootstrap_servers=cluster.bootstrap), opened)


@pytest.fixture
def topic(cluster: Any) -> str:
    name: str = cluster.topic().replace("/default:", "default..")
    return name


async def take(consumer: AIOKafkaConsumer, count: int) -> list[Any]:
    """The next `count` records, or fails."""
    found: list[Any] = []
    async with asyncio.timeout(20):
        while len(found) < count:
            for records in (await consumer.getmany(timeout_ms=200, max_records=count - len(found))).values():
                found += records
    return found


@pytest.mark.parametrize("idempotent", [False, True], ids=["plain", "idempotent"])
@pytest.mark.parametrize("codec", CODECS)
async def test_what_is_produced_is_consumed(
    topic: str, producer: Any, consumer: Any, codec: str | None, idempotent: bool
) -> None:
    sender = await producer(compression_type=codec, enable_idempotence=idempotent, linger_ms=5)
    headers = [("trace", b"\x00\x01"), ("empty", b"")]
    stamp = 1_700_000_000_123
    sent = [
        await sender.send(topic, b"value-%d" % number * 20, key=b"key", headers=headers, timestamp_ms=stamp)
        for number in range(300)
    ]
    sent.append(await sender.send(topic, None, key=b"tombstone"))
    assert [(await each).offset for each in sent] == list(range(301))
    reader = await consumer()
    reader.assign([TopicPartition(topic, 0)])
    found = await take(reader, 301)
    assert [record.offset for record in found] == list(range(301))
    assert [record.value for record in found[:300]] == [b"value-%d" % number * 20 for number in range(300)]
    assert {(record.key, record.timestamp, record.timestamp_type) for record in found[:300]} == {(b"key", stamp, 0)}
    assert all(list(record.headers) == headers for record in found[:300])
    assert (found[300].key, found[300].value) == (b"tombstone", None)


@pytest.mark.parametrize("acks", [0, 1, "all"])
async def test_every_kind_of_acks(topic: str, producer: Any, consumer: Any, acks: int | str) -> None:
    sender = await producer(acks=acks)
    for number in range(50):
        await sender.send(topic, b"%d" % number)
    await sender.flush()
    reader = await consumer(topic)
    assert [record.value for record in await take(reader, 50)] == [b"%d" % number for number in range(50)]


async def test_append_time(topic: str, producer: Any, consumer: Any, admin: Any) -> None:
    configs = {"message.timestamp.type": "LogAppendTime"}
    await admin.create_topics([NewTopic(topic, 1, 1, topic_configs=configs)])
    before = int(time.time() * 1000)
    sender = await producer()
    metadata = await sender.send_and_wait(topic, b"a", timestamp_ms=1_000)
    assert (metadata.timestamp_type, before <= metadata.timestamp) == (1, True)
    reader = await consumer(topic)
    (record,) = await take(reader, 1)
    assert (record.timestamp, record.timestamp_type) == (metadata.timestamp, 1)


async def test_a_group_shares_the_partitions(topic: str, producer: Any, consumer: Any, admin: Any) -> None:
    await admin.create_topics([NewTopic(topic, 4, 1)])
    group = uuid.uuid4().hex
    one = await consumer(topic, group_id=group)
    two = await consumer(topic, group_id=group, group_instance_id="two")
    async with asyncio.timeout(30):
        while not len(one.assignment()) == len(two.assignment()) == 2:
            await one.getmany(timeout_ms=50)
            await two.getmany(timeout_ms=50)
    assert not one.assignment() & two.assignment()
    sender = await producer()
    for partition in range(4):
        for number in range(5):
            await sender.send_and_wait(topic, b"%d" % number, partition=partition)
    for each in (one, two):
        assert len(await take(each, 10)) == 10
        await each.commit()
    held = await admin.list_consumer_group_offsets(group)
    assert {part.partition: offset.offset for part, offset in held.items()} == dict.fromkeys(range(4), 5)
    assert group in {name for name, _ in await admin.list_consumer_groups()}
    (described,) = await admin.describe_consumer_groups([group])
    assert len(described.groups[0][5]) == 2


async def test_commit_seek_and_offsets_by_time(topic: str, producer: Any, consumer: Any) -> None:
    sender, part = await producer(), TopicPartition(topic, 0)
    for number in range(10):
        await sender.send_and_wait(topic, b"%d" % number, timestamp_ms=1_000_000 + 100 * number)
    group = uuid.uuid4().hex
    reader = await consumer(group_id=group)
    reader.assign([part])
    assert [record.value for record in await take(reader, 3)] == [b"0", b"1", b"2"]
    await reader.commit({part: (3, "mine")})
    reader.seek(part, 8)
    assert [record.value for record in await take(reader, 2)] == [b"8", b"9"]
    assert await reader.committed(part) == 3
    assert await reader.beginning_offsets([part]) == {part: 0}
    assert await reader.end_offsets([part]) == {part: 10}
    found = (await reader.offsets_for_times({part: 1_000_101}))[part]
    assert (found.offset, found.timestamp) == (2, 1_000_200)
    assert (await reader.offsets_for_times({part: 9_000_000}))[part] is None
    await reader.stop()
    follower = await consumer(topic, group_id=group)
    assert (await take(follower, 1))[0].value == b"3"


async def test_admin(cluster: Any, topic: str, producer: Any, admin: Any) -> None:
    topic = topic.removeprefix("default..")  # this client looks for leaders in the listing, which has no aliases
    made = await admin.create_topics([NewTopic(topic, 2, 1)])
    assert [error for _, error, *_ in made.topic_errors] == [0]
    again = await admin.create_topics([NewTopic(topic, 2, 1)])
    assert [error for _, error, *_ in again.topic_errors] == [TopicAlreadyExistsError.errno]
    await admin.create_partitions({topic: NewPartitions(4)})
    (described,) = await admin.describe_topics([topic])
    assert len(described["partitions"]) == 4
    changed = ConfigResource(ConfigResourceType.TOPIC, topic, configs={"retention.ms": "61000"})
    await admin.alter_configs([changed])
    assert "61000" in str(await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)]))
    sender = await producer()
    for _ in range(3):
        await sender.send_and_wait(topic, b"x", partition=1)
    part = TopicPartition(topic, 1)
    assert await admin.delete_records({part: RecordsToDelete(before_offset=2)}) == {part: 2}
    brokers = (await admin.describe_cluster())["brokers"]
    assert [(each["host"], each["port"]) for each in brokers] == [(cluster.host, cluster.port)]
    await admin.delete_topics([topic])
    assert topic not in await admin.list_topics()


async def test_full_names_and_aliases_are_one_topic(cluster: Any, producer: Any, consumer: Any) -> None:
    stream = cluster.stream(auto_create=True)
    alias = f"{stream[1:].replace('/', '.')}..t"
    sender = await producer()
    assert (await sender.send_and_wait(alias, b"a")).offset == 0
    group = uuid.uuid4().hex
    reader = await consumer(alias, group_id=group)
    assert (await take(reader, 1))[0].topic == alias
    await reader.commit()


async def test_a_consumer_that_waits_hears_of_each_record(topic: str, producer: Any, consumer: Any) -> None:
    sender = await producer()
    await sender.send_and_wait(topic, b"first")
    reader = await consumer(topic, fetch_max_wait_ms=20_000)
    assert (await take(reader, 1))[0].value == b"first"
    for number in range(20):
        waiting = asyncio.ensure_future(reader.getone())
        await sender.send_and_wait(topic, b"%d" % number)
        assert (await asyncio.wait_for(waiting, 10)).value == b"%d" % number
