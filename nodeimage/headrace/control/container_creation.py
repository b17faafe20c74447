"""Creation of a container: first its id, then an empty replica on the first member, then on the others, then its
record.

The record names the incarnations of the replicas' folders, so the folders come first. A creation that fails in between
is kept in `begun`, and the next attempt of the same process continues it. A crash, or a change of controller meanwhile,
leaves an id that is never used and an empty folder on each member: once, not with each attempt. Two nodes that create
the catalog at the same time prepare the same folders, and get the same record.

A record may thus be put more than once under one id, but is stored once: later puts find it there, even if the
container has been deleted, because a deleted record is kept for longer than a put can be in flight
(Settings.forget_after_s).

The record names at least as many replicas as have to be in sync. If a node loses its folder before the record exists,
or right after, that replica is then not the only one that could lead. This matters because partitionlets that are
opened in this container stay in it.
"""

import asyncio
import uuid
from collections.abc import MutableMapping, Sequence
from typing import Final, Protocol

import structlog

from headrace.base.errors import Code, HeadraceError, KafkaError
from headrace.base.ids import ContainerId, NodeId
from headrace.peer.messages import AnswerT, Prepare, Request
from headrace.store import container_records
from headrace.store.protocol import StoreCall, VersionConflict
from headrace.store.records import ContainerRecord, NodeRecord, VolumeRecord

log = structlog.get_logger()

PREPARE_S: Final = 2.0
"""Seconds for which a node's answer is awaited when it prepares a replica."""


class Peers(Protocol):
    """Calls other nodes: peer.client.PeerClient."""

    async def call(
        self, address: tuple[str, int], message: Request[AnswerT], *, timeout_s: float
    ) -> tuple[AnswerT, memoryview]:
        """Return a node's answer. Raises PeerUnreachable, KafkaError."""


Creation = tuple[str, NodeId, str]
"""What is created: the kind, the first leader, the volume."""

Begun = MutableMapping[ContainerId, Creation]
"""The ids of containers whose creation failed. An attempt removes its own entry while it runs."""


async def create(
    store_call: StoreCall,
    peers: Peers,
    *,
    kind: str,
    members: Sequence[NodeRecord],
    volume: VolumeRecord,
    begun: Begun,
    traced: bool = False,
    least_id: int = 0,
) -> ContainerRecord:
    """Create a container led by the first of `members`; other members that do not answer are left out.

    The controller adds missing replicas later. `traced`: see container_records.stamped; `least_id`:
    compare_and_set.take_id.

    Raises HeadraceError if the first member does not answer, or fewer than `volume.min_in_sync` do, and
    StoreUnavailable (the container may exist nevertheless). The creation is then in `begun`, and the next attempt
    continues with its id and existing folders. If an abandoned put is stored before the next one, its record is the
    container's, and is returned. A caller that learns that it was stored removes the id from `begun`: its next attempt
    is to create another container.
    """
    if not members:
        raise HeadraceError("a container needs a registered node")
    key = (kind, members[0].node_id, volume.name)
    container = next((each for each, creation in begun.items() if creation == key), None)
    if container is None:
        container = await store_call(lambda store: container_records.take_container_id(store, kind, least=least_id))
    else:
        del begun[container]
    try:
        ready = await _prepare_all(peers, members, container, kind, least=min(volume.min_in_sync, len(members)))
        return await store_call(
            lambda store: container_records.create_container(
                store,
                kind=kind,
                members=ready,
                container_id=container,
                volume=volume.name,
                min_in_sync=volume.min_in_sync,
                wanted=volume.replicas,
                traced=traced,
            )
        )
    except HeadraceError as error:
        # These errors mean that the container exists already: the store lost its record, or the id is another's.
        if error.code is not Code.FENCED_LEADER_EPOCH and not isinstance(error, VersionConflict):
            begun[container] = key
        raise


async def _prepare_all(
    peers: Peers, members: Sequence[NodeRecord], container: ContainerId, kind: str, *, least: int
) -> list[tuple[NodeId, uuid.UUID]]:
    first, *others = members
    # The first member comes first: if it cannot create a folder, the others need none.
    ready = [(first.node_id, await _prepare(peers, first, container, kind))]
    answers = await asyncio.gather(*(_prepare(peers, node, container, kind) for node in others), return_exceptions=True)
    for node, answer in zip(others, answers, strict=True):
        if isinstance(answer, uuid.UUID):
            ready.append((node.node_id, answer))
        elif not isinstance(answer, HeadraceError) or answer.code is Code.FENCED_LEADER_EPOCH:
            raise answer
        else:
            log.warning("a replica was not created", container=container, node=node.node_id, reason=str(answer))
    if len(ready) < least:
        text = f"container {container} has {len(ready)} of the {least} replicas that have to be in sync"
        raise KafkaError(Code.LEADER_NOT_AVAILABLE, text)
    return ready


async def _prepare(peers: Peers, node: NodeRecord, container: ContainerId, kind: str) -> uuid.UUID:
    answer, _ = await peers.call(node.peer_address, Prepare(container, kind), timeout_s=PREPARE_S)
    return uuid.UUID(answer.format)
