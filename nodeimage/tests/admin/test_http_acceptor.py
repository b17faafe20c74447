"""Connections of the HTTP port: each has a place until it is idle and others need it, and a limit for each phase."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from headrace.admin import http_acceptor
from headrace.admin.http_acceptor import HttpConnection, HttpConnections
from headrace.admin.http_exchange import Answer, Request, text
from headrace.base.descriptor_plan import descriptor_plan
from kit.one_node import until

GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Place:
    """A place that records what is done with it."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.drop: Any = None

    def occupy(self, drop: Any) -> None:
        self.drop = drop

    def proven(self) -> None:
        self.done.append("proven")

    def leave(self) -> None:
        self.done.append("left")


class Transport:
    """A transport whose kernel takes as much as the test says; `calls` records the calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.sent = b""
        self.takes = True
        self.protocol: Any = None
        self.over = False

    def get_extra_info(self, _name: str) -> tuple[str, int]:
        return "127.0.0.1", 4711

    def set_write_buffer_limits(self, high: int) -> None:
        assert high == 0

    def write(self, sent: bytes) -> None:
        self.sent += sent
        if not self.takes:
            self.protocol.pause_writing()

    def is_closing(self) -> bool:
        return self.over

    def _end(self, how: str) -> None:
        if not self.over:
            self.over = True
            self.calls.append(how)
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    def abort(self) -> None:
        self._end("abort")

    def close(self) -> None:
        self._end("close")

    def write_eof(self) -> None:
        self.calls.append("eof")

    def pause_reading(self) -> None:
        self.calls.append("pause")

    def resume_reading(self) -> None:
        self.calls.append("resume")


class Port:
    """Connections of one port, opened by the test."""

    def __init__(self) -> None:
        self.connections = HttpConnections(descriptor_plan(4096), self.answer, asyncio.get_running_loop())
        self.gate = asyncio.Event()
        self.gate.set()
        self.fails = False
        self.asked: list[str] = []

    async def answer(self, request: Request) -> Answer:
        self.asked.append(request.path)
        await self.gate.wait()
        if self.fails:
            raise RuntimeError("a part of the node is gone")
        return text("answer")

    def connect(self) -> tuple[HttpConnection, Transport, Place]:
        place: Any = Place()
        made, transport = self.connections.connection(place), Transport()
        transport.protocol = made
        given: Any = transport
        made.connection_made(given)
        return made, transport, place

    async def request(self, made: HttpConnection, transport: Transport) -> bytes:
        """Send a request, and return its answer."""
        transport.sent = b""
        made.data_received(GET)
        await until(lambda: bool(transport.sent) and transport.calls[-1] == "resume")
        return transport.sent


@pytest.fixture
async def port() -> AsyncIterator[Port]:
    made = Port()
    yield made
    made.gate.set()
    await made.connections.close()


async def test_a_connection_has_proven_itself_with_its_first_whole_request(port: Port) -> None:
    made, transport, place = port.connect()
    made.data_received(GET[:-1])
    assert place.done == []
    made.data_received(GET[-1:])
    assert place.done == ["proven"]
    await until(lambda: transport.sent.endswith(b"answer\n"))


async def test_one_that_waits_for_another_request_makes_way_the_longest_idle_first(port: Port) -> None:
    first, second, fresh = port.connect(), port.connect(), port.connect()
    for made, transport, _ in (first, second, first):
        await port.request(made, transport)
    assert port.connections._drop_longest_idle()
    assert ("abort" in first[1].calls, "abort" in second[1].calls) == (False, True)
    assert port.connections._drop_longest_idle()
    assert not port.connections._drop_longest_idle()
    assert fresh[1].calls == [], "one that has sent no whole request yet is not idle"


async def test_one_with_a_request_under_way_does_not_make_way(port: Port) -> None:
    made, transport, _ = port.connect()
    await port.request(made, transport)
    port.gate.clear()
    made.data_received(GET)
    await until(lambda: len(port.asked) == 2)
    assert not port.connections._drop_longest_idle()
    port.gate.set()
    await until(lambda: transport.sent.count(b"answer\n") == 2)
    assert port.connections._drop_longest_idle()


async def test_a_request_that_fails_leaves_its_connection_idle_too(port: Port) -> None:
    made, transport, _ = port.connect()
    port.fails = True
    assert (await port.request(made, transport)).startswith(b"HTTP/1.1 500 ")
    assert b"gone" not in transport.sent
    assert port.connections._drop_longest_idle()
    assert transport.calls[-1] == "abort"


async def test_a_connection_that_has_ended_gives_its_place_back_and_makes_way_no_more(port: Port) -> None:
    made, transport, place = port.connect()
    port.gate.clear()
    made.data_received(GET)
    await until(lambda: bool(port.asked))
    made.connection_lost(None)
    assert place.done == ["proven", "left"]
    assert not port.connections._drop_longest_idle()
    port.gate.set()
    await until(lambda: not port.connections._tasks)
    assert transport.sent == b"", "the request was answered all the same, to nobody"
    assert not port.connections._drop_longest_idle()


async def test_one_that_is_dropped_before_it_is_made_ends_as_it_is_made(port: Port) -> None:
    place: Any = Place()
    made = port.connections.connection(place)
    place.drop()
    transport = Transport()
    transport.protocol = made
    given: Any = transport
    made.connection_made(given)
    assert transport.calls == ["abort"]


async def test_nothing_is_read_while_a_request_is_under_way(port: Port) -> None:
    made, transport, _ = port.connect()
    port.gate.clear()
    made.data_received(GET * 3)
    await until(lambda: bool(port.asked))
    assert transport.calls == ["pause"]
    port.gate.set()
    await until(lambda: transport.sent.count(b"answer\n") == 3)
    await until(lambda: transport.calls == ["pause"] * 3 + ["resume"])


async def test_the_next_request_waits_until_the_answer_is_taken(port: Port) -> None:
    made, transport, _ = port.connect()
    transport.takes = False
    made.data_received(GET * 2)
    await until(lambda: bool(transport.sent))
    assert list(port.connections._idle) == [made], "whoever does not read makes way"
    assert port.asked == ["/"]
    made.resume_writing()
    await until(lambda: len(port.asked) == 2)


async def test_who_asks_and_says_no_more_is_answered(port: Port) -> None:
    made, transport, _ = port.connect()
    port.gate.clear()
    made.data_received(GET)
    assert made.eof_received()
    port.gate.set()
    await until(lambda: bool(transport.sent))
    await until(lambda: transport.over)
    assert "eof" not in transport.calls


async def test_who_says_no_more_in_the_middle_is_left(port: Port) -> None:
    made, _, _ = port.connect()
    made.data_received(GET[:-1])
    assert not made.eof_received()


@pytest.mark.parametrize(
    ("limit", "said"),
    [("REQUEST_S", (GET, GET[:-1])), ("REQUEST_S", (GET[:-1],)), ("KEPT_S", (GET,))],
)
async def test_a_client_has_a_limit_for_what_he_says(
    port: Port, monkeypatch: pytest.MonkeyPatch, limit: str, said: tuple[bytes, ...]
) -> None:
    monkeypatch.setattr(http_acceptor, limit, 0.01)
    made, transport, place = port.connect()
    for each in said:
        made.data_received(each)
    await until(lambda: transport.over)
    assert transport.calls[-1] == "abort"
    assert place.done[-1] == "left"


async def test_a_client_has_a_limit_for_taking_an_answer(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_acceptor, "SEND_S", 0.01)
    made, transport, _ = port.connect()
    transport.takes = False
    made.data_received(GET)
    await until(lambda: transport.over)
    assert transport.calls == ["pause", "abort"]


async def test_a_drop_at_a_time_does_not_lengthen_the_limit_of_a_request(
    port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, transport, _ = port.connect()
    made.data_received(GET[:1])
    limit = made._limit
    for number in range(1, len(GET) - 1):
        made.data_received(GET[number : number + 1])
    assert made._limit is limit
    assert not transport.over


async def test_what_is_sent_after_the_last_answer_is_thrown_away_for_a_while(
    port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_acceptor, "LINGER_S", 0.05)
    made, transport, _ = port.connect()
    made.data_received(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n")
    await until(lambda: bool(transport.sent))
    assert transport.calls == ["pause", "eof", "resume"]
    made.data_received(b"x" * 100_000)
    assert not made._exchange.is_begun
    await until(lambda: transport.over)
    assert transport.calls[-1] == "abort"


async def test_who_hears_the_end_and_ends_too_is_gone_at_once(port: Port) -> None:
    made, transport, _ = port.connect()
    made.data_received(b"GET / HTTP/1.0\r\n\r\n")
    await until(lambda: "eof" in transport.calls)
    assert not made.eof_received()


async def test_a_port_that_closes_waits_for_answers_and_for_nobody_else(port: Port) -> None:
    idle, silent, busy = port.connect(), port.connect(), port.connect()
    await port.request(*idle[:2])
    port.gate.clear()
    busy[0].data_received(GET)
    await until(lambda: len(port.asked) == 2)
    closing = asyncio.ensure_future(port.connections.close())
    await until(lambda: idle[1].over and silent[1].over)
    assert not busy[1].over
    late = port.connect()
    assert late[1].calls == ["close"]
    port.gate.set()
    await until(lambda: bool(busy[1].sent))
    assert b"\r\nConnection: close\r\n" in busy[1].sent
    busy[1].close()
    await asyncio.wait_for(closing, 30)


async def test_a_port_that_closes_does_not_wait_for_good(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_acceptor, "SHUTDOWN_S", 0.01)
    made, transport, _ = port.connect()
    port.gate.clear()
    made.data_received(GET)
    await until(lambda: bool(port.asked))
    await asyncio.wait_for(port.connections.close(), 30)
    assert transport.calls == ["pause", "abort"]
    assert not port.connections._tasks
