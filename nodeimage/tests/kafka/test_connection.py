"""Framing, order of answers, back-pressure, and what ends a connection, over real sockets."""

import asyncio
import contextlib
import socket
import struct
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from headrace.base.errors import Code
from headrace.base.log_limits import CAUSE_BURST, LEFT_OUT, LogLimits
from headrace.kafka import metadata as broker_metadata
from headrace.kafka.answer_budget import COUNTED_S, MIN_BYTES, SHARED_BYTES
from headrace.kafka.connection import MAX_REQUEST_BYTES, MAX_UNDER_WAY, Connection
from headrace.kafka.idle_connections import IDLE_S
from headrace.node.parts import NodeParts
from headrace.wire import fetch, generic_codec, metadata, produce
from headrace.wire.api_keys import ApiKey
from headrace.wire.batch import build_batch
from headrace.wire.header import read_response_header, request_header

TOPIC = "/default:t"


class Client:
    """One socket, whose requests and answers the test sends and receives one by one."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.sent = 0

    @property
    def port(self) -> int:
        port: int = self.writer.get_extra_info("sockname")[1]
        return port

    def request(self, key: int, version: int, body: bytes) -> bytes:
        """A whole request with the next correlation id."""
        self.sent += 1
        raw = request_header(key, version, self.sent, "by hand") + body
        return struct.pack(">i", len(raw)) + raw

    def send(self, raw: bytes) -> None:
        self.writer.write(raw)

    async def answer(self) -> bytes:
        """The next answer, from its correlation id on."""
        async with asyncio.timeout(20):
            (length,) = struct.unpack(">i", await self.reader.readexactly(4))
            return await self.reader.readexactly(length)

    async def ids(self, count: int) -> list[int]:
        """The correlation ids of the next answers."""
        return [struct.unpack_from(">i", await self.answer())[0] for _ in range(count)]

    async def ended(self) -> bool:
        """True once the other side has closed; fails on further bytes."""
        async with asyncio.timeout(20):
            try:
                return await self.reader.read(1) == b""
            except ConnectionResetError:
                return True


@pytest.fixture
async def connect(broker: NodeParts) -> AsyncIterator[Callable[[], Awaitable[Client]]]:
    opened: list[Client] = []

    async def one() -> Client:
        client = Client(*await asyncio.open_connection(broker.node.host, broker.node.port))
        opened.append(client)
        return client

    yield one
    for client in opened:
        client.writer.close()
        with contextlib.suppress(ConnectionError):
            await client.writer.wait_closed()


def versions(client: Client) -> bytes:
    return client.request(ApiKey.API_VERSIONS, 0, b"")


def made(client: Client, version: int = 9) -> bytes:
    asked = metadata.MetadataRequest([(TOPIC, None)], True)
    return client.request(ApiKey.METADATA, version, metadata.encode_request(version, asked))


def batch(*values: bytes, **fields: Any) -> bytearray:
    return build_batch([(int(time.time() * 1000), None, value, []) for value in values], **fields)


def sends(client: Client, records: bytes | bytearray, *, acks: int = -1, version: int = 9) -> bytes:
    asked = produce.ProduceRequest(None, acks, 1000, [produce.PartitionRecords(TOPIC, 0, memoryview(records))])
    return client.request(ApiKey.PRODUCE, version, produce.encode_request(version, asked))


def fetches(client: Client, offset: int, *, max_wait_ms: int, max_bytes: int = 1 << 20) -> bytes:
    part = fetch.FetchPartition(0, -1, offset, -1, -1, max_bytes)
    asked = fetch.FetchRequest(max_wait_ms, 1, 64 << 20, 0, 0, -1, [fetch.FetchTopic(TOPIC, None, [part])], [], "")
    return client.request(ApiKey.FETCH, 12, fetch.encode_request(12, asked))


async def test_requests_byte_by_byte(connect: Any) -> None:
    client = await connect()
    raw = made(client) + sends(client, batch(b"a")) + versions(client)
    for each in raw:
        client.send(bytes((each,)))
        await client.writer.drain()
        await asyncio.sleep(0)
    assert await client.ids(3) == [1, 2, 3]


async def test_many_requests_in_one_piece_are_answered_in_order(connect: Any) -> None:
    client = await connect()
    raw = made(client)
    for number in range(600):  # more than may be under way
        raw += (versions, made, lambda each: sends(each, batch(b"x")))[number % 3](client)
    client.send(raw)
    assert await client.ids(601) == list(range(1, 602))


async def test_requests_without_an_answer_leave_no_gap(connect: Any) -> None:
    client = await connect()
    client.send(made(client) + sends(client, batch(b"a"), acks=0) + versions(client))
    assert await client.ids(2) == [1, 3]


@pytest.mark.parametrize("others", [[], [batch(b"a")]], ids=["alone", "behind a good one"])
async def test_a_refused_batch_that_wants_no_answer_ends_the_connection(
    broker: NodeParts, connect: Any, others: list[bytearray]
) -> None:
    """Only the end of the connection makes its producer look for another leader."""
    client = await connect()
    client.send(made(client))
    await client.answer()
    parts = [produce.PartitionRecords(TOPIC, 0, memoryview(each)) for each in (*others, b"no batch")]
    client.send(
        client.request(ApiKey.PRODUCE, 9, produce.encode_request(9, produce.ProduceRequest(None, 0, 1000, parts)))
    )
    assert await client.ended()
    (topic,) = await broker.topics.resolve([TOPIC])
    assert topic.partitions[0].high_watermark == len(others)  # type: ignore[union-attr]


async def test_a_request_behind_a_waiting_fetch_ends_its_wait(connect: Any) -> None:
    client = await connect()
    client.send(made(client))
    await client.answer()
    began = time.monotonic()
    client.send(fetches(client, 0, max_wait_ms=20_000))
    client.send(versions(client))
    assert await client.ids(2) == [2, 3]
    assert time.monotonic() - began < 10


async def test_of_two_waiting_fetches_none_holds_up_the_next_request(connect: Any) -> None:
    client, other = await connect(), await connect()
    client.send(made(client) + sends(client, batch(b"a")))
    await client.ids(2)
    client.send(fetches(client, 1, max_wait_ms=20_000) + fetches(client, 1, max_wait_ms=20_000))
    other.send(made(other))
    await other.answer()  # the two wait by now
    other.send(sends(other, batch(b"b")))
    assert await client.ids(2) == [3, 4]
    client.send(fetches(client, 2, max_wait_ms=20_000) + fetches(client, 2, max_wait_ms=100))
    began = time.monotonic()
    client.send(versions(client))
    assert await client.ids(3) == [5, 6, 7]
    assert time.monotonic() - began < 10


async def test_a_long_listing_of_topics_is_put_together_beside_the_loop(
    broker: NodeParts, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_metadata, "MANY", 1)
    monkeypatch.setattr(broker_metadata, "_PAGE", 2)
    encode, threads = broker_metadata.encode_response, []

    def encoded(*args: Any, **fields: Any) -> bytes:
        threads.append(threading.current_thread())
        return encode(*args, **fields)

    monkeypatch.setattr(broker_metadata, "encode_response", encoded)
    names = [f"t-{number}" for number in range(5)]
    await broker.topics.resolve(names, create=True)
    client = await connect()
    for version in (1, 9, 12):
        asked = metadata.encode_request(version, metadata.MetadataRequest(None, False))
        client.send(client.request(ApiKey.METADATA, version, asked))
        answer = memoryview(await client.answer())
        start = read_response_header(answer, ApiKey.METADATA, version)[1]
        found = metadata.decode_response(answer, start, version)
        assert [(topic.name, len(topic.partitions)) for topic in found.topics] == [(name, 1) for name in names]
    assert len(threads) == 3
    assert threading.main_thread() not in threads


async def test_a_client_that_asks_for_much_and_reads_nothing_has_one_answer_in_memory(
    broker: NodeParts, connect: Any
) -> None:
    client = await connect()
    client.send(made(client))
    await client.answer()
    size, count = 900_000, 10
    for _ in range(count):
        client.send(sends(client, batch(bytes(size))))
        await client.answer()
    (topic,) = await broker.topics.resolve([TOPIC])
    topic.partitions[0].container.log.forget_tail()  # type: ignore[union-attr]
    (connection,) = broker.connections.open
    part = fetch.FetchPartition(0, -1, 0, -1, -1, 64 << 20)
    topics = [fetch.FetchTopic(name, None, [part]) for name in (TOPIC, "/default:none")]  # one has to be looked up
    asked = fetch.encode_request(12, fetch.FetchRequest(0, 1, 64 << 20, 0, 0, -1, topics, [], ""))
    client.reader._transport.pause_reading()
    fetched = 30
    for _ in range(fetched):
        client.send(client.request(ApiKey.FETCH, 12, asked))
    async with asyncio.timeout(20):
        while not connection.is_behind:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    unread = 0
    for _ in range(50):
        await asyncio.sleep(0.02)
        assert connection._transport is not None
        unread = max(unread, connection.answered + connection._transport.get_write_buffer_size())
    assert size * count // 2 < unread < 3 * size * count
    client.reader._transport.resume_reading()
    for _ in range(fetched):
        answer = memoryview(await client.answer())
        assert len(answer) > size * count


async def test_what_comes_from_memory_is_no_more_than_what_comes_from_disk(
    broker: NodeParts, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such records stay in memory while the client reads slowly, even when the log's end has moved on."""
    client = await connect()
    client.send(made(client))
    await client.answer()
    for _ in range(10):
        client.send(sends(client, batch(bytes(900_000))))
        await client.answer()
    monkeypatch.setattr("headrace.kafka.answer_budget.SHARED_BYTES", 3 << 20)
    broker.connections.answer_budget._counted_at -= 2 * COUNTED_S
    client.send(fetches(client, 0, max_wait_ms=0, max_bytes=64 << 20))
    assert 900_000 < len(await client.answer()) < 3 << 20


