"""Headrace's own admin calls on the cluster: nodes, containers, balance, events. Any node answers them.

What is asked is carried out by a change of the cluster store, which the controller then acts on; so an answer says what
was asked for, and `cluster.status` how far it is. Who lives is asked of the nodes themselves, all at a time, at every
call that needs it. What may be asked is decided in `cluster_rules`; the calls on volumes are in
`volume_admin`.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import structlog

from headrace.admin import cluster_rules as rules
from headrace.admin import feature_levels, volumes
from headrace.admin.cluster_rules import refused
from headrace.admin.volumes import volume_shown
from headrace.base.errors import HeadraceError
from headrace.base.ids import ContainerId, NodeId
from headrace.partitions.admin_params import Methods, NoParams, Params
from headrace.peer.messages import NO_REPLICAS, Probe, ProbeAnswer
from headrace.peer.replica_pages import ToldReplicas
from headrace.peer.reports import ReplicaState
from headrace.storage.disk_usage import bytes_on_disk
from headrace.store import container_records, records
from headrace.store.protocol import ClusterStore
from headrace.store.records import ContainerRecord, NodeRecord

if TYPE_CHECKING:
    from headrace.kafka.dispatch import Broker

log = structlog.get_logger()

PROBE_S: Final = 1.5
STORE_SILENT_S: Final = 3.0
SHOWN: Final = 20
"""Containers that are named, of many."""
EVENTS: Final = 20
LACKING: Final = 1_000
"""Containers without whole redundancy that a status names; it counts them all."""


# --- the cluster


class Newest(Params, frozen=True):
    events: int = EVENTS


async def cluster_status(broker: "Broker", params: NoParams) -> dict[str, object]:
    """The cluster: its nodes, its controller, its volumes, and what its redundancy lacks."""
    view = broker.cluster.view
    answers, held = await asyncio.gather(_probed(broker, replicas=True), broker.volume_limits.by_volume())
    replicas = {node: {each.container: each for each in answer.replicas} for node, answer in answers.items()}
    kept = [each for each in view.containers.values() if each.state != rules.DELETED]
    # With tens of thousands of containers it takes a while.
    lacking = await asyncio.to_thread(rules.lacks, kept, nodes=dict(view.nodes), replicas=replicas)
    below = [each for each in lacking if each.in_sync < each.min_in_sync]
    nodes = list(view.nodes.values())
    duties = await asyncio.to_thread(rules.duties, kept)
    of_volume = await asyncio.to_thread(_by_volume, kept)
    return {
        "cluster": broker.node.cluster_id,
        "controller": _controller(broker),
        "redundancy": {
            "whole": not lacking,
            "since_ms": broker.redundancy.since if broker.redundancy.whole == (not lacking) else None,
            "containers": len(kept),
            "catalog": any(each.kind == "catalog" for each in kept),
            "lacking": len(lacking),
            "below_minimum": len(below),
            "stalled": sum(each.stalled for each in lacking if each not in below),
            "behind_bytes": sum(each.behind_bytes or 0 for each in lacking),
        },
        "nodes": [_node_shown(broker, node, answers.get(node.node_id), duties) for node in broker.cluster.nodes()],
        "volumes": [
            volume_shown(each, nodes, of_volume[name], held=held.get(name, 0))
            for name, each in sorted(view.volumes.items())
        ],
        # The most urgent of them: the answer does not grow with the cluster.
        "lacking": [msgspec.to_builtins(each) for each in sorted(lacking, key=_urgency)[:LACKING]],
        "set_back": await _set_back(broker, kept, replicas),
        "store": {"node": broker.node_id, "silent_ms": _store_silent_ms(broker)},
    }


def _store_silent_ms(broker: "Broker") -> int:
    """So long this node has not heard of the cluster store; 0: it answers."""
    silent_s = broker.loop.time() - broker.cluster.view.reachable_at
    return round(1000 * silent_s) if silent_s >= STORE_SILENT_S else 0


def _urgency(lack: rules.Lack) -> tuple[bool, ContainerId]:
    return (lack.in_sync >= lack.min_in_sync and not lack.stalled), lack.container


def _by_volume(containers: Iterable[ContainerRecord]) -> defaultdict[str, list[ContainerRecord]]:
    found: defaultdict[str, list[ContainerRecord]] = defaultdict(list)
    for each in containers:
        found[each.volume].append(each)
    return found


async def _set_back(
    broker: "Broker", kept: Sequence[ContainerRecord], replicas: Mapping[NodeId, Mapping[ContainerId, ReplicaState]]
) -> dict[str, object] | None:
    """What a cluster store that was set back to an old copy keeps from going on; None: it was not."""
    suspected = rules.knowing_better(kept, replicas=replicas)
    if not suspected:
        return None
    read = partial(_records_of, containers=list(suspected))
    try:  # this node's view may be behind for a moment
        newest = await broker.store(read)
    except HeadraceError:
        return None  # nobody can say, without the store
    found = rules.knowing_better(newest, replicas=replicas)
    if not found:
        return None
    return {
        "containers": len(found),
        "such_as": sorted(found)[:SHOWN],
        "nodes": sorted({node for nodes in found.values() for node in nodes}),
        "reason": "the cluster store is an old copy of itself: these nodes know newer records of these containers, and "
        "nobody leads, follows or cuts by the old ones",
        "do": "start all nodes, then `headrace recover-store`",
    }


def _records_of(store: ClusterStore, *, containers: Iterable[ContainerId]) -> list[ContainerRecord]:
    """[blocking]"""
    found = (container_records.get_container(store, each) for each in containers)
    return [each for each in found if each is not None]


async def cluster_events(broker: "Broker", params: Newest) -> list[dict[str, object]]:
    """What this node has seen: as controller what it did and why, and when redundancy was lost and whole again."""
    found: list[dict[str, object]] = [
        {"at_ms": event.at, "kind": event.kind, "container": event.container, "reason": event.reason}
        for event in broker.controller.events
    ]
    found += [
        {"at_ms": turn.at, "kind": turn.kind, "container": None, "reason": turn.reason} for turn in broker.redundancy
    ]
    found.sort(key=lambda event: event["at_ms"])  # type: ignore[arg-type,return-value]  # all are numbers
    return found[-params.events :] if params.events > 0 else []


def _controller(broker: "Broker") -> NodeId | None:
    lease = broker.cluster.view.lease
    return None if lease is None or lease.node == records.NOBODY else lease.node


# --- nodes


class OneNode(Params, frozen=True):
    node: int


class Drain(Params, frozen=True):
    node: int
    cancel: bool = False


class Removal(Params, frozen=True):
    node: int
    force: bool = False
    check_only: bool = False


async def node_list(broker: "Broker", params: NoParams) -> list[dict[str, object]]:
    """Every node: where it is, whether it answers, what it leads and holds."""
    return await _nodes_shown(broker)


async def node_drain(broker: "Broker", params: Drain) -> dict[str, object]:
    """Have a node's roles and replicas go elsewhere (`cancel`: no longer); the node, and what to know about it."""
    node = _node(broker, params.node)
    warnings: list[str] = []
    if not params.cancel and not node.draining:
        view = broker.cluster.view
        alive = (await _probed(broker)).keys()
        volumes = list(view.volumes.values())
        fault = rules.drain_fault(node.node_id, nodes=view.nodes, alive=alive, volumes=volumes)
        if fault is not None:
            raise refused(fault)
        warnings = rules.drain_warnings(node.node_id, nodes=view.nodes, alive=alive, volumes=volumes)
    await broker.store(lambda store: records.set_draining(store, node.node_id, not params.cancel))
    broker.cluster.view.refresh()
    log.info("drain", node=node.node_id, draining=not params.cancel)
    held = rules.held_by(node.node_id, broker.cluster.view.containers.values())
    return {
        "node": node.node_id,
        "draining": not params.cancel,
        "leads": sum(each.primary == node.node_id for each in held),
        "replicas": len(held),
        "warnings": warnings,
    }


