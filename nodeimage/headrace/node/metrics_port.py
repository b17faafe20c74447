"""A port on loopback that costs nothing until it is used: its server's code is loaded at the first connection.

Connections that arrive in the meantime wait for that, a tenth of a second. The code takes 2 MB, and most small clusters
are never scraped.
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
    """One node's port. Belongs to the event loop."""

    def __init__(self, serve: Callable[[socket.socket], Awaitable[None]]) -> None:
        """`serve`: takes over the listening socket and serves it; called once."""
        self._serve = serve
        self._listening: socket.socket | None = None
        self._loading: asyncio.Task[None] | None = None

    def start(self, port: int) -> int:
        """Start listening, and return the port. Raises OSError."""
        self._listening = listening = socket.create_server((LOOPBACK, port))
        listening.setblocking(False)
        asyncio.get_running_loop().add_reader(listening, self._asked, listening)
        return int(listening.getsockname()[1])

    async def close(self) -> None:
        """Stop listening. A server that `serve` has started is closed by its owner."""
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
        except Exception:  # the node can work without metrics
            log.exception("metrics cannot be served")
            listening.close()
