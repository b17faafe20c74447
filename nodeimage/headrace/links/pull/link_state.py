"""Decides what a link on one node does next. A pure state machine: events and the time go in, effects come out.

    Connecting -> Running <-> Paused        Failed: the source refuses, or lacks the stream; retried, seldom

A node pulls the partitions that it leads. It listens to the change feeds of all of the source's nodes; what happens to
a partition that changed is in partition_pulls.py, what is fetched in fetch_plan.py. When a feed starts over (`reset`),
the source's topics are listed, and all partitions that the feed's node leads are looked at again.

Invariants: a partition is in one fetch at a time, and is not fetched again before the answer is appended, since a batch
appended after one that was refused would hide the gap. A partition with records that are missing here is in a queue,
in progress, blocked with a reason and a time, or waits for another link. Bytes requested and not committed stay within
the byte budget. Topics take turns.
While nothing happens at the source there is only one poll of each of its nodes, and no timer.

Knows nothing of sockets, tasks, records, the catalog. `now` is any monotonic clock, in seconds.
"""

from collections.abc import Callable, Iterable, Sequence
from enum import Enum

from headrace.base.backoff import pause_s
from headrace.base.ids import NodeId
from headrace.links.pull.byte_budget import ByteRate
from headrace.links.pull.effects import Connect, Effect, ListTopics, Meet, Met, Poll
from headrace.links.pull.fetch_plan import Fetching
from headrace.links.pull.limits import Limits
from headrace.links.pull.partition_pulls import Pulls
from headrace.links.pull.source_feed import SourceFeed
from headrace.links.source.source import MIN_WAIT_MS, Changes, SourceTopic, TopicPartition

DEFAULTS = Limits()


class Phase(Enum):
    """A link's phase; in `link show`, a running link is CatchingUp or CaughtUp."""

    CONNECTING = "Connecting"
    RUNNING = "Running"
    PAUSED = "Paused"
    FAILED = "Failed"