async def node_remove(broker: "Broker", params: Removal) -> dict[str, object]:
    """Forget a node for good; `check_only`: say whether that may be, and leave it."""
    view = broker.cluster.view
    if params.force and NodeId(params.node) not in view.nodes:
        return await _forget_lost(broker, params)
    node = _node(broker, params.node)
    fault = rules.removal_fault(node.node_id, nodes=view.nodes, containers=view.containers.values(), force=params.force)
    if fault is not None:
        raise refused(fault)
    held = rules.held_by(node.node_id, view.containers.values())
    if not params.check_only:
        if node.node_id == broker.node_id:
            raise refused(f"ask another node: this one is node {node.node_id}, which is to be removed")
        await broker.store(lambda store: records.remove_node(store, node.node_id, force=params.force))
        view.refresh()
        log.warning("node removed", node=node.node_id, replicas_given_up=len(held))
    return {"node": node.node_id, "removed": not params.check_only, "replicas_given_up": len(held)}


async def _forget_lost(broker: "Broker", params: Removal) -> dict[str, object]:
    """A node that has no record, as the store lost it: it is not to come back."""
    node_id = NodeId(params.node)
    if not await broker.store(lambda store: records.had_node_id(store, node_id)):
        _node(broker, params.node)  # raises: there never was one
    if not params.check_only:
        await broker.store(lambda store: records.remove_node(store, node_id, force=True))
        log.warning("a node without a record was removed", node=node_id)
    return {"node": node_id, "removed": not params.check_only, "replicas_given_up": 0}


