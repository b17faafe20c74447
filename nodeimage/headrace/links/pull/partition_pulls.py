"""The partitions of a link on one node, and the next step of each. Part of the pure state machine link_state.py.

    LOOK up our copy -> LOCATE its leader -> MEET the leader -> DUE: FETCH, append -> IDLE until it changes again

Responsible for each partition's status and queue: it is in one queue, or in progress, or BLOCKED with a reason and a
time, or it WAITS for a time, since another link may deliver the missing records. After LOOK it is met again before it
is fetched, since the last meeting compared the source with the copy's former state.
Memory is proportional to what changes: a partition is tracked from its first change on; of those that are up to date
only the `idle_kept` newest are remembered.
"""

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from headrace.base.errors import Code
from headrace.base.ids import NodeId, Offset
from headrace.links.pull.effects import FillGap, Locate, LookUp, LookUpResult, Met
from headrace.links.pull.limits import Limits
from headrace.links.pull.partition_pull import WAITS_AGAIN, Pull, Status
from headrace.links.pull.source_feed import SourceFeed
from headrace.links.source.source import NO_NODE, NO_OFFSET, SourceTopic, TopicPartition

LED_ELSEWHERE: Final = frozenset({Code.NOT_LEADER_OR_FOLLOWER, Code.LEADER_NOT_AVAILABLE, Code.REPLICA_NOT_AVAILABLE})
FENCED: Final = frozenset({Code.FENCED_LEADER_EPOCH, Code.UNKNOWN_LEADER_EPOCH})
GONE: Final = frozenset({Code.UNKNOWN_TOPIC_ID, Code.UNKNOWN_TOPIC_OR_PARTITION})
_LATER: Final = frozenset({Status.BLOCKED, Status.WAITS})
MAX_LOOKUPS: Final = 2
"""Pages looked up at the same time."""

Queue = OrderedDict[TopicPartition, None]