class LinkState:
    """The state machine of one link. Every event may make effects due: call `effects` after it."""

    def __init__(
        self,
        *,
        now: float,
        random: Callable[[], float],
        limits: Limits = DEFAULTS,
        throttle: int = 0,
        on_phase: Callable[[Phase, Phase, float], None] = lambda _left, _entered, _seconds: None,
    ) -> None:
        """`random`: uniform in [0, 1). `throttle`: bytes a second, 0 for no limit. `on_phase` is called with each
        change of phase: the phase left, the phase entered, and for how many seconds it was in the former."""
        self._on_phase = on_phase
        self.limits = limits
        self.phase = Phase.CONNECTING
        self.since = now
        """When the phase began, on the clock of `now`."""
        self.reason = ""
        """Why the link is not running, or the last problem with the source."""
        self.interruptions = 0
        """Incremented when everything in progress, except appends, is to be cancelled: its results must not be
        reported."""
        self.feeds: dict[NodeId, SourceFeed] = {}
        self.pulls = Pulls(limits, self.feeds, self._pause)
        self.fetching = Fetching(limits, self.feeds, self.pulls, ByteRate(throttle, now))
        self._random = random
        self._greeting = False
        self._greet_at = now
        self._greet_failures = 0
        self._list = _List()
        self._turn = 0
        self.has_heard = False
        """Whether all partitions have been listed once: from then on a partition that is not tracked lacked nothing
        when the source was last heard from."""

    # --- the link as a whole

    def greeted(self, now: float, nodes: Iterable[NodeId]) -> None:
        """Handle that the source answered, and has these nodes."""
        nodes = set(nodes)
        self._greeting = False
        self._greet_failures = 0
        self._greet_at = now + self.limits.greet_every_s
        for node in self.feeds.keys() - nodes:
            del self.feeds[node]
            self.pulls.node_left(node)
        for node in sorted(nodes - self.feeds.keys()):
            self.feeds[node] = SourceFeed(node, now, self.limits)
        self._enter(Phase.RUNNING, now)

    def not_greeted(self, now: float, reason: str, *, refused: bool) -> None:
        """Handle that the source did not answer, or with `refused`, that it refuses until somebody changes
        something."""
        self._greeting = False
        self._greet_failures += 1
        pause = self.limits.longest_pause_s if refused else self._pause(self._greet_failures)
        self._greet_at = now + pause
        if refused or all(feed.poll_failures for feed in self.feeds.values()):
            if self.phase is Phase.RUNNING:
                self._interrupt(now)
            self._enter(Phase.FAILED if refused else Phase.CONNECTING, now)
        self.reason = reason

    def pause(self, now: float) -> None:
        """Stop all work until `resume`."""
        self._interrupt(now)
        self._enter(Phase.PAUSED, now)

    def resume(self, now: float) -> None:
        """Continue after `pause`."""
        if self.phase is Phase.PAUSED:
            self._enter(Phase.CONNECTING, now)
            self._greet_at = now

    def lost(self, now: float, reason: str) -> None:
        """Handle that the whole connection is lost, with everything in progress."""
        if self.phase is not Phase.PAUSED:
            self._interrupt(now)
            self._enter(Phase.CONNECTING, now)
            self.reason = reason
            self._greet_failures += 1
            self._greet_at = now + self._pause(self._greet_failures)

    def relist(self, now: float) -> None:
        """List all partitions of all nodes again, since this link may have to pull what other links pulled."""
        self._list.want(now, self.feeds)

    @property
    def trouble(self) -> bool:
        """Whether the source, or one of its nodes, cannot be reached."""
        return self.phase is not Phase.RUNNING or any(feed.poll_failures for feed in self.feeds.values())

    @property
    def is_listed(self) -> bool:
        """Whether all partitions of the source have been looked at, and met where necessary, since its feeds began."""
        return not self._list.wanted and not self.pulls.has_unmet

    # --- the source's nodes

    def changed(self, now: float, node: NodeId, changes: Changes) -> None:
        """Handle the answer to a poll of a node's feed."""
        feed = self.feeds.get(node)
        if feed is None:
            return
        quiet = not changes.reset and not changes.partitions
        feed.answered(now, changes.place, quiet=quiet)
        if changes.reset:
            self._list.want(now, (node,))
        for at, high_watermark in changes.partitions:
            self.pulls.heard(now, at, node, high_watermark)

    def poll_failed(self, now: float, node: NodeId, reason: str) -> None:
        """Handle a failed poll."""
        self.reason = reason
        feed = self.feeds.get(node)
        if feed is not None:
            feed.polling = False
            feed.wait_ms = MIN_WAIT_MS
            feed.poll_failures += 1
            feed.poll_at = now + self._pause(feed.poll_failures)
            self._greet_at = min(self._greet_at, feed.poll_at)

    def met(self, now: float, node: NodeId, answers: Iterable[Met]) -> None:
        """Handle the end of an effect `Meet`."""
        feed = self.feeds.get(node)
        if feed is not None:
            feed.succeeded()
            feed.meeting = False
        self.pulls.met(now, answers)

    def not_met(self, now: float, node: NodeId, partitions: Iterable[TopicPartition], reason: str) -> None:
        """Handle the failure of an effect `Meet`."""
        feed = self.feeds.get(node)
        if feed is not None:
            feed.meeting = False
        self._node_failed(now, node, reason)
        self.pulls.not_met(now, partitions, reason)

    def fetch_failed(self, now: float, number: int, reason: str) -> None:
        """Handle the failure of an effect `Fetch`."""
        node = self.fetching.failed(now, number, reason)
        if node is not None:
            self._node_failed(now, node, reason)

    def listed(self, now: float, topics: Sequence[SourceTopic], after: str | None) -> None:
        """Handle a page of an effect `ListTopics`. `after`: where the next page begins, None on the last page."""
        for topic in topics:
            for index, leader in enumerate(topic.leaders):
                if leader in self._list.nodes or leader not in self.feeds:
                    self.pulls.may_have_changed(now, TopicPartition(topic.topic_id, index), leader)
        self._list.page_arrived(now, after)

    def not_listed(self, now: float, reason: str) -> None:
        """Handle the failure of an effect `ListTopics`."""
        self.reason = reason
        self._list.failed(now, self._pause)

    # --- what to do now

    def effects(self, now: float) -> list[Effect]:
        """The effects to carry out now. Each counts as in progress until an event reports its result."""
        out: list[Effect] = []
        if self.phase is Phase.PAUSED:
            return out
        if not self._greeting and (now >= self._greet_at or self.pulls.unknown_nodes):
            self._greeting = True
            self.pulls.unknown_nodes = False
            out.append(Connect())
        if self.phase is not Phase.RUNNING:
            return out
        if not self.has_heard and self.feeds and all(feed.place is not None for feed in self.feeds.values()):
            self.has_heard = self.is_listed
        self.pulls.wake(now)
        for feed in self.feeds.values():
            if feed.may_poll(now):
                feed.polling = True
                feed.asked_at = now
                out.append(Poll(feed.node, feed.place, feed.wait_ms))
        out += self.pulls.questions()
        if self._may_list and now >= self._list.at:
            self._list.under_way = True
            out.append(ListTopics(self._list.after))
        feeds = list(self.feeds.values())
        self._turn += 1
        for place in range(len(feeds)):
            feed = feeds[(place + self._turn) % len(feeds)]
            if feed.retry_at > now:
                continue
            if feed.meet and not feed.meeting and (page := self.pulls.to_meet(feed)):
                feed.meeting = True
                out.append(Meet(feed.node, page))
            while (fetch := self.fetching.next(now, feed)) is not None:
                out.append(fetch)
        return out

    def wake_at(self, now: float) -> float | None:
        """When to call `effects` again if no event happens before; None: never. Call it after `effects`."""
        if self.phase is Phase.PAUSED:
            return None
        if self.phase is not Phase.RUNNING:
            return None if self._greeting else self._greet_at
        times = [feed.poll_at for feed in self.feeds.values() if not feed.polling]
        times += [feed.retry_at for feed in self.feeds.values() if feed.retry_at > now and (feed.meet or feed.due)]
        if self._may_list:
            times.append(self._list.at)
        if (blocked := self.pulls.wake_at) is not None:
            times.append(blocked)
        if (ready := self.fetching.ready_at(now)) is not None:
            times.append(ready)
        return min(times, default=None)

    # --- inside

    @property
    def _may_list(self) -> bool:
        """Whether a list is wanted, no page is in progress, and the partitions of earlier pages have been looked at."""
        return self._list.wanted and not self._list.under_way and not self.pulls.busy

    def _enter(self, phase: Phase, now: float) -> None:
        if self.phase is not phase:
            left, seconds = self.phase, now - self.since
            self.phase = phase
            self.since = now
            self._on_phase(left, phase, seconds)
            if phase is Phase.RUNNING:
                self.reason = ""

    def _pause(self, failures: int) -> float:
        """The pause after `failures` failures in a row, with jitter, so that links and nodes do not all return at
        once."""
        longest = pause_s(failures - 1, first_s=self.limits.first_pause_s, longest_s=self.limits.longest_pause_s)
        return longest * (0.5 + 0.5 * self._random())

    def _interrupt(self, now: float) -> None:
        """Cancel everything in progress; it is queued again."""
        self.interruptions += 1
        self._greeting = self._list.under_way = False
        self.fetching.interrupted(now)
        for feed in self.feeds.values():
            feed.interrupted()
        self.pulls.interrupted()

    def _node_failed(self, now: float, node: NodeId, reason: str) -> None:
        """Leave a node alone for a while. What waits for it may have another leader by then."""
        self.reason = reason
        feed = self.feeds.get(node)
        if feed is None or feed.retry_at > now:
            return
        feed.failures += 1
        feed.retry_at = now + self._pause(feed.failures)
        self._greet_at = min(self._greet_at, feed.retry_at)
        self.pulls.node_failed(node, reason, until=feed.retry_at)
        feed.clear()


