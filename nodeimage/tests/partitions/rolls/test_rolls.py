"""Rolls that others began, or that were interrupted at any step: the source's next leader finishes each once."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headrace.base.errors import Code, CorruptLog, KafkaError
from headrace.base.ids import ContainerId, Millis, PartitionletId
from headrace.catalog.chains import RollIntent, RollTarget
from headrace.log.container_log import ContainerLog, PartitionletState
from headrace.node.parts import NodeParts
from headrace.partitions.topics import Topic

Append = Callable[..., Awaitable[int]]


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(100):
        while not holds():  # noqa: ASYNC110  # the conditions are of tasks that nobody can wait for
            await asyncio.sleep(0.005)


async def intend(broker: NodeParts, topic: Topic, opened: PartitionletId, container: ContainerId | None = None) -> None:
    """Intend a roll, as another node does that no longer leads the partition's container."""
    container = container or next(iter(broker.cluster.open_data())).container_id
    target = RollTarget(topic_id=topic.topic_id, partition=0, expected_open=opened, container=container)
    (outcome,) = await broker.catalog.submit(RollIntent(items=[target], now=Millis(1)))
    assert outcome.code is Code.NONE


async def test_an_intended_roll_whose_partition_is_damaged_keeps_no_other_waiting(
    broker: NodeParts, append: Append, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged, sound = await broker.topics.resolve(["damaged", "sound"], create=True)
    assert isinstance(damaged, Topic)
    assert isinstance(sound, Topic)
    for name in ("damaged", "sound"):
        await append(name, b"a", b"b")
    opened = {topic.topic_id: topic.partitions[0].open for topic in (damaged, sound)}
    broker.topics.forgot = True
    damaged.partitions.clear()
    load = ContainerLog.load

    def fails(self: ContainerLog, partitionlet: int, **options: Any) -> PartitionletState:
        if partitionlet == opened[damaged.topic_id]:
            raise CorruptLog("a damaged index")
        return load(self, partitionlet, **options)

    monkeypatch.setattr(ContainerLog, "load", fails)
    for topic in (damaged, sound):
        await intend(broker, topic, opened[topic.topic_id])
    await until(lambda: len(sound.partitions[0].chain) == 2)
    with pytest.raises(KafkaError) as refused:
        await broker.partitions.leader(damaged, 0)
    assert refused.value.code == Code.KAFKA_STORAGE_ERROR
    monkeypatch.undo()
    healed = await broker.partitions.leader(damaged, 0)
    await broker.rolls.roll(healed)
    assert healed.chain[-1].first == 2
    assert await append("damaged", b"c") == 3
