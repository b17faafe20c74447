"""An Apache Kafka cluster as a source, with Kafka 4.3 itself: all security, topics, batches, transactions, committed
offsets."""

import asyncio
import itertools
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import confluent_kafka as ck
import pytest
from bench import jars
from confluent_kafka import admin

from headrace.base.addresses import Address
from headrace.base.errors import Code
from headrace.base.ids import Home, NodeId, Offset
from headrace.kafka_client.client import Client
from headrace.kafka_client.errors import SourceRefuses, SourceUnreachable
from headrace.links.source.kafka_source import KafkaSource
from headrace.links.source.source import (
    NO_EPOCH,
    CommittedOffsetKey,
    FeedPlace,
    Fetched,
    SourceTopic,
    TopicPartition,
    Wanted,
)
from headrace.security.client_security import security_of
from headrace.wire.batch import Record, iter_batches, iter_records
from kit.certificates import Certificates
from kit.real_kafka import NOT_YET, PASSWORD, USER, RealKafka

pytestmark = [pytest.mark.java, pytest.mark.xdist_group("kafka"), pytest.mark.timeout(480)]

CLUSTER = "headraceBenchmarkQ0001"
ONE = NodeId(1)
Connect = Callable[..., KafkaSource]


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[RealKafka]:
    """One node for all tests of this module: each test uses its own topics and groups."""
    try:
        jars.kafka_classpath()
    except jars.JarsMissing as error:
        pytest.skip(str(error))
    server = RealKafka(tmp_path_factory.mktemp("kafka"), certificates)
    server.start()
    yield server
    server.kill()


@pytest.fixture
async def connect(kafka: RealKafka) -> AsyncIterator[Connect]:
    """Opens sources, which are closed after the test."""
    made: list[KafkaSource] = []

    def source(**properties: str) -> KafkaSource:
        security = security_of({name.replace("_", "."): value for name, value in properties.items()})
        one = KafkaSource(Client([Address("127.0.0.1", kafka.ports[security.protocol])], security=security))
        made.append(one)
        return one

    yield source
    for each in made:
        await each.close()


async def topic_of(source: KafkaSource, name: str) -> SourceTopic:
    page = await source.topics(after=None, limit=1000)
    (found,) = [each for each in page.topics if each.name == name]
    return found


async def all_of(
    source: KafkaSource, topic: SourceTopic, *, offset: int = 0, max_bytes: int = 1 << 20
) -> list[Fetched]:
    """Fetches partition 0 to its end, as a link does."""
    at = TopicPartition(topic.topic_id, 0)
    (met,) = await source.meet(ONE, [at])
    assert met.code is Code.NONE, met
    found: list[Fetched] = []
    while offset < met.high_watermark:
        (answer,) = await source.fetch(ONE, [Wanted(at, Offset(offset), NO_EPOCH, max_bytes)], max_bytes=max_bytes)
        assert answer.code is Code.NONE, answer
        found.append(answer)
        ends = [
            header.base_offset + header.last_offset_delta + 1
            for view in answer.records
            for header, _ in iter_batches(view)
        ]
        before, offset = offset, max([offset, *ends, answer.resume])
        assert offset > before, answer
    assert offset == met.high_watermark
    return found


def records_of(answers: list[Fetched]) -> list[Record]:
    return [record for answer in answers for view in answer.records for record in iter_records(view)]


def seen(records: list[Record]) -> list[tuple[int, bytes | None, bytes | None, int]]:
    return [(each.offset, each.key, each.value, each.timestamp) for each in records]


def name_of(what: str) -> str:
    return f"{what}-{uuid.uuid4().hex[:8]}"


# --- security


SASL = {"sasl_username": USER, "sasl_password": PASSWORD}


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
async def test_sasl_lets_the_user_in_and_refuses_a_wrong_password(
    connect: Connect, certificates: Certificates, protocol: str, mechanism: str
) -> None:
    properties = {"security_protocol": protocol, "sasl_mechanism": mechanism}
    if protocol == "SASL_SSL":
        properties["ssl_ca_pem"] = certificates.text("ca.pem")
    said = await connect(**properties, **SASL).hello()
    assert (said.cluster_id, said.problem) == (CLUSTER, None)
    with pytest.raises(SourceRefuses, match=f"'{USER}' is refused") as refused:
        await connect(**properties, **SASL | {"sasl_password": "gue55"}).hello()
    assert "gue55" not in str(refused.value)


