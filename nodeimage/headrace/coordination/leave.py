"""The effect of a LeaveGroup on a group: a member leaves, or an id that was handed out is no longer awaited.

Semantics of Apache Kafka 3.9 (handleLeaveGroup), KIP-345 (an operator removes static members by instance id).
"""

from headrace.base.errors import Code
from headrace.coordination.group import Group
from headrace.coordination.messages import Departure


def leave(group: Group, departure: Departure, *, now: int) -> Code:
    """Remove one member of the request; returns its code."""
    member_id = departure.member_id
    if not member_id and departure.instance_id is not None:
        member_id = group.members.member_id_of(departure.instance_id) or ""
    elif group.pending.forget(member_id):
        group.complete_join_if_all(now)
        return Code.NONE
    code = group.identify(member_id, departure.instance_id)
    member = group.members.get(member_id)
    if code is Code.NONE and member is not None:
        group.remove(member, f"member {member_id} leaves: {departure.reason or 'no reason given'}", now)
    return code
