import datetime
import io
from typing import Any

import kio.index
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.producer import ProduceRequest as KafkaPythonRequest
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import Records, i16, i32, i32Timedelta

from headrace.base.errors import MalformedRequest
from headrace.wire import generic_codec
from headrace.wire.api_keys import ApiKey
from headrace.wire.produce import (
    PartitionRecords,
    ProduceRequest,
    ProduceResult,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)

versions = st.integers(0, 11)
names = st.text(min_size=1, max_size=20)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)


@st.composite
def requests(draw: st.DrawFn) -> ProduceRequest:
    """Requests whose partitions are grouped by topic, as on the wire."""
    topics = draw(st.lists(names, max_size=4, unique=True))
    partitions = [
        PartitionRecords(topic, index, None if records is None else memoryview(records))
        for topic in topics
        for index, records in draw(
            st.lists(st.tuples(int32, st.none() | st.binary(max_size=200)), min_size=1, max_size=4)
        )
    ]
    return ProduceRequest(draw(st.none() | names), draw(st.integers(-1, 1)), draw(int32), partitions)


def to_kio(version: int, request: ProduceRequest) -> bytes:
    entity = kio.index.load_request_schema(0, version)
    module = kio.index.load_payload_module(0, version, entity.__type__)
    topics: dict[str, list[Any]] = {}
    for topic, index, records, _ in request.partitions:
        topics.setdefault(topic, []).append(
            module.PartitionProduceData(index=i32(index), records=None if records is None else Records(bytes(records)))
        )
    out = io.BytesIO()
    entity_writer(entity)(
        out,
        entity(
            transactional_id=request.transactional_id,
            acks=i16(request.acks),
            timeout=i32Timedelta.parse(datetime.timedelta(milliseconds=request.timeout_ms)),
            topic_data=tuple(
                module.TopicProduceData(name=topic, partition_data=tuple(partitions))
                for topic, partitions in topics.items()
            ),
        ),
    )
    return out.getvalue()


@given(versions, requests(), st.binary(max_size=9))
def test_a_request_comes_back_from_behind_any_header(version: int, request: ProduceRequest, header: bytes) -> None:
    raw = header + encode_request(version, request)
    decoded = decode_request(memoryview(raw), len(header), version)
    expected = request if version >= 3 else request._replace(transactional_id=None)
    assert decoded == expected


@given(st.integers(3, 11), requests())
def test_a_request_has_the_bytes_that_kio_writes(version: int, request: ProduceRequest) -> None:
    raw = to_kio(version, request)
    assert encode_request(version, request) == raw
    assert decode_request(memoryview(raw), 0, version) == request


@pytest.mark.parametrize("version", range(3, 12))
def test_a_request_of_kafka_python_is_understood(version: int) -> None:
    topic = KafkaPythonRequest.TopicProduceData
    asked = KafkaPythonRequest(
        transactional_id="tx",
        acks=-1,
        timeout_ms=1500,
        topic_data=[
            topic(
                name="Temperatur/Ölpumpe",
                partition_data=[topic.PartitionProduceData(index=3, records=b"some records" * 30)],
                version=version,
            )
        ],
        version=version,
    )
    decoded = decode_request(memoryview(bytes(asked.encode(version=version))), 0, version)
    assert decoded == ProduceRequest(
        "tx", -1, 1500, [PartitionRecords("Temperatur/Ölpumpe", 3, memoryview(b"some records" * 30))]
    )


def test_records_are_a_writable_slice_of_the_requests_own_buffer() -> None:
    buffer = bytearray(encode_request(9, ProduceRequest(None, 1, 0, [PartitionRecords("t", 0, memoryview(b"abcd"))])))
    records = decode_request(memoryview(buffer), 0, 9).partitions[0].records
    assert records is not None
    records[0:4] = b"WXYZ"
    assert b"WXYZ" in buffer


@st.composite
def results(draw: st.DrawFn) -> list[ProduceResult]:
    of_records = st.lists(st.tuples(int32, st.text(max_size=20)), max_size=2).map(tuple)
    message = st.none() | st.text(max_size=50)
    one = st.tuples(int32, st.integers(-1, 120), int64, int64, int64, message, of_records)
    topics = draw(st.lists(names, max_size=4, unique=True))
    return [ProduceResult(topic, *rest) for topic in topics for rest in draw(st.lists(one, min_size=1, max_size=3))]


