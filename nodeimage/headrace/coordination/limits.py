"""The settings of consumer groups. Names follow Kafka's `group.*` broker settings."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLimits:
    """The limits of consumer groups; times are in milliseconds."""

    initial_rebalance_delay_ms: int = 300
    """How long the first rebalance of an empty group waits for more members; extended for each that joins. Kafka's
    default is 3 s; an embedded node uses less, so that a first poll is quick. With 0, every starting member creates a
    generation."""
    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    max_size: int = 10_000
    """Members of a group, and separately ids that were handed out and have not been used yet."""
    new_member_join_timeout_ms: int = 300_000
    """After this time a new member's waiting JoinGroup is given up: its client may have vanished."""
    save_retry_ms: int = 5_000
    """Delay before storing an empty group is retried after a failure."""
    idle_groups: int = 10_000
    """Empty groups kept in memory; the least recently used is dropped first, and read from the catalog when needed."""
