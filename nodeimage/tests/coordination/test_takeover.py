"""The lifetime of a group service: not before the state of earlier coordinators is applied, and not longer than
allowed."""

import asyncio

import msgspec
import pytest

from headrace.base.errors import Code, KafkaError
from headrace.base.ids import Position
from headrace.container.leader import Leader
from headrace.coordination import takeover
from headrace.coordination.messages import Join
from headrace.coordination.messages import Protocol as Offered
from headrace.log.frames import FrameType
from headrace.node.parts import NodeParts


@pytest.fixture
async def container(broker: NodeParts) -> Leader:
    """The catalog's container, whose groups have been taken over."""
    await broker.coordination.service()
    container = broker.cluster.catalog_container
    assert container is not None
    return container


async def refused(broker: NodeParts) -> Code:
    with pytest.raises(KafkaError) as error:
        await broker.coordination.service()
    return error.value.code


def promote(broker: NodeParts, container: Leader, frames: int = 1) -> None:
    """Pretend that the epoch began with this many uncommitted frames."""
    broker.coordination.container_left(container)
    container.state.epoch_start = Position(container.log.end + frames)
    broker.coordination.container_led(container)


async def test_requests_wait_until_the_earlier_leaders_frames_are_committed(
    broker: NodeParts,
    container: Leader,
) -> None:
    before = await broker.coordination.service()
    promote(broker, container)
    waiting = asyncio.create_task(broker.coordination.service())
    await asyncio.sleep(0)
    assert not waiting.done()
    await container.append_control(FrameType.PRODUCERS, msgspec.msgpack.encode([]))
    async with asyncio.timeout(20):
        assert await waiting is not before


async def test_who_has_waited_long_enough_is_told_to_come_again(
    broker: NodeParts,
    container: Leader,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(takeover, "WAIT_S", 0.01)
    promote(broker, container, frames=1000)  # more than the broker appends by itself meanwhile
    assert await refused(broker) is Code.COORDINATOR_LOAD_IN_PROGRESS


async def test_who_waits_for_a_rebalance_learns_that_the_coordinator_is_another_node(
    broker: NodeParts,
    container: Leader,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service = await broker.coordination.service()
    join = Join(
        group_id="g",
        member_id="",
        instance_id=None,
        client_id="app",
        client_host="/127.0.0.1",
        session_timeout_ms=30_000,
        rebalance_timeout_ms=60_000,
        protocol_type="consumer",
        protocols=(Offered("range", b""),),
        requires_known_member=False,
        can_skip_assignment=False,
    )
    waiting = asyncio.create_task(service.join(join))
    async with asyncio.timeout(20):
        while True:
            if (await service.describe("g")).members:
                break
            await asyncio.sleep(0)
    monkeypatch.setattr(takeover.Coordination, "is_due", False)
    broker.coordination.container_left(container)
    with pytest.raises(KafkaError) as error:
        await waiting
    assert error.value.code is Code.NOT_COORDINATOR
    assert await refused(broker) is Code.NOT_COORDINATOR
    with pytest.raises(KafkaError):
        broker.coordination.present  # noqa: B018
    with pytest.raises(KafkaError) as late:  # it reached the service before the service was closed
        await service.join(join)
    assert late.value.code is Code.NOT_COORDINATOR


async def test_who_waits_for_a_takeover_that_does_not_come_is_sent_away(
    broker: NodeParts,
    container: Leader,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker.coordination.container_left(container)
    waiting = asyncio.create_task(broker.coordination.service())
    await asyncio.sleep(0)
    assert not waiting.done()
    monkeypatch.setattr(takeover.Coordination, "is_due", False)
    broker.records_changed()
    with pytest.raises(KafkaError) as error:
        await waiting
    assert error.value.code is Code.NOT_COORDINATOR


async def test_a_node_that_stops_coordinates_no_more(broker: NodeParts, container: Leader) -> None:
    broker.coordination.close()
    assert await refused(broker) is Code.COORDINATOR_NOT_AVAILABLE
