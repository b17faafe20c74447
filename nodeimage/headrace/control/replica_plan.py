"""How many replicas a container has, and where. Pure.

Only replicas on nodes that stay count: if a node is drained, removed, or dead for `rebuild_after_s`, its replica no
longer counts, and another node gets a replica in its place. The old replica leaves once enough others are in sync. Its
removal also takes the node out of the in-sync set, in the same epoch. That is safe even while the leader has not
noticed it, because the leader then waits for more members than it has to. The plan never adds to the in-sync set: the
leader does that when a follower has caught up.

Followers on full disks count. But frames that they cannot write are not committed, nor are the seals after them, so
that no partition can leave. If too few other members remain to commit, nodes with room get additional replicas. The
replicas that are then out of the in-sync set, and have no room to return to it, are surplus.
"""

from collections import Counter

from msgspec import structs

from headrace.base.ids import NodeId
from headrace.control.candidates import is_in_sync
from headrace.control.changes import PutContainer, Wait
from headrace.control.container_states import CATALOG, OPEN
from headrace.control.observations import Observed
from headrace.control.placement import choose_members, least_needed
from headrace.peer.reports import NodeLoad
from headrace.store.records import ContainerRecord, NodeRecord


class Replication:
    """The replica steps of one plan."""

    def __init__(self, observed: Observed, now: float) -> None:
        self._observed = observed
        self._now = now
        self._takers = [node for key, node in sorted(observed.nodes.items()) if observed.takes_roles(key, now)]
        self._gone = {node for node in observed.nodes if observed.is_gone(node, now)}
        self._loads = observed.loads()
        self._held = observed.inventory.held.copy()
        self._copying: Counter[bool] | None = None

    def step(self, record: ContainerRecord) -> PutContainer | Wait | None:
        """Return the next step that brings one container closer to the replicas that it should have."""
        followed = self._follow_volume(record)
        if followed is not None:
            return followed
        observed, now = self._observed, self._now
        if is_abandoned(observed, record):
            return self._add_empty_replicas(record)
        if not observed.is_alive(record.leader, now):
            return None  # there is no source to copy from: a new leader comes first
        lasting = [node for node in record.replicas if node in observed.nodes and node not in self._gone]
        if len(lasting) < record.wanted and not self._has_turn(record) and not self._needs_step_anyway(record, lasting):
            return None
        added, reason = self._added(record, lasting)
        if added and self._may_copy(record):
            self._held.add(record, added)
            return self._put(structs.replace(record, replicas=(*record.replicas, *added)), reason)
        safe = [node for node, _ in record.in_sync if node in lasting and self._is_safe(record, node)]
        leaving = [node for node in record.replicas if node not in lasting and node != record.leader]
        # A node that is only dead may return and catch up, so it leaves when it is not needed. A node that has to go
        # leaves once as many replicas are in sync as the remaining nodes can hold.
        sent_away = [node for node in leaving if self._has_to_go(node)]
        if leaving and len(safe) >= record.wanted:
            return self._without(record, leaving, f"{len(safe)} others are in sync")
        if sent_away and len(safe) >= max(1, min(record.wanted, len(lasting) + len(added))):
            return self._without(record, sent_away, f"{len(safe)} others are in sync, and no node is left for more")
        surplus = self._surplus(record, lasting, safe) if len(lasting) > record.wanted else None
        if surplus is not None:
            return self._without(record, [surplus], "one too many")
        if record.leader not in lasting and not lasting and not added:
            reason = f"node {record.leader} is drained, and no other node can take its replica"
            return Wait(record.container_id, reason)
        return None

    def _has_to_go(self, node: NodeId) -> bool:
        """Return whether a replica has to leave a node permanently."""
        return node not in self._observed.nodes or self._observed.nodes[node].draining

    def _needs_step_anyway(self, record: ContainerRecord, lasting: list[NodeId]) -> bool:
        """Return whether a container that lacks replicas, and gets none yet, needs a step nevertheless.

        A replica that has to go leaves if no node can take its place; and if no replica is on a node that stays, that
        is reported.
        """
        if not lasting:
            return True
        leaving = any(self._has_to_go(node) for node in record.replicas if node not in lasting)
        return leaving and all(self._is_safe(record, node) for node in lasting) and not self._has_place(record, lasting)

    def _has_place(self, record: ContainerRecord, lasting: list[NodeId]) -> bool:
        """Return whether `_choose` would find a node."""
        volume = self._observed.volumes.get(record.volume)
        if volume is None:
            return False
        placed = [self._observed.nodes[node] for node in {record.leader, *lasting} if node in self._observed.nodes]
        hosts = {node.fails_with for node in placed}
        return any(
            node.node_id not in record.replicas
            and volume.admits(node)
            and (volume.spread != "required" or node.fails_with not in hosts)
            for node in self._takers
        )

    def _is_safe(self, record: ContainerRecord, node: NodeId) -> bool:
        """Return whether a node in the in-sync set is in sync at present.

        It may have lost its folder and returned, or be in the set only because of the minimum.
        """
        replica = self._observed.replica(node, record.container_id)
        return (
            self._observed.is_alive(node, self._now)
            and is_in_sync(self._observed, record, node)
            and replica is not None
            and not replica.damaged
            and not self._observed.is_stuck(node)
            and node not in self._blocking_followers(record)
        )

    def _add_empty_replicas(self, record: ContainerRecord) -> PutContainer | None:
        """Add empty replicas, none of them in sync: an unclean recovery (invariant 15) may make one of them leader."""
        added = self._choose(record, [], record.wanted, self._takers)
        if not added:
            return None
        self._held.add(record, added)
        names = ", ".join(str(node) for node in added)
        reason = f"the nodes of all its replicas were removed; node {names} gets an empty one"
        return self._put(structs.replace(record, replicas=(*record.replicas, *added)), reason)

    def _follow_volume(self, record: ContainerRecord) -> PutContainer | None:
        """Apply the volume's numbers; a higher minimum only once that many replicas are in sync, so that nothing
        stalls."""
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

    def _blocking_followers(self, record: ContainerRecord) -> list[NodeId]:
        """Return the followers that block all commits of a container because they are alive but their disks
        are full."""
        observed = self._observed
        led = observed.replica(record.leader, record.container_id)
        if led is None or not led.stalled:
            return []
        full = [node for node in record.replicas if node in observed.nodes and observed.nodes[node].full]
        return [
            node
            for node in full
            if node != record.leader and observed.is_alive(node, self._now) and self._is_behind(node, record, led.end)
        ]

    def _is_behind(self, node: NodeId, record: ContainerRecord, end: int) -> bool:
        replica = self._observed.replica(node, record.container_id)
        return self._observed.is_told(node) if replica is None else replica.end < end

    def _added(self, record: ContainerRecord, lasting: list[NodeId]) -> tuple[list[NodeId], str]:
        """Return the nodes that get a replica now, and why."""
        added = self._choose(record, lasting, record.wanted - len(lasting), self._takers)
        if added:
            why = f"{len(lasting)} of {record.wanted} replicas are on nodes that stay"
        else:
            added = self._nodes_with_room(record)
            why = "nothing is committed, as too few of those in sync have room"
        return added, f"{why}; node {', '.join(map(str, added))} gets one"

    def _nodes_with_room(self, record: ContainerRecord) -> list[NodeId]:
        """Return the additional nodes with which the leader can commit again: as many as that takes, or none."""
        observed, held_up = self._observed, self._blocking_followers(record)
        if not held_up:
            return []
        able = [  # a dead node may return with room
            node
            for node in record.replicas
            if node not in held_up
            and node in observed.nodes
            and (node not in self._gone or observed.is_alive(node, self._now))
        ]
        lacking = record.min_in_sync - len(able)
        takers = [node for node in self._takers if not node.full and self._fits(record, node.node_id)]
        chosen = self._choose(record, list(record.replicas), lacking, takers)
        return chosen if len(chosen) == lacking else []

    def _fits(self, record: ContainerRecord, node: NodeId) -> bool:
        """Return whether a node's disk has room for all that a container may hold, as far as is known."""
        load = self._loads.get(node, NodeLoad())
        led = self._observed.replica(record.leader, record.container_id)
        return not load.disk_total or led is None or led.end < load.disk_total - load.disk_used

    def _choose(
        self, record: ContainerRecord, lasting: list[NodeId], missing: int, takers: list[NodeRecord]
    ) -> list[NodeId]:
        """Return `missing` nodes that have no replica yet, or fewer."""
        volume = self._observed.volumes.get(record.volume)
        if missing <= 0 or volume is None:
            return []
        chosen = choose_members(
            [node for node in takers if volume.admits(node)],
            (),
            first=record.leader,
            count=len(record.replicas) + missing,
            volume=volume,
            loads=self._loads,
            present=record.replicas,
            every_node={node: self._observed.nodes[node] for node in lasting if node in self._observed.nodes},
            held=self._held,
        )
        return [node for node in chosen if node not in record.replicas]

    def _may_copy(self, record: ContainerRecord) -> bool:
        """Return whether a container may be copied now.

        Open containers and the catalog are copied at once; of the others, only a limited number at a time. Containers
        whose only replica is damaged are counted separately: their copies may never complete, and must not hold up
        copies of intact ones.
        """
        if record.kind == CATALOG or record.state == OPEN:
            return True
        damaged = self._is_from_damaged(record)
        if not self._has_turn(record):
            return False
        self._copied[damaged] += not self._is_copied(record)
        return True

    def _has_turn(self, record: ContainerRecord) -> bool:
        if record.kind == CATALOG or record.state == OPEN:
            return True
        return self._copied[self._is_from_damaged(record)] < self._observed.settings.rebuilds_at_once

    @property
    def _copied(self) -> Counter[bool]:
        """Number of containers being copied, by whether their source is damaged; computed on first use."""
        if self._copying is None:
            takers = [node.node_id for node in self._takers if not node.full]
            records = [self._observed.containers[each] for each in self._observed.inventory.lagging(takers)]
            self._copying = Counter(self._is_from_damaged(each) for each in records)
        return self._copying

    def _is_from_damaged(self, record: ContainerRecord) -> bool:
        source = self._observed.replica(record.leader, record.container_id)
        return source is not None and source.damaged

    def _is_copied(self, record: ContainerRecord) -> bool:
        in_sync = {node for node, _ in record.in_sync}
        return any(
            node not in in_sync and self._observed.takes_roles(node, self._now) and not self._observed.nodes[node].full
            for node in record.replicas
        )

    def _surplus(self, record: ContainerRecord, lasting: list[NodeId], safe: list[NodeId]) -> NodeId | None:
        """Return the replica to give up if there are too many; None while it is needed to have enough in sync."""
        others = [node for node in lasting if node != record.leader]
        in_sync = dict(record.in_sync)
        shut_out = [node for node in others if node not in in_sync and self._observed.nodes[node].full]
        if shut_out:
            return shut_out[-1]
        able = [node for node in lasting if node == record.leader or not self._observed.nodes[node].full]
        if len(able) <= record.min_in_sync:  # without one of these the container would stall
            others = [node for node in others if node not in able] or others
        behind = [node for node in others if node not in safe]
        if behind:
            return behind[-1] if len(safe) >= record.wanted else None
        if len(safe) <= record.wanted:
            return None
        return least_needed(
            lasting,
            nodes=self._observed.nodes,
            held=self._held,
            loads=self._loads,
            volume=record.volume,
            among=others,
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
    """Return whether the nodes of all replicas were removed, by force: none of them will return."""
    return not any(node in observed.nodes for node in record.replicas)