def _node(broker: "Broker", number: int) -> NodeRecord:
    node = broker.cluster.node(NodeId(number))
    if node is None:
        known = ", ".join(str(each.node_id) for each in broker.cluster.nodes())
        raise refused(f"there is no node {number}; there are {known}")
    return node


async def _nodes_shown(broker: "Broker") -> list[dict[str, object]]:
    answers = await _probed(broker)
    duties = await asyncio.to_thread(rules.duties, list(broker.cluster.view.containers.values()))
    return [_node_shown(broker, node, answers.get(node.node_id), duties) for node in broker.cluster.nodes()]


def _node_shown(
    broker: "Broker", node: NodeRecord, answer: ProbeAnswer | None, duties: Mapping[NodeId, rules.Duties]
) -> dict[str, object]:
    has = duties.get(node.node_id, rules.Duties())
    roles = ["controller"] if _controller(broker) == node.node_id else []
    roles += ["catalog"] if has.leads_catalog else []
    load = answer.load if answer is not None else None
    off_s = broker.controller.clocks_off().get(node.node_id)
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


async def _probed(broker: "Broker", *, replicas: bool = False) -> dict[NodeId, ProbeAnswer]:
    """How each node is that answers; all are asked at a time. `replicas`: with all of its replicas."""
    nodes = broker.cluster.nodes()
    ask = _ask_all if replicas else _ask_alive
    answers = await asyncio.gather(*(ask(broker, node) for node in nodes), return_exceptions=True)
    found: dict[NodeId, ProbeAnswer] = {}
    for node, answer in zip(nodes, answers, strict=True):
        if not isinstance(answer, BaseException):
            found[node.node_id] = answer
        elif not isinstance(answer, HeadraceError | OSError):
            raise answer
    return found


async def _ask_alive(broker: "Broker", node: NodeRecord) -> ProbeAnswer:
    answer, _ = await broker.cluster.ask(node, Probe(NO_REPLICAS), timeout_s=PROBE_S)
    return answer


async def _ask_all(broker: "Broker", node: NodeRecord) -> ProbeAnswer:
    """Page by page, each of which has its time. Raises HeadraceError where one does not come."""
    told = ToldReplicas()
    while True:
        asked = Probe(told.since, told.begun)
        answer, _ = await broker.cluster.ask(node, asked, timeout_s=PROBE_S)
        told.take(answer, asked_since=asked.since)
        if told.complete:
            return msgspec.structs.replace(answer, replicas=list(told.replicas.values()))
        if told.since == asked.since:
            raise HeadraceError(f"node {node.node_id} does not say which replicas it has")


# --- containers


class Recovery(Params, frozen=True):
    container: int
    node: int | None = None
    epoch: int | None = None
    """That of the record the caller has decided on; None: say only what would be done."""


