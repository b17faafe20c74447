"""Accepting on real sockets, with and without descriptors left."""

import asyncio
import resource
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import pytest
import uvloop
from structlog.testing import capture_logs

from headrace.base import acceptor as acceptor_module
from headrace.base.acceptor import Acceptor
from headrace.base.admission import Admission, Place
from kit.cpu_time import no_collections


@contextmanager
def no_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Echo(asyncio.Protocol):
    def __init__(self, place: Place) -> None:
        self.place = place
        self.transport: asyncio.Transport | None = None
        place.occupy(self.drop)

    def drop(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "abort")
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self.place.proven()
        assert self.transport is not None
        self.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.place.leave()


@pytest.fixture
async def port() -> AsyncIterator[tuple[int, Admission]]:
    loop = asyncio.get_running_loop()
    admission = Admission(kind="t", most=3, most_of_address=100, descriptors=1 << 20, time=loop.time)
    listening = socket.create_server(("127.0.0.1", 0))
    found = Acceptor(listening, Echo, admission)
    number = listening.getsockname()[1]
    found.start()
    yield number, admission
    found.close()
    await found.wait_closed()


async def connections(admission: Admission, count: int) -> None:
    """Returns when there are `count` connections."""
    async with asyncio.timeout(10):
        while len(admission) != count:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def ended(reader: asyncio.StreamReader) -> bool:
    async with asyncio.timeout(10):
        try:
            return await reader.read(1) == b""
        except ConnectionError:
            return True


async def test_silent_connections_make_way(port: tuple[int, Admission], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.base.admission.LOCAL", 0)
    number, admission = port
    silent = [await asyncio.open_connection("127.0.0.1", number) for _ in range(3)]
    await connections(admission, 3)
    talking = [await asyncio.open_connection("127.0.0.1", number) for _ in range(3)]
    for _, writer in talking:
        writer.write(b"x")
    for reader, _ in talking:
        assert await asyncio.wait_for(reader.readexactly(1), 10) == b"x"
    for reader, _ in silent:
        assert await ended(reader)
    reader, writer = await asyncio.open_connection("127.0.0.1", number)
    assert await ended(reader)
    assert admission.refused == 1
    for _, each in (*silent, *talking, (reader, writer)):
        each.close()
    await connections(admission, 0)


async def test_without_descriptors_it_waits_and_does_not_spin(
    port: tuple[int, Admission], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceptor_module, "PAUSE_S", 0.1)
    number, _ = port
    clients = [socket.socket() for _ in range(3)]
    used = 0.0
    with capture_logs() as logs, no_descriptors(), no_collections():
        for each in clients:
            each.setblocking(False)
            each.connect_ex(("127.0.0.1", number))
        began = time.thread_time()
        await asyncio.sleep(0.5)
        used = time.thread_time() - began
    assert used < 0.25
    assert [each["event"] for each in logs] == ["connections wait to be accepted"]
    loop = asyncio.get_running_loop()
    for each in clients:  # the kernel kept the connections in its queue
        await loop.sock_sendall(each, b"y")
        assert await asyncio.wait_for(loop.sock_recv(each, 1), 10) == b"y"
        each.close()


def test_it_is_so_on_uvloop_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async def serve() -> bytes:
        loop = asyncio.get_running_loop()
        admission = Admission(kind="t", most=3, most_of_address=100, descriptors=1 << 20, time=loop.time)
        listening = socket.create_server(("127.0.0.1", 0))
        number = listening.getsockname()[1]
        found = Acceptor(listening, Echo, admission)
        found.start()
        client = socket.socket()
        client.setblocking(False)
        with no_descriptors(), no_collections():
            client.connect_ex(("127.0.0.1", number))
            began = time.thread_time()
            await asyncio.sleep(0.3)
            assert time.thread_time() - began < 0.15
        await loop.sock_sendall(client, b"z")
        answer = await asyncio.wait_for(loop.sock_recv(client, 1), 10)
        client.close()
        await connections(admission, 0)
        found.close()
        await found.wait_closed()
        return answer

    monkeypatch.setattr(acceptor_module, "PAUSE_S", 0.1)
    assert uvloop.run(serve()) == b"z"


async def test_an_address_that_has_to_wait_holds_up_no_other() -> None:
    loop = asyncio.get_running_loop()
    admission = Admission(kind="t", most=10, most_of_address=100, descriptors=1 << 20, time=loop.time)
    delays: list[float | None] = [3600.0, None, 0.05, 0.0]
    listening = socket.create_server(("127.0.0.1", 0))
    found = Acceptor(listening, Echo, admission, delay_s=lambda _address: delays.pop(0))
    number = listening.getsockname()[1]
    found.start()
    waiting, waiting_writer = await asyncio.open_connection("127.0.0.1", number)
    closed, closed_writer = await asyncio.open_connection("127.0.0.1", number)
    assert await closed.read(1) == b""
    began = loop.time()
    late, late_writer = await asyncio.open_connection("127.0.0.1", number)
    prompt, prompt_writer = await asyncio.open_connection("127.0.0.1", number)
    prompt_writer.write(b"now")
    assert await prompt.readexactly(3) == b"now"
    late_writer.write(b"late")
    assert await late.readexactly(4) == b"late"
    assert loop.time() - began >= 0.049
    assert len(admission) == 3
    for writer in (closed_writer, late_writer, prompt_writer):
        writer.close()
    await connections(admission, 1)
    found.close()
    await found.wait_closed()
    assert len(admission) == 0, "who waits at the end is let go at once"
    assert await waiting.read(1) == b""
    waiting_writer.close()
