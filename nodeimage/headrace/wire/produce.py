"""Produce: codecs of requests and responses for `VERSIONS`.

    Request  => [v3+ transactional_id NULLABLE_STRING] acks INT16, timeout_ms INT32,
                topics [name STRING, partitions [index INT32, records NULLABLE_BYTES]]
    Response => topics [name STRING, partitions [index INT32, error INT16, base_offset INT64,
                        [v2+ log_append_time INT64] [v5+ log_start INT64]
                        [v8+ record_errors [], message NULLABLE_STRING]]]
                [v1+ throttle_ms INT32]

From version 9 strings, arrays and records are compact, and each struct ends with tagged fields. Versions 0 to 2 carry
message sets of the old format: these are passed on unchanged, and `wire/batch.py` refuses them.
"""

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from headrace.base.errors import InvalidBatch, MalformedRequest
from headrace.native import codecs
from headrace.wire.api_keys import Versions
from headrace.wire.primitives import (
    INT32,
    INT64,
    Buffer,
    bounded,
    check_end,
    malformed,
    put_count,
    put_message,
    put_nullable_string,
    put_string,
    read_count,
    read_nullable_string,
    read_string,
    read_uvarint,
    skip_tags,
    uvarint,
)
from headrace.wire.records import Checked

VERSIONS: Final = Versions(0, 11)
"""The versions of Produce that this module reads and writes."""
FLEXIBLE: Final = 9

_ACKS_TIMEOUT: Final = struct.Struct(">hi")
_INDEX_LENGTH: Final = struct.Struct(">ii")
_RESULT: Final = struct.Struct(">ihq")  # index, error, base offset
_RESULT_V5: Final = struct.Struct(">ihqqq")  # with log append time and log start
_TIMES: Final = struct.Struct(">qq")  # log append time, log start
_ONE_TOPIC: Final = struct.Struct(">ih")  # an array of one topic, the length of its name
_ONE: Final = b"\x02"  # the length of a compact array of one element
_NO_ERRORS: Final = INT32.pack(0) + b"\xff\xff"  # no record errors, no message
_native = codecs


class PartitionRecords(NamedTuple):
    """The records for one partition of a Produce request: a slice of its buffer, writable if the buffer is."""

    topic: str
    partition: int
    records: memoryview | None
    checked: Checked | InvalidBatch | None = None
    """The result of the check of the records, if they were checked beforehand (records.py)."""


