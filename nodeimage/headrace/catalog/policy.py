"""The policy of a stream, and changes of it."""

import msgspec


class StreamPolicy(msgspec.Struct, frozen=True, omit_defaults=True):
    """What holds for all topics of a stream, unless a topic's configs say otherwise."""

    ttl_ms: int = 0
    """Time to live of a record; 0 = for ever."""
    retention_bytes: int = -1
    """Per partition, as Kafka's retention.bytes; -1 = no limit."""
    default_partitions: int = 1
    auto_create: bool = True
    """Topics are made on first use."""
    compression: str = "producer"
    max_message_bytes: int = 1_048_588
    timestamp_type: str = "CreateTime"
    description: str = ""
    volume: str = "default"
    """Whose containers take the stream's new partitionlets."""


class PolicyChanges(msgspec.Struct, frozen=True, omit_defaults=True):
    """Fields of StreamPolicy to change; None leaves one as it is."""

    ttl_ms: int | None = None
    retention_bytes: int | None = None
    default_partitions: int | None = None
    auto_create: bool | None = None
    compression: str | None = None
    max_message_bytes: int | None = None
    timestamp_type: str | None = None
    description: str | None = None
    volume: str | None = None