class Pulls:
    """All tracked partitions of one link. `feeds`: the source's nodes, as link_state.py keeps them."""

    def __init__(self, limits: Limits, feeds: Mapping[NodeId, SourceFeed], pause: Callable[[int], float]) -> None:
        """`pause`: the seconds to wait after a number of failures in a row."""
        self.all: dict[TopicPartition, Pull] = {}
        self.unknown_nodes = False
        """Whether an unknown node leads a partition; cleared by the caller that asks for the source's nodes."""
        self._limits = limits
        self._feeds = feeds
        self._pause = pause
        self._look: Queue = OrderedDict()
        self._looking = 0
        self._locate: Queue = OrderedDict()
        self._locating: tuple[TopicPartition, ...] = ()
        self._fill: Queue = OrderedDict()
        self._idle: Queue = OrderedDict()
        self._blocked: list[tuple[float, int, TopicPartition]] = []
        self._serial = 0

    # --- changes

    def heard(self, now: float, at: TopicPartition, node: NodeId, high_watermark: Offset) -> None:
        """Handle that `node` leads the partition, and has everything below `high_watermark`."""
        pull = self.all.get(at)
        if pull is None:
            if high_watermark <= 0:
                return
            pull = self._track(at)
        pull.record_high_watermark(high_watermark, now)
        self._led_by(now, pull, node)

    def may_have_changed(self, now: float, at: TopicPartition, leader: NodeId = NO_NODE) -> None:
        """Have the partition met, to find out how far the source is."""
        pull = self.all.get(at) or self._track(at)
        pull.must_meet = True
        self._led_by(now, pull, leader)

    def _track(self, at: TopicPartition) -> Pull:
        pull = self.all[at] = Pull(at)
        self._look[at] = None
        return pull

    def _led_by(self, now: float, pull: Pull, node: NodeId) -> None:
        moved = node not in (NO_NODE, pull.leader)
        if moved:
            pull.leader = node
            pull.ask = NO_NODE
            pull.forget_meeting()
        if pull.status is Status.IDLE or (moved and pull.status in (Status.LOCATE, Status.MEET, Status.DUE)):
            self.go_on(now, pull)

    def touched(self, now: float, at: TopicPartition, *, track: bool = True) -> None:
        """Handle that the copy has changed (it is new, or its leader, roll or home changed): look it up again.

        `track`: look it up even if it is not tracked or is up to date; without `track`, such a partition is forgotten.
        """
        pull = self.all.get(at)
        if pull is None:
            if track:
                self.may_have_changed(now, at)
        elif pull.status is Status.IDLE and not track:
            self.forget(at)  # looked up again when it changes
        elif pull.status in WAITS_AGAIN or pull.status is Status.APPENDING:
            pull.stale = True
        else:
            self.set(pull, Status.LOOK)

    def forget(self, at: TopicPartition) -> None:
        """Stop tracking a partition that is no longer pulled here. Results of steps in progress are ignored."""
        self.all.pop(at, None)
        for queue in (self._look, self._locate, self._fill, self._idle):
            queue.pop(at, None)

    # --- steps

    def looked_up(self, now: float, answers: Iterable[LookUpResult]) -> None:
        """Handle the end of an effect `LookUp`."""
        self._looking -= 1
        for answer in answers:
            pull = self.all.get(answer.at)
            if pull is None or pull.status is not Status.LOOKING:
                continue
            if pull.stale:
                self.set(pull, Status.LOOK)
            elif not answer.pulled:
                self.forget(answer.at)
            elif answer.reason:
                self.fail(now, pull, answer.reason)
            else:
                pull.next = answer.next
                pull.limit = answer.limit
                pull.share = answer.share
                pull.must_meet = pull.must_meet or answer.lacks
                if answer.next > pull.waits_at:
                    pull.waited = False
                pull.record_commit(answer.next, now)
                self.go_on(now, pull)

    def located(self, now: float, topics: Iterable[SourceTopic]) -> None:
        """Handle the end of an effect `Locate`. Missing topics do not exist at the source."""
        found = {topic.topic_id: topic.leaders for topic in topics}
        for pull in self._end_of_locating():
            leaders = found.get(pull.at.topic_id)
            if leaders is None or pull.at.partition >= len(leaders):
                self._gone(now, pull)
                continue
            pull.leader = leaders[pull.at.partition]
            if pull.leader in self._feeds:
                self.go_on(now, pull)
                continue
            self.unknown_nodes = self.unknown_nodes or pull.leader != NO_NODE
            self.fail(now, pull, "it has no leader at the source")

    def not_located(self, now: float, reason: str) -> None:
        """Handle the failure of an effect `Locate`."""
        for pull in self._end_of_locating():
            self.fail(now, pull, reason)

    def _end_of_locating(self) -> list[Pull]:
        asked, self._locating = self._locating, ()
        found = [pull for at in asked if (pull := self.all.get(at)) is not None]
        return [pull for pull in found if pull.status is Status.LOCATING]

    def met(self, now: float, answers: Iterable[Met]) -> None:
        """Handle the end of an effect `Meet`."""
        for answer in answers:
            pull = self.all.get(answer.at)
            if pull is None or pull.status is not Status.MEETING:
                continue
            if answer.code is not Code.NONE:
                self.refused_by_node(now, pull, answer.code, answer.reason or answer.code.name)
            elif answer.reason:
                self.fail(now, pull, answer.reason)
            else:
                pull.record_meeting(answer.leader_epoch)
                pull.record_high_watermark(answer.high_watermark, now)
                ends = NO_OFFSET != answer.empty_from <= pull.next < answer.high_watermark and not pull.stale
                if ends and self._end_is_empty(now, pull, answer.high_watermark):
                    continue
                if not pull.is_behind:
                    pull.failures = 0
                    pull.reason = ""
                self.go_on(now, pull)

    def _end_is_empty(self, now: float, pull: Pull, high_watermark: Offset) -> bool:
        """Handle that the source has no more records below its high watermark. True if the copy must skip to `limit`,
        to be home from there on."""
        if pull.limit != NO_OFFSET and high_watermark >= pull.limit:
            pull.log_start = pull.limit
            self.set(pull, Status.JUMP)
            return True
        pull.skip_to(high_watermark, now)
        return False

    def not_met(self, now: float, partitions: Iterable[TopicPartition], reason: str) -> None:
        """Handle the failure of an effect `Meet`."""
        for at in partitions:
            pull = self.all.get(at)
            if pull is not None and pull.status is Status.MEETING:
                self.fail_at_node(now, pull, reason)

    def appended(self, now: float, at: TopicPartition, end: Offset, following: Offset) -> None:
        """Handle that the fetched records are in the copy, which ends at `end`; the next fetch begins at
        `following`."""
        pull = self.all.get(at)
        if pull is not None and pull.status is Status.APPENDING:
            pull.record_append(end, following, now)
            pull.failures = 0
            pull.reason = ""
            self.go_on(now, pull)

    def refused(self, now: float, at: TopicPartition, reason: str) -> None:
        """Handle that the fetched records could not be appended and were dropped: retry after a pause."""
        pull = self.all.get(at)
        if pull is not None and pull.status is Status.APPENDING:
            self.fail(now, pull, reason)

    def outdated(self, at: TopicPartition) -> None:
        """Handle that the fetched records were dropped, since the copy has changed since they were requested."""
        pull = self.all.get(at)
        if pull is not None and pull.status is Status.APPENDING:
            self.set(pull, Status.LOOK)

    def committed(self, now: float, at: TopicPartition, offset: Offset) -> None:
        """Handle that everything below `offset` is committed here."""
        pull = self.all.get(at)
        if pull is None:
            return
        behind_s = pull.record_commit(offset, now)
        if behind_s is not None and (feed := self._feeds.get(pull.leader)) is not None:
            feed.copied(behind_s)

    def gap(self, now: float, pull: Pull, log_start: Offset) -> None:
        """Skip to `log_start`, where the source's log begins, unless another link may have the records before it."""
        if pull.gap_at != pull.next:
            pull.gap_at, pull.gap_since = pull.next, now
        if pull.share.chosen or now - pull.gap_since >= self._limits.gap_s:
            pull.log_start = log_start
            self.set(pull, Status.JUMP)
        else:
            self.fail(now, pull, f"the source begins at {log_start}, and another link may have earlier records")

    def gap_filled(self, now: float, at: TopicPartition, reason: str = "") -> None:
        """Handle the end of an effect `FillGap`, or its failure with a `reason`."""
        pull = self.all.get(at)
        if pull is not None and pull.status is Status.FILLING_GAP:
            if reason:
                self.fail(now, pull, reason)
            else:
                self.set(pull, Status.LOOK)

    # --- what comes next

    def go_on(self, now: float, pull: Pull) -> None:
        """Choose the next step of a partition that has none in progress."""
        if pull.stale or pull.next == NO_OFFSET:
            self.set(pull, Status.LOOK)
        elif not pull.must_meet and not pull.is_behind:
            pull.ask = NO_NODE
            pull.waited = False
            self.set(pull, Status.IDLE)
        elif pull.is_behind and pull.share.patience_s and not pull.waited:
            pull.waited, pull.waits_at = True, pull.next
            self._wait(pull, Status.WAITS, until=now + pull.share.patience_s)
        elif pull.leader not in self._feeds:
            self.set(pull, Status.LOCATE)
        elif pull.must_meet or not pull.met:
            self.set(pull, Status.MEET)
        else:
            self.set(pull, Status.DUE)

    def set(self, pull: Pull, status: Status, *, first: bool = False) -> None:
        """Queue the partition for a status; `first`: at the head of the due ones.

        A step MEET or DUE may have been meant for another node: the present leader is met first, or located if it is
        unknown.
        """
        at = pull.at
        if status is Status.DUE and not pull.met:
            status = Status.MEET
        node = pull.ask if status is Status.DUE and pull.ask in self._feeds else pull.leader
        if status in (Status.MEET, Status.DUE) and node not in self._feeds:
            status = Status.LOCATE
        for queue in (self._look, self._locate, self._fill, self._idle):
            queue.pop(at, None)
        pull.status = status
        match status:
            case Status.LOOK:
                pull.stale = False
                pull.next = NO_OFFSET
                pull.forget_meeting()  # its home may be another now, and the source may not know
                self._look[at] = None
            case Status.LOCATE:
                self._locate[at] = None
            case Status.MEET:
                self._feeds[node].meet[at] = None
            case Status.DUE:
                self._feeds[node].due.add(at, first=first)
            case Status.JUMP:
                self._fill[at] = None
            case Status.IDLE:
                self._idle[at] = None
                if len(self._idle) > self._limits.idle_kept:
                    self.forget(next(iter(self._idle)))

    def fail(self, now: float, pull: Pull, reason: str) -> None:
        """Handle a failure: retry after a pause."""
        pull.failures += 1
        self.block(pull, reason, until=now + self._pause(pull.failures))

    def fail_at_node(self, now: float, pull: Pull, reason: str) -> None:
        """Handle that its node does not answer: retry after a pause, as it may have another leader by then."""
        pull.leader = pull.ask = NO_NODE
        pull.forget_meeting()
        self.fail(now, pull, reason)

    def block(self, pull: Pull, reason: str, *, until: float) -> None:
        """Do nothing with it before `until`."""
        pull.reason = reason
        self._wait(pull, Status.BLOCKED, until=until)

    def _wait(self, pull: Pull, status: Status, *, until: float) -> None:
        pull.retry_at = until
        self.set(pull, status)
        self._serial += 1
        heapq.heappush(self._blocked, (until, self._serial, pull.at))

    def refused_by_node(self, now: float, pull: Pull, code: Code, reason: str, hint: NodeId = NO_NODE) -> None:
        """Handle that a node of the source refused a meeting or fetch. `hint`: the leader, according to that node."""
        pull.forget_meeting()
        pull.ask = NO_NODE
        if code in GONE:
            self._gone(now, pull)
            return
        if code in LED_ELSEWHERE:
            pull.leader = hint
        pull.failures += 1
        if pull.failures == 1 and (code in FENCED or code in LED_ELSEWHERE):
            pull.must_meet = True
            self.go_on(now, pull)
        else:
            self.block(pull, reason, until=now + self._pause(pull.failures))

    def _gone(self, now: float, pull: Pull) -> None:
        """Handle that the source does not know the topic, no longer or not yet: one of its nodes may be a moment
        behind."""
        pull.failures += 1
        pause = min(self._limits.gone_pause_s, self._limits.first_pause_s * 4.0 ** min(pull.failures, 20))
        self.block(pull, "gone at the source", until=now + pause)

    # --- nodes

    def node_failed(self, node: NodeId, reason: str, *, until: float) -> None:
        """Block until `until` the partitions that wait for this node; they may have another leader by then."""
        for pull in self.all.values():
            if pull.status in (Status.MEET, Status.DUE) and node in (pull.leader, pull.ask):
                pull.leader = pull.ask = NO_NODE
                pull.forget_meeting()
                self.block(pull, reason, until=until)

    def node_left(self, node: NodeId) -> None:
        """Handle that the source no longer has this node. Results of steps in progress there are ignored."""
        for pull in self.all.values():
            if node in (pull.leader, pull.ask):
                pull.leader = pull.ask = NO_NODE
                pull.forget_meeting()
                if pull.status in (Status.MEET, Status.DUE, Status.MEETING, Status.FETCHING):
                    self.set(pull, Status.LOCATE)

    def interrupted(self) -> None:
        """Queue again the partitions whose steps in progress were cancelled."""
        self._looking = 0
        self._locating = ()
        for pull in self.all.values():
            again = WAITS_AGAIN.get(pull.status)
            if again is not None:
                self.set(pull, Status.LOOK if pull.stale else again)

    # --- what is due

    def wake(self, now: float) -> None:
        """Look up again the waiting partitions whose time has come."""
        while self._blocked and self._blocked[0][0] <= now:
            at = heapq.heappop(self._blocked)[2]
            pull = self.all.get(at)
            if pull is not None and pull.status in _LATER and pull.retry_at <= now:
                pull.must_meet = True
                self.set(pull, Status.LOOK)

    @property
    def wake_at(self) -> float | None:
        """When the next waiting partition is due."""
        return self._blocked[0][0] if self._blocked else None

    @property
    def has_unmet(self) -> bool:
        """Whether the source's state of some partition is not known yet. Scans all partitions."""
        return any(pull.must_meet and pull.status not in _LATER for pull in self.all.values())

    @property
    def busy(self) -> bool:
        """Whether more partitions would only queue for their look-up."""
        return len(self._look) >= MAX_LOOKUPS * self._limits.page

    def questions(self) -> list[LookUp | Locate | FillGap]:
        """The look-ups, locate requests and gap fills to begin now."""
        out: list[LookUp | Locate | FillGap] = []
        while self._look and self._looking < MAX_LOOKUPS:
            self._looking += 1
            out.append(LookUp(self._take_page(self._look, Status.LOOKING)))
        if self._locate and not self._locating:
            self._locating = self._take_page(self._locate, Status.LOCATING)
            out.append(Locate(tuple({at.topic_id: None for at in self._locating})))
        while self._fill:
            pull = self.all[self._fill.popitem(last=False)[0]]
            pull.status = Status.FILLING_GAP
            out.append(FillGap(pull.at, pull.log_start))
        return out

    def _take_page(self, queue: Queue, status: Status) -> tuple[TopicPartition, ...]:
        taken: list[TopicPartition] = []
        while queue and len(taken) < self._limits.page:
            at = queue.popitem(last=False)[0]
            self.all[at].status = status
            taken.append(at)
        return tuple(taken)

    def to_meet(self, feed: SourceFeed) -> tuple[TopicPartition, ...]:
        """A page of partitions to meet at this node."""
        page: list[TopicPartition] = []
        while feed.meet and len(page) < self._limits.page:
            at = feed.meet.popitem(last=False)[0]
            pull = self.all.get(at)
            if pull is not None and pull.status is Status.MEET and pull.leader == feed.node:
                pull.status = Status.MEETING
                page.append(at)
        return tuple(page)

    def next_due(self, feed: SourceFeed) -> Pull | None:
        """The next partition to fetch from this node."""
        while feed.due:
            pull = self.all.get(feed.due.take())
            if pull is not None and pull.status is Status.DUE and feed.node in (pull.leader, pull.ask):
                return pull
        return None
