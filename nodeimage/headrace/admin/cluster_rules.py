"""Rules for an operator's requests to the cluster: volumes, drains, removals, unclean recovery. Pure functions.

Refusals are one line that says what to do. Warnings accompany requests that are carried out anyway. The failure domain
is the host; a node without a host name fails alone.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from msgspec import structs

from headrace.base.errors import Code, KafkaError
from headrace.base.ids import ContainerId, Epoch, NodeId
from headrace.partitions.placement import counted, places, there_are, volume_warning
from headrace.peer.reports import ReplicaState
from headrace.store.container_records import has_trace
from headrace.store.records import ContainerRecord, NodeRecord, VolumeRecord

DELETED = "deleted"


def refused(reason: str) -> KafkaError:
    """The error for a request that the cluster does not carry out."""
    return KafkaError(Code.POLICY_VIOLATION, reason)


# --- nodes


def drain_fault(
    node_id: NodeId,
    *,
    nodes: Mapping[NodeId, NodeRecord],
    alive: Collection[NodeId],
    volumes: Iterable[VolumeRecord],
) -> str | None:
    """Why a node may not be drained: the live nodes that remain could not keep a volume's minimum in sync."""
    staying = [node for key, node in nodes.items() if key != node_id and key in alive and not node.draining]
    if not staying:
        return f"there is no other node to take over what node {node_id} has: `headrace node add` first"
    for volume in volumes:
        room = places(volume, staying)
        if room < volume.min_in_sync and places(volume, [*staying, nodes[node_id]]) > room:
            return (
                f"without node {node_id}, volume {volume.name!r} could not have {volume.min_in_sync} in sync"
                f" ({there_are(volume, room)}): `headrace node add` first, or"
                f" `headrace volume alter {volume.name} --min-in-sync {max(room, 1)}`"
            )
    return None


def drain_warnings(
    node_id: NodeId, *, nodes: Mapping[NodeId, NodeRecord], alive: Collection[NodeId], volumes: Iterable[VolumeRecord]
) -> list[str]:
    """Warnings about volumes that will have fewer replicas than they want, as too few nodes remain."""
    staying = [node for key, node in nodes.items() if key != node_id and key in alive and not node.draining]
    return [warning for volume in volumes if (warning := volume_warning(volume, staying)) is not None]


def removal_fault(
    node_id: NodeId, *, nodes: Mapping[NodeId, NodeRecord], containers: Iterable[ContainerRecord], force: bool
) -> str | None:
    """Why a node may not be removed: it is the last one, or it has replicas (which `force` gives up)."""
    if len(nodes) == 1:
        return f"node {node_id} is the only one: `headrace down` stops it"
    held = held_by(node_id, containers)
    if force or not held:
        return None
    only = [each.container_id for each in held if [node for node, _ in each.in_sync] == [node_id]]
    lost = f", the only one in sync of {_names(only)}" if only else ""
    how = "is being drained, and still has" if nodes[node_id].draining else "is not drained: it has"
    return (
        f"node {node_id} {how} {counted(len(held), 'replica')}{lost}: `headrace node drain {node_id}` empties it;"
        " --force gives them up"
    )


def held_by(node_id: NodeId, containers: Iterable[ContainerRecord]) -> list[ContainerRecord]:
    """The containers that have a replica on a node."""
    return [each for each in containers if each.state != DELETED and node_id in each.replicas]


@dataclass(slots=True)
class Duties:
    """How many containers a node leads or has replicas of."""

    replicas: int = 0
    leads: int = 0
    in_sync: int = 0
    """How many of its replicas are in sync."""
    leads_catalog: bool = False


def duties(containers: Iterable[ContainerRecord]) -> dict[NodeId, Duties]:
    """The duties of every node, counted in one pass over the containers."""
    found: defaultdict[NodeId, Duties] = defaultdict(Duties)
    for each in containers:
        if each.state == DELETED:
            continue
        in_sync = {node for node, _ in each.in_sync}
        for node in each.replicas:
            has = found[node]
            has.replicas += 1
            has.in_sync += node in in_sync
            if node == each.leader:
                has.leads += 1
                has.leads_catalog |= each.kind == "catalog"
    return dict(found)


# --- redundancy


