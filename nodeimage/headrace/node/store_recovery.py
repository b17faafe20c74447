"""Puts records of containers back that the cluster store has lost while the nodes run: deleted by hand on Kubernetes.

Any node does it, when it is told to. It asks all registered nodes what their folders say of containers that have no
record, twice: whether anybody has yet to see that the records are gone, and so may lead; and if nobody has, what they
hold, which does not grow any more. All have to answer: what only a silent one has would be lost.
"""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

import structlog

from headrace.container.found import FoundReplica, heard, recovered_record, told, volumes_told
from headrace.container.replicas import Replicas
from headrace.errors import Code, HeadraceError, KafkaError
from headrace.ids import ContainerId, NodeId
from headrace.peer.client import PeerClient
from headrace.peer.messages import Unrecorded, UnrecordedFound
from headrace.peer.session import Session
from headrace.store import container_records, records
from headrace.store.compare_and_set import skip_ids
from headrace.store.protocol import StoreCall, VersionConflict
from headrace.store.records import CATALOG_ID, ContainerRecord, NodeRecord

log = structlog.get_logger()

ANSWER_S: Final = 60.0
"""Logs that are not open are scanned for it."""

Told = tuple[UnrecordedFound, Sequence[FoundReplica]]


class StoreRecovery:
    """One node's part."""

    def __init__(self, *, node: NodeId, replicas: Replicas, peers: PeerClient, store: StoreCall) -> None:
        self._node = node
        self._replicas = replicas
        self._peers = peers
        self._store = store

    # --- asked by others

    async def answer(
        self, asked: Unrecorded, _payload: memoryview, _session: Session
    ) -> tuple[UnrecordedFound, list[bytes]]:
        """What this node holds that has no record. Raises OSError."""
        answer, found = await self._look_here(asked)
        return answer, [told(found)]

    # --- asked to do it

    async def recover(self, *, apply: bool) -> dict[str, Any]:
        """What was put back, or would be; nothing is lost of what is there. Raises HeadraceError, OSError."""
        nodes = await self._store(records.nodes)
        asked = Unrecorded([each.container_id for each in await self._store(container_records.containers)])
        for _ in range(2):
            answers = await asyncio.gather(*(self._look_at(node, asked) for node in nodes))
            for node, (answer, _found) in zip(nodes, answers, strict=True):
                if answer.unseen:
                    raise _refused(f"node {node.node_id} has yet to see that records are gone: try again in a moment")
        by_container: defaultdict[ContainerId, list[FoundReplica]] = defaultdict(list)
        for _, found in answers:
            for each in found:
                by_container[each.record.container_id].append(each)
        deleted = await self._store(container_records.deleted_containers)
        lost = [recovered_record(found) for key, found in sorted(by_container.items()) if key not in deleted]
        if apply and lost:
            await self._store(lambda store: _put(store, lost))
        return {
            "containers": [_shown(each) for each in lost],
            "warnings": [warning for answer, _ in answers for warning in answer.warnings],
            "done": apply,
        }

    async def _look_at(self, node: NodeRecord, asked: Unrecorded) -> Told:
        if node.node_id == self._node:
            return await self._look_here(asked)
        try:
            answer, payload = await self._peers.call(node.peer_address, asked, timeout_s=ANSWER_S)
        except HeadraceError as error:
            text = "all have to be up, or what only one of them has would be lost; one that is gone for good has to be"
            raise _refused(f"node {node.node_id} does not answer ({error}): {text} removed first") from error
        return answer, heard(payload)

    async def _look_here(self, asked: Unrecorded) -> Told:
        unseen, found, warnings = await self._replicas.unrecorded(frozenset(asked.recorded))
        return UnrecordedFound(unseen=unseen, warnings=warnings), found


def _put(store: Any, lost: Sequence[ContainerRecord]) -> None:
    """[blocking] What somebody else has put back meanwhile stays. The catalog comes last: nothing is made before."""
    for volume in volumes_told(lost):
        records.ensure_volume(store, volume)
    skip_ids(store, "container", max(each.container_id for each in lost))
    for record in sorted(lost, key=lambda each: each.container_id == CATALOG_ID):
        try:
            container_records.put_container(store, record, None)
        except VersionConflict:
            continue
        log.warning("a container's record is back", **_shown(record))


def _shown(record: ContainerRecord) -> dict[str, Any]:
    return {
        "container": record.container_id,
        "kind": record.kind,
        "state": record.state,
        "primary": record.primary,
        "epoch": record.epoch,
        "in_sync": [node for node, _ in record.in_sync],
        "replicas": list(record.replicas),
    }


def _refused(text: str) -> KafkaError:
    return KafkaError(Code.POLICY_VIOLATION, text)
