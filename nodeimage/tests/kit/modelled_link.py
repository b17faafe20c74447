"""A link's state machine, driven by hand against a model of the source."""

import dataclasses
import random
from collections.abc import Sequence

from headrace.base.errors import Code
from headrace.base.ids import Home, LeaderEpoch, NodeId, Offset
from headrace.links.pull.effects import (
    Arrived,
    Connect,
    Effect,
    Fetch,
    FillGap,
    ListTopics,
    Locate,
    LookUp,
    LookUpResult,
    Meet,
    Met,
    Poll,
)
from headrace.links.pull.limits import Limits
from headrace.links.pull.link_state import LinkState
from headrace.links.pull.pull_choice import Share
from headrace.links.source.source import Changes, FeedPlace, SourceTopic, TopicPartition

RECORD = 100
"""Bytes of a record; each record is a batch."""

LIMITS = Limits(
    budget_bytes=2000, fetch_bytes=800, partition_bytes=300, fetch_partitions=3, page=2, idle_kept=3, gone_pause_s=5.0
)


def topic(number: int) -> bytes:
    return number.to_bytes(16, "big")


@dataclasses.dataclass
class SourcePartition:
    leader: NodeId
    epoch: int = 1
    end: int = 0
    log_start: int = 0


class ModelSource:
    """The state of the source, and its nodes' feeds."""

    def __init__(self, topics: int, partitions: int, nodes: int) -> None:
        self.nodes = [NodeId(number) for number in range(nodes)]
        self.runs = dict.fromkeys(self.nodes, 0)
        self.serials = dict.fromkeys(self.nodes, 0)
        self.feeds: dict[NodeId, dict[TopicPartition, int]] = {node: {} for node in self.nodes}
        self.partitions = {
            TopicPartition(topic(number), index): SourcePartition(self.nodes[(number + index) % nodes])
            for number in range(topics)
            for index in range(partitions)
        }

    def note(self, at: TopicPartition) -> None:
        node = self.partitions[at].leader
        self.serials[node] += 1
        self.feeds[node][at] = self.serials[node]

    def produce(self, at: TopicPartition, count: int) -> None:
        self.partitions[at].end += count
        self.note(at)

    def move(self, at: TopicPartition, node: NodeId, *, by_roll: bool) -> None:
        self.partitions[at].leader = node
        self.partitions[at].epoch += 1
        if by_roll:
            self.note(at)
        else:
            self.begin_run(node)

    def join(self) -> NodeId:
        """A new node, which leads nothing yet."""
        node = NodeId(len(self.nodes))
        self.nodes.append(node)
        self.runs[node] = 0
        self.serials[node] = 0
        self.feeds[node] = {}
        return node

    def begin_run(self, node: NodeId) -> None:
        self.runs[node] += 1
        self.serials[node] = 0
        self.feeds[node] = {}

    def changes(self, node: NodeId, since: FeedPlace | None) -> Changes | None:
        """The changes since then. None: the poll continues to wait."""
        place = FeedPlace(str(self.runs[node]), self.serials[node])
        if since is None or since.run != place.run:
            return Changes(place, True, [], [], [])
        changed = [
            (at, Offset(self.partitions[at].end))
            for at, serial in self.feeds[node].items()
            if serial > since.serial and self.partitions[at].leader == node
        ]
        return Changes(place, False, changed, [], []) if changed else None

    def topics(self, ids: Sequence[bytes] | None = None) -> list[SourceTopic]:
        found: dict[bytes, list[NodeId]] = {}
        for at, partition in sorted(self.partitions.items()):
            found.setdefault(at.topic_id, []).append(partition.leader)
        return [
            SourceTopic(str(topic_id), topic_id, len(leaders), {}, Home(0, "s"), "s", leaders)
            for topic_id, leaders in found.items()
            if ids is None or topic_id in ids
        ]