async def test_tls_with_a_clients_certificate_and_without_one(connect: Connect, certificates: Certificates) -> None:
    trusting = {"security_protocol": "SSL", "ssl_ca_pem": certificates.text("ca.pem")}
    own = {"ssl_certificate_pem": certificates.text("client.pem"), "ssl_key_pem": certificates.text("client.key")}
    assert (await connect(**trusting, **own).hello()).cluster_id == CLUSTER
    with pytest.raises((SourceRefuses, SourceUnreachable), match=r"127\.0\.0\.1"):
        await connect(**trusting).hello()
    with pytest.raises(SourceRefuses, match="not trusted"):
        await connect(**trusting | {"ssl_ca_pem": certificates.text("other-ca.pem")}, **own).hello()


async def test_the_wrong_protocol_is_told_with_what_may_be_the_matter(connect: Connect, kafka: RealKafka) -> None:
    for port, properties, why in (
        (kafka.ports["SASL_PLAINTEXT"], {}, "SASL"),
        (kafka.ports["SSL"], {}, "TLS"),
        (kafka.ports["PLAINTEXT"], {"security.protocol": "SSL"}, "TLS"),
        (
            kafka.ports["PLAINTEXT"],
            {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.username": "a",
                "sasl.password": "b",
            },
            "SASL",
        ),
    ):
        source = KafkaSource(Client([Address("127.0.0.1", port)], security=security_of(properties)))
        with pytest.raises((SourceRefuses, SourceUnreachable), match=why):
            await source.hello()
        await source.close()


# --- topics and batches


async def test_topics_come_by_pages_with_ids_configs_and_leaders(connect: Connect, kafka: RealKafka) -> None:
    prefix = name_of("paged")
    for index in range(5):
        kafka.create(f"{prefix}-{index}", partitions=index + 1, configs={"retention.ms": str(1000 + index)})
    source, found, after = connect(), list[SourceTopic](), prefix
    while after is not None:
        page = await source.topics(after=after, limit=2)
        assert len(page.topics) <= 2
        found += [each for each in page.topics if each.name.startswith(prefix)]
        after = page.after
    assert [(each.name, each.partitions, dict(each.configs)) for each in found] == [
        (f"{prefix}-{index}", index + 1, {"retention.ms": str(1000 + index)}) for index in range(5)
    ]
    assert all(each.home == Home(0, CLUSTER) and each.origin == CLUSTER for each in found)
    assert all(set(each.leaders) == {1} for each in found)
    assert await source.topics_by_id([found[3].topic_id, bytes(range(16))]) == [found[3]]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_batches_come_as_kafka_has_them(connect: Connect, kafka: RealKafka, codec: str) -> None:
    name = name_of("batches")
    kafka.create(name)
    producer = kafka.producer(**{"compression.type": codec, "enable.idempotence": True, "batch.num.messages": 50})
    for index in range(500):
        producer.produce(name, f"value {index}" * 20, f"k{index}", timestamp=1000 + index, headers=[("h", b"x")])
    producer.flush()
    answers = await all_of(connect(), await topic_of(connect(), name), max_bytes=5000)
    records = records_of(answers)
    assert seen(records) == kafka.read_committed(name)
    assert [record.timestamp for record in records] == list(range(1000, 1500))
    assert all(record.headers == [("h", b"x")] for record in records)
    headers = [header for answer in answers for view in answer.records for header, _ in iter_batches(view)]
    assert {header.compression for header in headers} == {["none", "gzip", "snappy", "lz4", "zstd"].index(codec)}
    assert all(header.producer_id >= 0 for header in headers)


async def test_aborted_transactions_and_their_markers_are_left_out_as_gaps(connect: Connect, kafka: RealKafka) -> None:
    name = name_of("transactions")
    kafka.create(name)
    producers = [kafka.producer(**{"transactional.id": f"{name}-{index}", "batch.num.messages": 3}) for index in (0, 1)]
    for producer in producers:
        producer.init_transactions(30)
    plain = kafka.producer()
    for turn in range(6):
        for index, producer in enumerate(producers):
            producer.begin_transaction()
            for number in range(7):
                producer.produce(name, f"{turn} {index} {number}")
            producer.flush()
        plain.produce(name, f"plain {turn}")
        plain.flush()
        for index, producer in enumerate(producers):
            if (turn + index) % 3 == 0 or turn == 5:
                producer.abort_transaction(30)
            else:
                producer.commit_transaction(30)
    kafka.await_markers(name)
    source = connect()
    topic = await topic_of(source, name)
    wanted = kafka.read_committed(name)
    assert any(b > a + 1 for (a, *_), (b, *_) in itertools.pairwise(wanted))
    for max_bytes in (1, 700, 1 << 20):
        answers = await all_of(source, topic, max_bytes=max_bytes)
        assert seen(records_of(answers)) == wanted
        headers = [header for each in answers for view in each.records for header, _ in iter_batches(view)]
        assert all(header.producer_id == -1 for header in headers if header.control), "no marker of a transaction"


