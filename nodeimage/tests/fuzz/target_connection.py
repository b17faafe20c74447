"""A client's whole way in: bytes to a connection of a real broker, answers out.

An input is pieces, each a length and bytes; a piece goes in as a frame of that length, or as it is if its first bit is
set. Whatever comes, the broker must answer in order or close the connection for a reason of its own ("internal error"
is none), and serve the next client.

Each input goes in twice: at a listener without security, and at one with SASL, where nothing but ApiVersions may be
answered before the input has authenticated.
"""

import asyncio
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import structlog

from headrace.kafka import sasl_gate
from headrace.kafka.connection import Connection, Handler, Slot
from headrace.kafka.sasl_gate import SaslConnection, SaslGate
from headrace.kafka.unproven_connections import UnprovenConnections
from headrace.node import Node, Options
from headrace.partitions.cluster_layout import NodeSettings
from headrace.security.sasl import exchange
from headrace.security.sasl.mechanisms import offered_mechanisms
from headrace.wire import fetch, generic_codec, metadata, produce
from headrace.wire.api_keys import ApiKey
from headrace.wire.batch import build_batch
from headrace.wire.header import RequestHeader, request_header
from kit.heard_transport import HeardTransport
from kit.sasl import PASSWORD, MemoryCredentials, run_at_once

PATIENCE_S = 0.05
"""How long a request may wait (a fetch, a group's members) before its client hangs up."""
FAULTS = frozenset({"request failed", "task failed", "admin call failed", "catalog_listener_failed", "catalog_failed"})

loop = asyncio.new_event_loop()
faults: list[str] = []
node: Node
gate: SaslGate


def _note(_logger: Any, _method: str, event: Any) -> Any:
    if event.get("event") in FAULTS:
        faults.append(repr(structlog.processors.format_exc_info(_logger, _method, event)))
    raise structlog.DropEvent


class Proven:
    """What a gate hands requests to: those of clients that have authenticated, and ApiVersions."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self.connected = handler.connected
        self.disconnected = handler.disconnected
        self.failed = handler.failed

    def handle(self, session: Connection, header: RequestHeader, request: memoryview, slot: Slot) -> None:
        assert isinstance(session, SaslConnection)
        if not session.is_proven and header.api_key != ApiKey.API_VERSIONS:
            faults.append(f"key {header.api_key} before authentication")
        if session.exchange.is_under_way:
            faults.append(f"key {header.api_key} during authentication")
        self._handler.handle(session, header, request, slot)


def setup(folder: Path) -> None:
    """Start a node in memory."""
    global node, gate
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
    sasl_gate.FAILED_S = 0.0  # type: ignore[misc]  # an input that fails is one of thousands
    exchange.MIN_INTERVAL_MS = 0  # type: ignore[misc]
    credentials = MemoryCredentials()
    credentials.add("fuzz", "SCRAM-SHA-256")
    mechanisms = ("SCRAM-SHA-256", "PLAIN")
    gate = SaslGate(
        Proven(node.parts.dispatcher),
        offered=offered_mechanisms(mechanisms, credentials=credentials, run_blocking=run_at_once),
        max_reauth_ms=60_000,
        security_protocol="SASL_PLAINTEXT",
        unproven=UnprovenConnections(loop),
        runtime=node.parts.runtime,
        heard=lambda _connection, _attempt: None,
    )


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
    yield from sasl_seeds()
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


def sasl_seeds() -> Iterator[bytes]:
    """Authentications: right and wrong, with and without headers, twice, and with what may come around them."""

    def asked(key: ApiKey, version: int, **fields: Any) -> bytes:
        return frame(key, version, generic_codec.encode_request(key, version, fields))

    versions = asked(ApiKey.API_VERSIONS, 0)
    table = frame(ApiKey.METADATA, 9, metadata.encode_request(9, metadata.MetadataRequest([("t", None)], True)))
    plain, scram = (asked(ApiKey.SASL_HANDSHAKE, 1, mechanism=name) for name in ("PLAIN", "SCRAM-SHA-256"))
    bare = asked(ApiKey.SASL_HANDSHAKE, 0, mechanism="PLAIN")
    for version in (0, 1, 2):
        right, wrong = (
            asked(ApiKey.SASL_AUTHENTICATE, version, auth_bytes=f"\0fuzz\0{word}".encode()) for word in (PASSWORD, "x")
        )
        yield versions + plain + right + table
        yield plain + right + plain + right + table
        yield plain + wrong + table
        yield scram + asked(ApiKey.SASL_AUTHENTICATE, version, auth_bytes=b"n,,n=fuzz,r=abc") + right
    token = f"\0fuzz\0{PASSWORD}".encode()
    yield bare + struct.pack(">H", len(token)) + token + table
    yield plain + table
    yield asked(ApiKey.SASL_HANDSHAKE, 1, mechanism="GSSAPI") + table


def run(data: bytes) -> None:
    """One client of each listener, from its first byte to its end."""
    loop.run_until_complete(_talk(data, lambda: Connection(node.parts.dispatcher)))
    loop.run_until_complete(_talk(data, lambda: SaslConnection(gate, listener="sasl")))
    if len(gate.unproven):
        faults.append("a connection is unproven that is gone")
    if faults:
        raise AssertionError("; ".join(faults))


async def _talk(data: bytes, connect: Callable[[], Connection]) -> None:
    connection, wire = connect(), HeardTransport()
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
    if isinstance(connection, SaslConnection):
        wire.frames()  # some have no header: their order cannot be told
    else:
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
