"""Restores the cluster store's entries for containers (container records, not the records in them) that were lost while
the nodes run: deleted by hand on Kubernetes, or replaced by older ones because etcd was restored from a backup.

Any node can do it on request. It asks all registered nodes what their folders hold of containers that have no record. A
node that has yet to notice that the records are gone may still lead, so the question is repeated until all nodes have
noticed, and then once more: what the folders hold no longer grows by then. All nodes have to answer: data that only a
silent node holds would be lost.

A record that is older than what a replica knows is deleted first, so that no node leads or follows by it; it then
counts as lost. If recovery is interrupted in between, running it again continues.
"""

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import structlog

from headrace.base.errors import Code, HeadraceError, KafkaError
from headrace.base.ids import ContainerId, NodeId
from headrace.base.levels import Level
from headrace.container.lost_record import (
    FoundReplica,
    decode_found,
    encode_found,
    missing_nodes,
    recorded_volumes,
    recovered_record,
)
from headrace.container.replicas import Replicas
from headrace.peer.client import PeerClient
from headrace.peer.messages import Unrecorded, UnrecordedFound
from headrace.peer.session import Session
from headrace.store import container_records, records
from headrace.store.compare_and_set import NEXT_PREFIX, skip_ids
from headrace.store.protocol import ClusterStore, StoreCall, VersionConflict
from headrace.store.records import CATALOG_ID, ContainerRecord, NodeRecord, RemovedNodes
from headrace.store.view import ClusterView

log = structlog.get_logger()

SEEN_S: Final = 20.0
"""Seconds within which all nodes should notice that records were deleted."""
SEEN_AGAIN_S: Final = 0.2
WARNINGS: Final = 100
"""The maximum number of warnings that one node sends."""
SKIPPED_PRODUCERS: Final = 1 << 28
"""How many producer ids to skip: they may have been handed out, since the copy was made, to nodes that no longer run.
There are 2**40."""
ANSWER_S: Final = 60.0
"""Seconds to wait for a node's answer: it scans logs that are not open."""

Told = tuple[UnrecordedFound, Sequence[FoundReplica]]


