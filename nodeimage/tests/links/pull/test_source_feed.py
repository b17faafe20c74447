"""When a node of the source is polled next, and for how long a poll waits."""

import pytest

from headrace.base.ids import NodeId
from headrace.links.pull.limits import Limits
from headrace.links.pull.source_feed import SourceFeed
from headrace.links.source.source import MAX_WAIT_MS, MIN_WAIT_MS, FeedPlace, TopicPartition

PLACE = FeedPlace("run", 7)
LIMITS = Limits(poll_every_s=2.0, longest_poll_every_s=40.0)


def feed() -> SourceFeed:
    return SourceFeed(NodeId(1), 100.0, LIMITS)


def test_polls_wait_longer_the_more_come_to_nothing_up_to_a_limit() -> None:
    node, waits = feed(), []
    for _ in range(5):
        waits.append(node.wait_ms)
        node.answered(100, PLACE, quiet=True)
    assert waits == [MIN_WAIT_MS, 2 * MIN_WAIT_MS, 4 * MIN_WAIT_MS, MAX_WAIT_MS, MAX_WAIT_MS]
    node.answered(100, PLACE, quiet=False)
    assert node.wait_ms == MIN_WAIT_MS


def test_polls_begin_no_closer_together_than_they_may_and_one_at_a_time() -> None:
    node = feed()
    assert node.may_poll(100)
    node.polling, node.asked_at, node.poll_failures = True, 100.0, 3
    assert not node.may_poll(200)
    node.answered(100.5, PLACE, quiet=False)
    assert (node.place, node.poll_failures) == (PLACE, 0)
    assert not node.may_poll(101.9)
    assert node.may_poll(102)
    node.asked_at = 102.0
    node.answered(110, PLACE, quiet=False)
    assert node.may_poll(110), "that one took long"


def test_the_longer_records_take_to_be_committed_here_the_further_apart_polls_begin() -> None:
    node = feed()
    node.copied(0.1)
    assert node.every_s == LIMITS.poll_every_s, "no sooner than they may"
    for _ in range(100):
        node.copied(5.0)
    assert node.every_s == pytest.approx(10.0, rel=0.01)
    node.asked_at = 100.0
    node.answered(100.5, PLACE, quiet=False)
    assert not node.may_poll(109.0)
    assert node.may_poll(110.1)
    node.copied(100_000.0)
    assert node.every_s < 20.0, "one that was behind for long, as after an outage, is one of many"
    for _ in range(100):
        node.copied(100_000.0)
    assert node.every_s == LIMITS.longest_poll_every_s
    for _ in range(100):
        node.copied(0.1)
    assert node.every_s == LIMITS.poll_every_s


def test_a_node_that_answers_is_no_longer_one_that_fails() -> None:
    node = feed()
    node.failures, node.retry_at = 4, 500.0
    node.succeeded()
    assert (node.failures, node.retry_at) == (0, 0)


def test_after_a_lost_connection_nothing_is_under_way_and_what_waits_still_does() -> None:
    node = feed()
    node.polling = node.meeting = True
    node.fetches = 2
    node.due.add(TopicPartition(b"t" * 16, 0))
    node.meet[TopicPartition(b"t" * 16, 1)] = None
    node.interrupted()
    assert (node.polling, node.meeting, node.fetches) == (False, False, 0)
    assert (len(node.due), len(node.meet)) == (1, 1)
    node.clear()
    assert (len(node.due), len(node.meet)) == (0, 0)
