"""Fetch: codecs of requests and responses for `VERSIONS`. Records pass through as buffers, uncopied.

    Request  => [v4-14 replica_id INT32] max_wait_ms INT32, min_bytes INT32, max_bytes INT32, isolation INT8,
                [v7+ session_id INT32, session_epoch INT32],
                topics [name STRING (v13+ id UUID), partitions [partition INT32, [v9+ current_leader_epoch INT32],
                        offset INT64, [v12+ last_fetched_epoch INT32] [v5+ log_start INT64] max_bytes INT32]]
                [v7+ forgotten [name STRING (v13+ id UUID), partitions [INT32]]] [v11+ rack STRING]
                [v15+ tag 1: replica state (replica_id INT32, epoch INT64)]
    Response => throttle_ms INT32, [v7+ error INT16, session_id INT32],
                topics [name STRING (v13+ id UUID), partitions [partition INT32, error INT16, high_watermark INT64,
                        last_stable INT64, [v5+ log_start INT64],
                        aborted NULLABLE [producer_id INT64, first_offset INT64],
                        [v11+ preferred_replica INT32], records NULLABLE_BYTES,
                        [v12+ tag 1: current leader (leader_id INT32, leader_epoch INT32)]]]

From version 12 strings, arrays and records are compact, and each struct ends with tagged fields.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from headrace.base.errors import MalformedRequest
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
    put_int32s,
    put_string,
    read_bytes,
    read_count,
    read_int32s,
    read_nullable_count,
    read_string,
    read_uvarint,
    skip_tags,
    uvarint,
)

VERSIONS: Final = Versions(4, 16)
"""The versions of Fetch that this module reads and writes."""
FLEXIBLE: Final = 12
TOPIC_IDS: Final = 13
COPY_BELOW: Final = 2048
"""Records of fewer bytes are copied next to their header: the copy is cheaper than one more buffer for writev."""
_NAMED: Final = "topics or partitions"
_native = codecs
_REPLICA_STATE: Final = 1
_REPLICA_TAG: Final = struct.Struct(">BBBiqB")
"""One tag, its number, its size, replica id, epoch, the struct's own tags."""

_LIMITS: Final = struct.Struct(">iiib")  # max wait, min bytes, max bytes, isolation
_SESSION: Final = struct.Struct(">ii")
_ERROR_SESSION: Final = struct.Struct(">hi")
_PARTITION_V12: Final = struct.Struct(">iiqiqi")
_PARTITION_V9: Final = struct.Struct(">iiqqi")
_PARTITION_V5: Final = struct.Struct(">iqqi")
_PARTITION_V4: Final = struct.Struct(">iqi")
_RESULT: Final = struct.Struct(">ihqq")  # partition, error, high watermark, last stable offset
_ABORTED: Final = struct.Struct(">qq")
_LEADER_TAG: Final = struct.Struct(">BBBiiB")
"""One tag, its number, its size, leader id, leader epoch, the struct's own tags."""


class FetchPartition(NamedTuple):
    """The request for one partition. Epochs and `log_start` are -1 if the version or the client has none."""

    partition: int
    current_leader_epoch: int
    offset: int
    last_fetched_epoch: int
    log_start: int
    max_bytes: int


class FetchTopic(NamedTuple):
    """The request for one topic: by name up to version 12, by id (16 bytes) from version 13."""

    topic: str | None
    topic_id: bytes | None
    partitions: list[FetchPartition]


