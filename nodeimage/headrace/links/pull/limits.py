"""Bounds of one link on one node."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds, bytes and counts."""

    budget_bytes: int = 32 << 20
    """Asked for or come, and not committed here."""
    fetch_bytes: int = 8 << 20
    """Of one fetch."""
    partition_bytes: int = 1 << 20
    """Of one partition in one fetch, where many are due."""
    fetch_partitions: int = 500
    fetches_per_node: int = 2
    page: int = 500
    """Partitions or topics in one question."""
    idle_kept: int = 20_000
    """Partitions that are up to date, and remembered."""
    first_pause_s: float = 0.2
    longest_pause_s: float = 15.0
    gone_pause_s: float = 60.0
    """A topic that stays gone at the source is looked for again so often."""
    gap_s: float = 10.0
    """For so long what the source lacks is awaited from other links, where there are any."""
    poll_every_s: float = 0.002
    """Polls of one node begin no closer together: what changes meanwhile comes with one answer."""
    longest_poll_every_s: float = 0.040
    """The same of a node of which records take long until they are committed here."""
    greet_every_s: float = 10.0
    """How old may be what we know of the source's nodes; looked at when a poll ends, so that no timer is needed."""

    @property
    def least_bytes(self) -> int:
        """A fetch of fewer bytes is not worth its while."""
        return min(self.partition_bytes // 4, self.budget_bytes)
