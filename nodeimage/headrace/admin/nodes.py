"""Headrace's own admin calls on nodes: list, drain, remove. Any node answers them.

A call changes the cluster store, and the controller acts on the change. `cluster_rules` decides what is allowed.
"""

import asyncio
from collections.abc import Mapping
from typing import Final

import msgspec
import structlog

from headrace.admin import cluster_rules as rules
from headrace.admin.cluster_rules import refused
from headrace.admin.node_probes import NodeProbes
from headrace.base.ids import NodeId
from headrace.partitions.admin_params import Method, Methods, NoParams, Params
from headrace.partitions.admin_rights import CLUSTER_ADMIN
from headrace.partitions.cluster_client import ClusterClient, ControllerLink
from headrace.peer.messages import ProbeAnswer
from headrace.store import records
from headrace.store.protocol import StoreCall
from headrace.store.records import NodeRecord

log = structlog.get_logger()


class Drain(Params, frozen=True):
    node: int
    cancel: bool = False


class Removal(Params, frozen=True):
    node: int
    force: bool = False
    check_only: bool = False


TAKEN: Final = (Drain, Removal)
_DECODERS: Final = [msgspec.msgpack.Decoder(params) for params in TAKEN]
"""Decoders built as this module is loaded; see admin_api."""


class NodeCalls:
    """The admin calls on nodes, and how nodes are shown."""

    def __init__(
        self, *, cluster: ClusterClient, store: StoreCall, controller: ControllerLink, probes: NodeProbes
    ) -> None:
        self._cluster = cluster
        self._store = store
        self._controller = controller
        self._probes = probes

    def methods(self) -> Methods:
        """By method name: its parameters, its handler, and the right that it requires."""
        return {
            "node.list": Method(NoParams, self._list, CLUSTER_ADMIN),
            "node.drain": Method(Drain, self._drain, CLUSTER_ADMIN),
            "node.remove": Method(Removal, self._remove, CLUSTER_ADMIN),
        }

    async def _list(self, params: NoParams) -> list[dict[str, object]]:
        """All nodes: address, state, and what they lead and hold."""
        return await self.all_shown()

    async def _drain(self, params: Drain) -> dict[str, object]:
        """Move a node's roles and replicas elsewhere (`cancel`: stop doing so); returns the node, with warnings."""
        node = self._node(params.node)
        warnings: list[str] = []
        if not params.cancel and not node.draining:
            view = self._cluster.view
            alive = (await self._probes.answers()).keys()
            volumes = list(view.volumes.values())
            fault = rules.drain_fault(node.node_id, nodes=view.nodes, alive=alive, volumes=volumes)
            if fault is not None:
                raise refused(fault)
            warnings = rules.drain_warnings(node.node_id, nodes=view.nodes, alive=alive, volumes=volumes)
        await self._store(lambda store: records.set_draining(store, node.node_id, not params.cancel))
        self._cluster.view.refresh()
        log.info("drain", node=node.node_id, draining=not params.cancel)
        held = rules.held_by(node.node_id, self._cluster.view.containers.values())
        return {
            "node": node.node_id,
            "draining": not params.cancel,
            "leads": sum(each.leader == node.node_id for each in held),
            "replicas": len(held),
            "warnings": warnings,
        }

    async def _remove(self, params: Removal) -> dict[str, object]:
        """Remove a node permanently; `check_only`: only check whether that is allowed."""
        view = self._cluster.view
        if params.force and NodeId(params.node) not in view.nodes:
            return await self._forget_lost(params)
        node = self._node(params.node)
        fault = rules.removal_fault(
            node.node_id, nodes=view.nodes, containers=view.containers.values(), force=params.force
        )
        if fault is not None:
            raise refused(fault)
        held = rules.held_by(node.node_id, view.containers.values())
        if not params.check_only:
            if node.node_id == self._cluster.node_id:
                raise refused(f"ask another node: this is node {node.node_id} itself, which cannot remove itself")
            await self._store(lambda store: records.remove_node(store, node.node_id, force=params.force))
            view.refresh()
            log.warning("node removed", node=node.node_id, replicas_given_up=len(held))
        return {"node": node.node_id, "removed": not params.check_only, "replicas_given_up": len(held)}

    async def _forget_lost(self, params: Removal) -> dict[str, object]:
        """Remove a node whose record the store has lost, so that it cannot come back."""
        node_id = NodeId(params.node)
        if not await self._store(lambda store: records.had_node_id(store, node_id)):
            self._node(params.node)  # raises, since there never was such a node
        if not params.check_only:
            await self._store(lambda store: records.remove_node(store, node_id, force=True))
            log.warning("a node without a record was removed", node=node_id)
        return {"node": node_id, "removed": not params.check_only, "replicas_given_up": 0}

    def _node(self, number: int) -> NodeRecord:
        node = self._cluster.node(NodeId(number))
        if node is None:
            known = ", ".join(str(each.node_id) for each in self._cluster.nodes())
            raise refused(f"there is no node {number}; there are {known}")
        return node

    async def all_shown(self) -> list[dict[str, object]]:
        """All nodes, as `node.list` shows them."""
        answers = await self._probes.answers()
        duties = await asyncio.to_thread(rules.duties, list(self._cluster.view.containers.values()))
        return [self.shown(node, answers.get(node.node_id), duties) for node in self._cluster.nodes()]

    def shown(
        self, node: NodeRecord, answer: ProbeAnswer | None, duties: Mapping[NodeId, rules.Duties]
    ) -> dict[str, object]:
        """One node, as `node.list` shows it. `answer`: its answer to a probe, None if it gave none."""
        has = duties.get(node.node_id, rules.Duties())
        roles = ["controller"] if controlling(self._cluster) == node.node_id else []
        roles += ["catalog"] if has.leads_catalog else []
        load = answer.load if answer is not None else None
        off_s = self._controller.clocks_off().get(node.node_id)
        return {
            "node": node.node_id,
            "address": f"{node.host}:{node.port}",
            "state": _state(node, answer, has.replicas > 0),
            "roles": roles,
            "zone": node.zone,
            "host": node.failure_host,
            "labels": node.labels,
            "leads": has.leads,
            "replicas": has.replicas,
            "in_sync": has.in_sync,
            "in_per_second_bytes": None if load is None else round(load.bytes_in_per_s),
            "out_per_second_bytes": None if load is None else round(load.bytes_out_per_s),
            "requests_per_second": None if load is None else round(load.requests_per_s),
            "disk_used_bytes": None if load is None else load.disk_used,
            "disk_total_bytes": None if load is None else load.disk_total,
            "clock_off_ms": None if off_s is None else round(off_s * 1000),
            "catalog_damage": None if load is None else load.catalog_damage,
        }


def controlling(cluster: ClusterClient) -> NodeId | None:
    """The node that holds the controller lease, as far as this node knows."""
    lease = cluster.view.lease
    return None if lease is None or lease.node == records.NOBODY else lease.node


def _state(node: NodeRecord, answer: ProbeAnswer | None, holds: bool) -> str:
    if node.draining and not holds:
        return "drained" if answer is not None else "drained, down"
    if answer is None:
        return "draining, down" if node.draining else "down"
    if node.stopping:
        return "stopping"
    if node.draining:
        return "draining"
    if not answer.ready:
        return "starting"
    return "up, full" if node.full else "up"
