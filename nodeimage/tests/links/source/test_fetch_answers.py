"""Fetch requests to sources, and their answers by partition."""

from typing import Any

from headrace.base.errors import Code
from headrace.base.ids import LeaderEpoch, Offset
from headrace.links.source.fetch_answers import code_of, fetch_request, fetched
from headrace.links.source.source import NO_NODE, TopicPartition, Wanted
from headrace.wire.batch import build_batch, iter_records
from headrace.wire.fetch import FetchResult

A, B = b"a" * 16, b"b" * 16


def wanted(topic_id: bytes = A, partition: int = 0, offset: int = 0) -> Wanted:
    return Wanted(TopicPartition(topic_id, partition), Offset(offset), LeaderEpoch(3), 1000)


def result(**fields: Any) -> FetchResult:
    given: dict[str, Any] = {
        "partition": 0,
        "error": 0,
        "high_watermark": 20,
        "last_stable": 20,
        "log_start": 2,
        "records": [],
    }
    return FetchResult(**{**given, **fields})


def batch(first: int, count: int) -> memoryview:
    return memoryview(build_batch([(1, b"k", b"%d" % index, []) for index in range(count)], base_offset=first))


def test_partitions_stand_by_topic_in_the_order_of_the_first_of_each() -> None:
    request = fetch_request(
        [wanted(B, 1, 10), wanted(A, 0, 5), wanted(B, 0, 7)], max_bytes=9, min_bytes=1, wait_ms=2, isolation=1
    )
    assert [(topic.topic_id, [each.partition for each in topic.partitions]) for topic in request.topics] == [
        (B, [1, 0]),
        (A, [0]),
    ]
    asked = request.topics[0].partitions[0]
    assert (asked.offset, asked.current_leader_epoch, asked.max_bytes) == (10, 3, 1000)
    assert (request.session_id, request.session_epoch) == (0, -1), "outside of any session"


async def test_an_answer_says_where_the_partition_stands_and_whom_to_ask() -> None:
    answer = await fetched(wanted(), result(records=[batch(0, 3)], leader_id=4, preferred_replica=9))
    assert (answer.code, answer.high_watermark, answer.log_start, answer.ask) == (Code.NONE, 20, 2, 4)
    assert [record.offset for record in iter_records(answer.records[0])] == [0, 1, 2]
    assert (await fetched(wanted(), result(preferred_replica=9))).ask == 9
    assert (await fetched(wanted(), result())).ask == NO_NODE


async def test_a_partition_that_is_not_in_the_answer_is_unknown() -> None:
    assert (await fetched(wanted(), None)).code is Code.UNKNOWN_TOPIC_OR_PARTITION


async def test_what_lies_before_the_wanted_offset_is_left_out() -> None:
    both = memoryview(bytes(batch(0, 3)) + bytes(batch(3, 4)) + bytes(batch(7, 2)))
    answer = await fetched(wanted(offset=5), result(records=[both]))
    found = [record.offset for view in answer.records for record in iter_records(view)]
    assert found == [5, 6, 7, 8]
    assert bytes(answer.records[-1]) == bytes(batch(7, 2)), "whole batches are left as they are"


async def test_a_damaged_batch_that_is_to_be_cut_is_an_answer_of_that() -> None:
    damaged = bytearray(batch(3, 4))
    damaged[70] ^= 1
    answer = await fetched(wanted(offset=5), result(records=[memoryview(damaged)]))
    assert (answer.code, answer.records) == (Code.CORRUPT_MESSAGE, [])


def test_a_code_of_a_newer_version_is_an_unknown_fault() -> None:
    assert code_of(6) is Code.NOT_LEADER_OR_FOLLOWER
    assert code_of(9999) is Code.UNKNOWN_SERVER_ERROR
