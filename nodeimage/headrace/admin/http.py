"""A node's HTTP port.

/livez      200 while the event loop answers
/readyz     200 once the node serves, has its containers and is not behind; 503 with a line that says what it waits for
/safez      200 where this node can stop without anybody waiting; 503 with what would be missed
/metrics    Prometheus's text format; 503 while the node starts or stops
/metrics/kafka  the same of topics and groups, by the names of kafka-exporter
/hand-over  POST: others lead what the node leads; answered when they do. It is about to stop, and takes no roles until
            it is started again. SIGTERM does the same
/recover-store  POST: what the nodes' folders say of containers whose records are gone; with ?apply=1 these are put
            back. 409 with a line that says why not

The GETs are for whoever reaches the port, the POSTs for this host and whoever shows the token (admin.http_guard). Each
route is one path, letter by letter, and says which it is when it is added; whatever else is asked for is not there. No
request has a body.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Collection
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import structlog
from aiohttp import web

from headrace.admin.http_acceptor import HttpConnections
from headrace.admin.http_guard import Refusal, read_token, refusal
from headrace.base.acceptor import Acceptor
from headrace.base.admission import is_local
from headrace.base.descriptor_plan import plan_of_process
from headrace.base.errors import HeadraceError
from headrace.metrics.merging import CONTENT_TYPE

log = structlog.get_logger()

LINGER_S: Final = 1.0
"""For the rest of what somebody sends who has his answer."""

Answering = Callable[[web.Request], Awaitable[web.Response]]
Scrape = Callable[[], Awaitable[bytes | None]]
"""Metrics in Prometheus's text format; None: the node is starting."""
Check = Callable[[], str]
"""Why not; "": it is so."""


class HttpPort:
    """Serves a node's health and metrics over HTTP."""

    def __init__(
        self,
        *,
        ready: Check,
        safe: Check,
        metrics: Scrape,
        kafka_metrics: Scrape,
        hand_over: Callable[[], Awaitable[None]],
        recover_store: Callable[[bool], Awaitable[dict[str, Any]]],
        token_file: Path | None = None,
        names: Collection[str] = (),
        is_read_only: bool = False,
    ) -> None:
        """`token_file`, `names`: see admin.http_guard. `is_read_only`: it has the GETs alone."""
        self._token_file = token_file
        self._names = names
        self._hand_over = hand_over
        self._recover_store = recover_store
        self._connections = HttpConnections(plan_of_process())
        application = web.Application(middlewares=[self._connections.middleware])
        for path, handler in (
            ("/livez", self._alive),
            ("/readyz", self._answer(ready)),
            ("/safez", self._answer(safe)),
            ("/metrics", self._scraped(metrics)),
            ("/metrics/kafka", self._scraped(kafka_metrics)),
        ):
            application.router.add_get(path, self._guarded(handler, is_open=True))
        posts = () if is_read_only else (("/hand-over", self._handed_over), ("/recover-store", self._recovered))
        for path, handler in posts:
            application.router.add_post(path, self._guarded(handler, is_open=False))
        self._runner = web.AppRunner(
            application, access_log=None, handle_signals=False, shutdown_timeout=1.0, lingering_time=LINGER_S
        )
        self._acceptor: Acceptor | None = None

    async def start(self, host: str, port: int) -> int:
        """Serve; the port. Raises OSError."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family)
        await self.serve(listening)
        return int(listening.getsockname()[1])

    async def serve(self, listening: socket.socket) -> None:
        """Serve at a socket that listens."""
        await self._runner.setup()
        server = self._runner.server
        assert server is not None
        self._acceptor = Acceptor(listening, self._connections.factory(server), self._connections.admission)
        self._acceptor.start()

    async def close(self) -> None:
        """Serve no longer."""
        if self._acceptor is not None:
            self._acceptor.close()
            await self._acceptor.wait_closed()
        await self._runner.cleanup()

    def _guarded(self, handler: Answering, *, is_open: bool) -> Answering:
        """A handler for those who may ask it. `is_open`: anybody may."""

        async def answered(request: web.Request) -> web.Response:
            remote = request.remote or ""
            token = b""
            if not is_open and not is_local(remote) and "Authorization" in request.headers:
                token = await self._token()
            refused = refusal(request.headers, remote=remote, is_open=is_open, names=self._names, token=token)
            if refused is None and request.body_exists:
                refused = Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "no request here has a body")
            if refused is None:
                return await handler(request)
            if not is_open:
                log.warning("admin call refused", peer=remote, path=request.path, reason=refused.reason)
            response = web.Response(status=refused.status, text=f"{refused.reason}\n")
            if refused.status is HTTPStatus.UNAUTHORIZED:
                response.headers["WWW-Authenticate"] = "Bearer"
            response.force_close()
            return response

        return answered

    async def _token(self) -> bytes:
        """What the file holds now; b"" where it cannot be read."""
        try:
            return await asyncio.to_thread(read_token, self._token_file)
        except (OSError, ValueError) as error:
            log.warning("the admin port's token cannot be read", file=str(self._token_file), reason=str(error))
            return b""

    async def _alive(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    def _answer(self, check: Check) -> Answering:
        async def answered(_request: web.Request) -> web.Response:
            why_not = check()
            if why_not:
                return web.Response(status=HTTPStatus.SERVICE_UNAVAILABLE, text=f"{why_not}\n")
            return web.Response(text="ok\n")

        return answered

    def _scraped(self, scrape: Scrape) -> Answering:
        async def answered(request: web.Request) -> web.Response:
            try:
                text = await scrape()
            except HeadraceError as error:
                return web.Response(status=HTTPStatus.SERVICE_UNAVAILABLE, text=f"{error}\n")
            except Exception:  # parts that start, or stop, in the middle of it
                log.exception("metrics could not be told", path=request.path)
                text = None
            if text is None:
                return web.Response(status=HTTPStatus.SERVICE_UNAVAILABLE, text="the node starts or stops\n")
            return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE})

        return answered

    async def _handed_over(self, _request: web.Request) -> web.Response:
        await self._hand_over()
        return web.Response(text="ok\n")

    async def _recovered(self, request: web.Request) -> web.Response:
        try:
            done = await self._recover_store(request.query.get("apply") == "1")
        except (HeadraceError, OSError) as error:
            return web.Response(status=HTTPStatus.CONFLICT, text=f"{error}\n")
        return web.json_response(done)
