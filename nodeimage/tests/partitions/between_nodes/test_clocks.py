"""A cluster in which one node's wall clock is minutes off: nothing is lost, and the fault is reported until it is
over."""

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import KafkaError
from headrace.base.ids import Millis
from headrace.catalog.policy import StreamPolicy
from headrace.catalog.streams import CreateStream
from headrace.cli.cluster_status import clocks_in_words
from headrace.kafka.connection import Connection
from headrace.node import Node
from headrace.node.parts import NodeParts
from headrace.partitions.partition import Partition
from headrace.partitions.topics import Topic
from kit.pair import append, options, read, until

TTL_S = 300
AHEAD_S = 600.0
TOPIC = "/short:readings"


@pytest.fixture
async def three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[Node]]:
    monkeypatch.setattr("headrace.node.containers.HAND_OVER_S", 0.0)
    nodes = [Node(options(tmp_path, number, 3)) for number in (1, 2, 3)]
    await asyncio.gather(*(node.start() for node in nodes))
    try:
        yield nodes
    finally:
        for node in nodes:
            await node.stop()


def shift(node: Node, ahead_s: float) -> None:
    node.controller.clocks.wall = lambda: time.time() + ahead_s


async def led(nodes: list[Node]) -> tuple[Node, Partition]:
    """The topic's partition, and the node that leads it."""
    async with asyncio.timeout(30):
        while True:
            for node in nodes:
                with contextlib.suppress(KafkaError):
                    (topic,) = await node.parts.topics.resolve([TOPIC], create=True)
                    if isinstance(topic, Topic):
                        return node, await node.parts.partitions.leader(topic, 0)
            await asyncio.sleep(0.01)


async def told(nodes: list[Node]) -> list[str]:
    """The events about clocks, as all nodes report them."""
    found: list[Any] = []
    for broker in (node.parts for node in nodes):
        events: Any = await broker.admin.call("cluster.events", {"events": 200}, Connection(broker.dispatcher))
        found += events
    return [event["reason"] for event in found if event["kind"] == "clock"]


async def line(broker: NodeParts) -> str:
    status: Any = await broker.admin.call("cluster.status", {}, Connection(broker.dispatcher))
    return clocks_in_words(status["nodes"])


@pytest.mark.parametrize("ahead_s", [AHEAD_S, -AHEAD_S])
async def test_a_clock_that_is_minutes_off_loses_nothing_and_is_told_until_it_is_right(
    three: list[Node], ahead_s: float
) -> None:
    policy = StreamPolicy(ttl_ms=TTL_S * 1000)
    await three[0].parts.catalog.submit(CreateStream(path="/short", policy=policy, now=Millis(0)))
    wrong, partition = await led(three)
    number = wrong.parts.node.node_id
    shift(wrong, ahead_s)
    await until(lambda: all(node.controller.clocks_off().keys() == {number} for node in three))
    for _ in range(12):  # more than one chunk
        await append(partition, bytes(110_000))
    await until(lambda: bool(partition.container.log.closed_chunks()))
    await wrong.parts.maintenance.pass_now()
    assert partition.log_start == 0
    assert len(await read(wrong.parts, partition)) == 12
    stamped = wrong.parts.runtime.now() / 1000  # the time with which a topic with log-append times would stamp records
    assert abs(stamped - time.time()) < 5
    side = "ahead of" if ahead_s > 0 else "behind"
    for node in three:
        assert re.fullmatch(
            rf"node {number}'s clock is (10min|9min5\ds) {side} the cluster's time", await line(node.parts)
        )
    await until(lambda: any(each.kind == "clock" for node in three for each in node.controller.events))
    shift(wrong, 0.0)
    await until(lambda: not any(node.controller.clocks_off() for node in three))
    assert await line(wrong.parts) == ""
    await until(lambda: sum(each.kind == "clock" for node in three for each in node.controller.events) == 2)
    off, right = await told(three)
    assert re.fullmatch(rf"node {number}'s clock is (600|59\d) s {side} the cluster's time", off)
    assert right == f"node {number}'s clock is right again"


async def test_what_is_older_than_its_time_to_live_by_the_clusters_time_goes(three: list[Node]) -> None:
    policy = StreamPolicy(ttl_ms=TTL_S * 1000)
    await three[0].parts.catalog.submit(CreateStream(path="/short", policy=policy, now=Millis(0)))
    leader, partition = await led(three)
    for _ in range(12):
        await append(partition, bytes(110_000))
    await until(lambda: bool(partition.container.log.closed_chunks()))
    for node in three:
        shift(node, AHEAD_S)
    await until(lambda: (leader.parts.controller.clocks.agreed() or 0) / 1000 > time.time() + AHEAD_S - 5)
    await leader.parts.maintenance.pass_now()
    assert partition.log_start > 0
