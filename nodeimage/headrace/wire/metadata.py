"""Metadata: codecs of requests and responses for `VERSIONS`. Optimized for responses with ten thousand topics.

    Request  => topics NULLABLE [[v10+ id UUID], name STRING (v10+ NULLABLE)],
                [v4+ allow_auto_create BOOLEAN] [v8-10 cluster_operations BOOLEAN] [v8+ topic_operations BOOLEAN]
    Response => [v3+ throttle_ms INT32],
                brokers [node_id INT32, host STRING, port INT32, [v1+ rack NULLABLE_STRING]],
                [v2+ cluster_id NULLABLE_STRING] [v1+ controller_id INT32],
                topics [error INT16, name STRING (v12+ NULLABLE), [v10+ id UUID] [v1+ internal BOOLEAN],
                        partitions [error INT16, partition INT32, leader INT32, [v7+ leader_epoch INT32],
                                    replicas [INT32], isr [INT32], [v5+ offline [INT32]]],
                        [v8+ operations INT32]]
                [v8-10 cluster_operations INT32]

From version 9 strings and arrays are compact, and each struct ends with tagged fields. A request for all topics has an
empty array in version 0, and null in later versions. Authorized operations that were not requested have the lowest
value of INT32.
"""

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from headrace.base.errors import MalformedRequest
from headrace.wire.api_keys import Versions
from headrace.wire.primitives import (
    INT16,
    INT32,
    NO_UUID,
    Buffer,
    check_end,
    malformed,
    put_count,
    put_int32s,
    put_nullable_string,
    put_string,
    read_bytes,
    read_count,
    read_int32s,
    read_nullable_count,
    read_nullable_string,
    read_string,
    skip_tags,
)

VERSIONS: Final = Versions(0, 12)
"""The versions of Metadata that this module reads and writes."""
FLEXIBLE: Final = 9

NO_OPERATIONS: Final = -(1 << 31)
_PARTITION_V7 = struct.Struct(">hiii")
_PARTITION_V0 = struct.Struct(">hii")


class MetadataRequest(NamedTuple):
    """A Metadata request. `topics`: (name, topic id) pairs, of which one is None; None requests all topics."""

    topics: list[tuple[str | None, bytes | None]] | None
    allow_auto_create: bool
    cluster_operations: bool = False
    topic_operations: bool = False
    """Whether the client requests the authorized operations of each topic (KIP-430)."""


class Broker(NamedTuple):
    """A node with the address at which clients reach it."""

    node_id: int
    host: str
    port: int
    rack: str | None


class PartitionMeta(NamedTuple):
    """A partition, with the node ids of its leader and replicas."""

    error: int
    partition: int
    leader: int
    leader_epoch: int
    replicas: Sequence[int]
    isr: Sequence[int]
    offline: Sequence[int]


class TopicMeta(NamedTuple):
    """A topic. `topic_id` has 16 bytes, zeros if unknown; `name` is None only for an unknown id (v12+)."""

    error: int
    name: str | None
    topic_id: bytes
    internal: bool
    partitions: Sequence[PartitionMeta]
    operations: int = NO_OPERATIONS
    """A bit for each authorized AclOperation."""


class MetadataResponse(NamedTuple):
    """A decoded response."""

    throttle_ms: int
    brokers: list[Broker]
    cluster_id: str | None
    controller_id: int
    topics: list[TopicMeta]
    operations: int = NO_OPERATIONS


@malformed
def decode_request(buf: Buffer, body: int, version: int) -> MetadataRequest:
    """Reads the request whose body starts at `body`. Raises `MalformedRequest`.

    Ignores bytes behind the end: librdkafka (2.16) requests all topics with four zero bytes, although null has only
    one byte.
    """
    flexible = version >= FLEXIBLE
    count, pos = read_nullable_count(buf, body, flexible)
    if count < 0 and version == 0:
        raise MalformedRequest("Metadata 0 with null topics")
    topics: list[tuple[str | None, bytes | None]] = []
    for _ in range(count):
        topic_id: bytes | None = None
        name: str | None
        if version >= 10:
            raw, pos = read_bytes(buf, pos, 16)
            topic_id = bytes(raw) if raw != NO_UUID else None
            name, pos = read_nullable_string(buf, pos, flexible)
        else:
            name, pos = read_string(buf, pos, flexible)
        topics.append((name, topic_id))
        if flexible:
            pos = skip_tags(buf, pos)
    everything = count < 0 or (count == 0 and version == 0)
    allow_auto_create = True
    if version >= 4:
        allow_auto_create = buf[pos] != 0
        pos += 1
    cluster_operations = topic_operations = False
    if 8 <= version <= 10:
        cluster_operations = buf[pos] != 0
        pos += 1
    if version >= 8:
        topic_operations = buf[pos] != 0
        pos += 1
    if flexible:
        pos = skip_tags(buf, pos)
    if pos > len(buf):
        raise MalformedRequest(f"a Metadata request ends {pos - len(buf)} bytes early")
    return MetadataRequest(None if everything else topics, allow_auto_create, cluster_operations, topic_operations)


