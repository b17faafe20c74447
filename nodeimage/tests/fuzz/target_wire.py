"""The wire's decoders: whatever the bytes, a request or response, or `MalformedRequest`."""

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from headrace.base.errors import MalformedRequest
from headrace.wire import fetch, generic_codec, metadata, produce
from headrace.wire.admin_call import decode_admin_request
from headrace.wire.api_keys import ApiKey
from headrace.wire.header import read_request_header, read_response_header
from kit.kafka_versions import KAFKA

Decode = Callable[[memoryview, int, int], Any]

HOT: dict[ApiKey, tuple[Decode, Decode]] = {
    ApiKey.PRODUCE: (produce.decode_request, produce.decode_response),
    ApiKey.FETCH: (fetch.decode_request, fetch.decode_response),
    ApiKey.METADATA: (metadata.decode_request, metadata.decode_response),
}
VERSIONS = {
    **KAFKA,
    ApiKey.PRODUCE: produce.VERSIONS,
    ApiKey.FETCH: fetch.VERSIONS,
    ApiKey.METADATA: metadata.VERSIONS,
}
KEYS = list(VERSIONS)
HEADERS, ADMIN, REQUEST, RESPONSE = range(4)


def setup(folder: Path) -> None:
    """Nothing to prepare."""


def seeds() -> Iterator[bytes]:
    """One request with default fields for each API and version, and one response."""
    for row, key in enumerate(KEYS):
        low, high = VERSIONS[key]
        for version in range(low, high + 1):
            if key not in HOT:
                yield bytes((REQUEST, row, version)) + generic_codec.encode_request(key, version, {})
                yield bytes((RESPONSE, row, version)) + generic_codec.encode_response(key, version, {})
    part = fetch.FetchPartition(0, -1, 0, -1, -1, 1)
    asked = fetch.FetchRequest(1, 1, 1, 0, 0, -1, [fetch.FetchTopic("t", bytes(16), [part])], [], "")
    for version in range(4, 17):
        yield bytes((REQUEST, KEYS.index(ApiKey.FETCH), version)) + fetch.encode_request(version, asked)
    sent = produce.ProduceRequest(None, -1, 1, [produce.PartitionRecords("t", 0, memoryview(b"x"))])
    for version in range(12):
        yield bytes((REQUEST, KEYS.index(ApiKey.PRODUCE), version)) + produce.encode_request(version, sent)
    for version in range(13):
        raw = metadata.encode_request(version, metadata.MetadataRequest([("t", None)], True))
        yield bytes((REQUEST, KEYS.index(ApiKey.METADATA), version)) + raw
    yield bytes((HEADERS, 0, 0)) + struct.pack(">hhih", 18, 3, 1, -1) + b"\x00"
    yield bytes((ADMIN, 0, 0)) + b"\x00\x92\xa1x\x80"


def run(data: bytes) -> None:
    """The first three bytes choose what the rest is taken for."""
    if len(data) < 3:
        return
    kind, row, version = data[0] % 4, data[1], data[2]
    raw = data[3:]
    key = KEYS[row % len(KEYS)]
    low, high = VERSIONS[key]
    version = low + version % (high - low + 1)
    try:
        match kind:
            case 0:
                read_request_header(memoryview(raw))
                read_response_header(raw, key, version)
            case 1:
                decode_admin_request(raw)
            case 2:
                if key in HOT:
                    HOT[key][0](memoryview(raw), 0, version)
                else:
                    generic_codec.decode_request(key, version, memoryview(raw))
            case _:
                if key in HOT:
                    HOT[key][1](memoryview(raw), 0, version)
                else:
                    generic_codec.decode_response(key, version, memoryview(raw))
    except MalformedRequest:
        return
