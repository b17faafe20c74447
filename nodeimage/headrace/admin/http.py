"""A node's HTTP port.

/livez      200 while the event loop answers
/readyz     200 once the node serves, has its containers and is not behind; 503 with a line that says what it waits for
/safez      200 where this node can stop without anybody waiting; 503 with what would be missed
/metrics    Prometheus's text format
/hand-over  POST from this host alone: others lead what the node leads; answered when they do. It is about to stop, and
            takes no roles until it is started again. SIGTERM does the same
/recover-store  POST from this host alone: what the nodes' folders say of containers whose records are gone; with
            ?apply=1 these are put back. 409 with a line that says why not
"""

import socket
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

from aiohttp import web

from headrace.admin.http_acceptor import HttpConnections
from headrace.admin.metrics import CONTENT_TYPE, exposition
from headrace.base.acceptor import Acceptor
from headrace.base.admission import is_local
from headrace.base.descriptor_plan import plan_of_process
from headrace.base.errors import HeadraceError

Check = Callable[[], str]
"""Why not; "": it is so."""


class HttpPort:
    """Serves a node's health and metrics over HTTP."""

    def __init__(
        self,
        *,
        ready: Check,
        safe: Check,
        status: Callable[[], Awaitable[dict[str, Any]] | None],
        hand_over: Callable[[], Awaitable[None]],
        recover_store: Callable[[bool], Awaitable[dict[str, Any]]],
    ) -> None:
        """`status` gives None until there is a broker."""
        self._status = status
        self._hand_over = hand_over
        self._recover_store = recover_store
        self._connections = HttpConnections(plan_of_process())
        application = web.Application(middlewares=[self._connections.middleware])
        application.router.add_get("/livez", self._alive)
        application.router.add_get("/readyz", self._answer(ready))
        application.router.add_get("/safez", self._answer(safe))
        application.router.add_get("/metrics", self._metrics)
        application.router.add_post("/hand-over", self._handed_over)
        application.router.add_post("/recover-store", self._recovered)
        self._runner = web.AppRunner(application, access_log=None, handle_signals=False, shutdown_timeout=1.0)
        self._acceptor: Acceptor | None = None

    async def start(self, host: str, port: int) -> int:
        """Serve; the port. Raises OSError."""
        await self._runner.setup()
        server = self._runner.server
        assert server is not None
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family)
        self._acceptor = Acceptor(listening, self._connections.factory(server), self._connections.admission)
        self._acceptor.start()
        return int(listening.getsockname()[1])

    async def close(self) -> None:
        """Serve no longer."""
        if self._acceptor is not None:
            self._acceptor.close()
            await self._acceptor.wait_closed()
        await self._runner.cleanup()

    async def _alive(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    def _answer(self, check: Check) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def answered(_request: web.Request) -> web.Response:
            why_not = check()
            if why_not:
                return web.Response(status=HTTPStatus.SERVICE_UNAVAILABLE, text=f"{why_not}\n")
            return web.Response(text="ok\n")

        return answered

    async def _metrics(self, _request: web.Request) -> web.Response:
        status = self._status()
        if status is None:
            return web.Response(status=HTTPStatus.SERVICE_UNAVAILABLE, text="the node is starting\n")
        return web.Response(body=exposition(await status).encode(), headers={"Content-Type": CONTENT_TYPE})

    async def _handed_over(self, request: web.Request) -> web.Response:
        _check_local(request)
        await self._hand_over()
        return web.Response(text="ok\n")

    async def _recovered(self, request: web.Request) -> web.Response:
        _check_local(request)
        try:
            done = await self._recover_store(request.query.get("apply") == "1")
        except (HeadraceError, OSError) as error:
            return web.Response(status=HTTPStatus.CONFLICT, text=f"{error}\n")
        return web.json_response(done)


def _check_local(request: web.Request) -> None:
    if not _is_local(request.remote):
        raise web.HTTPForbidden(text="only from the same host\n")


def _is_local(address: str | None) -> bool:
    return is_local(address or "")