class StoreRecovery:
    """Answers and runs recoveries on one node."""

    def __init__(
        self, *, node: NodeId, replicas: Replicas, peers: PeerClient, store: StoreCall, view: ClusterView
    ) -> None:
        self._view = view
        self._node = node
        self._replicas = replicas
        self._peers = peers
        self._store = store

    # --- requests of other nodes

    async def answer(
        self, asked: Unrecorded, _payload: memoryview, _session: Session
    ) -> tuple[UnrecordedFound, list[bytes]]:
        """Answer another node with what this node holds of containers without a record. Raises OSError."""
        answer, found = await self._look_here(asked)
        return answer, [encode_found(found)]

    # --- recovery

    async def recover(self, *, apply: bool) -> dict[str, Any]:
        """Restore the lost records if `apply`, and return what was, or would be, restored. Existing records stay,
        unless they are older than what a replica knows. Raises HeadraceError, OSError."""
        nodes = await self._store(records.nodes)
        answers = await self._look(nodes, Unrecorded(sorted(await self._recorded())))
        # Their record is older than what a replica knows.
        set_back = {container for answer, _ in answers for container in answer.set_back}
        if set_back and apply:
            await self._store(lambda store: _withdraw(store, set_back))
        until = asyncio.get_running_loop().time() + (SEEN_S if set_back and apply else 0.0)
        looks = 0
        while looks < 2:  # by the second look the replicas no longer grow
            recorded = await self._recorded() - set_back  # containers may be created meanwhile
            answers = await self._look(nodes, Unrecorded(sorted(recorded), seen=not apply))
            behind = [node.node_id for node, (answer, _) in zip(nodes, answers, strict=True) if answer.unseen]
            if not behind or (not apply and set_back):
                looks += 1
            elif asyncio.get_running_loop().time() >= until:
                raise _refused(f"node {behind[0]} has yet to see that records are gone: try again in a moment")
            else:
                looks = 0
                await asyncio.sleep(SEEN_AGAIN_S)
        by_container: defaultdict[ContainerId, list[FoundReplica]] = defaultdict(list)
        for _, found in answers:
            for each in found:
                by_container[each.record.container_id].append(each)
        lacking = {key: found for key, found in by_container.items() if key not in recorded}
        deleted = await self._store(container_records.deleted_containers)
        lacking = {key: found for key, found in sorted(lacking.items()) if key not in deleted}
        self._check_all_known(lacking, nodes, await self._store(records.removed_nodes))
        lost = [recovered_record(found) for found in lacking.values()]
        if apply and lost:
            counters = highest(answer.counters for answer, _ in answers)
            await self._store(lambda store: records.raise_counters(store, counters, producers=SKIPPED_PRODUCERS))
            await self._store(lambda store: _put(store, lost))
        return {
            "containers": [_shown(each) for each in lost],
            "warnings": [warning for answer, _ in answers for warning in answer.warnings],
            "done": apply,
        }

    async def _recorded(self) -> set[ContainerId]:
        return {each.container_id for each in await self._store(container_records.containers)}

    def _check_all_known(
        self,
        lacking: Mapping[ContainerId, Sequence[FoundReplica]],
        nodes: Sequence[NodeRecord],
        removed: RemovedNodes,
    ) -> None:
        """Raise KafkaError if a node that was in sync has lost its registration, and so was not asked."""
        if not self._view.may(Level.FENCED):
            return  # below that level removals leave no trace
        known = {each.node_id for each in nodes}
        for container, found in lacking.items():
            for node in sorted(missing_nodes(found) - known):
                if node not in removed:
                    raise _refused(
                        f"node {node} was in sync with container {container}, and has lost its registration: start it, "
                        f"and it registers again; if it is gone for good, `headrace node remove {node} --force` first"
                    )

    async def _look(self, nodes: Sequence[NodeRecord], asked: Unrecorded) -> list[Told]:
        return await asyncio.gather(*(self._look_at(node, asked) for node in nodes))

    async def _look_at(self, node: NodeRecord, asked: Unrecorded) -> Told:
        if node.node_id == self._node:
            return await self._look_here(asked)
        try:
            answer, payload = await self._peers.call(node.peer_address, asked, timeout_s=ANSWER_S)
        except HeadraceError as error:
            text = "all nodes must be up, or data that only one has would be lost; one that is gone forever has to be"
            raise _refused(f"node {node.node_id} does not answer ({error}): {text} removed first") from error
        return answer, decode_found(payload)

    async def _look_here(self, asked: Unrecorded) -> Told:
        still_recorded, found, warnings = await self._replicas.unrecorded(
            frozenset(asked.recorded), also_still_recorded=asked.seen
        )
        if len(warnings) > WARNINGS:  # a frame's header has room for a few thousand
            warnings = [
                *warnings[:WARNINGS],
                f"node {self._node}: {len(warnings) - WARNINGS} more like these are left out",
            ]
        counters = highest(
            [
                self._view.highest,
                {f"{NEXT_PREFIX}node": self._node + 1, f"{NEXT_PREFIX}container": self._replicas.highest_id() + 1},
            ]
        )
        set_back = self._replicas.set_back()
        return UnrecordedFound(unseen=still_recorded, warnings=warnings, set_back=set_back, counters=counters), found


def highest(counters: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The highest value of each counter. Pure."""
    found: dict[str, int] = {}
    for each in counters:
        for key, at in each.items():
            found[key] = max(at, found.get(key, 0))
    return found


def _withdraw(store: ClusterStore, containers: Collection[ContainerId]) -> None:
    """[blocking] Delete records that are older than what replicas know; the replicas' folders hold the newer state."""
    for container in sorted(containers):
        while (found := store.get(f"{records.CONTAINER_PREFIX}{container}")) is not None:
            try:
                store.delete(found.key, found.version)
            except VersionConflict:
                continue
            log.warning("a container's record is deleted, as it is an old copy", container=container)


def _put(store: ClusterStore, lost: Sequence[ContainerRecord]) -> None:
    """[blocking] Write the lost records, but keep those that another node restored meanwhile. The catalog comes last:
    nothing is created before it is back."""
    for volume in recorded_volumes(lost):
        records.ensure_volume(store, volume)
    skip_ids(store, "container", max(each.container_id for each in lost))
    for record in sorted(lost, key=lambda each: each.container_id == CATALOG_ID):
        try:
            container_records.put_container(store, record, None)
        except VersionConflict:
            continue
        log.warning("a container's record is restored", **_shown(record))


def _shown(record: ContainerRecord) -> dict[str, Any]:
    return {
        "container": record.container_id,
        "kind": record.kind,
        "state": record.state,
        "primary": record.leader,
        "epoch": record.epoch,
        "in_sync": [node for node, _ in record.in_sync],
        "replicas": list(record.replicas),
    }


def _refused(text: str) -> KafkaError:
    return KafkaError(Code.POLICY_VIOLATION, text)
