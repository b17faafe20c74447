"""Connections of the HTTP port: a place each, until it is idle and others want it."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from headrace.admin.http_acceptor import HttpConnections, _Placed
from headrace.base.descriptor_plan import descriptor_plan


class Place:
    """Notes what becomes of it."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.drop: Any = None

    def occupy(self, drop: Any) -> None:
        self.drop = drop

    def proven(self) -> None:
        self.done.append("proven")

    def leave(self) -> None:
        self.done.append("left")


class Inner(asyncio.Protocol):
    """As aiohttp's."""

    def __init__(self) -> None:
        self.heard: list[object] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.heard.append("made")

    def connection_lost(self, exc: Exception | None) -> None:
        self.heard.append("lost")

    def data_received(self, data: bytes) -> None:
        self.heard.append(data)


class Transport:
    """One that is aborted or not."""

    def __init__(self) -> None:
        self.aborted = 0

    def abort(self) -> None:
        self.aborted += 1


class Port:
    """Connections of one port, made by hand."""

    def __init__(self) -> None:
        self.connections = HttpConnections(descriptor_plan(4096))

    def connect(self) -> tuple[_Placed, Any, Place, Inner]:
        inner, transport = Inner(), Transport()
        place: Any = Place()
        made = self.connections.factory(lambda: inner)(place)
        assert isinstance(made, _Placed)
        given: Any = transport
        made.connection_made(given)
        return made, transport, place, inner

    async def request(self, transport: Any, *, fails: bool = False) -> str:
        async def handler(_: web.Request) -> Any:
            if fails:
                raise web.HTTPNotFound
            return "answer"

        given: Any = SimpleNamespace(transport=transport)
        method: Any = self.connections.middleware
        found: str = await method(given, handler)
        return found


@pytest.fixture
async def port() -> Port:
    return Port()


async def test_a_connection_has_proven_itself_with_its_first_whole_request(port: Port) -> None:
    _, transport, place, inner = port.connect()
    assert place.done == []
    assert await port.request(transport) == "answer"
    assert place.done == ["proven"]
    assert inner.heard == ["made"]


async def test_one_that_waits_for_another_request_makes_way_the_longest_idle_first(port: Port) -> None:
    _, first, _, _ = port.connect()
    _, second, _, _ = port.connect()
    _, fresh, _, _ = port.connect()
    for transport in (first, second, first):
        await port.request(transport)
    assert port.connections._drop_longest_idle()
    assert (first.aborted, second.aborted) == (0, 1)
    assert port.connections._drop_longest_idle()
    assert not port.connections._drop_longest_idle()
    assert fresh.aborted == 0, "one that has sent no whole request yet is not idle"


async def test_a_request_that_is_refused_leaves_its_connection_idle_too(port: Port) -> None:
    _, transport, _, _ = port.connect()
    with pytest.raises(web.HTTPNotFound):
        await port.request(transport, fails=True)
    assert port.connections._drop_longest_idle()
    assert transport.aborted == 1


async def test_a_connection_that_has_ended_gives_its_place_back_and_makes_way_no_more(port: Port) -> None:
    placed, transport, place, inner = port.connect()
    await port.request(transport)
    placed.connection_lost(None)
    assert place.done == ["proven", "left"]
    assert inner.heard == ["made", "lost"]
    assert not port.connections._drop_longest_idle()
    assert await port.request(transport) == "answer", "of a connection that is not known"


async def test_one_that_is_dropped_before_it_is_made_ends_as_it_is_made(port: Port) -> None:
    place: Any = Place()
    made = port.connections.factory(Inner)(place)
    place.drop()
    transport: Any = Transport()
    made.connection_made(transport)
    assert transport.aborted == 1