def encode_response(
    version: int,
    *,
    throttle_ms: int = 0,
    brokers: Sequence[Broker],
    cluster_id: str | None,
    controller_id: int,
    topics: Sequence[TopicMeta | bytes],
    operations: int = NO_OPERATIONS,
) -> bytes:
    """The body of the response. `cluster_id`, racks and ids are omitted in versions without them.

    A topic may be given as the bytes that `encode_topic` returned for it and this version.
    """
    flexible = version >= FLEXIBLE
    out = bytearray()
    if version >= 3:
        out += INT32.pack(throttle_ms)
    put_count(out, len(brokers), flexible)
    for broker in brokers:
        out += INT32.pack(broker.node_id)
        put_string(out, broker.host, flexible)
        out += INT32.pack(broker.port)
        if version >= 1:
            put_nullable_string(out, broker.rack, flexible)
        if flexible:
            out += b"\x00"
    if version >= 2:
        put_nullable_string(out, cluster_id, flexible)
    if version >= 1:
        out += INT32.pack(controller_id)
    put_count(out, len(topics), flexible)
    for topic in topics:
        if isinstance(topic, bytes):
            out += topic
        else:
            _put_topic(out, version, topic)
    if 8 <= version <= 10:
        out += INT32.pack(operations)
    if flexible:
        out += b"\x00"
    return bytes(out)


def encode_topic(version: int, topic: TopicMeta) -> bytes:
    """One topic as encoded in a response of this version. Callers can cache it, as clients request the same topics
    again and again."""
    out = bytearray()
    _put_topic(out, version, topic)
    return bytes(out)


def _put_topic(out: bytearray, version: int, topic: TopicMeta) -> None:
    flexible = version >= FLEXIBLE
    error, name, topic_id, internal, partitions, operations = topic
    out += INT16.pack(error)
    put_nullable_string(out, name if version >= 12 else name or "", flexible)
    if version >= 10:
        out += topic_id
    if version >= 1:
        out += b"\x01" if internal else b"\x00"
    put_count(out, len(partitions), flexible)
    for partition in partitions:
        _put_partition(out, version, partition)
    if version >= 8:
        out += INT32.pack(operations)
    if flexible:
        out += b"\x00"


def _put_partition(out: bytearray, version: int, partition: PartitionMeta) -> None:
    error, index, leader, epoch, replicas, isr, offline = partition
    if version >= 7:
        flexible = version >= FLEXIBLE
        r, i, o = len(replicas), len(isr), len(offline)
        plus = 1 if flexible else 0  # a compact count is encoded as count + 1
        layout = _partition_layout(flexible, r, i, o)
        out += layout.pack(error, index, leader, epoch, r + plus, *replicas, i + plus, *isr, o + plus, *offline)
        return
    out += _PARTITION_V0.pack(error, index, leader)
    put_int32s(out, replicas, False)
    put_int32s(out, isr, False)
    if version >= 5:
        put_int32s(out, offline, False)


@lru_cache(maxsize=1024)
def _partition_layout(flexible: bool, replicas: int, isr: int, offline: int) -> struct.Struct:
    """The layout, from version 7, of a partition with these numbers of nodes (below 127) and no tagged fields."""
    if not flexible:
        return struct.Struct(f">hiiii{replicas}ii{isr}ii{offline}i")
    return struct.Struct(f">hiiiB{replicas}iB{isr}iB{offline}ix")


