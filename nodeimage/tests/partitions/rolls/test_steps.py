"""Rolls that cannot continue are refused at once, or waited for once."""

import asyncio
import time

import pytest

from headrace.base.errors import Code, KafkaError
from headrace.kafka import produce
from headrace.node.parts import NodeParts
from headrace.partitions.placement import Placement
from headrace.partitions.rolls import rolls
from headrace.partitions.rolls.steps import RollSteps
from headrace.store.records import VolumeRecord
from headrace.wire import produce as wire_produce
from kit.three_nodes import (
    batch,
    held,
    led_by,
    result,
    send,
    session,
    until,
)


async def test_what_would_roll_is_refused_at_once_where_too_few_are_in_sync(
    brokers: list[NodeParts], topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a roll blocked its producer's connection, with batches for other partitions, until a follower was back."""
    monkeypatch.setattr(rolls, "ROLL_WAIT_S", 100.0)
    broker = brokers[0]
    (index, *_) = await led_by(broker)
    container = (await held(broker, index)).container
    container.state._min_in_sync = 4

    async def stalls() -> bool:
        return container.state.stalled

    await until(stalls)
    container.closing = True
    began = time.monotonic()
    refused = await result(send(broker, session(broker), index, batch(b"a")))
    assert refused.error == Code.NOT_ENOUGH_REPLICAS
    assert time.monotonic() - began < rolls.ROLL_WAIT_S / 2
    assert not broker.rolls.under_way


async def test_a_roll_that_does_not_get_on_is_waited_for_once(
    brokers: list[NodeParts], topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not again by each batch, nor after the roll of another partition, nor for each piece of a request."""

    async def stuck(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(RollSteps, "run", stuck)
    monkeypatch.setattr(broker_rolls := brokers[0].rolls, "_limit", 0)
    monkeypatch.setattr(rolls, "ROLL_WAIT_S", 1.0)
    broker = brokers[0]
    (first, second, third, *_) = await led_by(broker)

    async def refused(*partitions: int) -> float:
        """Produce a batch that is refused; returns how long that took."""
        began = time.monotonic()
        slot = send(broker, session(broker), partitions, batch(b"a"))
        async with asyncio.timeout(100):
            found, _ = wire_produce.decode_response(await slot.future, 0, 9)
        assert [each.error for each in found] == [Code.LEADER_NOT_AVAILABLE] * len(partitions)
        return time.monotonic() - began

    assert 0.9 < await refused(first, second) < 1.9
    assert await refused(first) < 0.9
    assert broker_rolls.under_way == 2
    monkeypatch.setattr(rolls, "ROLL_WAIT_S", 60.0)
    monkeypatch.setattr(produce, "MAX_WAIT_S", 1.0)
    monkeypatch.setattr(produce, "MANY", 1)
    assert 0.9 < await refused(first, second, third) < 1.9


async def test_a_partition_that_has_nowhere_to_go_on_for_now_refuses_no_producer_for_good(
    brokers: list[NodeParts], topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when nodes drain. librdkafka gives a batch up at INVALID_REPLICATION_FACTOR."""
    broker = brokers[0]
    partition = await held(broker, (await led_by(broker))[0])
    broker.cluster.view.volumes["default"] = VolumeRecord("default", replicas=5, min_in_sync=4)
    monkeypatch.setattr(Placement, "_candidates", lambda *_: [])
    with pytest.raises(KafkaError, match="asks for 4 in sync at least") as refused:
        await broker.rolls.roll(partition)
    assert refused.value.code is Code.LEADER_NOT_AVAILABLE
