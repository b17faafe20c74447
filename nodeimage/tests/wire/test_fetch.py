import uuid
from typing import Any

import kio.index
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kafka.protocol.consumer import FetchRequest as KafkaPythonRequest
from kio.serial import entity_reader

from headrace.base.errors import MalformedRequest
from headrace.wire import generic_codec
from headrace.wire.api_keys import ApiKey
from headrace.wire.fetch import (
    COPY_BELOW,
    FetchPartition,
    FetchRequest,
    FetchResult,
    FetchTopic,
    FetchTopicResult,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)

VERSIONS = range(4, 17)
versions = st.sampled_from(VERSIONS)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
names = st.text(min_size=1, max_size=12)
ids = st.binary(min_size=16, max_size=16).filter(any)


@st.composite
def requests(draw: st.DrawFn) -> tuple[int, FetchRequest]:
    """A version, and a request with only the fields of that version."""
    version = draw(versions)
    partition = st.builds(
        FetchPartition,
        partition=int32,
        current_leader_epoch=int32 if version >= 9 else st.just(-1),
        offset=int64,
        last_fetched_epoch=int32 if version >= 12 else st.just(-1),
        log_start=int64 if version >= 5 else st.just(-1),
        max_bytes=int32,
    )
    name, topic_id = (st.none(), ids) if version >= 13 else (names, st.none())
    topic = st.builds(FetchTopic, name, topic_id, st.lists(partition, max_size=3))
    forgotten = st.tuples(name, topic_id, st.lists(int32, max_size=3))
    request = FetchRequest(
        max_wait_ms=draw(st.integers(0, 2**31 - 1)),
        min_bytes=draw(int32),
        max_bytes=draw(int32),
        isolation=draw(st.integers(0, 1)),
        session_id=draw(int32) if version >= 7 else 0,
        session_epoch=draw(int32) if version >= 7 else -1,
        topics=draw(st.lists(topic, max_size=3)),
        forgotten=draw(st.lists(forgotten, max_size=2)) if version >= 7 else [],
        rack=draw(names) if version >= 11 else "",
        replica_id=draw(st.integers(-1, 2**31 - 1)),
    )
    return version, request


@given(requests(), st.binary(max_size=9))
def test_a_request_comes_back_from_behind_any_header(asked: tuple[int, FetchRequest], header: bytes) -> None:
    version, request = asked
    raw = header + encode_request(version, request)
    assert decode_request(raw, len(header), version) == request
    assert decode_request(memoryview(bytearray(raw)), len(header), version) == request


def as_fields(request: FetchRequest) -> dict[str, Any]:
    return {
        "replica_id": request.replica_id,
        "replica_state": {"replica_id": request.replica_id, "replica_epoch": -1},
        "max_wait": request.max_wait_ms,
        "min_bytes": request.min_bytes,
        "max_bytes": request.max_bytes,
        "isolation_level": request.isolation,
        "session_id": request.session_id,
        "session_epoch": request.session_epoch,
        "topics": [
            {
                "topic": topic.topic,
                "topic_id": topic.topic_id,
                "partitions": [
                    {
                        "partition": asked.partition,
                        "current_leader_epoch": asked.current_leader_epoch,
                        "fetch_offset": asked.offset,
                        "last_fetched_epoch": asked.last_fetched_epoch,
                        "log_start_offset": asked.log_start,
                        "partition_max_bytes": asked.max_bytes,
                    }
                    for asked in topic.partitions
                ],
            }
            for topic in request.topics
        ],
        "forgotten_topics_data": [
            {"topic": topic, "topic_id": topic_id, "partitions": partitions}
            for topic, topic_id, partitions in request.forgotten
        ],
        "rack_id": request.rack,
    }


NO_REPLICA = FetchRequest(0, 0, 0, 0, 0, 0, [], [], "", -1)
"""A consumer's request: the tagged field with the replica has its default, so it is left out (KIP-482)."""