def known_by(version: int, result: ProduceResult) -> ProduceResult:
    """`result` without the fields that `version` lacks."""
    if version < 2:
        result = result._replace(append_time=-1)
    if version < 5:
        result = result._replace(log_start=-1)
    return result if version >= 8 else result._replace(message=None, record_errors=())


@given(versions, results(), int32)
def test_a_response_comes_back_as_far_as_its_version_goes(
    version: int, given_results: list[ProduceResult], throttle_ms: int
) -> None:
    raw = encode_response(version, given_results, throttle_ms)
    expected = [known_by(version, result) for result in given_results]
    assert decode_response(raw, 0, version) == (expected, throttle_ms if version >= 1 else 0)


@given(st.integers(3, 11), results(), st.integers(0, 2**31 - 1))
def test_kio_reads_a_response_as_meant(version: int, given_results: list[ProduceResult], throttle_ms: int) -> None:
    sane = [result._replace(append_time=abs(result.append_time) % 10**12) for result in given_results]
    raw = encode_response(version, sane, throttle_ms)
    entity, end = entity_reader(kio.index.load_response_schema(0, version))(raw, 0)
    assert end == len(raw)
    assert generic_codec.field(entity, "throttle_time") == throttle_ms
    flat = [
        ProduceResult(
            topic.name,
            one.index,
            int(one.error_code),
            one.base_offset,
            generic_codec.field(one, "log_append_time"),
            generic_codec.field(one, "log_start_offset", -1),
            generic_codec.field(one, "error_message"),
            tuple(
                (each.batch_index, each.batch_index_error_message)
                for each in generic_codec.field(one, "record_errors", ())
            ),
        )
        for topic in entity.responses
        for one in topic.partition_responses
    ]
    assert flat == [known_by(version, result) for result in sane]


def test_results_of_one_topic_are_grouped_in_the_order_of_their_first() -> None:
    scattered = [ProduceResult("b", 0, 0), ProduceResult("a", 0, 0), ProduceResult("b", 1, 0)]
    decoded, _ = decode_response(encode_response(9, scattered), 0, 9)
    assert decoded == [scattered[0], scattered[2], scattered[1]]


def test_errors_about_single_records_are_read() -> None:
    raw = generic_codec.encode_response(
        ApiKey.PRODUCE,
        9,
        {
            "responses": [
                {
                    "name": "t",
                    "partition_responses": [
                        {
                            "index": 1,
                            "error_code": 87,
                            "record_errors": [{"batch_index": 2, "batch_index_error_message": "no key"}],
                            "error_message": "bad",
                            "current_leader": {"leader_id": 1, "leader_epoch": 2},
                        }
                    ],
                }
            ]
        },
    )
    assert decode_response(raw, 0, 9)[0] == [ProduceResult("t", 1, 87, 0, -1, -1, "bad", ((2, "no key"),))]


@given(versions, requests(), st.data())
def test_a_truncated_request_is_malformed(version: int, request: ProduceRequest, data: st.DataObject) -> None:
    raw = encode_request(version, request)
    cut = raw[: data.draw(st.integers(0, len(raw) - 1))]
    with pytest.raises(MalformedRequest):
        decode_request(memoryview(cut), 0, version)


@given(versions, requests())
def test_bytes_after_a_request_are_malformed(version: int, request: ProduceRequest) -> None:
    with pytest.raises(MalformedRequest, match="after the end"):
        decode_request(memoryview(encode_request(version, request) + b"\x00"), 0, version)


def test_many_topics_of_many_partitions_do_not_become_more_objects_than_one_request_may_have() -> None:
    partition = b"\x00\x00\x00\x00\xff\xff\xff\xff"
    topic = b"\x00\x01t" + (70_000).to_bytes(4, "big") + partition * 70_000
    raw = b"\xff\xff" + b"\x00\x01\x00\x00\x00\x00" + (2).to_bytes(4, "big") + topic * 2
    with pytest.raises(MalformedRequest, match="more than 131072 partitions"):
        decode_request(memoryview(raw), 0, 3)