class Begun:
    """A handler that records since when each request had been waiting when it started."""

    def __init__(self) -> None:
        self.since: list[float] = []

    def handle(self, session: Connection, *_: Any) -> None:
        self.since.append(session.waiting_since)

    def connected(self, session: Connection) -> None:
        """Does nothing."""

    def disconnected(self, session: Connection) -> None:
        """Does nothing."""

    def failed(self, api_key: int, code: int) -> None:
        """Does nothing."""


def comes(connection: Connection, raw: bytes) -> None:
    connection.get_buffer(-1)[: len(raw)] = raw
    connection.buffer_updated(len(raw))


async def test_since_when_a_request_waits_is_known_of_those_that_do_not_begin_as_they_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1000.0
    monkeypatch.setattr("headrace.kafka.connection.monotonic", lambda: now)
    begun, gate = Begun(), asyncio.Event()
    connection = Connection(begun)
    raw = struct.pack(">i", 14) + request_header(ApiKey.API_VERSIONS, 0, 1, "hand")
    comes(connection, raw)
    comes(connection, raw[:3])
    now += 1
    comes(connection, raw[3:])
    assert begun.since == [0.0, 0.0], "they begin at once, and nothing is timed for them"
    now += 1
    comes(connection, 3 * raw)
    assert begun.since[2:] == [1002.0, 1002.0, 1002.0]
    connection.park(gate.wait())  # type: ignore[arg-type]
    comes(connection, raw)
    now += 5
    gate.set()
    parked = connection._parked
    assert parked is not None
    async with asyncio.timeout(20):
        await parked
    assert begun.since[5:] == [1002.0]