@given(requests())
@example((15, NO_REPLICA))
def test_a_request_has_the_bytes_of_kafkas_schema(asked: tuple[int, FetchRequest]) -> None:
    version, request = asked
    raw = encode_request(version, request)
    assert raw == generic_codec.encode_request(ApiKey.FETCH, version, as_fields(request))
    entity, end = entity_reader(kio.index.load_request_schema(1, version))(raw, 0)
    assert end == len(raw)
    assert [len(topic.partitions) for topic in entity.topics] == [len(topic.partitions) for topic in request.topics]
    assert [generic_codec.field(one, "fetch_offset") for topic in entity.topics for one in topic.partitions] == [
        one.offset for topic in request.topics for one in topic.partitions
    ]
    assert generic_codec.field(entity, "max_wait") == request.max_wait_ms
    assert generic_codec.field(entity, "rack_id", "") == request.rack


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_of_kafka_python_is_understood(version: int) -> None:
    topic_id = uuid.UUID(int=99)
    topic = KafkaPythonRequest.FetchTopic
    asked = KafkaPythonRequest(
        replica_id=-1,
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=1,
        session_id=7,
        session_epoch=3,
        topics=[
            topic(
                topic="sensors",
                topic_id=topic_id,
                partitions=[
                    topic.FetchPartition(partition=5, fetch_offset=1234, partition_max_bytes=4096, version=version)
                ],
                version=version,
            )
        ],
        forgotten_topics_data=[],
        rack_id="north",
        version=version,
    )
    decoded = decode_request(bytes(asked.encode(version=version)), 0, version)
    by_id = version >= 13
    assert decoded == FetchRequest(
        500,
        1,
        1 << 20,
        1,
        7 if version >= 7 else 0,
        3 if version >= 7 else -1,
        [
            FetchTopic(
                None if by_id else "sensors",
                topic_id.bytes if by_id else None,
                [FetchPartition(5, -1, 1234, -1, -1, 4096)],
            )
        ],
        [],
        "north" if version >= 11 else "",
    )


def test_tagged_fields_of_followers_are_skipped() -> None:
    fields = {"replica_state": {"replica_id": 3, "replica_epoch": 9}, "cluster_id": "c", "max_wait_ms": 5}
    raw = generic_codec.encode_request(ApiKey.FETCH, 15, fields)
    assert raw != generic_codec.encode_request(ApiKey.FETCH, 15, {"max_wait_ms": 5})
    assert decode_request(raw, 0, 15).max_wait_ms == 5


records = st.lists(st.binary(min_size=1, max_size=30) | st.just(b"\x07" * (COPY_BELOW + 5)), max_size=3)


@st.composite
def responses(draw: st.DrawFn) -> tuple[int, list[FetchTopicResult]]:
    version = draw(versions)
    result = st.builds(
        FetchResult,
        partition=int32,
        error=st.integers(-1, 107),
        high_watermark=int64,
        last_stable=int64,
        log_start=int64 if version >= 5 else st.just(-1),
        records=records,
        preferred_replica=int32 if version >= 11 else st.just(-1),
        aborted=st.none() | st.lists(st.tuples(int64, int64), max_size=2),
    )
    if version >= 12:
        leader = st.tuples(st.integers(0, 2**31 - 1), int32) | st.just((-1, -1))
        result = st.builds(with_leader, result, leader)
    name, topic_id = (st.none(), ids) if version >= 13 else (names, st.none())
    topic = st.builds(FetchTopicResult, name, topic_id, st.lists(result, max_size=3))
    return version, draw(st.lists(topic, max_size=3))


def with_leader(result: FetchResult, leader: tuple[int, int]) -> FetchResult:
    result.leader_id, result.leader_epoch = leader
    return result


def joined(topics: list[FetchTopicResult]) -> list[FetchTopicResult]:
    """The same results, with the records of each partition joined into one buffer."""
    for topic in topics:
        for result in topic.partitions:
            result.records = [b"".join(result.records)] if result.records else []
    return topics


