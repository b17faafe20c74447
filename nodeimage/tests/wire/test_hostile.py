"""The hot codecs read any bytes that a client sends, or raise MalformedRequest."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import MalformedRequest
from headrace.wire import fetch, metadata, produce
from headrace.wire.api_keys import ApiKey
from headrace.wire.header import read_response_header

Decode = Callable[[memoryview, int, int], Any]

DECODERS: list[tuple[ApiKey, Decode]] = [
    (ApiKey.PRODUCE, produce.decode_request),
    (ApiKey.PRODUCE, produce.decode_response),
    (ApiKey.FETCH, fetch.decode_request),
    (ApiKey.FETCH, fetch.decode_response),
    (ApiKey.METADATA, metadata.decode_request),
    (ApiKey.METADATA, metadata.decode_response),
]
IDS = [f"{key.name}-{decode.__name__}".lower() for key, decode in DECODERS]

TOPIC_ID = bytes(range(16))
BROKER = metadata.Broker(1, "host", 9092, "rack")
PARTITION = metadata.PartitionMeta(0, 3, 1, 7, [1, 2], [1], [2])
SAMPLES: dict[Decode, Callable[[int], bytes]] = {
    produce.decode_request: lambda version: produce.encode_request(
        version,
        produce.ProduceRequest("tx", -1, 9, [produce.PartitionRecords("topic", 1, memoryview(b"records"))]),
    ),
    produce.decode_response: lambda version: produce.encode_response(
        version, [produce.ProduceResult("topic", 1, 87, 5, 6, 7, "why")]
    ),
    fetch.decode_request: lambda version: fetch.encode_request(
        version,
        fetch.FetchRequest(
            *(1, 2, 3, 0, 4, 5),
            topics=[fetch.FetchTopic("topic", TOPIC_ID, [fetch.FetchPartition(0, 1, 2, 3, 4, 5)])],
            forgotten=[("gone", TOPIC_ID, [1, 2])],
            rack="rack",
        ),
    ),
    fetch.decode_response: lambda version: b"".join(
        fetch.encode_response(
            version,
            topics=[
                fetch.FetchTopicResult(
                    "topic", TOPIC_ID, [fetch.FetchResult(0, 0, 1, 2, 3, [b"records"], 4, [(5, 6)], 7, 8)]
                )
            ],
        )
    ),
    metadata.decode_request: lambda version: metadata.encode_request(
        version, metadata.MetadataRequest([("topic", None)], True)
    ),
    metadata.decode_response: lambda version: metadata.encode_response(
        version,
        brokers=[BROKER],
        cluster_id="cluster",
        controller_id=1,
        topics=[metadata.TopicMeta(0, "topic", TOPIC_ID, False, [PARTITION])],
    ),
}


VERSIONS = {
    ApiKey.PRODUCE: produce.VERSIONS,
    ApiKey.FETCH: fetch.VERSIONS,
    ApiKey.METADATA: metadata.VERSIONS,
}


def versions(key: ApiKey) -> st.SearchStrategy[int]:
    return st.integers(*VERSIONS[key])


def read_or_malformed(decode: Decode, raw: bytes | bytearray, version: int) -> None:
    try:
        decode(memoryview(raw), 0, version)
    except MalformedRequest:
        return


@pytest.mark.parametrize(("key", "decode"), DECODERS, ids=IDS)
@given(data=st.data(), raw=st.binary(max_size=80))
def test_random_bytes(key: ApiKey, decode: Decode, data: st.DataObject, raw: bytes) -> None:
    read_or_malformed(decode, raw, data.draw(versions(key)))


@pytest.mark.parametrize(("key", "decode"), DECODERS, ids=IDS)
@given(data=st.data())
def test_messages_with_some_bytes_changed_or_cut(key: ApiKey, decode: Decode, data: st.DataObject) -> None:
    version = data.draw(versions(key))
    raw = bytearray(SAMPLES[decode](version))
    decode(memoryview(bytes(raw)), 0, version)  # the sample itself is valid
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF]))
    read_or_malformed(decode, raw, version)
    read_or_malformed(decode, raw[: data.draw(st.integers(0, len(raw)))], version)


@pytest.mark.parametrize(("key", "decode"), DECODERS, ids=IDS)
def test_every_prefix_of_a_message_is_malformed(key: ApiKey, decode: Decode) -> None:
    low, high = VERSIONS[key]
    for version in range(low, high + 1):
        raw = SAMPLES[decode](version)
        for end in range(len(raw)):
            with pytest.raises(MalformedRequest):
                decode(memoryview(raw[:end]), 0, version)


@given(st.binary(max_size=12), st.sampled_from([(0, 9), (0, 8), (18, 4)]))
def test_response_headers(raw: bytes, api: tuple[int, int]) -> None:
    try:
        _, body = read_response_header(raw, *api)
    except MalformedRequest:
        return
    assert body <= len(raw)
