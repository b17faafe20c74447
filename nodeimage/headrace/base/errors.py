"""One tree of errors, each with the Kafka error code that a client receives.

A message says what happened, to what, and what to do. Codes and names are Kafka's
(org.apache.kafka.common.protocol.Errors); only those that Headrace uses are listed.
"""

from collections.abc import Iterable
from enum import IntEnum
from typing import ClassVar


class Code(IntEnum):
    """Kafka's error codes."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    INVALID_FETCH_SIZE = 4
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    OFFSET_METADATA_TOO_LARGE = 12
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    DELEGATION_TOKEN_AUTH_DISABLED = 61
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    INVALID_UPDATE_VERSION = 95
    FEATURE_UPDATE_FAILED = 96
    UNKNOWN_TOPIC_ID = 100
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    MISMATCHED_ENDPOINT_TYPE = 114


def code_of(number: int) -> Code:
    """The code for a number that was received; UNKNOWN_SERVER_ERROR for an unknown one, such as a newer version's."""
    try:
        return Code(number)
    except ValueError:
        return Code.UNKNOWN_SERVER_ERROR


class HeadraceError(Exception):
    """The base of all errors that Headrace raises on purpose. `code` is the error code sent to a Kafka client."""

    code: ClassVar[Code] = Code.UNKNOWN_SERVER_ERROR


class KafkaError(HeadraceError):
    """An error with a given Kafka error code, for cases without a class of their own."""

    def __init__(self, code: Code, message: str = "") -> None:
        super().__init__(message or code.name)
        self.code = code  # type: ignore[misc]  # overrides the class variable for this instance


class MalformedRequest(HeadraceError):
    """Bytes that are not the request they claim to be. The connection is closed."""

    code = Code.INVALID_REQUEST


class CorruptBatch(HeadraceError):
    """A record batch whose checksum or structure is wrong."""

    code = Code.CORRUPT_MESSAGE


class UnsupportedBatch(HeadraceError):
    """A record batch of magic 0 or 1; only magic 2 is stored."""

    code = Code.UNSUPPORTED_FOR_MESSAGE_FORMAT


class InvalidBatch(HeadraceError):
    """A record batch that is intact but breaks a rule (empty, wrong deltas, control batch from a client)."""

    code = Code.INVALID_RECORD


class InvalidRecords(HeadraceError):
    """A record batch with records that break a rule of their topic. `records`: their (index in the batch, reason)."""

    code = Code.INVALID_RECORD

    def __init__(self, message: str, records: Iterable[tuple[int, str]]) -> None:
        super().__init__(message)
        self.records = tuple(records)


class StorageFull(HeadraceError):
    """The disk has no room, or the node's quota is used up. Reads continue; writes resume when there is room."""

    code = Code.KAFKA_STORAGE_ERROR


class OutOfDescriptors(StorageFull, OSError):
    """The process or its machine has no file descriptor left, or no memory for one. Nothing is lost: the operation is
    put off, as on a full disk. Also an OSError, like its cause, but it never means that a disk has failed."""


class SyncFailed(HeadraceError):
    """A sync failed, and the next one may succeed although the data is not on the disk. The process must end."""

    code = Code.KAFKA_STORAGE_ERROR


class CorruptLog(HeadraceError):
    """Bytes below the synced mark that fail their checksum."""

    code = Code.KAFKA_STORAGE_ERROR


class LostTail(CorruptLog):
    """A log ends before the position up to which it was synced. The rest of the log is intact."""


class TrimmedLog(CorruptLog):
    """The requested part of a log has been trimmed: the rest of the log is intact."""


class FolderRefused(HeadraceError):
    """A data folder that this process must not use: it belongs to another cluster, has a newer format, or is in use."""


class StoreSetBack(HeadraceError):
    """The cluster store is an older copy than this node has seen before: its content is not acted on."""

    code = Code.FENCED_LEADER_EPOCH


class NewerFormat(FolderRefused):
    """Intact data in a format that this version does not know: it is never skipped or cut, and the process ends."""
