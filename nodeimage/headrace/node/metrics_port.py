"""A port on loopback that costs nothing until somebody asks: what answers there is loaded at the first connection.

Connections that come before wait for that, a tenth of a second. It takes 2 MB, and most small clusters are never
scraped.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import structlog

log = structlog.get_logger()

LOOPBACK: Final = "127.0.0.1"


class MetricsPort:
    """Of one node; the loop's own."""

    def __init__(self, serve: Callable[[socket.socket], Awaitable[None]]) -> None:
        """`serve`: takes the listening socket over, and answers there. It is called once."""
        self._serve = serve
        self._listening: socket.socket | None = None
        self._loading: asyncio.Task[None] | None = None

    def start(self, port: int) -> int:
        """Listen; the port. Raises OSError."""
        self._listening = listening = socket.create_server((LOOPBACK, port))
        listening.setblocking(False)
        asyncio.get_running_loop().add_reader(listening, self._asked, listening)
        return int(listening.getsockname()[1])

    async def close(self) -> None:
        """Listen no longer; what was served is its server's to close."""
        if self._loading is not None:
            self._loading.cancel()
            with suppress(asyncio.CancelledError):
                await self._loading
        elif self._listening is not None:
            asyncio.get_running_loop().remove_reader(self._listening)
        if self._listening is not None:
            self._listening.close()

    def _asked(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(listening)
        self._loading = loop.create_task(self._load(listening), name="metrics port")

    async def _load(self, listening: socket.socket) -> None:
        try:
            await self._serve(listening)
        except Exception:  # the node is of use without its metrics
            log.exception("metrics cannot be served")
            listening.close()