class _List:
    """Progress of listing the source's topics, and the nodes for which they are listed."""

    __slots__ = ("_again", "_failures", "after", "at", "nodes", "under_way")

    def __init__(self) -> None:
        self.nodes: set[NodeId] = set()
        """Nodes whose partitions are looked at."""
        self.after: str | None = None
        self.at = 0.0
        self.under_way = False
        """Whether a page has been requested."""
        self._again: set[NodeId] = set()
        """Nodes for which listing must start over from the first topic."""
        self._failures = 0

    @property
    def wanted(self) -> bool:
        return bool(self.nodes)

    def want(self, now: float, nodes: Iterable[NodeId]) -> None:
        """List all topics for these nodes as well."""
        if self.after is None and not self.under_way:
            if not self.nodes:
                self.at = now
            self.nodes.update(nodes)
        else:
            self._again.update(nodes)

    def page_arrived(self, now: float, after: str | None) -> None:
        """Handle a page."""
        self.under_way = False
        self._failures = 0
        self.after = after
        self.at = now
        if after is None:
            self.nodes, self._again = self._again, set()

    def failed(self, now: float, pause: Callable[[int], float]) -> None:
        """Handle a failed page."""
        self.under_way = False
        self._failures += 1
        self.at = now + pause(self._failures)
