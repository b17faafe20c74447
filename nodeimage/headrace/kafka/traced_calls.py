"""Which of Kafka's APIs are traced as administrative calls, and the attributes of a call's span. Pure.

Only names of streams and topics are taken from a request, from fields that are known to hold them.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final

from headrace.catalog.names import full
from headrace.tracing.spans import Value
from headrace.wire.api_keys import ApiKey

TRACED: Final = frozenset(
    {
        *(ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS, ApiKey.DELETE_RECORDS, ApiKey.CREATE_PARTITIONS),
        *(
            ApiKey.DESCRIBE_CONFIGS,
            ApiKey.ALTER_CONFIGS,
            ApiKey.INCREMENTAL_ALTER_CONFIGS,
            ApiKey.LIST_CONFIG_RESOURCES,
        ),
        *(ApiKey.DESCRIBE_ACLS, ApiKey.CREATE_ACLS, ApiKey.DELETE_ACLS),
        *(ApiKey.DESCRIBE_GROUPS, ApiKey.LIST_GROUPS, ApiKey.DELETE_GROUPS, ApiKey.OFFSET_DELETE),
        *(ApiKey.ELECT_LEADERS, ApiKey.ALTER_PARTITION_REASSIGNMENTS, ApiKey.LIST_PARTITION_REASSIGNMENTS),
        *(ApiKey.ALTER_REPLICA_LOG_DIRS, ApiKey.DESCRIBE_LOG_DIRS),
        *(ApiKey.DESCRIBE_CLIENT_QUOTAS, ApiKey.ALTER_CLIENT_QUOTAS),
        *(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, ApiKey.ALTER_USER_SCRAM_CREDENTIALS),
        *(ApiKey.UPDATE_FEATURES, ApiKey.DESCRIBE_CLUSTER, ApiKey.DESCRIBE_PRODUCERS),
        *(ApiKey.DESCRIBE_TRANSACTIONS, ApiKey.LIST_TRANSACTIONS),
    }
)
"""The APIs of administrators, which are called rarely. The APIs that producers, consumers and groups call all the time
are not traced."""
MAX_COUNTED: Final = 10_000
"""Names of one request that are counted."""
_LISTS: Final = ("topics", "topic_names", "topic_partitions", "resources")
_NAMES: Final = ("name", "topic", "topic_name")
_TOPIC: Final = 2
"""The number of the resource type TOPIC (KIP-226)."""


def span_attributes_of(asked: Any, default_stream: str) -> dict[str, Value | None]:
    """The attributes of a span for a decoded request; empty if it names no topic."""
    names = list(islice(_names(asked), MAX_COUNTED))
    return {"headrace.path": full(names[0], default_stream), "headrace.paths": len(names)} if names else {}


def _names(asked: Any) -> Iterator[str]:
    for field in _LISTS:
        for each in _listed(getattr(asked, field, None)):
            if isinstance(each, str):
                yield each
            elif field == "resources":
                if getattr(each, "resource_type", None) == _TOPIC:
                    yield str(getattr(each, "resource_name", ""))
            elif name := next((found for key in _NAMES if isinstance(found := getattr(each, key, None), str)), None):
                yield name


def _listed(value: Any) -> Iterable[Any]:
    return value if isinstance(value, list | tuple) else ()