async def test_a_fetch_of_nothing_waits_for_nothing(connect: Any) -> None:
    """A consumer that closes ends its session by such a fetch, and waits for the answer."""
    client = await connect()
    nothing = fetch.FetchRequest(60_000, 1, 1, 0, 0, -1, [], [], "")
    client.send(client.request(ApiKey.FETCH, 12, fetch.encode_request(12, nothing)))
    answer = await client.answer()
    _, body = read_response_header(answer, ApiKey.FETCH, 12)
    response = fetch.decode_response(memoryview(answer), body, 12)
    assert (response.error, response.topics) == (0, [])


async def test_the_more_clients_are_behind_the_less_each_is_answered(broker: NodeParts) -> None:
    assert broker.connections.answer_budget.bytes() == SHARED_BYTES
    for number in range(1_000):
        connection = Connection(broker.dispatcher)
        connection.pause_writing()
        broker.dispatcher.connected(connection)
        if number == 6:
            broker.connections.answer_budget._counted_at -= 2 * COUNTED_S
            assert broker.connections.answer_budget.bytes() == SHARED_BYTES // 8
    broker.connections.answer_budget._counted_at -= 2 * COUNTED_S
    assert broker.connections.answer_budget.bytes() == MIN_BYTES


async def test_a_request_behind_a_fetch_that_reads_from_disk_starts_alone(
    broker: NodeParts, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await connect()
    client.send(made(client) + sends(client, batch(b"a")))
    await client.ids(2)
    (topic,) = await broker.topics.resolve([TOPIC])
    partition = topic.partitions[0]  # type: ignore[union-attr]
    part = fetch.FetchPartition(0, -1, 0, -1, -1, 1 << 20)
    waiting = fetch.FetchRequest(20_000, 1 << 19, 1 << 20, 0, 0, -1, [fetch.FetchTopic(TOPIC, None, [part])], [], "")
    client.send(client.request(ApiKey.FETCH, 12, fetch.encode_request(12, waiting)))
    async with asyncio.timeout(20):
        while not partition.watchers:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    partition.container.log.forget_tail()  # its records are only on disk now
    under_way: list[int] = []
    most = 0

    async def slow() -> list[object]:
        nonlocal most
        under_way.append(1)
        most = max(most, len(under_way))
        for _ in range(50):  # long enough for the read to end meanwhile
            await asyncio.sleep(0.002)
        under_way.pop()
        return []

    async def service() -> Any:
        return SimpleNamespace(listing=slow)

    monkeypatch.setattr(broker.coordination, "service", service)
    raw = b"".join(
        client.request(ApiKey.LIST_GROUPS, 0, generic_codec.encode_request(ApiKey.LIST_GROUPS, 0, {})) for _ in range(4)
    )
    client.send(raw + versions(client))
    assert await client.ids(6) == [3, 4, 5, 6, 7, 8]
    assert most == 1


async def test_requests_larger_than_the_buffer(connect: Any) -> None:
    client = await connect()
    client.send(made(client))
    await client.answer()
    for size in (60_000, 65_400, 65_536, 70_000, 262_000, 300_000, 900_000):
        client.send(sends(client, batch(b"x" * size)) + versions(client))
        raw = await client.answer()
        _, start = read_response_header(raw, ApiKey.PRODUCE, 9)
        (result,), _ = produce.decode_response(raw, start, 9)
        assert result.error == 0, result
        await client.answer()


async def test_of_a_request_no_more_stays_in_memory_than_about_what_was_stored_of_it(
    broker: NodeParts, connect: Any
) -> None:
    client = await connect()
    client.send(made(client))
    await client.answer()
    refused = memoryview(batch(bytes(2 << 20)))  # longer than the topic allows
    stored = memoryview(batch(b"x")), memoryview(batch(bytes(500_000)))
    parts = [produce.PartitionRecords(TOPIC, 0, records) for records in (*stored, refused)]
    asked = produce.encode_request(9, produce.ProduceRequest(None, -1, 1000, parts))
    client.send(client.request(ApiKey.PRODUCE, 9, asked))
    await client.answer()
    (found,) = await broker.topics.resolve([TOPIC])
    partition = found.partitions[0]  # type: ignore[union-attr]
    kept = partition.container.log.read_tail(partition.open, 0, limit=2, max_bytes=1 << 20)
    assert [len(each) for each in kept] == [len(each) for each in stored]
    assert sum(len(each.obj) for each in kept) < 2 * sum(len(each) for each in stored)


@pytest.mark.parametrize("length", [0, -1, -(2**31), MAX_REQUEST_BYTES + 1, 2**31 - 1])
async def test_impossible_lengths_end_the_connection_with_a_reason(
    connect: Any, capsys: pytest.CaptureFixture[str], length: int
) -> None:
    client = await connect()
    client.send(struct.pack(">i", length) + b"\x00" * 10)
    assert await client.ended()
    logged = capsys.readouterr()
    assert f"127.0.0.1:{client.port}" in logged.out + logged.err
    assert f"a request of {length} bytes" in logged.out + logged.err
    another = await connect()
    another.send(versions(another))
    assert await another.ids(1) == [1]


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "bytes; the limit is"),
        (struct.pack(">i", 3) + b"\x00\x12\x00", "end early"),
        (struct.pack(">ihhih", 10, 999, 0, 1, -1), "api 999 version 0 is not supported"),
        (struct.pack(">ihhihx", 11, 3, 99, 1, -1), "api 3 version 99 is not supported"),
        (struct.pack(">ihhih", 10, 0, -1, 1, -1), "api 0 version -1 is not supported"),
        (struct.pack(">ihhihhi", 16, 0, 3, 1, -1, -1, 7), "end early"),
        (struct.pack(">ihhihi", 14, 3, 4, 1, -1, 2**31 - 1), "an array of 2147483647 elements"),
        (struct.pack(">ihhihh", 12, 10, 0, 1, -1, 500), "announced"),
        (struct.pack(">ihhih", 10, 24000, 0, 1, -1), "admin request"),
    ],
    ids=[
        "http",
        "half a header",
        "unknown api",
        "unknown version",
        "negative version",
        "cut short",
        "huge array",
        "huge string",
        "empty admin call",
    ],
)
async def test_bytes_that_are_no_request_end_the_connection_with_a_reason(
    connect: Any, capsys: pytest.CaptureFixture[str], raw: bytes, reason: str
) -> None:
    client, bystander = await connect(), await connect()
    client.send(raw)
    assert await client.ended()
    logged = "".join(capsys.readouterr())
    assert f"127.0.0.1:{client.port}" in logged
    assert reason in logged, logged
    assert "Traceback" not in logged
    bystander.send(versions(bystander))
    assert await bystander.ids(1) == [1]


