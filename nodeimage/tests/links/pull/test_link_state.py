"""The link's state machine against a model of a source and a target, whatever happens in whatever order."""

import dataclasses
import random
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.base.errors import Code
from headrace.base.ids import Home, LeaderEpoch, NodeId, Offset
from headrace.links.pull import fetch_plan
from headrace.links.pull.effects import (
    Arrived,
    Connect,
    Effect,
    Fetch,
    FillGap,
    ListTopics,
    Locate,
    Looked,
    LookUp,
    Meet,
    Met,
    Poll,
)
from headrace.links.pull.limits import Limits
from headrace.links.pull.link_state import LinkState, Phase
from headrace.links.pull.partition_pull import Status
from headrace.links.pull.pull_choice import Share
from headrace.links.source.source import NO_EPOCH, NO_NODE, Changes, FeedPlace, SourceTopic, TopicPartition, Wanted

RECORD = 100
"""Bytes of a record, each a batch."""
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
    """What the source has, and its nodes' feeds."""

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
        """None: the poll goes on waiting."""
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
    """Carries out effects against the models, when told to."""

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
        """Of our side, as the catalog has them now."""
        self.looked_up: dict[TopicPartition, int] = {}
        """The home under which a partition stood when it was last looked up."""
        self.met_for: dict[TopicPartition, int | None] = {}
        """The home for which its source was last found to fit."""
        self.under_way: list[Effect] = []
        self.to_append: dict[TopicPartition, tuple[int, int, int, int]] = {}
        """Partition -> (next offset that it was fetched for, records, bytes, home under which they are appended)."""
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
                self.state.pulls.looked(
                    self.now,
                    [
                        Looked(
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
                self.state.pulls.looked(self.now, [Looked(at, True, reason="the catalog is away") for at in partitions])
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
        """Carry out whatever can be; False: nothing can be, but to wait."""
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
        """Carry everything out, and let time pass, until nothing is left to be done."""
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


class LinkMachine(RuleBasedStateMachine):
    """Anything may happen at any time; what must hold, holds; and once all is well again, everything arrives."""

    @initialize(nodes=st.integers(1, 3), throttle=st.sampled_from([0, 0, 1000]))
    def start(self, nodes: int, throttle: int) -> None:
        self.driver = Driver(ModelSource(3, 2, nodes), throttle=throttle)
        self.partitions = sorted(self.driver.source.partitions)

    @rule(which=st.integers(0, 5), count=st.integers(1, 12))
    def records_are_produced(self, which: int, count: int) -> None:
        self.driver.source.produce(self.partitions[which], count)

    @precondition(lambda self: len(self.driver.source.nodes) < 5)
    @rule(takes=st.lists(st.integers(0, 5)))
    def a_node_joins_the_source(self, takes: list[int]) -> None:
        node = self.driver.source.join()
        for which in takes:
            self.driver.source.move(self.partitions[which], node, by_roll=True)

    @rule(which=st.integers(0, 5), node=st.integers(0, 4), by_roll=st.booleans())
    def a_partition_moves_at_the_source(self, which: int, node: int, by_roll: bool) -> None:
        source = self.driver.source
        source.move(self.partitions[which], source.nodes[node % len(source.nodes)], by_roll=by_roll)

    @rule(node=st.integers(0, 4))
    def a_node_of_the_source_starts_again(self, node: int) -> None:
        self.driver.source.begin_run(self.driver.source.nodes[node % len(self.driver.source.nodes)])

    @rule(which=st.integers(0, 5))
    def old_records_go_at_the_source(self, which: int) -> None:
        partition = self.driver.source.partitions[self.partitions[which]]
        partition.log_start = (partition.log_start + partition.end) // 2

    @precondition(lambda self: any(map(self.driver.answers, self.driver.under_way)))
    @rule(choice=st.randoms(use_true_random=False), well=st.sampled_from([True, True, True, False]))
    def something_ends(self, choice: random.Random, well: bool) -> None:
        effect = choice.choice([each for each in self.driver.under_way if self.driver.answers(each)])
        (self.driver.succeed if well else self.driver.fail)(effect)

    @precondition(lambda self: self.driver.to_append)
    @rule(choice=st.randoms(use_true_random=False), refuse=st.sampled_from([False, False, True]))
    def a_batch_is_appended(self, choice: random.Random, refuse: bool) -> None:
        self.driver.append(choice.choice(sorted(self.driver.to_append)), refuse=refuse)

    @precondition(lambda self: self.driver.uncommitted)
    @rule()
    def a_batch_is_committed(self) -> None:
        self.driver.commit()

    @rule(seconds=st.floats(0, 3))
    def time_passes(self, seconds: float) -> None:
        self.driver.now += seconds
        self.driver.begin()

    @rule(steps=st.integers(1, 30))
    def much_is_done(self, steps: int) -> None:
        while steps and self.driver.step():
            steps -= 1

    @rule()
    def the_connection_is_lost(self) -> None:
        self.driver.state.lost(self.driver.now, "cut")
        self.driver.begin()

    @rule()
    def it_is_paused(self) -> None:
        self.driver.state.pause(self.driver.now)
        self.driver.begin()
        assert not self.driver.under_way

    @rule()
    def it_is_resumed(self) -> None:
        self.driver.state.resume(self.driver.now)
        self.driver.begin()

    @rule(which=st.integers(0, 5))
    def another_node_leads_the_copy(self, which: int) -> None:
        at = self.partitions[which]
        self.driver.not_ours.add(at)
        self.driver.state.pulls.touched(self.driver.now, at, track=False)
        self.driver.begin()

    @rule(which=st.integers(0, 5))
    def this_node_leads_the_copy(self, which: int) -> None:
        at = self.partitions[which]
        self.driver.not_ours.discard(at)
        self.driver.state.pulls.touched(self.driver.now, at)
        self.driver.begin()

    @rule(which=st.integers(0, 5), patience=st.sampled_from([0.0, 2.0]))
    def another_link_is_to_bring_it(self, which: int, patience: float) -> None:
        at = self.partitions[which]
        self.driver.patience[at] = patience
        self.driver.state.pulls.touched(self.driver.now, at)
        self.driver.begin()

    @rule(which=st.integers(0, 5), count=st.integers(1, 5))
    def another_link_brings_some(self, which: int, count: int) -> None:
        at = self.partitions[which]
        self.driver.own[at] = min(self.driver.own[at] + count, self.driver.source.partitions[at].end)

    @rule(which=st.integers(0, 5), cut=st.integers(0, 3))
    def the_copys_home_rises(self, which: int, cut: int) -> None:
        """`cut`: so many records are not of its history, if there are as many."""
        at = self.partitions[which]
        self.driver.homes[at] += 1
        if all(each[0] != at for each in self.driver.uncommitted):
            self.driver.own[at] = max(self.driver.own[at] - cut, 0)
        self.driver.state.pulls.touched(self.driver.now, at)
        self.driver.begin()

    @invariant()
    def no_partition_is_fetched_twice_at_the_same_time(self) -> None:
        fetched = [
            (wanted.at, effect.number)
            for effect in self.driver.under_way
            if isinstance(effect, Fetch)
            for wanted in effect.wanted
        ]
        current = [at for at, number in fetched if self.is_current(at, number)]
        assert len(current) == len(set(current))

    def is_current(self, at: TopicPartition, number: int) -> bool:
        pull = self.driver.state.pulls.all.get(at)
        return pull is not None and pull.status is Status.FETCHING and pull.fetch == number

    @invariant()
    def nothing_is_fetched_above_the_budget(self) -> None:
        budget = self.driver.state.fetching.budget
        asked = sum(effect.max_bytes for effect in self.driver.under_way if isinstance(effect, Fetch))
        held = sum(each[2] for each in [*self.driver.to_append.values(), *self.driver.uncommitted])
        assert budget.reserved == asked
        assert budget.held == held
        assert asked + held <= LIMITS.budget_bytes + RECORD * len(self.partitions)

    @invariant()
    def what_is_behind_is_waiting_or_under_way_or_blocked_with_a_reason(self) -> None:
        for pull in self.driver.state.pulls.all.values():
            if pull.status is Status.BLOCKED:
                assert pull.reason
                assert pull.retry_at <= self.driver.now + LIMITS.longest_pause_s
            if pull.status is Status.WAITS:
                assert pull.retry_at <= self.driver.now + 2.0
            if pull.status is Status.IDLE:
                assert not pull.is_behind
                assert not pull.must_meet

    def teardown(self) -> None:
        if not hasattr(self, "driver"):
            return
        driver = self.driver
        driver.now += LIMITS.greet_every_s
        driver.state.resume(driver.now)
        driver.begin()
        driver.run_until_idle()
        assert driver.behind() == []
        assert driver.state.phase is Phase.RUNNING
        assert driver.state.fetching.budget.reserved == driver.state.fetching.budget.held == 0
        assert all(isinstance(effect, Poll) for effect in driver.under_way), "idle, it only waits for changes"
        assert all(pull.lag_records() == 0 for pull in driver.state.pulls.all.values())
        assert all(pull.lag_s(driver.now) == 0 for pull in driver.state.pulls.all.values())


LinkMachine.TestCase.settings = settings(
    max_examples=100, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
)
TestLink = LinkMachine.TestCase


def running(topics: int = 1, partitions: int = 1, nodes: int = 1, **options: object) -> Driver:
    driver = Driver(ModelSource(topics, partitions, nodes), **options)  # type: ignore[arg-type]
    driver.run_until_idle()
    return driver


def test_what_the_source_has_already_arrives_and_then_what_it_gets() -> None:
    driver = Driver(ModelSource(3, 2, 2))
    for at in driver.source.partitions:
        driver.source.produce(at, 7)
    driver.run_until_idle()
    assert driver.behind() == []
    for at in driver.source.partitions:
        driver.source.produce(at, 3)
    driver.run_until_idle()
    assert driver.behind() == []


def test_a_record_of_a_partition_that_is_known_takes_a_poll_and_a_fetch() -> None:
    driver = running()
    (at,) = driver.source.partitions
    driver.source.produce(at, 1)
    driver.run_until_idle()
    driver.now += 1
    driver.source.produce(at, 1)
    (poll,) = driver.under_way
    driver.succeed(poll)
    assert [type(effect) for effect in driver.under_way] == [Poll, Fetch], "the next poll waits beside the fetch"


def test_an_idle_link_waits_for_its_polls_alone_and_needs_no_timer() -> None:
    driver = running(topics=20, partitions=3, nodes=3)
    assert [type(effect) for effect in driver.under_way] == [Poll] * 3
    assert driver.state.wake_at(driver.now) is None
    driver.now += 3600
    assert driver.state.wake_at(driver.now) is None


def test_no_more_up_to_date_partitions_are_remembered_than_the_limit() -> None:
    driver = running(topics=20, partitions=3)
    for at in driver.source.partitions:
        driver.source.produce(at, 1)
    driver.run_until_idle()
    assert driver.behind() == []
    assert len(driver.state.pulls.all) == LIMITS.idle_kept


def test_topics_take_turns_however_many_partitions_one_has() -> None:
    source = ModelSource(1, 9, 1)
    small = TopicPartition(topic(7), 0)
    source.partitions[small] = SourcePartition(source.nodes[0])
    driver = Driver(source, limits=dataclasses.replace(LIMITS, page=100, fetches_per_node=1, fetch_partitions=2))
    driver.run_until_idle()
    for at in source.partitions:
        source.produce(at, 50)
    order: list[TopicPartition] = []
    while driver.step() and small not in order:
        order += [wanted.at for effect in driver.under_way if isinstance(effect, Fetch) for wanted in effect.wanted]
    assert order.index(small) <= 1


def test_a_partition_that_never_ends_does_not_keep_the_others_waiting() -> None:
    driver = running(topics=1, partitions=3)
    hot, *others = driver.source.partitions
    for at in driver.source.partitions:
        driver.source.produce(at, 30)
    fetches = 0
    while any(driver.own[at] < 30 for at in others):
        driver.source.produce(hot, 10)
        assert driver.step()
        fetches += sum(isinstance(effect, Fetch) for effect in driver.under_way)
        assert fetches < 500
    assert driver.own[hot] > 0


def test_a_throttled_link_takes_as_long_as_its_bytes_do() -> None:
    driver = running(throttle=1000)
    (at,) = driver.source.partitions
    began = driver.now
    driver.source.produce(at, 200)
    driver.run_until_idle()
    assert driver.own[at] == 200
    assert 200 * RECORD / 1000 - 1.0 <= driver.now - began <= 200 * RECORD / 1000 + 1.0


def test_a_throttle_may_be_lifted() -> None:
    driver = running(throttle=100)
    (at,) = driver.source.partitions
    driver.source.produce(at, 200)
    driver.state.fetching.bucket.set_rate(0, driver.now)
    began = driver.now
    driver.run_until_idle()
    assert driver.now - began < 1.0


def test_a_source_that_gives_nothing_of_what_it_says_it_has_is_asked_more_and_more_seldom() -> None:
    driver = running()
    (at,) = driver.source.partitions
    driver.source.produce(at, 1)
    waits: list[float] = []
    while len(waits) < 6:
        fetch = next((each for each in driver.under_way if isinstance(each, Fetch)), None)
        if fetch is not None:
            driver.under_way.remove(fetch)
            driver.state.fetching.arrived(driver.now, fetch.number, [Arrived(at, Code.NONE, 0, Offset(1))])
            driver.begin()
            waits.append(driver.state.pulls.all[at].retry_at - driver.now)
            assert driver.state.pulls.all[at].reason
        elif not driver.step():
            wake_at = driver.state.wake_at(driver.now)
            assert wake_at is not None
            driver.now = wake_at
            driver.begin()
    assert waits[0] <= LIMITS.first_pause_s
    assert waits[5] > 10 * waits[0]
    driver.run_until_idle()
    assert driver.behind() == []


def test_answers_that_a_way_breaks_off_get_shorter_until_they_come_and_longer_again() -> None:
    driver = running()
    (at,) = driver.source.partitions
    driver.source.produce(at, 40)
    longest = LIMITS.fetch_bytes // 4
    asked: list[int] = []

    def carry_out(breaks: bool) -> None:
        for _ in range(1000):
            fetch = next((each for each in driver.under_way if isinstance(each, Fetch)), None)
            if fetch is not None:
                asked.append(fetch.max_bytes)
            if fetch is not None and breaks and fetch.max_bytes > longest:
                driver.fail(fetch)
            elif not driver.step():
                if not driver.behind():
                    return
                wake_at = driver.state.wake_at(driver.now)
                assert wake_at is not None
                driver.now = wake_at
                driver.begin()
        raise AssertionError("it makes no headway")

    carry_out(breaks=True)
    assert min(asked) <= longest
    asked.clear()
    driver.source.produce(at, 40)
    carry_out(breaks=False)
    assert max(asked) == LIMITS.fetch_bytes


def test_a_source_that_refuses_is_asked_seldom_and_the_link_says_why() -> None:
    driver = running()
    driver.state.not_greeted(driver.now, "no such stream", refused=True)
    driver.begin()
    assert driver.state.phase is Phase.FAILED
    assert driver.state.reason == "no such stream"
    assert driver.under_way == []
    assert driver.state.wake_at(driver.now) == pytest.approx(driver.now + LIMITS.longest_pause_s)


def test_a_source_that_does_not_answer_for_a_moment_is_greeted_again() -> None:
    driver = running()
    (at,) = driver.source.partitions
    while not any(isinstance(effect, Connect) for effect in driver.under_way):
        poll = next((effect for effect in driver.under_way if isinstance(effect, Poll)), None)
        if poll is not None:
            driver.fail(poll)
        else:
            driver.now = driver.state.wake_at(driver.now) or driver.now
            driver.begin()
    driver.fail(next(effect for effect in driver.under_way if isinstance(effect, Connect)))
    assert driver.state.reason
    assert driver.state.trouble
    driver.source.produce(at, 5)
    driver.run_until_idle()
    assert driver.behind() == []
    assert not driver.state.trouble


def test_one_node_that_does_not_answer_does_not_stop_the_others() -> None:
    driver = running(topics=2, partitions=1, nodes=2)
    first, second = driver.source.partitions
    assert driver.source.partitions[first].leader != driver.source.partitions[second].leader
    driver.source.produce(first, 5)
    driver.source.produce(second, 5)
    away = driver.source.partitions[first].leader
    for _ in range(100):
        ready = [each for each in driver.under_way if driver.answers(each) and getattr(each, "node", NO_NODE) != away]
        if driver.to_append:
            driver.append(next(iter(driver.to_append)))
        elif driver.uncommitted:
            driver.commit()
        elif ready:
            driver.succeed(ready[0])
        elif failing := [each for each in driver.under_way if getattr(each, "node", NO_NODE) == away]:
            driver.fail(failing[0])
        else:
            driver.now = driver.state.wake_at(driver.now) or driver.now
            driver.begin()
    assert driver.own[second] == 5
    assert driver.own[first] == 0
    assert driver.state.phase is Phase.RUNNING
    assert driver.state.trouble
    driver.run_until_idle()
    assert driver.behind() == []
    assert not driver.state.trouble


def test_the_lag_counts_from_when_we_heard_of_the_first_record_that_is_not_here() -> None:
    driver = running()
    (at,) = driver.source.partitions
    driver.source.produce(at, 2)
    driver.succeed(driver.under_way[0])
    pull = driver.state.pulls.all[at]
    driver.now += 4
    assert pull.lag_s(driver.now) == pytest.approx(4)
    driver.run_until_idle()
    assert pull.lag_s(driver.now) == 0


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=40))
def test_whatever_waits_is_fetched_once_for_each_time_it_became_due(changes: list[tuple[int, int]]) -> None:
    driver = running(topics=4, partitions=5)
    for number, index in changes:
        driver.source.produce(TopicPartition(topic(number), index), 1)
    before = driver.fetched_bytes
    driver.run_until_idle()
    assert driver.behind() == []
    assert driver.fetched_bytes - before == len(changes) * RECORD, "nothing is fetched twice"


def test_a_topic_that_a_node_of_the_source_does_not_know_yet_is_asked_for_again_soon() -> None:
    driver = Driver(ModelSource(1, 1, 1))
    (at,) = driver.source.partitions
    driver.source.produce(at, 1)
    while not any(isinstance(each, Meet) for each in driver.under_way):
        assert driver.step()
    (meet,) = (each for each in driver.under_way if isinstance(each, Meet))
    driver.under_way.remove(meet)
    driver.state.met(driver.now, meet.node, [Met(at, Code.UNKNOWN_TOPIC_ID)])
    driver.begin()
    assert driver.state.pulls.all[at].retry_at - driver.now < 1.0
    driver.run_until_idle()
    assert driver.behind() == []


def test_a_source_is_met_anew_for_another_home_before_anything_of_it_is_appended() -> None:
    driver = running()
    (at,) = driver.source.partitions
    driver.source.produce(at, 2)
    driver.run_until_idle()
    assert driver.own[at] == 2
    driver.homes[at] += 1
    driver.own[at] = 1  # the last one is of a history that is not the new home's
    driver.state.pulls.touched(driver.now, at)
    driver.begin()
    (look,) = [each for each in driver.under_way if isinstance(each, LookUp)]
    driver.succeed(look)
    assert [type(each) for each in driver.under_way if not isinstance(each, Poll)] == [Meet]
    driver.run_until_idle()
    assert driver.own[at] == 2


def fetched_as_a_new_node_leads() -> tuple[Driver, Fetch, TopicPartition]:
    """A driver with a fetch of two partitions under way; the second of them is led by a node that we do not know."""
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


def test_a_link_is_paused_while_it_fetches_what_a_new_node_of_the_source_leads_by_now() -> None:
    driver, _, at = fetched_as_a_new_node_leads()
    driver.state.pause(driver.now)
    driver.begin()
    driver.state.resume(driver.now)
    driver.begin()
    driver.run_until_idle()
    assert driver.own[at] == 1


def test_a_full_answer_without_what_a_new_node_of_the_source_leads_by_now_gives_its_bytes_back() -> None:
    driver, fetch, at = fetched_as_a_new_node_leads()
    driver.under_way.remove(fetch)
    first = fetch.wanted[0].at
    full = [Arrived(first, Code.NONE, 300, Offset(3)), Arrived(at, Code.NONE, 0, Offset(1))]
    assert driver.state.fetching.arrived(driver.now, fetch.number, full) == [first]
    assert driver.state.fetching.budget.reserved == 0
    driver.to_append[first] = (0, 3, 300, driver.looked_up[first])
    driver.begin()
    driver.run_until_idle()
    assert driver.behind() == []


def test_what_another_node_leads_by_the_time_that_a_fetch_is_broken_off_is_met_there_first() -> None:
    driver = running(nodes=2)
    (at,) = driver.source.partitions
    driver.source.produce(at, 1)
    until_fetch(driver)
    driver.source.move(at, NodeId(1), by_roll=True)
    driver.succeed(next(each for each in driver.under_way if isinstance(each, Poll) and each.node == 1))
    driver.state.lost(driver.now, "cut")
    assert driver.state.pulls.all[at].status is Status.MEET
    driver.begin()
    driver.run_until_idle()
    assert driver.own[at] == 1


def test_what_another_link_is_to_bring_is_fetched_once_it_has_not_come_for_a_while() -> None:
    driver = running()
    (at,) = driver.source.partitions
    driver.patience[at] = 2.0
    driver.state.pulls.touched(driver.now, at)
    driver.source.produce(at, 1)
    driver.run_until_idle()
    assert driver.own[at] == 1
    began = driver.now
    assert began >= 2.0
    driver.source.produce(at, 1)
    while driver.step():
        pass
    assert driver.own[at] == 1, "it waits"
    driver.own[at] = 2
    fetched = driver.fetched_bytes
    driver.run_until_idle()
    assert driver.fetched_bytes == fetched, "the other one brought it"
    driver.source.produce(at, 40)  # more than an answer holds
    driver.run_until_idle()
    assert driver.own[at] == 42
    assert driver.now - began < 6.5, "it waits once until it is up to date"


def test_a_link_of_several_that_was_not_chosen_goes_on_behind_a_gap_once_no_other_has_filled_it() -> None:
    driver = running()
    (at,) = driver.source.partitions
    driver.chosen = False
    driver.state.pulls.touched(driver.now, at)
    driver.source.produce(at, 10)
    driver.source.partitions[at].log_start = 5

    def by(until: float) -> None:
        while driver.now < until:
            if not driver.step():
                driver.now = min(max(driver.now + 1e-6, driver.state.wake_at(driver.now) or until), until)
                driver.begin()

    by(9.0)
    assert driver.own[at] == 0
    driver.own[at] = 2  # another one brought something
    by(18.0)
    assert driver.own[at] == 2
    driver.run_until_idle()
    assert driver.own[at] == 10


def test_what_lacks_records_of_homes_before_is_met_though_nothing_more_is_known_of_the_source() -> None:
    driver = running()
    (at,) = driver.source.partitions
    driver.source.produce(at, 1)
    driver.run_until_idle()
    driver.lacking.add(at)
    driver.state.pulls.touched(driver.now, at)
    driver.begin()
    (look,) = [each for each in driver.under_way if isinstance(each, LookUp)]
    driver.succeed(look)
    assert [type(each) for each in driver.under_way if not isinstance(each, Poll)] == [Meet]


def test_a_source_that_tells_no_leader_epochs_is_met_once_and_fetched() -> None:
    driver = Driver(ModelSource(2, 2, 2))
    for partition in driver.source.partitions.values():
        partition.epoch = NO_EPOCH
        partition.end = 5
    driver.run_until_idle()
    assert not driver.behind()


def test_polls_wait_longer_the_more_come_to_nothing_and_begin_anew_when_something_comes() -> None:
    driver = Driver(ModelSource(1, 1, 1))
    driver.run_until_idle()
    waits = []
    for _ in range(5):
        (poll,) = [each for each in driver.under_way if isinstance(each, Poll)]
        waits.append(poll.wait_ms)
        driver.under_way.remove(poll)
        assert poll.since is not None
        driver.state.changed(driver.now, poll.node, Changes(poll.since, False, [], [], []))
        driver.now += 1
        driver.begin()
    assert waits == [5_000, 10_000, 20_000, 30_000, 30_000]
    driver.source.produce(next(iter(driver.source.partitions)), 1)
    driver.run_until_idle()
    (poll,) = [each for each in driver.under_way if isinstance(each, Poll)]
    assert poll.wait_ms == 5_000


def test_a_fetch_without_the_leaders_epoch_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: what the source has at an offset by now may be of another history than the one that was compared."""

    def unfenced(at: TopicPartition, offset: Offset, _epoch: LeaderEpoch, max_bytes: int) -> Wanted:
        return Wanted(at, offset, NO_EPOCH, max_bytes)

    monkeypatch.setattr(fetch_plan, "Wanted", unfenced)
    driver = Driver(ModelSource(1, 1, 1))
    driver.source.produce(next(iter(driver.source.partitions)), 1)
    for _ in range(1_000):
        if not driver.step():
            driver.now = max(driver.now + 1e-6, driver.state.wake_at(driver.now) or 0.0)
            driver.begin()
    assert driver.behind(), "records came though no leader was asked for in its epoch"
