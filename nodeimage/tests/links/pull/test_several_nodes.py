"""A link into a cluster of two nodes: each pulls the partitions that it leads, even as leadership moves."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headrace.catalog.link_config import LinkConfig
from headrace.catalog.links import PutLink
from headrace.catalog.policy import StreamPolicy
from headrace.catalog.streams import CreateStream
from headrace.links.pull.pullers import Pullers
from headrace.links.source.source import TopicPartition
from headrace.node import Node
from headrace.node.parts import NodeParts
from headrace.partitions.lookups import now
from headrace.partitions.partition import Partition
from headrace.store.sqlite import SqliteStore
from kit.pair import Pair, options, read
from kit.played_source import PlayedSource
from kit.pulling import STREAM, Copies, copy, pullers, until

ID = bytes(range(16))


class SharedSource(PlayedSource):
    """One source for the links of both nodes."""

    async def close(self) -> None:
        pass


@pytest.fixture
async def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Pair]:
    """Two nodes, each of which leads one of two containers that both hold."""
    monkeypatch.setattr("headrace.node.containers.HAND_OVER_S", 0.0)  # nobody is left to take over
    SqliteStore(tmp_path / "cluster.sqlite").close()
    nodes = [Node(options(tmp_path, number, 2)) for number in (1, 2)]
    await asyncio.gather(*(node.start() for node in nodes))
    yield await Pair(*nodes).ready()
    for node in reversed(nodes):
        await node.stop()


@pytest.fixture
async def source(pair: Pair) -> AsyncIterator[SharedSource]:
    """A source that both nodes pull from."""
    shared = SharedSource(nodes=2)
    made: list[Pullers] = []
    for node in pair.nodes:
        pulling = pullers(node.parts, open_source=lambda _link: shared)
        node.replicas.add_container_listener(pulling)
        await pulling.start()
        made.append(pulling)
    await pair.first.catalog.submit(CreateStream(STREAM, StreamPolicy(), now()))
    await pair.first.catalog.submit(PutLink("l", STREAM, LinkConfig(["h:1"], "/s"), now(), True))
    yield shared
    for pulling in made:
        await pulling.close()


def led_by(broker: NodeParts, partitions: list[TopicPartition]) -> list[TopicPartition]:
    return [at for at in partitions if Copies(broker).end(at) >= 0]


def leader(pair: Pair, at: TopicPartition) -> tuple[NodeParts, Partition]:
    """The leader of a partition that is in memory on one node."""
    (found,) = [
        (broker, topic.partitions[at.partition])
        for broker in (pair.first, pair.second)
        if (topic := broker.topics.cached_id(at.topic_id)) is not None and at.partition in topic.partitions
    ]
    return found


async def test_each_node_pulls_what_it_leads_and_nothing_is_fetched_twice(pair: Pair, source: SharedSource) -> None:
    partitions = source.topic("t", ID, 8)
    await copy(pair.first, "t", partitions)
    for round_ in range(10):
        for at in partitions:
            source.produce(at, b"%d" % round_)
    await until(lambda: all(max(Copies(each).end(at) for each in (pair.first, pair.second)) == 10 for at in partitions))
    first, second = led_by(pair.first, partitions), led_by(pair.second, partitions)
    assert sorted(first + second) == partitions
    assert first
    assert second
    assert source.fetched == dict.fromkeys(partitions, 10)


async def test_a_container_that_changes_hands_in_mid_copy_loses_and_doubles_nothing(
    pair: Pair, source: SharedSource
) -> None:
    partitions = source.topic("t", ID, 8)
    await copy(pair.first, "t", partitions)
    moving = pair.led(pair.first).id
    for round_ in range(40):
        for at in partitions:
            source.produce(at, b"%d" % round_)
        if round_ == 10:
            await until(lambda: led_by(pair.first, partitions) and led_by(pair.second, partitions))
            await pair.hand_over(moving, pair.second)
        if round_ == 25:
            await pair.hand_over(moving, pair.first)
        await asyncio.sleep(0.002)
    await until(lambda: all(max(Copies(each).end(at) for each in (pair.first, pair.second)) == 40 for at in partitions))
    for at in partitions:
        assert await read(*leader(pair, at)) == [(number, b"%d" % number) for number in range(40)]
