"""Probes all nodes concurrently, for every call that needs to know which are alive."""

import asyncio
from collections.abc import Collection
from typing import Final

import msgspec

from headrace.base.errors import HeadraceError
from headrace.base.ids import NodeId, Position
from headrace.partitions.cluster_client import ClusterClient
from headrace.peer.messages import NO_REPLICAS, Probe, ProbeAnswer
from headrace.peer.replica_pages import ReportedReplicas
from headrace.store.records import NodeRecord

PROBE_S: Final = 1.5


class NodeProbes:
    """Probes on behalf of admin calls."""

    def __init__(self, cluster: ClusterClient) -> None:
        self._cluster = cluster

    async def answers(self, *, replicas: bool = False) -> dict[NodeId, ProbeAnswer]:
        """The answers of the nodes that answer, which are all asked at once. `replicas`: with all of their replicas."""
        nodes = self._cluster.nodes()
        ask = self._ask_all if replicas else self._ask_alive
        answers = await asyncio.gather(*(ask(node) for node in nodes), return_exceptions=True)
        found: dict[NodeId, ProbeAnswer] = {}
        for node, answer in zip(nodes, answers, strict=True):
            if not isinstance(answer, BaseException):
                found[node.node_id] = answer
            elif not isinstance(answer, HeadraceError | OSError):
                raise answer
        return found

    async def nodes_below(self, position: Position, of: Collection[NodeId]) -> set[NodeId]:
        """The nodes among `of` on which the catalog's log is not in force up to `position`, by their own answers; nodes
        that do not answer count too. Nodes without a record do not."""
        nodes = [node for node in self._cluster.nodes() if node.node_id in of]
        answers = await asyncio.gather(*(self._ask_alive(node) for node in nodes), return_exceptions=True)
        found: set[NodeId] = set()
        for node, answer in zip(nodes, answers, strict=True):
            if isinstance(answer, BaseException) and not isinstance(answer, HeadraceError | OSError):
                raise answer
            if isinstance(answer, BaseException) or answer.load.applied < position:
                found.add(node.node_id)
        return found

    async def _ask_alive(self, node: NodeRecord) -> ProbeAnswer:
        answer, _ = await self._cluster.ask(node, Probe(NO_REPLICAS), timeout_s=PROBE_S)
        return answer

    async def _ask_all(self, node: NodeRecord) -> ProbeAnswer:
        """Ask page by page; the time limit applies to each page. Raises HeadraceError if a page does not arrive."""
        told = ReportedReplicas()
        while True:
            asked = Probe(told.since, told.begun)
            answer, _ = await self._cluster.ask(node, asked, timeout_s=PROBE_S)
            told.take(answer, asked_since=asked.since)
            if told.complete:
                return msgspec.structs.replace(answer, replicas=list(told.replicas.values()))
            if told.since == asked.since:
                raise HeadraceError(f"node {node.node_id} does not report all of its replicas")
