"""The errors between Spark and the cluster, each with one line that says what to do."""

from headrace.base.errors import Code

RETRIABLE = frozenset(
    {
        Code.CORRUPT_MESSAGE,
        Code.UNKNOWN_TOPIC_OR_PARTITION,
        Code.LEADER_NOT_AVAILABLE,
        Code.NOT_LEADER_OR_FOLLOWER,
        Code.REQUEST_TIMED_OUT,
        Code.BROKER_NOT_AVAILABLE,
        Code.REPLICA_NOT_AVAILABLE,
        Code.COORDINATOR_LOAD_IN_PROGRESS,
        Code.COORDINATOR_NOT_AVAILABLE,
        Code.NOT_COORDINATOR,
        Code.NOT_ENOUGH_REPLICAS,
        Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        Code.KAFKA_STORAGE_ERROR,
        Code.FENCED_LEADER_EPOCH,
        Code.UNKNOWN_LEADER_EPOCH,
        Code.OFFSET_NOT_AVAILABLE,
        Code.UNSTABLE_OFFSET_COMMIT,
        Code.THROTTLING_QUOTA_EXCEEDED,
        Code.UNKNOWN_TOPIC_ID,
    }
)
"""Error codes after which the same request may succeed, perhaps on another node
(org.apache.kafka.common.errors.RetriableException).
"""


class SourceError(Exception):
    """Base of all errors that this package raises deliberately. The message is one line."""


class BadOption(SourceError, ValueError):
    """An option, a column or a combination of them that cannot work."""


class DataLoss(SourceError):
    """Records that the query should have read are gone: they expired, or they or their topic were deleted."""


class BrokerError(SourceError):
    """A node's response with a Kafka error code that is not retried, or no longer."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code

    def __reduce__(self) -> tuple[type["BrokerError"], tuple[int, str]]:
        return BrokerError, (self.code, str(self))


class Refused(SourceError):
    """The cluster rejects the credentials in the options, or is not trusted: a retry cannot succeed."""


class Unreachable(SourceError):
    """No node could be reached, or none answered, within the allowed time."""


def code_name(code: int) -> str:
    """Return Kafka's name of an error code, or its number."""
    try:
        return Code(code).name
    except ValueError:
        return f"error {code}"
