"""Headrace's own admin calls on containers. Any node answers them.

A container is recovered by changing its record in the cluster store, which the nodes then follow.
"""

from typing import Final

import msgspec
import structlog

from headrace.admin import cluster_rules as rules
from headrace.admin.cluster_rules import refused
from headrace.admin.node_probes import NodeProbes
from headrace.base.ids import ContainerId, NodeId
from headrace.base.runtime import Runtime
from headrace.catalog.catalog import Catalog
from headrace.partitions.admin_params import Method, Methods, NoParams, Params
from headrace.partitions.admin_rights import CLUSTER_ADMIN
from headrace.partitions.cluster_client import ClusterClient
from headrace.peer.reports import ReplicaState
from headrace.storage.disk_usage import bytes_on_disk
from headrace.store import container_records
from headrace.store.protocol import StoreCall
from headrace.store.records import ContainerRecord

log = structlog.get_logger()


class Recovery(Params, frozen=True):
    container: int
    node: int | None = None
    epoch: int | None = None
    """Epoch of the record that the caller's decision is based on; None: only report what would be done."""


TAKEN: Final = (Recovery,)
_DECODERS: Final = [msgspec.msgpack.Decoder(params) for params in TAKEN]
"""Decoders built as this module is loaded; see admin_api."""


class ContainerCalls:
    """The admin calls on containers."""

    def __init__(
        self, *, runtime: Runtime, cluster: ClusterClient, catalog: Catalog, store: StoreCall, probes: NodeProbes
    ) -> None:
        self._runtime = runtime
        self._cluster = cluster
        self._catalog = catalog
        self._store = store
        self._probes = probes

    def methods(self) -> Methods:
        """By method name: its parameters, its handler, and the right that it requires."""
        return {
            "container.list": Method(NoParams, self._list, CLUSTER_ADMIN),
            "container.recover": Method(Recovery, self._recover, CLUSTER_ADMIN),
        }

    async def _list(self, params: NoParams) -> list[dict[str, object]]:
        """All containers' records. `bytes` is the size of this node's replica, null if it has none."""
        stored = await bytes_on_disk(self._runtime, self._cluster.replicas)
        return [
            {
                "container": each.container_id,
                "kind": each.kind,
                "state": each.state,
                "volume": each.volume,
                "primary": each.leader,
                "epoch": each.epoch,
                "in_sync": [node for node, _ in each.in_sync],
                "replicas": list(each.replicas),
                "wanted": each.wanted,
                "min_in_sync": each.min_in_sync,
                "recovered": each.recovered,
                "bytes": stored.get(each.container_id),
            }
            for _, each in sorted(self._cluster.view.containers.items())
            if each.state != rules.DELETED
        ]

    async def _recover(self, params: Recovery) -> dict[str, object]:
        """Choose a leader from outside the in-sync set, of which no replica is left (invariant 15). The answer says
        what may be lost."""
        container = ContainerId(params.container)
        record = self._cluster.record(container)
        if record is None:
            raise refused(f"there is no container {container}; `headrace containers` shows them")
        answers = await self._probes.answers(replicas=True)
        states: dict[NodeId, ReplicaState] = {
            node: state for node, answer in answers.items() for state in answer.replicas if state.container == container
        }
        asked = None if params.node is None else NodeId(params.node)
        candidate = rules.unclean_candidate(record, states, nodes=self._cluster.view.nodes, asked=asked)
        open_rows = await self._catalog.query(lambda reader: reader.chains.open_in(container, limit=10_000))
        shown: dict[str, object] = {
            "container": container,
            "kind": record.kind,
            "epoch": record.epoch,
            "in_sync": [node for node, _ in record.in_sync],
            "node": candidate.node,
            "last_epoch": candidate.last_epoch,
            "end": candidate.end,
            "committed": candidate.committed,
            "open_partitionlets": len(open_rows),
            "loss": candidate.loss,
            "done": params.epoch is not None,
        }
        if params.epoch is None:
            return shown

        def decide(present: ContainerRecord) -> ContainerRecord:
            if present != record or present.epoch != params.epoch:
                raise refused(f"container {container} has changed meanwhile: check it again")
            return candidate.record

        after = await self._store(lambda store: container_records.change_container(store, container, decide))
        log.warning(
            "unclean recovery",
            container=container,
            node=candidate.node,
            epoch=candidate.record.epoch,
            end=candidate.end,
            loss=candidate.loss,
        )
        self._cluster.view.refresh()
        return {**shown, "epoch": after.epoch}
