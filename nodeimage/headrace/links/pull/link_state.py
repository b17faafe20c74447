"""A link on one node: what it does next. A pure state machine: events and the time go in, effects come out.

    Connecting -> Running <-> Paused        Failed: the source refuses, or lacks the stream; tried again, seldom

A node pulls those partitions that it leads itself. It listens to the change feeds of all of the source's nodes; what
becomes of a partition that changed is in partition_pulls.py, what is fetched in fetch_plan.py. When a feed begins anew
(`reset`), the source's topics are listed, and all partitions led by that node are looked at again.

Invariants: a partition is fetched at most once at a time, and not again before what came is appended, since a batch
appended behind one that was refused would hide the gap. What the source has and we do not is in a queue, under way,
blocked with a reason and a time, or waits for another link. What is asked for and not committed stays within the byte
budget. Topics take turns.
While nothing happens at the source there is nothing under way but one poll of each of its nodes, and no timer.

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
from headrace.links.source.source import LEAST_WAIT_MS, Changes, SourceTopic, TopicPartition

DEFAULTS = Limits()


class Phase(Enum):
    """As `link show` says it, but that a running link is CatchingUp or CaughtUp there."""

    CONNECTING = "Connecting"
    RUNNING = "Running"
    PAUSED = "Paused"
    FAILED = "Failed"


class LinkState:
    """See above. Every event may make effects due: ask for `effects` after it."""

    def __init__(
        self,
        *,
        now: float,
        random: Callable[[], float],
        limits: Limits = DEFAULTS,
        throttle: int = 0,
        on_phase: Callable[[Phase, Phase, float], None] = lambda _left, _entered, _seconds: None,
    ) -> None:
        """`random`: uniform in [0, 1). `throttle`: bytes a second, 0 for no bound. `on_phase` is told of each change
        of the phase: which it leaves and enters, and for how many seconds it was in the former."""
        self._on_phase = on_phase
        self.limits = limits
        self.phase = Phase.CONNECTING
        self.since = now
        """When the phase began."""
        self.reason = ""
        """Why it is not running, or the last thing that went wrong with the source."""
        self.interruptions = 0
        """Rises when all that is under way (but appends) is to be broken off: nothing that comes of it may be told."""
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
        """It was listed once: what is not among the pulls lacked nothing when the source was last heard of."""

    # --- the link as a whole

    def greeted(self, now: float, nodes: Iterable[NodeId]) -> None:
        """The source answered, and has these nodes."""
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
        """The source did not answer; `refused`: it did, and there is nothing to be had before somebody changes that."""
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
        """Do nothing until `resume`."""
        self._interrupt(now)
        self._enter(Phase.PAUSED, now)

    def resume(self, now: float) -> None:
        """Go on where it was."""
        if self.phase is Phase.PAUSED:
            self._enter(Phase.CONNECTING, now)
            self._greet_at = now

    def lost(self, now: float, reason: str) -> None:
        """The connection as a whole is gone, and with it all that was under way."""
        if self.phase is not Phase.PAUSED:
            self._interrupt(now)
            self._enter(Phase.CONNECTING, now)
            self.reason = reason
            self._greet_failures += 1
            self._greet_at = now + self._pause(self._greet_failures)

    def relist(self, now: float) -> None:
        """What other links pulled may be ours now: all partitions of all nodes are looked at again."""
        self._list.want(now, self.feeds)

    @property
    def trouble(self) -> bool:
        """The source, or one of its nodes, cannot be reached."""
        return self.phase is not Phase.RUNNING or any(feed.poll_failures for feed in self.feeds.values())

    @property
    def is_listed(self) -> bool:
        """All partitions of the source have been looked at, and met where they had to be, since its feeds began."""
        return not self._list.wanted and not self.pulls.has_unmet

    # --- the source's nodes

    def changed(self, now: float, node: NodeId, changes: Changes) -> None:
        """A poll of a node's feed was answered."""
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
        """A poll came to nothing."""
        self.reason = reason
        feed = self.feeds.get(node)
        if feed is not None:
            feed.polling = False
            feed.wait_ms = LEAST_WAIT_MS
            feed.poll_failures += 1
            feed.poll_at = now + self._pause(feed.poll_failures)
            self._greet_at = min(self._greet_at, feed.poll_at)

    def met(self, now: float, node: NodeId, answers: Iterable[Met]) -> None:
        """An effect `Meet` is done."""
        feed = self.feeds.get(node)
        if feed is not None:
            feed.works()
            feed.meeting = False
        self.pulls.met(now, answers)

    def not_met(self, now: float, node: NodeId, partitions: Iterable[TopicPartition], reason: str) -> None:
        """An effect `Meet` came to nothing."""
        feed = self.feeds.get(node)
        if feed is not None:
            feed.meeting = False
        self._node_failed(now, node, reason)
        self.pulls.not_met(now, partitions, reason)

    def fetch_failed(self, now: float, number: int, reason: str) -> None:
        """An effect `Fetch` came to nothing."""
        node = self.fetching.failed(now, number, reason)
        if node is not None:
            self._node_failed(now, node, reason)

    def listed(self, now: float, topics: Sequence[SourceTopic], after: str | None) -> None:
        """An effect `ListTopics` is done. `after`: where to go on, None at the end."""
        for topic in topics:
            for index, leader in enumerate(topic.leaders):
                if leader in self._list.nodes or leader not in self.feeds:
                    self.pulls.may_have_changed(now, TopicPartition(topic.topic_id, index), leader)
        self._list.came(now, after)

    def not_listed(self, now: float, reason: str) -> None:
        """An effect `ListTopics` came to nothing."""
        self.reason = reason
        self._list.failed(now, self._pause)

    # --- what to do now

    def effects(self, now: float) -> list[Effect]:
        """What is to be done now; each is under way from now on, until an event says what came of it."""
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
        """When to ask for `effects` again if nothing happens until then; None: never. Follows a call of `effects`."""
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
        """A list is wanted, no page is under way, and what the last ones brought has been looked at."""
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
        """After so many failures in a row; drawn, so that links and nodes do not come back all at once."""
        longest = pause_s(failures - 1, first_s=self.limits.first_pause_s, longest_s=self.limits.longest_pause_s)
        return longest * (0.5 + 0.5 * self._random())

    def _interrupt(self, now: float) -> None:
        """Nothing is under way any more; what was waits again."""
        self.interruptions += 1
        self._greeting = self._list.under_way = False
        self.fetching.interrupted(now)
        for feed in self.feeds.values():
            feed.interrupted()
        self.pulls.interrupted()

    def _node_failed(self, now: float, node: NodeId, reason: str) -> None:
        """Leave it alone for a while. Somebody else may lead by now what waits for it."""
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
    """How far the source's topics have been listed, and for which nodes."""

    __slots__ = ("_again", "_failures", "after", "at", "nodes", "under_way")

    def __init__(self) -> None:
        self.nodes: set[NodeId] = set()
        """Their partitions are looked at."""
        self.after: str | None = None
        self.at = 0.0
        self.under_way = False
        """A page is being asked for."""
        self._again: set[NodeId] = set()
        """Nodes for which it has to be done again from the first topic on."""
        self._failures = 0

    @property
    def wanted(self) -> bool:
        return bool(self.nodes)

    def want(self, now: float, nodes: Iterable[NodeId]) -> None:
        """List all topics, for these nodes too."""
        if self.after is None and not self.under_way:
            if not self.nodes:
                self.at = now
            self.nodes.update(nodes)
        else:
            self._again.update(nodes)

    def came(self, now: float, after: str | None) -> None:
        """A page came."""
        self.under_way = False
        self._failures = 0
        self.after = after
        self.at = now
        if after is None:
            self.nodes, self._again = self._again, set()

    def failed(self, now: float, pause: Callable[[int], float]) -> None:
        """A page could not be had."""
        self.under_way = False
        self._failures += 1
        self.at = now + pause(self._failures)
