"""A node's HTTP port.

/livez      200 while the event loop answers
/readyz     200 once the node serves, has its containers and is not behind; 503 with a line that says what it waits for
/safez      200 if this node can stop safely; 503 with the containers that would have too few replicas in sync (see
            node.health)
/metrics    Prometheus's text format; 503 while the node starts or stops
/metrics/kafka  the same for topics and groups, under the names of kafka-exporter
/hand-over  POST: other nodes become leaders of what this node leads; answered when they are. The node is expected to
            stop, and takes no roles until it is restarted. SIGTERM does the same
/recover-store  POST: what the nodes' folders say about containers whose records are lost; with ?apply=1 the records
            are restored. 409 with a line that says why not

The GETs are open to every client that reaches the port, the POSTs to this host and to clients with the token
(admin.http_guard). Each route is one path, compared letter by letter; all others are 404. A HEAD gets the headers of a
GET's answer. Requests must not have a body.
"""

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from typing import Any

import structlog

from headrace.admin.http_acceptor import Answering, HttpConnections
from headrace.admin.http_exchange import JSON, Answer, Request, text
from headrace.admin.http_guard import Refusal, read_token, refusal
from headrace.base.acceptor import Acceptor
from headrace.base.admission import is_local
from headrace.base.awake_clock import Timers
from headrace.base.descriptor_plan import plan_of_process
from headrace.base.errors import HeadraceError
from headrace.metrics.merging import CONTENT_TYPE

log = structlog.get_logger()

Scrape = Callable[[], Awaitable[bytes | None]]
"""Returns metrics in Prometheus's text format; None while the node starts or stops."""
Check = Callable[[], str]
"""Returns why a condition does not hold; "" if it holds."""


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
        clock: Timers | None = None,
    ) -> None:
        """`token_file`, `names`: see admin.http_guard. `is_read_only`: only the GETs are served. `clock`: the clock for
        limits on clients; None: the loop's."""
        self._token_file = token_file
        self._names = names
        self._hand_over = hand_over
        self._recover_store = recover_store
        gets = {
            "/livez": self._alive,
            "/readyz": self._answer(ready),
            "/safez": self._answer(safe),
            "/metrics": self._scraped(metrics),
            "/metrics/kafka": self._scraped(kafka_metrics),
        }
        posts = {} if is_read_only else {"/hand-over": self._handed_over, "/recover-store": self._recovered}
        self._routes: dict[str, dict[str, Answering]] = {
            **{path: dict.fromkeys(("GET", "HEAD"), self._guarded(each, is_open=True)) for path, each in gets.items()},
            **{path: {"POST": self._guarded(each, is_open=False)} for path, each in posts.items()},
        }
        self._connections = HttpConnections(plan_of_process(), self._routed, clock or asyncio.get_running_loop())
        self._acceptor: Acceptor | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen and serve; returns the port. Raises OSError."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family)
        await self.serve(listening)
        return int(listening.getsockname()[1])

    async def serve(self, listening: socket.socket) -> None:
        """Serve on a listening socket."""
        self._acceptor = Acceptor(listening, self._connections.connection, self._connections.admission)
        self._acceptor.start()

    async def close(self) -> None:
        """Stop serving."""
        if self._acceptor is not None:
            self._acceptor.close()
            await self._acceptor.wait_closed()
        await self._connections.close()

    async def _routed(self, request: Request) -> Answer:
        methods = self._routes.get(request.path)
        if methods is None:
            return text("not here", HTTPStatus.NOT_FOUND)
        handler = methods.get(request.method)
        if handler is None:
            allowed = {"Allow": ", ".join(methods)}
            return replace(text("method not allowed", HTTPStatus.METHOD_NOT_ALLOWED), headers=allowed)
        return await handler(request)

    def _guarded(self, handler: Answering, *, is_open: bool) -> Answering:
        """A handler that first checks whether the request is allowed. `is_open`: every client may send it."""

        async def answered(request: Request) -> Answer:
            remote = request.remote
            token = b""
            if not is_open and not is_local(remote) and "authorization" in request.headers:
                token = await self._token()
            refused = refusal(request.headers, remote=remote, is_open=is_open, names=self._names, token=token)
            if refused is None and request.has_body:
                refused = Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "requests must not have a body")
            if refused is None:
                return await handler(request)
            if not is_open:
                log.warning("admin call refused", peer=remote, path=request.path, reason=refused.reason)
            asks = {"WWW-Authenticate": "Bearer"} if refused.status is HTTPStatus.UNAUTHORIZED else {}
            return replace(text(refused.reason, refused.status), headers=asks, closes=True)

        return answered

    async def _token(self) -> bytes:
        """The file's present content; b"" if it cannot be read."""
        try:
            return await asyncio.to_thread(read_token, self._token_file)
        except (OSError, ValueError) as error:
            log.warning("the admin port's token cannot be read", file=str(self._token_file), reason=str(error))
            return b""

    async def _alive(self, _request: Request) -> Answer:
        return text("ok")

    def _answer(self, check: Check) -> Answering:
        async def answered(_request: Request) -> Answer:
            why_not = check()
            return text(why_not, HTTPStatus.SERVICE_UNAVAILABLE) if why_not else text("ok")

        return answered

    def _scraped(self, scrape: Scrape) -> Answering:
        async def answered(request: Request) -> Answer:
            try:
                told = await scrape()
            except HeadraceError as error:
                return text(str(error), HTTPStatus.SERVICE_UNAVAILABLE)
            except Exception:  # parts may be starting or stopping
                log.exception("metrics could not be collected", path=request.path)
                told = None
            if told is None:
                return text("the node starts or stops", HTTPStatus.SERVICE_UNAVAILABLE)
            return Answer(HTTPStatus.OK, told, content_type=CONTENT_TYPE)

        return answered

    async def _handed_over(self, _request: Request) -> Answer:
        await self._hand_over()
        return text("ok")

    async def _recovered(self, request: Request) -> Answer:
        try:
            done = await self._recover_store(request.query.get("apply") == "1")
        except (HeadraceError, OSError) as error:
            return text(str(error), HTTPStatus.CONFLICT)
        return Answer(HTTPStatus.OK, json.dumps(done).encode(), content_type=JSON)
