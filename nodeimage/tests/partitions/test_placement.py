"""Placement of new partitionlets, and the containers that partitions leave as the nodes' disks fill."""

import asyncio
import uuid
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec import structs

from headrace.base.errors import Code, KafkaError
from headrace.base.ids import ContainerId, Epoch, NodeId
from headrace.partitions.cluster_client import ClusterClient
from headrace.partitions.placement import Placement
from headrace.store.records import ContainerRecord, NodeRecord, VolumeRecord

FORMAT = uuid.UUID(int=1)


class FakeCluster:
    """The cluster's records, as placement sees them."""

    def __init__(self, nodes: int, containers: dict[int, tuple[int, ...]]) -> None:
        self.nodes_by_id = {
            number: NodeRecord(NodeId(number), FORMAT, FORMAT, "host", 9000 + number) for number in range(1, nodes + 1)
        }
        self.records = {
            ContainerId(number): ContainerRecord(
                container_id=ContainerId(number),
                kind="data",
                leader=NodeId(replicas[0]),
                epoch=Epoch(1),
                in_sync=tuple((NodeId(each), FORMAT) for each in replicas),
                replicas=tuple(NodeId(each) for each in replicas),
                min_in_sync=min(2, len(replicas)),
            )
            for number, replicas in containers.items()
        }
        self.refreshes = 0
        self.view = SimpleNamespace(volumes={}, refresh=self._refresh)

    def _refresh(self) -> None:
        self.refreshes += 1

    def mark(self, *numbers: int, **fields: Any) -> None:
        for number in numbers:
            record = self.nodes_by_id[number]
            given = {key: getattr(record, key) for key in record.__struct_fields__} | fields
            self.nodes_by_id[number] = NodeRecord(**given)

    def remove(self, number: int) -> None:
        del self.nodes_by_id[number]

    def node(self, number: NodeId) -> NodeRecord | None:
        return self.nodes_by_id.get(number)

    def nodes(self) -> list[NodeRecord]:
        return list(self.nodes_by_id.values())

    def record(self, number: ContainerId) -> ContainerRecord | None:
        return self.records.get(number)

    def open_data(self, *, volume: str = "default") -> list[ContainerRecord]:
        return [each for each in self.records.values() if each.volume == volume]


def placement(cluster: FakeCluster) -> Placement:
    return Placement(cast(ClusterClient, cluster))


def placed(cluster: FakeCluster, avoid: int | None = None) -> set[int]:
    found = placement(cluster).place(40, "default", avoid=None if avoid is None else ContainerId(avoid))
    return {container for container, _ in found}


def leaving(cluster: FakeCluster) -> set[int]:
    return {number for number in cluster.records if placement(cluster).leaves(number)}


FOUR = {10: (1, 2, 3), 11: (2, 3, 4), 12: (3, 4, 1), 13: (4, 1, 2)}


def test_containers_with_full_nodes_take_partitions_last() -> None:
    cluster = FakeCluster(4, FOUR)
    assert placed(cluster) == {10, 11, 12, 13}
    assert leaving(cluster) == set()
    cluster.mark(3, full=True)
    assert placed(cluster) == {13}, "none of its nodes is full"
    assert leaving(cluster) == {12}, "its leader is full; the others can commit without node 3"
    cluster.mark(2, full=True)
    assert placed(cluster) == {13}, "it can commit without node 2"
    assert leaving(cluster) == {10, 11, 12}
    cluster.mark(1, full=True)
    assert placed(cluster) == {10, 11, 12, 13}, "nowhere is any better"
    assert leaving(cluster) == set()
    cluster.mark(1, 2, 3, full=False)
    assert placed(cluster) == {10, 11, 12, 13}


def test_a_full_leader_alone_is_left_and_one_that_stops_is_no_refuge() -> None:
    cluster = FakeCluster(2, {10: (1,), 11: (2,)})
    cluster.mark(1, full=True)
    assert leaving(cluster) == {10}
    cluster.mark(2, draining=True)
    assert leaving(cluster) == set()
    assert placed(cluster) == {10}, "it stays, though it is full"
    cluster.mark(1, full=False)
    assert placed(cluster, avoid=10) == {11}, "one that drains is better than the one to be left"
    assert not placement(cluster).leaves(ContainerId(99))


def test_nothing_is_placed_with_a_leader_that_was_removed() -> None:
    """Perhaps no node would ever lead it; and the volume's fault was not reported."""
    cluster = FakeCluster(2, {10: (1,), 11: (2,)})
    cluster.remove(2)
    assert placed(cluster) == {10}
    cluster.remove(1)
    with pytest.raises(KafkaError) as caught:
        placed(cluster)
    assert caught.value.code == Code.LEADER_NOT_AVAILABLE
    cluster.view.volumes["default"] = VolumeRecord("default")
    with pytest.raises(KafkaError, match="0 nodes") as caught:
        placed(cluster)
    assert caught.value.code == Code.INVALID_REPLICATION_FACTOR


def test_a_volume_without_containers_says_so() -> None:
    with pytest.raises(KafkaError) as caught:
        placement(FakeCluster(2, {})).place(1, "default")
    assert caught.value.code == Code.LEADER_NOT_AVAILABLE


async def test_the_first_container_of_a_volume_that_another_node_created_is_waited_for() -> None:
    """CreateTopics at one node, right after the stream was created at another, found no container of its volume."""
    cluster = FakeCluster(2, {10: (1, 2)})
    place = placement(cluster)
    learning = asyncio.create_task(place.learn_of({"single"}, timeout_s=60.0))
    await asyncio.sleep(0.05)
    assert not learning.done()
    assert cluster.refreshes, "the store is read at once"
    cluster.records[ContainerId(11)] = structs.replace(cluster.records[ContainerId(10)], volume="single")
    await asyncio.wait_for(learning, 1.0)
    assert place.place(1, "single")


async def test_nothing_is_waited_for_where_a_container_is_known_or_none_can_be() -> None:
    cluster = FakeCluster(1, {10: (1,)})
    place = placement(cluster)
    await asyncio.wait_for(place.learn_of({"default"}, timeout_s=60.0), 1.0)
    cluster.view.volumes["wide"] = VolumeRecord("wide", replicas=3, min_in_sync=2)
    await asyncio.wait_for(place.learn_of({"wide"}, timeout_s=60.0), 1.0)
    assert not cluster.refreshes
    await asyncio.wait_for(place.learn_of({"nowhere"}, timeout_s=0.1), 1.0)
    with pytest.raises(KafkaError) as refused:
        place.place(1, "nowhere")
    assert refused.value.code is Code.LEADER_NOT_AVAILABLE
