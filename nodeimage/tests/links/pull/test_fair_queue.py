"""Topics take turns, and so do the partitions of each."""

from headrace.links.pull.fair_queue import FairQueue
from headrace.links.source.source import TopicPartition


def at(name: str) -> TopicPartition:
    """`a1` is partition 1 of topic a."""
    return TopicPartition(name[0].encode() * 16, int(name[1:]))


def queue(*names: str) -> FairQueue:
    made = FairQueue()
    for name in names:
        made.add(at(name))
    return made


def order(waiting: FairQueue) -> list[str]:
    taken = []
    while waiting:
        topic_id, partition = waiting.take()
        taken.append(f"{topic_id[:1].decode()}{partition}")
    return taken


def test_a_topic_of_many_partitions_keeps_no_other_waiting() -> None:
    assert order(queue("a1", "a2", "a3", "b1", "c1", "c2")) == ["a1", "b1", "c1", "a2", "c2", "a3"]


def test_who_waits_already_is_not_added_again() -> None:
    waiting = queue("a1", "b1", "a1")
    assert len(waiting) == 2
    assert order(waiting) == ["a1", "b1"]


def test_who_had_its_turn_for_nothing_is_first_again() -> None:
    waiting = queue("a1", "a2", "b1")
    first = waiting.take()
    waiting.add(first, first=True)
    assert order(waiting) == ["a1", "b1", "a2"]
    waiting.add(at("c1"), first=True)
    waiting.add(at("d1"))
    assert order(waiting) == ["c1", "d1"]


def test_who_was_taken_may_wait_again_behind_the_others() -> None:
    waiting = queue("a1", "b1")
    waiting.add(waiting.take())
    assert order(waiting) == ["b1", "a1"]


def test_nobody_waits_in_a_queue_that_was_cleared() -> None:
    waiting = queue("a1", "b1")
    waiting.clear()
    assert len(waiting) == 0
    waiting.add(at("b1"))
    assert order(waiting) == ["b1"]
