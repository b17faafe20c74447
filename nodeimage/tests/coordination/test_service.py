"""Groups in a cluster of several nodes: where they are coordinated, and how the next coordinator continues."""

import asyncio

import pytest

from headrace.base.errors import Code, KafkaError
from headrace.coordination import takeover
from headrace.node import Node
from headrace.node.parts import NodeParts
from headrace.wire.api_keys import ApiKey
from kit.three_nodes import (
    ask,
    commit,
    committed_offset,
    coordinator,
    find,
    join,
    sync,
    until,
)


async def test_who_knows_an_old_coordinator_names_the_one_that_this_knows_or_waits(
    nodes: list[Node], brokers: list[NodeParts], monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = await coordinator(brokers)
    behind, former = (broker for broker in brokers if broker is not leader)
    names = {behind.node.node_id: former.node.node_id}
    monkeypatch.setattr(
        takeover.Coordination, "leader", property(lambda self: names.get(self._cluster.node_id, leader.node.node_id))
    )
    assert await find(behind) == (Code.NONE, leader.node.node_id)
    names[former.node.node_id] = behind.node.node_id
    monkeypatch.setattr(takeover, "FIND_S", 0.3)
    assert await find(behind) == (Code.COORDINATOR_NOT_AVAILABLE, -1)
    monkeypatch.setattr(takeover, "FIND_S", 20.0)
    looking = [asyncio.create_task(find(behind)) for _ in range(3)]
    await asyncio.sleep(0.2)
    assert not any(each.done() for each in looking)
    names.clear()
    assert await asyncio.gather(*looking) == [(Code.NONE, leader.node.node_id)] * 3
    names[behind.node.node_id] = former.node.node_id
    await nodes[brokers.index(former)].stop()

    async def is_named() -> bool:
        return await find(behind) == (Code.NONE, former.node.node_id)

    await until(is_named)  # who says nothing is named as before; a session may hear its last answer yet


async def test_groups_live_where_the_catalog_is_led(brokers: list[NodeParts], topic: str) -> None:
    leader = await coordinator(brokers)
    for broker in brokers:
        found = await ask(broker, ApiKey.FIND_COORDINATOR, 4, key_type=0, coordinator_keys=["g", "h"])
        assert {(each.error_code, each.node_id, each.port) for each in found.coordinators} == {
            (0, leader.node.node_id, leader.node.port)
        }
    joined = await join(leader)
    assert (await sync(leader, joined)).assignment == b"all"
    assert await commit(leader, joined, 5) == 0
    listed = await ask(leader, ApiKey.LIST_GROUPS, 4, states_filter=[])
    assert [each.group_id for each in listed.groups] == ["g"]
    for other in brokers:
        if other is leader:
            continue
        assert (await join(other)).error_code == Code.NOT_COORDINATOR
        assert await commit(other, joined, 6) == Code.NOT_COORDINATOR
        described = await ask(other, ApiKey.DESCRIBE_GROUPS, 5, groups=["g"])
        assert described.groups[0].error_code == Code.NOT_COORDINATOR
        with pytest.raises(KafkaError) as ended:  # this ends the client's connection
            await committed_offset(other)
        assert ended.value.code is Code.NOT_COORDINATOR
        listed = await ask(other, ApiKey.LIST_GROUPS, 4, states_filter=[])
        assert (listed.error_code, list(listed.groups)) == (0, [])


async def test_groups_and_committed_offsets_go_on_at_the_next_coordinator(nodes: list[Node], topic: str) -> None:
    brokers = [node.parts for node in nodes]
    first = await coordinator(brokers)
    joined = await join(first)
    await sync(first, joined)
    assert await commit(first, joined, 5) == 0
    newcomer = asyncio.create_task(join(first))

    async def rebalances() -> bool:
        (group,) = (await ask(first, ApiKey.DESCRIBE_GROUPS, 5, groups=["g"])).groups
        return bool(group.group_state == "PreparingRebalance")

    await until(rebalances)
    (leaving,) = [node for node in nodes if node.parts is first]
    left = asyncio.create_task(leaving.stop())
    async with asyncio.timeout(100):
        assert (await newcomer).error_code == Code.NOT_COORDINATOR
        await left
    second = await coordinator([broker for broker in brokers if broker is not first])
    assert await committed_offset(second) == 5
    beat = await ask(
        second,
        ApiKey.HEARTBEAT,
        4,
        group_id="g",
        generation_id=joined.generation_id,
        member_id=joined.member_id,
    )
    assert beat.error_code == 0
    assert await commit(second, joined, 6) == 0
    assert await committed_offset(second) == 6
