"""Headrace's own admin calls on the cluster as a whole: status, events, balance. Any node answers them.

Admin calls change the cluster store, and the controller acts on the change; so an answer says what was requested, and
`cluster.status` shows the progress.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Annotated, Final

import msgspec
import structlog

from headrace.admin import cluster_rules as rules
from headrace.admin.node_probes import NodeProbes
from headrace.admin.nodes import NodeCalls, controlling
from headrace.admin.volumes import volume_shown
from headrace.base.errors import HeadraceError
from headrace.base.ids import ContainerId, NodeId
from headrace.base.runtime import Runtime
from headrace.partitions.admin_params import Method, Methods, NoParams, Params
from headrace.partitions.admin_rights import CLUSTER_ADMIN
from headrace.partitions.cluster_client import ClusterClient, ControllerLink
from headrace.partitions.redundancy import Redundancy
from headrace.peer.reports import ReplicaState
from headrace.storage.volume_limits import VolumeLimits
from headrace.store import container_records, records
from headrace.store.protocol import ClusterStore, StoreCall
from headrace.store.records import ContainerRecord

log = structlog.get_logger()

STORE_SILENT_S: Final = 3.0
SHOWN: Final = 20
"""The maximum number of containers that a problem names."""
EVENTS: Final = 20
LACKING: Final = 1_000
"""The maximum number of containers without full redundancy that a status names; it counts them all."""


class Newest(Params, frozen=True):
    events: int = EVENTS


class Balance(Params, frozen=True):
    """Changes of the balance policy; see BalanceRecord. Fields that are not given stay as they are."""

    paused: bool | None = None
    over_mean: Annotated[float, msgspec.Meta(ge=1.05, le=10)] | None = None
    traffic_floor: Annotated[int, msgspec.Meta(ge=1, le=2**53)] | None = None
    requests_floor: Annotated[int, msgspec.Meta(ge=1, le=2**53)] | None = None
    disk_floor: Annotated[int, msgspec.Meta(ge=1, le=2**53)] | None = None
    moves_per_minute: Annotated[int, msgspec.Meta(ge=0, le=600)] | None = None


TAKEN: Final = (Newest, Balance)
_DECODERS: Final = [msgspec.msgpack.Decoder(params) for params in TAKEN]
"""Decoders built as this module is loaded; see admin_api."""


class ClusterCalls:
    """The admin calls on the cluster as a whole."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        cluster_id: str,
        cluster: ClusterClient,
        store: StoreCall,
        controller: ControllerLink,
        redundancy: Redundancy,
        volume_limits: VolumeLimits,
        probes: NodeProbes,
        nodes: NodeCalls,
        security: Callable[[], Awaitable[Mapping[str, object]]],
    ) -> None:
        """`security`: returns whether security is on, and related figures, for the status."""
        self._security = security
        self._runtime = runtime
        self._cluster_id = cluster_id
        self._cluster = cluster
        self._store = store
        self._controller = controller
        self._redundancy = redundancy
        self._volume_limits = volume_limits
        self._probes = probes
        self._nodes = nodes

    def methods(self) -> Methods:
        """By method name: its parameters, its handler, and the right that it requires."""
        return {
            "cluster.status": Method(NoParams, self._status, CLUSTER_ADMIN),
            "cluster.events": Method(Newest, self._events, CLUSTER_ADMIN),
            "balance": Method(Balance, self._balance, CLUSTER_ADMIN),
        }

    async def _status(self, params: NoParams) -> dict[str, object]:
        """The cluster: its nodes, its controller, its volumes, and the containers without full redundancy."""
        view = self._cluster.view
        answers, held = await asyncio.gather(self._probes.answers(replicas=True), self._volume_limits.by_volume())
        replicas = {node: {each.container: each for each in answer.replicas} for node, answer in answers.items()}
        kept = [each for each in view.containers.values() if each.state != rules.DELETED]
        # In a thread, since it takes a while with tens of thousands of containers.
        lacking = await asyncio.to_thread(rules.lacks, kept, nodes=dict(view.nodes), replicas=replicas)
        below = [each for each in lacking if each.in_sync < each.min_in_sync]
        nodes = list(view.nodes.values())
        duties = await asyncio.to_thread(rules.duties, kept)
        of_volume = await asyncio.to_thread(_by_volume, kept)
        return {
            "cluster": self._cluster_id,
            "controller": controlling(self._cluster),
            "redundancy": {
                "whole": not lacking,
                "since_ms": self._redundancy.since if self._redundancy.whole == (not lacking) else None,
                "containers": len(kept),
                "catalog": any(each.kind == "catalog" for each in kept),
                "lacking": len(lacking),
                "below_minimum": len(below),
                "stalled": sum(each.stalled for each in lacking if each.in_sync >= each.min_in_sync),
                "behind_bytes": sum(each.behind_bytes or 0 for each in lacking),
            },
            "nodes": [self._nodes.shown(node, answers.get(node.node_id), duties) for node in self._cluster.nodes()],
            "volumes": [
                volume_shown(each, nodes, of_volume[name], held=held.get(name, 0))
                for name, each in sorted(view.volumes.items())
            ],
            # The most urgent of them: the answer does not grow with the cluster.
            "lacking": [msgspec.to_builtins(each) for each in sorted(lacking, key=_urgency)[:LACKING]],
            "set_back": await self._set_back(kept, replicas),
            "security": await self._security(),
            "store": {"node": self._cluster.node_id, "silent_ms": self._store_silent_ms()},
        }

    def _store_silent_ms(self) -> int:
        """How long the cluster store has not answered this node, in milliseconds; 0 below `STORE_SILENT_S`."""
        silent_s = self._runtime.loop.time() - self._cluster.view.reachable_at
        return round(1000 * silent_s) if silent_s >= STORE_SILENT_S else 0

    async def _set_back(
        self, kept: Sequence[ContainerRecord], replicas: Mapping[NodeId, Mapping[ContainerId, ReplicaState]]
    ) -> dict[str, object] | None:
        """Which containers are blocked because the cluster store was set back to an old copy, or None if there are
        none."""
        suspected = rules.nodes_ahead_of_records(kept, replicas=replicas)
        if not suspected:
            return None
        read = partial(_records_of, containers=list(suspected))
        try:  # this node's view may be behind for a moment
            newest = await self._store(read)
        except HeadraceError:
            return None  # without the store this is unknown
        found = rules.nodes_ahead_of_records(newest, replicas=replicas)
        if not found:
            return None
        return {
            "containers": len(found),
            "such_as": sorted(found)[:SHOWN],
            "nodes": sorted({node for nodes in found.values() for node in nodes}),
            "reason": "the cluster store is an old copy of itself: these nodes know newer records of these containers,"
            " and no node leads, follows or cuts according to the old ones",
            "do": "start all nodes, then `headrace recover-store`",
        }

    async def _events(self, params: Newest) -> list[dict[str, object]]:
        """What this node has seen: its decisions as controller with their reasons, and changes of redundancy."""
        found: list[dict[str, object]] = [
            {"at_ms": event.at, "kind": event.kind, "container": event.container, "reason": event.reason}
            for event in self._controller.events
        ]
        found += [
            {"at_ms": turn.at, "kind": turn.kind, "container": None, "reason": turn.reason} for turn in self._redundancy
        ]
        found.sort(key=lambda event: event["at_ms"])  # type: ignore[arg-type,return-value]  # all are numbers
        return found[-params.events :] if params.events > 0 else []

    async def _balance(self, params: Balance) -> dict[str, object]:
        """The balance policy, changed first if any field is given, with the load of each node."""
        policy = self._cluster.view.balance
        given = {name: value for name, value in msgspec.structs.asdict(params).items() if value is not None}
        if given:
            policy = await self._store(lambda store: records.set_balance(store, **given))
            self._cluster.view.refresh()
            log.info("balance", **msgspec.structs.asdict(policy))
        return {
            **msgspec.structs.asdict(policy),
            "controller": controlling(self._cluster),
            "nodes": await self._nodes.all_shown(),
        }


def _urgency(lack: rules.Lack) -> tuple[bool, ContainerId]:
    return (lack.in_sync >= lack.min_in_sync and not lack.stalled), lack.container


def _by_volume(containers: Iterable[ContainerRecord]) -> defaultdict[str, list[ContainerRecord]]:
    found: defaultdict[str, list[ContainerRecord]] = defaultdict(list)
    for each in containers:
        found[each.volume].append(each)
    return found


def _records_of(store: ClusterStore, *, containers: Iterable[ContainerId]) -> list[ContainerRecord]:
    """[blocking] The existing records of these containers."""
    found = (container_records.get_container(store, each) for each in containers)
    return [each for each in found if each is not None]
