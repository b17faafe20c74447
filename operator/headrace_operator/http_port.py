"""The operator's HTTP port.

/healthz   200 while the engine works; 503 with the reason why it is stuck or deaf
/readyz    200 once everything has been listed and resources are reconciled; 503 before
/metrics   Prometheus's text format
"""

from collections.abc import Awaitable, Callable
from http import HTTPStatus

from aiohttp import web

from headrace_operator.metrics import CONTENT_TYPE


class HttpPort:
    """One operator's HTTP server."""

    def __init__(
        self,
        *,
        stale: Callable[[], str],
        metrics: Callable[[], Awaitable[bytes]],
        starting: Callable[[], bool] = lambda: False,
    ) -> None:
        """`stale`: returns why the operator is unhealthy; "" if it is healthy. `starting`: whether resources are not
        reconciled yet.
        """
        self._stale = stale
        self._starting = starting
        self._metrics_text = metrics
        application = web.Application()
        application.router.add_get("/healthz", self._health)
        application.router.add_get("/readyz", self._ready)
        application.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(application, access_log=None)

    async def start(self, host: str, port: int) -> int:
        """Start to serve and return the port. Raises OSError."""
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port).start()
        return int(self._runner.addresses[0][1])

    async def close(self) -> None:
        """Stop serving."""
        await self._runner.cleanup()

    async def _health(self, _request: web.Request) -> web.Response:
        why = self._stale()
        if why:
            return web.Response(status=HTTPStatus.SERVICE_UNAVAILABLE, text=f"{why}\n")
        return web.Response(text="ok\n")

    async def _ready(self, _request: web.Request) -> web.Response:
        if self._starting():
            return web.Response(status=HTTPStatus.SERVICE_UNAVAILABLE, text="not all resources have been listed yet\n")
        return web.Response(text="ok\n")

    async def _metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=await self._metrics_text(), headers={"Content-Type": CONTENT_TYPE})
