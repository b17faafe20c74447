"""kio is the oracle: the codec reads and writes the same bytes as kio's writer, for every API and version."""

import dataclasses
import datetime
import io
import subprocess
import sys
import uuid
from typing import Any

import kio.index
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from headrace.base.errors import MalformedRequest
from headrace.wire import generic_codec
from headrace.wire.api_keys import ApiKey
from kit.kafka_versions import KAFKA

HOT = (ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.METADATA)
COLD = [key for key in KAFKA if key not in HOT]
some = settings(max_examples=8, suppress_health_check=list(HealthCheck))


def schemas(key: ApiKey) -> st.SearchStrategy[tuple[int, str, type[Any]]]:
    """An API version, request or response, and kio's class for it."""
    low, high = KAFKA[key]
    return st.sampled_from(
        [
            (version, kind, load(key, version))
            for version in range(low, high + 1)
            for kind, load in (("request", kio.index.load_request_schema), ("response", kio.index.load_response_schema))
        ]
    )


def kio_bytes(entity: Any) -> bytes:
    out = io.BytesIO()
    entity_writer(type(entity))(out, entity)
    return out.getvalue()


@pytest.mark.parametrize("key", COLD, ids=lambda key: key.name.lower())
@some
@given(data=st.data())
def test_what_kio_writes_is_read_and_written_the_same(key: ApiKey, data: st.DataObject) -> None:
    version, kind, schema = data.draw(schemas(key))
    entity = data.draw(st.from_type(schema))
    raw = kio_bytes(entity)
    decode = generic_codec.decode_request if kind == "request" else generic_codec.decode_response
    encode = generic_codec.encode_request if kind == "request" else generic_codec.encode_response
    assert decode(key, version, raw) == entity
    assert decode(key, version, memoryview(bytearray(raw))) == entity
    assert encode(key, version, dataclasses.asdict(entity)) == raw


@pytest.mark.parametrize("key", COLD, ids=lambda key: key.name.lower())
@some
@given(data=st.data())
def test_hostile_bytes_are_read_or_malformed_and_nothing_else(key: ApiKey, data: st.DataObject) -> None:
    version, _, schema = data.draw(schemas(key))
    raw = bytearray(kio_bytes(data.draw(st.from_type(schema))))
    for _ in range(data.draw(st.integers(1, 3))):
        if raw:
            raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]))
    for hostile in (raw, raw[: data.draw(st.integers(0, len(raw)))], data.draw(st.binary(max_size=60))):
        for decode in (generic_codec.decode_request, generic_codec.decode_response):
            try:
                decode(key, version, bytes(hostile))
            except MalformedRequest:
                pass


@pytest.mark.parametrize("key", COLD, ids=lambda key: key.name.lower())
def test_empty_dicts_are_filled_with_defaults_that_kio_reads(key: ApiKey) -> None:
    low, high = KAFKA[key]
    for version in range(low, high + 1):
        for encode, load in (
            (generic_codec.encode_request, kio.index.load_request_schema),
            (generic_codec.encode_response, kio.index.load_response_schema),
        ):
            raw = encode(key, version, {})
            _, end = entity_reader(load(key, version))(raw, 0)
            assert end == len(raw)


@pytest.mark.parametrize("count", ["ffffffff0f", "ffffffff07", "8080808008"])
def test_a_count_that_lies_does_not_end_the_process(count: str) -> None:
    with pytest.raises(MalformedRequest, match="elements"):
        generic_codec.decode_request(ApiKey.LIST_OFFSETS, 6, bytes.fromhex("0000000100" + count))


def test_trailing_bytes_are_malformed() -> None:
    raw = generic_codec.encode_request(ApiKey.HEARTBEAT, 4, {"group_id": "g"})
    with pytest.raises(MalformedRequest, match="1 bytes after"):
        generic_codec.decode_request(ApiKey.HEARTBEAT, 4, raw + b"\x00")


def test_librdkafka_ends_one_request_twice_and_no_other_is_read_so() -> None:
    key, others = ApiKey.ALTER_USER_SCRAM_CREDENTIALS, ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS
    body = generic_codec.encode_request(key, 0, {"deletions": [], "upsertions": []})
    assert generic_codec.decode_request(key, 0, body + b"\0") == generic_codec.decode_request(key, 0, body)
    for trailing in (b"\1", b"\0\0"):
        with pytest.raises(MalformedRequest, match="after the end"):
            generic_codec.decode_request(key, 0, body + trailing)
    with pytest.raises(MalformedRequest, match="1 bytes after the end"):
        generic_codec.decode_request(others, 0, generic_codec.encode_request(others, 0, {"users": []}) + b"\0")


def test_nested_arrays_do_not_become_more_objects_than_one_request_may_have() -> None:
    topic = b"\x00\x01t" + (700_000).to_bytes(4, "big") + bytes(4 * 700_000)
    raw = (2).to_bytes(4, "big") + topic * 2
    with pytest.raises(MalformedRequest, match="1048576"):
        generic_codec.decode_request(ApiKey.OFFSET_FETCH, 1, b"\x00\x01g" + raw)


