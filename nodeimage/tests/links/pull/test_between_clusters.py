"""A link between two real clusters of one node each, in the test's loop, over the ordinary Kafka port."""

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from headrace.base.errors import Code
from headrace.catalog.link_config import LinkConfig
from headrace.catalog.links import PutLink
from headrace.catalog.policy import StreamPolicy
from headrace.catalog.rows import LinkRow
from headrace.catalog.streams import CreateStream
from headrace.catalog.topics import CreateTopics, NewTopic
from headrace.links.pull.lag import CAUGHT_UP
from headrace.links.pull.pullers import Pullers
from headrace.local.processes import free_port
from headrace.node import Node
from headrace.partitions.lookups import now
from kit.pulling import STREAM, options, until

PARTITIONS = 4
ID = bytes(range(16))
ALIAS = STREAM.strip("/").replace("/", ".") + "..t"


class Cluster:
    """A node that can be restarted; as a target it pulls."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self._folder = folder
        self._settings = settings
        self.port = free_port("127.0.0.1")
        self.node: Node | None = None
        self.pullers: Pullers | None = None

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def running(self) -> Node:
        assert self.node is not None
        return self.node

    async def start(self) -> None:
        self.node = Node(dataclasses.replace(options(self._folder, **self._settings), port=self.port))
        await self.node.start()

    async def pull(self) -> None:
        """Begin to watch the node's own pullers, which run all links of the catalog."""
        self.pullers = self.running.links.pullers

    async def stop(self) -> None:
        self.pullers = None
        if self.node is not None:
            await self.node.stop()
            self.node = None

    async def restart(self) -> None:
        pulls = self.pullers is not None
        await self.stop()
        await self.start()
        if pulls:
            await self.pull()

    async def make_stream(self) -> None:
        await self.running.parts.catalog.submit(CreateStream(STREAM, StreamPolicy(), now()))

    async def make_link(self, source: "Cluster") -> None:
        cluster = source.running.parts.node.cluster_id
        config = LinkConfig(source=[source.bootstrap], source_stream=STREAM, source_cluster=cluster)
        await self.running.parts.catalog.submit(PutLink("l", STREAM, config, now(), True))

    async def link(self) -> LinkRow:
        (link,) = await self.running.parts.catalog.query(lambda reader: reader.links.all())
        return link

    async def throttle(self, rate: int) -> None:
        link = await self.link()
        config = msgspec.structs.replace(link.config, throttle=rate)
        await self.running.parts.catalog.submit(PutLink("l", STREAM, config, now(), False))
        pullers = self.pullers
        assert pullers is not None
        await until(lambda: (at := pullers.puller("l")) is not None and at.state.fetching.byte_rate.rate == rate)

    async def make_topic(self, name: str, topic_id: bytes, partitions: int) -> None:
        places = self.running.parts.placement.place(partitions)
        containers, epochs = [place[0] for place in places], [place[1] for place in places]
        item = NewTopic(STREAM, name, topic_id, partitions, {}, containers, epochs)
        (outcome,) = await self.running.parts.catalog.submit(CreateTopics([item], now()))
        assert outcome.code is Code.NONE

    def ends(self, topic_id: bytes = ID) -> list[int]:
        topic = self.running.parts.topics.cached_id(topic_id)
        found = {} if topic is None else topic.partitions
        return [found[index].high_watermark if index in found else -1 for index in range(PARTITIONS)]


@pytest.fixture
async def clusters(tmp_path: Path) -> AsyncIterator[tuple[Cluster, Cluster]]:
    """A source with a topic of four partitions, and a target with a link that pulls from it."""
    source, target = Cluster(tmp_path / "source"), Cluster(tmp_path / "target")
    try:
        await source.start()
        await source.make_stream()
        await source.make_topic("t", ID, PARTITIONS)
        await target.start()
        await target.make_stream()
        await target.make_link(source)
        await target.pull()
        yield source, target
    finally:
        await target.stop()
        await source.stop()


