"""A node's listeners with TLS: requests of all sizes, back-pressure, the client's identity, and certificates that
change."""

import asyncio
import contextlib
import gc
import ssl
import struct
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from headrace.base.errors import HeadraceError
from headrace.kafka.connection import MAX_UNDER_WAY, Connection
from headrace.node import Node
from headrace.security.principals import NOBODY, Mechanism, Principal
from headrace.wire import fetch, metadata, produce
from headrace.wire.api_keys import ApiKey
from headrace.wire.batch import build_batch
from headrace.wire.header import request_header
from kit.certificates import Certificates
from kit.own_ports import HOST
from kit.parts import options, running
from kit.patience import PATIENCE
from kit.tls_listeners import TlsListeners

TOPIC = "/default:t"


@pytest.fixture
async def node(tmp_path: Path, listeners: TlsListeners) -> AsyncIterator[Node]:
    async with running(replace(options(tmp_path), listeners_file=listeners.file)) as started:
        yield started


class Client:
    """One connection over TLS, whose requests and answers the test sends and receives one by one."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.sent = 0

    def request(self, key: int, version: int, body: bytes) -> bytes:
        self.sent += 1
        raw = request_header(key, version, self.sent, "by hand") + body
        return struct.pack(">i", len(raw)) + raw

    def versions(self) -> bytes:
        return self.request(ApiKey.API_VERSIONS, 0, b"")

    def made(self) -> bytes:
        asked = metadata.MetadataRequest([(TOPIC, None)], True)
        return self.request(ApiKey.METADATA, 9, metadata.encode_request(9, asked))

    def sends(self, *values: bytes, acks: int = -1) -> bytes:
        batch = build_batch([(1_700_000_000_000, None, value, []) for value in values])
        asked = produce.ProduceRequest(None, acks, 10_000, [produce.PartitionRecords(TOPIC, 0, memoryview(batch))])
        return self.request(ApiKey.PRODUCE, 9, produce.encode_request(9, asked))

    def fetches(self, offset: int) -> bytes:
        part = fetch.FetchPartition(0, -1, offset, -1, -1, 50 << 20)
        asked = fetch.FetchRequest(100, 1, 50 << 20, 0, 0, -1, [fetch.FetchTopic(TOPIC, None, [part])], [], "")
        return self.request(ApiKey.FETCH, 12, fetch.encode_request(12, asked))

    async def answer(self) -> bytes:
        async with asyncio.timeout(20 * PATIENCE):
            (length,) = struct.unpack(">i", await self.reader.readexactly(4))
            return await self.reader.readexactly(length)

    async def ids(self, count: int) -> list[int]:
        return [struct.unpack_from(">i", await self.answer())[0] for _ in range(count)]

    async def ended(self) -> bool:
        async with asyncio.timeout(20 * PATIENCE):
            try:
                return await self.reader.read(1) == b""
            except OSError:
                return True

    @property
    def subject(self) -> object:
        """The serial number of the certificate that the client saw."""
        return self.writer.get_extra_info("peercert")["serialNumber"]


Connect = Callable[..., Awaitable[Client]]


@pytest.fixture
async def connect(node: Node, listeners: TlsListeners) -> AsyncIterator[Connect]:
    opened: list[Client] = []

    async def one(own: str = "") -> Client:
        context = ssl.create_default_context(cafile=listeners.certificates.path("ca.pem"))
        if own:
            context.load_cert_chain(*(listeners.certificates.path(f"{own}{kind}") for kind in (".pem", ".key")))
        port = listeners.mutual if own else listeners.secure
        client = Client(*await asyncio.open_connection(HOST, port, ssl=context, limit=1 << 20))
        opened.append(client)
        return client

    yield one
    for client in opened:
        client.writer.transport.abort()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10 * PATIENCE):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


def only_connection(node: Node) -> Connection:
    (found,) = node.parts.connections.open
    return found


async def test_requests_byte_by_byte_and_many_in_one_piece(connect: Connect) -> None:
    client = await connect()
    for each in client.made() + client.sends(b"a") + client.versions():
        client.writer.write(bytes((each,)))
        await client.writer.drain()
    assert await client.ids(3) == [1, 2, 3]
    client.writer.write(b"".join((client.versions(), client.made(), client.sends(b"x"))[n % 3] for n in range(600)))


async def test_large_requests_and_answers_come_whole(connect: Connect) -> None:
    client = await connect()
    client.writer.write(client.made())
    for _ in range(3):  # each is received into mapped memory, and refused as a whole
        client.writer.write(client.sends(b"v" * (6 << 20)))
    assert await client.ids(1) == [1]
    assert [b"\0\x0a" in await client.answer() for _ in range(3)] == [True] * 3, "MESSAGE_TOO_LARGE"
    values = [bytes((number,)) * 1_000_000 for number in range(24)]
    for value in values:
        client.writer.write(client.sends(value))
    assert await client.ids(24) == list(range(5, 29))
    client.writer.write(client.fetches(0))
    answer = await client.answer()
    assert len(answer) > 24_000_000
    assert all(value in answer for value in values)


async def test_a_client_that_does_not_read_is_not_read_from(node: Node, connect: Connect) -> None:
    client = await connect()
    client.writer.write(client.made() + client.sends(*(b"v" * 100_000 for _ in range(10))))
    assert await client.ids(2) == [1, 2]
    connection = only_connection(node)
    asked = 500
    for _ in range(asked):
        client.writer.write(client.fetches(0) + client.sends(b"w" * 10_000))
    await until(lambda: connection._paused_reading)
    assert connection.answered < 4 << 20
    assert len(connection.slots) <= MAX_UNDER_WAY
    assert await client.ids(2 * asked) == list(range(3, 3 + 2 * asked))
    assert not connection._paused_reading


async def test_what_was_sent_before_the_end_is_done(node: Node, connect: Connect) -> None:
    client = await connect()
    client.writer.write(client.made())
    assert await client.ids(1) == [1]
    client.writer.write(client.sends(b"kept", acks=0))
    client.writer.close()
    await until(lambda: not node.parts.connections.open)
    other = await connect()
    other.writer.write(other.fetches(0))
    assert b"kept" in await other.answer()


async def test_who_a_client_is_comes_from_its_certificate(node: Node, connect: Connect) -> None:
    anonymous = await connect()
    anonymous.writer.write(anonymous.versions())
    await anonymous.answer()
    assert only_connection(node).principal is NOBODY
    alice = await connect("client")
    alice.writer.write(alice.versions())
    await alice.answer()
    assert [each.principal for each in node.parts.connections.open] == [
        NOBODY,
        Principal("alice", Mechanism.CERTIFICATE),
    ]


async def test_a_connection_that_is_gone_leaves_its_buffers_to_nobody(node: Node, connect: Connect) -> None:
    gc.collect()
    gc.disable()
    try:
        client = await connect()
        client.writer.write(client.versions())
        await client.answer()
        gone = weakref.ref(only_connection(node)._buffer)
        client.writer.close()
        await until(lambda: gone() is None)
    finally:
        gc.enable()


async def test_clients_are_told_the_addresses_of_their_listener(connect: Connect, listeners: TlsListeners) -> None:
    for own, port in (("", listeners.secure), ("client", listeners.mutual)):
        client = await connect(own)
        client.writer.write(client.made())
        assert struct.pack(">i", port) in await client.answer()


@pytest.mark.parametrize("rules", ["RULE:^CN=bob$/bob/", "RULE:^CN=(.*)$/ANONYMOUS/"])
async def test_a_certificate_that_makes_nobody_is_refused_before_any_request(
    tmp_path: Path, certificates: Certificates, rules: str
) -> None:
    folder = tmp_path / "tls"
    folder.mkdir()
    listeners = TlsListeners(folder, certificates, rules)
    node = Node(replace(options(tmp_path), listeners_file=listeners.file))
    await node.start()
    try:
        context = ssl.create_default_context(cafile=certificates.path("ca.pem"))
        context.load_cert_chain(certificates.path("client.pem"), certificates.path("client.key"))
        with capture_logs() as logs:
            client = Client(*await asyncio.open_connection(HOST, listeners.mutual, ssl=context))
            client.writer.write(client.versions())
            assert await client.ended()
        (told,) = [each["reason"] for each in logs if each["event"] == "connection closed"]
        assert "CN=alice" in told
        assert node.parts.counters.connections == node.parts.counters.requests == 0
        await until(lambda: not len(node.parts.connections.admission))
    finally:
        await node.stop()


async def test_connections_whose_handshake_is_not_done_end_with_the_node(
    tmp_path: Path, listeners: TlsListeners
) -> None:
    node = Node(replace(options(tmp_path), listeners_file=listeners.file))
    await node.start()
    reader, writer = await asyncio.open_connection(HOST, listeners.secure)
    await until(lambda: len(node.parts.connections.admission) == 1)
    await node.stop()
    assert await Client(reader, writer).ended()
    writer.close()


async def test_a_client_with_tls_at_a_plain_port_is_told_of_in_one_line(node: Node) -> None:
    with capture_logs() as logs, pytest.raises(OSError):  # noqa: PT011
        await asyncio.open_connection(HOST, node.parts.node.port, ssl=ssl.create_default_context())
    (told,) = [each["reason"] for each in logs if each["event"] == "connection closed"]
    assert told.startswith("the client speaks TLS, and this port does not")


async def test_new_connections_have_the_new_certificate_and_old_ones_live_on(
    node: Node, connect: Connect, listeners: TlsListeners
) -> None:
    old = await connect()
    listeners.put("renewed", into="server")
    with capture_logs() as logs:
        await node._listeners.look()
    assert [each["listener"] for each in logs if each["event"] == "certificate replaced"] == ["secure", "mutual"]
    new = await connect()
    assert new.subject != old.subject
    for client in (old, new):
        client.writer.write(client.versions())
        assert await client.ids(1) == [1]


async def test_a_bad_pair_keeps_the_old_one_and_says_so(node: Node, connect: Connect, listeners: TlsListeners) -> None:
    old = await connect()
    shown: Any = (await node.parts.status.status())["listeners"]
    assert [each["problem"] for each in shown] == [
        "the certificate expires within a day; put a new one in its place"
    ] * 2
    listeners.put("renewed", into="server", kinds=(".pem",))
    with capture_logs() as logs:
        for _ in range(3):
            await node._listeners.look()
    assert len([each for each in logs if each["event"] == "TLS needs attention"]) == 2, "once for each listener"
    shown = (await node.parts.status.status())["listeners"]
    assert all("does not belong to the certificate" in each["problem"] for each in shown)
    assert all(each["problem_since_ms"] for each in shown)
    again = await connect()
    assert again.subject == old.subject
    listeners.put("renewed", into="server")
    await node._listeners.look()
    assert (await connect()).subject != old.subject


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda folder: (folder / "server.key").unlink(), "listener secure: .*server.key cannot be read"),
        (lambda folder: (folder / "ca.pem").write_text(""), "listener mutual: .*ca.pem holds no"),
        (lambda folder: (folder / "listeners.toml").write_text("[[listener]]"), r"--listeners .*: name is missing"),
        (lambda folder: (folder / "listeners.toml").write_bytes(b"\xff"), "--listeners .*UTF-8"),
        (lambda folder: (folder / "listeners.toml").unlink(), "--listeners .*cannot be read"),
    ],
)
async def test_a_node_does_not_start_with_listeners_that_it_cannot_serve(
    tmp_path: Path, listeners: TlsListeners, spoil: Callable[[Path], Any], says: str
) -> None:
    spoil(listeners.folder)
    node = Node(replace(options(tmp_path), listeners_file=listeners.file))
    with pytest.raises(HeadraceError, match=says) as refused:
        await node.start()
    assert "\n" not in str(refused.value)
    await node.stop()
    with contextlib.suppress(ConnectionRefusedError):
        await asyncio.open_connection(HOST, listeners.secure)
        pytest.fail("nothing may be open")