@dataclass(frozen=True, slots=True)
class Lack:
    """A container with fewer replicas in sync than its volume wants, or whose leader is not one of them."""

    container: ContainerId
    kind: str
    volume: str
    primary: NodeId
    in_sync: int
    wanted: int
    min_in_sync: int
    reason: str
    behind_bytes: int | None
    """Bytes that the most advanced replica outside the in-sync set still has to copy; None if none is copying."""
    stalled: bool = False
    """Whether nothing is committed: too few replicas are in sync, or one cannot be removed from the in-sync set, as the
    cluster store cannot be reached."""


def nodes_ahead_of_records(
    containers: Iterable[ContainerRecord], *, replicas: Mapping[NodeId, Mapping[ContainerId, ReplicaState]]
) -> dict[ContainerId, list[NodeId]]:
    """The nodes whose replicas know newer records than the given ones, by container: the cluster store was set back to
    an old copy (docs/replication.md). `replicas`: the replicas on the nodes that answer."""
    found: dict[ContainerId, list[NodeId]] = {}
    for record in containers:
        for node, states in sorted(replicas.items()):
            state = states.get(record.container_id)
            if state is not None and not has_trace(record, change=state.change, recovered=state.recovered):
                found.setdefault(record.container_id, []).append(node)
    return found


def lacks(
    containers: Iterable[ContainerRecord],
    *,
    nodes: Mapping[NodeId, NodeRecord],
    replicas: Mapping[NodeId, Mapping[ContainerId, ReplicaState]],
) -> list[Lack]:
    """The containers without full redundancy, with the reasons; `replicas`: the replicas on the nodes that answer."""
    found = []
    for each in sorted(containers, key=lambda each: each.container_id):
        if each.state == DELETED:
            continue
        synced = _synced(each, replicas)
        if len(synced) >= each.wanted and each.leader in synced:
            continue
        found.append(
            Lack(
                container=each.container_id,
                kind=each.kind,
                volume=each.volume,
                primary=each.leader,
                in_sync=len(synced),
                wanted=each.wanted,
                min_in_sync=each.min_in_sync,
                reason=_why(each, nodes, replicas),
                behind_bytes=_behind(each, replicas),
                stalled=_is_stalled(each, replicas),
            )
        )
    return found


def _is_stalled(record: ContainerRecord, replicas: Mapping[NodeId, Mapping[ContainerId, ReplicaState]]) -> bool:
    leader = replicas.get(record.leader, {}).get(record.container_id)
    return leader is not None and leader.role == "primary" and leader.stalled


def _why(
    record: ContainerRecord,
    nodes: Mapping[NodeId, NodeRecord],
    replicas: Mapping[NodeId, Mapping[ContainerId, ReplicaState]],
) -> str:
    in_sync = [node for node, _ in record.in_sync]
    synced = _synced(record, replicas)
    lost = [node for node in in_sync if node in replicas and node not in synced]
    if not synced:
        alone = len(in_sync) == 1
        gone = f"{_nodes(in_sync)} {'does' if alone else 'do'} not answer"
        if lost:
            gone = f"{_nodes(lost)} lost {'its replica' if len(lost) == 1 else 'their replicas'}"
        elif not any(node in nodes for node in in_sync):
            gone = f"{_nodes(in_sync)} {'was' if alone else 'were'} removed"
        which = "its only in-sync replica" if alone else "its in-sync replicas"
        return f"it waits for {which} to return: {gone}; see `headrace recover-unclean`"
    if lost:
        return f"{_nodes(lost)} lost {'its replica' if len(lost) == 1 else 'their replicas'}"
    down = [node for node in record.replicas if node not in replicas]
    if record.leader in down:
        return f"node {record.leader}, its primary, does not answer"
    if down:
        return f"{_nodes(down)} {'does' if len(down) == 1 else 'do'} not answer"
    behind = [node for node in record.replicas if node not in in_sync]
    if behind:
        return f"{_nodes(behind)} {'catches' if len(behind) == 1 else 'catch'} up"
    staying = sum(not node.draining for node in nodes.values())
    if staying < record.wanted:
        are = "is" if staying == 1 else "are"
        return f"there {are} {counted(staying, 'node')} that may have replicas, but its volume asks for {record.wanted}"
    return "another replica has still to be created"


