"""One consumer group of the classic protocol: its states and the transitions between them.

    Empty -> PreparingRebalance -> CompletingRebalance -> Stable
      ^        |   ^                    |                  |
      +--------+   +--------------------+------------------+

PreparingRebalance waits for every known member to rejoin, for the rebalance timeout at most. CompletingRebalance waits
for the leader's assignments, which are stored before any member gets one. Semantics are those of Apache Kafka 3.9
(GroupCoordinator.scala); join.py, sync.py and leave.py decide the effect of a JoinGroup, SyncGroup and LeaveGroup.

Knows nothing of the catalog, sockets or clocks: effects are added to `shared.outbox`, `now` is monotonic milliseconds.

Invariants: every token is answered once; members that wait in JoinGroup or SyncGroup do not expire, except new ones; no
assignment is answered before it is stored; the generation never decreases.
"""

import itertools
from collections.abc import Mapping

from headrace.base.errors import Code
from headrace.coordination.deadline_heap import Alarm
from headrace.coordination.members import Member, Members
from headrace.coordination.messages import (
    Answer,
    GroupState,
    Join,
    JoinResult,
    Note,
    Persist,
    SyncResult,
    Ticket,
    Token,
)
from headrace.coordination.pending_members import Pending
from headrace.coordination.shared import Shared
from headrace.coordination.snapshot import GroupSnapshot, StoredMember
from headrace.coordination.subscription import PROTOCOL_TYPE, may_name_bare
from headrace.coordination.views import as_assigned, as_joined, snapshot_of