async def test_a_client_that_sends_garbage_again_and_again_writes_few_lines(connect: Any) -> None:
    written: list[dict[str, Any]] = []
    limits = LogLimits(clock=lambda: 0.0)

    def note(_logger: Any, _level: str, event: Any) -> Any:
        written.append(event)
        raise structlog.DropEvent

    config = structlog.get_config()
    structlog.configure(processors=[limits, note], cache_logger_on_first_use=False)
    try:
        for length in range(5 * CAUSE_BURST):  # each with another port, and another reason
            client = await connect()
            client.send(struct.pack(">i", -length))
            assert await client.ended()
        assert len(written) == CAUSE_BURST
        limits.tell(ends=True)
    finally:
        structlog.configure(**config)
    assert written[-1] == {
        "event": LEFT_OUT,
        "lines_of": "connection closed",
        "suppressed": 4 * CAUSE_BURST,
        "peer": "127.0.0.1",
    }


@pytest.mark.parametrize("version", [5, 99, 32_767, -1])
async def test_an_unknown_version_of_api_versions_is_answered_with_version_0(connect: Any, version: int) -> None:
    client = await connect()
    client.send(client.request(ApiKey.API_VERSIONS, version, b"whatever it says"))
    raw = await client.answer()
    assert struct.unpack_from(">ih", raw) == (1, Code.UNSUPPORTED_VERSION)
    found = generic_codec.decode_response(ApiKey.API_VERSIONS, 0, raw[4:])
    assert {each.api_key: (each.min_version, each.max_version) for each in found.api_keys}[18] == (0, 4)
    client.send(versions(client))
    assert await client.ids(1) == [2]


