"""The content of an answer to Fetch: only news, and only codes that clients handle."""

from types import SimpleNamespace
from typing import Any

import pytest

from headrace.base.errors import Code, KafkaError
from headrace.kafka.fetch_answer import FetchAnswer, record_count, record_count_of_tail
from headrace.kafka.fetch_sessions import FetchSession, WatchedPartition
from headrace.metrics.traffic import Flow
from headrace.wire.batch import build_batch, stamp
from headrace.wire.fetch import FetchPartition, FetchResult, decode_response

VERSION = 11


def partition(high_watermark: int = 10, log_start: int = 0, **fields: bool) -> Any:
    given = {"deleted": False, "left": False, **fields}
    return SimpleNamespace(topic_id=b"t", high_watermark=high_watermark, log_start=log_start, **given)


def interest(session: FetchSession, number: int = 0, held: Any = None) -> WatchedPartition:
    made = WatchedPartition(session=session, key=("t", number), asked=FetchPartition(number, -1, 0, -1, -1, 1000))
    made.partition = held
    session.active[made.key] = made
    return made


def told(answer: FetchAnswer) -> list[FetchResult]:
    body = memoryview(b"".join(bytes(part) for part in answer.encode(VERSION)))
    return [result for topic in decode_response(body, 0, VERSION).topics for result in topic.partitions]


def incremental() -> FetchSession:
    session = FetchSession()
    session.id, session.epoch = 7, 5
    assert session.incremental
    return session


def test_a_whole_answer_tells_of_every_partition() -> None:
    session = FetchSession()
    answer = FetchAnswer(session)
    answer.add(interest(session, 0, partition()), None)
    answer.add(interest(session, 1, partition(20, 5)), [memoryview(b"abc"), memoryview(b"de")])
    assert [(each.partition, each.error, each.high_watermark, each.log_start) for each in told(answer)] == [
        (0, 0, 10, 0),
        (1, 0, 20, 5),
    ]
    assert answer.bytes == 5
    assert answer.errors == []


def batches(*counts: int) -> list[bytearray]:
    """Batches with the given numbers of records, at adjacent offsets."""
    found, first = [], 20
    for count in counts:
        batch = build_batch([(0, None, b"x", [])] * count)
        stamp(memoryview(batch), first, 1)
        found.append(batch)
        first += count
    return found


def test_what_is_told_is_counted_as_the_topics_traffic() -> None:
    session = FetchSession()
    warm, cold, refused = (interest(session, number, partition()) for number in range(3))
    topic = SimpleNamespace(traffic=Flow(), home=None)
    warm.topic = cold.topic = refused.topic = topic  # type: ignore[assignment]
    refused.error = KafkaError(Code.NOT_LEADER_OR_FOLLOWER)
    answer = FetchAnswer(session, {cold.key: 7, refused.key: 9})
    (two,) = batches(2)
    answer.add(warm, [two])
    answer.add(cold, [memoryview(b"abc")])
    answer.add(refused, [memoryview(b"fgh")])
    assert (topic.traffic.out_bytes, topic.traffic.out_records) == (len(two) + 3, 2 + 7)


def test_records_are_counted_by_the_headers_of_their_batches() -> None:
    first, second, third = batches(3, 1, 4)
    assert record_count([first, second + third]) == 8
    assert record_count([]) == record_count([b"cut off"]) == record_count([first[:60]]) == 0


@pytest.mark.parametrize("counts", [(5,), (3, 1, 4), (1,) * 100], ids=["one", "some", "many"])
def test_records_of_the_tail_are_counted_by_its_ends(counts: tuple[int, ...]) -> None:
    found = batches(*counts)
    assert record_count_of_tail(found, True) == record_count_of_tail(found, False) == sum(counts)


def test_records_that_a_copy_leaves_out_are_not_counted() -> None:
    first, _, third = batches(3, 1, 4)
    assert record_count_of_tail([first, third], False) == 7


def test_in_a_session_only_what_is_new_is_told_and_once() -> None:
    session = incremental()
    one, held = interest(session, 0, partition()), None
    first = FetchAnswer(session)
    first.add(one, None)
    assert len(told(first)) == 1
    again = FetchAnswer(session)
    again.add(one, None)
    assert told(again) == []
    held = one.partition
    assert held is not None
    held.high_watermark = 11
    third = FetchAnswer(session)
    third.add(one, None)
    assert [each.high_watermark for each in told(third)] == [11]
    held.log_start = 3
    fourth = FetchAnswer(session)
    fourth.add(one, None)
    assert [each.log_start for each in told(fourth)] == [3]


def test_who_was_served_stands_behind_the_others() -> None:
    session = incremental()
    first, second = interest(session, 0, partition()), interest(session, 1, partition())
    answer = FetchAnswer(session)
    answer.add(first, [memoryview(b"abc")])
    answer.add(second, None)
    assert list(session.active) == [("t", 1), ("t", 0)]


@pytest.mark.parametrize(
    ("code", "answered"),
    [
        (Code.OFFSET_OUT_OF_RANGE, Code.OFFSET_OUT_OF_RANGE),
        (Code.UNKNOWN_LEADER_EPOCH, Code.UNKNOWN_LEADER_EPOCH),
        (Code.REQUEST_TIMED_OUT, Code.NOT_LEADER_OR_FOLLOWER),
        (Code.UNKNOWN_SERVER_ERROR, Code.NOT_LEADER_OR_FOLLOWER),
    ],
)
def test_a_code_at_which_a_client_would_end_is_another_at_which_it_comes_again(code: Code, answered: Code) -> None:
    session = incremental()
    one = interest(session, 0, partition())
    one.error = KafkaError(code)
    answer = FetchAnswer(session)
    answer.add(one, None)
    answer.add(one, None)
    assert [each.error for each in told(answer)] == [answered, answered], "an error is told each time"


def test_of_a_partition_that_is_not_here_nothing_is_told_but_that() -> None:
    session = FetchSession()
    answer = FetchAnswer(session)
    answer.add(interest(session, 0), None)
    gone = interest(session, 1, partition(deleted=True))
    gone.error = KafkaError(Code.NOT_LEADER_OR_FOLLOWER)
    answer.add(gone, None)
    assert [(each.error, each.high_watermark, each.log_start) for each in told(answer)] == [
        (Code.UNKNOWN_TOPIC_OR_PARTITION, -1, -1),
        (Code.NOT_LEADER_OR_FOLLOWER, -1, -1),
    ]