async def all_records(cluster: Cluster, ends: list[int]) -> list[list[tuple[object, ...]]]:
    """By partition, what a consumer sees of each record."""
    consumer = AIOKafkaConsumer(bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest")
    await consumer.start()
    try:
        places = [TopicPartition(ALIAS, index) for index in range(PARTITIONS)]
        consumer.assign(places)
        await consumer.seek_to_beginning(*places)
        found: list[list[tuple[object, ...]]] = [[] for _ in places]
        async with asyncio.timeout(30):
            while [len(each) for each in found] != ends:
                for place, records in (await consumer.getmany(timeout_ms=500)).items():
                    found[place.partition] += [
                        (each.offset, each.timestamp, each.key, each.value, each.headers) for each in records
                    ]
                assert all(len(each) <= end for each, end in zip(found, ends, strict=True)), "something came twice"
        return found
    finally:
        await consumer.stop()


async def produce(cluster: Cluster, first: int, count: int, compression: str | None = "gzip") -> None:
    """Have an idempotent producer write `count` numbered records, to all partitions in turn."""
    producer = AIOKafkaProducer(
        bootstrap_servers=cluster.bootstrap, enable_idempotence=True, compression_type=compression, linger_ms=2
    )
    await producer.start()
    try:
        sent = [
            await producer.send(
                ALIAS, b"%d" % number * 20, b"k%d" % number, number % PARTITIONS, headers=[("n", b"%d" % number)]
            )
            for number in range(first, first + count)
        ]
        await asyncio.gather(*sent)
    finally:
        await producer.stop()


async def test_records_of_a_producer_arrive_at_the_same_offsets_with_timestamps_and_headers(
    clusters: tuple[Cluster, Cluster],
) -> None:
    source, target = clusters
    for round_, compression in enumerate((None, "gzip", "lz4", "zstd", "snappy")):
        await produce(source, round_ * 100, 100, compression)
    await until(lambda: target.ends() == source.ends() == [125] * PARTITIONS)
    assert await all_records(target, [125] * PARTITIONS) == await all_records(source, [125] * PARTITIONS)
    assert target.pullers is not None
    figures = target.pullers.figures("l")
    assert figures is not None
    assert figures.state == CAUGHT_UP
    assert figures.records == 500
    (copied,) = await target.running.parts.topics.resolve_ids([ID])
    (original,) = await source.running.parts.topics.resolve_ids([ID])
    for index in range(PARTITIONS):
        ours, theirs = copied.partitions[index].producers, original.partitions[index].producers
        assert {id_: each.batches for id_, each in ours.items()} == {id_: each.batches for id_, each in theirs.items()}


@pytest.mark.parametrize("which", ["source", "target", "both"])
async def test_either_side_may_start_again_in_mid_copy_and_nothing_is_lost_or_doubled(
    clusters: tuple[Cluster, Cluster], which: str
) -> None:
    source, target = clusters
    await target.throttle(10_000)  # a slow machine takes seconds to produce them
    await produce(source, 0, 2000, None)
    for round_ in range(3):
        await until(lambda: sum(target.ends()) > 0)
        if not round_:
            assert sum(target.ends()) < sum(source.ends()), "it is in mid-copy"
        if which in ("target", "both"):
            await target.restart()
        if which in ("source", "both"):
            await source.restart()
        await produce(source, 2000 + 200 * round_, 200)
    ends = source.ends()
    assert sum(ends) == 2600
    await target.throttle(0)
    await until(lambda: target.ends() == ends)
    assert await all_records(target, ends) == await all_records(source, ends)


async def test_a_topic_that_is_made_later_and_one_that_grows_follow_by_themselves(
    clusters: tuple[Cluster, Cluster],
) -> None:
    source, target = clusters
    await produce(source, 0, 40)
    await until(lambda: target.ends() == [10] * PARTITIONS)
    later = bytes(reversed(ID))
    await source.make_topic("later", later, PARTITIONS)
    await asyncio.sleep(0)
    producer = AIOKafkaProducer(bootstrap_servers=source.bootstrap)
    await producer.start()
    try:
        for index in range(PARTITIONS):
            await producer.send_and_wait(ALIAS.replace("..t", "..later"), b"x", partition=index)
    finally:
        await producer.stop()
    await until(lambda: target.ends(later) == [1] * PARTITIONS)


async def test_a_record_is_on_the_other_side_within_milliseconds(clusters: tuple[Cluster, Cluster]) -> None:
    """Not a benchmark, but a loose bound that any timer on the way would exceed."""
    source, target = clusters
    producer = AIOKafkaProducer(bootstrap_servers=source.bootstrap)
    await producer.start()
    lags: list[float] = []
    try:
        await producer.send_and_wait(ALIAS, b"first", partition=0)
        await until(lambda: target.ends()[0] == 1)
        partition = target.running.parts.topics.cached_id(ID).partitions[0]  # type: ignore[union-attr]
        for number in range(100):
            arrived = asyncio.Event()

            class Watcher:
                def wake(self) -> None:
                    arrived.set()  # noqa: B023

            watcher = Watcher()
            partition.watch(watcher)
            await producer.send_and_wait(ALIAS, b"%d" % number, partition=0)
            begun = time.perf_counter()
            async with asyncio.timeout(10):
                while partition.high_watermark < number + 2:
                    await arrived.wait()
                    arrived.clear()
            lags.append(time.perf_counter() - begun)
            partition.unwatch(watcher)
    finally:
        await producer.stop()
    lags.sort()
    print(f"lag p50 {lags[50] * 1000:.1f} ms, p90 {lags[90] * 1000:.1f} ms, p99 {lags[99] * 1000:.1f} ms")
    assert lags[50] < 0.1