async def test_nothing_beyond_an_open_transaction_is_seen_and_no_home_is_demoted(
    connect: Connect, kafka: RealKafka
) -> None:
    name = name_of("open")
    kafka.create(name)
    producer = kafka.producer(**{"transactional.id": name})
    producer.init_transactions(30)
    plain = kafka.producer()
    plain.produce(name, "before")
    plain.flush()
    producer.begin_transaction()
    producer.produce(name, "open")
    producer.flush()
    plain.produce(name, "after")
    plain.flush()
    source = connect()
    topic = await topic_of(source, name)
    assert [record.value for record in records_of(await all_of(source, topic))] == [b"before"]
    (refused,) = await source.demote([topic.topic_id], to="other")
    assert (refused.code, refused.message) == (
        Code.POLICY_VIOLATION,
        f"{name}-0 has an open transaction at offset 1: end its producer first",
    )
    producer.commit_transaction(30)
    while (await source.meet(ONE, [TopicPartition(topic.topic_id, 0)]))[0].high_watermark < 4:
        pass  # Kafka writes the marker after it has answered
    assert [record.value for record in records_of(await all_of(source, topic))] == [b"before", b"open", b"after"]
    (demoted,) = await source.demote([topic.topic_id], to="other")
    assert (demoted.code, demoted.home, demoted.ends) == (Code.NONE, Home(1, "other"), [4])


async def test_a_log_start_inside_a_batch_cuts_the_batch(connect: Connect, kafka: RealKafka) -> None:
    name = name_of("deleted")
    kafka.create(name)
    producer = kafka.producer(**{"linger.ms": 500, "compression.type": "lz4"})
    for index in range(10):
        producer.produce(name, f"value {index}", f"k{index}", timestamp=1000 + index, headers=[("h", b"x")])
    producer.flush()
    deleted = kafka.admin.delete_records([ck.TopicPartition(name, 0, 4)])
    for each in deleted.values():
        each.result(30)
    source = connect()
    topic = await topic_of(source, name)
    at = TopicPartition(topic.topic_id, 0)
    (met,) = await source.meet(ONE, [at])
    assert (met.log_start, met.high_watermark) == (4, 10)
    (early,) = await source.fetch(ONE, [Wanted(at, Offset(0), NO_EPOCH, 1000)], max_bytes=1000)
    assert (early.code, early.log_start) == (Code.OFFSET_OUT_OF_RANGE, 4)
    answers = await all_of(source, topic, offset=4)
    records = records_of(answers)
    assert seen(records) == kafka.read_committed(name)
    assert [record.headers for record in records] == [[("h", b"x")]] * 6
    (header,) = [header for answer in answers for view in answer.records for header, _ in iter_batches(view)]
    assert (header.base_offset, header.compression) == (4, 3)


# --- changes and committed offsets


async def test_the_feed_tells_what_advanced_and_is_silent_otherwise(connect: Connect, kafka: RealKafka) -> None:
    names = [name_of("feed") for _ in range(3)]
    for name in names:
        kafka.create(name, partitions=2)
    source = connect()
    ids = {name: (await topic_of(source, name)).topic_id for name in names}
    producer = kafka.producer()
    begun = await source.changes(ONE, None, topics=False, committed_offsets=False, wait_ms=0, limit=100)
    assert begun.reset
    place = begun.place

    async def turn(wait_ms: int, limit: int = 100) -> dict[Any, int]:
        nonlocal place
        said = await source.changes(ONE, place, topics=False, committed_offsets=False, wait_ms=wait_ms, limit=limit)
        assert not said.reset
        place = said.place
        return {at: end for at, end in said.partitions if at.topic_id in ids.values()}

    assert await turn(0) == {}
    assert await turn(200) == {}
    for round_ in (1, 2):
        for name in names:
            for index in range(2):
                producer.produce(name, b"x" * 500, partition=index)
        producer.flush()
        found: dict[Any, int] = {}
        while len(found) < 6:
            found |= await turn(5000, limit=4)
        assert found == {TopicPartition(ids[name], index): round_ for name in names for index in range(2)}
    waiting = asyncio.ensure_future(turn(5000))
    await asyncio.sleep(0)
    producer.produce(names[1], b"y", partition=1)
    producer.flush()
    assert await waiting == {TopicPartition(ids[names[1]], 1): 3}
    # A lost answer is given again; an unknown place starts over.
    lost = place
    producer.produce(names[1], b"y", partition=1)
    producer.flush()
    while not await turn(5000):
        lost = place
    place = lost
    assert (await turn(0))[TopicPartition(ids[names[1]], 1)] == 4
    assert (
        await source.changes(ONE, FeedPlace("other", 1), topics=False, committed_offsets=False, wait_ms=0, limit=1)
    ).reset


