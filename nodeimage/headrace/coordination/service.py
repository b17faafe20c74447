"""The asyncio shell of the group coordinator: waiting requests, the one timer, and the catalog.

A request gets a token and a future; the state machine's `Answer` resolves the future. `Persist` becomes a PutGroup
command; those of one group are submitted in order, and their outcomes are reported to the state machine. One timer is
set for the earliest deadline of all groups. Groups are read from the catalog when first needed.

A service lasts while this node coordinates (takeover.py): all of its commands are refused once another node does. If a
client disconnects while it waits, its future is dropped and the answer is discarded; the member lives until its session
ends, as in Kafka. If the catalog fails, nobody gets an assignment that is not stored. If the process dies, stored
groups are loaded as Stable with fresh sessions, and members continue without a rebalance.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from itertools import count
from typing import Any
from uuid import uuid4

import msgspec
import structlog

from headrace.base.awake_clock import AwakeTimer
from headrace.base.errors import Code, HeadraceError, KafkaError
from headrace.base.ids import Millis
from headrace.base.runtime import Runtime
from headrace.catalog.catalog import Catalog
from headrace.catalog.committed_offsets import CommitOffsets, CommittedOffset
from headrace.catalog.groups import DeleteGroups, PutGroup
from headrace.catalog.rows import GroupRow
from headrace.coordination.coordinator import Coordinator
from headrace.coordination.limits import GroupLimits
from headrace.coordination.messages import (
    Answer,
    Departure,
    GroupState,
    GroupView,
    Join,
    JoinResult,
    Note,
    Persist,
    Sync,
    SyncResult,
    Token,
)
from headrace.coordination.snapshot import GroupSnapshot, StoredMember, decode_members, encode_members
from headrace.partitions.lookups import yield_to_loop

log = structlog.get_logger(__name__)

_PAGE = 1_000
"""Groups read from the catalog in one query."""

_FOR_CLIENTS = frozenset(
    {
        Code.ILLEGAL_GENERATION,
        Code.UNKNOWN_MEMBER_ID,
        Code.GROUP_ID_NOT_FOUND,
        Code.NON_EMPTY_GROUP,
        Code.NOT_COORDINATOR,
    }
)
"""Error codes about the group itself, or about which node coordinates it. Other errors concern this node, and clients
retry."""


class GroupService:
    """The consumer groups of this node."""

    def __init__(self, *, runtime: Runtime, catalog: Catalog, coordinator: Coordinator) -> None:
        self._runtime = runtime
        self._catalog = catalog
        self._coordinator = coordinator
        self._tokens = count(1)
        self._waiting: dict[Token, asyncio.Future[Any]] = {}
        self._loading: dict[str, asyncio.Future[None]] = {}
        self._saving: dict[str, asyncio.Task[None]] = {}
        self._timer: AwakeTimer | None = None
        self._armed: int | None = None
        self._closed = False
        self._closed_with = Code.COORDINATOR_NOT_AVAILABLE

    # --- events

    async def join(self, request: Join) -> JoinResult:
        """JoinGroup; waits for the rebalance."""
        await self._load(request.group_id)
        token, answer = self._wait()
        try:
            self._coordinator.join(request, token=token, now=self._runtime.awake_ms())
            self._execute_effects()
            result: JoinResult = await answer
            return result
        finally:
            del self._waiting[token]

    async def sync(self, request: Sync) -> SyncResult:
        """SyncGroup; waits for the leader's assignments to be stored."""
        await self._load(request.group_id)
        token, answer = self._wait()
        try:
            self._coordinator.sync(request, token=token, now=self._runtime.awake_ms())
            self._execute_effects()
            result: SyncResult = await answer
            return result
        finally:
            del self._waiting[token]

    async def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> Code:
        """Heartbeat. Waits for nothing when the group is in memory."""
        if group_id not in self._coordinator:
            await self._load(group_id)
        return self._coordinator.heartbeat(
            group_id,
            member_id=member_id,
            instance_id=instance_id,
            generation=generation,
            now=self._runtime.awake_ms(),
        )

    async def leave(self, group_id: str, departures: Sequence[Departure]) -> list[Code]:
        """LeaveGroup: a code for each member that leaves."""
        await self._load(group_id)
        codes = self._coordinator.leave(group_id, departures, now=self._runtime.awake_ms())
        self._execute_effects()
        return codes

    async def may_commit(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> Code:
        """Whether this member may commit offsets now."""
        if group_id not in self._coordinator:
            await self._load(group_id)
        return self._coordinator.admit_commit(
            group_id,
            member_id=member_id,
            instance_id=instance_id,
            generation=generation,
            now=self._runtime.awake_ms(),
        )

    async def commit(
        self, group_id: str, member_id: str, generation: int, committed_offsets: list[CommittedOffset]
    ) -> list[Code]:
        """Store the offsets of a commit that `may_commit` allowed; returns a code for each.

        The catalog checks the member again, against its stored generation, in one order with the rebalances. A member
        may commit in a generation that was abandoned before it was stored, so the stored generation is sent instead.
        """
        if self._closed:
            return [self._closed_with] * len(committed_offsets)
        if generation >= 0:
            generation = self._coordinator.stored_generation(group_id, default=generation)
        try:
            codes: list[Code] = await self._catalog.submit(
                CommitOffsets(
                    group=group_id,
                    generation=generation,
                    member_id=member_id,
                    items=committed_offsets,
                    now=Millis(self._runtime.now()),
                ),
                here=True,
            )
        except HeadraceError as error:
            if error.code is Code.MESSAGE_TOO_LARGE:
                return [Code.INVALID_COMMIT_OFFSET_SIZE] * len(committed_offsets)
            return [self._refusal(error, "commit", group_id)] * len(committed_offsets)
        self._coordinator.committed(group_id)
        return codes

    async def describe(self, group_id: str) -> GroupView:
        """A group as an operator sees it."""
        await self._load(group_id)
        return self._coordinator.describe(group_id)

    async def listing(self) -> list[tuple[str, str, GroupState]]:
        """All groups: id, protocol type, state. Groups in memory have their present state, others that in the
        catalog."""
        found: dict[str, tuple[str, str, GroupState]] = {}
        async for row in self._stored_groups():
            state = GroupState.STABLE if row.member_ids else GroupState.EMPTY
            found[row.group] = (row.group, row.protocol_type, state)
        for index, group in enumerate(list(self._coordinator)):
            if group.state is GroupState.DEAD:
                found.pop(group.group_id, None)
            elif group.exists:
                found[group.group_id] = (group.group_id, group.protocol_type or "", group.state)
            await yield_to_loop(index)
        return list(found.values())

    def member_count(self, group_id: str) -> int | None:
        """The number of a group's members; None if the group is not in memory."""
        return len(self._coordinator.group(group_id).members) if group_id in self._coordinator else None

    async def subscribed(self, group_id: str) -> set[str] | None:
        """The topics, by full names, to which a group of consumers is subscribed; None if unknown."""
        await self._load(group_id)
        return self._coordinator.subscribed_topics(group_id)

    async def delete(self, group_ids: Sequence[str]) -> list[Code]:
        """Delete empty groups with their committed offsets; returns a code for each."""
        return [await deletion for deletion in [await self._start_to_delete(group_id) for group_id in group_ids]]

    async def warm(self) -> None:
        """Load the groups that had members when the node stopped, so that the sessions of members that are gone end."""
        async for row in self._stored_groups():
            if row.member_ids:
                await self._load(row.group)

    def close(self, code: Code = Code.COORDINATOR_NOT_AVAILABLE) -> None:
        """Stop the timer; waiting and later requests fail with `code`, upon which clients retry."""
        self._closed = True
        self._closed_with = code
        if self._timer is not None:
            self._timer.cancel()
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(self._closed_error())

    # --- inside

    def _closed_error(self) -> KafkaError:
        return KafkaError(self._closed_with, "this node no longer coordinates groups")

    def _wait(self) -> tuple[Token, asyncio.Future[Any]]:
        if self._closed:
            raise self._closed_error()
        token = Token(next(self._tokens))
        answer = self._waiting[token] = asyncio.get_running_loop().create_future()
        return token, answer

    def _execute_effects(self) -> None:
        """Execute the state machine's effects, and set the timer."""
        for effect in self._coordinator.take_effects():
            match effect:
                case Answer(token, result):
                    answer = self._waiting.get(token)
                    if answer is not None and not answer.done():
                        answer.set_result(result)
                case Persist():
                    group_id = effect.snapshot.group_id
                    self._saving[group_id] = self._runtime.spawn(self._save(effect, self._saving.get(group_id)))
                case Note(group_id, event, reason, generation, members):
                    log.info(event, group=group_id, generation=generation, members=members, reason=reason)
        self._arm()

    def _arm(self) -> None:
        due = self._coordinator.next_deadline
        if self._closed or due is None or (self._armed is not None and self._armed <= due):
            return  # the timer fires too early, and is then set again
        if self._timer is not None:
            self._timer.cancel()
        self._armed = due
        self._timer = self._runtime.call_at(due, self._ring)

    def _ring(self) -> None:
        self._armed = self._timer = None
        self._coordinator.tick(self._runtime.awake_ms())
        self._execute_effects()

    async def _load(self, group_id: str) -> None:
        """Bring a group into memory.

        Raises KafkaError(COORDINATOR_NOT_AVAILABLE) if the catalog cannot be read, and the code of `close` once closed.
        """
        while group_id not in self._coordinator:
            loading = self._loading.get(group_id)
            if loading is None:
                loading = self._loading[group_id] = asyncio.get_running_loop().create_future()
                self._runtime.spawn(self._read(group_id, loading))
            await asyncio.shield(loading)
        if self._closed:
            raise self._closed_error()

    async def _read(self, group_id: str, loading: asyncio.Future[None]) -> None:
        try:
            row = await self._catalog.query(lambda reader: reader.groups.named(group_id))
        except HeadraceError as error:
            log.warning("group could not be loaded", group=group_id, error=str(error))
            loading.set_exception(KafkaError(Code.COORDINATOR_NOT_AVAILABLE, str(error)))
            loading.exception()  # there may be nobody left to retrieve it
        else:
            snapshot = None if row is None else _snapshot(row)
            self._coordinator.load(group_id, snapshot, now=self._runtime.awake_ms())
            self._execute_effects()
            loading.set_result(None)
        finally:
            del self._loading[group_id]
            if not loading.done():
                loading.cancel()

    async def _save(self, persist: Persist, earlier: asyncio.Task[None] | None) -> None:
        snapshot = persist.snapshot
        if earlier is not None and not earlier.done():
            await asyncio.wait([earlier])
        try:
            if self._closed:  # the next service may exist already, with the catalog's state
                raise self._closed_error()
            await self._catalog.submit(
                PutGroup(
                    group=snapshot.group_id,
                    generation=snapshot.generation,
                    protocol_type=snapshot.protocol_type,
                    protocol=snapshot.protocol_name,
                    leader=snapshot.leader,
                    member_ids=[member.member_id for member in snapshot.members],
                    members=encode_members(snapshot.members),
                    state=GroupState.STABLE if snapshot.members else GroupState.EMPTY,
                    now=Millis(self._runtime.now()),
                ),
                here=True,
            )
            ok = True
        except HeadraceError as error:
            ok = False
            log.warning("group could not be stored", group=snapshot.group_id, error=str(error))
        finally:
            if self._saving.get(snapshot.group_id) is asyncio.current_task():
                del self._saving[snapshot.group_id]
        self._coordinator.persisted(snapshot.group_id, persist.ticket, ok=ok, now=self._runtime.awake_ms())
        self._execute_effects()

    async def _start_to_delete(self, group_id: str) -> asyncio.Future[Code]:
        while (saving := self._saving.get(group_id)) is not None:
            await asyncio.wait([saving])  # otherwise the group would be stored after its deletion
        await self._load(group_id)
        deletion: asyncio.Future[Code] = asyncio.get_running_loop().create_future()
        code = self._coordinator.delete(group_id)
        if code is Code.NONE:
            self._runtime.spawn(self._delete(group_id, deletion))
        else:
            deletion.set_result(code)
        return deletion

    async def _delete(self, group_id: str, deletion: asyncio.Future[Code]) -> None:
        code = Code.COORDINATOR_NOT_AVAILABLE
        try:
            if self._closed:
                raise self._closed_error()
            (code,) = await self._catalog.submit(DeleteGroups(groups=[group_id]), here=True)
        except HeadraceError as error:
            code = self._refusal(error, "delete", group_id)
        finally:
            self._coordinator.deleted(group_id)
            if not deletion.done():
                deletion.set_result(code)

    async def _stored_groups(self) -> AsyncIterator[GroupRow]:
        after = ""
        while True:
            last = after
            rows: Sequence[GroupRow] = await self._catalog.query(
                lambda reader: reader.groups.page(after=last, limit=_PAGE)  # noqa: B023  # awaited in this round
            )
            for row in rows:
                yield row
            if len(rows) < _PAGE:
                return
            after = rows[-1].group

    def _refusal(self, error: HeadraceError, what: str, group_id: str) -> Code:
        if error.code in _FOR_CLIENTS:
            return error.code
        log.warning("group change could not be stored", group=group_id, change=what, error=str(error))
        return Code.COORDINATOR_NOT_AVAILABLE


def _snapshot(row: GroupRow) -> GroupSnapshot:
    members: tuple[StoredMember, ...] = ()
    try:
        members = decode_members(row.members)
    except msgspec.DecodeError as error:
        # The generation is kept, and members start over, as they would after their sessions ended.
        log.error("group's members are unreadable", group=row.group, error=str(error))
    return GroupSnapshot(
        group_id=row.group,
        generation=row.generation,
        protocol_type=row.protocol_type,
        protocol_name=row.protocol,
        leader=row.leader,
        members=members,
    )


def make_service(*, runtime: Runtime, catalog: Catalog, limits: GroupLimits) -> GroupService:
    """The group service of a node, with member ids made unique by uuids."""
    coordinator = Coordinator(limits=limits, new_suffix=lambda: str(uuid4()))
    return GroupService(runtime=runtime, catalog=catalog, coordinator=coordinator)
