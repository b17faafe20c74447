"""How Metadata, DescribeCluster and DescribeGroups tell which operations a client may perform (KIP-430).

While security is off these are all that there are for the kind of resource, as in a Kafka without an authorizer; then
they are those that `authorization` allows.
"""

from collections.abc import Iterable
from typing import Final

from headrace.security.kafka_acls import AclOperation


def bits(operations: Iterable[AclOperation]) -> int:
    """As one number, a bit for each."""
    return sum(1 << operation for operation in operations)


_CONFIGS: Final = (AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS)

NOT_ASKED: Final = -(2**31)
"""What stands in an answer to a client that did not ask."""
OF_TOPICS: Final = (
    AclOperation.READ,
    AclOperation.WRITE,
    AclOperation.CREATE,
    AclOperation.DELETE,
    AclOperation.ALTER,
    AclOperation.DESCRIBE,
    *_CONFIGS,
)
OF_GROUPS: Final = (AclOperation.READ, AclOperation.DELETE, AclOperation.DESCRIBE, *_CONFIGS)
OF_THE_CLUSTER: Final = (
    AclOperation.CREATE,
    AclOperation.ALTER,
    AclOperation.DESCRIBE,
    AclOperation.CLUSTER_ACTION,
    AclOperation.IDEMPOTENT_WRITE,
    *_CONFIGS,
)
TOPIC_OPERATIONS: Final = bits(OF_TOPICS)
GROUP_OPERATIONS: Final = bits(OF_GROUPS)
CLUSTER_OPERATIONS: Final = bits(OF_THE_CLUSTER)


def told(operations: int, *, asked: bool) -> int:
    """The field of an answer: a bit for each operation (Kafka's supportedOperations), or that it was not asked for."""
    return operations if asked else NOT_ASKED
