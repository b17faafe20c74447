"""A client's whole way in: bytes to a connection of a real broker, answers out.

An input is pieces, each a length and bytes; a piece goes in as a frame of that length, or as it is if its first bit is
set. Whatever comes, the broker must answer in order or close the connection for a reason of its own ("internal error"
is none), and serve the next client.
"""

import asyncio
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import structlog

from headrace.kafka.connection import Connection
from headrace.node import Node, Options
from headrace.partitions.cluster_layout import NodeSettings
from headrace.wire import fetch, generic_codec, metadata, produce
from headrace.wire.api_keys import ApiKey
from headrace.wire.batch import build_batch
from headrace.wire.header import request_header
from kit.heard_transport import HeardTransport

PATIENCE_S = 0.05
"""How long a request may wait (a fetch, a group's members) before its client hangs up."""
FAULTS = frozenset({"request failed", "task failed", "admin call failed", "catalog_listener_failed", "catalog_failed"})

loop = asyncio.new_event_loop()
faults: list[str] = []
node: Node


def _note(_logger: Any, _method: str, event: Any) -> Any:
    if event.get("event") in FAULTS:
        faults.append(repr(structlog.processors.format_exc_info(_logger, _method, event)))
    raise structlog.DropEvent


def setup(folder: Path) -> None:
    """Start a node in memory."""
    global node
    structlog.configure(processors=[_note], cache_logger_on_first_use=False)
    loop.set_exception_handler(lambda _, context: faults.append(repr(context)))
    folder.mkdir()
    settings = NodeSettings(
        chunk_bytes=1 << 20, partitionlet_bytes=1 << 16, disk_reserve=0, rebalance_delay_ms=0, fsync=False
    )
    options = Options(
        data=folder / "node",
        store=folder / "store.sqlite",
        host="127.0.0.1",
        port=0,
        ready_file=None,
        settings=settings,
    )

    async def start() -> Node:
        made = Node(options)
        await made.start()
        return made

    node = loop.run_until_complete(start())


def frame(key: int, version: int, body: bytes) -> bytes:
    """One piece: a whole request."""
    request = request_header(key, version, 7, "fuzz") + body
    return struct.pack(">H", len(request)) + request


def seeds() -> Iterator[bytes]:
    """A request of each API and version, and a conversation."""
    for key, api in node.parts.dispatcher.apis.items():
        if key in (ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.METADATA, ApiKey.HEADRACE_ADMIN):
            continue
        for version in range(api.versions.lowest, api.versions.highest + 1):
            yield frame(key, version, generic_codec.encode_request(key, version, {}))
    talk = b""
    for version in (1, 9, 12):
        talk += frame(
            ApiKey.METADATA, version, metadata.encode_request(version, metadata.MetadataRequest([("t", None)], True))
        )
    for version in (3, 9):
        batch = memoryview(build_batch([(1, b"k", b"v", [])], producer_id=5, producer_epoch=0, base_sequence=0))
        sent = produce.ProduceRequest(None, -1, 1, [produce.PartitionRecords("t", 0, batch)])
        talk += frame(ApiKey.PRODUCE, version, produce.encode_request(version, sent))
    part = fetch.FetchPartition(0, -1, 0, -1, -1, 1000)
    for version in (4, 7, 12):
        asked = fetch.FetchRequest(1, 1, 1000, 0, 0, 0, [fetch.FetchTopic("t", bytes(16), [part])], [], "")
        talk += frame(ApiKey.FETCH, version, fetch.encode_request(version, asked))
    yield talk
    part_of = {"partitions": [{"partition_index": 0, "timestamp": -1}], "name": "t"}
    yield frame(ApiKey.LIST_OFFSETS, 7, generic_codec.encode_request(ApiKey.LIST_OFFSETS, 7, {"topics": [part_of]}))
    subscription = b"\x00\x00\x00\x00\x00\x01\x00\x01t\x00\x00\x00\x00"
    join = {
        "group_id": "g",
        "session_timeout": 6000,
        "rebalance_timeout": 6000,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": subscription}],
    }
    yield frame(ApiKey.JOIN_GROUP, 5, generic_codec.encode_request(ApiKey.JOIN_GROUP, 5, join)) + frame(
        ApiKey.HEARTBEAT, 3, generic_codec.encode_request(ApiKey.HEARTBEAT, 3, {"group_id": "g"})
    )
    for method in (b"status", b"stream.list", b"chain", b"topic.show"):
        yield frame(
            ApiKey.HEADRACE_ADMIN, 0, b"\x00\x92" + bytes((0xA0 | len(method),)) + method + b"\x81\xa5topic\xa1t"
        )


def run(data: bytes) -> None:
    """One client, from its first byte to its end."""
    loop.run_until_complete(_talk(data))
    if faults:
        raise AssertionError("; ".join(faults))


async def _talk(data: bytes) -> None:
    connection, wire = Connection(node.parts.dispatcher), HeardTransport()
    connection.connection_made(wire)
    pos = 0
    sent: list[int] = []
    while len(data) - pos >= 2 and not wire.over:
        (length,) = struct.unpack_from(">H", data, pos)
        piece = data[pos + 2 : pos + 2 + (length & 0x7FFF)]
        pos += 2 + len(piece)
        if not length & 0x8000:
            if len(piece) >= 8:
                sent.append(struct.unpack_from(">i", piece, 4)[0])
            piece = struct.pack(">i", len(piece)) + piece
        else:
            sent.append(-1)
        await _feed(connection, wire, piece)
    await _quiet(connection, wire)
    _check(bytes(wire.answers), sent)
    connection.connection_lost(None)
    await asyncio.sleep(0)
    assert connection not in node.parts.connections.open


async def _feed(connection: Connection, wire: HeardTransport, piece: bytes) -> None:
    at = 0
    deadline = loop.time() + PATIENCE_S
    while at < len(piece) and not wire.over:
        if not wire.reading:
            if loop.time() > deadline:
                return
            await asyncio.sleep(0.001)
            continue
        room = connection.get_buffer(-1)
        assert len(room), "no room for what the socket has"
        take = min(len(room), len(piece) - at)
        room[:take] = piece[at : at + take]
        at += take
        connection.buffer_updated(take)


async def _quiet(connection: Connection, wire: HeardTransport) -> None:
    """Wait until all is answered, though not for ever: some requests wait for others."""
    deadline = loop.time() + PATIENCE_S
    while (connection.slots or connection._parked) and not wire.over and loop.time() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0.0005)  # the broker has no event for "all is answered"


def _check(answers: bytes, sent: list[int]) -> None:
    """Whole frames, in the order of the requests; pieces that were no frames may have held requests of their own."""
    pos = 0
    got: list[int] = []
    while pos < len(answers):
        (length,) = struct.unpack_from(">i", answers, pos)
        assert 4 <= length <= len(answers) - pos - 4, "half an answer"
        got.append(struct.unpack_from(">i", answers, pos + 4)[0])
        pos += 4 + length
    if -1 not in sent:
        rest = iter(sent)
        assert all(number in rest for number in got), f"{got} in answer to {sent}"
