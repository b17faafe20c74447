"""All consumer groups of a node as one state machine: events in, effects out.

No I/O, no clock, no asyncio. Each event takes `now` (monotonic milliseconds) and takes effect at once; the actions that
it requires are returned by `take_effects()`, in order. The caller must

- load a group (`load`) before any other event for it: the coordinator raises KeyError for groups that are not loaded;
- execute each `Persist`, in order, and report it with `persisted`;
- call `tick` at `next_deadline`, or later; being late only delays deadlines.

Knows nothing of topics, committed offsets and the catalog.
"""

from collections.abc import Callable, Iterator, Sequence

from headrace.base.errors import Code
from headrace.coordination.group import Group
from headrace.coordination.join import join
from headrace.coordination.leave import leave
from headrace.coordination.limits import GroupLimits
from headrace.coordination.messages import (
    UNKNOWN_MEMBER,
    Departure,
    Effect,
    GroupState,
    GroupView,
    Join,
    JoinResult,
    Sync,
    Ticket,
    Token,
)
from headrace.coordination.shared import Shared
from headrace.coordination.snapshot import GroupSnapshot
from headrace.coordination.subscription import PROTOCOL_TYPE, full_names, subscribed_topics
from headrace.coordination.sync import sync
from headrace.coordination.views import as_described


