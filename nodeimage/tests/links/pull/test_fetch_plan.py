"""What a link fetches, in which order, and how much at a time."""

import dataclasses

from headrace.base.errors import Code
from headrace.base.ids import Offset
from headrace.links.pull.effects import (
    Arrived,
    Fetch,
)
from headrace.links.source.source import TopicPartition
from kit.modelled_link import (
    LIMITS,
    RECORD,
    Driver,
    ModelSource,
    SourcePartition,
    running,
    topic,
)


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