class ProduceRequest(NamedTuple):
    """A Produce request; `partitions` in their order on the wire."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    partitions: list[PartitionRecords]


class ProduceResult(NamedTuple):
    """The response for one partition. `append_time` and `log_start` are -1 if they do not apply."""

    topic: str
    partition: int
    error: int
    base_offset: int = -1
    append_time: int = -1
    log_start: int = -1
    message: str | None = None
    record_errors: tuple[tuple[int, str], ...] = ()
    """The (index in the batch, reason) of the records that caused the error (KIP-467); () if the whole batch did."""


def decode_request(buf: memoryview, body: int, version: int) -> ProduceRequest:
    """Reads the request whose body starts at `body`; records are slices of `buf`. Raises `MalformedRequest`."""
    if _native is not None:
        request = _native.decode_produce(buf, body, version, ProduceRequest, PartitionRecords)
        if request is not None:
            return request
    try:  # as the decorator `malformed`, without the cost of its call: this is the hottest decoder
        return _decode_request(buf, body, version)
    except (IndexError, struct.error, UnicodeDecodeError) as error:
        raise MalformedRequest(f"{__name__}: the bytes end early, or are not of the expected type: {error}") from error


def _decode_request(buf: memoryview, body: int, version: int) -> ProduceRequest:
    flexible = version >= FLEXIBLE
    pos = body
    transactional_id: str | None = None
    if version >= 3:
        transactional_id, pos = read_nullable_string(buf, pos, flexible)
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(buf, pos)
    topics, pos = read_count(buf, pos + 6, flexible)
    partitions: list[PartitionRecords] = []
    for _ in range(bounded(topics, "topics")):
        topic, pos = read_string(buf, pos, flexible)
        count, pos = read_count(buf, pos, flexible)
        bounded(len(partitions) + count, "partitions")
        for _ in range(count):
            if flexible:
                (index,) = INT32.unpack_from(buf, pos)
                length, pos = read_uvarint(buf, pos + 4)
                length -= 1
            else:
                index, length = _INDEX_LENGTH.unpack_from(buf, pos)
                pos += 8
            records: memoryview | None = None
            if length >= 0:
                end = pos + length
                if end > len(buf):
                    raise MalformedRequest(f"records of {length} bytes are announced, {len(buf) - pos} are left")
                records = buf[pos:end]
                pos = end
            elif length != -1:
                raise MalformedRequest(f"records of {length} bytes are announced")
            if flexible:
                pos = skip_tags(buf, pos)
            partitions.append(PartitionRecords(topic, index, records))
        if flexible:
            pos = skip_tags(buf, pos)
    if flexible:
        pos = skip_tags(buf, pos)
    check_end(buf, pos)
    return ProduceRequest(transactional_id, acks, timeout_ms, partitions)


def encode_response(version: int, results: Sequence[ProduceResult], throttle_ms: int = 0) -> bytes:
    """The body of the response, with results grouped by topic; topics and partitions in the order of `results`."""
    if _native is not None and isinstance(results, list):
        body = _native.encode_produced(version, results, throttle_ms)
        if body is not None:
            return body
    flexible = version >= FLEXIBLE
    if len(results) == 1 and version >= 5 and results[0].message is None and not results[0].record_errors:
        return _encode_one(version, results[0], throttle_ms)
    by_topic: dict[str, list[ProduceResult]] = {}
    for result in results:
        group = by_topic.get(result.topic)
        if group is None:
            by_topic[result.topic] = [result]
        else:
            group.append(result)
    out = bytearray()
    put_count(out, len(by_topic), flexible)
    for topic, group in by_topic.items():
        put_string(out, topic, flexible)
        put_count(out, len(group), flexible)
        for result in group:
            _put_result(out, version, result)
        if flexible:
            out += b"\x00"
    if version >= 1:
        out += INT32.pack(throttle_ms)
    if flexible:
        out += b"\x00"
    return bytes(out)


def _encode_one(version: int, result: ProduceResult, throttle_ms: int) -> bytes:
    """The body for one partition without a message, the most frequent response; version 5 and above."""
    topic, partition, error, base_offset, append_time, log_start, *_ = result
    name = topic.encode()
    numbers = _RESULT_V5.pack(partition, error, base_offset, append_time, log_start)
    throttle = INT32.pack(throttle_ms)
    if version >= FLEXIBLE:  # no record errors, no message, and no tagged fields of partition, topic and response
        return b"".join((_ONE, uvarint(len(name) + 1), name, _ONE, numbers, b"\x01\x00\x00\x00", throttle, b"\x00"))
    nothing = _NO_ERRORS if version >= 8 else b""
    return b"".join((_ONE_TOPIC.pack(1, len(name)), name, INT32.pack(1), numbers, nothing, throttle))


def _put_result(out: bytearray, version: int, result: ProduceResult) -> None:
    _, partition, error, base_offset, append_time, log_start, message, record_errors = result
    if version >= 5:
        out += _RESULT_V5.pack(partition, error, base_offset, append_time, log_start)
    else:
        out += _RESULT.pack(partition, error, base_offset)
        if version >= 2:
            out += INT64.pack(append_time)
    if version >= 8:
        flexible = version >= FLEXIBLE
        put_count(out, len(record_errors), flexible)
        for index, reason in record_errors:
            out += INT32.pack(index)
            put_message(out, reason, flexible)
            if flexible:
                out += b"\x00"
        put_message(out, message, flexible)
        if flexible:
            out += b"\x00"


def encode_request(version: int, request: ProduceRequest) -> bytes:
    """The body of a request; partitions are grouped by topic, in the order of each topic's first partition."""
    flexible = version >= FLEXIBLE
    by_topic: dict[str, list[PartitionRecords]] = {}
    for partition in request.partitions:
        by_topic.setdefault(partition.topic, []).append(partition)
    out = bytearray()
    if version >= 3:
        put_nullable_string(out, request.transactional_id, flexible)
    out += _ACKS_TIMEOUT.pack(request.acks, request.timeout_ms)
    put_count(out, len(by_topic), flexible)
    for topic, group in by_topic.items():
        put_string(out, topic, flexible)
        put_count(out, len(group), flexible)
        for _, index, records, _ in group:
            length = -1 if records is None else len(records)
            out += INT32.pack(index)
            out += uvarint(length + 1) if flexible else INT32.pack(length)
            if records is not None:
                out += records
            if flexible:
                out += b"\x00"
        if flexible:
            out += b"\x00"
    if flexible:
        out += b"\x00"
    return bytes(out)


@malformed
def decode_response(buf: Buffer, body: int, version: int) -> tuple[list[ProduceResult], int]:
    """The results of the response whose body starts at `body`, and its throttle time in milliseconds. Raises
    `MalformedRequest`."""
    flexible = version >= FLEXIBLE
    topics, pos = read_count(buf, body, flexible)
    results: list[ProduceResult] = []
    for _ in range(topics):
        topic, pos = read_string(buf, pos, flexible)
        count, pos = read_count(buf, pos, flexible)
        for _ in range(count):
            result, pos = _read_result(buf, pos, version, topic)
            results.append(result)
        if flexible:
            pos = skip_tags(buf, pos)
    throttle_ms = 0
    if version >= 1:
        (throttle_ms,) = INT32.unpack_from(buf, pos)
        pos += 4
    if flexible:
        pos = skip_tags(buf, pos)
    check_end(buf, pos)
    return results, throttle_ms


def _read_result(buf: Buffer, pos: int, version: int, topic: str) -> tuple[ProduceResult, int]:
    flexible = version >= FLEXIBLE
    partition, error, base_offset = _RESULT.unpack_from(buf, pos)
    pos += _RESULT.size
    append_time = log_start = -1
    message: str | None = None
    of_records: list[tuple[int, str]] = []
    if version >= 5:
        append_time, log_start = _TIMES.unpack_from(buf, pos)
        pos += 16
    elif version >= 2:
        (append_time,) = INT64.unpack_from(buf, pos)
        pos += 8
    if version >= 8:
        errors, pos = read_count(buf, pos, flexible)
        for _ in range(errors):
            (index,) = INT32.unpack_from(buf, pos)
            reason, pos = read_nullable_string(buf, pos + 4, flexible)
            of_records.append((index, reason or ""))
            if flexible:
                pos = skip_tags(buf, pos)
        message, pos = read_nullable_string(buf, pos, flexible)
    if flexible:
        pos = skip_tags(buf, pos)
    found = ProduceResult(topic, partition, error, base_offset, append_time, log_start, message, tuple(of_records))
    return found, pos