@given(responses(), st.integers(0, 2**31 - 1), int32)
def test_a_response_comes_back(given_response: tuple[int, list[FetchTopicResult]], throttle: int, session: int) -> None:
    version, topics = given_response
    raw = b"".join(encode_response(version, throttle_ms=throttle, error=70, session_id=session, topics=topics))
    decoded = decode_response(raw, 0, version)
    assert decoded.throttle_ms == throttle
    assert (decoded.error, decoded.session_id) == ((70, session) if version >= 7 else (0, 0))
    assert decoded.topics == joined(topics)


@given(responses())
def test_a_response_has_the_bytes_of_kafkas_schema(given_response: tuple[int, list[FetchTopicResult]]) -> None:
    version, topics = given_response
    raw = b"".join(encode_response(version, throttle_ms=3, error=0, session_id=8, topics=topics))
    fields = {
        "throttle_time": 3,
        "session_id": 8,
        "responses": [
            {
                "topic": topic.topic,
                "topic_id": topic.topic_id,
                "partitions": [
                    {
                        "partition_index": one.partition,
                        "error_code": one.error,
                        "high_watermark": one.high_watermark,
                        "last_stable_offset": one.last_stable,
                        "log_start_offset": one.log_start,
                        "aborted_transactions": one.aborted
                        and [{"producer_id": pid, "first_offset": first} for pid, first in one.aborted],
                        "preferred_read_replica": one.preferred_replica,
                        "records": b"".join(one.records),
                    }
                    | (
                        {"current_leader": {"leader_id": one.leader_id, "leader_epoch": one.leader_epoch}}
                        if one.leader_id >= 0
                        else {}
                    )
                    for one in topic.partitions
                ],
            }
            for topic in topics
        ],
    }
    assert raw == generic_codec.encode_response(ApiKey.FETCH, version, fields)
    entity, end = entity_reader(kio.index.load_response_schema(1, version))(raw, 0)
    assert end == len(raw)
    assert [
        (int(one.error_code), one.high_watermark, one.records) for topic in entity.responses for one in topic.partitions
    ] == [(one.error, one.high_watermark, b"".join(one.records)) for topic in topics for one in topic.partitions]


def test_large_records_are_passed_through_uncopied_and_small_ones_are_gathered() -> None:
    large, small = memoryview(bytes(COPY_BELOW)), memoryview(b"small")
    results = [FetchResult(0, 0, records=[large, large]), FetchResult(1, 0, records=[small]), FetchResult(2, 0)]
    buffers = encode_response(12, topics=[FetchTopicResult("t", None, results)])
    assert len(buffers) == 4
    assert buffers[1] is large
    assert buffers[2] is large
    assert b"small" in bytes(buffers[3])


def test_a_topic_that_the_version_cannot_name_is_an_error_of_ours() -> None:
    with pytest.raises(ValueError, match="no name"):
        encode_response(12, topics=[FetchTopicResult(None, bytes(16), [])])
    with pytest.raises(ValueError, match="by id"):
        encode_response(13, topics=[FetchTopicResult("t", None, [])])


@given(requests(), st.data())
def test_a_truncated_or_longer_request_is_malformed(asked: tuple[int, FetchRequest], data: st.DataObject) -> None:
    version, request = asked
    raw = encode_request(version, request)
    with pytest.raises(MalformedRequest):
        decode_request(raw[: data.draw(st.integers(0, len(raw) - 1))], 0, version)
    with pytest.raises(MalformedRequest):
        decode_request(raw + b"\x00", 0, version)


def test_the_replica_id_is_found_among_other_tags_and_what_is_cut_short_is_refused() -> None:
    request = FetchRequest(1, 1, 1, 0, 0, -1, [], [], "", 7)
    raw = encode_request(16, request)
    tags = raw[-16:]
    assert tags[:3] == b"\x01\x01\x0d", "one tag, of number 1, of 13 bytes"
    body = raw[:-16]
    with_another = body + b"\x02\x00\x02ab" + tags[1:]
    assert decode_request(with_another, 0, 16) == request
    assert decode_request(body + b"\x00", 0, 16).replica_id == -1
    for bad in (b"\x01\x01\x03\x00\x00\x00", b"\x01\x01\x0d\x00", b"\x01\x01"):
        with pytest.raises(MalformedRequest):
            decode_request(body + bad, 0, 16)
