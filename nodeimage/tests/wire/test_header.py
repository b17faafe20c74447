import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.request_header.v1.header import RequestHeader as KioHeader1
from kio.schema.request_header.v2.header import RequestHeader as KioHeader2
from kio.schema.response_header.v0.header import ResponseHeader as KioResponse0
from kio.schema.response_header.v1.header import ResponseHeader as KioResponse1
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import i16, i32

from headrace.base.errors import MalformedRequest
from headrace.wire.api_keys import ApiKey, is_flexible
from headrace.wire.header import (
    RequestHeader,
    read_request_header,
    read_response_header,
    request_header,
    response_header,
)
from kit.kafka_versions import KAFKA

VERSIONS = [(int(key), version) for key, (low, high) in KAFKA.items() for version in range(low, high + 1)]
VERSIONS += [(int(ApiKey.PRODUCE), version) for version in range(3)]  # there are no longer schemas of these
VERSIONS.append((int(ApiKey.HEADRACE_ADMIN), 0))


@given(st.sampled_from(VERSIONS), st.integers(-(2**31), 2**31 - 1), st.text(max_size=40) | st.none())
def test_a_request_header_is_read_as_kio_writes_it_and_written_as_kio_does(
    api: tuple[int, int], correlation_id: int, client_id: str | None
) -> None:
    key, version = api
    kind = KioHeader2 if is_flexible(key, version) else KioHeader1
    out = io.BytesIO()
    entity_writer(kind)(
        out,
        kind(
            request_api_key=i16(key),
            request_api_version=i16(version),
            correlation_id=i32(correlation_id),
            client_id=client_id,
        ),
    )
    raw = out.getvalue()
    assert request_header(key, version, correlation_id, client_id) == raw
    expected = RequestHeader(key, version, correlation_id, client_id, len(raw))
    assert read_request_header(raw + b"body") == expected
    assert read_request_header(memoryview(bytearray(raw + b"body"))) == expected


@pytest.mark.parametrize(("key", "version"), VERSIONS)
def test_a_response_header_is_kios_except_that_of_api_versions_is_never_flexible(key: int, version: int) -> None:
    raw = response_header(key, version, 77)
    kind = KioResponse1 if is_flexible(key, version) and key != ApiKey.API_VERSIONS else KioResponse0
    header, end = entity_reader(kind)(raw, 0)
    assert (header.correlation_id, end) == (77, len(raw))
    assert read_response_header(raw, key, version) == (77, len(raw))


def test_an_unknown_api_is_read_with_a_plain_header() -> None:
    header = read_request_header(b"\x7f\xff\x00\x63\x00\x00\x00\x05\x00\x02me")
    assert header == (0x7FFF, 99, 5, "me", 12)


def test_a_client_id_of_another_encoding_is_read_with_its_bytes_replaced_as_by_kafka() -> None:
    raw = request_header(ApiKey.METADATA, 12, 5, "Gr\xfc\xdfe") + b"body"
    assert raw.count("Gr\xfc\xdfe".encode()) == 1
    latin = raw.replace("\x00\x07Gr\xfc\xdfe".encode(), b"\x00\x05Gr\xfc\xdfe")
    assert read_request_header(latin) == (ApiKey.METADATA, 12, 5, "Gr\ufffd\ufffde", len(latin) - 4)
    with pytest.raises(MalformedRequest):
        read_request_header(latin[:12])


def test_tagged_fields_of_a_header_are_skipped() -> None:
    raw = request_header(ApiKey.API_VERSIONS, 3, 1, "c")[:-1] + b"\x01\x05\x03abc"
    assert read_request_header(raw).body == len(raw)


@given(st.binary(max_size=40))
def test_any_bytes_are_a_header_or_malformed(raw: bytes) -> None:
    try:
        header = read_request_header(raw)
    except MalformedRequest:
        return
    assert header.body <= len(raw)
