"""What links tell one node of homes elsewhere: where clients reach them, and which link passes writes on to them.

`Pullers` keeps it up to date with the catalog and with what sources tell; Produce asks it by way of `Forwarding`. Made
before both, so that neither needs the other.
"""

from collections.abc import Sequence
from typing import Final, Protocol

from headrace.base.ids import StreamNumber
from headrace.catalog.link_config import matches
from headrace.catalog.rows import PAUSED, LinkRow
from headrace.partitions.home_check import HomeAddresses
from headrace.partitions.topic import Topic

MOST_TOLD: Final = 3
"""Addresses of a home that a refused producer is told."""


class Pulling(Protocol):
    """A link that runs on this node."""

    @property
    def source_cluster(self) -> str:
        """Its source's cluster id; empty until the source has told it."""


class HomeLinks:
    """Which links of this node lead to homes elsewhere. Empty until the links are looked up for the first time."""

    def __init__(self) -> None:
        self.is_known = False
        """The catalog's links have been looked up."""
        self.addresses = HomeAddresses()
        """Where clients reach the clusters that links lead to."""
        self._by_stream: dict[StreamNumber, list[LinkRow]] = {}
        """Those that pass on writes."""
        self._running: dict[str, Pulling] = {}

    def looked_up(self, links: Sequence[tuple[LinkRow, StreamNumber]]) -> None:
        """These are all links that the catalog has, with the numbers of their streams."""
        self.addresses.replace(
            {
                link.config.source_cluster: ", ".join(link.config.source[:MOST_TOLD])
                for link, _ in links
                if link.config.source_cluster
            }
        )
        self._by_stream = {}
        for link, number in links:
            if link.config.forward_writes:
                self._by_stream.setdefault(number, []).append(link)
        self.is_known = True

    def began(self, name: str, pulling: Pulling) -> None:
        """A link runs on this node from now on."""
        self._running[name] = pulling

    def ended(self, name: str) -> None:
        """A link no longer runs on this node."""
        self._running.pop(name, None)

    def passes_on(self, topic: Topic) -> LinkRow | None:
        """The link that passes on writes to this copy, and leads to its home, if it is not paused."""
        home = topic.home
        if home is None:
            return None
        for link in self._by_stream.get(StreamNumber(topic.stream_number), ()):
            running = self._running.get(link.name)
            cluster = link.config.source_cluster or (running.source_cluster if running is not None else "")
            if link.state != PAUSED and cluster == home.cluster and matches(link.config.topics, topic.name):
                return link
        return None
