"""Refusals that several APIs share."""

from typing import Final

from headrace.base.errors import Code, KafkaError

NO_TRANSACTIONS: Final = "transactions are not supported yet: use a producer without transactional.id"

NOT_ADMINISTRATOR: Final = {
    "error_code": int(Code.CLUSTER_AUTHORIZATION_FAILED),
    "error_message": "administrators of the cluster alone may do this: its access expression `admin` says who they are",
}


def check_group_id(group_id: str) -> None:
    """Raises KafkaError(INVALID_GROUP_ID) for the empty id, which only cursors may have."""
    if not group_id:
        raise KafkaError(Code.INVALID_GROUP_ID, "the group id is empty")
