"""Refusals that several APIs share."""

from collections.abc import Mapping
from typing import Final

from headrace.base.errors import Code, HeadraceError, KafkaError
from headrace.partitions.authorizer import Authorizer
from headrace.partitions.caller import Caller
from headrace.partitions.lookups import refusal
from headrace.security.access_rules import Permission

NO_TRANSACTIONS: Final = "transactions are not supported yet: use a producer without transactional.id"

NO_ERROR: Final = {"error_code": int(Code.NONE), "error_message": None}

_NOT_ADMINISTRATOR: Final = {
    "error_code": int(Code.CLUSTER_AUTHORIZATION_FAILED),
    "error_message": "only administrators of the cluster may do this: the cluster's access expression `admin` says "
    "who they are",
}


class NotAuthenticated(HeadraceError):
    """A request that is not allowed before or during authentication."""

    code = Code.ILLEGAL_SASL_STATE


def administrator_refusal(authorizer: Authorizer, caller: Caller, *, api: str) -> Mapping[str, object] | None:
    """The error for a client that is not an administrator of the cluster, which the audit records; None if the client
    is one."""
    return None if authorizer.allows(caller, Permission.ADMIN, api=api) else _NOT_ADMINISTRATOR


def excess_refusal(count: int, *, most: int, rule: str) -> Mapping[str, object] | None:
    """The error for a request of more than `most` items; None if it has no more. `rule`: the message, such as "alter at
    most {} users"."""
    return refusal(KafkaError(Code.INVALID_REQUEST, rule.format(most))) if count > most else None


def check_group_id(group_id: str) -> None:
    """Raises KafkaError(INVALID_GROUP_ID) for the empty group id, which is valid only for committed offsets."""
    if not group_id:
        raise KafkaError(Code.INVALID_GROUP_ID, "the group id is empty")