def _synced(
    record: ContainerRecord, replicas: Mapping[NodeId, Mapping[ContainerId, ReplicaState]]
) -> frozenset[NodeId]:
    """The nodes that answer, and still have the replica incarnation that is in sync (invariant 5)."""
    return frozenset(
        node
        for node, incarnation in record.in_sync
        if (state := replicas.get(node, {}).get(record.container_id)) is not None and state.format == str(incarnation)
    )


def _behind(record: ContainerRecord, replicas: Mapping[NodeId, Mapping[ContainerId, ReplicaState]]) -> int | None:
    leader = replicas.get(record.leader, {}).get(record.container_id)
    if leader is None:
        return None
    in_sync = {node for node, _ in record.in_sync}
    ends = [
        state.end
        for node in record.replicas
        if node not in in_sync and (state := replicas.get(node, {}).get(record.container_id)) is not None
    ]
    return max(0, leader.end - max(ends)) if ends else None


# --- unclean recovery (invariant 15)


@dataclass(frozen=True, slots=True)
class UncleanCandidate:
    """The replica that will lead after an unclean recovery."""

    record: ContainerRecord
    """The container's record after the recovery."""
    node: NodeId
    last_epoch: Epoch
    end: int
    committed: int
    loss: str
    """What may be lost, as a sentence."""


def unclean_candidate(
    record: ContainerRecord,
    answers: Mapping[NodeId, ReplicaState],
    *,
    nodes: Collection[NodeId],
    asked: NodeId | None = None,
) -> UncleanCandidate:
    """The next leader of a container with no in-sync replica left: the replica with the most data on a node that
    answers.

    `answers`: the container's replicas on nodes that answer; `nodes`: all nodes; `asked`: the requested leader, if
    any. Raises KafkaError if an in-sync replica answers, no replica answers, or the requested node has none.
    """
    incarnations = {node: str(incarnation) for node, incarnation in record.in_sync}
    living = [node for node, state in answers.items() if incarnations.get(node) == state.format]
    if record.state == DELETED:
        raise refused(f"container {record.container_id} is deleted")
    if living:
        raise refused(
            f"container {record.container_id} needs no recovery: {_nodes(living)} {'is' if len(living) == 1 else 'are'}"
            " in sync and can lead it"
        )
    candidates = {node: state for node, state in answers.items() if node in record.replicas}
    if not candidates:
        left = [node for node in record.replicas if node in nodes]
        how = f"start one of {_nodes(left)} (`headrace node start`)"
        if not left:
            how = f"their nodes were removed, and no node that volume {record.volume!r} may use has an empty one"
        raise refused(f"no replica of container {record.container_id} can be reached: {how}")
    if asked is not None and asked not in candidates:
        raise refused(
            f"node {asked} has no replica of container {record.container_id}; {_nodes(sorted(candidates))} can lead it"
        )
    node = asked if asked is not None else max(candidates, key=lambda each: _reach(candidates[each]))
    state = candidates[node]
    in_sync = ((node, UUID(state.format)),)
    epoch = Epoch(max(record.epoch, state.epoch) + 1)
    after = structs.replace(
        record, leader=node, epoch=epoch, in_sync=in_sync, recovered=record.recovered + 1, recovered_epoch=epoch
    )
    gone = _nodes(sorted(incarnations))
    return UncleanCandidate(
        record=after,
        node=node,
        last_epoch=state.last_epoch,
        end=state.end,
        committed=state.committed,
        loss=(
            f"acknowledged records that {gone} had and node {node} did not get are lost: everything after position"
            f" {state.end}, in epoch {state.last_epoch} or later; on coming back, {gone} will cut it off too"
        ),
    )


def _reach(state: ReplicaState) -> tuple[Epoch, int]:
    return state.last_epoch, state.end


def _names(containers: Sequence[ContainerId]) -> str:
    shown = ", ".join(map(str, containers[:5]))
    return f"container{'' if len(containers) == 1 else 's'} {shown}{' and more' if len(containers) > 5 else ''}"


def _nodes(nodes: Sequence[NodeId]) -> str:
    return f"node{'' if len(nodes) == 1 else 's'} {', '.join(map(str, nodes))}"
