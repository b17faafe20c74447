"""The limits of one link on one node."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits in seconds (`_s`), bytes (`_bytes`) and counts."""

    budget_bytes: int = 32 << 20
    """Bytes requested or arrived that are not committed here."""
    fetch_bytes: int = 8 << 20
    """Bytes of one fetch."""
    partition_bytes: int = 1 << 20
    """Bytes of one partition in a fetch of many partitions."""
    fetch_partitions: int = 500
    fetches_per_node: int = 2
    page: int = 500
    """Partitions or topics in one request."""
    idle_kept: int = 20_000
    """Up-to-date partitions that are remembered."""
    first_pause_s: float = 0.2
    longest_pause_s: float = 15.0
    gone_pause_s: float = 60.0
    """Longest pause between two look-ups of a topic that does not exist at the source."""
    gap_s: float = 10.0
    """How long a link waits for other links, if there are any, to deliver records that its own source lacks."""
    poll_every_s: float = 0.002
    """Shortest time between the starts of two polls of one node: changes in between are reported in one answer."""
    longest_poll_every_s: float = 0.040
    """The same for a node whose records take long to be committed here."""
    greet_every_s: float = 10.0
    """Greatest age of the known list of the source's nodes; checked when a poll ends, so that no timer is needed."""

    @property
    def least_bytes(self) -> int:
        """Fewest bytes that are worth a fetch."""
        return min(self.partition_bytes // 4, self.budget_bytes)
