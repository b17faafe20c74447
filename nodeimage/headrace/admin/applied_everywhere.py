"""Waits until all nodes have applied a change of the catalog, and names those that have not.

A command has one position in the catalog's log, which is the same log on every node. The node that submitted it has
applied it, so its present position is not below the command's. Each node reports in its answer to a probe up to which
position the log is in force there. A node that does not answer counts as one that has not applied the change: if it is
alive but cut off, it may still use the former rules.
"""

import asyncio
from typing import Final

from headrace.admin.node_probes import NodeProbes
from headrace.base.ids import NodeId
from headrace.base.runtime import Runtime
from headrace.catalog.catalog import Catalog
from headrace.partitions.cluster_client import ClusterClient

WAIT_S: Final = 3.0
LOOK_S: Final = 0.05


class AppliedEverywhere:
    """Waits for the changes that were submitted through this node."""

    def __init__(self, *, runtime: Runtime, catalog: Catalog, cluster: ClusterClient, probes: NodeProbes) -> None:
        self._runtime = runtime
        self._catalog = catalog
        self._cluster = cluster
        self._probes = probes

    async def nodes_behind(self, *, wait_s: float = WAIT_S) -> list[NodeId]:
        """The nodes that have not applied, within `wait_s` seconds, what this node has applied. The change is made
        anyway."""
        position = self._catalog.applied
        deadline = self._runtime.loop.time() + wait_s
        left = {node.node_id for node in self._cluster.nodes()}
        while left := await self._probes.nodes_below(position, left):
            if self._runtime.loop.time() >= deadline:
                break
            await asyncio.sleep(LOOK_S)
        return sorted(left)