async def container_list(broker: "Broker", params: NoParams) -> list[dict[str, object]]:
    """Every container's record. `bytes` are those of this node's replica, null where it has none."""
    stored = await bytes_on_disk(broker.runtime, broker.cluster.replicas)
    return [
        {
            "container": each.container_id,
            "kind": each.kind,
            "state": each.state,
            "volume": each.volume,
            "primary": each.primary,
            "epoch": each.epoch,
            "in_sync": [node for node, _ in each.in_sync],
            "replicas": list(each.replicas),
            "wanted": each.wanted,
            "min_in_sync": each.min_in_sync,
            "recovered": each.recovered,
            "bytes": stored.get(each.container_id),
        }
        for _, each in sorted(broker.cluster.view.containers.items())
        if each.state != rules.DELETED
    ]


async def container_recover(broker: "Broker", params: Recovery) -> dict[str, object]:
    """Choose a primary from outside the in-sync set, of which nobody is left (invariant 15); what may be lost by it."""
    container = ContainerId(params.container)
    record = broker.cluster.record(container)
    if record is None:
        raise refused(f"there is no container {container}; `headrace containers` shows them")
    answers = await _probed(broker, replicas=True)
    states: dict[NodeId, ReplicaState] = {
        node: state for node, answer in answers.items() for state in answer.replicas if state.container == container
    }
    asked = None if params.node is None else NodeId(params.node)
    heir = rules.unclean_heir(record, states, nodes=broker.cluster.view.nodes, asked=asked)
    open_rows = await broker.catalog.query(lambda reader: reader.open_in(container, limit=10_000))
    shown: dict[str, object] = {
        "container": container,
        "kind": record.kind,
        "epoch": record.epoch,
        "in_sync": [node for node, _ in record.in_sync],
        "node": heir.node,
        "last_epoch": heir.last_epoch,
        "end": heir.end,
        "committed": heir.committed,
        "open_partitionlets": len(open_rows),
        "loss": heir.loss,
        "done": params.epoch is not None,
    }
    if params.epoch is None:
        return shown

    def decide(present: ContainerRecord) -> ContainerRecord:
        if present != record or present.epoch != params.epoch:
            raise refused(f"container {container} has changed meanwhile: look at it again")
        return heir.record

    log.warning(
        "unclean recovery", container=container, node=heir.node, epoch=heir.record.epoch, end=heir.end, loss=heir.loss
    )
    after = await broker.store(lambda store: container_records.change_container(store, container, decide))
    broker.cluster.view.refresh()
    return {**shown, "epoch": after.epoch}


# --- balance


class Balance(Params, frozen=True):
    """See BalanceRecord. What is not given stays."""

    paused: bool | None = None
    over_mean: Annotated[float, msgspec.Meta(ge=1.05, le=10)] | None = None
    traffic_floor: Annotated[int, msgspec.Meta(ge=1, le=2**53)] | None = None
    requests_floor: Annotated[int, msgspec.Meta(ge=1, le=2**53)] | None = None
    disk_floor: Annotated[int, msgspec.Meta(ge=1, le=2**53)] | None = None
    moves_per_minute: Annotated[int, msgspec.Meta(ge=0, le=600)] | None = None


async def balance(broker: "Broker", params: Balance) -> dict[str, object]:
    """Whether load is moved, and from when on; set where anything is given. With what each node carries."""
    policy = broker.cluster.view.balance
    given = {name: value for name, value in msgspec.structs.asdict(params).items() if value is not None}
    if given:
        policy = await broker.store(lambda store: records.set_balance(store, **given))
        broker.cluster.view.refresh()
        log.info("balance", **msgspec.structs.asdict(policy))
    return {
        **msgspec.structs.asdict(policy),
        "controller": _controller(broker),
        "nodes": await _nodes_shown(broker),
    }


METHODS: Final[Methods] = {
    "cluster.status": (NoParams, cluster_status),
    "cluster.events": (Newest, cluster_events),
    "node.list": (NoParams, node_list),
    "node.drain": (Drain, node_drain),
    "node.remove": (Removal, node_remove),
    **volumes.METHODS,
    **feature_levels.METHODS,
    "container.list": (NoParams, container_list),
    "container.recover": (Recovery, container_recover),
    "balance": (Balance, balance),
}
