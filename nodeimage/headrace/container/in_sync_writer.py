"""The writer of in-sync sets: it puts the sets that leaders propose into the cluster store.

leader_state.py decides which replicas join and leave a set. The in-sync set is the only part of a container's record
that the container's leader changes itself.

A put whose outcome is unknown is repeated until the record has another version (store.protocol): it may have been
stored, or may still be stored later, and until the outcome is known the leader's commits wait for both sets (invariant
3). The new record is also saved in the replica's folder before anything is committed under it, so that a store that is
restored to an earlier state is recognized as an old copy.

A put that fails for any reason is repeated, because nothing else would repeat it.
"""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import Final, Protocol, TypeVar

import structlog
from msgspec import structs

from headrace.base.errors import HeadraceError
from headrace.base.ids import ContainerId, NodeId
from headrace.base.levels import Level
from headrace.container.leader import Leader
from headrace.container.leader_state import Member
from headrace.store import container_records, records
from headrace.store.protocol import ClusterStore, StoreUnavailable, VersionConflict
from headrace.store.records import ContainerRecord

log = structlog.get_logger()

T = TypeVar("T")

RETRY_S: Final = 0.3
"""Seconds before a put is repeated."""
ASKED_AGAIN_S: Final = 0.1
"""Seconds between two checks whether the nodes that would leave the set have reported."""
DIFFERS_S: Final = 1.5
"""Seconds for which a record may show a set that differs from its leader's: a view is rarely that late, and by then a
dead member has been removed."""
UNDECIDED_S: Final = 2.0
"""Seconds after which an unfinished put is reported through `Leader.undecided`: commits wait for a member that is away.
"""


class _View(Protocol):
    def may(self, level: int, /) -> bool: ...

    def refresh(self) -> None: ...


class StoreAndView(Protocol):
    """What the writer needs from the node."""

    @property
    def view(self) -> _View: ...

    def store(self, change: Callable[[ClusterStore], T], /) -> Awaitable[T]: ...


class KeptRecords(Protocol):
    """The container records saved in the folders of this node's replicas."""

    def known_record(self, container: ContainerId, /) -> ContainerRecord | None: ...

    def unasked(self, leader: Leader, wanted: Collection[Member], /) -> Collection[NodeId]:
        """Return live nodes that `wanted` would remove and that may know a newer record than the one `wanted` is based
        on."""

    async def remember(self, record: ContainerRecord, /) -> None:
        """Save a record that is in the store. Raises HeadraceError, OSError."""


