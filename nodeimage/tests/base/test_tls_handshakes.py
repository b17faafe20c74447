"""Handshakes on real sockets: which begin, which wait, and how failures are reported."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest
from structlog.testing import capture_logs

from headrace.base import tls_handshakes
from headrace.base.acceptor import Acceptor
from headrace.base.admission import Admission, Place
from headrace.base.tls_handshakes import OTHERS_WAIT, TellingContext, TlsHandshakes
from kit.certificates import Certificates
from kit.patience import PATIENCE

HOST = "127.0.0.1"
FAILED = "TLS handshakes failed"


class Echo(asyncio.Protocol):
    def __init__(self, place: Place) -> None:
        self.place = place

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        self.place.occupy(self.transport.abort)

    def data_received(self, data: bytes) -> None:
        self.place.proven()
        self.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.place.leave()


@dataclass
class Port:
    number: int
    admission: Admission
    handshakes: TlsHandshakes
    context: ssl.SSLContext


@pytest.fixture
async def port(certificates: Certificates) -> AsyncIterator[Port]:
    loop = asyncio.get_running_loop()
    admission = Admission(kind="t", most=2_000, most_of_address=2_000, descriptors=1 << 20, time=loop.time)
    context = TellingContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.path("server.pem"), certificates.path("server.key"))
    context.load_verify_locations(certificates.path("ca.pem"))
    handshakes = TlsHandshakes(lambda: context, listener="secure", plain_fault="a plain client")
    listening = socket.create_server((HOST, 0))
    number = listening.getsockname()[1]
    acceptor = Acceptor(listening, Echo, admission, handshakes)
    acceptor.start()
    yield Port(number, admission, handshakes, context)
    acceptor.close()
    async with asyncio.timeout(10 * PATIENCE):
        while len(admission):  # noqa: ASYNC110  # until all connections are gone
            await asyncio.sleep(0.001)
    await acceptor.wait_closed()


def trusting(certificates: Certificates, ca: str = "ca.pem") -> ssl.SSLContext:
    return ssl.create_default_context(cafile=certificates.path(ca))


async def echoed(port: Port, context: ssl.SSLContext, text: bytes = b"x") -> bytes:
    """The echo of `text` over TLS. Raises the client's errors."""
    async with asyncio.timeout(20 * PATIENCE):
        reader, writer = await asyncio.open_connection(HOST, port.number, ssl=context, server_hostname="localhost")
        try:
            writer.write(text)
            found = await reader.read(len(text))
            if not found:
                raise ConnectionResetError
            return found
        finally:
            writer.transport.abort()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10 * PATIENCE):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


def client_hello(context: ssl.SSLContext) -> bytes:
    """The first bytes of a client."""
    outgoing = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()


async def test_many_clients_at_once_are_all_served(port: Port, certificates: Certificates) -> None:
    context = trusting(certificates)
    texts = [str(number).encode() for number in range(100)]
    assert await asyncio.gather(*(echoed(port, context, text) for text in texts)) == texts
    assert port.handshakes.failed == 0


async def test_silent_connections_keep_nobody_out(port: Port, certificates: Certificates) -> None:
    with ExitStack() as opened:
        for _ in range(500):
            opened.enter_context(socket.create_connection((HOST, port.number)))
        await until(lambda: len(port.admission) == 500)
        assert await echoed(port, trusting(certificates)) == b"x"
    await until(lambda: len(port.admission) == 0)
    assert port.handshakes.failed == 0, "to look whether the port answers is no failure"


async def test_handshakes_that_do_not_go_on_make_way(
    port: Port, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_handshakes, "MAX_IN_PROGRESS", 10)
    monkeypatch.setattr(tls_handshakes, "MIN_S", 0.1)
    hello = client_hello(trusting(certificates))
    with capture_logs() as logs, ExitStack() as opened:
        for _ in range(35):
            each = opened.enter_context(socket.create_connection((HOST, port.number)))
            each.sendall(hello)
        await until(lambda: len(port.admission) == 35)
        assert await echoed(port, trusting(certificates)) == b"x"
        await asyncio.sleep(0.3)
        assert port.handshakes.failed <= 35 - 10 + 1, "nobody is ended where nobody waits"
        assert len(port.admission) >= 9
    assert next((each["reason"], each["listener"]) for each in logs if each["event"] == FAILED) == (
        OTHERS_WAIT,
        "secure",
    )


async def test_one_that_makes_way_in_its_handshake_is_ended(port: Port, certificates: Certificates) -> None:
    with socket.create_connection((HOST, port.number)) as silent, socket.create_connection((HOST, port.number)) as half:
        half.sendall(client_hello(trusting(certificates)))
        await until(lambda: len(port.handshakes._under_way) == 1)
        port.admission.drop_silent(within_s=-1.0)
        await until(lambda: not port.handshakes._under_way)
        for each in (silent, half):
            each.settimeout(10)
            loop = asyncio.get_running_loop()
            assert await loop.run_in_executor(None, _ends, each)
    assert port.handshakes._taken == 0


