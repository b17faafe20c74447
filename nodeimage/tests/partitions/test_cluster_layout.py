"""The layout of the cluster that clients get: its nodes, and who leads what."""

import asyncio

import pytest

from headrace.node import Node
from headrace.node.parts import NodeParts
from headrace.wire import metadata as wire_metadata
from headrace.wire.api_keys import ApiKey
from kit.three_nodes import (
    ask,
    described,
    until,
)


async def test_every_node_names_all_nodes_and_the_same_leaders(brokers: list[NodeParts], topic: str) -> None:
    known = sorted((broker.node.node_id, "127.0.0.1", broker.node.port, broker.node.rack) for broker in brokers)

    async def agreed() -> list[wire_metadata.PartitionMeta]:
        """The partitions as all nodes show them, once all show the same, and each leads some: a node that stalled while
        they started gets back the containers that it led."""
        answers = [await described(broker, topic) for broker in brokers]
        assert [[tuple(each) for each in answer.brokers] for answer in answers] == [known] * 3
        first, *others = [list(answer.topics[0].partitions) for answer in answers]
        each_leads = {each.leader for each in first} == {broker.node.node_id for broker in brokers}
        return first if each_leads and all(other == first for other in others) else []

    partitions = await until(agreed)
    for each in partitions:
        assert (each.error, sorted(each.replicas), each.offline) == (0, [1, 2, 3], [])
        assert each.leader in each.isr


async def test_the_cluster_has_all_nodes(brokers: list[NodeParts]) -> None:
    answer = await ask(brokers[1], ApiKey.DESCRIBE_CLUSTER, 1)
    assert [(each.broker_id, each.port) for each in answer.brokers] == sorted(
        (broker.node.node_id, broker.node.port) for broker in brokers
    )
    assert answer.controller_id == brokers[1].node.node_id


async def test_what_is_dead_is_not_in_sync_and_is_told_as_offline(
    nodes: list[Node], topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, _, dying = (node.parts for node in nodes)
    await nodes[2].stop()
    async with asyncio.timeout(100):
        while dying.node.node_id not in asked.controller.dead():  # noqa: ASYNC110  # it is looked up, nothing tells of it
            await asyncio.sleep(0.02)
    answer = await described(asked, topic)
    assert all(
        dying.node.node_id not in each.isr and each.offline == [dying.node.node_id]
        for each in answer.topics[0].partitions
    )
    found = await ask(asked, ApiKey.DESCRIBE_CLUSTER, 1)
    assert {each.broker_id for each in found.brokers} == {node.parts.node.node_id for node in nodes[:2]}
    # The records keep a minimum of two in the in-sync set, even if one of them is dead.
    others = {node.parts.node.node_id for node in nodes[1:]}
    monkeypatch.setattr(asked.controller, "dead", lambda: frozenset(others))
    for each in (await described(asked, topic)).topics[0].partitions:
        assert (each.isr, set(each.offline)) == ([asked.node.node_id], others)
    monkeypatch.setattr(asked.controller, "dead", lambda: frozenset())
    assert all(len(each.isr) >= 2 for each in (await described(asked, topic)).topics[0].partitions)