class FetchRequest(NamedTuple):
    """A Fetch request. `forgotten` are (topic, topic id, partitions) to drop from the session (KIP-227)."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation: int
    session_id: int
    session_epoch: int
    topics: list[FetchTopic]
    forgotten: list[tuple[str | None, bytes | None, list[int]]]
    rack: str
    replica_id: int = -1
    """The node id of a follower; -1 for a consumer."""


@dataclass(slots=True)
class FetchResult:
    """The response for one partition. `records`: buffers with whole batches, sent one after the other.

    `aborted`: (producer id, first offset) of aborted transactions. A `leader_id` of 0 or more names the current leader
    (v12+).
    """

    partition: int
    error: int
    high_watermark: int = -1
    last_stable: int = -1
    log_start: int = -1
    records: list[Buffer] = field(default_factory=list)
    preferred_replica: int = -1
    aborted: Sequence[tuple[int, int]] | None = None
    leader_id: int = -1
    leader_epoch: int = -1


class FetchTopicResult(NamedTuple):
    """The response for one topic."""

    topic: str | None
    topic_id: bytes | None
    partitions: list[FetchResult]


class FetchResponse(NamedTuple):
    """A decoded response."""

    throttle_ms: int
    error: int
    session_id: int
    topics: list[FetchTopicResult]


def decode_request(buf: Buffer, body: int, version: int) -> FetchRequest:
    """Reads the request whose body starts at `body`. Raises `MalformedRequest`."""
    if _native is not None:
        request = _native.decode_fetch(buf, body, version, FetchRequest, FetchTopic, FetchPartition)
        if request is not None:
            return request
    return _decode_request(buf, body, version)


@malformed
def _decode_request(buf: Buffer, body: int, version: int) -> FetchRequest:
    flexible = version >= FLEXIBLE
    replica_id, pos = -1, body
    if version < 15:
        (replica_id,) = INT32.unpack_from(buf, pos)
        pos += INT32.size
    max_wait_ms, min_bytes, max_bytes, isolation = _LIMITS.unpack_from(buf, pos)
    pos += _LIMITS.size
    session_id, session_epoch = 0, -1
    if version >= 7:
        session_id, session_epoch = _SESSION.unpack_from(buf, pos)
        pos += 8
    count, pos = read_count(buf, pos, flexible)
    topics: list[FetchTopic] = []
    total = 0
    for _ in range(bounded(count, _NAMED)):
        topic, topic_id, pos = _read_topic(buf, pos, version)
        partitions, pos = _read_partitions(buf, pos, version)
        total = bounded(total + len(partitions), _NAMED)
        topics.append(FetchTopic(topic, topic_id, partitions))
        if flexible:
            pos = skip_tags(buf, pos)
    forgotten: list[tuple[str | None, bytes | None, list[int]]] = []
    if version >= 7:
        count, pos = read_count(buf, pos, flexible)
        total = 0
        for _ in range(bounded(count, _NAMED)):
            topic, topic_id, pos = _read_topic(buf, pos, version)
            numbers, pos = read_int32s(buf, pos, flexible)
            total = bounded(total + len(numbers), _NAMED)
            forgotten.append((topic, topic_id, numbers))
            if flexible:
                pos = skip_tags(buf, pos)
    rack = ""
    if version >= 11:
        rack, pos = read_string(buf, pos, flexible)
    if version >= 15:
        replica_id, pos = _read_replica_id(buf, pos)
    elif flexible:
        pos = skip_tags(buf, pos)
    check_end(buf, pos)
    return FetchRequest(
        max_wait_ms, min_bytes, max_bytes, isolation, session_id, session_epoch, topics, forgotten, rack, replica_id
    )


def _read_replica_id(buf: Buffer, pos: int) -> tuple[int, int]:
    """The replica id in the request's tagged field 1, the replica state (KIP-903), or -1, and the position behind all
    tagged fields. Other tags are skipped."""
    end = skip_tags(buf, pos)
    replica_id = -1
    if end == pos + 1:
        return replica_id, end
    count, pos = read_uvarint(buf, pos)
    for _ in range(count):
        tag, pos = read_uvarint(buf, pos)
        size, pos = read_uvarint(buf, pos)
        if tag == _REPLICA_STATE:
            if size < INT32.size:
                raise MalformedRequest("the state of a replica is too short")
            (replica_id,) = INT32.unpack_from(buf, pos)
        pos += size
    return replica_id, end


def _read_topic(buf: Buffer, pos: int, version: int) -> tuple[str | None, bytes | None, int]:
    if version >= TOPIC_IDS:
        topic_id, pos = read_bytes(buf, pos, 16)
        return None, bytes(topic_id), pos
    topic, pos = read_string(buf, pos, version >= FLEXIBLE)
    return topic, None, pos


def _read_partitions(buf: Buffer, pos: int, version: int) -> tuple[list[FetchPartition], int]:
    count, pos = read_count(buf, pos, version >= FLEXIBLE)
    partitions: list[FetchPartition] = []
    for _ in range(count):
        if version >= 12:
            partitions.append(FetchPartition._make(_PARTITION_V12.unpack_from(buf, pos)))
            pos = skip_tags(buf, pos + _PARTITION_V12.size)
        elif version >= 9:
            index, epoch, offset, log_start, max_bytes = _PARTITION_V9.unpack_from(buf, pos)
            partitions.append(FetchPartition(index, epoch, offset, -1, log_start, max_bytes))
            pos += _PARTITION_V9.size
        elif version >= 5:
            index, offset, log_start, max_bytes = _PARTITION_V5.unpack_from(buf, pos)
            partitions.append(FetchPartition(index, -1, offset, -1, log_start, max_bytes))
            pos += _PARTITION_V5.size
        else:
            index, offset, max_bytes = _PARTITION_V4.unpack_from(buf, pos)
            partitions.append(FetchPartition(index, -1, offset, -1, -1, max_bytes))
            pos += _PARTITION_V4.size
    return partitions, pos


def encode_response(
    version: int, *, throttle_ms: int = 0, error: int = 0, session_id: int = 0, topics: Sequence[FetchTopicResult]
) -> list[Buffer]:
    """The body as a list of buffers for one `writelines`: large records uncopied, and as few buffers as possible."""
    flexible = version >= FLEXIBLE
    buffers: list[Buffer] = []
    out = bytearray(INT32.pack(throttle_ms))
    if version >= 7:
        out += _ERROR_SESSION.pack(error, session_id)
    put_count(out, len(topics), flexible)
    for topic in topics:
        _put_topic(out, topic.topic, topic.topic_id, version)
        put_count(out, len(topic.partitions), flexible)
        for result in topic.partitions:
            _put_result(out, version, result)
            size = sum(map(len, result.records))
            out += uvarint(size + 1) if flexible else INT32.pack(size)
            if size < COPY_BELOW:
                for records in result.records:
                    out += records
            else:
                buffers.append(out)
                buffers += result.records
                out = bytearray()
            if flexible:
                out += _tags(result)
        if flexible:
            out += b"\x00"
    if flexible:
        out += b"\x00"
    if out:
        buffers.append(out)
    return buffers


def _put_topic(out: bytearray, topic: str | None, topic_id: bytes | None, version: int) -> None:
    if version < TOPIC_IDS:
        if topic is None:
            raise ValueError(f"Fetch {version} names topics, and a topic has no name")
        put_string(out, topic, version >= FLEXIBLE)
    elif topic_id is None:
        raise ValueError(f"Fetch {version} gives topics by id, and a topic has none")
    else:
        out += topic_id


def _put_result(out: bytearray, version: int, result: FetchResult) -> None:
    """Writes the response for one partition up to its records."""
    flexible = version >= FLEXIBLE
    out += _RESULT.pack(result.partition, result.error, result.high_watermark, result.last_stable)
    if version >= 5:
        out += INT64.pack(result.log_start)
    if result.aborted is None:
        put_count(out, -1, flexible)
    else:
        put_count(out, len(result.aborted), flexible)
        for producer_id, first_offset in result.aborted:
            out += _ABORTED.pack(producer_id, first_offset)
            if flexible:
                out += b"\x00"
    if version >= 11:
        out += INT32.pack(result.preferred_replica)


def _tags(result: FetchResult) -> bytes:
    if result.leader_id < 0:
        return b"\x00"
    return _LEADER_TAG.pack(1, 1, 9, result.leader_id, result.leader_epoch, 0)


def encode_request(version: int, request: FetchRequest) -> bytes:
    """The request's body."""
    flexible = version >= FLEXIBLE
    out = bytearray() if version >= 15 else bytearray(INT32.pack(request.replica_id))
    out += _LIMITS.pack(request.max_wait_ms, request.min_bytes, request.max_bytes, request.isolation)
    if version >= 7:
        out += _SESSION.pack(request.session_id, request.session_epoch)
    put_count(out, len(request.topics), flexible)
    for topic in request.topics:
        _put_topic(out, topic.topic, topic.topic_id, version)
        put_count(out, len(topic.partitions), flexible)
        for asked in topic.partitions:
            _put_partition(out, version, asked)
        if flexible:
            out += b"\x00"
    if version >= 7:
        put_count(out, len(request.forgotten), flexible)
        for name, topic_id, numbers in request.forgotten:
            _put_topic(out, name, topic_id, version)
            put_int32s(out, numbers, flexible)
            if flexible:
                out += b"\x00"
    if version >= 11:
        put_string(out, request.rack, flexible)
    if version >= 15 and request.replica_id >= 0:
        out += _REPLICA_TAG.pack(1, _REPLICA_STATE, _REPLICA_TAG.size - 3, request.replica_id, -1, 0)
    elif flexible:
        out += b"\x00"
    return bytes(out)


