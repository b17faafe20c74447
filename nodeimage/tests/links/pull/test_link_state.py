"""The link's state machine against a model of a source and a target, whatever happens in whatever order."""

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.base.errors import Code
from headrace.base.ids import LeaderEpoch, NodeId, Offset
from headrace.links.pull import fetch_plan
from headrace.links.pull.effects import (
    Arrived,
    Connect,
    Fetch,
    Meet,
    Met,
    Poll,
)
from headrace.links.pull.link_state import Phase
from headrace.links.pull.partition_pull import Status
from headrace.links.source.source import NO_EPOCH, NO_NODE, Changes, TopicPartition, Wanted
from kit.modelled_link import (
    LIMITS,
    RECORD,
    Driver,
    ModelSource,
    fetched_as_a_new_node_leads,
    running,
    topic,
    until_fetch,
)


class LinkMachine(RuleBasedStateMachine):
    """Anything may happen at any time; the invariants hold, and once all is well again, everything arrives."""

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
        """`cut`: how many records, if there are as many, are not part of the new home's history."""
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
    """With a planted fault: the record at an offset may now belong to another history than the one that was
    compared."""

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
