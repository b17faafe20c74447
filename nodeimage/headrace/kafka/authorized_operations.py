"""The authorized operations that Metadata, DescribeCluster and DescribeGroups report to a client (KIP-430).

While security is off, all operations of the resource's kind are reported, as in Kafka without an authorizer; otherwise
those that `authorization` allows.
"""

from collections.abc import Iterable
from typing import Final

from headrace.security.kafka_acls import AclOperation


def bits(operations: Iterable[AclOperation]) -> int:
    """The operations as one number, with one bit for each."""
    return sum(1 << operation for operation in operations)


_CONFIGS: Final = (AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS)

NOT_ASKED: Final = -(2**31)
"""The field's value in an answer to a client that did not request the operations."""
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
    """The field of an answer: one bit for each operation (Kafka's supportedOperations), or `NOT_ASKED`."""
    return operations if asked else NOT_ASKED
