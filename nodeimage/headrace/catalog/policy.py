"""The policy of a stream, and changes to it."""

import msgspec


class StreamPolicy(msgspec.Struct, frozen=True, omit_defaults=True):
    """The settings of all topics of a stream, unless a topic's configs override them."""

    ttl_ms: int = 0
    """Time to live of a record; 0 = for ever."""
    retention_bytes: int = -1
    """Limit of bytes per partition, as Kafka's retention.bytes; -1 = no limit."""
    default_partitions: int = 1
    auto_create: bool = True
    """Whether topics are created on first use."""
    compression: str = "producer"
    max_message_bytes: int = 1_048_588
    timestamp_type: str = "CreateTime"
    description: str = ""
    volume: str = "default"
    """The volume whose containers take the stream's new partitionlets."""


class PolicyChanges(msgspec.Struct, frozen=True, omit_defaults=True):
    """Fields of StreamPolicy to change; None leaves a field as it is."""

    ttl_ms: int | None = None
    retention_bytes: int | None = None
    default_partitions: int | None = None
    auto_create: bool | None = None
    compression: str | None = None
    max_message_bytes: int | None = None
    timestamp_type: str | None = None
    description: str | None = None
    volume: str | None = None
