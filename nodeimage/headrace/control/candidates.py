"""Which nodes can lead a container, and with which in-sync set. Pure.

Only a member of the in-sync set can lead: the node together with the incarnation of its replica, as reported by the
node itself. The set never shrinks below the minimum: dead members then stay in it, and commits wait for them. This
avoids the "last replica standing" problem (KIP-966): a replica that is left alone in the set, loses data that no other
replica has, and then leads the others with what remains.
"""

from collections.abc import Callable

from msgspec import structs

from headrace.base.ids import Epoch, NodeId
from headrace.control.changes import PutContainer
from headrace.control.observations import Life, Observed
from headrace.store.records import ContainerRecord


def is_in_sync(observed: Observed, record: ContainerRecord, node: NodeId) -> bool:
    """Return whether a node's current replica is in the in-sync set (invariant 5)."""
    replica = observed.replica(node, record.container_id)
    return replica is not None and any(
        member == node and str(incarnation) == replica.format for member, incarnation in record.in_sync
    )


def has_another(observed: Observed, record: ContainerRecord, node: NodeId) -> bool:
    """Return whether a node's replica is not the one in the in-sync set: if the node is in the set, it lost its data
    (invariant 14)."""
    replica = observed.replica(node, record.container_id)
    return replica is not None and not any(
        member == node and str(incarnation) == replica.format for member, incarnation in record.in_sync
    )


def candidates(observed: Observed, record: ContainerRecord, led: Callable[[NodeId], int], now: float) -> list[NodeId]:
    """Return the nodes that can lead, best first.

    Nodes that reach the store and their disk, are not leaving, are ready, undamaged and have room, and are steady come
    first, in this order of importance, then those with the longest log, then those that lead few containers (`led`).

    Every candidate has all that is committed; a longer log only spares clients sending records again.
    """

    def rank(node: NodeId) -> tuple[bool, bool, bool, bool, bool, bool, bool, bool, int, int, int, int]:
        replica = observed.replica(node, record.container_id)
        answer = observed.probes[node].answer
        assert replica is not None
        assert answer is not None
        registered = observed.nodes[node]
        return (
            observed.reaches_store(node),
            not observed.is_stuck(node),
            not registered.stopping,
            not registered.draining,
            answer.ready,
            not replica.damaged,
            not registered.full,
            observed.is_steady(node, now),
            replica.last_epoch,
            replica.end,
            -led(node),
            -node,
        )

    members = {node for node, _ in record.in_sync if node in record.replicas}
    able = [node for node in members if observed.is_alive(node, now) and is_in_sync(observed, record, node)]
    return sorted(able, key=rank, reverse=True)


def hand_over(observed: Observed, record: ContainerRecord, candidate: NodeId, reason: str, now: float) -> PutContainer:
    """Return the change that makes `candidate`, one of the candidates, the leader in a new epoch."""

    def may_have_all(node: NodeId) -> bool:
        return node in record.replicas and node in observed.nodes and not has_another(observed, record, node)

    def stays(node: NodeId) -> bool:
        return may_have_all(node) and observed.life(node, now) is not Life.DEAD and not observed.nodes[node].stopping

    replica = observed.replica(candidate, record.container_id)
    assert replica is not None
    assert is_in_sync(observed, record, candidate), "only a member of the in-sync set may lead"
    pairs = [pair for pair in record.in_sync if pair[0] == candidate and str(pair[1]) == replica.format]
    pairs += [pair for pair in record.in_sync if pair[0] != candidate and stays(pair[0])]
    # Invariant 6, against the last replica standing (KIP-966). Stopping members return soonest, dead ones last.
    absent = [pair for pair in record.in_sync if pair not in pairs and pair[0] != candidate]
    absent.sort(key=lambda pair: (observed.life(pair[0], now) is Life.DEAD, has_another(observed, record, pair[0])))
    pairs += absent[: max(record.min_in_sync - len(pairs), 0)]
    if len(pairs) == 1:
        # The candidate may have died a moment ago, and its disk with it. Once it leads, it removes the other member
        # itself.
        pairs += [pair for pair in absent if may_have_all(pair[0])][:1]
    seen = [replica.epoch for node in record.replicas if (replica := observed.replica(node, record.container_id))]
    wanted = structs.replace(
        record, leader=candidate, epoch=Epoch(max(record.epoch, *seen) + 1), in_sync=tuple(sorted(pairs))
    )
    return PutContainer(wanted, observed.versions[record.container_id], reason)
