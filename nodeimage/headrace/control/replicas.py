"""How many replicas a container has, and where. Pure.

Replicas are counted on nodes that stay: one that is drained, removed, or dead for `rebuild_after_s` counts no longer,
and another node gets a replica in its place. It leaves once enough others are in sync. A removal takes the node out of
the in-sync set too, in the same epoch; that is safe while the primary has not seen it, since it waits for more members
than it must then. Nothing is ever added to the in-sync set here: that the primary does, when a follower has caught up.
"""

from collections.abc import Mapping

from msgspec import structs

from headrace.control.changes import PutContainer, Wait
from headrace.control.heirs import is_in_sync
from headrace.control.observed import CATALOG, OPEN, Observed
from headrace.control.placement import Held, choose_members, least_needed
from headrace.ids import ContainerId, NodeId
from headrace.store.records import ContainerRecord


class Replication:
    """The steps of one plan. `records` are all containers as they will be; the caller changes them as it goes."""

    def __init__(self, observed: Observed, records: Mapping[ContainerId, ContainerRecord], now: float) -> None:
        self._observed = observed
        self._records = records
        self._now = now
        self._takers = [node for key, node in sorted(observed.nodes.items()) if observed.takes_roles(key, now)]
        self._gone = {node for node in observed.nodes if observed.is_gone(node, now)}
        self._loads = observed.loads()
        self._held = Held(records.values())
        self._copied = sum(1 for each in records.values() if each.state != OPEN and self._is_copied(each))

    def step(self, record: ContainerRecord) -> PutContainer | Wait | None:
        """The next step for one container towards the replicas that it should have."""
        followed = self._follow_volume(record)
        if followed is not None:
            return followed
        observed, now = self._observed, self._now
        if is_abandoned(observed, record):
            return self._stand_in(record)
        if not observed.is_alive(record.primary, now):
            return None  # nobody to copy from; the primary comes first
        lasting = [node for node in record.replicas if node in observed.nodes and node not in self._gone]
        added = self._added(record, lasting)
        if added and self._may_copy(record):
            self._held.add(record, added)
            names = ", ".join(str(node) for node in added)
            reason = f"{len(lasting)} of {record.wanted} replicas are on nodes that stay; node {names} gets one"
            return self._put(structs.replace(record, replicas=(*record.replicas, *added)), reason)
        safe = [node for node, _ in record.in_sync if node in lasting and self._is_safe(record, node)]
        leaving = [node for node in record.replicas if node not in lasting and node != record.primary]
        # One that is only dead may come back and catch up: it leaves when it is not missed. One that has to go leaves
        # when as many are in sync as there are nodes for.
        sent_away = [node for node in leaving if node not in observed.nodes or observed.nodes[node].draining]
        if leaving and len(safe) >= record.wanted:
            return self._without(record, leaving, f"{len(safe)} others are in sync")
        if sent_away and len(safe) >= max(1, min(record.wanted, len(lasting) + len(added))):
            return self._without(record, sent_away, f"{len(safe)} others are in sync, and no node is left for more")
        if len(lasting) > record.wanted and len(safe) >= record.wanted:
            return self._without(record, [self._surplus(record, lasting, safe)], "one too many")
        if record.primary not in lasting and not lasting and not added:
            reason = f"node {record.primary} is drained, and no other node can take its replica"
            return Wait(record.container_id, reason)
        return None

    def _is_safe(self, record: ContainerRecord, node: NodeId) -> bool:
        """Whether what the in-sync set says of a node holds still. It may have lost its folder, and be back."""
        replica = self._observed.replica(node, record.container_id)
        return (
            self._observed.is_alive(node, self._now)
            and is_in_sync(self._observed, record, node)
            and replica is not None
            and not replica.damaged
            and not self._observed.is_stuck(node)
        )

    def _stand_in(self, record: ContainerRecord) -> PutContainer | None:
        """Empty replicas, none of them in sync: an unclean recovery (invariant 15) may let one lead."""
        added = self._added(record, [])
        if not added:
            return None
        self._held.add(record, added)
        names = ", ".join(str(node) for node in added)
        reason = f"the nodes of all its replicas were removed; node {names} gets an empty one"
        return self._put(structs.replace(record, replicas=(*record.replicas, *added)), reason)

    def _follow_volume(self, record: ContainerRecord) -> PutContainer | None:
        """What the volume says by now; a higher minimum only once as many are in sync, so that nothing stalls."""
        volume = self._observed.volumes.get(record.volume)
        if volume is None:
            return None
        least = volume.min_in_sync
        if least > record.min_in_sync and len(record.in_sync) < least:
            least = record.min_in_sync
        if (record.wanted, record.min_in_sync) == (volume.replicas, least):
            return None
        wanted = structs.replace(record, wanted=volume.replicas, min_in_sync=least)
        return self._put(wanted, f"volume {volume.name} wants {volume.replicas} replicas, {least} in sync")

    def _added(self, record: ContainerRecord, lasting: list[NodeId]) -> list[NodeId]:
        missing = record.wanted - len(lasting)
        volume = self._observed.volumes.get(record.volume)
        if missing <= 0 or volume is None:
            return []
        chosen = choose_members(
            [node for node in self._takers if volume.admits(node)],
            (),
            first=record.primary,
            count=len(record.replicas) + missing,
            volume=volume,
            loads=self._loads,
            present=record.replicas,
            every_node={node: self._observed.nodes[node] for node in lasting},
            held=self._held,
        )
        return [node for node in chosen if node not in record.replicas]

    def _may_copy(self, record: ContainerRecord) -> bool:
        """What is written to is copied at once; of the others, only so many at a time."""
        if record.kind == CATALOG or record.state == OPEN:
            return True
        if self._copied >= self._observed.settings.rebuilds_at_once:
            return False
        self._copied += not self._is_copied(record)
        return True

    def _is_copied(self, record: ContainerRecord) -> bool:
        in_sync = {node for node, _ in record.in_sync}
        return any(node not in in_sync and self._observed.takes_roles(node, self._now) for node in record.replicas)

    def _surplus(self, record: ContainerRecord, lasting: list[NodeId], safe: list[NodeId]) -> NodeId:
        behind = [node for node in lasting if node not in safe and node != record.primary]
        if behind:
            return behind[-1]
        return least_needed(
            lasting,
            nodes=self._observed.nodes,
            held=self._held,
            loads=self._loads,
            volume=record.volume,
            keep=record.primary,
        )

    def _without(self, record: ContainerRecord, leaving: list[NodeId], why: str) -> PutContainer | None:
        in_sync = tuple(pair for pair in record.in_sync if pair[0] not in leaving)
        if len(in_sync) < record.min_in_sync and len(in_sync) < len(record.in_sync):
            return None  # invariant 6
        replicas = tuple(node for node in record.replicas if node not in leaving)
        names = ", ".join(str(node) for node in leaving)
        wanted = structs.replace(record, replicas=replicas, in_sync=in_sync)
        return self._put(wanted, f"node {names} gives up its replica: {why}")

    def _put(self, record: ContainerRecord, reason: str) -> PutContainer:
        return PutContainer(record, self._observed.versions[record.container_id], reason)


def is_abandoned(observed: Observed, record: ContainerRecord) -> bool:
    """Whether the nodes of all its replicas were removed, by force: none of them comes back."""
    return not any(node in observed.nodes for node in record.replicas)
