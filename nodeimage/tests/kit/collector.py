"""A collector of OpenTelemetry traces on loopback, in a separate thread: it accepts spans, or misbehaves."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from kit.own_ports import own_port

PATH = "/v1/traces"
SLOW_S = 0.1


class Manner(Enum):
    """How the collector answers."""

    TAKES = "takes"
    REFUSES = "refuses"
    SLOW = "slow"
    """It accepts the spans after a while."""
    HANGS = "hangs"
    """It reads the request, and never answers."""
    ENDLESS = "endless"
    """It accepts the spans, and its answer never ends."""


@dataclass(frozen=True)
class Received:
    """A span as received."""

    name: str
    attributes: dict[str, Any]
    resource: dict[str, Any]
    is_error: bool
    is_root: bool
    trace: bytes
    took_s: float


class Collector:
    """Accepts spans at `endpoint`. Use it as a context."""

    def __init__(self) -> None:
        self.port = own_port()
        self.manner = Manner.TAKES
        self.spans: list[Received] = []
        self.requests = 0
        self.headers: list[dict[str, str]] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="collector", daemon=True)
        self._runner: web.AppRunner | None = None
        self._released: asyncio.Event

    @property
    def endpoint(self) -> str:
        """The base address that nodes are given."""
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> "Collector":
        self._thread.start()
        self._run(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def named(self, name: str) -> list[Received]:
        """The spans of a name."""
        return [each for each in self.spans if each.name == name]

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """Within the context, nobody listens."""
        self._run(self._stop())
        yield
        self._run(self._start())

    def _run(self, coroutine: Any) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(60)

    async def _start(self) -> None:
        self._released = asyncio.Event()
        app = web.Application()
        app.router.add_post(PATH, self._take)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True).start()

    async def _stop(self) -> None:
        self._released.set()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _take(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.requests += 1
        self.headers.append(dict(request.headers))
        match self.manner:
            case Manner.REFUSES:
                return web.Response(status=400)
            case Manner.HANGS:
                await self._released.wait()
                return web.Response(status=503)
            case Manner.SLOW:
                await asyncio.sleep(SLOW_S)
        assert request.content_type == "application/x-protobuf"
        self.spans += _spans(ExportTraceServiceRequest.FromString(body))
        if self.manner is not Manner.ENDLESS:
            return web.Response(
                body=ExportTraceServiceResponse().SerializeToString(), content_type="application/x-protobuf"
            )
        answer = web.StreamResponse()
        await answer.prepare(request)
        with contextlib.suppress(ConnectionError):
            while not self._released.is_set():
                await answer.write(bytes(1 << 16))
                await asyncio.sleep(0)
        return answer


def _spans(request: ExportTraceServiceRequest) -> Iterator[Received]:
    for of_resource in request.resource_spans:
        resource = {each.key: _plain(each.value) for each in of_resource.resource.attributes}
        for of_scope in of_resource.scope_spans:
            for span in of_scope.spans:
                yield Received(
                    name=span.name,
                    attributes={each.key: _plain(each.value) for each in span.attributes},
                    resource=resource,
                    is_error=span.status.code == Status.STATUS_CODE_ERROR,
                    is_root=not span.parent_span_id,
                    trace=span.trace_id,
                    took_s=(span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
                )


def _plain(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    return getattr(value, kind) if kind in ("string_value", "int_value", "double_value", "bool_value") else str(value)
