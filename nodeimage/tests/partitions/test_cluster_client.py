"""What a node knows of the other nodes, and which of them it sends requests to."""

from types import SimpleNamespace
from typing import Any

import pytest

from headrace.base.errors import Code, KafkaError
from headrace.base.ids import ContainerId, Epoch, NodeId
from headrace.partitions.cluster_client import CALL_S, ClusterClient
from headrace.peer.messages import HeldBytes


def record(
    number: int, *, kind: str = "data", state: str = "open", leader: int = 2, epoch: int = 5, volume: str = "default"
) -> Any:
    return SimpleNamespace(
        container_id=ContainerId(number),
        kind=kind,
        state=state,
        leader=NodeId(leader),
        epoch=Epoch(epoch),
        volume=volume,
    )


class Peers:
    """Notes which nodes get requests."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []

    async def call(self, address: object, message: object, buffers: object, *, timeout_s: float) -> tuple[str, bytes]:
        self.asked.append((address, message, timeout_s))
        return "answer", b""


def cluster(*records: Any, led: dict[int, int] | None = None) -> tuple[ClusterClient, Peers]:
    """Node 1 of three; `led`: epochs of the containers that it leads."""
    nodes = {
        NodeId(number): SimpleNamespace(node_id=NodeId(number), peer_address=("h", number)) for number in (3, 1, 2)
    }
    view: Any = SimpleNamespace(nodes=nodes, containers={each.container_id: each for each in records})
    leads = {ContainerId(number): SimpleNamespace(epoch=Epoch(epoch)) for number, epoch in (led or {}).items()}
    replicas: Any = SimpleNamespace(led=leads)
    peers = Peers()
    given: Any = peers
    return ClusterClient(node_id=NodeId(1), view=view, replicas=replicas, peers=given), peers


def test_nodes_are_told_by_id() -> None:
    link, _ = cluster()
    assert [node.node_id for node in link.nodes()] == [1, 2, 3]
    assert link.node_count == 3


def test_a_container_that_is_led_here_is_known_before_its_record_says_so() -> None:
    link, _ = cluster(record(7, leader=2, epoch=5), led={7: 6})
    assert link.leader(ContainerId(7)) == (1, 6)


def test_of_others_their_record_tells_but_of_deleted_ones() -> None:
    link, _ = cluster(record(7, leader=2, epoch=5), record(8, state="deleted"))
    assert link.leader(ContainerId(7)) == (2, 5)
    assert link.leader(ContainerId(8)) is None
    assert link.leader(ContainerId(9)) is None


def test_open_containers_are_those_of_a_volume_that_hold_records_and_take_more() -> None:
    link, _ = cluster(
        record(1, kind="catalog"), record(2), record(3, state="closed"), record(4, volume="fast"), record(5)
    )
    assert [each.container_id for each in link.open_data()] == [2, 5]
    assert [each.container_id for each in link.open_data(volume="fast")] == [4]
    assert link.catalog is not None
    assert link.catalog.container_id == 1
    assert link.catalog_container is None


async def test_a_containers_leader_is_asked() -> None:
    link, peers = cluster(record(7, leader=3))
    assert await link.ask_leader(ContainerId(7), HeldBytes()) == ("answer", b"")
    assert peers.asked == [(("h", 3), HeldBytes(), CALL_S)]


@pytest.mark.parametrize("known", [[], [record(7, leader=77)], [record(7, state="deleted")]])
async def test_where_nobody_is_known_to_lead_nobody_is_asked(known: list[Any]) -> None:
    link, peers = cluster(*known)
    with pytest.raises(KafkaError) as refused:
        await link.ask_leader(ContainerId(7), HeldBytes())
    assert refused.value.code is Code.LEADER_NOT_AVAILABLE
    assert peers.asked == []
