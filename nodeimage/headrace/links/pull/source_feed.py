"""One node of the source as a link sees it: how far its change feed is read, and which partitions wait for it.
Bookkeeping of link_state.py."""

from collections import OrderedDict
from typing import Final

from headrace.base.ids import NodeId
from headrace.links.pull.fair_queue import FairQueue
from headrace.links.pull.limits import Limits
from headrace.links.source.source import MIN_WAIT_MS, FeedPlace, TopicPartition, longer_wait

_NEWEST: Final = 0.125
"""Weight of the newest value in the moving average of `_copied_s`."""


class SourceFeed:
    """A node of the source."""

    __slots__ = (
        "_copied_s",
        "_limits",
        "asked_at",
        "due",
        "every_s",
        "failures",
        "fetch_bytes",
        "fetches",
        "meet",
        "meeting",
        "node",
        "place",
        "poll_at",
        "poll_failures",
        "polling",
        "retry_at",
        "wait_ms",
    )

    def __init__(self, node: NodeId, now: float, limits: Limits) -> None:
        self.node = node
        self._limits = limits
        self._copied_s = 0.0
        self.place: FeedPlace | None = None
        self.polling = False
        self.poll_at = now
        self.asked_at = now
        self.wait_ms = MIN_WAIT_MS
        """Wait of the next poll, in milliseconds."""
        self.every_s = limits.poll_every_s
        """Shortest time between the starts of two polls, in seconds."""
        self.poll_failures = 0
        """Failed polls in a row."""
        self.failures = 0
        """Failed meetings and fetches in a row."""
        self.retry_at = 0.0
        """No partition is met or fetched there before this time."""
        self.meet: OrderedDict[TopicPartition, None] = OrderedDict()
        """Partitions to meet there."""
        self.meeting = False
        self.due = FairQueue()
        """Partitions to fetch from there."""
        self.fetches = 0
        """Fetches in progress."""
        self.fetch_bytes = limits.fetch_bytes
        """The maximum number of bytes of the next fetch. It shrinks on a connection that breaks during long answers, so
        that short ones get through."""

    def answered(self, now: float, place: FeedPlace, *, quiet: bool) -> None:
        """Handle the end of a poll; `quiet`: it reported nothing."""
        self.wait_ms = longer_wait(self.wait_ms) if quiet else MIN_WAIT_MS
        self.place = place
        self.polling = False
        self.poll_failures = 0
        self.poll_at = max(now, self.asked_at + self.every_s)

    def copied(self, seconds: float) -> None:
        """Handle that what a poll reported was committed here `seconds` after it. Polls start at twice that interval:
        where processors or disks are busy, fewer rounds with more records each cost less; elsewhere rounds stay short.
        """
        self._copied_s += (min(seconds, self._limits.longest_poll_every_s) - self._copied_s) * _NEWEST
        limits = self._limits
        self.every_s = min(max(limits.poll_every_s, 2 * self._copied_s), limits.longest_poll_every_s)

    def succeeded(self) -> None:
        """Handle that it answered a meeting or a fetch."""
        self.failures = 0
        self.retry_at = 0.0

    def interrupted(self) -> None:
        """Handle that everything in progress was cancelled."""
        self.polling = self.meeting = False
        self.fetches = 0

    def clear(self) -> None:
        """Empty its queues."""
        self.meet.clear()
        self.due.clear()

    def may_poll(self, now: float) -> bool:
        """Whether a poll is due."""
        return not self.polling and now >= self.poll_at
