"""Closed chunks of many partitions are sorted by a helper process, which clients notice only by faster reads."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headrace.base.child_processes import ChildProcess, Ended
from kit.storage import Client, Running, until

NewNode = Callable[..., Awaitable[Running]]
TOPICS = [f"/default:interleaved-{number:03d}" for number in range(60)]
ROUNDS = 40


async def interleave(node: Running) -> None:
    def write() -> None:
        client = Client(node.port)
        client.create(*TOPICS)
        for serial in range(ROUNDS):
            for topic in TOPICS:
                client.put(topic, b"%s %04d" % (topic.encode(), serial) + bytes(900))
        client.close()

    await asyncio.to_thread(write)


async def check(node: Running) -> None:
    for topic in TOPICS:
        read = await node.call("read", topic)
        assert [value.rstrip(b"\0") for _, value in read] == [
            b"%s %04d" % (topic.encode(), serial) for serial in range(ROUNDS)
        ]


def chunks(node: Running) -> list[Any]:
    (container,) = [each for each in node.parts.containers.values() if each.id != node.parts.maintenance.catalog_id]
    return container.log.closed_chunks()


def all_regrouped(node: Running) -> bool:
    """Whether every full chunk has been closed and regrouped."""
    (container,) = [each for each in node.parts.containers.values() if each.id != node.parts.maintenance.catalog_id]
    full = [chunk for chunk in container.log.chunks() if chunk.end is not None]
    return bool(full) and all(chunk.body.regrouped for chunk in full)


def stretches(node: Running, topic_partitionlet: int, chunk: Any) -> int:
    """The number of separate stretches of a chunk that a reader of one partition has to fetch."""
    places = [place for part in chunk.body.parts for place in part.places(topic_partitionlet, 0)]
    ends = {place.at + place.length for place in places}
    return sum(place.at not in ends for place in places)


async def test_reads_are_right_before_during_and_after_regrouping_and_become_sequential(new_node: NewNode) -> None:
    node = await new_node()
    await interleave(node)
    checking = asyncio.create_task(check(node))
    await until(lambda: all_regrouped(node), seconds=60)
    await checking
    await check(node)
    (topic,) = await node.parts.topics.resolve([TOPICS[7]])
    partitionlet = topic.partitions[0].open
    assert [stretches(node, partitionlet, chunk) for chunk in chunks(node)] == [1] * len(chunks(node))
    status = await node.call("admin", "status")
    assert status["maintenance"]["chunks_regrouped_since_start"] == len(chunks(node))
    await node.restart()
    await check(node)


async def test_a_killed_helper_harms_nobody_and_is_started_again(
    new_node: NewNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.storage.regroup.REGROUP_RETRY_S", 0.0)
    ended: list[int] = []

    class KilledAtOnce(ChildProcess):
        async def run(self) -> Ended:
            if len(ended) < 2:
                self.kill()
            ending = await super().run()
            ended.append(ending.status)
            return ending

    monkeypatch.setattr("headrace.storage.regroup.ChildProcess", KilledAtOnce)
    node = await new_node()
    await interleave(node)
    await until(lambda: chunks(node) and all(chunk.body.regrouped for chunk in chunks(node)), seconds=60)
    assert ended[:2] == [-signal.SIGKILL] * 2
    await check(node)
    await node.stop()
    await node.start()
    assert not list(node.containers.rglob("*.tmp")) or all(
        path.name.startswith("spare") for path in node.containers.rglob("*.tmp")
    )
    await check(node)
