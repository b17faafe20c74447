"""Which operations a client may perform, as Metadata, DescribeCluster and DescribeGroups tell it (KIP-430).

There are no rights yet, so these are all that there are for the kind of resource, as in a Kafka without an authorizer.
"""

from enum import IntEnum
from typing import Final


class AclOperation(IntEnum):
    """What is done to a resource (org.apache.kafka.common.acl.AclOperation)."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


def _bits(*operations: AclOperation) -> int:
    return sum(1 << operation for operation in operations)


_CONFIGS: Final = (AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS)

NOT_ASKED: Final = -(2**31)
"""What stands in an answer to a client that did not ask."""
TOPIC_OPERATIONS: Final = _bits(
    AclOperation.READ,
    AclOperation.WRITE,
    AclOperation.CREATE,
    AclOperation.DELETE,
    AclOperation.ALTER,
    AclOperation.DESCRIBE,
    *_CONFIGS,
)
GROUP_OPERATIONS: Final = _bits(AclOperation.READ, AclOperation.DELETE, AclOperation.DESCRIBE, *_CONFIGS)
CLUSTER_OPERATIONS: Final = _bits(
    AclOperation.CREATE,
    AclOperation.ALTER,
    AclOperation.DESCRIBE,
    AclOperation.CLUSTER_ACTION,
    AclOperation.IDEMPOTENT_WRITE,
    *_CONFIGS,
)


def told(operations: int, *, asked: bool) -> int:
    """The field of an answer: a bit for each operation (Kafka's supportedOperations), or that it was not asked for."""
    return operations if asked else NOT_ASKED
