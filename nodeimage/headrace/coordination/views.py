"""A group as seen by others: its members, the catalog, an operator. Changes nothing."""

from collections.abc import Mapping
from typing import Protocol

from headrace.base.errors import Code
from headrace.coordination.members import Member, Members
from headrace.coordination.messages import GroupState, GroupView, JoinedMember, JoinResult, MemberView, SyncResult
from headrace.coordination.snapshot import GroupSnapshot, StoredMember


class Viewed(Protocol):
    """The attributes of a group that its views use."""

    group_id: str
    state: GroupState
    generation: int
    protocol_type: str | None
    protocol_name: str | None
    members: Members

    @property
    def exists(self) -> bool:
        """Whether the group exists for observers."""


def as_joined(group: Viewed, member: Member, *, skip_assignment: bool = False) -> JoinResult:
    """The answer to a JoinGroup in the current generation; the leader gets all members."""
    leads = member.member_id == group.members.leader
    return JoinResult(
        code=Code.NONE,
        member_id=member.member_id,
        generation=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        leader=group.members.leader or "",
        members=_as_leader_sees(group) if leads else (),
        skip_assignment=skip_assignment,
    )


def as_assigned(group: Viewed, member: Member) -> SyncResult:
    """The answer to a SyncGroup in the current generation."""
    return SyncResult(
        code=Code.NONE,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        assignment=member.assignment,
    )


def _as_leader_sees(group: Viewed) -> tuple[JoinedMember, ...]:
    """All members with their subscriptions, in the format of the selected protocol."""
    protocol = group.protocol_name or ""
    return tuple(JoinedMember(m.member_id, m.instance_id, m.metadata(protocol)) for m in group.members)


def snapshot_of(group: Viewed, proposed: Mapping[str, bytes]) -> GroupSnapshot:
    """The group in its stored form; `proposed` are assignments that take effect once they are stored."""
    return GroupSnapshot(
        group_id=group.group_id,
        generation=group.generation,
        protocol_type=group.protocol_type or "",
        protocol_name=group.protocol_name or "",
        leader=group.members.leader or "",
        members=tuple(
            StoredMember(
                member_id=member.member_id,
                instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                session_timeout_ms=member.session_timeout_ms,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                protocols=member.protocols,
                assignment=proposed.get(member.member_id, member.assignment),
                default_stream=member.default_stream,
            )
            for member in group.members
        ),
    )


def as_described(group: Viewed) -> GroupView:
    """The group as DescribeGroups shows it, with subscriptions and assignments only if it is Stable."""
    stable = group.state is GroupState.STABLE
    protocol = (group.protocol_name or "") if stable else ""
    return GroupView(
        group_id=group.group_id,
        state=group.state if group.exists else GroupState.DEAD,
        protocol_type=group.protocol_type or "",
        protocol_name=protocol,
        members=tuple(
            MemberView(
                member_id=member.member_id,
                instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                metadata=member.metadata(protocol) if stable else b"",
                assignment=member.assignment if stable else b"",
            )
            for member in group.members
        ),
    )