class InSyncWriter:
    """Puts the proposals of this node's leaders into the store, one at a time for each container."""

    def __init__(self, environment: StoreAndView, kept: KeptRecords) -> None:
        self._env = environment
        self._kept = kept
        self._putting: dict[ContainerId, asyncio.Task[None]] = {}
        self._differs_since: dict[ContainerId, float] = {}
        """Loop time, in seconds, since which the container's record has shown a set that differs from its leader's."""

    def look_at(self, leader: Leader, record: ContainerRecord | None, left: Collection[NodeId] = ()) -> None:
        """Put the set that the leader wants now, if it differs from the one in `record`, the record as last seen.

        `left`: see LeaderState.proposal.
        """
        loop = asyncio.get_running_loop()
        if leader.id in self._putting or leader.lost:
            leader.state.look(loop.time(), left)
            return
        wanted = leader.state.proposal(loop.time(), left)
        if wanted is None:
            if not self._differs_for_long(leader, record, loop.time()):
                return
            # The controller removed a member and gave its node the replica back before the leader noticed. Commits
            # have been waiting for that member since.
            wanted = leader.state.in_sync
        task = self._putting[leader.id] = loop.create_task(self._put(leader, wanted), name=f"in-sync-{leader.id}")
        task.add_done_callback(lambda _: self._putting.pop(leader.id, None))

    def is_settled(self, leader: Leader, record: ContainerRecord | None) -> bool:
        """Return whether there is nothing to put while neither the leader nor its record changes."""
        return (
            leader.id not in self._putting
            and record is not None
            and record.epoch == leader.epoch
            and members(record) == leader.state.in_sync
        )

    def _differs_for_long(self, leader: Leader, record: ContainerRecord | None, now: float) -> bool:
        """Return whether the record and the leader's set have differed for too long to be explained by a late view."""
        if record is None or record.epoch != leader.epoch or members(record) == leader.state.in_sync:
            self._differs_since.pop(leader.id, None)
            return False
        if now - self._differs_since.setdefault(leader.id, now) < DIFFERS_S:
            return False
        del self._differs_since[leader.id]
        return True

    async def close(self) -> None:
        """Stop putting sets."""
        tasks = list(self._putting.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _put(self, leader: Leader, wanted: frozenset[Member]) -> None:
        """Put `wanted`; return when it is known which set the store holds, or when this node no longer leads."""
        loop = asyncio.get_running_loop()
        begun = loop.time()

        def failed(reason: str) -> None:
            if loop.time() - begun >= UNDECIDED_S:
                leader.undecided = f"its in-sync set cannot be put into the cluster store: {reason}"

        traced = self._env.view.may(Level.FENCED)
        while traced and not leader.lost and (nodes := self._kept.unasked(leader, wanted)):
            failed(f"node {min(nodes)} would leave, and has not reported what it knows")
            await asyncio.sleep(ASKED_AGAIN_S)
        while not leader.lost:
            try:
                put = partial(
                    _try_put,
                    leader=leader,
                    wanted=wanted,
                    known=self._kept.known_record(leader.id),
                    traced=self._env.view.may(Level.FENCED),
                )
                record = await self._env.store(put)
                if record is not None:
                    await self._kept.remember(record)
            except StoreUnavailable as error:
                log.warning("the in-sync set could not be put", container=leader.id, reason=str(error))
                failed(str(error))
                await asyncio.sleep(RETRY_S)
                continue
            except (HeadraceError, OSError) as error:
                # The record is invalid. The proposal remains, and commits keep waiting for both sets.
                log.error("the in-sync set was refused", container=leader.id, reason=str(error))
                failed(str(error))
                await asyncio.sleep(RETRY_S)
                continue
            except Exception as error:
                log.exception("putting the in-sync set failed unexpectedly", container=leader.id)
                failed(repr(error))
                await asyncio.sleep(RETRY_S)
                continue
            leader.undecided = ""
            self._env.view.refresh()
            if record is None:  # the epoch is over, which the view will soon show, or the record is missing for now
                await asyncio.sleep(RETRY_S)
                continue
            if not leader.lost:
                held = members(record)
                log.info("in sync", container=leader.id, nodes=sorted(member.node for member in held))
                if leader.state.decided(held):
                    leader.committed_moved()
            return


def members(record: ContainerRecord) -> frozenset[Member]:
    """Return the in-sync set of a record."""
    return frozenset(Member(node, str(incarnation)) for node, incarnation in record.in_sync)


def _try_put(
    store: ClusterStore,
    *,
    leader: Leader,
    wanted: frozenset[Member],
    known: ContainerRecord | None,
    traced: bool,
) -> ContainerRecord | None:
    """[blocking] Return the record that the store now holds for the leader's epoch; None if that epoch is over.

    Raises KafkaError if the store has been restored to a state before `known`: nothing is put over an old copy.
    """
    in_sync = tuple(sorted((member.node, uuid.UUID(member.incarnation)) for member in wanted))
    while True:
        found = store.get(f"{records.CONTAINER_PREFIX}{leader.id}")
        if found is None:
            return None
        record = records.decode(found.value, ContainerRecord, found.key)
        if record.epoch != leader.epoch or record.leader != leader.member.node:
            return None
        if known is not None:
            container_records.check_descent(record, known)
        if set(record.in_sync) == set(in_sync):
            return record
        if not {node for node, _ in in_sync} <= set(record.replicas):
            # The controller has removed a replica meanwhile: the record is valid, and the next proposal builds on it.
            return record
        put = container_records.stamped(structs.replace(record, in_sync=in_sync), traced=traced)
        try:
            container_records.put_container(store, put, found.version)
        except VersionConflict:
            continue
        return put