async def test_a_client_that_never_reads_is_not_served_on_and_others_are(broker: NodeParts, connect: Any) -> None:
    client, other = await connect(), await connect()
    client.send(made(client) + sends(client, batch(b"x" * 500_000)))
    await client.ids(2)
    sock = socket.create_connection((broker.node.host, broker.node.port))
    try:
        deaf = Client(client.reader, client.writer)  # sends requests, and never reads the answers
        raw = b"".join(fetches(deaf, 0, max_wait_ms=0) for _ in range(2_000))
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        sending = loop.create_task(loop.sock_sendall(sock, raw))
        session = await _session_of(broker, sock.getsockname()[1])
        async with asyncio.timeout(20):
            while session._client_reads:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert session._transport is not None
        held = session._transport.get_write_buffer_size()
        assert held < 8 << 20, f"{held} bytes are kept for it"
        before = broker.counters.fetch_requests
        for _ in range(20):
            other.send(versions(other))
            await other.answer()
        assert broker.counters.fetch_requests == before, "it is served on"
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
    finally:
        sock.close()
    async with asyncio.timeout(20):
        while session in broker.connections.open:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_the_requests_under_way_on_one_connection_are_bounded(broker: NodeParts, connect: Any) -> None:
    client = await connect()
    client.send(made(client) + sends(client, batch(b"x")))
    await client.ids(2)
    client.send(b"".join(fetches(client, 1, max_wait_ms=500) for _ in range(MAX_UNDER_WAY * 2)))
    session = await _session_of(broker, client.port)
    most = 0
    async with asyncio.timeout(20):
        while broker.counters.requests < MAX_UNDER_WAY:
            await asyncio.sleep(0.005)
            most = max(most, len(session.slots))
    assert 0 < most <= MAX_UNDER_WAY
    assert await client.ids(MAX_UNDER_WAY * 2) == list(range(3, MAX_UNDER_WAY * 2 + 3))


