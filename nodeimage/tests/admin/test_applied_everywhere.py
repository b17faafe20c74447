"""A change waits for all nodes, and those that have not applied it are named."""

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

from headrace.admin.applied_everywhere import AppliedEverywhere
from headrace.admin.node_probes import NodeProbes
from headrace.base.errors import HeadraceError
from headrace.base.ids import NodeId, Position
from headrace.base.runtime import Runtime
from headrace.peer.reports import NodeLoad

HERE = Position(1_000)


class Nodes:
    """Nodes that report one position after the other; None: no answer."""

    def __init__(self, **told: list[int | None]) -> None:
        self.told = {NodeId(int(name.removeprefix("n"))): list(each) for name, each in told.items()}
        self.asked: list[int] = []

    def nodes(self) -> list[Any]:
        return [SimpleNamespace(node_id=node) for node in self.told]

    async def ask(self, node: Any, _message: object, *, timeout_s: float) -> tuple[Any, memoryview]:
        self.asked.append(node.node_id)
        told = self.told[node.node_id]
        position = told.pop(0) if len(told) > 1 else told[0]
        if position is None:
            raise HeadraceError("no answer")
        return SimpleNamespace(load=NodeLoad(applied=Position(position))), memoryview(b"")


def waiting(nodes: Nodes) -> AppliedEverywhere:
    return AppliedEverywhere(
        runtime=Runtime(executor=ThreadPoolExecutor(1), clock=cast(Any, None)),
        catalog=cast(Any, SimpleNamespace(applied=HERE)),
        cluster=cast(Any, nodes),
        probes=NodeProbes(cast(Any, nodes)),
    )


async def test_it_returns_at_once_where_all_have_applied_it() -> None:
    nodes = Nodes(n1=[1_000], n2=[2_000])
    assert await waiting(nodes).nodes_behind() == []
    assert nodes.asked == [1, 2]


async def test_who_is_behind_is_asked_again_and_nobody_else() -> None:
    nodes = Nodes(n1=[1_000], n2=[999, -1, 1_000])
    assert await waiting(nodes).nodes_behind() == []
    assert nodes.asked == [1, 2, 2, 2]


async def test_who_does_not_answer_does_not_tell_or_stays_behind_is_named() -> None:
    nodes = Nodes(n1=[1_000], n2=[None], n3=[-1], n4=[999])
    assert await waiting(nodes).nodes_behind(wait_s=0.1) == [2, 3, 4]