class Group:
    """A group's state machine. Every method takes effect at once; answers are returned as effects, at once or later."""

    __slots__ = (
        "_empty_ticket",
        "_newcomer",
        "_outstanding",
        "_phase",
        "_proposed",
        "_remaining_ms",
        "_returns",
        "_sync_ticket",
        "_unsynced",
        "generation",
        "group_id",
        "members",
        "pending",
        "protocol_name",
        "protocol_type",
        "shared",
        "state",
        "stored",
        "stored_generation",
    )

    def __init__(self, group_id: str, shared: Shared) -> None:
        self.group_id = group_id
        self.shared = shared
        self.state = GroupState.EMPTY
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.members = Members()
        self.pending = Pending(shared.deadlines, owner=self, expired=self.complete_join_if_all)
        self.stored = False
        """Whether the catalog has the group, by a generation or by a committed offset."""
        self.stored_generation = 0
        """The generation by which the catalog fences commits."""
        self._phase = Alarm(self, self._phase_over)
        self._remaining_ms: int | None = None
        """By how much the initial delay may still be extended, in milliseconds. None outside of the initial delay."""
        self._newcomer = False
        """Whether a member joined during this round of the initial delay."""
        self._unsynced: set[str] = set()
        self._proposed: Mapping[str, bytes] = {}
        self._sync_ticket: Ticket | None = None
        self._empty_ticket: Ticket | None = None
        self._returns: dict[Ticket, tuple[Member, Token, JoinResult]] = {}
        self._outstanding: dict[Ticket, int] = {}
        """The generations that are being stored, by ticket."""

    # --- queries

    @property
    def idle(self) -> bool:
        """Whether nothing would be lost if the group were read from the catalog again."""
        return self.state is GroupState.EMPTY and not self.pending and not self._outstanding and self._phase.due is None

    @property
    def exists(self) -> bool:
        """Whether the group exists for observers; a group that was merely asked about does not."""
        return self.stored or self.state is not GroupState.EMPTY

    def supports(self, protocol_type: str, names: set[str]) -> bool:
        """Whether a member that offers these protocols can be in the group."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and bool(names)
        return protocol_type == self.protocol_type and self.members.all_offer_one_of(names)

    def other_stream(self, join: Join) -> str | None:
        """The default stream of a member for which a name in a subscription may mean another topic than for the joining
        member; None if all names mean the same for all members.

        Assignors know topics by their names only. If a bare name meant topics of different streams for different
        members, each member would be assigned a part of its own topic, and nobody would read the rest of either.
        """
        if join.protocol_type != PROTOCOL_TYPE:
            return None
        others = [
            member
            for member in self.members
            if member.default_stream != join.default_stream
            and member.member_id != join.member_id
            and (join.instance_id is None or member.instance_id != join.instance_id)
        ]
        offered = itertools.chain(join.protocols, *(member.protocols for member in others))
        if others and any(may_name_bare(protocol.metadata) for protocol in offered):
            return others[0].default_stream
        return None

    def identify(self, member_id: str, instance_id: str | None) -> Code:
        """NONE if the id is that of a present member; FENCED_INSTANCE_ID if another process has taken over the
        instance."""
        if instance_id is not None:
            current = self.members.member_id_of(instance_id)
            if current is None:
                return Code.UNKNOWN_MEMBER_ID
            if current != member_id:
                return Code.FENCED_INSTANCE_ID
        return Code.NONE if member_id in self.members else Code.UNKNOWN_MEMBER_ID

    # --- joining and leaving (join.py and leave.py decide)

    def admit(self, join: Join, *, member_id: str, token: Token, now: int) -> None:
        """Add a new member, which waits in JoinGroup, and start a rebalance unless one is under way."""
        member = self._make_member(
            StoredMember(
                member_id=member_id,
                instance_id=join.instance_id,
                client_id=join.client_id,
                client_host=join.client_host,
                session_timeout_ms=join.session_timeout_ms,
                rebalance_timeout_ms=join.rebalance_timeout_ms,
                protocols=join.protocols,
                assignment=b"",
                default_stream=join.default_stream,
            )
        )
        member.is_new = True
        if not self.members:
            self.protocol_type = join.protocol_type
        if self.state is GroupState.PREPARING and self._remaining_ms is not None:
            self._newcomer = True
        self.pending.forget(member_id)
        self.members.add(member)
        self.members.wait_in_join(member, token)
        self.shared.deadlines.set(member.session, now + self.shared.limits.new_member_join_timeout_ms)
        self.rebalance_unless_preparing(f"member {member_id} joins: {join.reason or 'no reason given'}", now)

    def update(self, member: Member, join: Join, token: Token) -> None:
        """Let a member rejoin, perhaps with other protocols and timeouts; it waits in JoinGroup."""
        self.members.offer(member, join.protocols)
        member.default_stream = join.default_stream
        member.session_timeout_ms = join.session_timeout_ms
        member.rebalance_timeout_ms = join.rebalance_timeout_ms
        displaced = self.members.wait_in_join(member, token)
        if displaced is not None:
            self.answer(displaced, JoinResult(code=Code.REBALANCE_IN_PROGRESS, member_id=member.member_id))

    def replace(self, member: Member, *, member_id: str, now: int) -> None:
        """Give a returning static instance its new id; requests that wait under the old id are fenced."""
        self._end_join(member, JoinResult(code=Code.FENCED_INSTANCE_ID, member_id=member.member_id))
        self._end_sync(member, SyncResult(code=Code.FENCED_INSTANCE_ID), now)
        if member.member_id in self._unsynced:
            self._unsynced.remove(member.member_id)
            self._unsynced.add(member_id)
        self.members.rename(member, member_id)
        self.touch(member, now)

    def store_return(self, member: Member, *, token: Token, result: JoinResult) -> None:
        """In a Stable group: answer a returning static member's JoinGroup once its new id is stored."""
        ticket = self._persist()
        self._returns[ticket] = (member, token, result)

    def remove(self, member: Member, reason: str, now: int) -> None:
        """Remove a member; the others rebalance."""
        self.drop(member, now)
        if self.state is GroupState.PREPARING:
            self.complete_join_if_all(now)
        else:
            self.rebalance_unless_preparing(reason, now)

    def drop(self, member: Member, now: int) -> None:
        """Remove a member without a rebalance; if it waits in JoinGroup, UNKNOWN_MEMBER_ID makes it start over."""
        self._end_join(member, JoinResult(code=Code.UNKNOWN_MEMBER_ID, member_id=""))
        self._end_sync(member, SyncResult(code=Code.UNKNOWN_MEMBER_ID), now)
        self.shared.deadlines.cancel(member.session)
        self._unsynced.discard(member.member_id)
        self.members.remove(member.member_id)

    def touch(self, member: Member, now: int) -> None:
        """Restart the member's session timeout."""
        self.shared.deadlines.set(member.session, now + member.session_timeout_ms)

    # --- the rebalance

    def rebalance_unless_preparing(self, reason: str, now: int) -> None:
        """Start a rebalance from Empty, CompletingRebalance or Stable."""
        if self.state in (GroupState.PREPARING, GroupState.DEAD):
            return
        self._end_syncs(Code.REBALANCE_IN_PROGRESS, now)
        self._unsynced.clear()
        limits, deadlines = self.shared.limits, self.shared.deadlines
        timeout = self.members.rebalance_timeout_ms
        self._newcomer = False
        if self.state is GroupState.EMPTY:
            delay = limits.initial_rebalance_delay_ms
            self._remaining_ms = max(timeout - delay, 0)
            deadlines.set(self._phase, now + delay)
        else:
            self._remaining_ms = None
            deadlines.set(self._phase, now + timeout)
        self.state = GroupState.PREPARING
        self._note("group rebalances", reason)
        self.complete_join_if_all(now)

    def complete_join_if_all(self, now: int) -> None:
        """End PreparingRebalance early if no member is missing and the initial delay is over."""
        if self.state is not GroupState.PREPARING or self._remaining_ms is not None:
            return
        if not self.pending and self.members.all_joined():
            self._complete_join(now)

    def _complete_join(self, now: int) -> None:
        for member in [m for m in self.members if m.join_token is None and m.instance_id is None]:
            self.drop(member, now)
        self._remaining_ms = None
        if self.members and not self.members.elect_joined_leader():
            # There are only static members, all silent: keep waiting until they return or their sessions end.
            self.shared.deadlines.set(self._phase, now + self.members.rebalance_timeout_ms)
            return
        self.generation += 1
        if not self.members:
            self.shared.deadlines.cancel(self._phase)
            self.state = GroupState.EMPTY
            self.protocol_name = None
            self._empty_ticket = self._persist()
            self._note("group is empty", "")
            return
        self.protocol_name = self.members.select_protocol()
        self.state = GroupState.COMPLETING
        self.shared.deadlines.set(self._phase, now + self.members.rebalance_timeout_ms)
        for member in self.members:
            member.is_new = False
            self._unsynced.add(member.member_id)
            self._end_join(member, as_joined(self, member))
            self.touch(member, now)

    def wait_for_assignments(self, member: Member, token: Token) -> None:
        """In CompletingRebalance: let the member's SyncGroup wait until the leader's assignments are stored."""
        self._unsynced.discard(member.member_id)
        displaced, member.sync_token = member.sync_token, token
        if displaced is not None:
            self.answer(displaced, SyncResult(code=Code.REBALANCE_IN_PROGRESS))

    def propose(self, assignments: Mapping[str, bytes]) -> None:
        """Store the leader's assignments; members that are left out get an empty one. Repeats are ignored while
        storing."""
        if self._sync_ticket is None:
            self._proposed = {member.member_id: assignments.get(member.member_id, b"") for member in self.members}
            self._sync_ticket = self._persist()

    def answer_assigned(self, member: Member, token: Token, now: int) -> None:
        """In Stable: answer the member's SyncGroup with its assignment."""
        self.answer(token, as_assigned(self, member))
        self.touch(member, now)
        self._unsynced.discard(member.member_id)
        self._finish_sync_phase()

    # --- storing

    def persisted(self, ticket: Ticket, *, ok: bool, now: int) -> None:
        """Note the outcome of a `Persist`."""
        if self.state is GroupState.DEAD or ticket not in self._outstanding:
            return
        generation = self._outstanding.pop(ticket)
        if ok:
            self.stored = True
            self.stored_generation = generation
        if ticket == self._sync_ticket:
            self._assign(ok=ok, now=now)
        elif ticket in self._returns:
            member, token, result = self._returns.pop(ticket)
            # A rebalance that began meanwhile answers the member itself when it completes.
            if self.state is GroupState.STABLE and member.join_token == token:
                refused = JoinResult(code=Code.COORDINATOR_NOT_AVAILABLE, member_id="")
                self._end_join(member, result if ok else refused)
                self.touch(member, now)
        elif ticket == self._empty_ticket and self.state is GroupState.EMPTY and not ok:
            self.shared.deadlines.set(self._phase, now + self.shared.limits.save_retry_ms)

    def _assign(self, *, ok: bool, now: int) -> None:
        if not ok:
            self._end_syncs(Code.COORDINATOR_NOT_AVAILABLE, now)
            self.rebalance_unless_preparing("the assignments could not be stored", now)
            return
        self._sync_ticket = None
        for member in self.members:
            member.assignment = self._proposed[member.member_id]
        self._proposed = {}
        self.state = GroupState.STABLE
        for member in self.members:
            self._end_sync(member, as_assigned(self, member), now)
        self._finish_sync_phase()
        self._note("group is stable", "")

    def _persist(self) -> Ticket:
        ticket = Ticket(next(self.shared.tickets))
        self._outstanding[ticket] = self.generation
        self.shared.outbox.append(Persist(ticket, snapshot_of(self, self._proposed)))
        return ticket

    def restore(self, snapshot: GroupSnapshot, now: int) -> None:
        """Continue from the stored state, with fresh sessions; a group above its size limit rebalances."""
        self.stored = True
        self.generation = self.stored_generation = snapshot.generation
        self.protocol_type = snapshot.protocol_type or None
        self.protocol_name = snapshot.protocol_name or None
        for stored in snapshot.members:
            member = self._make_member(stored)
            self.members.add(member)
            self.touch(member, now)
        if not self.members:
            return
        self.state = GroupState.STABLE
        if snapshot.leader in self.members:
            self.members.leader = snapshot.leader
        if len(self.members) > self.shared.limits.max_size:
            self.rebalance_unless_preparing("more members than allowed", now)

    def kill(self) -> None:
        """Mark the group, which is Empty, as being deleted. Later requests are refused."""
        assert self.state is GroupState.EMPTY
        self.pending.forget_all()
        self.shared.deadlines.cancel(self._phase)
        self.state = GroupState.DEAD

    # --- deadlines

    def _phase_over(self, now: int) -> None:
        match self.state:
            case GroupState.PREPARING if self._newcomer and self._remaining_ms:
                delay = min(self.shared.limits.initial_rebalance_delay_ms, self._remaining_ms)
                self._newcomer = False
                self._remaining_ms -= delay
                self.shared.deadlines.set(self._phase, now + max(delay, 1))
            case GroupState.PREPARING:
                self._complete_join(now)
            case GroupState.COMPLETING | GroupState.STABLE if self._unsynced:
                late = [member for member in self.members if member.member_id in self._unsynced]
                for member in late:
                    self.drop(member, now)
                self.rebalance_unless_preparing(f"{len(late)} members sent no SyncGroup", now)
            case GroupState.EMPTY:
                self._empty_ticket = self._persist()

    def _session_expired(self, member: Member, now: int) -> None:
        if not member.is_new and (member.join_token is not None or member.sync_token is not None):
            return  # it waits for an answer, which restarts the session
        self.remove(member, f"session of member {member.member_id} ended", now)

    # --- small steps

    def _make_member(self, stored: StoredMember) -> Member:
        return Member.of(stored, owner=self, expired=self._session_expired)

    def _finish_sync_phase(self) -> None:
        if not self._unsynced:
            self.shared.deadlines.cancel(self._phase)

    def _end_syncs(self, code: Code, now: int) -> None:
        """Abandon a generation whose assignments are not stored yet."""
        if self.state is GroupState.COMPLETING:
            self._sync_ticket = None
            self._proposed = {}
            for member in self.members:
                member.assignment = b""
                self._end_sync(member, SyncResult(code=code), now)

    def _end_sync(self, member: Member, result: SyncResult, now: int) -> None:
        token, member.sync_token = member.sync_token, None
        if token is not None:
            self.answer(token, result)
            self.touch(member, now)

    def _end_join(self, member: Member, result: JoinResult) -> None:
        token = self.members.end_join(member)
        if token is not None:
            self.answer(token, result)

    def answer(self, token: Token, result: JoinResult | SyncResult) -> None:
        """Answer a request."""
        self.shared.outbox.append(Answer(token, result))

    def _note(self, event: str, reason: str) -> None:
        self.shared.outbox.append(Note(self.group_id, event, reason, self.generation, len(self.members)))