def _ends(sock: socket.socket) -> bool:
    try:
        while sock.recv(4096):
            pass
    except ConnectionError:
        pass
    return True


def _connect(number: int, context: ssl.SSLContext) -> None:
    """A client that sends alerts about what it refuses, unlike asyncio's."""
    with socket.create_connection((HOST, number), 10) as plain, context.wrap_socket(plain, server_hostname="localhost"):
        pass


async def test_a_handshake_has_a_limit(port: Port, certificates: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_handshakes, "HANDSHAKE_S", 0.1)
    with capture_logs() as logs, socket.create_connection((HOST, port.number)) as half:
        half.sendall(client_hello(trusting(certificates)))
        await until(lambda: port.handshakes.failed == 1)
    assert [each["reason"] for each in logs if each["event"] == FAILED] == [tls_handshakes.TOO_LONG]


async def test_what_fails_is_logged_once_for_each_cause_and_counted(
    port: Port, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    port.context.verify_mode = ssl.CERT_REQUIRED
    known = trusting(certificates)
    known.load_cert_chain(certificates.path("client.pem"), certificates.path("client.key"))
    intruder = trusting(certificates)
    intruder.load_cert_chain(certificates.path("intruder.pem"), certificates.path("intruder.key"))
    loop = asyncio.get_running_loop()
    with capture_logs() as logs:
        for _ in range(3):
            with pytest.raises(OSError, match=r"(?i)certificate.required"):  # the client receives the reason
                await echoed(port, trusting(certificates))
        with pytest.raises(OSError, match=r"(?i)unknown.ca"):
            await echoed(port, intruder)
        with pytest.raises(ssl.SSLCertVerificationError):
            await loop.run_in_executor(None, _connect, port.number, trusting(certificates, "other-ca.pem"))
        await until(lambda: port.handshakes.failed == 5)
        with socket.create_connection((HOST, port.number)) as plain:
            plain.sendall(b"\0\0\0\x10 a request")
            assert await loop.run_in_executor(None, _ends, plain)
        assert await echoed(port, known) == b"x"
    told = [(each["reason"], each["count"]) for each in logs if each["event"] == FAILED]
    assert told == [
        ("the client presents no certificate, but must", 1),
        ("the certificate of the client is refused: unable to get local issuer certificate", 1),
        ("the client does not trust the certificate of this listener", 1),
        ("a plain client", 1),
    ]
    assert port.handshakes.failed == 6
    monkeypatch.setattr(tls_handshakes, "LOG_EVERY_S", 0.0)
    with capture_logs() as logs, pytest.raises(OSError, match=r"(?i)certificate.required"):
        await echoed(port, trusting(certificates))
    assert [each["count"] for each in logs if each["event"] == FAILED] == [3]


async def test_a_port_may_serve_both(port: Port, certificates: Certificates) -> None:
    port.handshakes._serves_plain = True
    assert await echoed(port, trusting(certificates)) == b"x"
    reader, writer = await asyncio.open_connection(HOST, port.number)
    writer.write(b"\0plain")
    async with asyncio.timeout(20 * PATIENCE):
        assert await reader.readexactly(6) == b"\0plain"
    writer.close()
    assert (port.handshakes.plain, port.handshakes.failed) == (1, 0)


async def test_a_plain_connection_that_fails_is_no_failed_handshake(port: Port) -> None:
    port.handshakes._serves_plain = True

    def fail(_place: Place) -> asyncio.Protocol:
        raise OSError("no memory for a connection")

    client, accepted = socket.socketpair()
    accepted.setblocking(False)
    place = port.admission.admit("10.0.0.1", accepted.fileno(), accepted.close)
    assert place is not None
    with client, accepted, capture_logs() as logs:
        client.sendall(b"\0plain")
        with pytest.raises(OSError, match="no memory"):
            await port.handshakes.connect(accepted, place, fail)
    place.leave()
    assert port.handshakes.failed == 0
    assert logs == []


async def test_none_begins_where_there_is_no_room_for_what_comes_behind_it(
    port: Port, certificates: Certificates
) -> None:
    asked: list[int] = []
    has_room = False

    def room(under_way: int) -> bool:
        asked.append(under_way)
        return has_room

    port.handshakes._room = room
    echoing = asyncio.ensure_future(echoed(port, trusting(certificates)))
    await until(lambda: len(asked) >= 3)
    assert not port.handshakes._under_way
    assert not echoing.done()
    has_room = True
    assert await echoing == b"x"
    assert set(asked) == {0}