class Driver:
    """Carries out effects against the models, on command."""

    def __init__(self, source: ModelSource, *, limits: Limits = LIMITS, throttle: int = 0) -> None:
        self.now = 0.0
        self.source = source
        self.state = LinkState(now=0.0, random=random.Random(1).random, limits=limits, throttle=throttle)
        self.own = dict.fromkeys(source.partitions, 0)
        self.not_ours: set[TopicPartition] = set()
        self.patience = dict.fromkeys(source.partitions, 0.0)
        self.chosen = True
        self.lacking: set[TopicPartition] = set()
        self.homes = dict.fromkeys(source.partitions, 0)
        """The homes on the target's side, as the catalog currently has them."""
        self.looked_up: dict[TopicPartition, int] = {}
        """The home of a partition when it was last looked up."""
        self.met_for: dict[TopicPartition, int | None] = {}
        """The home for which its source was last found to fit."""
        self.under_way: list[Effect] = []
        self.to_append: dict[TopicPartition, tuple[int, int, int, int]] = {}
        """Partition -> (next offset for which it was fetched, records, bytes, home under which they are appended)."""
        self.uncommitted: list[tuple[TopicPartition, int, int]] = []
        self.interruptions = 0
        self.fetched_bytes = 0
        self.begin()

    def begin(self) -> None:
        if self.state.interruptions != self.interruptions:
            self.interruptions = self.state.interruptions
            self.under_way.clear()
        self.under_way += self.state.effects(self.now)
        assert not self.state.effects(self.now), "effects are told once"

    def answers(self, effect: Effect) -> bool:
        return not isinstance(effect, Poll) or self.source.changes(effect.node, effect.since) is not None

    def succeed(self, effect: Effect) -> None:
        self.under_way.remove(effect)
        match effect:
            case Connect():
                self.state.greeted(self.now, self.source.nodes)
            case Poll(node, since, _):
                changes = self.source.changes(node, since)
                assert changes is not None
                self.state.changed(self.now, node, changes)
            case ListTopics(after):
                page = [each for each in self.source.topics() if after is None or each.name > after][:2]
                self.state.listed(self.now, page, page[-1].name if len(page) == 2 else None)
            case LookUp(partitions):
                self.looked_up.update((at, self.homes[at]) for at in partitions)
                self.state.pulls.looked_up(
                    self.now,
                    [
                        LookUpResult(
                            at,
                            at not in self.not_ours,
                            Offset(self.own[at]),
                            share=Share(self.patience[at], self.chosen),
                            lacks=at in self.lacking,
                        )
                        for at in partitions
                    ],
                )
            case Locate(topic_ids):
                self.state.pulls.located(self.now, self.source.topics(topic_ids))
            case Meet(node, partitions):
                self.state.met(self.now, node, [self.meet(node, at) for at in partitions])
            case FillGap(at, log_start):
                self.own[at] = max(self.own[at], log_start)
                self.state.pulls.gap_filled(self.now, at)
            case Fetch():
                self.fetch(effect)
        self.begin()

    def meet(self, node: NodeId, at: TopicPartition) -> Met:
        partition = self.source.partitions[at]
        if partition.leader != node:
            return Met(at, Code.NOT_LEADER_OR_FOLLOWER)
        self.met_for[at] = self.looked_up.get(at)
        return Met(at, Code.NONE, LeaderEpoch(partition.epoch), Offset(partition.end))

    def fetch(self, effect: Fetch) -> None:
        left = effect.max_bytes
        arrived = []
        came = {}
        for at, offset, epoch, most in effect.wanted:
            partition = self.source.partitions[at]
            if partition.leader != effect.node:
                arrived.append(Arrived(at, Code.NOT_LEADER_OR_FOLLOWER))
            elif partition.epoch != epoch:
                arrived.append(Arrived(at, Code.FENCED_LEADER_EPOCH))
            elif not partition.log_start <= offset <= partition.end:
                arrived.append(Arrived(at, Code.OFFSET_OUT_OF_RANGE, log_start=Offset(partition.log_start)))
            else:
                records = min(partition.end - offset, max(min(most, left) // RECORD, 1 if left > 0 else 0))
                left -= records * RECORD
                came[at] = (offset, records, records * RECORD)
                arrived.append(Arrived(at, Code.NONE, records * RECORD, Offset(partition.end)))
        self.fetched_bytes += sum(each[2] for each in came.values())
        for at in self.state.fetching.arrived(self.now, effect.number, arrived):
            assert at not in self.to_append, "fetched again before it was appended"
            self.to_append[at] = (*came[at], self.looked_up[at])

    def fail(self, effect: Effect) -> None:
        self.under_way.remove(effect)
        match effect:
            case Connect():
                self.state.not_greeted(self.now, "away", refused=False)
            case Poll(node, _, _):
                self.state.poll_failed(self.now, node, "away")
            case ListTopics():
                self.state.not_listed(self.now, "away")
            case LookUp(partitions):
                self.state.pulls.looked_up(
                    self.now, [LookUpResult(at, True, reason="the catalog is away") for at in partitions]
                )
            case Locate():
                self.state.pulls.not_located(self.now, "away")
            case Meet(node, partitions):
                self.state.not_met(self.now, node, partitions, "away")
            case FillGap(at):
                self.state.pulls.gap_filled(self.now, at, "the disk is full")
            case Fetch(number):
                self.state.fetch_failed(self.now, number, "away")
        self.begin()

    def append(self, at: TopicPartition, *, refuse: bool = False) -> None:
        offset, records, count, home = self.to_append.pop(at)
        if refuse:
            self.state.fetching.released(count)
            self.state.pulls.refused(self.now, at, "corrupt")
        elif self.own[at] != offset or self.homes[at] != home:
            self.state.fetching.released(count)
            self.state.pulls.outdated(at)
        else:
            assert self.met_for[at] == home, "appended under a home for which its source was not met"
            self.own[at] += records
            self.uncommitted.append((at, self.own[at], count))
            self.state.pulls.appended(self.now, at, Offset(self.own[at]), Offset(self.own[at]))
        self.begin()

    def commit(self) -> None:
        at, offset, count = self.uncommitted.pop(0)
        self.state.fetching.released(count)
        self.state.pulls.committed(self.now, at, Offset(offset))
        self.begin()

    def step(self) -> bool:
        """Carry out every possible effect; False: only waiting is left."""
        if self.to_append:
            self.append(next(iter(self.to_append)))
        elif self.uncommitted:
            self.commit()
        else:
            ready = next((each for each in self.under_way if self.answers(each)), None)
            if ready is None:
                return False
            self.succeed(ready)
        return True

    def run_until_idle(self) -> None:
        """Carry everything out, and let time pass, until nothing is left to do."""
        for _ in range(20_000):
            if self.step():
                continue
            wake_at = self.state.wake_at(self.now)
            if wake_at is None:
                return
            assert wake_at >= self.now
            self.now = max(self.now + 1e-6, wake_at)
            self.begin()
        raise AssertionError("it never comes to rest")

    def behind(self) -> list[TopicPartition]:
        return [
            at
            for at, partition in self.source.partitions.items()
            if at not in self.not_ours and self.own[at] < partition.end
        ]


def running(topics: int = 1, partitions: int = 1, nodes: int = 1, **options: object) -> Driver:
    driver = Driver(ModelSource(topics, partitions, nodes), **options)  # type: ignore[arg-type]
    driver.run_until_idle()
    return driver


def fetched_as_a_new_node_leads() -> tuple[Driver, Fetch, TopicPartition]:
    """A driver with a pending fetch of two partitions; a node that the link does not know leads the second."""
    driver = running(partitions=2, limits=dataclasses.replace(LIMITS, fetch_bytes=300))
    first, at = driver.source.partitions
    driver.source.produce(first, 3)
    driver.source.produce(at, 1)
    fetch = until_fetch(driver)
    assert [wanted.at for wanted in fetch.wanted] == [first, at]
    driver.source.begin_run(NodeId(0))
    driver.source.move(at, driver.source.join(), by_roll=True)
    for kind in (Poll, ListTopics):
        driver.now += LIMITS.poll_every_s
        driver.begin()
        driver.succeed(next(effect for effect in driver.under_way if isinstance(effect, kind)))
    assert driver.state.pulls.all[at].leader not in driver.state.feeds
    return driver, fetch, at


def until_fetch(driver: Driver) -> Fetch:
    while not (found := [effect for effect in driver.under_way if isinstance(effect, Fetch)]):
        assert driver.step()
    return found[0]