class Coordinator:
    """The groups in memory. `new_suffix` returns what makes a member id unique (a uuid)."""

    def __init__(self, *, limits: GroupLimits, new_suffix: Callable[[], str]) -> None:
        self._shared = Shared(limits=limits)
        self._new_suffix = new_suffix
        self._groups: dict[str, Group] = {}
        self._idle: dict[str, None] = {}
        """Groups that can be dropped from memory, least recently used first."""

    def __contains__(self, group_id: str) -> bool:
        return group_id in self._groups

    def __iter__(self) -> Iterator[Group]:
        return iter(self._groups.values())

    def group(self, group_id: str) -> Group:
        """A loaded group, for reading only. Raises KeyError."""
        return self._groups[group_id]

    @property
    def next_deadline(self) -> int | None:
        """The time at which to call `tick`; None: no deadline is set."""
        return self._shared.deadlines.next()

    def take_effects(self) -> list[Effect]:
        """The effects since the last call, in order."""
        effects = list(self._shared.outbox)
        self._shared.outbox.clear()
        return effects

    # --- events

    def load(self, group_id: str, snapshot: GroupSnapshot | None, *, now: int) -> None:
        """Load a group from what the catalog stores, None if nothing. Does nothing if the group is in memory."""
        if group_id in self._groups:
            return
        group = self._groups[group_id] = Group(group_id, self._shared)
        if snapshot is not None:
            group.restore(snapshot, now)
        self._track_idle(group)

    def join(self, request: Join, *, token: Token, now: int) -> None:
        """JoinGroup. The answer is an effect, now or later."""
        limits = self._shared.limits
        group = self._groups[request.group_id]
        if not limits.min_session_timeout_ms <= request.session_timeout_ms <= limits.max_session_timeout_ms:
            group.answer(token, JoinResult(code=Code.INVALID_SESSION_TIMEOUT, member_id=request.member_id))
        elif not group.exists and not group.pending and request.member_id != UNKNOWN_MEMBER:
            group.answer(token, JoinResult(code=Code.UNKNOWN_MEMBER_ID, member_id=request.member_id))
        else:
            join(group, request, token=token, suffix=self._new_suffix(), now=now)
        self._track_idle(group)

    def sync(self, request: Sync, *, token: Token, now: int) -> None:
        """SyncGroup. The answer is an effect, now or later."""
        group = self._groups[request.group_id]
        sync(group, request, token=token, now=now)
        self._track_idle(group)

    def heartbeat(self, group_id: str, *, member_id: str, instance_id: str | None, generation: int, now: int) -> Code:
        """Heartbeat: restart the member's session timeout. Has no effects, and brings no deadline forward."""
        group = self._groups[group_id]
        code = self._check_member(group, member_id, instance_id, generation)
        if code is not Code.NONE:
            return code
        member = group.members.get(member_id)
        assert member is not None
        group.touch(member, now)
        return Code.REBALANCE_IN_PROGRESS if group.state is GroupState.PREPARING else Code.NONE

    def leave(self, group_id: str, departures: Sequence[Departure], *, now: int) -> list[Code]:
        """LeaveGroup: remove members; returns one code for each."""
        group = self._groups[group_id]
        if group.state is GroupState.DEAD:
            return [Code.COORDINATOR_NOT_AVAILABLE] * len(departures)
        codes = [leave(group, departure, now=now) for departure in departures]
        self._track_idle(group)
        return codes

    def admit_commit(
        self, group_id: str, *, member_id: str, instance_id: str | None, generation: int, now: int
    ) -> Code:
        """Whether offsets may be committed now: by a member of this generation, or by anybody if the group is empty.

        A commit restarts the member's session timeout. Has no effects, and brings no deadline forward.
        """
        group = self._groups[group_id]
        if group.state is GroupState.DEAD:
            return Code.COORDINATOR_NOT_AVAILABLE
        if generation < 0 and group.state is GroupState.EMPTY:
            return Code.NONE
        if not group.exists and not group.pending:
            return Code.ILLEGAL_GENERATION
        if generation < 0 and member_id == UNKNOWN_MEMBER and instance_id is None:
            return Code.UNKNOWN_MEMBER_ID
        code = self._check_member(group, member_id, instance_id, generation)
        if code is not Code.NONE:
            return code
        if group.state is GroupState.COMPLETING:
            return Code.REBALANCE_IN_PROGRESS
        member = group.members.get(member_id)
        assert member is not None
        group.touch(member, now)
        return Code.NONE

    def committed(self, group_id: str) -> None:
        """Note that a committed offset of the group was stored, so that the group exists now."""
        group = self._groups.get(group_id)
        if group is not None:
            group.stored = True

    def stored_generation(self, group_id: str, *, default: int) -> int:
        """The generation by which the catalog fences commits, if the group is in memory; else `default`."""
        group = self._groups.get(group_id)
        return default if group is None else group.stored_generation

    def subscribed_topics(self, group_id: str) -> set[str] | None:
        """The full names of the topics to which members are subscribed, in any protocol; None if they cannot be
        known."""
        group = self._groups[group_id]
        topics: set[str] = set()
        if group.members and group.protocol_type != PROTOCOL_TYPE:
            return None
        for member in group.members:
            for protocol in member.protocols:
                named = subscribed_topics(protocol.metadata)
                if named is None:
                    return None
                topics |= full_names(named, member.default_stream)
        return topics

    def describe(self, group_id: str) -> GroupView:
        """A group as an operator sees it; Dead if there is no such group."""
        return as_described(self._groups[group_id])

    def delete(self, group_id: str) -> Code:
        """Start to delete an empty group. After NONE the group accepts no more requests: delete it from the catalog,
        then report `deleted`."""
        group = self._groups[group_id]
        if group.state is GroupState.DEAD or not (group.exists or group.pending):
            return Code.GROUP_ID_NOT_FOUND
        if group.state is not GroupState.EMPTY:
            return Code.NON_EMPTY_GROUP
        group.kill()
        self._idle.pop(group_id, None)
        return Code.NONE

    def deleted(self, group_id: str) -> None:
        """Note the end of a deletion, successful or not; the next load of the group reads the outcome from the
        catalog."""
        group = self._groups.get(group_id)
        if group is not None and group.state is GroupState.DEAD:
            del self._groups[group_id]

    def persisted(self, group_id: str, ticket: Ticket, *, ok: bool, now: int) -> None:
        """Note the outcome of a `Persist`."""
        group = self._groups.get(group_id)
        if group is not None:
            group.persisted(ticket, ok=ok, now=now)
            self._track_idle(group)

    def tick(self, now: int) -> None:
        """Trigger all deadlines that are due."""
        while (alarm := self._shared.deadlines.pop(now)) is not None:
            alarm.ring(now)
            assert isinstance(alarm.owner, Group)
            self._track_idle(alarm.owner)

    # --- inside

    def _check_member(self, group: Group, member_id: str, instance_id: str | None, generation: int) -> Code:
        if group.state is GroupState.DEAD:
            return Code.COORDINATOR_NOT_AVAILABLE
        code = group.identify(member_id, instance_id)
        if code is Code.NONE and generation != group.generation:
            return Code.ILLEGAL_GENERATION
        return code

    def _track_idle(self, group: Group) -> None:
        """Update the list of idle groups, and drop the least recently used beyond the limit."""
        self._idle.pop(group.group_id, None)
        if group.idle:
            self._idle[group.group_id] = None
            if len(self._idle) > self._shared.limits.idle_groups:
                oldest = next(iter(self._idle))
                del self._idle[oldest], self._groups[oldest]