def test_an_unknown_tagged_field_is_skipped() -> None:
    raw = generic_codec.encode_request(ApiKey.HEARTBEAT, 4, {"group_id": "g", "generation_id": 3})
    tagged = raw[:-1] + b"\x01\x63\x03abc"
    assert generic_codec.decode_request(ApiKey.HEARTBEAT, 4, tagged) == generic_codec.decode_request(
        ApiKey.HEARTBEAT, 4, raw
    )
    with pytest.raises(MalformedRequest):
        generic_codec.decode_request(ApiKey.HEARTBEAT, 4, raw[:-1] + b"\x01\x63\x04abc")


def test_a_known_tagged_field_has_the_size_it_says() -> None:
    raw = generic_codec.encode_response(ApiKey.API_VERSIONS, 3, {"finalized_features_epoch": 5})
    assert generic_codec.decode_response(ApiKey.API_VERSIONS, 3, raw).finalized_features_epoch == 5
    lie = raw.replace(b"\x01\x01\x08", b"\x01\x01\x07")
    assert lie != raw
    with pytest.raises(MalformedRequest):
        generic_codec.decode_response(ApiKey.API_VERSIONS, 3, lie)


def test_values_may_be_plain_or_kios_own() -> None:
    topic_id = uuid.uuid4()
    plain = {"throttle_time_ms": 1500, "topics": [{"name": "t", "topic_id": topic_id.bytes, "error_code": 36}]}
    typed = {
        "throttle_time": datetime.timedelta(milliseconds=1500),
        "topics": ({"name": "t", "topic_id": topic_id, "error_code": ErrorCode.topic_already_exists} for _ in "1"),
        "no_version_has_this": 1,
    }
    raw = generic_codec.encode_response(ApiKey.CREATE_TOPICS, 7, plain)
    assert generic_codec.encode_response(ApiKey.CREATE_TOPICS, 7, typed) == raw
    entity = generic_codec.decode_response(ApiKey.CREATE_TOPICS, 7, raw)
    assert entity.topics[0].error_code is ErrorCode.topic_already_exists
    assert entity.topics[0].topic_id == topic_id


def test_names_that_a_version_lacks_are_left_out() -> None:
    fields = {"group_id": "g", "member_id": "m", "group_instance_id": "i"}
    decoded = generic_codec.decode_request(
        ApiKey.HEARTBEAT, 0, generic_codec.encode_request(ApiKey.HEARTBEAT, 0, fields)
    )
    assert decoded.member_id == "m"
    assert generic_codec.field(decoded, "group_instance_id", "absent") == "absent"


def test_field_gives_plain_numbers() -> None:
    raw = generic_codec.encode_request(ApiKey.JOIN_GROUP, 5, {"group_id": "g", "session_timeout_ms": 45_000})
    assert generic_codec.field(generic_codec.decode_request(ApiKey.JOIN_GROUP, 5, raw), "session_timeout") == 45_000
    raw = generic_codec.encode_response(
        ApiKey.PRODUCE, 3, {"responses": [{"partition_responses": [{"log_append_time": 7}]}]}
    )
    answer = generic_codec.decode_response(ApiKey.PRODUCE, 3, raw).responses[0].partition_responses[0]
    assert generic_codec.field(answer, "log_append_time") == 7
    code = generic_codec.field(answer, "error_code")
    assert (code, type(code)) == (0, int)
    flag = generic_codec.decode_request(
        ApiKey.CREATE_TOPICS, 2, generic_codec.encode_request(ApiKey.CREATE_TOPICS, 2, {})
    )
    assert generic_codec.field(flag, "validate_only") is False


def test_an_error_code_newer_than_kio_stays_a_number() -> None:
    raw = generic_codec.encode_response(ApiKey.HEARTBEAT, 0, {"error_code": 30_000})
    assert generic_codec.decode_response(ApiKey.HEARTBEAT, 0, raw).error_code == 30_000


def test_a_value_that_does_not_fit_names_its_field() -> None:
    with pytest.raises(TypeError) as caught:
        generic_codec.encode_response(ApiKey.DELETE_TOPICS, 1, {"responses": [{"name": None}]})
    assert "in field name" in caught.value.__notes__
    with pytest.raises(ValueError, match="topic id of 3 bytes"):
        generic_codec.encode_response(ApiKey.DELETE_TOPICS, 6, {"responses": [{"topic_id": b"abc"}]})


def test_a_long_error_message_is_cut_and_not_an_error() -> None:
    raw = generic_codec.encode_response(
        ApiKey.CREATE_TOPICS, 2, {"topics": [{"name": "t", "error_message": "x" * 50_000}]}
    )
    assert len(generic_codec.decode_response(ApiKey.CREATE_TOPICS, 2, raw).topics[0].error_message) == 8000


def test_no_schema_is_imported_before_it_is_asked_for() -> None:
    code = (
        "import sys; from headrace.kafka_client import blocking_client;"
        "from headrace.wire import api_versions, generic_codec;"
        "print([name for name in sys.modules if name.startswith('kio')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
