"""The roles of one replica of this node, as its container's record assigns them: it is opened, leads, or follows.

A leader that restarts takes a new epoch by compare-and-set before it writes: what it had not synced may be on its
followers, and no epoch is written in twice.

Handles one replica at a time. It does not know when records change or which parts are notified (replicas.py). A record
that asks for what this replica must not do is refused with a KafkaError that says why.
"""

import uuid
from collections.abc import Awaitable, Callable
from dataclasses import replace

from msgspec import structs

from headrace.base.errors import Code, KafkaError
from headrace.base.ids import Epoch, NodeId
from headrace.base.levels import Level
from headrace.container.environment import Environment
from headrace.container.follower import Follower
from headrace.container.in_sync_writer import members
from headrace.container.leader import Leader
from headrace.container.local_replica import LocalReplica
from headrace.container.pair_roster import FollowersRoster
from headrace.container.replica_events import ReplicaEvents
from headrace.container.snapshot_transfer import Receive
from headrace.peer.session import Session
from headrace.store import container_records
from headrace.store.protocol import VersionConflict
from headrace.store.records import ContainerRecord, NodeRecord


async def open_replica(env: Environment, record: ContainerRecord, events: ReplicaEvents) -> LocalReplica:
    """Open this node's replica of the record's container, without a role; it reports to `events`.

    Raises CorruptLog if the replica is damaged and no other is in sync.
    """
    others = {node for node, _ in record.in_sync} - {env.node_id}
    return await LocalReplica.open(
        container_id=record.container_id,
        kind=record.kind,
        node=env.node_id,
        folder=env.folder / str(record.container_id),
        options=replace(env.options(record.kind, record.volume), small_chunks=record.state == "closed"),
        executor=env.executor,
        pool=env.writer_pool,
        room=env.room(record.kind),
        fatal=env.fatal,
        events=events,
        replaceable=bool(others),
        unmarked=env.node_format,
    )


async def lead(env: Environment, record: ContainerRecord, replica: LocalReplica) -> Leader | None:
    """Make the replica the leader that the record names; return the new leader.

    Returns None if it leads already, if a new epoch had to be taken first, or if the record has changed meanwhile; the
    changed record is then handled in the next round.
    """
    if replica.leader is not None and replica.leader.epoch == record.epoch and not replica.leader.lost:
        return None
    if replica.leader is not None:
        await replica.stop()
    own = (env.node_id, uuid.UUID(replica.incarnation))
    if own not in record.in_sync:
        # Invariants 5, 14: frames that this replica lost or never had may be committed elsewhere.
        await replica.stop()
        raise KafkaError(Code.REPLICA_NOT_AVAILABLE, "this replica is not in the in-sync set, and cannot lead")
    if record.epoch <= replica.led or record.epoch < replica.seen:
        await replica.stop()
        await _claim(env, record, replica)
        return None
    if env.view.containers.get(record.container_id) is not record:
        return None  # the record has changed meanwhile; the next round handles it
    return await replica.lead(
        epoch=record.epoch,
        in_sync=members(record),
        replicas=record.replicas,
        min_in_sync=record.min_in_sync,
        volume=record.volume,
        recovered_epoch=record.recovered_epoch,
        closing=record.state != "open",
    )


async def _claim(env: Environment, record: ContainerRecord, replica: LocalReplica) -> None:
    """Take an epoch in which no node has written."""
    if env.view.containers.get(record.container_id) is not record:
        return  # the record has changed meanwhile: the put would overwrite the new record with the old one
    epoch = Epoch(max(record.epoch, replica.seen, replica.led) + 1)
    wanted = container_records.stamped(structs.replace(record, epoch=epoch), traced=env.view.may(Level.FENCED))
    version = env.view.versions[record.container_id]
    try:
        await env.store(lambda store: container_records.put_container(store, wanted, version))
    except VersionConflict:
        pass
    env.view.refresh()


async def follow(
    env: Environment,
    record: ContainerRecord,
    replica: LocalReplica,
    *,
    receive: Receive | None,
    roster: Callable[[NodeId], FollowersRoster | None],
    open_session: Callable[[NodeRecord], Awaitable[Session]],
) -> None:
    """Have the replica follow the record's leader. `receive`, `roster`: see Follower."""
    follower = replica.follower
    observer = env.node_id not in record.replicas
    if follower is not None and follower.epoch == record.epoch and follower.observer == observer:
        return
    await replica.stop(newer=record.epoch)
    if record.epoch < replica.seen:
        raise KafkaError(Code.FENCED_LEADER_EPOCH, f"epoch {record.epoch} is older than {replica.seen}, seen here")
    await replica.saw(record.epoch)

    async def connect() -> Session:
        node = env.view.nodes.get(record.leader)
        if node is None:
            raise KafkaError(Code.BROKER_NOT_AVAILABLE, f"node {record.leader} is not known")
        return await open_session(node)

    replica.follow(
        Follower(
            replica,
            epoch=record.epoch,
            node=env.node_id,
            observer=observer,
            leader=record.leader,
            connect=connect,
            receive=receive,
            roster=roster,
        )
    )
