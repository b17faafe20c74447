"""The next step of a partition: it waits for other links, is met again, or skips a gap."""

import pytest

from headrace.base.ids import Offset
from headrace.links.pull.effects import (
    LookUp,
    Meet,
    Poll,
)
from headrace.links.source.source import NO_EPOCH
from kit.modelled_link import LIMITS, Driver, ModelSource, running, until_fetch


def test_no_more_up_to_date_partitions_are_remembered_than_the_limit() -> None:
    driver = running(topics=20, partitions=3)
    for at in driver.source.partitions:
        driver.source.produce(at, 1)
    driver.run_until_idle()
    assert driver.behind() == []
    assert len(driver.state.pulls.all) == LIMITS.idle_kept


def test_a_source_is_met_anew_for_another_home_before_anything_of_it_is_appended() -> None:
    driver = running()
    (at,) = driver.source.partitions
    driver.source.produce(at, 2)
    driver.run_until_idle()
    assert driver.own[at] == 2
    driver.homes[at] += 1
    driver.own[at] = 1  # the last record is not part of the new home's history
    driver.state.pulls.touched(driver.now, at)
    driver.begin()
    (look,) = [each for each in driver.under_way if isinstance(each, LookUp)]
    driver.succeed(look)
    assert [type(each) for each in driver.under_way if not isinstance(each, Poll)] == [Meet]
    driver.run_until_idle()
    assert driver.own[at] == 2


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
    driver.own[at] = 2  # another link delivered records
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


def test_a_node_of_which_records_take_long_to_be_committed_is_polled_less_often() -> None:
    driver = running()
    (at,) = driver.source.partitions
    feed = driver.state.feeds[driver.source.nodes[0]]
    assert feed.every_s == LIMITS.poll_every_s
    for _ in range(100):
        driver.source.produce(at, 1)
        until_fetch(driver)
        driver.now += 0.008
        driver.run_until_idle()
    assert feed.every_s == pytest.approx(0.016, rel=0.1)
    driver.source.produce(at, 1)
    until_fetch(driver)
    driver.state.pulls.node_left(feed.node)
    del driver.state.feeds[feed.node]
    driver.state.pulls.committed(driver.now, at, Offset(driver.source.partitions[at].end))  # its node is gone