def encode_request(version: int, request: MetadataRequest) -> bytes:
    """The body of a request."""
    flexible = version >= FLEXIBLE
    out = bytearray()
    if request.topics is None:
        put_count(out, -1 if version else 0, flexible)
    else:
        if not version and not request.topics:
            raise ValueError("Metadata 0 cannot ask for no topics")
        put_count(out, len(request.topics), flexible)
        for name, topic_id in request.topics:
            if version >= 10:
                out += topic_id or NO_UUID
                put_nullable_string(out, name, flexible)
            elif name is None:
                raise ValueError(f"Metadata {version} asks for topics by name, and one has none")
            else:
                put_string(out, name, flexible)
            if flexible:
                out += b"\x00"
    if version >= 4:
        out += b"\x01" if request.allow_auto_create else b"\x00"
    if 8 <= version <= 10:
        out += b"\x01" if request.cluster_operations else b"\x00"
    if version >= 8:
        out += b"\x01" if request.topic_operations else b"\x00"
    if flexible:
        out += b"\x00"
    return bytes(out)


@malformed
def decode_response(buf: Buffer, body: int, version: int) -> MetadataResponse:
    """Reads the response whose body starts at `body`. Raises `MalformedRequest`."""
    flexible = version >= FLEXIBLE
    pos = body
    throttle_ms = 0
    if version >= 3:
        (throttle_ms,) = INT32.unpack_from(buf, pos)
        pos += 4
    count, pos = read_count(buf, pos, flexible)
    brokers: list[Broker] = []
    for _ in range(count):
        (node_id,) = INT32.unpack_from(buf, pos)
        host, pos = read_string(buf, pos + 4, flexible)
        (port,) = INT32.unpack_from(buf, pos)
        pos += 4
        rack: str | None = None
        if version >= 1:
            rack, pos = read_nullable_string(buf, pos, flexible)
        if flexible:
            pos = skip_tags(buf, pos)
        brokers.append(Broker(node_id, host, port, rack))
    cluster_id: str | None = None
    controller_id = -1
    if version >= 2:
        cluster_id, pos = read_nullable_string(buf, pos, flexible)
    if version >= 1:
        (controller_id,) = INT32.unpack_from(buf, pos)
        pos += 4
    count, pos = read_count(buf, pos, flexible)
    topics: list[TopicMeta] = []
    for _ in range(count):
        topic, pos = _read_topic(buf, pos, version)
        topics.append(topic)
    operations = NO_OPERATIONS
    if 8 <= version <= 10:
        (operations,) = INT32.unpack_from(buf, pos)
        pos += 4
    if flexible:
        pos = skip_tags(buf, pos)
    check_end(buf, pos)
    return MetadataResponse(throttle_ms, brokers, cluster_id, controller_id, topics, operations)


def _read_topic(buf: Buffer, pos: int, version: int) -> tuple[TopicMeta, int]:
    flexible = version >= FLEXIBLE
    (error,) = INT16.unpack_from(buf, pos)
    name, pos = read_nullable_string(buf, pos + 2, flexible)
    topic_id: Buffer = NO_UUID
    internal = False
    if version >= 10:
        topic_id, pos = read_bytes(buf, pos, 16)
    if version >= 1:
        internal = buf[pos] != 0
        pos += 1
    count, pos = read_count(buf, pos, flexible)
    partitions: list[PartitionMeta] = []
    for _ in range(count):
        partition, pos = _read_partition(buf, pos, version)
        partitions.append(partition)
    operations = NO_OPERATIONS
    if version >= 8:
        (operations,) = INT32.unpack_from(buf, pos)
        pos += 4
    if flexible:
        pos = skip_tags(buf, pos)
    return TopicMeta(error, name, bytes(topic_id), internal, partitions, operations), pos


def _read_partition(buf: Buffer, pos: int, version: int) -> tuple[PartitionMeta, int]:
    flexible = version >= FLEXIBLE
    epoch = -1
    if version >= 7:
        error, index, leader, epoch = _PARTITION_V7.unpack_from(buf, pos)
        pos += _PARTITION_V7.size
    else:
        error, index, leader = _PARTITION_V0.unpack_from(buf, pos)
        pos += _PARTITION_V0.size
    replicas, pos = read_int32s(buf, pos, flexible)
    isr, pos = read_int32s(buf, pos, flexible)
    offline: list[int] = []
    if version >= 5:
        offline, pos = read_int32s(buf, pos, flexible)
    if flexible:
        pos = skip_tags(buf, pos)
    return PartitionMeta(error, index, leader, epoch, replicas, isr, offline), pos