async def test_a_half_closed_connection_is_closed_and_what_it_sent_is_stored(broker: NodeParts, connect: Any) -> None:
    client = await connect()
    client.send(made(client) + sends(client, batch(b"kept")))
    await client.ids(2)
    session = await _session_of(broker, client.port)
    client.send(sends(client, batch(b"and this")))
    client.writer.write_eof()
    async with asyncio.timeout(20):
        while session in broker.connections.open:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    other = await connect()
    async with asyncio.timeout(20):
        while True:
            other.send(fetches(other, 0, max_wait_ms=0))
            raw = await other.answer()
            (part,) = fetch.decode_response(raw, 5, 12).topics[0].partitions
            if part.high_watermark == 2:
                break


async def test_a_client_that_leaves_while_its_fetch_waits_leaves_nothing_behind(
    broker: NodeParts, connect: Any
) -> None:
    client = await connect()
    client.send(made(client) + sends(client, batch(b"x")))
    await client.ids(2)
    (topic,) = await broker.topics.resolve([TOPIC])
    partition = topic.partitions[0]  # type: ignore[union-attr]
    client.send(fetches(client, 1, max_wait_ms=20_000) + fetches(client, 1, max_wait_ms=20_000))
    async with asyncio.timeout(20):
        while len(partition.watchers or ()) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    client.writer.transport.abort()
    async with asyncio.timeout(20):
        while partition.watchers:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_client_that_leaves_while_its_partitions_are_looked_up_leaves_nothing_behind(
    broker: NodeParts, connect: Any
) -> None:
    client = await connect()
    client.send(made(client) + sends(client, batch(b"x")))
    await client.ids(2)
    (topic,) = await broker.topics.resolve([TOPIC])
    partition = topic.partitions[0]  # type: ignore[union-attr]
    asked = [fetch.FetchTopic(name, None, [fetch.FetchPartition(0, -1, 0, -1, -1, 1000)]) for name in (TOPIC, "/a:b")]
    request = fetch.FetchRequest(20_000, 1 << 20, 1 << 20, 0, 0, -1, asked, [], "")
    for _ in range(20):
        leaver = await connect()
        session = await _session_of(broker, leaver.port)
        leaver.send(leaver.request(ApiKey.FETCH, 12, fetch.encode_request(12, request)))
        leaver.writer.transport.abort()
        async with asyncio.timeout(20):
            while session in broker.connections.open:  # noqa: ASYNC110
                await asyncio.sleep(0)
    async with asyncio.timeout(20):
        while partition.watchers:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_connection_on_which_nothing_happens_for_long_is_closed(broker: NodeParts, connect: Any) -> None:
    idle, unfinished, waits, talks = [await connect() for _ in range(4)]
    for client in (idle, unfinished, waits, talks):
        client.send(made(client))
        await client.answer()
    unfinished.send(versions(unfinished)[:-1])
    waits.send(fetches(waits, 0, max_wait_ms=20_000))
    session = await _session_of(broker, waits.port)
    async with asyncio.timeout(20):
        while not session.has_waiting_fetches:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    broker.connections.idle.look(1000.0)
    broker.connections.idle.look(1001.0)
    talks.send(versions(talks))
    assert await talks.ids(1) == [2]
    broker.connections.idle.look(1000.0 + IDLE_S - 1)
    assert len(broker.connections.open) == 4
    broker.connections.idle.look(1000.0 + IDLE_S)
    assert await idle.ended()
    assert await unfinished.ended()
    waits.send(versions(waits))
    talks.send(versions(talks))
    assert await waits.ids(2) == [2, 3]
    assert await talks.ids(1) == [3]


