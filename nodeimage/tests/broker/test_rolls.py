"""Rolls that a crash interrupted, taken up at a start."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headrace.broker.broker import Broker
from headrace.broker.topics import Topic
from headrace.catalog.commands import RollIntent, RollTarget
from headrace.errors import Code, CorruptLog, KafkaError
from headrace.ids import Millis
from headrace.log.container_log import ContainerLog, PartitionletState

Append = Callable[..., Awaitable[int]]


async def test_an_intended_roll_whose_partition_is_damaged_keeps_no_other_waiting(
    broker: Broker, append: Append, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged, sound = await broker.topics.resolve(["damaged", "sound"], create=True)
    assert isinstance(damaged, Topic)
    assert isinstance(sound, Topic)
    for name, topic in (("damaged", damaged), ("sound", sound)):
        await append(name, b"a", b"b")
        opened = topic.partitions[0]
        target = RollTarget(
            topic_id=topic.topic_id, partition=0, expected_open=opened.open, container=opened.container.id
        )
        (outcome,) = await broker.catalog.submit(RollIntent(items=[target], now=Millis(1)))
        assert outcome.code is Code.NONE
    unreadable = damaged.partitions[0].open
    broker.topics.forgot = True
    damaged.partitions.clear()
    load = ContainerLog.load

    def fails(self: ContainerLog, partitionlet: int, **options: Any) -> PartitionletState:
        if partitionlet == unreadable:
            raise CorruptLog("a damaged index")
        return load(self, partitionlet, **options)

    monkeypatch.setattr(ContainerLog, "load", fails)
    assert await broker.rolls.finish() == 1
    await broker.rolls.settle(sound.partitions[0])
    assert len(sound.partitions[0].chain) == 2
    with pytest.raises(KafkaError) as refused:
        await broker.partitions.leader(damaged, 0)
    assert refused.value.code == Code.KAFKA_STORAGE_ERROR
    monkeypatch.undo()
    healed = await broker.partitions.leader(damaged, 0)
    await broker.rolls.roll(healed)
    assert healed.chain[-1].first == 2
    assert await append("damaged", b"c") == 3
