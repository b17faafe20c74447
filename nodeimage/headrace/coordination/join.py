"""The effect of a JoinGroup on a group: which members are admitted, get an id first, rebalance, or simply continue.

Semantics of Apache Kafka 3.9 (handleJoinGroup and below), KIP-345 (static members), KIP-394 (MEMBER_ID_REQUIRED),
KIP-814 (static members that skip the assignment).
"""

from headrace.base.errors import Code
from headrace.coordination.group import Group
from headrace.coordination.members import Member
from headrace.coordination.messages import UNKNOWN_MEMBER, GroupState, Join, JoinResult, Token
from headrace.coordination.views import as_joined

LONGEST_CLIENT_ID = 255
"""Characters of the client or instance id that become the beginning of a member id."""


def join(group: Group, request: Join, *, token: Token, suffix: str, now: int) -> None:
    """Answer the request at once, or let it wait. `suffix` makes a new member id unique."""
    unknown = request.member_id == UNKNOWN_MEMBER
    if not _has_room(group, request.member_id):
        member = group.members.get(request.member_id)
        if member is not None:
            group.drop(member, now)
        group.pending.forget(request.member_id)
        _refuse(group, token, Code.GROUP_MAX_SIZE_REACHED, UNKNOWN_MEMBER)
    elif group.state is GroupState.DEAD:
        _refuse(group, token, Code.COORDINATOR_NOT_AVAILABLE, request.member_id)
    elif not group.supports(request.protocol_type, {protocol.name for protocol in request.protocols}):
        _refuse(group, token, Code.INCONSISTENT_GROUP_PROTOCOL, request.member_id)
    elif other_stream := group.other_stream(request):
        _refuse(group, token, Code.INCONSISTENT_GROUP_PROTOCOL, request.member_id, other_stream=other_stream)
    elif unknown and request.instance_id is not None:
        _join_as_new_instance(group, request, token=token, suffix=suffix, now=now)
    elif unknown:
        _join_as_new(group, request, token=token, suffix=suffix, now=now)
    elif request.member_id in group.pending and request.instance_id is None:
        group.admit(request, member_id=request.member_id, token=token, now=now)
    else:
        _join_again(group, request, token=token, now=now)
    group.complete_join_if_all(now)


def _has_room(group: Group, member_id: str) -> bool:
    """Kafka's acceptJoiningMember: during a rebalance only members that have joined count, so the last to join are
    refused."""
    limit = group.shared.limits.max_size
    member = group.members.get(member_id)
    match group.state:
        case GroupState.EMPTY | GroupState.DEAD:
            return True
        case GroupState.PREPARING:
            return (member is not None and member.join_token is not None) or group.members.joining < limit
        case _:
            return member is not None or len(group.members) < limit


def _join_as_new(group: Group, request: Join, *, token: Token, suffix: str, now: int) -> None:
    member_id = f"{request.client_id[:LONGEST_CLIENT_ID]}-{suffix}"
    if not request.requires_known_member:
        group.admit(request, member_id=member_id, token=token, now=now)
    elif len(group.pending) >= group.shared.limits.max_size:
        _refuse(group, token, Code.GROUP_MAX_SIZE_REACHED, UNKNOWN_MEMBER)
    else:
        group.pending.expect(member_id, request.session_timeout_ms, now)
        _refuse(group, token, Code.MEMBER_ID_REQUIRED, member_id)


def _join_as_new_instance(group: Group, request: Join, *, token: Token, suffix: str, now: int) -> None:
    assert request.instance_id is not None
    member_id = f"{request.instance_id[:LONGEST_CLIENT_ID]}-{suffix}"
    member = group.members.get(group.members.member_id_of(request.instance_id) or "")
    if member is None:
        group.admit(request, member_id=member_id, token=token, now=now)
        return
    former_leader = group.members.leader or ""
    group.replace(member, member_id=member_id, now=now)
    group.update(member, request, token)
    if group.state is GroupState.STABLE and group.members.select_protocol() == group.protocol_name:
        result = as_joined(group, member, skip_assignment=request.can_skip_assignment and _leads(group, member))
        if not request.can_skip_assignment:
            # An old client that finds its own id as the leader's would assign again, so it gets the leader's former id.
            result = JoinResult(
                code=Code.NONE,
                member_id=member_id,
                generation=group.generation,
                protocol_type=group.protocol_type,
                protocol_name=group.protocol_name,
                leader=former_leader,
            )
        group.store_return(member, token=token, result=result)
    else:
        group.rebalance_unless_preparing(f"static member {request.instance_id} returned", now)


def _join_again(group: Group, request: Join, *, token: Token, now: int) -> None:
    code = group.identify(request.member_id, request.instance_id)
    member = group.members.get(request.member_id)
    if code is not Code.NONE or member is None:
        _refuse(group, token, code, request.member_id)
        return
    unchanged = member.protocols == request.protocols
    # In CompletingRebalance a repeated JoinGroup means that its answer was lost. In Stable the leader may rejoin
    # because it saw the topics change, so its JoinGroup forces a rebalance.
    current = group.state is GroupState.COMPLETING or (group.state is GroupState.STABLE and not _leads(group, member))
    if unchanged and current:
        group.answer(token, as_joined(group, member))
        return
    group.update(member, request, token)
    reason = f"member {member.member_id} rejoins: {request.reason or 'no reason given'}"
    group.rebalance_unless_preparing(reason, now)


def _leads(group: Group, member: Member) -> bool:
    return group.members.leader == member.member_id


def _refuse(group: Group, token: Token, code: Code, member_id: str, *, other_stream: str | None = None) -> None:
    group.answer(token, JoinResult(code=code, member_id=member_id, other_stream=other_stream))