def _put_partition(out: bytearray, version: int, asked: FetchPartition) -> None:
    index, epoch, offset, _, log_start, max_bytes = asked
    if version >= 12:
        out += _PARTITION_V12.pack(*asked) + b"\x00"
    elif version >= 9:
        out += _PARTITION_V9.pack(index, epoch, offset, log_start, max_bytes)
    elif version >= 5:
        out += _PARTITION_V5.pack(index, offset, log_start, max_bytes)
    else:
        out += _PARTITION_V4.pack(index, offset, max_bytes)


@malformed
def decode_response(buf: Buffer, body: int, version: int) -> FetchResponse:
    """Reads the response whose body starts at `body`; records are slices of `buf`. Raises `MalformedRequest`."""
    flexible = version >= FLEXIBLE
    (throttle_ms,) = INT32.unpack_from(buf, body)
    pos = body + 4
    error = session_id = 0
    if version >= 7:
        error, session_id = _ERROR_SESSION.unpack_from(buf, pos)
        pos += _ERROR_SESSION.size
    count, pos = read_count(buf, pos, flexible)
    topics: list[FetchTopicResult] = []
    for _ in range(count):
        topic, topic_id, pos = _read_topic(buf, pos, version)
        partitions, pos = read_count(buf, pos, flexible)
        results: list[FetchResult] = []
        for _ in range(partitions):
            result, pos = _read_result(buf, pos, version)
            results.append(result)
        topics.append(FetchTopicResult(topic, topic_id, results))
        if flexible:
            pos = skip_tags(buf, pos)
    if flexible:
        pos = skip_tags(buf, pos)
    check_end(buf, pos)
    return FetchResponse(throttle_ms, error, session_id, topics)


