"""Making a container: its id first, then an empty replica on the first member, on the others, then its record.

The record names the formats of the replicas' folders, so the folders come first. What fails in between is `begun`, and
the next attempt of the same process goes on with it. What a crash leaves, or a controller that is replaced meanwhile,
is an id that is never used and an empty folder on each member: once each time, not with each attempt. Two that make the
catalog at a time prepare the same folders, and get the same record.

So a record may be put more than once under one id, and lands once: the others find it there, also when it is deleted,
as it stays for longer then than a put is on its way (Settings.forget_after_s).

The record names as many folders as have to be in sync: one that its node loses before there is a record, or right
after it, is then not the only one that could lead. Nobody may choose another container for what is opened in this one.
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


class Peers(Protocol):
    """The way to other nodes: peer.client.PeerClient."""

    async def call(
        self, address: tuple[str, int], message: Request[AnswerT], *, timeout_s: float
    ) -> tuple[AnswerT, memoryview]:
        """A node's answer. Raises PeerUnreachable, KafkaError."""


Creation = tuple[str, NodeId, str]
"""What is made: the kind, whom it is led by first, the volume."""

Begun = MutableMapping[ContainerId, Creation]
"""The ids of containers that could not be made yet. An attempt takes its own out while it is under way."""


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
    """A new container led by the first of `members`; without those of the others that do not answer.

    Replicas that are missing are made later, by the controller. Raises HeadraceError where the first one does not
    answer, or fewer than `volume.min_in_sync` do, and StoreUnavailable (the container may be there nevertheless): then
    it is `begun`, and the next attempt goes on with its id and with the folders that there are. A put that was given up
    may land before the next one: the record is that one's then, and is returned. Who knows that it has landed, takes
    the id out of `begun`: another attempt is to make another container. `traced`: see container_records.stamped;
    `least_id`: compare_and_set.take_id.
    """
    if not members:
        raise HeadraceError("a container needs a node that is registered")
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
        # Not where it exists: the store has lost its record, or it has become another's.
        if error.code is not Code.FENCED_LEADER_EPOCH and not isinstance(error, VersionConflict):
            begun[container] = key
        raise


async def _prepare_all(
    peers: Peers, members: Sequence[NodeRecord], container: ContainerId, kind: str, *, least: int
) -> list[tuple[NodeId, uuid.UUID]]:
    first, *others = members
    # Before the others, who need no folder where it cannot.
    ready = [(first.node_id, await _prepare(peers, first, container, kind))]
    answers = await asyncio.gather(*(_prepare(peers, node, container, kind) for node in others), return_exceptions=True)
    for node, answer in zip(others, answers, strict=True):
        if isinstance(answer, uuid.UUID):
            ready.append((node.node_id, answer))
        elif not isinstance(answer, HeadraceError) or answer.code is Code.FENCED_LEADER_EPOCH:
            raise answer
        else:
            log.warning("a replica was not made", container=container, node=node.node_id, reason=str(answer))
    if len(ready) < least:
        text = f"container {container} has {len(ready)} of the {least} replicas that have to be in sync"
        raise KafkaError(Code.LEADER_NOT_AVAILABLE, text)
    return ready


async def _prepare(peers: Peers, node: NodeRecord, container: ContainerId, kind: str) -> uuid.UUID:
    answer, _ = await peers.call(node.peer_address, Prepare(container, kind), timeout_s=PREPARE_S)
    return uuid.UUID(answer.format)
