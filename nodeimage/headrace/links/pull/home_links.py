"""What one node knows from its links about homes elsewhere: the clusters' addresses for clients, and the links that
forward writes.

`Pullers` keeps this up to date with the catalog and with what sources report; Produce reads it through `Forwarding`. It
is created before both, so that neither depends on the other.
"""

from collections.abc import Sequence
from typing import Final, Protocol

from headrace.base.ids import StreamNumber
from headrace.catalog.link_config import matches
from headrace.catalog.rows import PAUSED, LinkRow
from headrace.partitions.home_check import HomeAddresses
from headrace.partitions.topic import Topic

MAX_TOLD: Final = 3
"""The maximum number of addresses of a home that a refused producer is given."""


class Pulling(Protocol):
    """A link that runs on this node."""

    @property
    def source_cluster(self) -> str:
        """The source's cluster id; empty until the source has reported it."""


class HomeLinks:
    """The links of this node that lead to homes elsewhere. Empty until the first look-up of links."""

    def __init__(self) -> None:
        self.is_known = False
        """Whether the catalog's links have been looked up."""
        self.addresses = HomeAddresses()
        """The addresses, for clients, of the clusters that links lead to."""
        self._by_stream: dict[StreamNumber, list[LinkRow]] = {}
        """Links that forward writes, by stream."""
        self._running: dict[str, Pulling] = {}

    def looked_up(self, links: Sequence[tuple[LinkRow, StreamNumber]]) -> None:
        """Take in all links of the catalog, with the numbers of their streams."""
        self.addresses.replace(
            {
                link.config.source_cluster: ", ".join(link.config.source[:MAX_TOLD])
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
        """Record that a link runs on this node."""
        self._running[name] = pulling

    def ended(self, name: str) -> None:
        """Record that a link no longer runs on this node."""
        self._running.pop(name, None)

    def forwarding_link(self, topic: Topic) -> LinkRow | None:
        """The link that forwards writes on this copy to its home, if there is one and it is not paused."""
        home = topic.home
        if home is None:
            return None
        for link in self._by_stream.get(StreamNumber(topic.stream_number), ()):
            running = self._running.get(link.name)
            cluster = link.config.source_cluster or (running.source_cluster if running is not None else "")
            if link.state != PAUSED and cluster == home.cluster and matches(link.config.topics, topic.name):
                return link
        return None