async def test_new_topics_and_partitions_are_told_and_followed(connect: Connect, kafka: RealKafka) -> None:
    grows, new = name_of("grows"), name_of("new")
    kafka.create(grows)
    source = connect()
    grown = (await topic_of(source, grows)).topic_id
    place = (await source.changes(ONE, None, topics=False, committed_offsets=False, wait_ms=0, limit=100)).place
    looked = (await source.changes(ONE, None, topics=True, committed_offsets=False, wait_ms=0, limit=100)).place
    kafka.create(new)
    kafka.admin.create_partitions([admin.NewPartitions(grows, 3)])[grows].result(30)
    producer = kafka.producer()
    producer.produce(grows, b"x", partition=2)
    producer.flush()
    topics: set[bytes] = set()
    ends: dict[TopicPartition, Offset] = {}
    while not (grown in topics and len(topics) >= 2 and ends.get(TopicPartition(grown, 2)) == 1):
        said = await source.changes(ONE, place, topics=False, committed_offsets=False, wait_ms=1000, limit=100)
        place = said.place
        ends |= dict(said.partitions)
        said = await source.changes(ONE, looked, topics=True, committed_offsets=False, wait_ms=1000, limit=100)
        looked = said.place
        topics |= set(said.topics)
    assert (await topic_of(source, new)).topic_id in topics
    assert (await topic_of(source, grows)).partitions == 3


async def test_committed_offsets_of_all_groups_come_and_changes_are_told(connect: Connect, kafka: RealKafka) -> None:
    name, groups = name_of("cursors"), sorted(name_of("group") for _ in range(3))
    kafka.create(name, partitions=2)
    source = connect()
    topic_id = (await topic_of(source, name)).topic_id

    def commit(group: str, offset: int) -> None:
        consumer = kafka.consumer(**{"group.id": group})
        offsets = [ck.TopicPartition(name, index, offset + index, metadata="m") for index in range(2)]
        while True:
            try:
                consumer.commit(offsets=offsets, asynchronous=False)
                break
            except ck.KafkaException as error:
                if error.args[0].code() not in NOT_YET:
                    raise
        consumer.close()

    for group in groups:
        commit(group, 10)
    place = (await source.changes(ONE, None, topics=False, committed_offsets=True, wait_ms=0, limit=100)).place
    page = await source.committed_offsets(after=None, limit=1000)
    assert page.after is None
    found = [each for each in page.committed_offsets if each.key.group in groups]
    assert [(each.key, each.offset, each.metadata.rstrip("\0")) for each in found] == [  # librdkafka adds a null
        (CommittedOffsetKey(group, topic_id, index), 10 + index, "m") for group in groups for index in range(2)
    ]
    commit(groups[1], 20)
    changed: set[CommittedOffsetKey] = set()
    while not changed & {CommittedOffsetKey(group, b"", -1) for group in groups}:
        said = await source.changes(ONE, place, topics=False, committed_offsets=True, wait_ms=1000, limit=100)
        place = said.place
        changed |= set(said.committed_offsets)
    assert {key.group for key in changed} & set(groups) == {groups[1]}
    some = await source.committed_offsets_of(
        [*changed, CommittedOffsetKey(groups[0], topic_id, 1), CommittedOffsetKey("gone", topic_id, 0)]
    )
    assert [(each.key.group, each.key.partition, each.offset) for each in some if each.key.group in groups] == [
        *([(groups[0], 1, 11)]),
        (groups[1], 0, 20),
        (groups[1], 1, 21),
    ]