async def test_a_client_that_has_vanished_is_noticed_by_tcp(broker: NodeParts, connect: Any) -> None:
    client = await connect()
    session = await _session_of(broker, client.port)
    accepted = session._transport.get_extra_info("socket")
    assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    times = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
    idle, interval, count = (accepted.getsockopt(socket.IPPROTO_TCP, option) for option in times)
    assert idle + interval * count == 120


async def _session_of(broker: NodeParts, port: int) -> Any:
    """The broker's session of the connection from `port`."""
    async with asyncio.timeout(20):
        while True:
            for session in broker.connections.open:
                if session.peer == f"127.0.0.1:{port}":
                    return session
            await asyncio.sleep(0.005)


async def test_a_client_above_its_quota_waits_and_what_it_sent_is_done_though_it_closes(
    broker: NodeParts, connect: Any
) -> None:
    client, bystander = await connect(), await connect()
    client.send(made(client))
    await client.answer()
    (session,) = (each for each in broker.connections.open if each.peer.endswith(f":{client.port}"))
    loop = asyncio.get_running_loop()
    began = loop.time()
    session.throttle(0.2)
    session.throttle(0.01)  # the longer delay counts
    client.send(sends(client, batch(b"a"), acks=0) + versions(client))
    client.writer.write_eof()
    bystander.send(versions(bystander))
    assert await bystander.ids(1) == [1]
    assert await client.ids(1) == [3]
    assert loop.time() - began >= 0.199
    assert await client.ended()
    (found,) = await broker.topics.resolve([TOPIC])
    assert found.partitions[0].next_offset == 1  # type: ignore[union-attr]


async def test_a_client_that_is_gone_while_it_waits_leaves_nothing(broker: NodeParts, connect: Any) -> None:
    client = await connect()
    client.send(versions(client))
    await client.answer()
    (session,) = broker.connections.open
    session.throttle(3600)
    timer = session._throttle
    session.drop()
    assert await client.ended()
    async with asyncio.timeout(20):
        while session in broker.connections.open:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    assert timer is not None
    assert timer.cancelled()
