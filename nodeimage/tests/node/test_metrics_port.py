import asyncio
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable

from headrace.node.metrics_port import LOOPBACK, MetricsPort
from kit.one_node import until


class Served:
    """A server that answers connections from the first one on."""

    def __init__(self) -> None:
        self.servers: list[asyncio.Server] = []
        self.gate = asyncio.Event()

    async def serve(self, listening: socket.socket) -> None:
        await self.gate.wait()

        async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"metrics")
            writer.close()

        self.servers.append(await asyncio.start_server(answer, sock=listening))


def test_what_answers_scrapes_is_light() -> None:
    """Each of these modules would cost megabytes on every scraped node."""
    heavy = {"aiohttp", "prometheus_client", "http.client", "http.server", "urllib.request", "wsgiref"}
    program = f"import sys, headrace.admin.http, headrace.node.metrics; print(*{heavy} & sys.modules.keys())"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.split() == []


async def asked(port: int) -> bytes:
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    try:
        return await asyncio.wait_for(reader.read(), 30)
    finally:
        writer.close()


async def test_nothing_is_loaded_before_somebody_asks_and_once_then() -> None:
    served = Served()
    port = MetricsPort(served.serve)
    number = port.start(0)
    first, second = asyncio.ensure_future(asked(number)), asyncio.ensure_future(asked(number))
    assert served.servers == []
    served.gate.set()
    assert await first == await second == await asked(number) == b"metrics"
    assert len(served.servers) == 1
    served.servers[0].close()
    await port.close()


async def test_it_closes_whether_somebody_has_asked_or_not() -> None:
    async def fails(_: socket.socket) -> None:
        raise RuntimeError("no module")

    serves: list[Callable[[socket.socket], Awaitable[None]]] = [Served().serve, fails]
    for serve in serves:
        for asks in (False, True):
            port = MetricsPort(serve)
            number = port.start(0)
            waiting = asyncio.ensure_future(asked(number)) if asks else None
            if asks:
                await until(lambda port=port: port._loading is not None)  # type: ignore[misc]
            await port.close()
            if waiting is not None:
                await asyncio.wait([waiting], timeout=30)
                waiting.exception()
            with socket.create_server((LOOPBACK, number)):
                pass
