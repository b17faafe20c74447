"""All nodes are asked concurrently; nodes that do not answer are left out, but programming errors are raised."""

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from headrace.admin.node_probes import NodeProbes
from headrace.base.errors import Code, KafkaError
from headrace.base.ids import ContainerId, Epoch, NodeId, Position
from headrace.peer.messages import NO_REPLICAS, Probe, ProbeAnswer
from headrace.peer.replica_pages import ReportedReplicas
from headrace.peer.reports import NodeLoad, ReplicaState


def answer(node: int, *containers: int) -> ProbeAnswer:
    replicas = [
        ReplicaState(ContainerId(each), "follower", Epoch(1), Epoch(1), Position(0), Position(0)) for each in containers
    ]
    return ProbeAnswer(
        node=NodeId(node), run=UUID(int=node), replicas=replicas, load=NodeLoad(), reaches_store=True, ready=True
    )


class Cluster:
    """Nodes that answer, or fail."""

    def __init__(self, **answers: Any) -> None:
        self.answers = {int(name[1:]): each for name, each in answers.items()}
        self.asked: list[Probe] = []

    def nodes(self) -> list[Any]:
        return [SimpleNamespace(node_id=NodeId(number)) for number in self.answers]

    async def ask(self, node: Any, message: Probe, *, timeout_s: float) -> tuple[ProbeAnswer, memoryview]:
        self.asked.append(message)
        found = self.answers[node.node_id]
        if isinstance(found, Exception):
            raise found
        return found, memoryview(b"")


def probes(cluster: Cluster) -> NodeProbes:
    given: Any = cluster
    return NodeProbes(given)


async def test_nodes_that_do_not_answer_are_left_out() -> None:
    cluster = Cluster(n1=answer(1), n2=KafkaError(Code.REQUEST_TIMED_OUT), n3=ConnectionResetError("gone"))
    assert await probes(cluster).answers() == {1: answer(1)}
    assert cluster.asked == [Probe(NO_REPLICAS)] * 3


async def test_a_fault_of_ours_is_not_taken_for_a_node_that_is_away() -> None:
    with pytest.raises(ZeroDivisionError):
        await probes(Cluster(n1=answer(1), n2=ZeroDivisionError())).answers()


async def test_replicas_come_page_by_page_until_all_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[ProbeAnswer] = []

    def take(told: ReportedReplicas, page: ProbeAnswer, *, asked_since: object) -> None:
        taken.append(page)
        told.replicas = {each.container: each for each in page.replicas}
        told.since = len(taken)
        told.complete = len(taken) == 3

    monkeypatch.setattr(ReportedReplicas, "take", take)
    found = await probes(Cluster(n1=answer(1, 7, 8))).answers(replicas=True)
    assert [each.container for each in found[NodeId(1)].replicas] == [7, 8]
    assert len(taken) == 3


async def test_a_node_that_tells_no_more_and_not_all_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReportedReplicas, "take", lambda *_, **__: None)
    assert await probes(Cluster(n1=answer(1, 7))).answers(replicas=True) == {}
