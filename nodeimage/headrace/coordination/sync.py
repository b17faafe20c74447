"""The effect of a SyncGroup on a group: the leader's request contains all assignments, each answer the member's own.

Semantics of Apache Kafka 3.9 (doSyncGroup), KIP-559 (the protocol is named and checked).
"""

from headrace.base.errors import Code
from headrace.coordination.group import Group
from headrace.coordination.messages import GroupState, Sync, SyncResult, Token


def sync(group: Group, request: Sync, *, token: Token, now: int) -> None:
    """Answer the request at once, or let it wait until the assignments are stored."""
    code = _check(group, request)
    member = group.members.get(request.member_id)
    if code is not Code.NONE or member is None:
        group.answer(token, SyncResult(code=code))
    elif group.state is GroupState.STABLE:
        group.answer_assigned(member, token, now)
    else:
        group.wait_for_assignments(member, token)
        if member.member_id == group.members.leader:
            group.propose(request.assignments)


def _check(group: Group, request: Sync) -> Code:
    if group.state is GroupState.DEAD:
        return Code.COORDINATOR_NOT_AVAILABLE
    code = group.identify(request.member_id, request.instance_id)
    if code is not Code.NONE:
        return code
    if request.generation != group.generation:
        return Code.ILLEGAL_GENERATION
    if request.protocol_type not in (None, group.protocol_type):
        return Code.INCONSISTENT_GROUP_PROTOCOL
    if request.protocol_name not in (None, group.protocol_name):
        return Code.INCONSISTENT_GROUP_PROTOCOL
    return Code.REBALANCE_IN_PROGRESS if group.state is GroupState.PREPARING else Code.NONE
