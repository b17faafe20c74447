"""The settings of consumer groups. Names follow Kafka's `group.*` broker settings."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLimits:
    """Times in milliseconds."""

    initial_rebalance_delay_ms: int = 300
    """How long an empty group waits for more members, again for each that comes. Kafka's default is 3 s; an embedded
    node takes less, so that a first poll is quick. With 0 every member that starts makes a generation of its own."""
    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    max_size: int = 10_000
    """Members of a group, and apart from them ids handed out that have not come back."""
    new_member_join_timeout_ms: int = 300_000
    """A JoinGroup of a new member that waits longer is given up: its client may be gone without a trace."""
    save_retry_ms: int = 5_000
    """When storing an empty group failed, how long until it is tried again."""
    idle_groups: int = 10_000
    """Empty groups kept in memory; the one not used for longest is dropped first, and read from the catalog again."""
