"""When a node of the source is polled next, and for how long a poll waits."""

from headrace.base.ids import NodeId
from headrace.links.pull.source_feed import SourceFeed
from headrace.links.source.source import LEAST_WAIT_MS, MOST_WAIT_MS, FeedPlace, TopicPartition

PLACE = FeedPlace("run", 7)


def feed() -> SourceFeed:
    return SourceFeed(NodeId(1), 100.0, fetch_bytes=1 << 20)


def test_polls_wait_longer_the_more_come_to_nothing_up_to_a_limit() -> None:
    node, waits = feed(), []
    for _ in range(5):
        waits.append(node.wait_ms)
        node.answered(100, PLACE, every_s=0, quiet=True)
    assert waits == [LEAST_WAIT_MS, 2 * LEAST_WAIT_MS, 4 * LEAST_WAIT_MS, MOST_WAIT_MS, MOST_WAIT_MS]
    node.answered(100, PLACE, every_s=0, quiet=False)
    assert node.wait_ms == LEAST_WAIT_MS


def test_polls_begin_no_closer_together_than_they_may_and_one_at_a_time() -> None:
    node = feed()
    assert node.may_poll(100)
    node.polling, node.asked_at, node.poll_failures = True, 100.0, 3
    assert not node.may_poll(200)
    node.answered(100.5, PLACE, every_s=2, quiet=False)
    assert (node.place, node.poll_failures) == (PLACE, 0)
    assert not node.may_poll(101.9)
    assert node.may_poll(102)
    node.asked_at = 102.0
    node.answered(110, PLACE, every_s=2, quiet=False)
    assert node.may_poll(110), "that one took long"


def test_a_node_that_answers_is_no_longer_one_that_fails() -> None:
    node = feed()
    node.failures, node.retry_at = 4, 500.0
    node.works()
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