def _read_result(buf: Buffer, pos: int, version: int) -> tuple[FetchResult, int]:
    flexible = version >= FLEXIBLE
    result = FetchResult(*_RESULT.unpack_from(buf, pos))
    pos += _RESULT.size
    if version >= 5:
        (result.log_start,) = INT64.unpack_from(buf, pos)
        pos += 8
    count, pos = read_nullable_count(buf, pos, flexible)
    if count >= 0:
        aborted: list[tuple[int, int]] = []
        for _ in range(count):
            producer_id, first_offset = _ABORTED.unpack_from(buf, pos)
            aborted.append((producer_id, first_offset))
            pos = skip_tags(buf, pos + 16) if flexible else pos + 16
        result.aborted = aborted
    if version >= 11:
        (result.preferred_replica,) = INT32.unpack_from(buf, pos)
        pos += 4
    if flexible:
        length, pos = read_uvarint(buf, pos)
        length -= 1
    else:
        (length,) = INT32.unpack_from(buf, pos)
        pos += 4
    if length > 0:
        records, pos = read_bytes(buf, pos, length)
        result.records.append(records)
    elif length < -1:
        raise MalformedRequest(f"records of {length} bytes are announced")
    if flexible:
        pos = _read_tags(buf, pos, result)
    return result, pos


def _read_tags(buf: Buffer, pos: int, result: FetchResult) -> int:
    """Reads the current leader from the tagged fields at `pos`, and skips the others; returns the position behind."""
    end = skip_tags(buf, pos)
    count, pos = read_uvarint(buf, pos)
    for _ in range(count):
        tag, pos = read_uvarint(buf, pos)
        size, pos = read_uvarint(buf, pos)
        if tag == 1:
            result.leader_id, result.leader_epoch = _SESSION.unpack_from(buf, pos)
        pos += size
    return end
