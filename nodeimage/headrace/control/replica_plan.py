"""How many replicas a container has, and where. Pure.

Replicas are counted on nodes that stay: one that is drained, removed, or dead for `rebuild_after_s` counts no longer,
and another node gets a replica in its place. It leaves once enough others are in sync. A removal takes the node out of
the in-sync set too, in the same epoch; that is safe while the leader has not seen it, since it waits for more members
than it must then. Nothing is ever added to the in-sync set here: that the leader does, when a follower has caught up.

Followers on full disks count. But what they have yet to take cannot be committed, nor the seals behind it, so that no
partition gets away: where too few others are left for that, nodes with room get replicas beside them. Then those that
are out of the in-sync set, and have no room to get back in, are too many.
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
    """The steps of one plan."""

    def __init__(self, observed: Observed, now: float) -> None:
        self._observed = observed
        self._now = now
        self._takers = [node for key, node in sorted(observed.nodes.items()) if observed.takes_roles(key, now)]
        self._gone = {node for node in observed.nodes if observed.is_gone(node, now)}
        self._loads = observed.loads()
        self._held = observed.inventory.held.copy()
        self._copying: Counter[bool] | None = None

    def step(self, record: ContainerRecord) -> PutContainer | Wait | None:
        """The next step for one container towards the replicas that it should have."""
        followed = self._follow_volume(record)
        if followed is not None:
            return followed
        observed, now = self._observed, self._now
        if is_abandoned(observed, record):
            return self._stand_in(record)
        if not observed.is_alive(record.leader, now):
            return None  # nobody to copy from; the leader comes first
        lasting = [node for node in record.replicas if node in observed.nodes and node not in self._gone]
        if len(lasting) < record.wanted and not self._has_turn(record) and not self._is_let_go(record, lasting):
            return None
        added, reason = self._added(record, lasting)
        if added and self._may_copy(record):
            self._held.add(record, added)
            return self._put(structs.replace(record, replicas=(*record.replicas, *added)), reason)
        safe = [node for node, _ in record.in_sync if node in lasting and self._is_safe(record, node)]
        leaving = [node for node in record.replicas if node not in lasting and node != record.leader]
        # One that is only dead may come back and catch up: it leaves when it is not missed. One that has to go leaves
        # when as many are in sync as there are nodes for.
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
        """Whether a replica is to leave a node for good."""
        return node not in self._observed.nodes or self._observed.nodes[node].draining

    def _is_let_go(self, record: ContainerRecord, lasting: list[NodeId]) -> bool:
        """Whether something may come of a container that lacks replicas and gets none yet: one that has to go leaves
        where no node can take its place, and where nothing lasts, that is told."""
        if not lasting:
            return True
        leaving = any(self._has_to_go(node) for node in record.replicas if node not in lasting)
        return leaving and all(self._is_safe(record, node) for node in lasting) and not self._has_place(record, lasting)

    def _has_place(self, record: ContainerRecord, lasting: list[NodeId]) -> bool:
        """Whether `_choose` would find a node."""
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
        """Whether what the in-sync set says of a node holds still. It may have lost its folder, and be back; or stay in
        the set for the minimum's sake."""
        replica = self._observed.replica(node, record.container_id)
        return (
            self._observed.is_alive(node, self._now)
            and is_in_sync(self._observed, record, node)
            and replica is not None
            and not replica.damaged
            and not self._observed.is_stuck(node)
            and node not in self._held_up(record)
        )

    def _stand_in(self, record: ContainerRecord) -> PutContainer | None:
        """Empty replicas, none of them in sync: an unclean recovery (invariant 15) may let one lead."""
        added = self._choose(record, [], record.wanted, self._takers)
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

    def _held_up(self, record: ContainerRecord) -> list[NodeId]:
        """The followers that keep a container from committing anything, as they live, but their disks are full."""
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
        """The nodes that get a replica now, and why."""
        added = self._choose(record, lasting, record.wanted - len(lasting), self._takers)
        if added:
            why = f"{len(lasting)} of {record.wanted} replicas are on nodes that stay"
        else:
            added = self._with_room(record)
            why = "nothing is committed, as too few of those in sync have room"
        return added, f"{why}; node {', '.join(map(str, added))} gets one"

    def _with_room(self, record: ContainerRecord) -> list[NodeId]:
        """Those in whose company the leader commits again; as many as that takes, or none."""
        observed, held_up = self._observed, self._held_up(record)
        if not held_up:
            return []
        able = [  # one that is dead may come back with room
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
        """Whether a disk has room for all that a container may hold, as far as it is known."""
        load = self._loads.get(node, NodeLoad())
        led = self._observed.replica(record.leader, record.container_id)
        return not load.disk_total or led is None or led.end < load.disk_total - load.disk_used

    def _choose(
        self, record: ContainerRecord, lasting: list[NodeId], missing: int, takers: list[NodeRecord]
    ) -> list[NodeId]:
        """So many nodes that have no replica yet, or fewer."""
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
        """What is written to is copied at once; of the others, only so many at a time. Those of which a damaged leader
        has the only replica may never be done, and hold up none that is whole.
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
        """So many are copied, from a replica that is damaged or not. Known once it is asked for."""
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
        """Who goes, where there are too many: not while fewer than are wanted would be in sync without it."""
        others = [node for node in lasting if node != record.leader]
        in_sync = dict(record.in_sync)
        shut_out = [node for node in others if node not in in_sync and self._observed.nodes[node].full]
        if shut_out:
            return shut_out[-1]
        able = [node for node in lasting if node == record.leader or not self._observed.nodes[node].full]
        if len(able) <= record.min_in_sync:  # it would stall without one of these
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
    """Whether the nodes of all its replicas were removed, by force: none of them comes back."""
    return not any(node in observed.nodes for node in record.replicas)
