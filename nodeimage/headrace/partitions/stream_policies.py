"""Conversion of a stream's policy from and to the fields of admin calls, with checks. Pure.

msgspec already has type information for both target classes, as the decoder in `catalog.commands` contains them.
"""

from typing import Final

import msgspec

from headrace.base.errors import Code, KafkaError
from headrace.catalog.policy import PolicyChanges, StreamPolicy
from headrace.catalog.rows import StreamRow
from headrace.partitions.topic_configs import MAX_PARTITIONS, checked

MAX_DESCRIPTION: Final = 1000


class PolicyFields(PolicyChanges, frozen=True, forbid_unknown_fields=True):
    """The fields of a policy in an admin call; those that are None are not set."""


def policy_from(fields: PolicyFields) -> StreamPolicy:
    """A new stream's policy: the given fields, and defaults for the others. Raises KafkaError (INVALID_CONFIG)."""
    return msgspec.convert(_given(fields), StreamPolicy)


def changes_from(fields: PolicyFields) -> PolicyChanges:
    """The changes for an AlterStream command. Raises KafkaError (INVALID_CONFIG)."""
    return msgspec.convert(_given(fields), PolicyChanges)


def stream_shown(row: StreamRow) -> dict[str, object]:
    """A stream as fields of an answer: path, policy, numbers of topics and partitions, time of creation (ms)."""
    return {
        "path": row.path,
        **msgspec.structs.asdict(row.policy),
        "topics": row.topics,
        "partitions": row.partitions,
        "created_ms": row.created,
    }


def _given(fields: PolicyFields) -> dict[str, object]:
    given = {name: value for name, value in msgspec.structs.asdict(fields).items() if value is not None}
    for name, value in given.items():
        if (fault := _fault(name, value)) is not None:
            raise KafkaError(Code.INVALID_CONFIG, f"{name} cannot be {value!r:.100}: {fault}")
    return given


def _fault(name: str, value: object) -> str | None:
    """What is wrong with a field's value; None if nothing. Texts and limits follow Kafka's topic configs."""
    match name, value:
        case "ttl_ms", int(ttl) if not 0 <= ttl < 2**63:
            return "allowed are milliseconds from 1 on, or 0 for ever"
        case "retention_bytes", int(size) if not (size == -1 or 1 <= size < 2**63):
            return "allowed are bytes from 1 on, or -1 for no limit"
        case "default_partitions", int(count) if not 1 <= count <= MAX_PARTITIONS:
            return f"allowed are 1 to {MAX_PARTITIONS}"
        case "description", str(text) if len(text) > MAX_DESCRIPTION:
            return f"at most {MAX_DESCRIPTION} characters are allowed"
        case (("max_message_bytes" | "timestamp_type" | "compression"), _):
            try:
                checked(_KAFKA_NAMES[name], str(value))
            except KafkaError as error:
                return str(error)
    return None


_KAFKA_NAMES: Final = {
    "max_message_bytes": "max.message.bytes",
    "timestamp_type": "message.timestamp.type",
    "compression": "compression.type",
}
